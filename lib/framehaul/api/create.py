"""Create the table of a frame."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from framehaul.api.derive import derive
from framehaul.api.lookup import clickhouse_name, exists, postgres_name
from framehaul.data.schema import COMMENT, Table, quote_clickhouse_text
from framehaul.techniques.clients import UTF8, HttpConnection

if TYPE_CHECKING:
    import pandas as pd
    import psycopg

type Client = psycopg.Connection[Any] | HttpConnection
type Frame = pl.DataFrame | pd.DataFrame
LOG = logging.getLogger("framehaul")


def unmarked(statement: str) -> str:
    """Return a CREATE TABLE for a table of a user, which later runs must not drop."""
    return statement.replace(f"\nCOMMENT {quote_clickhouse_text(COMMENT)}", "")


def derived_table(client: Client, frame: Frame, table: str, create: bool | Sequence[str]) -> tuple[Table, str]:
    """Return the table for a frame, and its CREATE TABLE; `create` may name the columns of its key.

    Raises FrameError for what one of the servers cannot hold, and TableError for a name that is none.
    """
    content = frame.to_arrow() if isinstance(frame, pl.DataFrame) else pa.Table.from_pandas(frame, preserve_index=False)
    key = [create] if isinstance(create, str) else [*create] if isinstance(create, Sequence) else []
    reference = clickhouse_name(table, client.database) if isinstance(client, HttpConnection) else postgres_name(table)
    relation = replace(derive(content, "created", key).table, reference=reference)
    is_postgres = not isinstance(client, HttpConnection)
    return relation, relation.postgres_ddl if is_postgres else unmarked(relation.clickhouse_ddl)


@contextlib.contextmanager
def created(client: Client, frame: Frame, table: str, create: bool | Sequence[str]) -> Iterator[str]:
    """Create a table that is missing, and yield the name of the table to fill; it is gone again if the block fails.

    ClickHouse fills it under another name, so that nobody else's rows are in it.
    """
    if not create or exists(client, table):
        yield table
        return
    relation, statement = derived_table(client, frame, table, create)
    LOG.info("%s", statement)
    if not isinstance(client, HttpConnection):
        with client.transaction():
            client.execute(UTF8)
            client.execute(statement.encode())
            yield table
        return
    new = relation.renamed(f"framehaul {secrets.token_hex(8)}")
    try:
        client.post(unmarked(new.clickhouse_ddl)).read()
        yield new.reference
        client.post(f"RENAME TABLE {new.reference} TO {relation.reference}").read()
    except BaseException:
        client.post(f"DROP TABLE IF EXISTS {new.reference}").read()
        raise
