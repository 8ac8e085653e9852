"""Sizes, streamed moves and what is told of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framehaul.bench.children import ChildError, child, context, ended_with_the_block
from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.data.frames import to_polars
from framehaul.data.schema import ANALYTICS_METRICS, Column, ColumnType, Table, Types, list_types, struct_types
from framehaul.servers import Servers
from framehaul.servers.tables import PostgresTables, tables_of
from framehaul.settings import Settings
from framehaul.studies.scaling import study as scaling
from framehaul.studies.scaling.mover import MEMORY, TIME, serve
from framehaul.techniques import Technique, streaming
from framehaul.techniques.beyond import clickhouse_read
from framehaul.techniques.clients import CLIENTS, open_adbc, open_psycopg_adbc
from framehaul.techniques.registry import DATABASES, Database
from framehaul.techniques.streaming import MOVES

ROWS = 5000
TABLE = ANALYTICS_METRICS.renamed("framehaul_moved")


@contextmanager
def loaded(servers: Servers, database: Database, content: pa.Table, table: Table = TABLE) -> Iterator[Any]:
    """The tables of a database, in which this one has these rows until the block ends."""
    tables = tables_of(servers.of(database))
    tables.create(table)
    try:
        tables.load(table, content)
        yield tables
    finally:
        tables.drop(table)


@pytest.mark.parametrize("move", MOVES, ids=lambda move: move.name)
def test_moves_move_exactly_what_is_there(move: Technique, servers: Servers, tmp_path: Path) -> None:
    content, file = generator.arrow_table(TABLE, ROWS, 1), tmp_path / "rows.parquet"
    sent, reference = Expected(TABLE, content), TABLE.renamed("framehaul_moved_sent")
    reads = move.direction == "read"
    with loaded(servers, move.database, content if reads else content.slice(0, 0)) as tables:
        with CLIENTS[move.client](servers.of(move.database)) as client:  # type: ignore[union-attr]  # none is asynchronous
            if not reads:
                pq.write_table(content, file)
            move.function(client, TABLE, file)
        if reads:
            assert sent.difference(to_polars(pq.read_table(file), TABLE)) is None
        else:
            sent.keep_reference(tables, reference)
            assert sent.difference_on_server(tables) is None
            tables.drop(reference)


# What neither the compiled decoder of COPY nor Native blocks carry.
OTHERWISE = Table(
    "framehaul_moved_otherwise",
    (Column("id", ColumnType.INT32), Column("many", ColumnType.LIST), Column("address", ColumnType.IPV4)), (),
)  # fmt: skip


@pytest.mark.parametrize("database", DATABASES)
def test_types_that_the_fast_codecs_do_not_carry_go_another_way(
    database: Database, servers: Servers, tmp_path: Path
) -> None:
    content, file = generator.arrow_table(OTHERWISE, 100, 1), tmp_path / "rows.parquet"
    pq.write_table(content, file)
    with loaded(servers, database, content.slice(0, 0), OTHERWISE):
        for move in streaming.STREAMED:
            if move.database == database:
                with CLIENTS[move.client](servers.of(database)) as client:  # type: ignore[union-attr]
                    move.function(client, OTHERWISE, file)
    assert Expected(OTHERWISE, content).difference(to_polars(pq.read_table(file), OTHERWISE)) is None


def test_an_encrypted_connection_is_read_otherwise(servers: Servers) -> None:
    content = generator.arrow_table(TABLE, 100, 1)
    encrypted: Any = SimpleNamespace(pgconn=SimpleNamespace(ssl_in_use=True))
    with loaded(servers, "postgres", content), open_adbc(servers.postgres) as adbc:
        read = pa.Table.from_batches(streaming.fetch_batches((encrypted, adbc), TABLE))
    assert Expected(TABLE, content).difference(to_polars(read, TABLE)) is None


def test_a_reader_that_stops_half_way_leaves_no_half_answer_behind(servers: Servers) -> None:
    """The connections cannot be used again, and say so: the rest of the rows would answer the next query."""
    with loaded(servers, "postgres", generator.arrow_table(TABLE, 40_000, 1)):  # noqa: SIM117
        with open_psycopg_adbc(servers.postgres) as (connection, adbc):
            batches = streaming.fetch_batches((connection, adbc), TABLE)
            assert next(batches).num_rows
            batches.close()
            assert connection.closed


@pytest.mark.parametrize("move", streaming.STREAMED[1::2], ids=lambda move: move.name)
def test_a_file_that_cannot_be_written_is_told_and_locks_nothing(
    move: Technique, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "ROWS_TO_KEEP", 1000)
    monkeypatch.setattr(pq.ParquetWriter, "write_table", full_disk)
    with (
        loaded(servers, move.database, generator.arrow_table(TABLE, 40_000, 1)),
        CLIENTS[move.client](servers.of(move.database)) as client,  # type: ignore[union-attr]  # none is asynchronous
    ):
        try:
            move.function(client, TABLE, tmp_path / "rows.parquet")
        except OSError:  # while it is handled all that it went through is still there
            if isinstance(client, tuple):
                assert client[0].closed
            else:
                assert client.post("SELECT 1").read() == b"1\n"
        else:
            pytest.fail("nothing was raised")
    assert [*tmp_path.iterdir()] == []


def full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_source_is_asked_for_a_batch_only_when_those_before_are_gone(servers: Servers) -> None:
    """Memory stays bounded: no writer collects more batches than go together."""
    content = generator.arrow_table(TABLE, 40_000, 1)
    alive: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in content.to_batches(max_chunksize=1000):
            # Each batch is a copy of its own, so that Arrow's pool tells how many of them somebody still holds.
            alive.append(pa.total_allocated_bytes())
            yield pa.record_batch([pa.concat_arrays([column]) for column in batch.columns], schema=batch.schema)

    for database, name, write in (
        ("postgres", "psycopg", streaming.copy_batches), ("clickhouse", "http_client", streaming.insert_batches),
    ):  # fmt: skip
        alive.clear()
        with (
            loaded(servers, database, content.slice(0, 0)),  # type: ignore[arg-type]
            CLIENTS[name](servers.of(database)) as client,  # type: ignore[union-attr]
        ):
            write(client, TABLE, batches(), together=1000)
        assert len(alive) == 40
        assert max(alive[5:]) - min(alive[5:]) < content.nbytes / 4


def few_rows_together(requests: Connection, name: str, file: Path, table: Table) -> None:
    """Serve a move whose batches are small beside the tables below."""
    streaming.ROWS_TO_KEEP = together = 8_192
    streaming.copy_batches.__defaults__ = streaming.insert_batches.__defaults__ = (together,)
    streaming.__dict__["BATCH_ROWS"] = 4_096
    clickhouse_read.__dict__["LARGE_BLOCKS"] = {"max_block_size": 4_096}
    serve(requests, name, file, table)


@pytest.mark.slow
@pytest.mark.parametrize("move", streaming.STREAMED, ids=lambda move: move.name)
def test_memory_is_bounded_whatever_the_size(
    move: Technique, servers: Servers, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FRAMEHAUL_STATE_DIR", str(settings.state_dir))
    growth, reads = [], move.direction == "read"
    table = TABLE if reads else replace(TABLE, key=())  # which takes the rows of both passes
    for rows in (40_000, 240_000):
        content, file = generator.arrow_table(TABLE, rows, 1), tmp_path / f"{rows}.parquet"
        pq.write_table(content, file, row_group_size=8_192)
        with (
            loaded(servers, move.database, content if reads else content.slice(0, 0), table),
            ended_with_the_block(),
            child(context(), move.name, few_rows_together, move.name, file, TABLE) as process,
        ):
            process.ask(MEMORY)  # the first pass allocates what stays
            growth.append(process.ask(MEMORY)["peak_rss_bytes"])
    assert growth[1] - growth[0] < content.nbytes * 5 // 6 / 2, growth


def test_a_read_that_fails_leaves_no_file_and_the_one_that_was_there(servers: Servers, tmp_path: Path) -> None:
    """Half of a Parquet file with an end of its own looks whole."""
    content = generator.arrow_table(TABLE, 10, 1)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from content.to_batches()
        raise ValueError("the server is gone")

    for before in (b"", b"what was there"):
        file = tmp_path / "rows.parquet"
        if before:
            file.write_bytes(before)
        with pytest.raises(ValueError, match="the server is gone"):
            streaming.write_batches(batches(), TABLE, file)
        assert [one.read_bytes() for one in tmp_path.iterdir()] == [before] * bool(before)


@pytest.mark.parametrize(
    ("given", "types", "kept"),
    [
        (pa.array([[2]]), list_types(ColumnType.BOOL.value), False),
        (pa.array([[dt.datetime(2026, 1, 2, 3)]]), list_types(ColumnType.DATE.value), False),
        (pa.array([[0.5, float("nan"), None], []]), list_types(ColumnType.FLOAT32.value), True),
        (pa.array([{"a": 0.1}]), struct_types({"a": ColumnType.FLOAT32.value}), False),
        (pa.array([["a"]], pa.large_list(pa.large_string())), list_types(ColumnType.TEXT.value), True),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else None,
)  # fmt: skip
def test_nothing_in_a_list_or_struct_is_rounded_on_the_way(given: pa.Array, types: Types, kept: bool) -> None:
    kind = ColumnType.LIST if types.element else ColumnType.STRUCT
    table = Table("framehaul_nested_batches", (Column("nested", kind, exactly=types),), ())
    batch = pa.record_batch({"nested": given})

    def conforming() -> list[pa.RecordBatch]:
        return [*streaming.in_table_schema(iter([batch]), table, "postgres")]

    if kept:
        assert pa.Table.from_batches(conforming()).num_rows == len(given)
    else:
        with pytest.raises(ValueError, match=r"column nested holds .* does not have .*begins with row 0"):
            conforming()


def test_a_move_that_fails_is_told_with_its_reason_and_between_passes_no_connection_is_kept(
    servers: Servers, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rows are verified between passes, which may take longer than a server keeps a connection that is idle."""
    monkeypatch.setenv("FRAMEHAUL_STATE_DIR", str(settings.state_dir))
    file, tables = tmp_path / "rows.parquet", PostgresTables(servers.postgres)

    def others() -> set[int]:
        backends = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid != pg_backend_pid()"
        return {pid for (pid,) in tables.run(backends)}

    with ended_with_the_block(), scaling.mover("stream_into_postgres", file) as process:
        for _ in range(2):  # a process that has ended says so again for every pass that is left
            with pytest.raises(ChildError, match=r"^FileNotFoundError: .*No such file"):  # nothing is sent
                process.ask(TIME)
    pq.write_table(generator.arrow_table(ANALYTICS_METRICS, 10, 1), file)
    tables.create(ANALYTICS_METRICS)
    before = others()
    with ended_with_the_block(), scaling.mover("stream_into_postgres", file) as process:
        for _ in range(2):
            process.ask(TIME)
            while others() - before:  # a backend goes on for a moment when its client has gone
                pass
            tables.create(ANALYTICS_METRICS)
    tables.drop(ANALYTICS_METRICS)


def test_sizes_end_with_the_largest() -> None:
    assert [scaling.sizes(largest) for largest in (1, 300, 100_000)] == [[1], [30, 90, 300], [10_000, 30_000, 100_000]]
