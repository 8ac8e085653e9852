"""Create the table of a frame."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from framehaul.api.derive import derive
from framehaul.api.lookup import Relation, clickhouse_name, exists, postgres_name
from framehaul.data.schema import COMMENT, Table, quote_clickhouse_text
from framehaul.techniques.clients import HttpConnection

if TYPE_CHECKING:
    import pandas as pd
    import psycopg

type Client = psycopg.Connection[Any] | HttpConnection
type Frame = pl.DataFrame | pd.DataFrame
LOG = logging.getLogger("framehaul")
MARK = f"\nCOMMENT {quote_clickhouse_text(COMMENT)}"
"""The clause that marks a table as one that a later run of the studies may drop."""


def unmarked(statement: str) -> str:
    """Return a CREATE TABLE for a table of a user, which later runs must not drop."""
    return statement.replace(MARK, "")


def derived_table(client: Client, frame: Frame, table: str, create: bool | Sequence[str]) -> tuple[Relation, str]:
    """Return the table for a frame, and its CREATE TABLE; `create` may name the columns of its key.

    A column may be NULL where the frame holds NULL. Raises FrameError for what one of the servers cannot hold, and
    TableError for a name that is none.
    """
    content = frame.to_arrow() if isinstance(frame, pl.DataFrame) else pa.Table.from_pandas(frame, preserve_index=False)
    key = [create] if isinstance(create, str) else [*create] if isinstance(create, Sequence) else []
    derived = derive(content, "created", key).table
    if isinstance(client, HttpConnection):
        relation = _named(derived, clickhouse_name(table, client.database))
        return relation, unmarked(relation.clickhouse_ddl)
    relation = _named(derived, postgres_name(table))
    return relation, relation.postgres_ddl


def _named(table: Table, reference: str) -> Relation:
    return Relation(table.name, table.columns, table.key, reference=reference)


@contextlib.contextmanager
def created(client: Client, frame: Frame, table: str, create: bool | Sequence[str]) -> Iterator[None]:
    """Create a table that is missing for the block, and remove it if the block fails; without `create` do nothing."""
    if not create or exists(client, table):
        yield
        return
    relation, statement = derived_table(client, frame, table, create)
    LOG.info("%s", statement)
    if not isinstance(client, HttpConnection):
        with client.transaction():
            client.execute(statement.encode())
            yield
        return
    client.post(statement).read()
    try:
        yield
    except BaseException:
        client.post(f"DROP TABLE {relation.reference}").read()
        raise
