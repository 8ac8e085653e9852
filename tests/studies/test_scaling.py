"""Sizes, streamed moves and what is told of them."""

from __future__ import annotations

import datetime as dt
import tracemalloc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framehaul.bench.children import ChildError, ended_with_the_block
from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.data.frames import to_polars
from framehaul.data.schema import ANALYTICS_METRICS, Column, ColumnType, Table, Types, list_types, struct_types
from framehaul.servers import Servers
from framehaul.servers.tables import PostgresTables, Tables, tables_of
from framehaul.settings import Settings
from framehaul.studies.scaling import study as scaling
from framehaul.studies.scaling.mover import TIME
from framehaul.techniques import Technique, streaming
from framehaul.techniques.beyond import clickhouse_read
from framehaul.techniques.clients import CLIENTS, open_adbc, open_psycopg_adbc
from framehaul.techniques.registry import DATABASES, Database
from framehaul.techniques.streaming import MOVES
from tests.bench.test_store import passes, result

ROWS = 5000
TABLE = ANALYTICS_METRICS.renamed("framehaul_moved")


@contextmanager
def made(server: Any, table: Table, content: pa.Table | None = None) -> Iterator[Tables]:
    """A table, with these rows in it."""
    tables = tables_of(server)
    tables.create(table)
    try:
        if content is not None:
            tables.load(table, content)
        yield tables
    finally:
        tables.drop(table)


def test_sizes_go_up_to_the_largest() -> None:
    assert scaling.sizes(1_000_000) == [10_000, 30_000, 100_000, 300_000, 1_000_000]
    assert scaling.sizes(300) == [30, 90, 300]
    assert scaling.sizes(1) == [1]


def test_a_file_is_read_without_being_kept(tmp_path: Path) -> None:
    file, groups = tmp_path / "rows.parquet", 12
    group = pa.table({"noise": pa.array(np.random.default_rng(1).integers(0, 2**62, 500_000))})
    with pq.ParquetWriter(file, group.schema) as writer:
        for _ in range(groups):
            writer.write_table(group)
    before = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in streaming.read_batches(file)]
    assert max(held) < 3 * group.nbytes < file.stat().st_size


@pytest.mark.parametrize("move", MOVES, ids=lambda move: move.name)
def test_moves_move_exactly_what_is_there(move: Technique, servers: Servers, tmp_path: Path) -> None:
    server = servers.of(move.database)
    content, file = generator.arrow_table(TABLE, ROWS, 1), tmp_path / "rows.parquet"
    sent, writes = Expected(TABLE, content), move.direction == "write"
    opened = CLIENTS[move.client](server)
    assert isinstance(opened, AbstractContextManager)
    with made(server, TABLE, None if writes else content) as tables, opened as client:
        if writes:
            pq.write_table(content, file)
            move.function(client, TABLE, file)
            assert sent.difference(tables.content(TABLE)) is None
        else:
            move.function(client, TABLE, file)
            assert sent.difference(to_polars(pq.read_table(file), TABLE)) is None


# What neither the compiled decoder of COPY nor Native blocks carry.
OTHERWISE = Table(
    "framehaul_moved_otherwise",
    (Column("id", ColumnType.INT32), Column("many", ColumnType.LIST), Column("address", ColumnType.IPV4)), (),
)  # fmt: skip


@pytest.mark.parametrize("database", DATABASES)
def test_types_that_the_fast_codecs_do_not_carry_go_another_way(
    database: Database, servers: Servers, tmp_path: Path
) -> None:
    server, file = servers.of(database), tmp_path / "rows.parquet"
    content = generator.arrow_table(OTHERWISE, 100, 1)
    pq.write_table(content, file)
    with made(server, OTHERWISE):
        for move in streaming.STREAMED:
            if move.database == database:
                with CLIENTS[move.client](server) as client:  # type: ignore[union-attr]  # none is asynchronous
                    move.function(client, OTHERWISE, file)
    assert Expected(OTHERWISE, content).difference(to_polars(pq.read_table(file), OTHERWISE)) is None


