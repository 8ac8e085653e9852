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

import connectorx
import pandas as pd
import polars as pl

from framehaul import servers
from framehaul.bench.meter import Meter
from framehaul.data.schema import ANALYTICS_METRICS, ColumnType, Table
from framehaul.settings import load_settings
from framehaul.techniques.clients import CLIENTS, table_by_ibis
from framehaul.techniques.registry import DRIVERS, Database

BATCH_ROWS = 10_000
NUMBERS = (ColumnType.INT16, ColumnType.INT32, ColumnType.INT64)

type Frame = pl.DataFrame | pd.DataFrame


type Give = Callable[[Any, Table, str], Iterator[Frame]]
"""Takes an open client, a table, and the query that selects its columns."""


@dataclass(frozen=True)
class Way:
    """A call that promises batches."""

    name: str
    database: Database
    client: str
    label: str
    give: Give

    def frames(self, client: Any, table: Table) -> Iterator[Frame]:
        """All rows of a table, frame by frame."""
        if self.database == "postgres":
            return self.give(client, table, f"SELECT {table.postgres_columns} FROM {table.postgres_name}")
        return self.give(client, table, f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name}")


def streamed(give: Give) -> Give:
    """The same from a cursor on the server, where the dialect of SQLAlchemy has one."""
    return lambda connection, table, query: give(connection.execution_options(stream_results=True), table, query)


def pandas_chunks(connection: Any, _: Table, query: str) -> Iterator[Frame]:
    """pandas cuts what the driver gives (https://pandas.pydata.org/docs/user_guide/io.html#querying)."""
    yield from pd.read_sql(query, connection, chunksize=BATCH_ROWS)


def polars_batches(connection: Any, _: Table, query: str) -> Iterator[Frame]:
    """Polars cuts what the driver gives."""
    yield from pl.read_database(query, connection, iter_batches=True, batch_size=BATCH_ROWS)


def psycopg_cursor(connection: Any, table: Table, query: str) -> Iterator[Frame]:
    """psycopg fetches from a cursor on the server."""
    with connection.transaction(), connection.cursor("framehaul_batches") as cursor:
        cursor.execute(query)
        while rows := cursor.fetchmany(BATCH_ROWS):
            yield pl.DataFrame(rows, schema=table.column_names, orient="row")


def connectorx_stream(address: str, _: Table, query: str) -> Iterator[Frame]:
    """ConnectorX gives batches of Arrow as they come."""
    batches: Any = connectorx.read_sql(address, query, return_type="arrow_stream", batch_size=BATCH_ROWS)
    yield from map(pl.DataFrame, batches)


def ibis_batches(backend: Any, table: Table, _: str) -> Iterator[Frame]:
    """Ibis makes Arrow of so many rows as they come."""
    yield from map(pl.DataFrame, table_by_ibis(backend, table).to_pyarrow_batches(chunk_size=BATCH_ROWS))


def connect_stream(client: Any, _: Table, query: str) -> Iterator[Frame]:
    """clickhouse-connect makes a frame of each block."""
    with client.query_df_stream(query) as stream:
        yield from stream


def connect_df_arrow_stream(client: Any, _: Table, query: str) -> Iterator[Frame]:
    """clickhouse-connect makes a Polars frame of each batch of Arrow."""
    with client.query_df_arrow_stream(query, dataframe_library="polars") as stream:
        yield from stream


def driver_iterator(client: Any, table: Table, query: str) -> Iterator[Frame]:
    """clickhouse-driver gives rows as blocks come."""
    for rows in client.execute_iter(query, chunk_size=BATCH_ROWS):
        yield pl.DataFrame(rows, schema=table.column_names, orient="row")


IBIS = "Ibis to_pyarrow_batches(chunk_size=)"
PANDAS, POLARS, STREAMED = (
    "pandas.read_sql(chunksize=)",
    "polars.read_database(iter_batches=True)",
    "stream_results=True",
)
WAYS = (
    Way("pandas_chunksize", "postgres", "sqlalchemy", PANDAS, pandas_chunks),
    Way("pandas_chunksize_streamed", "postgres", "sqlalchemy", f"{PANDAS}, {STREAMED}", streamed(pandas_chunks)),
    Way("polars_iter_batches", "postgres", "sqlalchemy", POLARS, polars_batches),
    Way("polars_iter_batches_streamed", "postgres", "sqlalchemy", f"{POLARS}, {STREAMED}", streamed(polars_batches)),
    Way("polars_iter_batches_adbc", "postgres", "adbc", f"{POLARS}, ADBC", polars_batches),
    Way("psycopg_cursor", "postgres", "psycopg", "psycopg, a named cursor's fetchmany", psycopg_cursor),
    Way("connectorx_stream", "postgres", "address", "ConnectorX, return_type=arrow_stream", connectorx_stream),
    Way("ibis_batches", "postgres", "ibis_postgres", IBIS, ibis_batches),
    Way("ibis_batches_clickhouse", "clickhouse", "ibis_clickhouse", IBIS, ibis_batches),
    Way("connect_df_stream", "clickhouse", "clickhouse_connect", "clickhouse-connect query_df_stream", connect_stream),
    Way("connect_df_arrow_stream", "clickhouse", "clickhouse_connect", "clickhouse-connect query_df_arrow_stream",
        connect_df_arrow_stream),
    Way("driver_execute_iter", "clickhouse", "clickhouse_driver", "clickhouse-driver execute_iter", driver_iterator),
    *(
        Way(f"pandas_chunksize_streamed_{client}", "clickhouse", client, f"{PANDAS}, {STREAMED}, {DRIVERS[client]}",
            streamed(pandas_chunks))
        for client in ("clickhouse_sqlalchemy", "clickhouse_connect_sqlalchemy")
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
            said = taken(way.frames(client, table), table)
            usage = meter.stop()
    answer.send(said | {"peak_rss_bytes": usage.peak_rss_bytes})
