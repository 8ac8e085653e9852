"""Replace all rows of a table by a frame, atomically, with a technique that appends over psycopg or http.client."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

import psycopg

from framehaul.data.schema import Table
from framehaul.errors import TableError, UnavailableError
from framehaul.techniques.clients import UTF8
from framehaul.techniques.contract import REPLACED, REPLACED_BESIDE, REPLACED_IN_TRANSACTION
from framehaul.techniques.registry import Technique


@contextmanager
def emptied(connection: psycopg.Connection[Any], table: Table) -> Iterator[Table]:
    """Truncate a table in a transaction that lasts as long as the block; an error in the block restores the rows."""
    # Other sessions wait for the end of the transaction: https://www.postgresql.org/docs/18/sql-truncate.html
    with connection.transaction():
        connection.execute(UTF8)
        heirs = "SELECT FROM pg_inherits JOIN pg_class ON oid = inhparent WHERE relkind = 'r' AND oid = to_regclass(%s)"
        if connection.execute(heirs, (table.postgres_name,)).fetchone() is not None:
            raise TableError(f"tables inherit from {table.postgres_name}, and would lose their rows: replace theirs")
        connection.execute(f"TRUNCATE {table.postgres_name}".encode())
        yield table


def replacing(technique: Technique) -> Technique:
    """Return the technique with the frame in place of all rows; raises UnavailableError unless its client can."""
    if technique.contract == REPLACED:  # by the technique itself
        return replace(technique, contract=REPLACED_BESIDE)
    room: Callable[[Any, Table], AbstractContextManager[Table]] = emptied
    label = f"TRUNCATE, {technique.label}, in one transaction".replace(", in one transaction, from", ", from")
    contract = REPLACED_IN_TRANSACTION
    if technique.client == "http_client":
        from framehaul.techniques.beyond.clickhouse_write import exchanged  # its module loads drivers of ClickHouse

        room, contract = exchanged, REPLACED_BESIDE
        label = f"{technique.label}, into a new table, then EXCHANGE TABLES"
    elif technique.client != "psycopg":
        raise UnavailableError("only a technique over one connection of psycopg or http.client replaces all rows")

    @wraps(technique.function)
    def write(connection: Any, table: Table, frame: Any) -> None:
        with room(connection, table) as new_or_emptied:
            technique.function(connection, new_or_emptied, frame)

    return replace(technique, function=write, label=label, contract=contract)
