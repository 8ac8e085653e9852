"""Warehouses: what is in files is in the table, once and unchanged, or an error says which file was wrong."""

from __future__ import annotations

import csv
import dataclasses
import datetime as dt
import gzip
import io
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.cloud.bigquery import client as google_client

from framehaul.data.schema import COMMENT
from framehaul.errors import ServerError, SettingsError, UnavailableError
from framehaul.servers import Servers
from framehaul.servers.tables import ClickHouseTables
from framehaul.settings import Settings, load_settings
from framehaul.studies.warehouse import bigquery, buildings
from framehaul.studies.warehouse.buildings import SCHEMA
from framehaul.studies.warehouse.target import TABLE, Target, WarehouseError, each_at_once
from framehaul.studies.warehouse.warehouses import WAREHOUSES
from tests.bigquery_server import CHUNK_UNIT, BigQueryServer, Outage

NAMES = [warehouse.name for warehouse in WAREHOUSES]
EACH = pytest.mark.parametrize("name", NAMES)
SUFFIXES = [".csv.gz", ".parquet"]
BOTH_FORMATS = pytest.mark.parametrize("suffix", SUFFIXES)

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


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BigQueryServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(bigquery, "POLL_SECONDS", 0.01)
    with BigQueryServer("a-project", "a_dataset").running() as running:
        yield running
    assert running.unexpected == []


@pytest.fixture
def given(settings: Settings, server: BigQueryServer) -> Settings:
    return dataclasses.replace(
        settings, bigquery_project="a-project", bigquery_dataset="a_dataset", bigquery_endpoint=server.url
    )


def opened(name: str, servers: Servers, settings: Settings) -> AbstractContextManager[Target]:
    return next(warehouse for warehouse in WAREHOUSES if warehouse.name == name).opened(servers, settings)


def csv_of(rows: pa.Table) -> bytes:
    text = io.StringIO(newline="")
    # Minimal quotes, but for the empty text, which would be NULL without them: as PostgreSQL's COPY writes CSV.
    for row in rows.to_pylist():
        line = io.StringIO(newline="")
        csv.writer(line, lineterminator="").writerow(["\0" if value == "" else value for value in row.values()])
        text.write(line.getvalue().replace("\0", '""') + "\n")
    return text.getvalue().encode()


def write(path: Path, rows: pa.Table) -> Path:
    if path.name.endswith(".csv.gz"):
        path.write_bytes(gzip.compress(csv_of(rows)))
    else:
        pq.write_table(rows, path)
    return path


