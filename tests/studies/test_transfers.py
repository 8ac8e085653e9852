"""The run of one database and direction."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from framehaul.bench import store
from framehaul.reporting.versions import size_text
from framehaul.servers import Servers
from framehaul.settings import Settings
from framehaul.studies.transfers import study
from framehaul.techniques import techniques

CHOSEN = ("polars_psycopg_copy_text", "polars_psycopg_copy_text_typed", "pandas_psycopg_copy_text")


@pytest.fixture
def few(settings: Settings, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Servers:
    """A run of few techniques, on the tests' servers, that leaves its results elsewhere."""
    known = {one.name: one for one in techniques("postgres", "read")}
    monkeypatch.setattr(study, "techniques", lambda *_: [known[name] for name in CHOSEN])
    monkeypatch.setenv("FRAMEHAUL_STATE_DIR", str(settings.state_dir))
    monkeypatch.setenv("FRAMEHAUL_OUT", str(tmp_path))
    return servers


def rounds_of(passes: pl.DataFrame) -> dict[str, int]:
    return dict(passes.group_by("technique").len().rows())


def test_without_a_race_nobody_falls_behind(few: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    assert few
    monkeypatch.setattr(study, "leaders", lambda *_: [])
    found = study.run("postgres", "read", rows=500, rounds=2, warmup=0, seed=1)
    assert rounds_of(found) == dict.fromkeys(CHOSEN, 2)


def test_another_table_is_another_run(few: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {one.name: one for one in techniques("postgres", "read")}
    chosen = [known["polars_adbc_fetch"], known["polars_psycopg_copy_text_typed"]]
    monkeypatch.setattr(study, "techniques", lambda *_: chosen)
    assert few
    found = study.run("postgres", "read", rows=30, rounds=1, warmup=0, seed=1, table="nested")
    outcomes = dict(found.select("technique", "status").iter_rows())
    assert outcomes == {"polars_adbc_fetch": "ok", "polars_psycopg_copy_text_typed": "failed"}
    assert "numbers is bigint[], which is not parsed" in " ".join(found["reason"].drop_nulls())
    run = store.read_metadata(tmp_path / "results")["runs"]["02_postgres_read"]
    assert run["table"] == run["parameters"]["table"] == "nested"
    assert "of the table 'nested'" in size_text(run)
    with pytest.raises(ValueError, match="TABLE='other': choose from standard, nested"):
        study.run("postgres", "read", rows=30, rounds=1, warmup=0, seed=1, table="other")
