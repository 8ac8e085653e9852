"""What the techniques beyond the published ones promise besides speed: consistency, atomicity, errors said aloud."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
import pytest

from framehaul.codecs.binary_form import with_uuid_bytes
from framehaul.data import generator
from framehaul.data.frames import arrow_stream, from_polars, in_clickhouse_order, to_pandas, to_polars
from framehaul.data.schema import ANALYTICS_METRICS, Column, ColumnType, Table
from framehaul.errors import UnavailableError
from framehaul.servers import Servers
from framehaul.servers.tables import tables_of
from framehaul.techniques import Technique, techniques
from framehaul.techniques.beyond import clickhouse_write, postgres_read, postgres_write
from framehaul.techniques.clients import HttpConnection, QueryError, open_http_client, open_psycopg
from tests.conftest import call
from tests.second_table import SECOND_TABLE

ROWS = 3000
TABLE = ANALYTICS_METRICS.renamed("framehaul_beyond")


@pytest.fixture
def postgres_table(servers: Servers) -> Iterator[Table]:
    tables = tables_of(servers.postgres)
    tables.create(TABLE)
    yield TABLE
    tables.drop(TABLE)


def shifting_writer(servers: Servers, stop: threading.Event) -> None:
    """Keeps moving every row to a new place and to a new value, all rows alike, in one transaction each time."""
    with psycopg.connect(servers.postgres.dsn(), autocommit=True) as connection:
        while not stop.is_set():
            connection.execute(f"UPDATE {TABLE.postgres_name} SET metric_1 = metric_1 + 1".encode())


@pytest.mark.parametrize(
    "name",
    [
        "polars_adbc_two_connections",
        "polars_asyncpg_copy_decoded_two_connections",
        "polars_psycopg_copy_decoded_two_connections",
        "polars_psycopg_copy_text_two_connections",
    ],
)
def test_two_connections_see_one_moment_of_a_table_that_changes(
    name: str, servers: Servers, postgres_table: Table
) -> None:
    found = next(found for found in techniques("postgres", "read") if found.name == name)
    content = generator.arrow_table(postgres_table, ROWS, 1).set_column(9, "metric_1", pa.array([0] * ROWS, pa.int32()))
    tables_of(servers.postgres).load(postgres_table, content.cast(postgres_table.arrow_schema))
    stop = threading.Event()
    writer = threading.Thread(target=shifting_writer, args=(servers, stop))
    writer.start()
    try:
        moments = set()
        for _ in range(15):
            frame: pl.DataFrame = call(found, servers, postgres_table)
            assert len(frame) == ROWS
            assert frame.select(postgres_table.key).n_unique() == ROWS
            assert frame["metric_1"].n_unique() == 1
            moments.add(frame["metric_1"][0])
    finally:
        stop.set()
        writer.join()
    assert len(moments) > 1, "the writer never got between two reads: nothing was tried"


def test_the_key_is_there_again_and_a_duplicate_undoes_everything(servers: Servers, postgres_table: Table) -> None:
    frame = generator.polars_frame(postgres_table, ROWS, 1)
    with open_psycopg(servers.postgres) as connection:
        postgres_write.polars_pgpq_key_last(connection, postgres_table, frame[:100])
        key = "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = to_regclass(%s)"
        before = connection.execute(key, (postgres_table.postgres_name,)).fetchall()
        assert any("PRIMARY KEY" in definition for _, definition in before)
        with pytest.raises(psycopg.errors.UniqueViolation):
            postgres_write.polars_pgpq_key_last(connection, postgres_table, frame)
        assert connection.execute(key, (postgres_table.postgres_name,)).fetchall() == before
        rows = connection.execute(f"SELECT count(*) FROM {postgres_table.postgres_name}".encode()).fetchone()
        assert rows == (100,)
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)


def test_copy_freeze_refuses_a_table_with_rows(servers: Servers, postgres_table: Table) -> None:
    frame = generator.polars_frame(postgres_table, ROWS, 1)
    with open_psycopg(servers.postgres) as connection:
        postgres_write.polars_pgpq_copy_freeze(connection, postgres_table, frame[:100])
        with pytest.raises(ValueError, match="framehaul_beyond is not empty"):
            postgres_write.polars_pgpq_copy_freeze(connection, postgres_table, frame[100:])
        rows = connection.execute(f"SELECT count(*) FROM {postgres_table.postgres_name}".encode()).fetchone()
        assert rows == (100,)


@pytest.mark.parametrize("found", [t for t in techniques("clickhouse") if t.driver == "chdb"],
                         ids=lambda found: found.direction)  # fmt: skip
def test_chdb_never_tells_the_password(found: Technique, servers: Servers) -> None:
    absent = ANALYTICS_METRICS.renamed("framehaul_absent")
    frame = [generator.polars_frame(absent, 10, 1)] if found.direction == "write" else []
    with pytest.raises(Exception, match="framehaul_absent") as raised:
        call(found, servers, absent, *frame)
    assert servers.clickhouse.password not in str(raised.value)


WITNESS = "framehaul_witness"
"""What a transaction that writes into the table commits with, noted as its last act."""


@pytest.fixture
def witness(servers: Servers, postgres_table: Table) -> Iterator[Callable[[], set[tuple[str, str]]]]:
    with psycopg.connect(servers.postgres.dsn(), autocommit=True) as connection:
        # Deferred triggers run as the transaction commits. They hang on a table of their own: PostgreSQL does not alter
        # a table with some of them waiting, as a technique that builds the key last has to.
        connection.execute(
            f"""
            CREATE TABLE {WITNESS} (committed text, kind text);
            CREATE TABLE {WITNESS}_start (kind text);
            CREATE FUNCTION {WITNESS}_start() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                INSERT INTO {WITNESS}_start SELECT relpersistence FROM pg_class WHERE oid = TG_RELID;
                RETURN NULL;
            END $$;
            CREATE FUNCTION {WITNESS}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                INSERT INTO {WITNESS} VALUES (current_setting('synchronous_commit'), NEW.kind);
                RETURN NULL;
            END $$;
            CREATE TRIGGER {WITNESS} AFTER INSERT ON {postgres_table.postgres_name}
                FOR EACH STATEMENT EXECUTE FUNCTION {WITNESS}_start();
            CREATE CONSTRAINT TRIGGER {WITNESS} AFTER INSERT ON {WITNESS}_start
                DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {WITNESS}();
        """.encode()
        )
        try:
            yield lambda: set(connection.execute(f"SELECT committed, kind FROM {WITNESS}".encode()).fetchall())
        finally:
            connection.execute(
                f"DROP FUNCTION {WITNESS}(), {WITNESS}_start() CASCADE; DROP TABLE {WITNESS}, {WITNESS}_start".encode()
            )


@pytest.mark.parametrize("found", [t for t in techniques("postgres", "write") if t.origin == "beyond"],
                         ids=lambda found: found.name)  # fmt: skip
def test_no_technique_weakens_durability(
    found: Technique, servers: Servers, postgres_table: Table, witness: Callable[[], set[tuple[str, str]]]
) -> None:
    frame = generator.polars_frame(postgres_table, 20, 1)
    sent = frame if found.frame == "polars" else to_pandas(from_polars(frame, TABLE), TABLE)
    try:
        call(found, servers, postgres_table, sent)
    except UnavailableError as error:
        pytest.skip(str(error))
    assert witness() == {("on", "p")}


def test_a_weakened_transaction_is_seen(
    servers: Servers, postgres_table: Table, witness: Callable[[], set[tuple[str, str]]]
) -> None:
    with psycopg.connect(servers.postgres.dsn()) as connection:
        connection.execute("SET LOCAL synchronous_commit = off")  # as a helper of a technique might
        frame = generator.polars_frame(postgres_table, 2, 1)
        postgres_write.polars_psycopg_copy_text_streamed(connection, postgres_table, frame)
    assert witness() == {("off", "p")}


def test_page_ranges_hold_every_row_once(servers: Servers, postgres_table: Table) -> None:
    tables_of(servers.postgres).load(postgres_table, generator.arrow_table(postgres_table, ROWS, 1))
    with open_psycopg(servers.postgres) as connection:
        pages = connection.execute(postgres_read.pages_query(postgres_table).encode()).fetchall()[0][0]
        assert pages > 1
        counts = [
            connection.execute(f"SELECT count(*) FROM {postgres_table.postgres_name} WHERE {half}".encode()).fetchall()
            for half in postgres_read.page_ranges(pages)
        ]
    assert all(count[0][0] > 0 for count in counts)
    assert sum(count[0][0] for count in counts) == ROWS


@pytest.fixture
def clickhouse_table(servers: Servers) -> Iterator[Table]:
    tables = tables_of(servers.clickhouse)
    tables.create(TABLE)
    yield TABLE
    tables.drop(TABLE)


def clickhouse_tables(connection: HttpConnection) -> list[str]:
    return (
        connection.post("SELECT name FROM system.tables WHERE database = currentDatabase()").read().decode().split("\n")
    )


@pytest.mark.parametrize("name", ["polars_http_client_arrow_exchange", "polars_http_client_arrow_deduplicated"])
def test_a_load_may_be_tried_again(name: str, servers: Servers, clickhouse_table: Table) -> None:
    found = next(found for found in techniques("clickhouse", "write") if found.name == name)
    frame = generator.polars_frame(clickhouse_table, ROWS, 1)
    for _ in range(3):
        call(found, servers, clickhouse_table, frame)
    assert tables_of(servers.clickhouse).rows_fingerprint(clickhouse_table)[0] == ROWS


def test_different_rows_are_no_repetition(servers: Servers, clickhouse_table: Table) -> None:
    frame = generator.polars_frame(clickhouse_table, ROWS, 1)
    with open_http_client(servers.clickhouse) as connection:
        for part in (frame[:1000], frame[1000:]):
            clickhouse_write.polars_http_client_arrow_deduplicated(connection, clickhouse_table, part)
    assert tables_of(servers.clickhouse).rows_fingerprint(clickhouse_table)[0] == ROWS


def test_an_exchange_that_fails_leaves_the_table_as_it_was(servers: Servers, clickhouse_table: Table) -> None:
    frame = generator.polars_frame(clickhouse_table, ROWS, 1)
    with open_http_client(servers.clickhouse) as connection:
        clickhouse_write.polars_http_client_arrow_exchange(connection, clickhouse_table, frame)
        before = tables_of(servers.clickhouse).rows_fingerprint(clickhouse_table), clickhouse_tables(connection)
        refused = f"ALTER TABLE {clickhouse_table.clickhouse_name} ADD CONSTRAINT no CHECK metric_1 = 0"
        connection.post(refused).read()
        with pytest.raises(QueryError, match="VIOLATED_CONSTRAINT"):
            clickhouse_write.polars_http_client_arrow_exchange(connection, clickhouse_table, frame[:10])
        assert (
            tables_of(servers.clickhouse).rows_fingerprint(clickhouse_table),
            clickhouse_tables(connection),
        ) == before


def failing_body() -> Iterator[bytes]:
    """An Arrow stream that begins well and then is no Arrow."""
    yield next(arrow_stream(generator.arrow_table(ANALYTICS_METRICS, 10, 1)))
    yield b"\xff" * 100_000


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("SELECT no_such_column", lambda: b""),
        ("INSERT INTO FUNCTION null('a Int32') FORMAT ArrowStream", lambda: b"not arrow"),
        (f"INSERT INTO FUNCTION null('{ANALYTICS_METRICS.clickhouse_structure}') FORMAT ArrowStream", failing_body),
    ],
)
def test_http_client_says_what_the_server_says(query: str, body: Callable[[], Any], servers: Servers) -> None:
    with open_http_client(servers.clickhouse) as connection, pytest.raises(QueryError, match=r"Code: \d+"):
        connection.post(query, body=body())


def test_http_client_is_usable_after_a_response_that_was_read(servers: Servers) -> None:
    with open_http_client(servers.clickhouse) as connection:
        assert connection.post("SELECT 1").read() == b"1\n"
        assert connection.post("SELECT 2").read() == b"2\n"


def test_the_server_is_not_asked_before_there_is_something_to_send(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it would wait for a compiler, for thirty seconds at most, and begin an INSERT of what is refused."""
    asked: list[str] = []

    def refused() -> Iterator[bytes]:
        raise ValueError("column c is no UUID")
        yield b""

    def late() -> Iterator[bytes]:
        assert asked == []
        yield b"1,"
        assert asked == ["POST"]
        yield b"2"

    with open_http_client(servers.clickhouse) as connection:
        begin = connection.connection.putrequest

        def ask(method: str, *given: Any, **named: Any) -> None:
            asked.append(method)
            begin(method, *given, **named)

        monkeypatch.setattr(connection.connection, "putrequest", ask)
        query = "INSERT INTO FUNCTION null('a Int32, b Int32') FORMAT CSV"
        with pytest.raises(ValueError, match="no UUID"):
            connection.post(query, body=refused())
        connection.post(query, body=late()).read()
        assert connection.post("SELECT 1").read() == b"1\n"


