"""The ablations: which techniques they compare, and that they claim nothing inside the interval."""

from __future__ import annotations

from pathlib import Path

import pytest

from framehaul.studies.ablations import study as ablations
from framehaul.studies.ablations.study import ABLATIONS, Ablation
from framehaul.techniques import techniques
from tests.bench.test_store import passes, result


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda ablation: f"{ablation.base}-{ablation.changed}")
def test_ablations_name_techniques_that_exist(ablation: Ablation) -> None:
    names = {found.name for found in techniques(ablation.database, ablation.direction)}  # type: ignore[arg-type]
    assert {ablation.base, ablation.changed} <= names
    assert ablation.base != ablation.changed


def test_an_ablation_is_claimed_only_outside_its_interval(tmp_path: Path) -> None:
    ablation = next(
        ablation for ablation in ABLATIONS if (ablation.database, ablation.direction) == ("clickhouse", "read")
    )
    same = [(1, 1.0), (2, 1.1), (3, 0.9)]
    frame = passes(
        *(result(ablation.base, n, s) for n, s in same),
        *(result(ablation.changed, n, s) for n, s in [(1, 1.05), (2, 1.0), (3, 0.95)]),
        directory=tmp_path,
    )
    found = ablations.ratios(frame)
    assert found["change"].to_list() == [ablation.change]
    assert "inconclusive" in str(ablations.ablations_table(found))
    assert "no change stands out" in ablations.first_to_change(found)
    twice = passes(
        *(result(ablation.base, n, s) for n, s in same), *(result(ablation.changed, n, s / 2) for n, s in same),
        directory=tmp_path,
    )  # fmt: skip
    found = ablations.ratios(twice)
    assert found["ratio"].to_list() == [pytest.approx(2)]
    assert f"{ablation.change} (2.00x)" in ablations.first_to_change(found)


def test_an_ablation_of_a_technique_that_did_not_run_is_left_out(tmp_path: Path) -> None:
    ablation = next(
        ablation for ablation in ABLATIONS if (ablation.database, ablation.direction) == ("clickhouse", "read")
    )
    frame = passes(
        result(ablation.base), result(ablation.changed, seconds=None, status="failed", reason="x"), directory=tmp_path
    )
    assert ablations.ratios(frame).is_empty()
