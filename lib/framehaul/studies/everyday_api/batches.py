"""Ways of reading that give a table frame by frame, so that it need not fit into memory.

Each is measured in a process of its own, whose memory nothing else has used.
"""

from __future__ import annotations

import itertools
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


@dataclass(frozen=True)
class Way:
    """A call that promises batches; `give` takes an open client and a table."""

    name: str
    database: Database
    client: str
    label: str
    give: Callable[[Any, Table], Iterator[Frame]]
    link: str
    usual: bool = True
    """Whether a look has it: the others do the same by another driver."""


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


def psycopg_stream(connection: Any, table: Table) -> Iterator[Frame]:
    """psycopg gives each row as it comes."""
    with connection.cursor() as cursor:
        rows = cursor.stream(_query(table))
        while some := list(itertools.islice(rows, BATCH_ROWS)):
            yield pl.DataFrame(some, schema=table.column_names, orient="row")


def psycopg2_cursor(connection: Any, table: Table) -> Iterator[Frame]:
    """psycopg2 fetches from a cursor on the server."""
    with connection, connection.cursor("framehaul_batches") as cursor:
        cursor.execute(_query(table))
        while rows := cursor.fetchmany(BATCH_ROWS):
            yield pl.DataFrame(rows, schema=table.column_names, orient="row")


def connectorx_stream(address: str, table: Table) -> Iterator[Frame]:
    """ConnectorX gives batches of Arrow as they come."""
    batches: Any = connectorx.read_sql(address, _query(table), return_type="arrow_stream", batch_size=BATCH_ROWS)
    for batch in batches:
        yield pl.DataFrame(batch)


def clickhouse_chunks(connection: Any, table: Table) -> Iterator[Frame]:
    """pandas cuts what the dialect gives."""
    yield from pd.read_sql_query(_clickhouse_query(table), connection, chunksize=BATCH_ROWS)


def clickhouse_chunks_streamed(connection: Any, table: Table) -> Iterator[Frame]:
    """pandas cuts what the dialect gives, which is asked to stream."""
    yield from clickhouse_chunks(connection.execution_options(stream_results=True), table)


def clickhouse_batches_streamed(connection: Any, table: Table) -> Iterator[Frame]:
    """Polars cuts what the dialect gives, which is asked to stream."""
    streaming = connection.execution_options(stream_results=True)
    yield from pl.read_database(_clickhouse_query(table), streaming, iter_batches=True, batch_size=BATCH_ROWS)


def connect_stream(client: Any, table: Table) -> Iterator[Frame]:
    """clickhouse-connect makes a frame of each block."""
    with client.query_df_stream(_clickhouse_query(table)) as stream:
        yield from stream


def connect_df_arrow_stream(client: Any, table: Table) -> Iterator[Frame]:
    """clickhouse-connect makes a Polars frame of each batch of Arrow."""
    with client.query_df_arrow_stream(_clickhouse_query(table), dataframe_library="polars") as stream:
        yield from stream


def connect_row_blocks(client: Any, table: Table) -> Iterator[Frame]:
    """clickhouse-connect makes rows of each block."""
    with client.query_row_block_stream(_clickhouse_query(table)) as stream:
        for rows in stream:
            yield pl.DataFrame(rows, schema=table.column_names, orient="row")


def connect_arrow_stream(client: Any, table: Table) -> Iterator[Frame]:
    """clickhouse-connect gives batches of Arrow as they come."""
    with client.query_arrow_stream(_clickhouse_query(table)) as stream:
        for batch in stream:
            yield pl.DataFrame(batch)


def ibis_batches(backend: Any, table: Table) -> Iterator[Frame]:
    """Ibis makes Arrow of so many rows as they come."""
    for batch in table_by_ibis(backend, table).to_pyarrow_batches(chunk_size=BATCH_ROWS):
        yield pl.DataFrame(batch)


def driver_iterator(client: Any, table: Table) -> Iterator[Frame]:
    """clickhouse-driver gives rows as blocks come."""
    for rows in client.execute_iter(_clickhouse_query(table), chunk_size=BATCH_ROWS):
        yield pl.DataFrame(rows, schema=table.column_names, orient="row")


PANDAS = "https://pandas.pydata.org/docs/user_guide/io.html#querying"
POLARS = "https://docs.pola.rs/api/python/stable/reference/api/polars.read_database.html"
IBIS = "https://ibis-project.org/reference/expression-tables#ibis.expr.types.relations.Table.to_pyarrow_batches"
DIALECT = "https://clickhouse-sqlalchemy.readthedocs.io/en/latest/features.html#execution-options"
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
    Way("psycopg_stream", "postgres", "psycopg", "psycopg, a cursor's stream", psycopg_stream,
        "https://www.psycopg.org/psycopg3/docs/api/cursors.html#psycopg.Cursor.stream", usual=False),
    Way(
        "psycopg2_cursor", "postgres", "psycopg2", "psycopg2, a named cursor's fetchmany", psycopg2_cursor,
        "https://www.psycopg.org/docs/usage.html#server-side-cursors", usual=False,
    ),
    Way(
        "connectorx_stream", "postgres", "address", "ConnectorX, return_type=arrow_stream", connectorx_stream,
        "https://sfu-db.github.io/connector-x/api.html", usual=False,
    ),
    Way("ibis_batches", "postgres", "ibis_postgres", "Ibis to_pyarrow_batches(chunk_size=)", ibis_batches, IBIS,
        usual=False),
    Way("ibis_batches_clickhouse", "clickhouse", "ibis_clickhouse", "Ibis to_pyarrow_batches(chunk_size=)",
        ibis_batches, IBIS, usual=False),
    Way("connect_df_stream", "clickhouse", "clickhouse_connect", "clickhouse-connect query_df_stream", connect_stream,
        CONNECT),
    Way(
        "connect_arrow_stream", "clickhouse", "clickhouse_connect", "clickhouse-connect query_arrow_stream",
        connect_arrow_stream, CONNECT,
    ),
    Way("connect_df_arrow_stream", "clickhouse", "clickhouse_connect", "clickhouse-connect query_df_arrow_stream",
        connect_df_arrow_stream, CONNECT, usual=False),
    Way("connect_row_block_stream", "clickhouse", "clickhouse_connect", "clickhouse-connect query_row_block_stream",
        connect_row_blocks, CONNECT, usual=False),
    Way(
        "driver_execute_iter", "clickhouse", "clickhouse_driver", "clickhouse-driver execute_iter", driver_iterator,
        "https://clickhouse-driver.readthedocs.io/en/latest/features.html#streaming-results",
    ),
    *(
        Way(f"{name}_{client}", "clickhouse", client, f"{label}, {DRIVERS[client]}", give, DIALECT, usual=False)
        for client in ("clickhouse_sqlalchemy", "clickhouse_sqlalchemy_http", "clickhouse_connect_sqlalchemy")
        for name, label, give in (
            ("pandas_chunksize", "pandas.read_sql(chunksize=)", clickhouse_chunks),
            ("pandas_chunksize_streamed", "pandas.read_sql(chunksize=), stream_results=True",
             clickhouse_chunks_streamed),
            ("polars_iter_batches_streamed", "polars.read_database(iter_batches=True), stream_results=True",
             clickhouse_batches_streamed),
        )
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
