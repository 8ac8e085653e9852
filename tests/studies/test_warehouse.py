"""PostgreSQL to a warehouse: the routes, the warehouses, the check of what arrived, and the passes of a run."""

import dataclasses
import datetime as dt
import gzip
import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely
from google.api_core.exceptions import GoogleAPICallError

from framehaul.bench.rounds import attempt, columns_of
from framehaul.data.schema import COMMENT
from framehaul.errors import UnavailableError
from framehaul.servers import Servers
from framehaul.servers.tables import ClickHouseTables, PostgresTables
from framehaul.settings import Settings
from framehaul.studies import buildings
from framehaul.studies.buildings import SCHEMA, TABLE
from framehaul.studies.warehouse import routes
from framehaul.studies.warehouse import study as warehouse
from framehaul.studies.warehouse.routes import ROUTES, Route
from framehaul.studies.warehouse.study import WAREHOUSES
from framehaul.techniques.clients import QueryError
from tests.bigquery_server import BigQueryServer, read_csv
from tests.conftest import table_on

ROWS = 3000
EACH = pytest.mark.parametrize("name", WAREHOUSES)
REFUSED = (duckdb.Error, QueryError, GoogleAPICallError)
TEXTS = [None, "", " ", " a ", "\t", '"', 'a"b', '""', "x\ny", "x\r\ny", "\n", ",", "\\", "\\N", "\\n", "NULL", "null",
         "'q'", "#c", "0", "ü漢🏠", "e\u0301", "geom"]  # fmt: skip
AWKWARD = pa.Table.from_pylist(
    [
        {"revision": None if at % 3 == 0 else at - 2**31, "from_date": dt.date(1950, 1, at + 1), "geom": text,
         "to_date": None if at % 2 else dt.date(2200, 12, at + 1), "h3_7": TEXTS[-at], "h3_9": text}
        for at, text in enumerate(TEXTS)
    ] + [dict.fromkeys(SCHEMA.names), dict(zip(SCHEMA.names, (7, None, None, *SCHEMA.names[3:]), strict=True))],
    SCHEMA,
)  # fmt: skip
"""A row of NULLs, texts that look like NULLs, quotes, headers and ends of lines, and days before and after an epoch."""


def parquet_of(rows: pa.Table) -> bytes:
    pq.write_table(rows, file := io.BytesIO())
    return file.getvalue()


@pytest.fixture(scope="module")
def content() -> pa.Table:
    return pa.concat_tables([buildings.table(ROWS, 1), AWKWARD])


@pytest.fixture
def source(servers: Servers, content: pa.Table) -> Iterator[Servers]:
    with table_on(servers.postgres, TABLE, content):
        yield servers


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BigQueryServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(warehouse, "POLL_SECONDS", 0.01)
    with BigQueryServer("a-project", "a_dataset").running() as running:
        yield running
    assert running.unexpected == []


@pytest.fixture
def given(settings: Settings, server: BigQueryServer) -> Settings:
    return dataclasses.replace(
        settings, bigquery_project="a-project", bigquery_dataset="a_dataset", bigquery_endpoint=server.url
    )


bigquery = partial(warehouse.opened_bigquery, None)  # it takes no servers


# The table


def test_buildings_are_the_same_for_the_same_seed_and_real() -> None:
    small, large = buildings.table(500, 3), buildings.table(40_000, 3)
    assert small.equals(large.slice(0, 500))
    assert not small.equals(buildings.table(500, 4))
    assert all(column.null_count for column in large.columns)
    lines = shapely.from_wkb(large["geom"].drop_null().to_pylist())
    assert shapely.is_closed(lines).all()
    assert shapely.is_simple(lines).all()
    assert set(shapely.get_num_points(lines)) == {5, 7}


# Routes


def read(directory: Path) -> pa.Table:
    return pa.concat_tables(
        pq.read_table(file) if file.suffix == ".parquet" else read_csv(file.read_bytes(), SCHEMA)
        for file in sorted(directory.iterdir())
    )


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_a_route_leaves_files_of_every_row(
    route: Route, source: Servers, content: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "ROWS_PER_PIECE", 100)
    try:
        route.function(source, tmp_path, 3)
    except UnavailableError as error:
        pytest.skip(str(error))
    if route.name == "csv_gzip":  # it is cut between rows, into as many files as may be loaded at once
        files = [gzip.decompress(file.read_bytes()) for file in tmp_path.iterdir()]
        assert [one[-1:] for one in files] == [b"\n"] * 3
    assert buildings.difference(read(tmp_path), content)[:2] == (None, "exact")
    for file in tmp_path.glob("*.parquet"):
        metadata = pq.read_metadata(file)
        if metadata.num_rows:
            assert metadata.row_group(0).column(3).compression == "SNAPPY"
    assert not ClickHouseTables(source.clickhouse).run("SHOW TABLES LIKE 'framehaul_buildings%'")


def test_clickhouse_that_cannot_reach_postgres_skips_its_routes(servers: Servers, tmp_path: Path) -> None:
    lost = dataclasses.replace(servers, postgres=dataclasses.replace(servers.postgres, port=1))
    for function in (routes.clickhouse_direct, routes.clickhouse_local_copy):
        with pytest.raises(UnavailableError, match="host that both can reach"):
            function(lost, tmp_path, 2)


# Warehouses


