"""CREATE TABLE as its reader has edited it: taken when it makes our table with the same columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import psycopg

from framehaul.data.schema import COMMENT, Table, quote_clickhouse_text, quote_postgres_text
from framehaul.errors import ServerError
from framehaul.servers import Servers
from framehaul.servers.tables import ClickHouseTables, PostgresTables
from framehaul.studies.own_data.files import DataError
from framehaul.techniques.registry import Database

STATEMENT = re.compile(
    r'\s*CREATE\s+TABLE\s+("(?:[^"]|"")+"|`(?:[^`\\]|\\.)+`|\w+)\s*(\(.*?)\s*;?\s*', re.DOTALL | re.IGNORECASE
)
QUOTED = re.compile(r"""'(?:[^'\\]|''|\\.)*'|"(?:[^"]|"")*"|`(?:[^`\\]|\\.)*`""")


OURS = f"\nCOMMENT {quote_clickhouse_text(COMMENT)}"


def unmarked(statement: str) -> str:
    """A CREATE TABLE to be taken away: without what says that its table is ours, and that the next run may drop it."""
    return statement.replace(OURS, "")


def edited(tables: Mapping[Database, Table], postgres_ddl: str, clickhouse_ddl: str) -> dict[Database, Table]:
    """The tables with these statements in place of those that follow from columns; empty ones change nothing.

    Raises DataError for what is not one CREATE TABLE of this table's name.
    """
    clickhouse = _body("clickhouse_ddl", clickhouse_ddl, tables["clickhouse"])
    if clickhouse and COMMENT not in clickhouse:
        clickhouse += OURS
    return {
        "postgres": replace(tables["postgres"], postgres_body=_body("postgres_ddl", postgres_ddl, tables["postgres"])),
        "clickhouse": replace(tables["clickhouse"], clickhouse_body=clickhouse),
    }


def _body(parameter: str, statement: str, table: Table) -> str:
    """What stands behind the table's name, without the semicolon at the end."""
    if not statement.strip():
        return ""
    match = STATEMENT.fullmatch(statement)
    if match is None or ";" in QUOTED.sub("", match[2]):
        raise DataError(f"{parameter} must be one statement, CREATE TABLE {table.name} (...), as the one shown")
    if match[1].strip('"`') != table.name:
        raise DataError(
            f"{parameter} makes a table {match[1]}: it has to be {table.name}, the only one that is touched"
        )
    return match[2]


def as_made(tables: Mapping[Database, Table], both: Servers) -> dict[Database, Table]:
    """The tables as their databases make them: an edited statement may have another key or order.

    Raises DataError when a server refuses a statement, or makes other columns of it.
    """
    postgres, clickhouse = tables["postgres"], tables["clickhouse"]
    if postgres.postgres_body:
        postgres = _in_postgres(postgres, PostgresTables(both.postgres))
    if clickhouse.clickhouse_body:
        clickhouse = _in_clickhouse(clickhouse, ClickHouseTables(both.clickhouse))
    return {"postgres": postgres, "clickhouse": clickhouse}


def _in_postgres(table: Table, tables: PostgresTables) -> Table:
    try:
        tables.create(table)
    except psycopg.Error as error:
        raise DataError(f"postgres_ddl: PostgreSQL answered: {' '.join(str(error).split())}") from error
    name = quote_postgres_text(table.postgres_name)
    try:
        columns = tables.run(
            f"SELECT attname FROM pg_attribute WHERE attrelid = to_regclass({name}) AND attnum > 0 AND NOT attisdropped"
        )
        key = tables.run(
            "SELECT attname FROM pg_constraint, unnest(conkey) WITH ORDINALITY AS part (number, place) "
            "JOIN pg_attribute ON attnum = number "
            f"WHERE contype = 'p' AND conrelid = to_regclass({name}) AND attrelid = conrelid ORDER BY place"
        )
    finally:
        tables.drop(table)
    _check_columns("postgres_ddl", {row[0] for row in columns}, table)
    return replace(table, key=tuple(row[0] for row in key))


def _in_clickhouse(table: Table, tables: ClickHouseTables) -> Table:
    try:
        tables.create(table)
    except ServerError as error:
        raise DataError(f"clickhouse_ddl: {error}") from error
    where = f"database = currentDatabase() AND table = {quote_clickhouse_text(table.name)}"
    try:
        listed = tables.rows(f"SELECT name, type FROM system.columns WHERE {where}")
        order = tables.rows(f"SELECT sorting_key FROM system.tables WHERE {where.replace('table =', 'name =')}")[0][0]
    finally:
        tables.drop(table)
    types = dict(listed)
    _check_columns("clickhouse_ddl", set(types), table)
    columns = tuple(
        replace(column, low_cardinality=types[column.name].startswith("LowCardinality(")) for column in table.columns
    )
    # An order by expressions is none that a frame could be brought into beforehand.
    sort = tuple(part.strip("`") for part in order.split(", ") if order)
    known = all(name in table.column_names for name in sort)
    return replace(table, columns=columns, sort=sort if known else ())


def _check_columns(parameter: str, columns: set[str], table: Table) -> None:
    missing, added = set(table.column_names) - columns, columns - set(table.column_names)
    if missing or added:
        what = [f"lacks {', '.join(sorted(missing))}"] * bool(missing) + [f"adds {', '.join(sorted(added))}"] * bool(
            added
        )
        raise DataError(f"{parameter} {' and '.join(what)}: it has to have the frame's columns, and no others")
