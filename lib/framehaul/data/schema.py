"""Tables as one list of columns, from which the DDL of both servers and all dtypes are derived."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal, Self

import numpy as np
import polars as pl
import pyarrow as pa

POSTGRES_NAME_BYTES = 63
"""The longest name in PostgreSQL, which truncates longer ones: https://www.postgresql.org/docs/18/limits.html"""
COMMENT = "made by framehaul, which may drop it"
"""The comment of tables that framehaul creates: a table without it is never dropped."""

TimeUnit = Literal["ms", "us", "ns"]


def quote_postgres(identifier: str) -> str:
    """Return an identifier quoted for PostgreSQL."""
    return '"' + identifier.replace('"', '""') + '"'


def quote_postgres_text(text: str) -> str:
    """Return a string literal for PostgreSQL and DuckDB."""
    return "'" + text.replace("'", "''") + "'"


def quote_clickhouse(identifier: str) -> str:
    """Return an identifier quoted for ClickHouse."""
    return "`" + identifier.replace("\\", "\\\\").replace("`", "\\`") + "`"


def quote_clickhouse_text(text: str) -> str:
    """Return a string literal for ClickHouse."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@dataclass(frozen=True)
class Types:
    """The types of a value on both servers, in Arrow, Polars and pandas, and the conversions between them.

    In SQL expressions `{0}` is the quoted column.
    """

    postgres: str
    clickhouse: str
    arrow: pa.DataType
    postgres_select: str = "{0}"
    clickhouse_select: str = "{0}"
    """Expressions that return the value as a frame holds it."""
    postgres_check: str = ""
    """A CHECK condition, if PostgreSQL's type has more values than ClickHouse's."""
    postgres_arrow: pa.DataType | None = None
    """The Arrow type in which PostgreSQL sends the value; None if it is `arrow`."""
    clickhouse_nullable: bool = True
    element: Types | None = None
    """The type of a list's elements."""
    fields: tuple[tuple[str, Types], ...] = ()
    """The fields of a struct by name; the key and the value of a map."""
    postgres_form: str = ""
    clickhouse_form: str = ""
    """A description of the substitute on a server that lacks the type; empty if the server has the type."""
    polars: pl.DataType = None  # type: ignore[assignment]  # __post_init__ derives it

    def __post_init__(self) -> None:
        if self.polars is None:
            object.__setattr__(self, "polars", pl.Series(values=pa.nulls(0, self.arrow)).dtype)


def _checked(types: Types, check: str) -> Types:
    """Return the types with a CHECK, for a type of PostgreSQL that has more values than ClickHouse's."""
    return replace(types, postgres_check=check, postgres_form=f"{types.postgres}, checked")


def decimal_types(precision: int, scale: int) -> Types:
    """Return the types of decimals with `scale` decimal places; Polars limits `precision` to 38."""
    return Types(f"numeric({precision}, {scale})", f"Decimal({precision}, {scale})", pa.decimal128(precision, scale))


def timestamp_types(unit: TimeUnit, zone: str | None = None) -> Types:
    """Return the types of timestamps; PostgreSQL stores microseconds and drops the zone."""
    digits = {"ms": "3", "us": "6", "ns": "9"}[unit]
    arguments = f"{digits}, {quote_clickhouse_text(zone)}" if zone else digits
    postgres = "timestamp with time zone" if zone else "timestamp"
    return Types(postgres, f"DateTime64({arguments})", pa.timestamp(unit, zone))


