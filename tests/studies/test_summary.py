"""The summary: what is recommended keeps the terms that were asked for, and gains are over the usual call."""

from pathlib import Path
from typing import Any

import pytest

from framehaul.bench import statistics
from framehaul.errors import ResultsError
from framehaul.studies import summary
from framehaul.studies.summary import NEEDS
from framehaul.techniques.registry import named
from tests.bench.test_store import passes, result

USUAL = {("postgres", "write"): "pandas_sqlalchemy_to_sql"}


def test_what_is_recommended_keeps_the_terms_that_were_asked_for(committed: Path) -> None:
    refused = summary.refusals(summary.with_shapes(summary.load(committed), committed))
    assert "polars_adbc_fetch" not in {name for *_, name in refused}
    chosen = summary.which(summary.load(committed), USUAL, refused)
    assert chosen["need"].to_list() == [need.text for need in NEEDS]
    for need, row in zip(NEEDS, chosen.to_dicts(), strict=True):
        assert len({name.partition("_")[0] for name in row["take"]}) == len(row["take"])
        for name in row["take"]:
            assert need.meets(named(need.database, need.direction, name).contract)
    left = dict(chosen.select("need", "terms").rows())
    assert left["append to PostgreSQL, all rows or none"].endswith("left after a failure: nothing")
    assert left["append to ClickHouse, safe to retry"].endswith("each of them once")
    assert left["read from ClickHouse"] == "refuses structs"


def test_the_fastest_exact_technique_is_recommended_with_its_gain_at_the_same_rows(tmp_path: Path) -> None:
    small: dict[str, Any] = {"rows": 100, "rows_per_s": 400.0}
    frame = passes(
        result("pandas_urllib_csv", 1, 1.0, frame="pandas"),
        result("polars_urllib_parquet", 1, 0.5),
        result("polars_http_client_native_decoded", 1, 0.1, dtypes="metric_1:Int64"),
        result("polars_urllib_parquet", 1, 0.25, **small),
        result("pandas_ibis_to_pandas", 1, 1.0, **small | {"rows_per_s": 100.0}, frame="pandas"),
        directory=tmp_path,
    )
    (row,) = summary.which(frame, {("clickhouse", "read"): "pandas_ibis_to_pandas"}, {}).to_dicts()
    assert (row["take"], row["gain"]) == (["polars_urllib_parquet", "pandas_urllib_csv"], pytest.approx(4))
    assert summary.which(frame, {}, {})["gain"].to_list() == [None]


def test_what_is_not_measured_is_not_recommended(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="no results yet"):
        summary.load(tmp_path)
    failed = passes(result(seconds=None, status="failed", reason="x"), directory=tmp_path)
    assert summary.which(failed, USUAL, {}).is_empty()


def test_overlapping_passes_are_tied_and_bulk_loads_compete_with_bulk_loads_alone(tmp_path: Path) -> None:
    write: dict[str, Any] = {"database": "postgres", "direction": "write", "contract": "append"}
    frame = passes(
        *(result("first", n, s, **write) for n, s in ((1, 0.50), (2, 0.60))),
        *(result("second", n, s, **write) for n, s in ((1, 0.55), (2, 0.62))),
        *(result("index_last", n, 0.2, **write | {"contract": "bulk_load"}) for n in (1, 2)),
        directory=tmp_path,
    )
    medians = statistics.medians(frame, ["contract", "technique", "label"])
    best = statistics.winners(statistics.ranked(medians, ["contract"]), ["contract"]).sort("contract")
    assert best.select("contract", "technique", "tied_with").rows() == [
        ("append", "first", ["SECOND"]), ("bulk_load", "index_last", []),
    ]  # fmt: skip
