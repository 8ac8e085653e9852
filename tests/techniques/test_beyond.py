"""What the techniques beyond the published ones promise besides speed: consistency, atomicity, errors that say why."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
import pytest

from framehaul.data import generator
from framehaul.data.frames import NotTextError, from_polars, to_pandas, to_polars
from framehaul.data.schema import ANALYTICS_METRICS, Column, Table
from framehaul.data.schema import ColumnType as T
from framehaul.servers import Servers
from framehaul.servers.tables import PostgresTables
from framehaul.techniques import Technique, techniques
from framehaul.techniques.beyond import clickhouse_write, postgres_write
from framehaul.techniques.clients import HttpConnection, QueryError, open_adbc, open_http_client, open_psycopg
from framehaul.techniques.registry import named
from tests.conftest import call, check_each, table_on

ROWS = 3000
NAME = "framehaul_beyond"
TABLE = ANALYTICS_METRICS.renamed(NAME)
NUMBERS = Table(NAME, (Column("id", T.INT64), Column("value", T.INT64)), ("id",))
TWO = pl.DataFrame({"id": [1, 2], "value": [1, 2]})


def rows_of(rows: int = ROWS) -> pl.DataFrame:
    return generator.polars_frame(TABLE, rows, 1)


@contextmanager
def made(servers: Servers, table: Table, *statements: str) -> Iterator[PostgresTables]:
    """A table of PostgreSQL, with these statements carried out."""
    with table_on(servers.postgres, table) as tables:
        for statement in statements:
            tables.run(statement)
        yield tables


@pytest.fixture
def postgres(servers: Servers) -> Iterator[PostgresTables]:
    with made(servers, TABLE) as tables:
        yield tables


# PostgreSQL: consistent, atomic, durable


@pytest.mark.parametrize(
    "found",
    [one for one in techniques("postgres", "read") if one.origin == "beyond" and one.client.endswith("pair")],
    ids=lambda found: found.name,
)
def test_two_connections_see_one_moment_of_a_table_that_changes(
    found: Technique, servers: Servers, postgres: PostgresTables
) -> None:
    """While each transaction moves every row to a new place, and to a new value, all rows alike."""
    content = generator.arrow_table(TABLE, ROWS, 1).set_column(9, "metric_1", pa.array([0] * ROWS, pa.int32()))
    postgres.load(TABLE, content.cast(TABLE.arrow_schema))
    stop, moments = threading.Event(), set[int]()

    def shift() -> None:
        with psycopg.connect(servers.postgres.dsn(), autocommit=True) as connection:
            while not stop.is_set():
                connection.execute(f"UPDATE {TABLE.postgres_name} SET metric_1 = metric_1 + 1".encode())

    writer = threading.Thread(target=shift)
    writer.start()
    try:
        for _ in range(15):
            frame: Any = call(found, servers, TABLE)
            values, keys = {*map(int, frame["metric_1"])}, zip(*(frame[name] for name in TABLE.key), strict=True)
            assert (len(frame), len({*keys}), len(values)) == (ROWS, ROWS, 1)
            moments |= values
    finally:
        stop.set()
        writer.join()
    assert len(moments) > 1, "the writer never got between two reads: nothing was tried"


def test_writes_join_an_open_transaction_and_leave_its_durability(servers: Servers, postgres: PostgresTables) -> None:
    frames = {"polars": rows_of(20), "pandas": to_pandas(from_polars(rows_of(20), TABLE), TABLE)}
    chosen = [found for found in techniques("postgres", "write") if found.origin == "beyond"]

    def check(found: Technique) -> None:
        with open_psycopg(servers.postgres) as connection, connection.transaction(force_rollback=True):
            connection.execute("SET LOCAL synchronous_commit = off; SET maintenance_work_mem = '5MB'")
            found.function(connection, TABLE, frames[found.frame])
            assert connection.execute("SHOW synchronous_commit").fetchone() == ("off",)
            assert connection.execute("SHOW maintenance_work_mem").fetchone() == ("5MB",)
        assert postgres.content(TABLE).is_empty()

    check_each([found for found in chosen if found.client == "psycopg"], check)


def test_copy_freeze_refuses_a_table_with_rows(servers: Servers, postgres: PostgresTables) -> None:
    with open_psycopg(servers.postgres) as connection:
        postgres_write.polars_pgpq_copy_freeze(connection, TABLE, rows_of(100))
        with pytest.raises(ValueError, match=f"{NAME} is not empty"):
            postgres_write.polars_pgpq_copy_freeze(connection, TABLE, rows_of()[100:])
    assert len(postgres.content(TABLE)) == 100


COMMENTED, CLUSTERED = f"COMMENT ON INDEX {NAME}_pkey IS 'theirs'", f"ALTER TABLE {NAME} CLUSTER ON {NAME}_pkey"


@pytest.mark.parametrize("key", ["PRIMARY KEY (id)", "PRIMARY KEY (id) INCLUDE (value)", "", COMMENTED, CLUSTERED])
def test_the_key_is_there_again_and_a_duplicate_undoes_everything(key: str, servers: Servers) -> None:
    drop, write = f"ALTER TABLE {NAME} DROP CONSTRAINT {NAME}_pkey", postgres_write.polars_pgpq_key_last
    keys = f"SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'p' AND conrelid = '{NAME}'"
    changes = [key] if key in (COMMENTED, CLUSTERED) else [drop, *[f"ALTER TABLE {NAME} ADD {key}"] * bool(key)]
    with made(servers, NUMBERS, *changes) as tables, open_psycopg(servers.postgres) as connection:
        before = tables.run(f"{keys}::regclass")
        if takes := key.startswith("PRIMARY"):
            write(connection, NUMBERS, TWO[:1])
        said = "is duplicated" if takes else "it would become another"
        with pytest.raises((psycopg.errors.UniqueViolation, ValueError), match=said):
            write(connection, NUMBERS, TWO)
        assert tables.run(f"{keys}::regclass") == before
        assert len(tables.content(NUMBERS)) == takes


def test_a_later_slice_that_is_refused_leaves_nothing_and_is_told_by_its_row(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_write, "BATCH_ROWS", 4)
    write = postgres_write.polars_pgpq_key_last
    table = Table(NAME, (Column("id", T.INT32), Column("at", T.TIMESTAMP_NS)), ("id",))
    content = pa.table([range(10), pa.array([1000] * 9 + [1001], pa.timestamp("ns"))], schema=table.arrow_schema)
    good, bad = to_polars(content[:9], table), to_polars(content, table)
    with made(servers, table) as tables, open_psycopg(servers.postgres) as connection:
        with pytest.raises(ValueError, match=r"holds nanoseconds.* \(in what follows row 8\)"):
            write(connection, table, bad)
        assert tables.content(table).is_empty()
        write(connection, table, good)
        assert len(tables.content(table)) == 9


def test_what_adbc_failed_to_write_is_undone_and_committed_by_nobody(servers: Servers) -> None:
    other = NUMBERS.renamed("framehaul_staging")  # a table may have the name of what is staged
    there = f"INSERT INTO {NAME} VALUES (1, 1), (5, 5), (7, 7)"
    for way in (named("postgres", "write", name) for name in ("polars_adbc_ingest", "polars_adbc_staging")):
        numbers, others = made(servers, NUMBERS, there), made(servers, other)
        with numbers as tables, others, open_adbc(servers.postgres) as connection:
            with pytest.raises(Exception, match="duplicate key"):
                way.function(connection, NUMBERS, TWO)
            way.function(connection, other, TWO)
            assert (len(tables.content(NUMBERS)), len(tables.content(other))) == (3, 2)


@pytest.mark.parametrize("kind", [T.DATE, T.TIMESTAMP_UTC], ids=str)
def test_infinity_is_no_date_for_whoever_reads_arrow(kind: T, servers: Servers) -> None:
    table = Table(NAME, (Column("id", T.INT64), Column("at", kind)), ("id",))
    names = ("polars_adbc_fetch", "pandas_adbc_fetch", "polars_duckdb_scan")
    value = "infinity" if kind is T.DATE else "-infinity"
    with made(servers, table, f"INSERT INTO {NAME} VALUES (1, '2026-01-01'), (2, '{value}')"):
        for name in names:
            with pytest.raises(ValueError, match=r"column at, .*it holds infinity or -infinity"):
                call(named("postgres", "read", name), servers, table)


def test_copy_of_text_keeps_lines_that_are_empty_and_what_begins_like_a_file(servers: Servers) -> None:
    table = Table(NAME, (Column("value", T.TEXT, nullable=True),), ())
    for texts in (["\ufeffx", None, "", "\ufeff\ufeff", "b"], [None], [""], []):
        values = [f"INSERT INTO {NAME} VALUES {'(NULL)' if text is None else f"('{text}')"}" for text in texts]
        with made(servers, table, *values):
            frame = call(named("postgres", "read", "polars_psycopg_copy_text_typed"), servers, table)
            assert frame["value"].to_list() == texts


# ClickHouse: sent again, exchanged, in order


@pytest.fixture
def http(servers: Servers) -> Iterator[HttpConnection]:
    """A connection to a server that has the table."""
    with table_on(servers.clickhouse, TABLE), open_http_client(servers.clickhouse) as connection:
        yield connection


def asked(connection: HttpConnection, query: str) -> list[str]:
    return connection.post(query).read().decode().splitlines()


COUNT = f"SELECT count() FROM {NAME}"


def test_a_load_may_be_tried_again_and_other_writes_append_the_same_rows(http: HttpConnection) -> None:
    frame = rows_of()
    for part in (frame[:1000], frame[1000:], frame[:1000]):  # different rows are no repetition
        clickhouse_write.polars_http_client_arrow_deduplicated(http, TABLE, part)
    assert asked(http, COUNT) == [f"{ROWS}"]
    for _ in range(2):
        clickhouse_write.polars_http_client_arrow_exchange(http, TABLE, frame)
    assert asked(http, COUNT) == [f"{ROWS}"]
    # The table knows their blocks, and yet they are new rows.
    clickhouse_write.polars_http_client_arrow_deduplicated(http, TABLE, frame)
    rows = int(asked(http, COUNT)[0])
    for way in ("arrow_stream", "native_presorted", "parquet_zstd") * 2:
        named("clickhouse", "write", f"polars_http_client_{way}").function(http, TABLE, frame)
        rows += ROWS
        assert asked(http, COUNT) == [f"{rows}"]
    # An exchange that fails leaves all as it was.
    tables = "SELECT name FROM system.tables WHERE database = currentDatabase()"
    before = asked(http, COUNT), asked(http, tables)
    asked(http, f"ALTER TABLE {NAME} ADD CONSTRAINT no CHECK metric_1 = 0")
    with pytest.raises(QueryError, match="VIOLATED_CONSTRAINT"):
        clickhouse_write.polars_http_client_arrow_exchange(http, TABLE, rows_of(10))
    assert (asked(http, COUNT), asked(http, tables)) == before


# The HTTP client goes on after whatever failed


def test_http_client_says_what_is_wrong_and_goes_on(http: HttpConnection, servers: Servers) -> None:
    insert = "INSERT INTO FUNCTION null('a Int32') FORMAT"
    for query, body, error, said in (
        ("SELECT no_such_column", b"", QueryError, r"Code: \d+"),
        (f"{insert} ArrowStream", iter([b"\xff" * 100_000]), QueryError, r"Code: \d+"),
        (f"{insert} CSV", (bytes([int(one)]) for one in ("none",)), ValueError, "'none'"),
    ):
        with pytest.raises(error, match=said):
            http.post(query, body=body)
        assert asked(http, "SELECT 1") == ["1"]
    with http.post("SELECT number FROM numbers(1000000)") as response:
        response.read(10)
    assert asked(http, "SELECT 2") == ["2"]
    table = Table(f"{NAME}_long", (Column("id", T.INT64), Column("text", T.TEXT)), ("id",))
    with table_on(servers.clickhouse, table):
        odd = "if(number = 3, unhex('ff'), repeat(toString(number), 20))"
        asked(http, f"INSERT INTO {table.name} SELECT number, {odd} FROM numbers(300000)")
        for name in ("polars_http_client_native_decoded", "polars_http_client_arrow_stream"):
            with pytest.raises((NotTextError, ValueError)):
                named("clickhouse", "read", name).function(http, table)
            assert asked(http, "SELECT 1") == ["1"]
