"""PostgreSQL to a warehouse: the routes, what counts as arrived, and what a run leaves behind."""

from __future__ import annotations

import dataclasses
import datetime as dt
import gzip
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import shapely

from framehaul.bench import store
from framehaul.bench.passes import columns_of
from framehaul.data.schema import Table
from framehaul.errors import UnavailableError
from framehaul.servers import Servers
from framehaul.servers.tables import ClickHouseTables, PostgresTables
from framehaul.settings import Settings
from framehaul.studies.warehouse import bigquery, buildings, routes
from framehaul.studies.warehouse import study as warehouse
from framehaul.studies.warehouse.routes import ROUTES, SOURCE, Route
from framehaul.studies.warehouse.warehouses import WAREHOUSES
from tests.bigquery_server import BigQueryServer

ROWS = 3000
AWKWARD = pa.table(
    {
        "revision": [1, None, 3, -4],
        "from_date": [None, dt.date(1970, 1, 1), dt.date(2149, 6, 7), dt.date(1950, 11, 2)],
        "to_date": [dt.date(2024, 2, 29), None, dt.date(2024, 10, 4), dt.date(1970, 1, 2)],
        "geom": ["00", None, 'a "quoted", text', "two\nlines\r\nand a tab\t"],
        "h3_7": ["é漢字😀", None, "\\N", "\\"],
        "h3_8": ["NULL", None, " blank ", "'"],
        "h3_9": ["x", None, ",", ";"],
    }
).cast(buildings.SCHEMA)


@pytest.fixture(scope="module")
def content() -> pa.Table:
    return pa.concat_tables([buildings.table(ROWS, 1), AWKWARD])


@pytest.fixture
def source(servers: Servers, content: pa.Table) -> Iterator[Servers]:
    tables = PostgresTables(servers.postgres)
    warehouse.fill(tables, ROWS, 1)
    tables.load(SOURCE, AWKWARD)
    yield servers
    tables.drop_named(SOURCE.name)


def read(directory: Path) -> pa.Table:
    parts = []
    for file in sorted(directory.iterdir()):
        if file.suffix == ".parquet":
            parts.append(pq.read_table(file))
        else:
            parts.append(
                pyarrow.csv.read_csv(
                    pa.py_buffer(gzip.decompress(file.read_bytes())),
                    pyarrow.csv.ReadOptions(column_names=buildings.SCHEMA.names),
                    pyarrow.csv.ParseOptions(newlines_in_values=True),
                    pyarrow.csv.ConvertOptions(
                        column_types=buildings.SCHEMA, null_values=[""], strings_can_be_null=True,
                        quoted_strings_can_be_null=False,
                    ),
                )
            )  # fmt: skip
    return pa.concat_tables(parts)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_a_route_leaves_files_of_every_row(route: Route, source: Servers, content: pa.Table, tmp_path: Path) -> None:
    try:
        route.function(source, SOURCE, tmp_path, 3)
    except UnavailableError as error:
        pytest.skip(str(error))
    found = read(tmp_path)
    assert found.num_rows == content.num_rows
    assert warehouse.fingerprint(found) == warehouse.fingerprint(content)
    for file in tmp_path.glob("*.parquet"):
        metadata = pq.read_metadata(file)
        if metadata.num_rows:
            assert metadata.row_group(0).column(3).compression == "SNAPPY"
    assert not ClickHouseTables(source.clickhouse).run("SHOW TABLES LIKE 'framehaul_buildings%'")


def test_csv_is_cut_between_rows_into_about_as_many_files_as_may_be_loaded_at_once(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "GZIP_MEMBER_BYTES", 10_000)
    tables = PostgresTables(servers.postgres)
    expected = warehouse.fill(tables, ROWS, 2)
    try:
        routes.csv_gzip(servers, SOURCE, tmp_path, 4)
    finally:
        tables.drop_named(SOURCE.name)
    files = sorted(tmp_path.iterdir())
    assert 3 <= len(files) <= 5
    assert all(gzip.decompress(file.read_bytes()).endswith(b"\n") for file in files)
    assert warehouse.fingerprint(read(tmp_path)) == expected


def test_ranges_of_pages_cover_every_page_once() -> None:
    assert routes.page_ranges(10, 1) == ["ctid >= '(0,0)'"]
    assert routes.page_ranges(10, 3) == [
        "ctid >= '(0,0)' AND ctid < '(3,0)'", "ctid >= '(3,0)' AND ctid < '(6,0)'", "ctid >= '(6,0)'",
    ]  # fmt: skip
    assert len(routes.page_ranges(0, 4)) == 4