@pytest.mark.parametrize("table", [ANALYTICS_METRICS, SECOND_TABLE], ids=["standard", "second"])
def test_conversions_lose_nothing(table: Table) -> None:
    frame = generator.polars_frame(table, 500, 1)
    again = to_polars(pa.ipc.open_stream(b"".join(arrow_stream(from_polars(frame, table), 64))).read_all(), table)
    assert again.equals(frame)
    assert again.schema == frame.schema
    raw = with_uuid_bytes(from_polars(frame, table), table)
    for column in table.columns:
        if column.type.name == "UUID":
            found, sent = raw.column(column.name).to_pylist(), frame[column.name].to_list()
            assert [value and value.hex() for value in found] == [value and value.replace("-", "") for value in sent]


def test_native_blocks_leave_the_server_nothing_to_sort(servers: Servers, clickhouse_table: Table) -> None:
    found = next(one for one in techniques("clickhouse", "write") if one.name == "polars_http_client_native_presorted")
    frame = generator.polars_frame(clickhouse_table, ROWS, 1).sample(fraction=1, shuffle=True, seed=2)
    with open_http_client(servers.clickhouse) as connection:

        def counted() -> dict[str, int]:
            query = "SELECT event, value FROM system.events WHERE event LIKE 'MergeTreeDataWriterBlocks%' FORMAT TSV"
            lines = connection.post(query).read().decode().splitlines()
            return {event: int(value) for event, value in (line.split("\t") for line in lines)}

        before = counted()
        call(found, servers, clickhouse_table, frame)
        new = {event: value - before.get(event, 0) for event, value in counted().items()}
    blocks = frame["event_date"].dt.month_start().n_unique()
    assert new == {"MergeTreeDataWriterBlocks": blocks, "MergeTreeDataWriterBlocksAlreadySorted": blocks}