def test_an_encrypted_connection_is_read_otherwise(servers: Servers) -> None:
    content, encrypted = generator.arrow_table(TABLE, 100, 1), SimpleNamespace(ssl_in_use=True)
    with made(servers.postgres, TABLE, content), open_adbc(servers.postgres) as adbc:
        both: Any = (SimpleNamespace(pgconn=encrypted), adbc)
        read = pa.Table.from_batches(streaming.fetch_batches(both, TABLE))
    assert Expected(TABLE, content).difference(to_polars(read, TABLE)) is None


def test_who_reads_no_further_leaves_no_half_answer_behind(servers: Servers) -> None:
    """The connections cannot be used again, and say so: the rest of the rows would answer the next query."""
    content = generator.arrow_table(TABLE, 40_000, 1)
    with made(servers.postgres, TABLE, content), open_psycopg_adbc(servers.postgres) as (connection, adbc):
        batches = streaming.fetch_batches((connection, adbc), TABLE)
        assert next(batches).num_rows
        batches.close()
        assert connection.closed


@pytest.mark.parametrize("move", streaming.STREAMED[1::2], ids=lambda move: move.name)
def test_a_file_that_cannot_be_written_is_told_and_locks_nothing(
    move: Technique, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers.of(move.database)
    monkeypatch.setattr(streaming, "ROWS_TO_KEEP", 1000)
    monkeypatch.setattr(pq.ParquetWriter, "write_table", full_disk)
    with (
        made(server, TABLE, generator.arrow_table(TABLE, 40_000, 1)),
        CLIENTS[move.client](server) as client,  # type: ignore[union-attr]  # none is asynchronous
    ):
        try:
            move.function(client, TABLE, tmp_path / "rows.parquet")
        except OSError:  # while it is handled all that it went through is still there
            if isinstance(client, tuple):
                assert client[0].closed
            else:
                assert client.post("SELECT 1").read() == b"1\n"
        else:
            pytest.fail("nothing was told")
    assert [*tmp_path.iterdir()] == []


def full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_source_is_asked_for_a_batch_only_when_those_before_are_gone(servers: Servers) -> None:
    """What keeps memory bounded: no writer collects more batches than go together."""
    content = generator.arrow_table(TABLE, 40_000, 1)
    alive: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in content.to_batches(max_chunksize=1000):
            # Each batch is a copy of its own, so that Arrow's pool tells how many of them somebody still holds.
            alive.append(pa.total_allocated_bytes())
            yield pa.record_batch([pa.concat_arrays([column]) for column in batch.columns], schema=batch.schema)

    for database, client, write in (
        ("postgres", "psycopg", streaming.copy_batches), ("clickhouse", "http_client", streaming.insert_batches),
    ):  # fmt: skip
        server = servers.postgres if database == "postgres" else servers.clickhouse
        alive.clear()
        opened = CLIENTS[client](server)
        assert isinstance(opened, AbstractContextManager)
        with made(server, TABLE), opened as connection:
            write(connection, TABLE, batches(), together=1000)
        assert len(alive) == 40
        assert max(alive[5:]) - min(alive[5:]) < content.nbytes / 4


@pytest.mark.parametrize("move", streaming.STREAMED[1::2], ids=lambda move: move.name)
def test_a_read_holds_as_much_of_a_large_table_as_of_a_small_one(
    move: Technique, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, write, held = servers.of(move.database), pq.ParquetWriter.write_table, list[int]()
    monkeypatch.setattr(streaming, "ROWS_TO_KEEP", 8_192)
    monkeypatch.setattr(clickhouse_read, "LARGE_BLOCKS", {"max_block_size": 4_096})

    def noted(writer: pq.ParquetWriter, rows: pa.Table) -> None:
        held.append(pa.total_allocated_bytes() + tracemalloc.get_traced_memory()[0])
        write(writer, rows)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", noted)
    most = []
    for size in (40_000, 40_000, 240_000):  # the first compiles what is compiled
        content = generator.arrow_table(TABLE, size, 1)
        with made(server, TABLE, content), CLIENTS[move.client](server) as client:  # type: ignore[union-attr]
            held.clear()
            tracemalloc.start()
            before = pa.total_allocated_bytes()
            move.function(client, TABLE, tmp_path / "rows.parquet")
            tracemalloc.stop()
        most.append(max(held) - before)
    assert most[2] - most[1] < content.nbytes / 3


def test_a_read_that_fails_leaves_no_file_and_the_one_that_was_there(tmp_path: Path) -> None:
    """Half of a Parquet file with an end of its own looks whole."""
    content = generator.arrow_table(TABLE, 10, 1)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from content.to_batches()
        raise ValueError("the server is gone")

    file = tmp_path / "rows.parquet"
    for before in ([], [b"what was there"]):
        for one in before:
            file.write_bytes(one)
        with pytest.raises(ValueError, match="the server is gone"):
            streaming.write_batches(batches(), TABLE, file)
        assert [one.read_bytes() for one in tmp_path.iterdir()] == before


@pytest.mark.parametrize(
    ("given", "types", "kept"),
    [
        ([[2]], list_types(ColumnType.BOOL.value), False),
        ([[dt.datetime(2026, 1, 2), None], []], list_types(ColumnType.DATE.value), True),
        ([[0.1]], list_types(ColumnType.FLOAT32.value), False),
        ([[0.5, float("nan"), None], []], list_types(ColumnType.FLOAT32.value), True),
        ([{"a": 0.1}], struct_types({"a": ColumnType.FLOAT32.value}), False),
    ],
)
def test_nothing_in_a_list_or_struct_is_rounded_on_the_way(given: list[Any], types: Types, kept: bool) -> None:
    kind = ColumnType.LIST if types.element else ColumnType.STRUCT
    table = Table("framehaul_nested_batches", (Column("nested", kind, exactly=types),), ())
    batch, refused = pa.record_batch({"nested": pa.array(given)}), r"column nested holds .* begins with row 0"
    with nullcontext() if kept else pytest.raises(ValueError, match=refused):
        found = pa.Table.from_batches([*streaming.in_table_schema(iter([batch]), table, lambda *_: None)])
        assert found.num_rows == len(given)


def test_a_mover_tells_why_it_failed_and_keeps_no_connection_between_passes(
    servers: Servers, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rows are verified between passes, which may take longer than a server keeps a connection that is idle."""
    monkeypatch.setenv("FRAMEHAUL_STATE_DIR", str(settings.state_dir))
    file = tmp_path / "rows.parquet"
    with ended_with_the_block(), scaling.mover("stream_into_postgres", file) as process:
        for _ in range(2):  # a process that has ended says so again for every pass that is left
            with pytest.raises(ChildError, match=r"^FileNotFoundError: .*No such file"):  # nothing is sent
                process.ask(TIME)
    pq.write_table(generator.arrow_table(ANALYTICS_METRICS, 10, 1), file)
    clients = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid != pg_backend_pid()"
    with made(servers.postgres, ANALYTICS_METRICS):
        tables = PostgresTables(servers.postgres)
        before = {*tables.run(clients)}
        with ended_with_the_block(), scaling.mover("stream_into_postgres", file) as process:
            for _ in range(2):
                process.ask(TIME)
                while {*tables.run(clients)} - before:  # a backend goes on for a moment when its client has gone
                    pass
                tables.create(ANALYTICS_METRICS)


def test_what_was_wrong_once_has_no_speed_at_that_size(tmp_path: Path) -> None:
    name, _ = scaling.COMPARED[("clickhouse", "read")]
    frame = passes(
        result(name, 1, rows=10), result(name, 2, rows=10, status="failed", seconds=None, reason="x"),
        result(name, 1, rows=100), result(name, 2, rows=100),
        directory=tmp_path,
    )  # fmt: skip
    assert scaling.medians(frame)["rows"].to_list() == [100]
