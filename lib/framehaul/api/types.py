"""Columns of a table for the types that a server names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import polars as pl

from framehaul.data.schema import (
    Column,
    ColumnType,
    TimeUnit,
    Types,
    address_types,
    decimal_types,
    fixed_types,
    kind_of,
    list_types,
    map_types,
    nested_list_types,
    struct_types,
    timestamp_types,
    wide_decimal_types,
    wide_types,
)
from framehaul.errors import TableError

POLARS_DIGITS = 38
"""The most digits of a decimal in Polars and Arrow."""


@dataclass(frozen=True)
class Limit:
    """A limit of the server's column that the sent type does not have; `holds` is true within it."""

    holds: Callable[[pl.Expr], pl.Expr]
    message: str


@dataclass(frozen=True)
class ServerColumn:
    """A column as it is sent and received, the expression that reads it, and what the server's type cannot hold."""

    column: Column
    select: str = "{0}"
    """The expression by which a query converts the value to the column's type; `{0}` is the column's name."""
    limit: Limit | None = None


POSTGRES: dict[str, Types] = {
    "uuid": ColumnType.UUID.value,
    "date": ColumnType.DATE.value,
    "boolean": ColumnType.BOOL.value,
    "smallint": ColumnType.INT16.value,
    "integer": ColumnType.INT32.value,
    "bigint": ColumnType.INT64.value,
    "real": ColumnType.FLOAT32.value,
    "double precision": ColumnType.FLOAT64.value,
    "text": ColumnType.TEXT.value,
    "citext": replace(ColumnType.TEXT.value, postgres="citext"),
    "json": replace(ColumnType.TEXT.value, postgres="json"),
    "jsonb": ColumnType.JSON.value,
    "bytea": ColumnType.BYTES.value,
    "timestamp without time zone": ColumnType.TIMESTAMP.value,
    "timestamp with time zone": ColumnType.TIMESTAMP_UTC.value,
    "time without time zone": ColumnType.TIME.value,
    "interval": ColumnType.DURATION.value,
}
"""The types of PostgreSQL without parameters, as format_type() names them."""


@lru_cache(maxsize=4096)
def postgres_column(name: str, kind: str, *, nullable: bool, labels: tuple[str, ...] = ()) -> ServerColumn:
    """Return the column for a type of PostgreSQL, as format_type() names it; `labels` are those of an enum.

    Raises TableError, with what to do, for a type that is not supported.
    """
    types, limit = _postgres_types(name, kind, labels)
    is_text = replace(types, postgres="text") == ColumnType.TEXT.value  # of another name there
    kind_here = ColumnType.TEXT if is_text else kind_of(types)
    select = "{0}"
    if kind == "interval":
        select = WITHOUT_MONTHS
    elif kind.endswith("[]"):
        select = ONE_DIMENSION.replace("TYPE", kind)
    return ServerColumn(Column(name, kind_here, nullable, exactly=types), select, limit)


def _postgres_types(name: str, kind: str, labels: Sequence[str]) -> tuple[Types, Limit | None]:
    if kind in POSTGRES:
        return POSTGRES[kind], None
    if labels:  # in binary formats a label is text
        known = Limit(lambda text: text.is_in([*labels]), f"a label of {kind}")
        return replace(ColumnType.TEXT.value, postgres=kind), known
    for pattern, made in POSTGRES_MADE:
        if found := re.fullmatch(pattern, kind):
            return made(found)
    if kind.endswith("[]"):
        element, limit = _postgres_types(name, kind.removesuffix("[]"), ())
        if limit is None:
            try:
                return list_types(element), None
            except ValueError as error:
                raise TableError(f"column {name} is {kind}: {error}") from None
    raise TableError(f"column {name} is {kind}, which framehaul does not carry: {REMEDIES.get(kind, REMEDY)}")