def list_types(element: Types) -> Types:
    """Return the types of lists of a scalar; a list may be NULL or empty and may hold NULL.

    In pandas they are Python lists, as numpy's integers have no NULL. ClickHouse's arrays cannot be NULL:
    https://clickhouse.com/docs/sql-reference/data-types/nullable
    Raises ValueError, with the remedy, for durations, bytes of a fixed size, documents, addresses, and numbers of more
    than 64 bits or 38 digits.
    """
    check, is_text = _check_of_elements(element), element.arrow == pa.string()
    postgres, clickhouse = element.postgres, element.clickhouse
    if (element.postgres_check and not check) or (is_text and postgres not in ("text", "uuid")):
        made = {"interval": "whole numbers", "bytea": "bytes of any size"}.get(postgres, "text")
        raise ValueError(f"lists of {clickhouse} ({postgres}) are not carried: make them lists of {made}")
    postgres_select = "{0}::text[]" if postgres == "uuid" else "{0}"
    clickhouse_select = "{0}" if element.clickhouse_select == "{0}" else "arrayMap(x -> toString(x), {0})"
    names, selects = (f"{postgres}[]", f"Array(Nullable({clickhouse}))"), (postgres_select, clickhouse_select)
    arrow, polars = pa.list_(element.arrow), pl.List(element.polars)
    types = Types(*names, arrow, *selects, clickhouse_nullable=False, element=element, polars=polars)
    return _checked(types, check) if check else types


def _check_of_elements(element: Types) -> str:
    """Return the CHECK condition of an array's elements, which allows NULL; empty if there is none."""
    if re.fullmatch(r"U?Int\d+", element.clickhouse) and element.postgres_check:
        least, most = whole_numbers(element.clickhouse)
        return f"{least} <= ALL ({{0}}) AND {most} >= ALL ({{0}})"
    if isinstance(element.polars, pl.Enum):
        return f"array_remove({{0}}, NULL) <@ ARRAY[{element.postgres_check.partition('(')[2][:-1]}]"
    return ""


def fixed_list_types(element: Types, size: int) -> Types:
    """Return the types of lists of `size` scalars; PostgreSQL checks the size, ClickHouse does not."""
    lists = list_types(element)
    arrow, polars = pa.list_(element.arrow, size), pl.Array(element.polars, size)
    check = " AND ".join(filter(None, (f"cardinality({{0}}) = {size}", lists.postgres_check)))
    return _checked(replace(lists, arrow=arrow, polars=polars, clickhouse_form=lists.clickhouse), check)


def _nested_types(clickhouse: str, arrow: pa.DataType, **parts: Any) -> Types:
    """Return the types of nested values, which are jsonb in PostgreSQL and never NULL in ClickHouse."""
    form: dict[str, Any] = {"postgres_arrow": pa.string(), "postgres_form": "jsonb"}
    return Types("jsonb", clickhouse, arrow, "{0}::text", clickhouse_nullable=False, **form, **parts)


def nested_list_types(element: Types) -> Types:
    """Return the types of lists of nested values, stored as jsonb: arrays in an array of PostgreSQL have one length."""
    return _nested_types(f"Array({_inside(element)})", pa.list_(element.arrow), element=element)


def struct_types(fields: Mapping[str, Types]) -> Types:
    """Return the types of structs with these fields, in order; a field may be NULL if it is a scalar."""
    quoted = (name if name.isascii() and name.isidentifier() else quote_clickhouse(name) for name in fields)
    named = ", ".join(f"{name} {_inside(types)}" for name, types in zip(quoted, fields.values(), strict=True))
    arrow = pa.struct([(name, types.arrow) for name, types in fields.items()])
    return _nested_types(f"Tuple({named})", arrow, fields=tuple(fields.items()))


def map_types(key: Types, value: Types) -> Types:
    """Return the types of maps from text or integers; pandas holds lists of pairs, so that keys may repeat."""
    clickhouse, fields = f"Map({key.clickhouse}, {_inside(value)})", (("key", key), ("value", value))
    return _nested_types(clickhouse, pa.map_(key.arrow, value.arrow), fields=fields)


def _inside(types: Types) -> str:
    """Return ClickHouse's name of a type inside another, Nullable if that is possible.

    Raises ValueError for a type that a SELECT has to convert, such as UUID: nested values are not converted.
    """
    if types.clickhouse_select != "{0}":
        raise ValueError(f"{types.clickhouse} inside of what is nested is not carried: make it text")
    return f"Nullable({types.clickhouse})" if types.clickhouse_nullable else types.clickhouse


