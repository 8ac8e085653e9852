"""Look up a table, or the result of a query, as the server describes it."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

import polars as pl
import polars.selectors as cs
import pyarrow as pa

from framehaul.api.derive import IN_NESTED, types_inside
from framehaul.api.types import POLARS_DIGITS, ServerColumn, arguments, clickhouse_column, postgres_column
from framehaul.codecs.native_format import NOT_DECODED
from framehaul.data import schema
from framehaul.data.frames import is_list, listed
from framehaul.data.schema import Column, ColumnType, Table, quote_clickhouse, quote_postgres
from framehaul.errors import FrameError, TableError
from framehaul.techniques.clients import HttpConnection, QueryError, in_utf8

if TYPE_CHECKING:
    import pandas as pd
    import psycopg


@dataclass(frozen=True)
class Declared:
    """A column as the server declares it; its type need not be one that framehaul supports."""

    name: str
    kind: str
    nullable: bool
    labels: tuple[str, ...] | None = None
    """The labels of an enum of PostgreSQL; None where the server is ClickHouse."""

    def column(self, sent: pa.DataType | None = None) -> ServerColumn:
        """Return the column as it is sent and received; raises TableError for a type that is not supported.

        `sent` is the type of bytes, which ClickHouse's String holds, of decimals, whose digits a numeric of PostgreSQL
        need not name, or of a nested column, which jsonb holds as documents.
        """
        if self.labels is None:
            element = sent.value_type if sent is not None and is_list(sent) else sent
            return clickhouse_column(self.name, self.kind, binary="binary" in str(element))
        if self.kind == "numeric" and sent is not None and pa.types.is_decimal(sent):
            return postgres_column(self.name, f"numeric({sent.precision},{sent.scale})", nullable=self.nullable)
        if self.kind == "jsonb" and sent is not None and pa.types.is_nested(sent):
            types = types_inside(sent)
            if types is None:
                raise TableError(f"column {self.name} ({sent}) is not carried as jsonb: {IN_NESTED}")
            if types.element and types.postgres != "jsonb":  # a list of scalars, which is an array elsewhere
                types = schema.nested_list_types(types.element)
            return ServerColumn(Column(self.name, schema.kind_of(types), self.nullable, exactly=types))
        return postgres_column(self.name, self.kind, nullable=self.nullable, labels=self.labels)


@dataclass(frozen=True)
class Target:
    """A table that can be written to."""

    reference: str
    columns: Mapping[str, Declared]
    required: frozenset[str]
    """Columns that may not be NULL and have no default."""
    computed: frozenset[str]
    """Columns that the server fills, and no write may name."""
    key: tuple[str, ...]
    partition: str = ""
    """ClickHouse's expression for partitions; it and those below are empty for PostgreSQL."""
    engine: str = ""
    deduplicates: bool = False
    """Whether ClickHouse drops a block that it has had before."""
    replaced: frozenset[str] = frozenset()
    """The columns that an upsert of ClickHouse needs: rows are replaced whole, and by the greater version."""

    def relation(self, frame: pl.DataFrame | pd.DataFrame) -> tuple[Table, list[ServerColumn]]:
        """Return the table with the columns of a frame, in their order.

        Raises TableError for a column that the table lacks or computes, for one that it needs, and for a type that is
        not supported.
        """
        names = [str(name) for name in frame.columns]
        problems = {
            "in the frame more than once": sorted({name for name in names if names.count(name) > 1}),
            "not in the table": [name for name in names if name not in self.columns and name not in self.computed],
            "computed by the server": [name for name in names if name in self.computed],
            "needed by the table": [name for name in self.columns if name in self.required and name not in names],
        }
        if said := listed(problems):
            raise TableError(f"the frame does not fit table {self.reference}, columns {said}")
        if isinstance(frame, pl.DataFrame):  # other columns than these have the types of the server's
            special = frame.select(cs.binary() | cs.nested() | cs.decimal()).clear().to_arrow()
            sent = dict(zip(special.column_names, special.schema.types, strict=True))
        else:
            sent = {str(name): _pandas_type(values, self.columns[str(name)].kind) for name, values in frame.items()}
        columns = [self.columns[name].column(sent.get(name)) for name in names]
        key = self.key if set(self.key) <= set(names) else ()
        month = re.fullmatch(r"toYYYYMM\(`?(\w+)`?\)", self.partition)
        days = {one.column.name for one in columns if one.column.type is ColumnType.DATE}
        by_month = month[1] if month and month[1] in days else None
        name = self.reference.rpartition(".")[2].strip('"`')
        relation = Table(name, tuple(one.column for one in columns), key, by_month, reference=self.reference)
        return relation, columns


