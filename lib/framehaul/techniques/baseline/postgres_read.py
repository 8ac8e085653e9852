"""Read from PostgreSQL and discard the response, without decoding and without a dataframe."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import psycopg

from framehaul.data.schema import Table
from framehaul.techniques.beyond.postgres_read import page_ranges, pages_query
from framehaul.techniques.registry import technique


@technique("server", "baseline: COPY TO STDOUT, text, discarded (no decoding)")
def none_psycopg_copy_text_discarded(connection: psycopg.Connection[Any], table: Table, form: str = "text") -> int:
    """Read PostgreSQL's text format; return the number of bytes."""
    statement = f"COPY {table.postgres_name} ({table.postgres_columns}) TO STDOUT WITH (FORMAT {form})"
    with connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        return sum(map(len, copy))


@technique("server", "baseline: COPY TO STDOUT (FORMAT binary), discarded (no decoding)")
def none_psycopg_copy_binary_discarded(connection: psycopg.Connection[Any], table: Table) -> int:
    """Read PostgreSQL's binary format; return the number of bytes."""
    return none_psycopg_copy_text_discarded(connection, table, "binary")


@technique("server", "baseline: COPY TO STDOUT (FORMAT binary) over two connections, discarded (no decoding)")
async def none_asyncpg_copy_binary_two_connections(connections: tuple[Any, Any], table: Table) -> int:
    """Read half of the pages over each connection; return the number of bytes."""
    pages = await connections[0].fetchval(pages_query(table))

    async def discard(connection: asyncpg.Connection[Any], condition: str) -> int:
        sizes = []

        async def take(data: bytes) -> None:
            sizes.append(len(data))

        query = f"SELECT {table.postgres_columns} FROM {table.postgres_name} WHERE {condition}"
        await connection.copy_from_query(query, output=take, format="binary")
        return sum(sizes)

    return sum(await asyncio.gather(*map(discard, connections, page_ranges(pages))))


@technique("server", "baseline: SELECT serialised as binary inside the server (no wire, no decoding)")
def none_psycopg_serialize(connection: psycopg.Connection[Any], table: Table) -> int:
    """Run the scan and the output functions by EXPLAIN ANALYZE, which sends nothing; return the number of rows."""
    # https://www.postgresql.org/docs/18/sql-explain.html, option SERIALIZE
    query = f"SELECT {table.postgres_columns} FROM {table.postgres_name}"
    explain = f"EXPLAIN (ANALYZE, SERIALIZE BINARY, TIMING OFF, BUFFERS OFF, FORMAT JSON) {query}"
    plan: Any = connection.execute(explain.encode()).fetchone()
    return int(plan[0][0]["Plan"]["Actual Rows"])