def wide_types(clickhouse: str) -> Types:
    """Return the types of integers of 128 or 256 bits, by ClickHouse's name; frames hold text, as Arrow lacks them."""
    least, most = whole_numbers(clickhouse)
    types = replace(wide_decimal_types(len(str(most)), 0), clickhouse=clickhouse)
    return _checked(types, f"{{0}} BETWEEN {least} AND {most}")


def whole_numbers(clickhouse: str) -> tuple[int, int]:
    """Return the least and the greatest value of a ClickHouse integer type, given by name."""
    bits = int(clickhouse.partition("Int")[2])
    return (0, 2**bits - 1) if clickhouse.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def wide_decimal_types(precision: int, scale: int) -> Types:
    """Return the types of decimals of up to 76 digits; frames hold text, as Polars supports only 38 digits."""
    digits = f"({precision}, {scale})"
    return Types(f"numeric{digits}", f"Decimal{digits}", pa.string(), "{0}::text", "toString({0})")


def unsigned_types(bits: int, postgres: str, signed: pa.DataType) -> Types:
    """Return the types of unsigned integers, which PostgreSQL stores in a wider signed type with a CHECK."""
    select = "{0}::text" if signed == pa.string() else "{0}"
    types = Types(postgres, f"UInt{bits}", pa.type_for_alias(f"uint{bits}"), select, postgres_arrow=signed)
    return _checked(types, f"{{0}} BETWEEN 0 AND {2**bits - 1}")


def enum_types(*values: str) -> Types:
    """Return the types of an enum; PostgreSQL stores text with a CHECK, which needs no CREATE TYPE."""
    bits = 8 if len(values) < 2**7 else 16
    numbered = ", ".join(f"{quote_clickhouse_text(value)} = {number}" for number, value in enumerate(values, 1))
    quoted = ", ".join(quote_postgres_text(value) for value in values).replace("{", "{{").replace("}", "}}")
    types = Types("text", f"Enum{bits}({numbered})", pa.string(), clickhouse_select="toString({0})")
    return _checked(replace(types, polars=pl.Enum(values)), f"{{0}} IN ({quoted})")


def fixed_types(size: int) -> Types:
    """Return the types of byte strings of exactly `size` bytes."""
    return _checked(Types("bytea", f"FixedString({size})", pa.binary(size)), f"octet_length({{0}}) = {size}")


def address_types(version: Literal[4, 6]) -> Types:
    """Return the types of IP addresses, which are text in a frame."""
    check = f"family({{0}}) = {version}"
    return Types("inet", f"IPv{version}", pa.string(), "host({0})", "toString({0})", postgres_check=check)


AS_DOCUMENT = "jsonb: the document, not its text"
MICROSECONDS = "(extract(epoch FROM {0}) * 1000000)::bigint"
NO_MONTHS = "extract(year FROM {0}) = 0 AND extract(month FROM {0}) = 0"


