"""Ways of reading that give a table frame by frame, so that it need not fit into memory.

Each is measured in a process of its own, whose memory nothing else has used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import pandas as pd
import polars as pl

from framehaul import servers
from framehaul.bench.meter import Meter
from framehaul.data.schema import ANALYTICS_METRICS, ColumnType, Table
from framehaul.settings import load_settings
from framehaul.techniques.clients import CLIENTS
from framehaul.techniques.registry import Database

BATCH_ROWS = 10_000
NUMBERS = (ColumnType.INT16, ColumnType.INT32, ColumnType.INT64)

type Frame = pl.DataFrame | pd.DataFrame


@dataclass(frozen=True)
class Way:
    """A call that promises batches; `give` takes an open client and a table."""

    name: str
    database: Database
    client: str
    label: str
    give: Callable[[Any, Table], Iterator[Frame]]
    link: str


def _query(table: Table) -> str:
    return f"SELECT {table.postgres_columns} FROM {table.postgres_name}"


def _clickhouse_query(table: Table) -> str:
    return f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name}"


def pandas_chunks(connection: Any, table: Table) -> Iterator[Frame]:
    """pandas cuts what the driver has fetched already."""
    yield from pd.read_sql(_query(table), connection, chunksize=BATCH_ROWS)


def pandas_chunks_streamed(connection: Any, table: Table) -> Iterator[Frame]:
    """pandas fetches from a cursor on the server."""
    yield from pd.read_sql(_query(table), connection.execution_options(stream_results=True), chunksize=BATCH_ROWS)


def polars_batches(connection: Any, table: Table) -> Iterator[Frame]:
    """Polars cuts what the driver has fetched already."""
    yield from pl.read_database(_query(table), connection, iter_batches=True, batch_size=BATCH_ROWS)


def polars_batches_streamed(connection: Any, table: Table) -> Iterator[Frame]:
    """Polars fetches from a cursor on the server."""
    streaming = connection.execution_options(stream_results=True)
    yield from pl.read_database(_query(table), streaming, iter_batches=True, batch_size=BATCH_ROWS)


def polars_batches_adbc(connection: Any, table: Table) -> Iterator[Frame]:
    """ADBC gives batches of Arrow as they come."""
    yield from pl.read_database(_query(table), connection, iter_batches=True, batch_size=BATCH_ROWS)


def psycopg_cursor(connection: Any, table: Table) -> Iterator[Frame]:
    """psycopg fetches from a cursor on the server."""
    with connection.transaction(), connection.cursor("framehaul_batches") as cursor:
        cursor.execute(_query(table))
        while rows := cursor.fetchmany(BATCH_ROWS):
            yield pl.DataFrame(rows, schema=table.column_names, orient="row")


def connect_stream(client: Any, table: Table) -> Iterator[Frame]:
    """clickhouse-connect makes a frame of each block."""
    with client.query_df_stream(_clickhouse_query(table)) as stream:
        yield from stream


def connect_arrow_stream(client: Any, table: Table) -> Iterator[Frame]:
    """clickhouse-connect gives batches of Arrow as they come."""
    with client.query_arrow_stream(_clickhouse_query(table)) as stream:
        for batch in stream:
            yield pl.DataFrame(batch)


def driver_iterator(client: Any, table: Table) -> Iterator[Frame]:
    """clickhouse-driver gives rows as blocks come."""
    for rows in client.execute_iter(_clickhouse_query(table), chunk_size=BATCH_ROWS):
        yield pl.DataFrame(rows, schema=table.column_names, orient="row")


PANDAS = "https://pandas.pydata.org/docs/user_guide/io.html#querying"
POLARS = "https://docs.pola.rs/api/python/stable/reference/api/polars.read_database.html"
CONNECT = "https://clickhouse.com/docs/integrations/language-clients/python/advanced-querying#streaming-queries"
WAYS = (
    Way("pandas_chunksize", "postgres", "sqlalchemy", "pandas.read_sql(chunksize=)", pandas_chunks, PANDAS),
    Way(
        "pandas_chunksize_streamed", "postgres", "sqlalchemy",
        "pandas.read_sql(chunksize=), stream_results=True", pandas_chunks_streamed, PANDAS,
    ),
    Way("polars_iter_batches", "postgres", "sqlalchemy", "polars.read_database(iter_batches=True)", polars_batches,
        POLARS),
    Way(
        "polars_iter_batches_streamed", "postgres", "sqlalchemy",
        "polars.read_database(iter_batches=True), stream_results=True", polars_batches_streamed, POLARS,
    ),
    Way(
        "polars_iter_batches_adbc", "postgres", "adbc", "polars.read_database(iter_batches=True), ADBC",
        polars_batches_adbc, POLARS,
    ),
    Way(
        "psycopg_cursor", "postgres", "psycopg", "psycopg, a named cursor's fetchmany", psycopg_cursor,
        "https://www.psycopg.org/psycopg3/docs/advanced/cursors.html#server-side-cursors",
    ),
    Way("connect_df_stream", "clickhouse", "clickhouse_connect", "clickhouse-connect query_df_stream", connect_stream,
        CONNECT),
    Way(
        "connect_arrow_stream", "clickhouse", "clickhouse_connect", "clickhouse-connect query_arrow_stream",
        connect_arrow_stream, CONNECT,
    ),
    Way(
        "driver_execute_iter", "clickhouse", "clickhouse_driver", "clickhouse-driver execute_iter", driver_iterator,
        "https://clickhouse-driver.readthedocs.io/en/latest/features.html#streaming-results",
    ),
)  # fmt: skip


def sums_of(frame: Frame, table: Table) -> dict[str, int]:
    """Rows of a frame, the sum of each column of integers, and how many characters each column of text has."""
    sums = {"rows": len(frame)}
    for name in table.columns_of(*NUMBERS):
        numbers = frame[name]  # a sum of Polars is as wide as its column
        sums[name] = int((numbers.cast(pl.Int64) if isinstance(numbers, pl.Series) else numbers).sum())
    for name in table.columns_of(ColumnType.TEXT):
        texts = frame[name]
        sums[name] = int((texts.str.len_chars() if isinstance(texts, pl.Series) else texts.str.len()).sum())
    return sums


def taken(frames: Iterator[Frame], table: Table) -> dict[str, Any]:
    """Take one frame after the other, and say how many came, what in them, and how long that took without looking."""
    came: dict[str, int] = {}
    number, looking = 0, 0.0
    start = time.perf_counter()
    for frame in frames:
        look = time.perf_counter()
        came = {of: came.get(of, 0) + value for of, value in sums_of(frame, table).items()}
        number += 1
        looking += time.perf_counter() - look
    return {"seconds": time.perf_counter() - start - looking, "frames": number, "came": came}


def read_once(answer: Connection, name: str, table: Table = ANALYTICS_METRICS) -> None:
    """Read the table once, and say what it cost and what came."""
    way = next(way for way in WAYS if way.name == name)
    with servers.running(load_settings()) as both:
        server = both.of(way.database)
        opened = CLIENTS[way.client](server)
        assert isinstance(opened, AbstractContextManager)
        with opened as client:
            meter = Meter(server.process_id)
            meter.start(memory=True)
            said = taken(way.give(client, table), table)
            usage = meter.stop()
    answer.send(said | {"peak_rss_bytes": usage.peak_rss_bytes})