def test_buildings_are_the_same_for_the_same_seed_and_real() -> None:
    small, large = buildings.table(500, 3), buildings.table(40_000, 3)
    assert small.equals(large.slice(0, 500))
    assert not small.equals(buildings.table(500, 4))
    assert all(column.null_count for column in large.columns)
    lines = shapely.from_wkb(large["geom"].drop_null().to_pylist())
    assert shapely.is_closed(lines).all()
    assert shapely.is_simple(lines).all()
    assert set(shapely.get_num_points(lines)) == {5, 7}
    # A cell of resolution 9 lies in one of 8, whose digits it shares but for its own.
    cells = large.select(["h3_8", "h3_9"]).to_pylist()
    assert sum(row["h3_8"] is not None and row["h3_9"][2:9] == row["h3_8"][2:9] for row in cells) > 0.9 * len(cells)


def test_a_fingerprint_tells_another_value_another_row_and_null(content: pa.Table) -> None:
    whole = warehouse.fingerprint(content)
    assert warehouse.fingerprint(pa.concat_tables([content.slice(50), content.slice(0, 50)])) == whole
    halves = warehouse.fingerprint(content.slice(0, 100)) + warehouse.fingerprint(content.slice(100))
    assert halves % 2**64 == whole
    assert warehouse.fingerprint(content.slice(1)) != whole
    changed = content.slice(0, 1).set_column(3, "geom", pa.array([""]))
    assert warehouse.fingerprint(pa.concat_tables([changed, content.slice(1)])) != whole


def along(route: Route, servers: Servers, settings: Settings, rows: int, expected: int) -> dict[str, Any]:
    loads = warehouse.Moves(servers, settings, 2, rows, expected).along(route, 1)
    return {name: columns_of(ended) for name, ended in loads.items()}


def test_what_did_not_arrive_whole_is_failed(source: Servers, settings: Settings, content: pa.Table) -> None:
    def write(rows: pa.Table) -> Route:
        return Route(
            "made", "made", "beyond", lambda _, __, directory, ___: pq.write_table(rows, directory / "a.parquet")
        )

    rows, expected = content.num_rows, warehouse.fingerprint(content)
    local = [warehouse.name for warehouse in WAREHOUSES if warehouse.name != "bigquery"]
    good = along(write(content), source, settings, rows, expected)
    assert all(good[name]["status"] == "ok" and good[name]["rows_per_s"] > 0 for name in local), good
    short = along(write(content.slice(1)), source, settings, rows, expected)
    assert {short[name]["reason"] for name in local} == {f"{rows - 1} rows arrived instead of {rows}"}
    other = content.slice(0, 1).set_column(4, "h3_7", pa.array(["other"]))
    changed = along(write(pa.concat_tables([other, content.slice(1)])), source, settings, rows, expected)
    assert {changed[name]["reason"] for name in local} == {"other values arrived than were sent"}

    def broken(_: Servers, __: Table, directory: Path, ___: int) -> None:
        raise ValueError(f"no files\nin {directory}/today")

    failed = along(Route("broken", "broken", "beyond", broken), source, settings, rows, expected)
    assert {found["reason"] for found in failed.values()} == {"ValueError: no files in today"}
    assert "FRAMEHAUL_BIGQUERY_PROJECT" in good["bigquery"]["reason"]
    assert good["bigquery"]["status"] == "skipped"


