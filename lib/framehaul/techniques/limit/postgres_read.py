"""What PostgreSQL can send, thrown away by the client. Left out: decoding, and every dataframe."""

from __future__ import annotations

from typing import Any

import psycopg

from framehaul.schema import Table
from framehaul.techniques.registry import technique


@technique(family="server", label="limit: COPY TO STDOUT, text, discarded (no decoding)")
def none_psycopg_copy_text_discarded(connection: psycopg.Connection[Any], table: Table) -> int:
    """PostgreSQL's own text format; gives the number of bytes thrown away."""
    statement = f"COPY {table.postgres_name} ({table.postgres_columns}) TO STDOUT"
    with connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        return sum(map(len, copy))


@technique(family="server", label="limit: COPY TO STDOUT (FORMAT binary), discarded (no decoding)")
def none_psycopg_copy_binary_discarded(connection: psycopg.Connection[Any], table: Table) -> int:
    """PostgreSQL's binary format; gives the number of bytes thrown away."""
    statement = f"COPY {table.postgres_name} ({table.postgres_columns}) TO STDOUT WITH (FORMAT binary)"
    with connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        return sum(map(len, copy))


@technique(family="server", label="limit: SELECT serialised as binary inside the server (no wire, no decoding)")
def none_psycopg_serialize(connection: psycopg.Connection[Any], table: Table) -> int:
    """EXPLAIN ANALYZE runs the scan and the output functions and sends nothing; gives the number of rows.

    https://www.postgresql.org/docs/18/sql-explain.html, option SERIALIZE
    """
    query = f"SELECT {table.postgres_columns} FROM {table.postgres_name}"
    plan: Any = connection.execute(
        f"EXPLAIN (ANALYZE, SERIALIZE BINARY, TIMING OFF, BUFFERS OFF, FORMAT JSON) {query}".encode()
    ).fetchone()
    return int(plan[0][0]["Plan"]["Actual Rows"])