def _pandas_type(values: pd.Series[Any], kind: str) -> pa.DataType | None:
    import pandas as pd

    if isinstance(values.dtype, pd.ArrowDtype):
        return values.dtype.pyarrow_dtype
    first = next(iter(values.dropna()), None) if values.dtype == object else None
    if isinstance(first, Decimal):
        return pa.array([one for one in values if isinstance(one, Decimal) and one.is_finite()]).type
    if isinstance(first, bytes):
        return pa.binary()
    if isinstance(first, list) and isinstance(next(filter(None, first), None), bytes):
        return pa.list_(pa.binary())
    if kind != "jsonb" or not isinstance(first, dict | list | tuple):
        return None
    try:
        return pa.array(values, from_pandas=True).type
    except pa.ArrowException as error:
        raise TableError(f"column {values.name} is of no one type: {error}; give it a dtype of Arrow") from error


POSTGRES_COLUMNS = """
SELECT relkind, attrelid::regclass::text, array_position((indkey::int2[])[0:indnkeyatts - 1], attnum), attname::text,
    attnotnull, attgenerated != '' OR attidentity = 'a', atthasdef OR attidentity != '',
    format_type(atttypid, atttypmod), atttypid >= 10000
FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid LEFT JOIN pg_index ON indrelid = attrelid AND indisprimary
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
"""A query for the columns of a table. The last field is true for a type that is not built in: `USER_TYPES` resolves it.

https://www.postgresql.org/docs/18/system-catalog-initial-data.html#SYSTEM-CATALOG-OID-ASSIGNMENT
"""
# A domain is what it is of: its values look the same in binary formats, and the server checks them.
USER_TYPES = """
WITH RECURSIVE resolved (attnum, typid, typmod) AS (
    SELECT attnum, atttypid, atttypmod FROM pg_attribute
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT attnum, typbasetype, CASE WHEN typtypmod >= 0 THEN typtypmod ELSE typmod END
    FROM resolved JOIN pg_type ON pg_type.oid = typid WHERE typtype = 'd'
)
SELECT format_type(typid, typmod),
    ARRAY(SELECT enumlabel::text FROM pg_enum WHERE enumtypid = typid ORDER BY enumsortorder)
FROM resolved JOIN pg_type ON pg_type.oid = typid AND typtype != 'd' ORDER BY attnum
"""
POSTGRES_TYPES = """
SELECT format_type(given.oid, modifier),
    ARRAY(SELECT enumlabel::text FROM pg_enum WHERE enumtypid = given.oid ORDER BY enumsortorder)
FROM unnest(%s::oid[], %s::int[]) WITH ORDINALITY AS given (oid, modifier, place) ORDER BY place
"""
BUILT_IN = dict.fromkeys(("text", "date", "bytea", "uuid", "json", "jsonb", "interval", "numeric"), "") | {
    "bool": "boolean", "int2": "smallint", "int4": "integer", "int8": "bigint", "float4": "real", "float8":
    "double precision", "varchar": "character varying", "time": "time without time zone",
    "timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone",
}  # fmt: skip
"""Types of PostgreSQL, as format_type() names them where that is another name."""
WRITABLE = {"r", "p", "f"}
"""Kinds of relations that COPY writes to: tables, partitioned and foreign tables."""


def plain_cursor(connection: psycopg.Connection[Any]) -> psycopg.Cursor[tuple[Any, ...]]:
    """Return a cursor whose rows are tuples: a caller's connection may have other rows."""
    from psycopg.rows import tuple_row

    return connection.cursor(row_factory=tuple_row)