@EACH
@pytest.mark.parametrize("route", [ROUTES[0], ROUTES[3]], ids=lambda route: route.name)
def test_edge_cases_arrive_once_and_a_file_that_is_cut_short_or_no_table_is_refused(
    name: str, route: Route, source: Servers, given: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "ROWS_PER_PIECE", 100)  # several files, each of several members
    route.function(source, tmp_path, 3)
    files = sorted(tmp_path.iterdir())
    good, suffix = files[0].read_bytes(), "".join(files[0].suffixes)
    with WAREHOUSES[name](source, given) as target:
        assert target.content().num_rows == 0
        target.load(files, 3)
        assert buildings.difference(target.content(), read(tmp_path))[0] is None
        for number, wrong in enumerate((good[:-20], *WRONG[suffix])):
            file = tmp_path / f"wrong{number}{suffix}"
            file.write_bytes(wrong)
            with pytest.raises(REFUSED):
                target.load([files[0], file], 2)


NO_ROWS = ("many,,,,,,", "1,,,", "1,,,,,,,x", "1,soon,,,,,", ",".join(SCHEMA.names))
WRONG = {
    ".csv.gz": [gzip.compress(f"{line}\n1,,,,,,\n".encode()) for line in NO_ROWS],
    ".parquet": [parquet_of(AWKWARD.drop_columns(["h3_8"]))],
}


def test_tables_on_bigquery_have_names_of_their_own_our_comment_and_an_end(
    given: Settings, server: BigQueryServer, tmp_path: Path
) -> None:
    server.job_error = "Quota exceeded"
    with pytest.raises(GoogleAPICallError, match="exceeded"), bigquery(given), bigquery(given) as one:
        assert len(server.tables) == 2
        (tmp_path / "0.parquet").write_bytes(parquet_of(AWKWARD))
        one.load([tmp_path / "0.parquet"], 1)
    assert server.tables == {}
    assert server.authorizations == {None}  # there is no TLS
    tomorrow = (dt.datetime.now(dt.UTC) + dt.timedelta(days=1)).timestamp()
    for resource in server.made:
        assert resource["tableReference"]["tableId"].startswith(f"{TABLE.name}_")
        assert resource["description"] == COMMENT
        assert tomorrow - 3600 < int(resource["expirationTime"]) / 1000 <= tomorrow


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"bigquery_project": None}, "no data set of BigQuery is given"),
        ({"bigquery_dataset": None}, "no data set of BigQuery is given"),
        ({"bigquery_endpoint": None}, "none.json was not found"),
        ({"bigquery_endpoint": "https://127.0.0.1:1"}, "none.json was not found"),
        ({"bigquery_dataset": "other"}, "Not found: Dataset"),
        ({"bigquery_endpoint": "http://127.0.0.1:1"}, "refused"),
    ],
)
def test_bigquery_that_cannot_be_had_says_how_to_give_it(
    changed: dict[str, Any], why: str, given: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(UnavailableError) as caught, bigquery(dataclasses.replace(given, **changed)):
        pytest.fail("it was opened")
    for part in (why, "FRAMEHAUL_BIGQUERY_PROJECT", "FRAMEHAUL_BIGQUERY_DATASET", "gcloud auth application-default"):
        assert part in str(caught.value)


# Passes and runs


def test_what_did_not_arrive_whole_is_failed(
    servers: Servers, settings: Settings, content: pa.Table, tmp_path: Path
) -> None:
    home = tmp_path / "files"

    def ended(rows: pa.Table | None) -> dict[str, Any]:
        def made(_: Servers, directory: Path, __: int) -> None:
            if rows is None:
                raise ValueError(f"no files\nin {directory}/today")
            pq.write_table(rows, directory / "a.parquet")

        task = Route("made", "made", "beyond", made), "duckdb"
        outcome = attempt(partial(warehouse.moved, task, servers, settings, content, home, 2), home)
        assert not home.exists()
        return columns_of(outcome)

    good = ended(content)
    assert good["status"] == "ok", good
    assert good["seconds"] == pytest.approx(good["files_s"] + good["load_s"])
    assert good["rows_per_s"] == pytest.approx(content.num_rows / good["seconds"])
    other = pa.concat_tables([content.slice(0, 1).set_column(4, "h3_7", pa.array(["other"])), content.slice(1)])
    assert ended(content.slice(1))["reason"] == f"{content.num_rows - 1} rows instead of {content.num_rows}"
    assert ended(other)["reason"].startswith("content differs in h3_7")
    assert ended(None)["reason"] == "ValueError: no files in today"


@pytest.mark.usefixtures("own_out")
def test_a_run_measures_every_route_into_every_warehouse(servers: Servers) -> None:
    passes = warehouse.run(rows=300, rounds=1, warmup=1, seed=1, parallel=2)
    expected = [(route.name, name, 1) for route in ROUTES for name in WAREHOUSES]
    assert sorted(passes.select("route", "warehouse", "pass").rows()) == sorted(expected)
    assert set(passes["status"]) == {"ok", "skipped"}
    assert set(passes.filter(status="ok")["warehouse"]) == {*WAREHOUSES} - {"bigquery"}
    assert all(row["files"] >= 1 and row["file_bytes"] > 300 * 20 for row in passes.filter(status="ok").to_dicts())
    assert PostgresTables(servers.postgres).run("SELECT to_regclass('framehaul_buildings')") == [(None,)]
