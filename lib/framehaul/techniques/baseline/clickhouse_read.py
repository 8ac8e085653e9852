"""Read from ClickHouse and discard the response, without decoding and without a dataframe."""

from __future__ import annotations

from framehaul.data.schema import Table
from framehaul.techniques.beyond.clickhouse_read import ARROW_DICTIONARY, LARGE_BLOCKS, NATIVE
from framehaul.techniques.clients import HttpConnection, Settings
from framehaul.techniques.registry import technique


def discard(connection: HttpConnection, query: str, settings: Settings) -> int:
    """Read a response into one buffer, which each part overwrites; return its length in bytes."""
    response, scratch, total = connection.post(query, settings=settings), bytearray(1 << 20), 0
    while count := response.readinto(scratch):
        total += count
    return total


@technique("server", "baseline: SELECT ... FORMAT Native, discarded (no decoding)")
def none_http_client_native_discarded(connection: HttpConnection, table: Table) -> int:
    """Read ClickHouse's own format, which is the least work for the server."""
    query = f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name} FORMAT Native"
    return discard(connection, query, NATIVE | LARGE_BLOCKS)


@technique("server", "baseline: SELECT ... FORMAT ArrowStream, discarded (no decoding)")
def none_http_client_arrow_discarded(connection: HttpConnection, table: Table) -> int:
    """Read the format of the fastest readers: UUIDs as text, dictionaries, the native writer, no compression."""
    query = f"SELECT {table.clickhouse_columns_as_in_frames} FROM {table.clickhouse_name} FORMAT ArrowStream"
    return discard(connection, query, ARROW_DICTIONARY)
