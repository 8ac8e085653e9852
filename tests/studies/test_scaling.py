"""Sizes, streamed moves and what is told of them."""

import datetime as dt
from contextlib import nullcontext
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framehaul.bench.children import child, context, ended_with_the_block
from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.data.frames import to_polars
from framehaul.data.schema import ANALYTICS_METRICS, Column, ColumnType, Table, Types, list_types, struct_types
from framehaul.servers import Server, Servers
from framehaul.studies import scaling
from framehaul.studies.scaling import serve
from framehaul.techniques import Technique, streaming
from framehaul.techniques.beyond import clickhouse_read
from framehaul.techniques.clients import CLIENTS
from framehaul.techniques.registry import DATABASES, Database
from tests.conftest import table_on

TABLE = ANALYTICS_METRICS.renamed("framehaul_moved")


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
    with table_on(servers.of(database), OTHERWISE):
        for move in streaming.STREAMED:
            if move.database == database:
                with CLIENTS[move.client](servers.of(database)) as client:  # type: ignore[union-attr]
                    move.function(client, OTHERWISE, file)
    assert Expected(OTHERWISE, content).difference(to_polars(pq.read_table(file), OTHERWISE)) is None


@pytest.mark.parametrize("move", streaming.STREAMED[1::2], ids=lambda move: move.name)
def test_a_read_that_fails_leaves_the_file_that_was_there_and_locks_nothing(
    move: Technique, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a file with an end of its own looks whole, and the rest of the rows would answer the next query."""
    monkeypatch.setattr(streaming, "ROWS_TO_KEEP", 1000)
    monkeypatch.setattr(pq.ParquetWriter, "write_table", full_disk)
    file = tmp_path / "rows.parquet"
    file.write_bytes(b"what was there")
    with (
        table_on(servers.of(move.database), TABLE, generator.arrow_table(TABLE, 40_000, 1)),
        CLIENTS[move.client](servers.of(move.database)) as client,  # type: ignore[union-attr]  # none is asynchronous
    ):
        try:
            move.function(client, TABLE, file)
        except OSError:  # while it is handled all that it went through is still there
            assert client.closed if move.database == "postgres" else client.post("SELECT 1").read() == b"1\n"
        else:
            pytest.fail("nothing was raised")
    assert [one.read_bytes() for one in tmp_path.iterdir()] == [b"what was there"]


def full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


def few_rows_together(requests: Connection, server: Server, name: str, file: Path, table: Table) -> None:
    """Serve a move whose batches are small beside the tables below."""
    streaming.ROWS_TO_KEEP = together = 8_192
    streaming.copy_batches.__defaults__ = streaming.insert_batches.__defaults__ = (together,)
    streaming.__dict__["BATCH_ROWS"] = 4_096
    clickhouse_read.__dict__["LARGE_BLOCKS"] = {"max_block_size": 4_096}
    serve(requests, server, name, file, table)


@pytest.mark.slow
@pytest.mark.parametrize("move", streaming.STREAMED, ids=lambda move: move.name)
def test_memory_is_bounded_whatever_the_size(move: Technique, servers: Servers, tmp_path: Path) -> None:
    growth, reads = [], move.direction == "read"
    table = TABLE if reads else replace(TABLE, key=())  # which takes the rows of all passes
    for rows in (40_000, 320_000):
        content, file = generator.arrow_table(TABLE, rows, 1), tmp_path / f"{rows}.parquet"
        pq.write_table(content, file, row_group_size=8_192)
        with (
            table_on(servers.of(move.database), table, content if reads else None),
            ended_with_the_block(),
            child(
                context(), move.name, few_rows_together, servers.of(move.database), move.name, file, TABLE
            ) as process,
        ):
            process.ask(True)  # the first pass allocates what stays; on a busy machine freed memory returns late
            growth.append(min(process.ask(True).usage.peak_rss_bytes for _ in range(3)))
    assert growth[1] - growth[0] < content.nbytes * 7 // 8 / 2, growth


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
    message = r"column nested holds .* does not have .*begins with row 0"
    expected: Any = nullcontext() if kept else pytest.raises(ValueError, match=message)
    with expected:
        batches = streaming.in_table_schema(iter([pa.record_batch({"nested": given})]), table, "postgres")
        assert sum(batch.num_rows for batch in batches) == len(given)


def test_between_passes_no_connection_is_kept(servers: Servers, tmp_path: Path) -> None:
    """Rows are verified between passes, which may take longer than a server keeps a connection that is idle."""
    name, file, content = "stream_into_postgres", tmp_path / "rows.parquet", generator.arrow_table(TABLE, 10, 1)
    backends = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid != pg_backend_pid()"
    pq.write_table(content, file)
    with table_on(servers.postgres, ANALYTICS_METRICS) as tables:
        before = {*tables.run(backends)}
        with ended_with_the_block(), child(context(), name, serve, servers.postgres, name, file) as process:
            for _ in range(2):
                tables.create(ANALYTICS_METRICS)
                process.ask(False)
                while {*tables.run(backends)} - before:  # a backend goes on for a moment when its client has gone
                    pass


def test_sizes_end_with_the_largest() -> None:
    assert [scaling.sizes(largest) for largest in (1, 300, 100_000)] == [[1], [30, 300], [10_000, 100_000]]