class ColumnType(Enum):
    """The kind of a column, with its types by default; `Column.exactly` overrides them.

    - A UUID is text in a frame: Polars has no type for it, and pandas only Arrow's.
    - Dates are `datetime.date` objects in pandas, as PostgreSQL's drivers and pyarrow return them; decimals and bytes
      are objects, too.
    - ClickHouse has one type for text and bytes.
    - PostgreSQL stores timestamps in microseconds, and of a timestamp with a zone only the point in time.
    - JSON is text in a frame. PostgreSQL's `jsonb` keeps the document but not its text; ClickHouse stores a String.
    - A kind with parameters, such as LIST, covers all values of its parameters.
    """

    UUID = Types("uuid", "UUID", pa.string(), "{0}::text", "toString({0})")
    DATE = Types("date", "Date", pa.date32())
    BOOL = Types("boolean", "Bool", pa.bool_())
    INT16 = Types("smallint", "Int16", pa.int16())
    INT32 = Types("integer", "Int32", pa.int32())
    INT64 = Types("bigint", "Int64", pa.int64())
    FLOAT32 = Types("real", "Float32", pa.float32())
    FLOAT64 = Types("double precision", "Float64", pa.float64())
    DECIMAL = decimal_types(38, 10)
    TEXT = Types("text", "String", pa.string())
    BYTES = Types("bytea", "String", pa.binary())
    TIMESTAMP = timestamp_types("us")
    TIMESTAMP_NS = timestamp_types("ns")
    TIMESTAMP_UTC = timestamp_types("us", "UTC")
    TIMESTAMP_BERLIN = timestamp_types("us", "Europe/Berlin")
    LIST = list_types(INT64)
    UINT8 = unsigned_types(8, "smallint", pa.int16())
    UINT16 = unsigned_types(16, "integer", pa.int32())
    UINT32 = unsigned_types(32, "bigint", pa.int64())
    UINT64 = unsigned_types(64, "numeric(20, 0)", pa.string())
    TIME = Types("time", "Time64(6)", pa.time64("us"))
    JSON = Types("jsonb", "String", pa.string(), "{0}::text", postgres_form=AS_DOCUMENT, clickhouse_form="String")
    ENUM = enum_types("a", "b")
    FIXED_BYTES = fixed_types(8)
    IPV4 = address_types(4)
    IPV6 = address_types(6)
    DURATION = Types("interval", "IntervalMicrosecond", pa.duration("us"), MICROSECONDS, "{0}", NO_MONTHS, pa.int64())
    FIXED_LIST = fixed_list_types(INT64, 2)
    NESTED_LIST = nested_list_types(LIST)
    STRUCT = struct_types({"a": INT64, "b": TEXT})
    MAP = map_types(TEXT, INT64)
    INT128 = wide_types("Int128")
    UINT128 = wide_types("UInt128")
    INT256 = wide_types("Int256")
    UINT256 = wide_types("UInt256")
    WIDE_DECIMAL = wide_decimal_types(76, 20)


FLOATS = (ColumnType.FLOAT32, ColumnType.FLOAT64)
"""Kinds in which NaN is a value, distinct from NULL."""
ARRAYS = (ColumnType.LIST, ColumnType.FIXED_LIST)
"""Lists of scalars."""
NESTED = (ColumnType.NESTED_LIST, ColumnType.STRUCT, ColumnType.MAP)
"""Kinds that PostgreSQL stores as jsonb documents."""
LONG_NUMBERS = (ColumnType.INT128, ColumnType.UINT128, ColumnType.INT256, ColumnType.UINT256, ColumnType.WIDE_DECIMAL)
"""Numbers that are text in a frame."""
NO_CSV = {ColumnType.BYTES, *ARRAYS, ColumnType.FIXED_BYTES, ColumnType.DURATION}
"""Kinds that frames neither write as CSV nor parse from PostgreSQL's CSV."""
NO_NATIVE = {*NESTED, *LONG_NUMBERS, ColumnType.FIXED_BYTES, ColumnType.IPV4, ColumnType.IPV6}
"""Kinds that the encoder of Native blocks does not support; they are sent as Arrow."""
FIRST_DAY, LAST_DAY = dt.date(1970, 1, 1), dt.date(2149, 6, 6)
"""The range of ClickHouse's `Date`: https://clickhouse.com/docs/sql-reference/data-types/date"""
DATE32 = replace(ColumnType.DATE.value, clickhouse="Date32")
"""The types of dates outside the range of ClickHouse's `Date`: https://clickhouse.com/docs/sql-reference/data-types/date32"""


