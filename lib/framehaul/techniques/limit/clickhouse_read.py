"""What ClickHouse can send, thrown away by the client. Left out: decoding, and every dataframe."""

from __future__ import annotations

from framehaul.clients import HttpConnection
from framehaul.schema import Table
from framehaul.techniques.registry import technique


def discard(connection: HttpConnection, query: str, **settings: str | int) -> int:
    """Read a response into the same memory over and over; gives its length in bytes."""
    response, scratch, total = connection.post(query, settings=settings), bytearray(1 << 20), 0
    while count := response.readinto(scratch):
        total += count
    return total


@technique(family="server", label="limit: SELECT ... FORMAT Native, discarded (no decoding)")
def none_http_client_native_discarded(connection: HttpConnection, table: Table) -> int:
    """ClickHouse's own format, the least work for the server."""
    return discard(connection, f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name} FORMAT Native")


@technique(family="server", label="limit: SELECT ... FORMAT ArrowStream, discarded (no decoding)")
def none_http_client_arrow_discarded(connection: HttpConnection, table: Table) -> int:
    """What the fastest readers read: UUIDs as text, dictionaries, the native writer, no compression."""
    return discard(
        connection,
        f"SELECT {table.clickhouse_columns_uuid_as_text} FROM {table.clickhouse_name} FORMAT ArrowStream",
        output_format_arrow_string_as_string=1,
        output_format_arrow_compression_method="none",
        output_format_arrow_use_native_writer=1,
        output_format_arrow_low_cardinality_as_dictionary=1,
    )