def test_presorted_rows_are_in_the_order_of_the_server(servers: Servers, clickhouse_table: Table) -> None:
    frame = generator.polars_frame(clickhouse_table, ROWS, 1)
    tables_of(servers.clickhouse).load(clickhouse_table, from_polars(frame, clickhouse_table))
    name = clickhouse_table.clickhouse_order[0]
    with open_http_client(servers.clickhouse) as connection:
        query = f"SELECT {name} FROM {clickhouse_table.clickhouse_name} ORDER BY {clickhouse_table.clickhouse_key}"
        ordered = connection.post(f"{query} FORMAT TSV").read().decode().split()
    assert (
        in_clickhouse_order(frame.sample(fraction=1, shuffle=True, seed=2), clickhouse_table)[name].to_list() == ordered
    )
    assert frame.sort(name)[name].to_list() != ordered, "text sorts alike: nothing was tried"


@pytest.mark.parametrize("kind", ["polars", "pandas"])
def test_a_later_slice_that_is_refused_leaves_nothing_and_is_told_by_its_row(
    kind: str, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_write, "BATCH_ROWS", 4)
    table = Table("framehaul_sliced", (Column("id", ColumnType.INT32), Column("at", ColumnType.TIMESTAMP_NS)), ("id",))
    content = pa.table([pa.array(range(10), pa.int32()), pa.array([1000] * 9 + [1001], pa.timestamp("ns"))],
                       schema=table.arrow_schema)  # fmt: skip
    good, bad = (
        to_polars(part, table) if kind == "polars" else to_pandas(part, table) for part in (content[:9], content)
    )
    tables = tables_of(servers.postgres)
    tables.create(table)
    write: Any = getattr(postgres_write, f"{kind}_pgpq_key_last")
    try:
        with open_psycopg(servers.postgres) as connection:
            with pytest.raises(ValueError, match=r"holds nanoseconds.* \(in what follows row 8\)"):
                write(connection, table, bad)
            assert tables.content(table).is_empty()
            write(connection, table, good[:0])
            write(connection, table, good)
        assert len(tables.content(table)) == 9
    finally:
        tables.drop(table)
