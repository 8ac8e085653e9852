"""The ablations: which techniques they compare, and that a gain is claimed only outside its interval."""

from pathlib import Path

import polars as pl
import pytest

from framehaul.errors import ResultsError
from framehaul.studies import ablations
from framehaul.techniques import techniques
from framehaul.techniques.registry import named
from tests.bench.test_store import passes, result

[ONE, *_] = ablations.PAIRS.filter(database="clickhouse", direction="read").to_dicts()


def test_pairs_name_two_techniques_that_exist() -> None:
    registered = {*techniques()}
    for pair in ablations.PAIRS.to_dicts():
        assert pair["base"] != pair["changed"]
        assert {named(pair["database"], pair["direction"], pair[of]) for of in ("base", "changed")} <= registered


@pytest.mark.parametrize(("changed", "verdict"), [((1.05, 1.0, 0.95), "inconclusive"), ((0.5, 0.55, 0.45), "faster")])
def test_a_change_is_faster_only_outside_its_interval(changed: tuple[float, ...], verdict: str, tmp_path: Path) -> None:
    rows = [(ONE["base"], *row) for row in enumerate((1.0, 1.1, 0.9), 1)]
    rows += [(ONE["changed"], *row) for row in enumerate(changed, 1)]
    ratios = ablations.ratios(passes(*(result(*row) for row in rows), directory=tmp_path))
    assert ratios.select("change", "verdict").rows() == [(ONE["change"], verdict)]


def test_a_pair_of_a_technique_that_failed_is_left_out_and_without_passes_the_remedy_is_named(tmp_path: Path) -> None:
    failed = result(ONE["changed"], seconds=None, status="failed", reason="x")
    assert ablations.ratios(passes(result(ONE["base"]), failed, directory=tmp_path)).is_empty()
    with pytest.raises(ResultsError, match="run the notebooks"):
        ablations.ratios(pl.DataFrame())