def postgres_target(connection: psycopg.Connection[Any], table: str) -> Target:
    """Return the table of this name, which means what it means in SQL; raises TableError when it cannot be written."""
    postgres_name(table)  # the server's error for another form of name would end the caller's transaction
    is_utf8 = connection.info.parameter_status("client_encoding") == "UTF8"
    with contextlib.nullcontext() if is_utf8 else in_utf8(connection), plain_cursor(connection) as cursor:
        rows = cursor.execute(POSTGRES_COLUMNS, (table,)).fetchall()
        types: list[Any] = [(one, ()) for *_, one, _ in rows]
        if any(is_of_user for *_, is_of_user in rows):
            types = cursor.execute(USER_TYPES, (table,)).fetchall()
    if not rows:
        raise TableError(f"there is no table {table} for this user and search_path; name its schema, or create it")
    kind, reference = rows[0][:2]
    if kind not in WRITABLE:
        raise TableError(f"{table} is no table that rows can be copied into (relkind {kind!r}): name the table itself")
    columns, required, computed = dict[str, Declared](), set[str](), set[str]()
    for row, (type_name, labels) in zip(rows, types, strict=True):
        name, not_null, is_computed, has_default = row[3:7]
        if is_computed:
            computed.add(name)
        else:
            columns[name] = Declared(name, type_name, not not_null, tuple(labels))
            required |= {name} if not_null and not has_default else set()
    key = tuple(name for _, name in sorted(row[2:4] for row in rows if row[2] is not None))
    return Target(reference, columns, frozenset(required), frozenset(computed), key)


def exists(client: psycopg.Connection[Any] | HttpConnection, table: str) -> bool:
    """Return whether there is a table, or anything else, of this name."""
    if isinstance(client, HttpConnection):
        return _rows(client, f"EXISTS TABLE {clickhouse_name(table, client.database)}") == [[1]]
    found = plain_cursor(client).execute("SELECT to_regclass(%s)", (postgres_name(table),)).fetchone()
    return found != (None,)


FREE_NUMERIC = replace(ColumnType.TEXT.value, postgres="numeric")
"""A numeric without digits, as of sum(bigint): its text has to be read before its digits are known."""


def with_decimals(content: pa.Table, relation: Table) -> tuple[pa.Table, Table]:
    """Return the result of a query with numerics without digits as decimals of as many places as one of them has.

    Raises FrameError for NaN, infinity and more than 38 digits.
    """
    columns = list(relation.columns)
    for at, column in enumerate(columns):
        if column.types != FREE_NUMERIC:
            continue
        texts = content.column(at).cast(pa.string())
        parts = pl.Series(values=texts).str.strip_prefix("-").str.split_exact(".", 1).struct
        whole, places = (cast("int", parts.field(f"field_{part}").str.len_chars().max() or 0) for part in range(2))
        refused = pl.Series(values=texts).str.contains("[a-z]").arg_true()
        if whole + places > POLARS_DIGITS or len(refused):
            what = f"{texts[refused[0]]} in row {refused[0]:,}" if len(refused) else f"more than {POLARS_DIGITS} digits"
            remedy = "numeric(38, 10), or to text or float8"
            raise FrameError(f"column {column.name} holds {what}, which no decimal of a frame has: cast it to {remedy}")
        columns[at] = replace(column, type=ColumnType.DECIMAL, exactly=schema.decimal_types(POLARS_DIGITS, places))
        content = content.set_column(at, column.name, texts.cast(columns[at].types.arrow))
    return content, replace(relation, columns=tuple(columns))


def described(query: str) -> str:
    """Return a statement that has the columns of a query of PostgreSQL, and no rows."""
    return f"SELECT * FROM {subquery(query)} AS framehaul_query LIMIT 0"


def postgres_result(connection: psycopg.Connection[Any], query: str) -> Table:
    """Return the result of a query as a relation that can be read.

    Raises TableError for duplicate names and for types that are not supported, and psycopg's errors for the query.
    """
    from psycopg.postgres import types  # those that are built in, whatever a user has registered

    with in_utf8(connection), plain_cursor(connection) as cursor:
        cursor.execute(described(query).encode())
        result = cursor.pgresult
        assert result is not None
        oids, modifiers = ([get(at) for at in range(result.nfields)] for get in (result.ftype, result.fmod))
        names = [column.name for column in cursor.description or ()]
        kinds: list[Any] = [
            (kind := types.get(oid)) and _kind(kind.name, modifier, is_array=oid == kind.array_oid)
            for oid, modifier in zip(oids, modifiers, strict=True)
        ]
        if None in kinds:
            kinds = cursor.execute(POSTGRES_TYPES, (oids, modifiers)).fetchall()
    return _result(query, names, kinds)


