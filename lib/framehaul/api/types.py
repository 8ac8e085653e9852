"""Columns of a table for the types that a server names."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import polars as pl

from framehaul.data import schema
from framehaul.data.schema import Column, TimeUnit, Types
from framehaul.data.schema import ColumnType as T
from framehaul.errors import TableError

POLARS_DIGITS = 38
"""The most digits of a decimal in Polars and Arrow."""


class Limit(NamedTuple):
    """A limit of the server's column that the sent type does not have; `holds` is true within it."""

    holds: Callable[[pl.Expr], pl.Expr]
    message: str


class ServerColumn(NamedTuple):
    """A column as it is sent and received, the expression that reads it, and what the server's type cannot hold."""

    column: Column
    select: str = "{0}"
    """The expression by which a query converts the value to the column's type; `{0}` is the column's name."""
    limit: Limit | None = None


_SCALARS = (T.UUID, T.DATE, T.BOOL, T.INT16, T.INT32, T.INT64, T.FLOAT32, T.FLOAT64, T.TEXT, T.JSON, T.BYTES)
POSTGRES: dict[str, Types] = {
    **{kind.value.postgres: kind.value for kind in (*_SCALARS, T.TIMESTAMP_UTC, T.DURATION)},
    **{f"{kind.value.postgres} without time zone": kind.value for kind in (T.TIMESTAMP, T.TIME)},
    **{name: replace(T.TEXT.value, postgres=name, postgres_select="{0}::text") for name in ("citext", "json")},
}
"""The types of PostgreSQL without parameters, as format_type() names them."""
# The casts fail, with a message that shows the value.
WITHOUT_MONTHS = (
    "CASE WHEN extract(year FROM {0}) = 0 AND extract(month FROM {0}) = 0 THEN {0} "
    "ELSE ({0}::text || ': a month has no fixed length')::interval END"
)
ONE_DIMENSION = (
    "CASE WHEN coalesce(array_ndims({0}), 1) = 1 AND coalesce(array_lower({0}, 1), 1) = 1 THEN {0} "
    "ELSE ({0}::text || ': more than one dimension, or another lower bound than 1')::TYPE END"
)


@lru_cache(maxsize=4096)
def postgres_column(name: str, kind: str, *, nullable: bool, labels: tuple[str, ...] = ()) -> ServerColumn:
    """Return the column for a type of PostgreSQL, as format_type() names it; `labels` are those of an enum.

    Raises TableError, with what to do, for a type that is not supported.
    """
    types, limit = _postgres_types(name, kind, labels)
    is_text = replace(types, postgres="text", postgres_select="{0}") == T.TEXT.value  # of another name there
    array = ONE_DIMENSION.replace("TYPE", kind) if kind.endswith("[]") else "{0}"
    column = Column(name, T.TEXT if is_text else schema.kind_of(types), nullable, exactly=types)
    return ServerColumn(column, WITHOUT_MONTHS if kind == "interval" else array, limit)


def _postgres_types(name: str, kind: str, labels: tuple[str, ...]) -> tuple[Types, Limit | None]:
    text = replace(T.TEXT.value, postgres=kind, postgres_select="{0}::text" if labels else "{0}")
    if kind in POSTGRES:
        return POSTGRES[kind], None
    if labels:  # in binary formats a label is text
        return text, Limit(lambda values: values.is_in([*labels]), f"a label of {kind}")
    if found := re.fullmatch(r"character varying(?:\((\d+)\))?", kind):
        # The server cuts off blanks at the end: https://www.postgresql.org/docs/18/datatype-character.html
        most = int(found[1] or 0)
        limit = Limit(lambda values: values.str.len_chars() <= most, f"at most {most} characters")
        return text, limit if most else None
    if found := re.fullmatch(r"numeric\((\d+),(\d+)\)", kind):
        return _decimal(found), None
    if found := re.fullmatch(r"timestamp\((\d)\) (with|without) time zone", kind):
        step = 10 ** (6 - int(found[1]))
        limit = Limit(lambda values: values.to_physical() % step == 0, f"a time with {found[1]} digits of a second")
        return POSTGRES[f"timestamp {found[2]} time zone"], limit
    if kind.endswith("[]"):
        element, of_element = _postgres_types(name, kind.removesuffix("[]"), ())
        if of_element is None:
            try:
                return schema.list_types(element), None
            except ValueError as error:
                raise TableError(f"column {name} is {kind}: {error}") from None
    remedy = "send decimals, or cast it" if kind == "numeric" else "cast it"
    raise TableError(f"column {name} is {kind}, which framehaul does not carry: {remedy} in the query, or leave it out")