@pytest.mark.parametrize("name", ["csv_gzip", "adbc"])
def test_a_route_reaches_bigquery_where_it_is_given(
    name: str, source: Servers, settings: Settings, content: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(bigquery, "POLL_SECONDS", 0.01)
    route = next(route for route in ROUTES if route.name == name)
    with BigQueryServer("p", "d").running() as server:
        given = dataclasses.replace(settings, bigquery_project="p", bigquery_dataset="d", bigquery_endpoint=server.url)
        found = along(route, source, given, content.num_rows, warehouse.fingerprint(content))["bigquery"]
    assert found["status"] == "ok", found["reason"]
    assert server.unexpected == []


def test_clickhouse_that_cannot_reach_postgres_skips_its_routes(servers: Servers, tmp_path: Path) -> None:
    lost = dataclasses.replace(servers, postgres=dataclasses.replace(servers.postgres, port=1))
    for function in (routes.clickhouse_direct, routes.clickhouse_local_copy):
        with pytest.raises(UnavailableError, match="host that both can reach"):
            function(lost, SOURCE, tmp_path, 2)


def test_a_run_measures_every_route_into_every_warehouse(
    servers: Servers, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAMEHAUL_STATE_DIR", str(settings.state_dir))
    monkeypatch.setenv("FRAMEHAUL_OUT", str(tmp_path))
    found = warehouse.run(rows=300, passes=1, warmup=1, seed=1, parallel=2)
    passes = found.passes
    expected = {(route.name, warehouse.name, 1) for route in ROUTES for warehouse in WAREHOUSES}
    assert set(passes.select("route", "warehouse", "pass").rows()) == expected
    assert len(passes) == len(expected)
    assert set(passes["status"]) == {"ok", "skipped"}
    assert passes.filter(status="skipped")["reason"].is_not_null().all()
    assert set(passes.filter(status="ok")["warehouse"]) == {one.name for one in WAREHOUSES} - {"bigquery"}
    for row in passes.filter(status="ok").to_dicts():
        assert row["seconds"] == pytest.approx(row["files_s"] + row["load_s"])
        assert row["rows_per_s"] == pytest.approx(300 / row["seconds"])
        assert row["files"] >= 1
        assert row["file_bytes"] > 300 * 20
        assert row["files_server_cpu_s"] is not None
    blocks = warehouse.writeup_blocks(tmp_path / "results")
    assert all(route.label in blocks["warehouse"] for route in ROUTES)
    assert "1.25x" in blocks["warehouse-published"]
    assert "ClickHouse" in str(found.chart().data)
    assert "| DuckDB file | " in str(found.answer())
    assert "no data set of BigQuery is given" in str(found.missing())
    with psycopg.connect(servers.postgres.dsn()) as connection:
        assert connection.execute("SELECT to_regclass('framehaul_buildings')").fetchone() == (None,)


@pytest.mark.slow
def test_an_interrupted_run_goes_on_and_no_warehouse_is_written_twice(
    servers: Servers, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAMEHAUL_STATE_DIR", str(settings.state_dir))
    monkeypatch.setenv("FRAMEHAUL_OUT", str(tmp_path))
    taken: list[str] = []
    interrupted = [True]

    def write(name: str) -> Route:
        def function(_: Servers, __: Table, directory: Path, ___: int) -> None:
            if name == "second" and interrupted:
                raise KeyboardInterrupt
            taken.append(name)
            pq.write_table(buildings.table(200, 1), directory / "a.parquet")

        return Route(name, name, "beyond", function)

    monkeypatch.setattr(warehouse, "ROUTES", (write("first"), write("second")))
    given = {"rows": 200, "passes": 2, "warmup": 0, "parallel": 2}
    # Of a seed whose first round begins with the first route.
    seed = next(seed for seed in range(99) if random.Random(f"{seed}/1").sample([0, 1], 2) == [0, 1])
    with pytest.raises(KeyboardInterrupt):
        warehouse.run(**given, seed=seed)
    partial = tmp_path / "results" / "warehouse.partial.csv"
    lines = partial.read_text().splitlines(keepends=True)
    assert len(lines) == 1 + len(WAREHOUSES)
    partial.write_text("".join(lines[:-1]))  # as if killed while the last warehouse's row was written
    interrupted.clear()
    passes = warehouse.run(**given, seed=seed).passes
    assert Counter(taken) == {"first": 3, "second": 2}
    places = passes.select("route", "warehouse", "pass")
    assert len(places) == len(places.unique()) == 2 * 2 * len(WAREHOUSES)
    assert passes["run_id"].n_unique() == 1


def test_a_route_that_failed_once_has_no_figure() -> None:
    rows = [
        {"run_id": "r", "route": "csv_gzip", "label": "l", "origin": "published", "warehouse": "duckdb", "rows": 10,
         "pass": number, "seconds": seconds, "status": "ok" if seconds else "failed",
         "reason": None if seconds else "no"}
        for number, seconds in enumerate((1.0, None, 3.0), 1)
    ]  # fmt: skip
    passes = pl.DataFrame(rows, schema=store.schema_of(warehouse.Result))
    assert warehouse.summary(passes).select("seconds", "status", "reason").row(0) == (None, "failed", "no")