def _kind(element: str, modifier: int, *, is_array: bool) -> tuple[str, tuple[()]] | None:
    """Return a built-in type as format_type() names it, without a length or a precision of time; None for others."""
    if element not in BUILT_IN:
        return None
    kind = BUILT_IN[element] or element
    if element == "numeric" and modifier >= 0:
        # As in make_numeric_typmod of PostgreSQL's src/backend/utils/adt/numeric.c.
        precision, scale = (modifier - 4) >> 16, (((modifier - 4) & 0x7FF) ^ 1024) - 1024
        kind = f"numeric({precision},{scale})"
    return kind + "[]" * is_array, ()


def adbc_result(fields: pa.Schema, query: str) -> Table | None:
    """Return the result of a query by its columns as ADBC describes them; None where it does not name a type.

    Raises TableError for duplicate names.
    """
    kinds: list[Any] = []
    for metadata in (field.metadata or {} for field in fields):
        name, modifier = metadata.get(b"POSTGRESQL:type", b"").decode(), metadata.get(b"POSTGRESQL:typmod")
        element = name.removeprefix("_")
        has_modifier = element != "numeric" or modifier is not None
        kinds.append(_kind(element, int(modifier or -1), is_array=name != element) if has_modifier else None)
    return None if None in kinds else _result(query, fields.names, kinds)


def _result(query: str, names: list[str], kinds: Sequence[tuple[str, Sequence[str]]]) -> Table:
    check_names(names)
    columns = [
        ServerColumn(Column(name, ColumnType.TEXT, nullable=True, exactly=FREE_NUMERIC), "{0}::text")
        if kind == FREE_NUMERIC.postgres
        else postgres_column(name, kind, nullable=True, labels=tuple(labels))
        for name, (kind, labels) in zip(names, kinds, strict=True)
    ]
    source = f"{subquery(query)} AS framehaul_query"
    if any(one.select != "{0}" for one in columns):
        source = f"{_converted(columns, source, quote_postgres)} AS framehaul_query"
    return Table("query", tuple(one.column for one in columns), (), reference=source)


def subquery(query: str) -> str:
    """Return a query in parentheses, which end on a line of their own: the query may end with a comment."""
    return f"({query.strip().rstrip(';')}\n)"


def _converted(columns: list[ServerColumn], source: str, quote: Callable[[str], str]) -> str:
    """Return a subquery that selects the columns in the types in which they are received."""
    selected = (f"{one.select.format(quote(one.column.name))} AS {quote(one.column.name)}" for one in columns)
    return f"(SELECT {', '.join(selected)} FROM {source})"


def check_names(names: list[str]) -> None:
    """Raise TableError for a result without columns, or with two of one name."""
    if not names:
        raise TableError("the query has no columns: select some")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TableError(f"the query gives {', '.join(map(repr, twice))} more than once: name each column, with AS")


_TABLE = "SELECT sorting_key, partition_key, engine, engine_full FROM system.tables WHERE database = {} AND name = {}"
_COLUMNS = "SELECT name, type, default_kind FROM system.columns WHERE database = {} AND table = {} ORDER BY position"
FILLED = {"MATERIALIZED", "ALIAS"}
"""Kinds of defaults that the server computes."""