@dataclass(frozen=True)
class Column:
    """A column of a table; `low_cardinality` makes ClickHouse store it as a dictionary.

    `exactly` overrides the types of the kind, for parameters such as `numeric(12, 2)` or another time zone.
    """

    name: str
    type: ColumnType
    nullable: bool = False
    low_cardinality: bool = False
    exactly: Types | None = None

    @property
    def types(self) -> Types:
        """The types of the column on the servers and in frames."""
        return self.exactly or self.type.value

    @property
    def postgres_ddl(self) -> str:
        """The column's line in PostgreSQL's CREATE TABLE."""
        quoted, types = quote_postgres(self.name), self.types
        check = f" CHECK ({types.postgres_check.format(quoted)})" if types.postgres_check else ""
        return f"{quoted} {types.postgres}{'' if self.nullable else ' NOT NULL'}{self.default}{check}"

    @property
    def default(self) -> str:
        """The column's DEFAULT in CREATE TABLE."""
        return " DEFAULT ''" if self.type is ColumnType.TEXT and not self.nullable else ""

    @property
    def clickhouse_type(self) -> str:
        """The column's type in ClickHouse."""
        name = self.types.clickhouse
        if self.nullable and self.types.clickhouse_nullable:
            name = f"Nullable({name})"
        return f"LowCardinality({name})" if self.low_cardinality else name

    @property
    def postgres_arrow(self) -> pa.DataType:
        """The Arrow type in which PostgreSQL sends the column."""
        return self.types.postgres_arrow or self.types.arrow

    @property
    def element(self) -> Column:
        """The elements of a list as a column; raises ValueError for any other column."""
        if self.types.element is None:
            raise ValueError(f"column {self.name} holds no lists")
        return _part(self.name, self.types.element)

    @property
    def innermost(self) -> Column:
        """The `element` of lists of scalars; any other column itself."""
        return self.element if self.type in ARRAYS else self

    @property
    def fields(self) -> tuple[Column, ...]:
        """The fields of a struct, or the key and the value of a map, as columns."""
        parts = tuple(_part(name, types) for name, types in self.types.fields)
        return (replace(parts[0], nullable=False), parts[1]) if self.type is ColumnType.MAP else parts

    @property
    def parts(self) -> Iterator[Column]:
        """The elements and fields at any depth, as columns."""
        for part in (*self.fields, *([self.element] if self.types.element else [])):
            yield part
            yield from part.parts

    @property
    def pandas_dtype(self) -> str:
        """The column's dtype in pandas 3."""
        kind = self.types.arrow
        if isinstance(self.types.polars, pl.Enum):
            return "category"
        if pa.types.is_timestamp(kind):
            return f"datetime64[{kind.unit}, {kind.tz}]" if kind.tz else f"datetime64[{kind.unit}]"
        if pa.types.is_duration(kind):
            return f"timedelta64[{kind.unit}]"
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            return "str" if pa.types.is_string(kind) else "object"
        plain = str(np.dtype(kind.to_pandas_dtype()))
        nullable = "boolean" if plain == "bool" else plain.title().replace("Uint", "UInt")
        return nullable if self.nullable else plain


def _part(name: str, types: Types) -> Column:
    """Return an element or a field as a column, nullable if possible."""
    return Column(name, kind_of(types), nullable=types.clickhouse_nullable, exactly=types)


def kind_of(types: Types) -> ColumnType:
    """Return the kind that types belong to, whatever their parameters."""

    def without_parameters(of: Types) -> tuple[object, ...]:
        nanoseconds = pa.types.is_timestamp(of.arrow) and of.arrow.unit == "ns"
        is_decimal, is_fixed = of.clickhouse.startswith("Decimal("), pa.types.is_fixed_size_binary(of.arrow)
        return type(of.polars), of.postgres == "jsonb", nanoseconds, is_decimal, is_fixed

    kinds = [kind for kind in ColumnType if kind.value == types]
    return (kinds or [kind for kind in ColumnType if without_parameters(kind.value) == without_parameters(types)])[0]


def _with_texts_as(schema: pa.Schema, text: pa.DataType, binary: pa.DataType) -> pa.Schema:
    kinds = {pa.string(): text, pa.binary(): binary}
    return pa.schema([field.with_type(kinds.get(field.type, field.type)) for field in schema])