def parts(directory: Path, suffix: str, rows: pa.Table, files: int) -> list[Path]:
    size = -(-rows.num_rows // files)
    return [write(directory / f"{at}{suffix}", rows.slice(at * size, size)) for at in range(files)]


def counted(rows: pa.Table) -> Counter[tuple[object, ...]]:
    assert rows.schema.equals(SCHEMA)
    return Counter(tuple(row.values()) for row in rows.to_pylist())


# What arrives


@EACH
@BOTH_FORMATS
def test_edge_cases_in_several_files_arrive_once_and_unchanged(
    name: str, suffix: str, servers: Servers, given: Settings, tmp_path: Path
) -> None:
    files = [*parts(tmp_path, suffix, AWKWARD, 4), write(tmp_path / f"empty{suffix}", AWKWARD.slice(0, 0))]
    with opened(name, servers, given) as target:
        assert target.content().num_rows == 0
        assert counted(target.content()) == Counter()
        target.load(files, 3)
        assert target.content().num_rows == AWKWARD.num_rows
        assert counted(target.content()) == counted(AWKWARD)


@EACH
def test_columns_of_parquet_go_by_their_names(name: str, servers: Servers, given: Settings, tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", AWKWARD.select(SCHEMA.names[::-1]))
    with opened(name, servers, given) as target:
        target.load([file], 1)
        assert counted(target.content()) == counted(AWKWARD)


@pytest.mark.parametrize("name", ["clickhouse", "duckdb"])
def test_members_of_one_gzip_file_all_arrive(name: str, servers: Servers, given: Settings, tmp_path: Path) -> None:
    file = tmp_path / "a.csv.gz"
    file.write_bytes(gzip.compress(csv_of(AWKWARD.slice(0, 5))) + gzip.compress(csv_of(AWKWARD.slice(5))))
    with opened(name, servers, given) as target:
        target.load([file], 1)
        assert counted(target.content()) == counted(AWKWARD)


# What is refused


@EACH
@BOTH_FORMATS
def test_a_file_cut_short_is_named(name: str, suffix: str, servers: Servers, given: Settings, tmp_path: Path) -> None:
    files = parts(tmp_path, suffix, buildings.table(2_000, 1), 3)
    files[1].write_bytes(files[1].read_bytes()[: files[1].stat().st_size // 2])
    with opened(name, servers, given) as target:
        with pytest.raises(WarehouseError, match=str(files[1])):
            target.load(files, 2)
        if name != "bigquery":
            assert target.content().num_rows == 0


@EACH
@pytest.mark.parametrize("line", ["many,,,,,,", "1,,,", "1,,,,,,,x", "1,soon,,,,,", ",".join(SCHEMA.names)])
def test_a_line_that_is_no_row_is_refused_and_its_file_named(
    name: str, line: str, servers: Servers, given: Settings, tmp_path: Path
) -> None:
    good, wrong = write(tmp_path / "good.csv.gz", AWKWARD), tmp_path / "wrong.csv.gz"
    wrong.write_bytes(gzip.compress(f"{line}\n1,,,,,,\n".encode()))
    with opened(name, servers, given) as target, pytest.raises(WarehouseError, match=str(wrong)):
        target.load([good, wrong], 2)


@EACH
def test_parquet_without_one_of_the_columns_is_refused_and_its_file_named(
    name: str, servers: Servers, given: Settings, tmp_path: Path
) -> None:
    good = write(tmp_path / "good.parquet", AWKWARD)
    wrong = write(tmp_path / "wrong.parquet", AWKWARD.drop_columns(["h3_8"]))
    with opened(name, servers, given) as target, pytest.raises(WarehouseError, match=str(wrong)):
        target.load([good, wrong], 2)


@EACH
def test_files_of_different_kinds_of_no_known_kind_and_no_files_are_refused(
    name: str, servers: Servers, given: Settings, tmp_path: Path
) -> None:
    csv_file, parquet, other = (
        write(tmp_path / "a.csv.gz", AWKWARD),
        write(tmp_path / "a.parquet", AWKWARD),
        Path("a.csv"),
    )
    with opened(name, servers, given) as target:
        for files in ([csv_file, parquet], [other], []):
            with pytest.raises(ValueError, match=r"all \.csv\.gz or all \.parquet"):
                target.load(files, 1)
        assert target.content().num_rows == 0


def test_after_an_error_no_other_file_is_begun() -> None:
    begun: list[Path] = []

    def load(file: Path) -> None:
        begun.append(file)
        if file.name == "1":
            raise WarehouseError("broken")

    with pytest.raises(WarehouseError, match="broken"):
        each_at_once(load, [Path(str(at)) for at in range(9)], 1)
    assert begun == [Path("0"), Path("1")]


# ClickHouse


def test_the_table_on_clickhouse_is_ours_and_goes_at_the_end(servers: Servers, given: Settings) -> None:
    tables = ClickHouseTables(servers.clickhouse)
    query = f"SELECT comment FROM system.tables WHERE database = currentDatabase() AND name = '{TABLE}'"
    with opened("clickhouse", servers, given):
        assert tables.run(query).decode().strip() == COMMENT
    assert tables.run(query) == b""


def test_a_table_on_clickhouse_that_is_not_ours_is_refused_and_stays(servers: Servers, given: Settings) -> None:
    tables = ClickHouseTables(servers.clickhouse)
    tables.run(f"CREATE TABLE {TABLE} ENGINE = MergeTree ORDER BY a COMMENT 'precious' AS SELECT 7 AS a")
    try:
        with (
            pytest.raises(ServerError, match=f"{TABLE} that framehaul did not make"),
            opened("clickhouse", servers, given),
        ):
            pytest.fail("it was opened")
        assert tables.run(f"SELECT a FROM {TABLE}") == b"7\n"
    finally:
        tables.run(f"DROP TABLE {TABLE}")


# BigQuery


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a chunk is 100 MB."""
    monkeypatch.setattr(google_client, "_DEFAULT_CHUNKSIZE", CHUNK_UNIT)


def large(path: Path, chunks: float) -> bytes:
    """A gzip file of one row that is exactly as many chunks long: the rest is a comment in its header."""
    plain = gzip.compress(csv_of(AWKWARD.slice(0, 1)))
    filling = b"x" * (int(chunks * CHUNK_UNIT) - len(plain) - 1) + b"\0"
    path.write_bytes(plain[:3] + b"\x10" + plain[4:10] + filling + plain[10:])
    return path.read_bytes()


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("chunks", [1, 2.5])
def test_bigquery_gets_every_byte_of_files_in_chunks(
    chunks: float, servers: Servers, given: Settings, server: BigQueryServer, tmp_path: Path
) -> None:
    files = [tmp_path / f"{at}.csv.gz" for at in range(2)]
    sent = [large(file, chunks) for file in files]
    with opened("bigquery", servers, given) as target:
        target.load(files, 2)
        assert target.content().num_rows == 2
    assert sorted(bytes(upload.received) for upload in server.uploads.values()) == sorted(sent)
    # After whole chunks only an empty one can say that this was the end.
    assert {upload.requests for upload in server.uploads.values()} == {int(chunks) + 1}


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("outage", [Outage(0, 0), Outage(1, 0.5), Outage(2, 1)])
def test_bigquery_gets_every_byte_once_after_an_outage(
    outage: Outage, servers: Servers, given: Settings, server: BigQueryServer, tmp_path: Path
) -> None:
    server.outage = outage
    sent = large(tmp_path / "a.csv.gz", 2.5)
    with opened("bigquery", servers, given) as target:
        target.load([tmp_path / "a.csv.gz"], 1)
        assert target.content().num_rows == 1
        assert counted(target.content()) == counted(AWKWARD.slice(0, 1))
    assert server.outages == 1
    (upload,) = server.uploads.values()
    assert bytes(upload.received) == sent
    assert upload.requests == 4


def test_bigquery_raises_what_a_job_says_and_the_table_is_deleted(
    servers: Servers, given: Settings, server: BigQueryServer, tmp_path: Path
) -> None:
    server.job_error = "Quota exceeded: bytes of the day"
    files = parts(tmp_path, ".parquet", AWKWARD, 2)
    with (
        pytest.raises(WarehouseError, match=r"\d\.parquet: .*Quota exceeded: bytes of the day"),
        opened("bigquery", servers, given) as target,
    ):
        assert len(server.tables) == 1
        target.load(files, 1)
    assert server.tables == {}
    assert len(server.uploads) == 1


def test_tables_on_bigquery_have_names_of_their_own_our_comment_and_an_end(
    servers: Servers, given: Settings, server: BigQueryServer
) -> None:
    with opened("bigquery", servers, given), opened("bigquery", servers, given):
        assert len(server.tables) == 2
    assert server.tables == {}
    assert server.authorizations == {None}  # there is no TLS
    tomorrow = (dt.datetime.now(dt.UTC) + dt.timedelta(days=1)).timestamp()
    for resource in server.made:
        assert resource["tableReference"]["tableId"].startswith(f"{TABLE}_")
        assert resource["description"] == COMMENT
        assert tomorrow - 3600 < int(resource["expirationTime"]) / 1000 <= tomorrow


def test_bigquery_without_its_settings_says_how_to_give_them(servers: Servers, given: Settings) -> None:
    assert_unavailable(servers, dataclasses.replace(given, bigquery_project=None), "no data set of BigQuery is given")
    assert_unavailable(servers, dataclasses.replace(given, bigquery_dataset=None), "no data set of BigQuery is given")


@pytest.mark.parametrize("endpoint", [None, "https://127.0.0.1:1"])
def test_bigquery_without_credentials_says_how_to_log_in(
    endpoint: str | None, servers: Servers, given: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    changed = dataclasses.replace(given, bigquery_endpoint=endpoint)
    assert_unavailable(servers, changed, "there are no credentials for BigQuery")


def test_bigquery_that_is_not_there_or_has_no_such_data_set_is_unavailable(servers: Servers, given: Settings) -> None:
    assert_unavailable(servers, dataclasses.replace(given, bigquery_dataset="other"), "Not found: Dataset")
    assert_unavailable(servers, dataclasses.replace(given, bigquery_endpoint="http://127.0.0.1:1"), "refused")


def assert_unavailable(servers: Servers, settings: Settings, why: str) -> None:
    with pytest.raises(UnavailableError) as caught, opened("bigquery", servers, settings):
        pytest.fail("it was opened")
    for said in (
        why,
        "FRAMEHAUL_BIGQUERY_PROJECT",
        "FRAMEHAUL_BIGQUERY_DATASET",
        "gcloud auth application-default login",
    ):
        assert said in str(caught.value)


def test_an_endpoint_is_a_url() -> None:
    with pytest.raises(SettingsError, match="FRAMEHAUL_BIGQUERY_ENDPOINT='localhost:9050' is not a URL"):
        load_settings({"FRAMEHAUL_BIGQUERY_ENDPOINT": "localhost:9050"}, None)
    found = load_settings({"FRAMEHAUL_BIGQUERY_ENDPOINT": "http://localhost:9050/"}, None)
    assert found.bigquery_endpoint == "http://localhost:9050"