CLICKHOUSE: dict[str, Types] = {
    **{kind.value.clickhouse: kind.value for kind in reversed(T) if "(" not in kind.value.clickhouse},
    "Date32": schema.DATE32,
    "Time64(6)": T.TIME.value,
}
"""The types of ClickHouse without parameters; a String is text."""
UNITS: dict[str, TimeUnit] = {"3": "ms", "6": "us", "9": "ns"}
SECONDS = Limit(
    lambda moment: (moment.to_physical() % 1000 == 0) & moment.to_physical().is_between(0, 2**32 * 1000 - 1),
    "a whole second from 1970 to 2106",
)
"""The range of ClickHouse's DateTime: seconds since 1970 in 32 bits."""
ESCAPES = dict(zip("abfnrtv0", "\a\b\f\n\r\t\v\0", strict=True))
INT8 = Limit(lambda number: number.is_between(-128, 127), "-128 to 127")


@lru_cache(maxsize=4096)
def clickhouse_column(name: str, kind: str, *, binary: bool = False) -> ServerColumn:
    """Return the column for a type of ClickHouse; a String, or one in an Array, holds bytes where `binary` is given.

    A type that frames lack is sent as the next larger one, which the server converts, within a `limit` that keeps
    values as they are. Raises TableError, with what to do, for a type that is not supported.
    """
    inner, outer, select = kind, list[str](), "{0}"
    limit: Limit | None = None
    while found := re.fullmatch(r"(LowCardinality|Nullable)\((.*)\)", inner):
        inner, outer = found[2], [*outer, found[1]]
    if inner == "Int8":
        types, select, limit = T.INT16.value, "toInt16({0})", INT8
    elif inner.startswith(("Enum8(", "Enum16(")):
        types, select = T.TEXT.value, "toString({0})"
        labels = [_unescaped(one) for one in re.findall(r"'((?:[^'\\]|\\.)*)' = ", inner)]
        limit = Limit(lambda values: values.is_in(labels), f"a label of {inner}")  # the server takes numbers as well
    elif found := re.fullmatch(r"DateTime(?:\('(.*)'\))?", inner):
        types, select, limit = schema.timestamp_types("ms", found[1]), "toDateTime64({0}, 3)", SECONDS
    elif binary and inner in ("String", "Array(String)", "Array(Nullable(String))"):
        types = T.BYTES.value if inner == "String" else schema.list_types(T.BYTES.value)
    else:
        try:
            types = _clickhouse_types(inner)
        except ValueError as error:
            raise TableError(f"column {name} is {kind}, which framehaul does not carry: {error}") from None
    low_cardinality = "LowCardinality" in outer and types == T.TEXT.value
    if "LowCardinality" in outer and not low_cardinality:
        select = f"CAST({{0}} AS {f'Nullable({types.clickhouse})' if 'Nullable' in outer else types.clickhouse})"
    column = Column(name, schema.kind_of(types), "Nullable" in outer, low_cardinality, exactly=types)
    if column.type is T.LIST and kind != types.clickhouse:  # elements that are not Nullable, or LowCardinality
        select = f"CAST({{0}} AS {types.clickhouse})"
    return ServerColumn(column, select, limit)


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
    return (schema.wide_decimal_types if precision > POLARS_DIGITS else schema.decimal_types)(precision, scale)


def _array(found: re.Match[str]) -> Types:
    element = _clickhouse_types(found[1])
    nested = element.postgres == "jsonb" or element.element
    return schema.nested_list_types(element) if nested else schema.list_types(element)


def _tuple(found: re.Match[str]) -> Types:
    fields = dict[str, Types]()
    for at, part in enumerate(arguments(found[1]), 1):
        named = re.fullmatch(r"(?:`((?:[^`\\]|\\.)+)`|([A-Za-z_]\w*)) (.+)", part)  # else the name is its place
        name = _unescaped((named[1] or named[2]) if named else str(at))
        fields[name] = _clickhouse_types(named[3] if named else part)
    return schema.struct_types(fields)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda one: ESCAPES.get(one[1], one[1]), text)


CLICKHOUSE_MADE: list[tuple[str, Callable[[re.Match[str]], Types]]] = [
    (r"(?:Nullable|LowCardinality)\((.*)\)", lambda found: _clickhouse_types(found[1])),
    (r"Decimal\((\d+), (\d+)\)", _decimal),
    (r"DateTime64\(([369])(?:, '(.*)')?\)", lambda found: schema.timestamp_types(UNITS[found[1]], found[2])),
    (r"FixedString\((\d+)\)", lambda found: schema.fixed_types(int(found[1]))),
    (r"Array\((.*)\)", _array),
    (r"Map\((.*)\)", lambda found: schema.map_types(*map(_clickhouse_types, arguments(found[1])))),
    (r"Tuple\((.*)\)", _tuple),
]
"""The types of ClickHouse with parameters."""


def arguments(inner: str) -> Iterator[str]:
    """Give the arguments of a type, which may have commas within parentheses and quotes."""
    depth, start = 0, 0
    for found in re.finditer(r"`(?:[^`\\]|\\.)*`|'(?:[^'\\]|\\.)*'|[(),]", inner):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if found[0] == "," and not depth:
            yield inner[start : found.start()].strip()
            start = found.end()
    yield inner[start:].strip()