def clickhouse_target(connection: HttpConnection, table: str, given: Collection[str] | None = None) -> Target:
    """Return the table `name` or `database.name`; raises TableError when it cannot be written.

    An append of few rows or without text, of the columns `given`, needs no key where all others have a default.
    """
    reference = clickhouse_name(table, connection.database)
    if given is not None:
        with contextlib.suppress(QueryError):  # it is fast, and an error without privileges for all columns
            columns, computed, needed = _declared(_rows(connection, f"DESCRIBE TABLE {reference}"))
            if needed <= {*given}:
                return Target(reference, columns, frozenset(), computed, (), engine="table")
    database, name = _clickhouse_name(table, connection.database)
    places = schema.quote_clickhouse_text(database), schema.quote_clickhouse_text(name)
    found = _rows(connection, _TABLE.format(*places))
    if not found:
        raise TableError(f"there is no table {table} for this user in database {database}: create it, or name another")
    (sorting, partition, engine, whole_engine), *_ = found
    # As a part of the first query it takes longer.
    columns, computed, needed = _declared(_rows(connection, _COLUMNS.format(*places)))
    # ORDER BY (id) is "(id)".
    inner = re.fullmatch(r"\((\w+|`.*`)\)", sorting)
    parts = [*arguments(inner[1] if inner else sorting)]
    parts = [re.sub(r"\\(.)", r"\1", part[1:-1]) if part.startswith("`") else part for part in parts]
    key = tuple(part for part in parts if part in columns)
    replacing = re.match(r"\w*ReplacingMergeTree\((.*?)\)(?: |$)", whole_engine)
    replaced = needed | ({part.strip("`") for part in arguments(replacing[1])} & columns.keys()) if replacing else set()
    remembers = re.search(r"non_replicated_deduplication_window = [1-9]", whole_engine)
    return Target(
        reference, columns, frozenset(key) & needed, computed, key if len(key) == len(parts) else (), partition, engine,
        deduplicates=engine.startswith(("Replicated", "Shared")) or remembers is not None, replaced=frozenset(replaced),
    )  # fmt: skip


def _declared(rows: list[list[Any]]) -> tuple[dict[str, Declared], frozenset[str], set[str]]:
    """Return the columns that a write may name, and the names of those that the server fills, or without a default."""
    given = [(name, kind) for name, kind, default, *_ in rows if default not in FILLED]
    columns = {name: Declared(name, kind, "Nullable(" in kind) for name, kind in given}
    computed = frozenset(name for name, *_ in rows) - columns.keys()
    return columns, computed, {name for name, _, default, *_ in rows if not default}


def clickhouse_result(connection: HttpConnection, query: str) -> Table:
    """Return the result of a query as a relation that can be read; raises as `postgres_result` does."""
    source = subquery(query)
    rows = _rows(connection, f"DESCRIBE TABLE {source}")
    check_names([name for name, *_ in rows])
    columns = [clickhouse_column(name, kind) for name, kind, *_ in rows]
    reference = _converted(columns, source, quote_clickhouse)
    return Table("query", tuple(one.column for one in columns), (), reference=reference)


def decoded_column(name: str, kind: str) -> Column | None:
    """Return a column of a Native block; None for one that is not decoded here, or that a query has to convert."""
    with contextlib.suppress(TableError):
        column, select, _ = clickhouse_column(name, kind)
        if select == "{0}" and column.type not in NOT_DECODED and column.clickhouse_type == kind:
            return column
    return None


def postgres_name(table: str) -> str:
    """Return the name of a table as in SQL, with or without its schema; raises TableError for what is no name."""
    if not re.fullmatch(r'(("([^"\0]|"")+"|[^\W\d][\w$]*)(\.(?!$)|$)){1,2}', table):
        raise TableError(f"{table!r} is no name of a table: give name or schema.name, quoted where it has dots")
    return table


def clickhouse_name(table: str, database: str) -> str:
    """Return the name of a table with its database, quoted; raises TableError for what is no name."""
    return ".".join(map(quote_clickhouse, _clickhouse_name(table, database)))


def _clickhouse_name(table: str, database: str) -> tuple[str, str]:
    """Return database and name of a table, which may be in backticks or double quotes."""
    parts = re.findall(r'`((?:[^`\\]|\\.)+)`|"((?:[^"\\]|\\.)+)"|([^.`"]+)', table)
    names = [re.sub(r"\\(.)", r"\1", next(filter(None, part))) for part in parts]
    if len(names) not in (1, 2):
        raise TableError(f"{table!r} is no name of a table: give name or database.name, in backticks where it has dots")
    return (names[0], names[1]) if len(names) == 2 else (database, names[0])  # noqa: PLR2004


CATALOG = {"print_pretty_type_names": 0, "describe_compact_output": 0, "describe_include_subcolumns": 0}
CATALOG |= {"limit": 0, "offset": 0}  # https://clickhouse.com/docs/operations/settings/settings
"""Types of tuples without line breaks, the usual columns of DESCRIBE, and all rows, whatever a user's profile has."""


def _rows(connection: HttpConnection, query: str) -> list[list[Any]]:
    answer = connection.post(f"{query} FORMAT JSONCompactEachRow", settings=CATALOG).read()
    return [json.loads(line) for line in answer.splitlines()]
