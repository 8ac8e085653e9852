"""The ablations: which techniques they compare, and that they claim nothing inside the interval."""

from __future__ import annotations

from pathlib import Path

import pytest

from framehaul.studies.ablations import study as ablations
from framehaul.studies.ablations.study import PAIRS, Ablation
from framehaul.techniques import techniques
from tests.bench.test_store import passes, result


@pytest.mark.parametrize("ablation", PAIRS, ids=lambda ablation: f"{ablation.base}-{ablation.changed}")
def test_ablations_name_techniques_that_exist(ablation: Ablation) -> None:
    names = {found.name for found in techniques(ablation.database, ablation.direction)}  # type: ignore[arg-type]
    assert {ablation.base, ablation.changed} <= names
    assert ablation.base != ablation.changed


def test_an_ablation_is_claimed_only_outside_its_interval(tmp_path: Path) -> None:
    one = next(one for one in PAIRS if (one.database, one.direction) == ("clickhouse", "read"))
    same = (1.0, 1.1, 0.9)
    for changed, said, first in (
        ((1.05, 1.0, 0.95), "inconclusive", "no change stands out"),
        ((0.5, 0.55, 0.45), "2.00x", f"{one.change} (2.00x)"),
    ):
        rows = [(one.base, *row) for row in enumerate(same, 1)] + [(one.changed, *row) for row in enumerate(changed, 1)]
        found = ablations.ratios(passes(*(result(*row) for row in rows), directory=tmp_path))
        assert found["change"].to_list() == [one.change]
        assert said in str(ablations.ablations_table(found))
        assert first in ablations.first_to_change(found)


def test_an_ablation_of_a_technique_that_did_not_run_is_left_out(tmp_path: Path) -> None:
    ablation = next(ablation for ablation in PAIRS if (ablation.database, ablation.direction) == ("clickhouse", "read"))
    frame = passes(
        result(ablation.base), result(ablation.changed, seconds=None, status="failed", reason="x"), directory=tmp_path
    )
    assert ablations.ratios(frame).is_empty()