# The casts fail, with a message that shows the value.
WITHOUT_MONTHS = (
    "CASE WHEN extract(year FROM {0}) = 0 AND extract(month FROM {0}) = 0 THEN {0} "
    "ELSE ({0}::text || ': a month has no fixed length')::interval END"
)
ONE_DIMENSION = (
    "CASE WHEN coalesce(array_ndims({0}), 1) = 1 THEN {0} ELSE ({0}::text || ': more than one dimension')::TYPE END"
)
REMEDY = "cast it in the query, or leave it out"
REMEDIES = {"numeric": "declare its digits, numeric(38, 10), or cast it in the query"}


def _varying(found: re.Match[str]) -> tuple[Types, Limit | None]:
    types = replace(ColumnType.TEXT.value, postgres=found[0])
    if found[1] is None:
        return types, None
    # The server cuts off blanks at the end, without a word: https://www.postgresql.org/docs/18/datatype-character.html
    most = int(found[1])
    return types, Limit(lambda text: text.str.len_chars() <= most, f"at most {most} characters")


def _moment(found: re.Match[str]) -> tuple[Types, Limit | None]:
    step = 10 ** (6 - int(found[2]))
    limit = Limit(lambda moment: moment.to_physical() % step == 0, f"a time with {found[2]} digits of a second")
    return POSTGRES[f"{found[1]} {found[3]} time zone"], limit


POSTGRES_MADE: list[tuple[str, Callable[[re.Match[str]], tuple[Types, Limit | None]]]] = [
    (r"character varying(?:\((\d+)\))?", _varying),
    (r"numeric\((\d+),(\d+)\)", lambda found: (_decimal(found), None)),
    (r"(timestamp)\((\d)\) (with|without) time zone", _moment),
]
"""The types of PostgreSQL with parameters."""


CLICKHOUSE: dict[str, Types] = {
    "UUID": ColumnType.UUID.value,
    "Date": ColumnType.DATE.value,
    "Date32": replace(ColumnType.DATE.value, clickhouse="Date32"),
    "Bool": ColumnType.BOOL.value,
    "Int16": ColumnType.INT16.value,
    "Int32": ColumnType.INT32.value,
    "Int64": ColumnType.INT64.value,
    "UInt8": ColumnType.UINT8.value,
    "UInt16": ColumnType.UINT16.value,
    "UInt32": ColumnType.UINT32.value,
    "UInt64": ColumnType.UINT64.value,
    "Float32": ColumnType.FLOAT32.value,
    "Float64": ColumnType.FLOAT64.value,
    "String": ColumnType.TEXT.value,
    "IPv4": address_types(4),
    "IPv6": address_types(6),
    "Time64(6)": ColumnType.TIME.value,
    "IntervalMicrosecond": ColumnType.DURATION.value,
    **{name: wide_types(name) for name in ("Int128", "Int256", "UInt128", "UInt256")},
}
"""The types of ClickHouse without parameters."""
UNITS: dict[str, TimeUnit] = {"3": "ms", "6": "us", "9": "ns"}
SECONDS = Limit(
    lambda moment: (moment.to_physical() % 1000 == 0) & moment.to_physical().is_between(0, 2**32 * 1000 - 1),
    "a whole second from 1970 to 2106",
)
"""The range of ClickHouse's DateTime: seconds since 1970 in 32 bits."""


