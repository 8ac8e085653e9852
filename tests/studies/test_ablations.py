"""The ablations: which techniques they compare, and that they claim nothing inside the interval."""

from __future__ import annotations

from pathlib import Path

import pytest

from framehaul.studies.ablations import study as ablations
from framehaul.studies.ablations.study import ABLATIONS, WAYS, Ablation, Steps
from framehaul.techniques import techniques
from tests.bench.test_store import passes, result


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda ablation: f"{ablation.base}-{ablation.changed}")
def test_ablations_name_techniques_that_exist(ablation: Ablation) -> None:
    names = {found.name for found in techniques(ablation.database, ablation.direction)}  # type: ignore[arg-type]
    assert {ablation.base, ablation.changed} <= names
    assert ablation.base != ablation.changed


def test_an_ablation_is_claimed_only_outside_its_interval(tmp_path: Path) -> None:
    one = next(one for one in ABLATIONS if (one.database, one.direction) == ("clickhouse", "read"))
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


@pytest.mark.parametrize(("where", "way"), WAYS.items(), ids=map(" ".join, WAYS))
def test_a_way_goes_from_a_published_technique_past_it(where: tuple[str, str, str], way: Steps) -> None:
    database, direction, _ = where
    known = {found.name: found for found in techniques(database, direction)}  # type: ignore[arg-type]
    origins = [known[technique].origin for technique, _ in way]
    assert origins[0] == "published"
    assert origins[-1] == "beyond"
    assert len(dict(way)) == len(way)


def test_steps_are_multiplied_and_one_that_failed_hands_its_change_on(tmp_path: Path) -> None:
    first, second, third, fourth, fifth = (name for name, _ in WAYS["clickhouse", "read", ""])
    rounds = (1, 2, 3)
    frame = passes(
        *(result(first, n, 1.2) for n in rounds), *(result(second, n, 0.6) for n in rounds),
        result(third, seconds=None, status="failed", reason="x"),
        *(result(fourth, n, 0.2) for n in rounds), *(result(fifth, n, 0.4) for n in rounds),
        directory=tmp_path,
    )  # fmt: skip
    found = ablations.steps(frame)
    assert found["technique"].to_list() == [first, second, fourth, fifth]
    assert found["ratio"].to_list() == [None, pytest.approx(2), pytest.approx(3), pytest.approx(0.5)]
    assert found["so_far"].to_list() == [1, pytest.approx(2), pytest.approx(6), pytest.approx(3)]
    changes = dict(WAYS["clickhouse", "read", ""])
    assert found["change"].to_list()[2] == f"{changes[third]}, {changes[fourth]}"
    assert "6.00x" in str(ablations.steps_table(found))
    assert len(ablations.waterfall(found).axes) == 1
