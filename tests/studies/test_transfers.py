"""A direction's run: more rounds where a precision is asked for."""

from __future__ import annotations

import dataclasses
import functools
import time
from pathlib import Path

import pytest

from framehaul.results.ratios import LEAST_ROUNDS
from framehaul.servers import Servers
from framehaul.settings import Settings
from framehaul.studies.transfers import study
from framehaul.techniques import Technique, techniques

CHOSEN = ("polars_psycopg_copy_text", "polars_psycopg_copy_text_typed", "pandas_psycopg_copy_text")


@pytest.fixture
def few(settings: Settings, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Servers:
    """A run of few techniques, on the tests' servers, that leaves its results elsewhere."""
    known = {one.name: one for one in techniques("postgres", "read")}
    monkeypatch.setattr(study, "techniques", lambda *_: [known[name] for name in CHOSEN])
    monkeypatch.setenv("FRAMEHAUL_STATE_DIR", str(settings.state_dir))
    monkeypatch.setenv("FRAMEHAUL_OUT", str(tmp_path))
    return servers


def rounds_of(found: study.Transfers) -> dict[str, int]:
    return dict(found.passes.group_by("technique").len().rows())


def slowed(technique: Technique, seconds: float) -> Technique:
    """The same technique, slower by so much that no machine mistakes their order."""

    @functools.wraps(technique.function)
    def later(*given: object) -> object:
        time.sleep(seconds)
        return technique.function(*given)

    return dataclasses.replace(technique, function=later)


def test_the_fastest_and_the_best_published_go_on_until_enough_is_known(
    few: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert few
    # Without a race nobody falls behind, be it as slow as it may.
    monkeypatch.setattr(study, "leaders", lambda *_: [])
    known = {one.name: one for one in techniques("postgres", "read")}
    published, typed, pandas = (known[name] for name in CHOSEN)
    order = [published, typed, slowed(pandas, 2)]
    monkeypatch.setattr(study, "techniques", lambda *_: order)
    found = study.run("postgres", "read", rows=500, passes=1, warmup=0, seed=1, precision=1e6, budget=60)
    assert rounds_of(found) == dict(zip(CHOSEN, (LEAST_ROUNDS, LEAST_ROUNDS, 1), strict=True))
    assert f"after {LEAST_ROUNDS} rounds" in found.findings().data
    assert found.run_metadata["precision"] == 1e6


def test_a_budget_ends_it_and_what_was_reached_is_said(few: Servers) -> None:
    assert few
    found = study.run("postgres", "read", rows=500, passes=2, warmup=0, seed=1, precision=1e-9, budget=0)
    assert set(rounds_of(found).values()) == {2}
    assert "without an interval, after 2 rounds; time, or rounds, ran out before" in found.findings().data


def test_a_precision_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match=r"PRECISION=-1"):
        study.run("postgres", "read", rows=500, passes=1, warmup=0, seed=1, precision=-1)
