"""The levers: which techniques they compare, and that they claim nothing inside the interval."""

from __future__ import annotations

from pathlib import Path

import pytest

from framehaul.studies.ablations import study as ablations
from framehaul.studies.ablations.study import LEVERS, Lever
from framehaul.techniques import techniques
from tests.results.test_store import passes, result


@pytest.mark.parametrize("lever", LEVERS, ids=lambda lever: f"{lever.base}-{lever.changed}")
def test_levers_name_techniques_that_exist(lever: Lever) -> None:
    names = {found.name for found in techniques(lever.database, lever.direction)}  # type: ignore[arg-type]
    assert {lever.base, lever.changed} <= names
    assert lever.base != lever.changed


def test_a_lever_is_claimed_only_outside_its_interval(tmp_path: Path) -> None:
    lever = next(lever for lever in LEVERS if (lever.database, lever.direction) == ("clickhouse", "read"))
    same = [(1, 1.0), (2, 1.1), (3, 0.9)]
    frame = passes(
        *(result(lever.base, n, s) for n, s in same),
        *(result(lever.changed, n, s) for n, s in [(1, 1.05), (2, 1.0), (3, 0.95)]),
        directory=tmp_path,
    )
    found = ablations.ratios(frame)
    assert found["change"].to_list() == [lever.change]
    assert "not told apart" in ablations.levers_table(found)
    assert "no lever stands out" in ablations.first_to_change(found)
    twice = passes(
        *(result(lever.base, n, s) for n, s in same), *(result(lever.changed, n, s / 2) for n, s in same),
        directory=tmp_path,
    )  # fmt: skip
    found = ablations.ratios(twice)
    assert found["ratio"].to_list() == [pytest.approx(2)]
    assert f"{lever.change} (2.00x)" in ablations.first_to_change(found)


def test_a_lever_of_a_technique_that_did_not_run_is_left_out(tmp_path: Path) -> None:
    lever = next(lever for lever in LEVERS if (lever.database, lever.direction) == ("clickhouse", "read"))
    frame = passes(
        result(lever.base), result(lever.changed, seconds=None, status="failed", reason="x"), directory=tmp_path
    )
    assert ablations.ratios(frame).is_empty()