def refuse(table: Table, kinds: Collection[ColumnType], remedy: str, database: str, where: str = "columns") -> None:
    """Raise ValueError, with the column's type in this database and the remedy, for a column of one of these kinds.

    `where` selects what is checked: the "columns", the parts of "nested" columns, or both, "anywhere".
    """
    for column in table.columns:
        checked = (*([column] if where != "nested" else []), *(column.parts if where != "columns" else ()))
        if any(each.type in kinds for each in checked):
            raise ValueError(f"column {column.name} is {getattr(column.types, database)}, {remedy}")


@dataclass(frozen=True)
class Table:
    """A table: its columns, its primary key, and the date column by which ClickHouse partitions it monthly.

    `sort` is ClickHouse's sorting key if it differs from `key`. `postgres_body` and `clickhouse_body` replace the
    generated CREATE TABLE after the table's name. `reference` replaces the quoted name in statements: it has a schema
    or a database, or is a subquery.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    partition_by_month_of: str | None = None
    sort: tuple[str, ...] | None = None
    postgres_body: str = ""
    clickhouse_body: str = ""
    reference: str = ""

    def renamed(self, name: str) -> Self:
        """Return the same table under another name, in the same database of ClickHouse."""
        # Temporary tables of PostgreSQL have no schema that could be named.
        database = re.match(r"`(?:[^`\\]|\\.)+`\.", self.reference)
        return replace(self, name=name, reference=f"{database[0]}{quote_clickhouse(name)}" if database else "")

    @property
    def clickhouse_order(self) -> tuple[str, ...]:
        """The columns of ClickHouse's sorting key; empty if there is neither a `key` nor a `sort`."""
        return self.key if self.sort is None else self.sort

    @property
    def column_names(self) -> list[str]:
        """The columns' names, in order."""
        return [column.name for column in self.columns]

    def columns_of(self, *types: ColumnType) -> list[str]:
        """Return the names of the columns of these types, in order."""
        return [column.name for column in self.columns if column.type in types]

    @property
    def postgres_name(self) -> str:
        """The table's name, quoted for PostgreSQL, or its `reference`."""
        return self.reference or quote_postgres(self.name)

    @property
    def postgres_columns(self) -> str:
        """The columns' names, quoted for PostgreSQL and joined by commas."""
        return ", ".join(map(quote_postgres, self.column_names))

    @property
    def postgres_select(self) -> str:
        """SELECT of all rows; they come in the types of the driver."""
        return f"SELECT {self.postgres_columns} FROM {self.postgres_name}"

    @property
    def postgres_select_as_in_frames(self) -> str:
        """SELECT of all rows in the types of frames: UUIDs as text."""
        made = ", ".join(f"{c.types.postgres_select} AS {{0}}".format(quote_postgres(c.name)) for c in self.columns)
        return f"SELECT {made} FROM {self.postgres_name}"

    @property
    def postgres_key(self) -> str:
        """The key's columns, quoted for PostgreSQL and joined by commas."""
        return ", ".join(map(quote_postgres, self.key))

    @property
    def postgres_ddl(self) -> str:
        """CREATE TABLE for PostgreSQL, with the key as primary key."""
        if self.postgres_body:
            return f"CREATE TABLE {self.postgres_name} {self.postgres_body}"
        key = [f"PRIMARY KEY ({self.postgres_key})"] if self.key else []
        lines = ",\n    ".join([*(column.postgres_ddl for column in self.columns), *key])
        return f"CREATE TABLE {self.postgres_name} (\n    {lines}\n)"

    @property
    def clickhouse_name(self) -> str:
        """The table's name, quoted for ClickHouse, or its `reference`."""
        return self.reference or quote_clickhouse(self.name)

    @property
    def clickhouse_columns(self) -> str:
        """The columns' names, quoted for ClickHouse and joined by commas."""
        return ", ".join(map(quote_clickhouse, self.column_names))

    @property
    def clickhouse_select(self) -> str:
        """SELECT of all rows; they come in the types of the driver."""
        return f"SELECT {self.clickhouse_columns} FROM {self.clickhouse_name}"

    @property
    def clickhouse_select_as_in_frames(self) -> str:
        """SELECT of all rows in the types of frames: UUIDs as text."""
        made = ", ".join(f"{c.types.clickhouse_select} AS {{0}}".format(quote_clickhouse(c.name)) for c in self.columns)
        return f"SELECT {made} FROM {self.clickhouse_name}"

    @property
    def clickhouse_insert(self) -> str:
        """INSERT into ClickHouse up to the columns."""
        return f"INSERT INTO {self.clickhouse_name} ({self.clickhouse_columns})"

    @property
    def clickhouse_key(self) -> str:
        """The columns of ClickHouse's sorting key, quoted and joined by commas."""
        return ", ".join(map(quote_clickhouse, self.clickhouse_order))

    @property
    def clickhouse_structure(self) -> str:
        """The columns' names and types as an argument of ClickHouse's table functions."""
        return ", ".join(f"{quote_clickhouse(column.name)} {column.clickhouse_type}" for column in self.columns)

    @property
    def clickhouse_ddl(self) -> str:
        """CREATE TABLE for ClickHouse, a MergeTree ordered by `clickhouse_order`."""
        return f"CREATE TABLE {self.clickhouse_name} {self.clickhouse_body or self.clickhouse_definition()}"

    def clickhouse_definition(self, engine: str = "MergeTree", settings: str = "", *further: str) -> str:
        """Return CREATE TABLE after the table's name; `further` are definitions of more columns."""
        columns = (f"{quote_clickhouse(c.name)} {c.clickhouse_type}{c.default}" for c in self.columns)
        lines = ",\n    ".join((*columns, *further))
        date = self.partition_by_month_of
        partition = f"\nPARTITION BY toYYYYMM({quote_clickhouse(date)})" if date else ""
        order = f"({self.clickhouse_key})" if self.clickhouse_order else "tuple()"
        return (
            f"(\n    {lines}\n)\nENGINE = {engine}{partition}\nORDER BY {order}"
            f"{f'\nSETTINGS {settings}' if settings else ''}\nCOMMENT '{COMMENT}'"
        )

    @property
    def arrow_schema(self) -> pa.Schema:
        """The table as an Arrow schema."""
        return pa.schema([pa.field(c.name, c.types.arrow, c.nullable) for c in self.columns])

    @property
    def arrow_large_schema(self) -> pa.Schema:
        """`arrow_schema` with 64-bit offsets for text and bytes: pandas' layout of text."""
        return _with_texts_as(self.arrow_schema, pa.large_string(), pa.large_binary())

    @property
    def arrow_view_schema(self) -> pa.Schema:
        """`arrow_schema` with text and bytes as views: Polars' layout."""
        return _with_texts_as(self.arrow_schema, pa.string_view(), pa.binary_view())

    @property
    def polars_schema(self) -> dict[str, pl.DataType]:
        """The columns' Polars dtypes by name."""
        return {column.name: column.types.polars for column in self.columns}

    @property
    def pandas_dtypes(self) -> dict[str, str]:
        """The columns' pandas dtypes by name."""
        return {column.name: column.pandas_dtype for column in self.columns}


_DIMENSIONS = tuple(f"dimension_{letter}" for letter in "abcdef")

ANALYTICS_METRICS = Table(
    name="framehaul_analytics_metrics",
    columns=(
        Column("entity_key", ColumnType.UUID),
        Column("event_date", ColumnType.DATE),
        Column("source_id", ColumnType.INT32),
        *(Column(name, ColumnType.TEXT, low_cardinality=name == "dimension_a") for name in _DIMENSIONS),
        *(Column(f"metric_{number}", ColumnType.INT32) for number in (1, 2, 3)),
        Column("metric_value", ColumnType.FLOAT64),
    ),
    key=("entity_key", "event_date", "source_id", *_DIMENSIONS),
    partition_by_month_of="event_date",
)
"""The article's table: a UUID, a date, a source, six text dimensions, three integer metrics and a float."""