@lru_cache(maxsize=4096)
def clickhouse_column(name: str, kind: str, *, binary: bool = False) -> ServerColumn:
    """Return the column for a type of ClickHouse; a String, or one in an Array, holds bytes where `binary` is given.

    A type that frames lack is sent as the next larger one, which the server converts, within a `limit` that keeps
    values as they are. Raises TableError, with what to do, for a type that is not supported.
    """
    inner, low_cardinality, nullable = kind, False, False
    if inner.startswith("LowCardinality("):
        inner, low_cardinality = _argument(inner), True
    if inner.startswith("Nullable("):
        inner, nullable = _argument(inner), True
    if binary and inner == "String":
        return ServerColumn(Column(name, ColumnType.BYTES, nullable, low_cardinality))
    if binary and inner in ("Array(String)", "Array(Nullable(String))"):
        return ServerColumn(Column(name, ColumnType.LIST, exactly=list_types(ColumnType.BYTES.value)))
    if inner == "Int8":
        return _sent_as(name, ColumnType.INT16.value, nullable, "toInt16({0})", Limit(
            lambda number: number.is_between(-128, 127), "-128 to 127"))  # fmt: skip
    if inner.startswith(("Enum8(", "Enum16(")):
        return _sent_as(name, ColumnType.TEXT.value, nullable, "toString({0})", None)
    if found := re.fullmatch(r"DateTime(?:\('(.*)'\))?", inner):
        return _sent_as(name, timestamp_types("ms", found[1]), nullable, "toDateTime64({0}, 3)", SECONDS)
    try:
        types = _clickhouse_types(inner)
    except ValueError as error:
        raise TableError(f"column {name} is {kind}, which framehaul does not carry: {error}") from None
    return ServerColumn(Column(name, kind_of(types), nullable, low_cardinality, exactly=types))


def _sent_as(name: str, types: Types, nullable: bool, select: str, limit: Limit | None) -> ServerColumn:
    return ServerColumn(Column(name, kind_of(types), nullable, exactly=types), select, limit)


def _clickhouse_types(kind: str) -> Types:
    """Return the types of one that may be nested; raises ValueError with what to do for one that is not supported."""
    if kind in CLICKHOUSE:
        return CLICKHOUSE[kind]
    for pattern, made in CLICKHOUSE_MADE:
        if found := re.fullmatch(pattern, kind):
            return made(found)
    raise ValueError("convert it in a query, or leave it out")


def _decimal(found: re.Match[str]) -> Types:
    precision, scale = int(found[1]), int(found[2])
    return (wide_decimal_types if precision > POLARS_DIGITS else decimal_types)(precision, scale)


def _array(found: re.Match[str]) -> Types:
    element = _clickhouse_types(found[1])
    return (nested_list_types if element.postgres == "jsonb" or element.element else list_types)(element)


def _map(found: re.Match[str]) -> Types:
    key, value = arguments(found[1])
    return map_types(_clickhouse_types(key), _clickhouse_types(value))


def _tuple(found: re.Match[str]) -> Types:
    fields: dict[str, Types] = {}
    for at, part in enumerate(arguments(found[1]), 1):
        named = re.fullmatch(r"(?:`((?:[^`\\]|\\.)+)`|([A-Za-z_]\w*)) (.+)", part)  # else the name is its place
        fields[(named[1] or named[2]) if named else str(at)] = _clickhouse_types(named[3] if named else part)
    return struct_types(fields)


CLICKHOUSE_MADE: list[tuple[str, Callable[[re.Match[str]], Types]]] = [
    (r"(?:Nullable|LowCardinality)\((.*)\)", lambda found: _clickhouse_types(found[1])),
    (r"Decimal\((\d+), (\d+)\)", _decimal),
    (r"DateTime64\(([369])(?:, '(.*)')?\)", lambda found: timestamp_types(UNITS[found[1]], found[2])),
    (r"FixedString\((\d+)\)", lambda found: fixed_types(int(found[1]))),
    (r"Array\((.*)\)", _array),
    (r"Map\((.*)\)", _map),
    (r"Tuple\((.*)\)", _tuple),
]
"""The types of ClickHouse with parameters."""


def _argument(kind: str) -> str:
    """Return what stands between the outermost parentheses."""
    return kind[kind.index("(") + 1 : -1]


def arguments(inner: str) -> Iterator[str]:
    """Give the arguments of a type, which may have commas within parentheses and quotes."""
    depth, start = 0, 0
    for found in re.finditer(r"`(?:[^`\\]|\\.)*`|'(?:[^'\\]|\\.)*'|[(),]", inner):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if found[0] == "," and not depth:
            yield inner[start : found.start()].strip()
            start = found.end()
    yield inner[start:].strip()
