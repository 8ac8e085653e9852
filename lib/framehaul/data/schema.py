"""One column list per table, from which every DDL and every dtype comes."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal, Self

import polars as pl
import pyarrow as pa

POSTGRES_NAME_BYTES = 63
"""Of a name; PostgreSQL cuts off the rest: https://www.postgresql.org/docs/18/limits.html"""
COMMENT = "made by framehaul, which may drop it"
"""Marks the tables that are ours: a table without it is never dropped."""


TimeUnit = Literal["ms", "us", "ns"]
DIGITS: dict[TimeUnit, int] = {"ms": 3, "us": 6, "ns": 9}
"""Of the fraction of a second, by unit."""


def quote_postgres(identifier: str) -> str:
    """An identifier in PostgreSQL's quotes."""
    return '"' + identifier.replace('"', '""') + '"'


def quote_postgres_text(text: str) -> str:
    """A text in PostgreSQL's quotes, which are DuckDB's as well."""
    return "'" + text.replace("'", "''") + "'"


def quote_clickhouse(identifier: str) -> str:
    """An identifier in ClickHouse's backticks."""
    return "`" + identifier.replace("\\", "\\\\").replace("`", "\\`") + "`"


def quote_clickhouse_text(text: str) -> str:
    """A text in ClickHouse's quotes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@dataclass(frozen=True)
class Types:
    """What a type is called on the servers, in Arrow, Polars and pandas; in pandas also where there may be NULL.

    What a server calls it is not always what a frame does: then the rest says how the one becomes the other. In
    expressions `{0}` is the quoted column.
    """

    postgres: str
    clickhouse: str
    arrow: pa.DataType
    polars: pl.DataType
    pandas: str
    pandas_nullable: str
    postgres_select: str = "{0}"
    clickhouse_select: str = "{0}"
    """What gives the value as a frame has it."""
    postgres_check: str = ""
    """What holds of the values, where PostgreSQL's type has more of them."""
    postgres_arrow: pa.DataType | None = None
    """The type of Arrow that PostgreSQL gives it in; numbers of many digits, which not every path has, as text."""
    clickhouse_nullable: bool = True
    """Whether ClickHouse has NULL of it."""
    element: Types | None = None
    """Of a list."""
    fields: tuple[tuple[str, Types], ...] = ()
    """Of a struct, by their names; of a map key and value."""
    postgres_form: str = ""
    clickhouse_form: str = ""
    """What stands for it on a server that has no such type; empty where it has."""


def decimal_types(precision: int, scale: int) -> Types:
    """Decimals of so many digits, `scale` of them behind the point; up to 38, which is what Polars has."""
    return Types(
        f"numeric({precision}, {scale})", f"Decimal({precision}, {scale})", pa.decimal128(precision, scale),
        pl.Decimal(precision, scale), "object", "object",
    )  # fmt: skip


def timestamp_types(unit: TimeUnit, zone: str | None = None) -> Types:
    """Timestamps in `ms`, `us` or `ns`; PostgreSQL has microseconds, and of a zone only the moment."""
    arguments = f"{DIGITS[unit]}, {quote_clickhouse_text(zone)}" if zone else f"{DIGITS[unit]}"
    pandas = f"datetime64[{unit}, {zone}]" if zone else f"datetime64[{unit}]"
    return Types(
        "timestamp with time zone" if zone else "timestamp", f"DateTime64({arguments})", pa.timestamp(unit, zone),
        pl.Datetime(unit, zone), pandas, pandas,
    )  # fmt: skip


def list_types(element: Types) -> Types:
    """Lists of a scalar, which may be NULL or empty and hold NULL; Python lists in pandas, as numpy's have no NULL.

    What is text in a frame is so in lists as well. ClickHouse has no NULL in place of an array:
    https://clickhouse.com/docs/sql-reference/data-types/nullable
    Raises ValueError, with what to make of them, for those that it has as something else: durations, bytes of a fixed
    size, documents, addresses, numbers of more than 64 bits or 38 digits.
    """
    check, is_text = _check_of_elements(element), element.arrow == pa.string()
    if (element.postgres_check and not check) or (is_text and element.postgres not in ("text", "uuid")):
        made = {"interval": "whole numbers", "bytea": "bytes of any size"}.get(element.postgres, "text")
        raise ValueError(
            f"lists of {element.clickhouse} ({element.postgres}) are not carried: make them lists of {made}"
        )
    return Types(
        f"{element.postgres}[]", f"Array(Nullable({element.clickhouse}))", pa.list_(element.arrow),
        pl.List(element.polars), "object", "object",
        postgres_select="{0}::text[]" if element.postgres == "uuid" else "{0}",
        clickhouse_select="{0}" if element.clickhouse_select == "{0}" else "arrayMap(x -> toString(x), {0})",
        clickhouse_nullable=False, element=element, postgres_check=check,
        postgres_form=f"{element.postgres}[], checked" if check else "",
    )  # fmt: skip


def _check_of_elements(element: Types) -> str:
    """What holds of the elements of an array, where PostgreSQL's type has more of them; NULL is let pass, as always."""
    if re.fullmatch(r"U?Int\d+", element.clickhouse) and element.postgres_check:
        least, most = whole_numbers(element.clickhouse)
        return f"{least} <= ALL ({{0}}) AND {most} >= ALL ({{0}})"
    if isinstance(element.polars, pl.Enum):
        return f"array_remove({{0}}, NULL) <@ ARRAY[{element.postgres_check.partition('(')[2][:-1]}]"
    return ""


def fixed_list_types(element: Types, size: int) -> Types:
    """Lists of so many scalars each; PostgreSQL checks that, ClickHouse has arrays of any length alone."""
    elements = list_types(element)
    checks = [f"cardinality({{0}}) = {size}", *([elements.postgres_check] if elements.postgres_check else [])]
    return replace(
        elements, arrow=pa.list_(element.arrow, size), polars=pl.Array(element.polars, size),
        postgres_check=" AND ".join(checks), postgres_form=f"{element.postgres}[], checked",
        clickhouse_form=f"Array(Nullable({element.clickhouse}))",
    )  # fmt: skip


def nested_list_types(element: Types) -> Types:
    """Lists of what is nested itself: PostgreSQL's arrays of arrays are all of one length, so it has documents."""
    return _nested(
        f"Array({_inside(element)})", pa.list_(element.arrow), pl.List(element.polars), element=element
    )  # fmt: skip


def struct_types(fields: Mapping[str, Types]) -> Types:
    """Structs of these fields, in order, each of which may be NULL where it is a scalar."""
    named = ", ".join(f"{_field_name(name)} {_inside(types)}" for name, types in fields.items())
    return _nested(
        f"Tuple({named})", pa.struct([(name, types.arrow) for name, types in fields.items()]),
        pl.Struct({name: types.polars for name, types in fields.items()}), fields=tuple(fields.items()),
    )  # fmt: skip


def map_types(key: Types, value: Types) -> Types:
    """Maps, in pandas lists of pairs: a dictionary of Python has each key once; keys are text or whole numbers."""
    return _nested(
        f"Map({key.clickhouse}, {_inside(value)})", pa.map_(key.arrow, value.arrow), pl.Map(key.polars, value.polars),
        fields=(("key", key), ("value", value)),
    )  # fmt: skip


def _nested(
    clickhouse: str, arrow: pa.DataType, polars: pl.DataType, *, element: Types | None = None,
    fields: tuple[tuple[str, Types], ...] = (),
) -> Types:  # fmt: skip
    """What is a document in PostgreSQL; ClickHouse has no NULL in place of it."""
    return Types(
        "jsonb", clickhouse, arrow, polars, "object", "object", "{0}::text", postgres_arrow=pa.string(),
        clickhouse_nullable=False, element=element, fields=fields, postgres_form="jsonb",
    )  # fmt: skip


def _inside(types: Types) -> str:
    """What ClickHouse calls a type inside of another, with NULL where it has any.

    Raises ValueError for one that is another in a frame, and would have to be made that inside of what is nested.
    """
    if types.clickhouse_select != "{0}":
        raise ValueError(f"{types.clickhouse} inside of what is nested is not carried: make it text")
    return f"Nullable({types.clickhouse})" if types.clickhouse_nullable else types.clickhouse


def _field_name(name: str) -> str:
    """The name of a field as ClickHouse itself writes it: in quotes only where it has to be."""
    return name if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) else quote_clickhouse(name)


def wide_types(clickhouse: str) -> Types:
    """Integers of 128 or 256 bits, by ClickHouse's name; text in a dataframe, as Arrow has none so wide."""
    least, most = whole_numbers(clickhouse)
    digits = len(str(most))
    return Types(
        f"numeric({digits}, 0)", clickhouse, pa.string(), pl.String(), "str", "str", "{0}::text", "toString({0})",
        postgres_check=f"{{0}} BETWEEN {least} AND {most}", postgres_form=f"numeric({digits}, 0), checked",
    )  # fmt: skip


def whole_numbers(clickhouse: str) -> tuple[int, int]:
    """The least and the greatest of ClickHouse's integers of this name."""
    bits = int(clickhouse.partition("Int")[2])
    return (0, 2**bits - 1) if clickhouse.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def wide_decimal_types(precision: int, scale: int) -> Types:
    """Decimals of up to 76 digits; text in a dataframe, as Polars has 38 and pandas more only of Arrow's."""
    return Types(
        f"numeric({precision}, {scale})", f"Decimal({precision}, {scale})", pa.string(), pl.String(), "str", "str",
        "{0}::text", "toString({0})",
    )  # fmt: skip


def unsigned_types(bits: int, postgres: str, signed: pa.DataType) -> Types:
    """Integers without a sign; PostgreSQL has none, and a wider type of it is kept to what they hold."""
    name = f"UInt{bits}"
    return Types(
        postgres, name, pa.type_for_alias(name.lower()), getattr(pl, name)(), name.lower(), name,
        postgres_select="{0}::text" if signed == pa.string() else "{0}", postgres_arrow=signed,
        postgres_check=f"{{0}} BETWEEN 0 AND {2**bits - 1}", postgres_form=f"{postgres}, checked",
    )  # fmt: skip


def enum_types(*values: str) -> Types:
    """Texts out of a few; PostgreSQL's own enums are types that each table would have to bring along: checked text."""
    bits = 8 if len(values) < 2**7 else 16
    numbered = ", ".join(f"{quote_clickhouse_text(value)} = {number}" for number, value in enumerate(values, 1))
    of = ", ".join(quote_postgres_text(value) for value in values).replace("{", "{{").replace("}", "}}")
    return Types(
        "text", f"Enum{bits}({numbered})", pa.string(), pl.Enum(values), "category", "category",
        clickhouse_select="toString({0})", postgres_check=f"{{0}} IN ({of})", postgres_form="text, checked",
    )  # fmt: skip


def fixed_types(size: int) -> Types:
    """Bytes, so many in each value."""
    return Types(
        "bytea", f"FixedString({size})", pa.binary(size), pl.Binary(), "object", "object",
        postgres_check=f"octet_length({{0}}) = {size}", postgres_form="bytea, checked",
    )  # fmt: skip


def address_types(version: Literal[4, 6]) -> Types:
    """Addresses of hosts, text in a dataframe."""
    return Types(
        "inet", f"IPv{version}", pa.string(), pl.String(), "str", "str", postgres_select="host({0})",
        clickhouse_select="toString({0})", postgres_check=f"family({{0}}) = {version}",
    )  # fmt: skip


class ColumnType(Enum):
    """What kind of values a column holds, and what that is called everywhere unless the column says otherwise.

    A UUID is text in a dataframe: Polars has no type for it, pandas only Arrow's. A date is an object column of
    `datetime.date` in pandas, as every PostgreSQL driver and pyarrow give it; decimals and bytes are objects, too.
    ClickHouse has one type for text and bytes. PostgreSQL keeps microseconds, and of a zone only the moment.

    JSON is text in a dataframe. PostgreSQL's `jsonb` keeps the document and not its text; ClickHouse has a String for
    it. Kinds that take parameters, such as lists, stand for all of theirs.
    """

    UUID = Types("uuid", "UUID", pa.string(), pl.String(), "str", "str", "{0}::text", "toString({0})")
    DATE = Types("date", "Date", pa.date32(), pl.Date(), "object", "object")
    BOOL = Types("boolean", "Bool", pa.bool_(), pl.Boolean(), "bool", "boolean")
    INT16 = Types("smallint", "Int16", pa.int16(), pl.Int16(), "int16", "Int16")
    INT32 = Types("integer", "Int32", pa.int32(), pl.Int32(), "int32", "Int32")
    INT64 = Types("bigint", "Int64", pa.int64(), pl.Int64(), "int64", "Int64")
    FLOAT32 = Types("real", "Float32", pa.float32(), pl.Float32(), "float32", "Float32")
    FLOAT64 = Types("double precision", "Float64", pa.float64(), pl.Float64(), "float64", "Float64")
    DECIMAL = decimal_types(38, 10)
    TEXT = Types("text", "String", pa.string(), pl.String(), "str", "str")
    BYTES = Types("bytea", "String", pa.binary(), pl.Binary(), "object", "object")
    TIMESTAMP = timestamp_types("us")
    TIMESTAMP_NS = timestamp_types("ns")
    TIMESTAMP_UTC = timestamp_types("us", "UTC")
    TIMESTAMP_BERLIN = timestamp_types("us", "Europe/Berlin")
    LIST = list_types(INT64)
    UINT8 = unsigned_types(8, "smallint", pa.int16())
    UINT16 = unsigned_types(16, "integer", pa.int32())
    UINT32 = unsigned_types(32, "bigint", pa.int64())
    UINT64 = unsigned_types(64, "numeric(20, 0)", pa.string())
    TIME = Types("time", "Time64(6)", pa.time64("us"), pl.Time(), "object", "object")
    JSON = Types(
        "jsonb", "String", pa.string(), pl.String(), "str", "str", "{0}::text",
        postgres_form="jsonb: the document, not its text", clickhouse_form="String",
    )  # fmt: skip
    ENUM = enum_types("a", "b")
    FIXED_BYTES = fixed_types(8)
    IPV4 = address_types(4)
    IPV6 = address_types(6)
    DURATION = Types(
        "interval",
        "IntervalMicrosecond",
        pa.duration("us"),
        pl.Duration("us"),
        "timedelta64[us]",
        "timedelta64[us]",
        postgres_select="(extract(epoch FROM {0}) * 1000000)::bigint",
        postgres_arrow=pa.int64(),
        postgres_check="extract(year FROM {0}) = 0 AND extract(month FROM {0}) = 0",
    )
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
"""The types that have NaN as a value beside NULL."""
ARRAYS = (ColumnType.LIST, ColumnType.FIXED_LIST)
"""Lists of scalars."""
NESTED = (ColumnType.NESTED_LIST, ColumnType.STRUCT, ColumnType.MAP)
"""What is a document in PostgreSQL."""
LONG_NUMBERS = (ColumnType.INT128, ColumnType.UINT128, ColumnType.INT256, ColumnType.UINT256, ColumnType.WIDE_DECIMAL)
"""Numbers that are text in a dataframe."""
NO_CSV = {ColumnType.BYTES, *ARRAYS, ColumnType.FIXED_BYTES, ColumnType.DURATION}
"""The types that dataframes neither write as CSV nor parse from what PostgreSQL writes of them."""
NO_NATIVE = {*ARRAYS, *NESTED, *LONG_NUMBERS, ColumnType.FIXED_BYTES, ColumnType.IPV4, ColumnType.IPV6}
"""The types that are not encoded as Native blocks here, and go as Arrow."""
FIRST_DAY, LAST_DAY = dt.date(1970, 1, 1), dt.date(2149, 6, 6)
"""Of ClickHouse's `Date`: https://clickhouse.com/docs/sql-reference/data-types/date"""
DATE32 = replace(ColumnType.DATE.value, clickhouse="Date32")
"""Dates that ClickHouse's `Date` does not have: https://clickhouse.com/docs/sql-reference/data-types/date32"""


@dataclass(frozen=True)
class Column:
    """A column; `low_cardinality` is a hint that ClickHouse may store it as a dictionary.

    `exactly` is given where its types have other parameters than those of its kind: `numeric(12, 2)`, another zone.
    """

    name: str
    type: ColumnType
    nullable: bool = False
    low_cardinality: bool = False
    exactly: Types | None = None

    @property
    def types(self) -> Types:
        """What the column's type is called everywhere."""
        return self.exactly or self.type.value

    @property
    def postgres_ddl(self) -> str:
        """The column's line in PostgreSQL's CREATE TABLE."""
        default = " DEFAULT ''" if self.type is ColumnType.TEXT and not self.nullable else ""
        quoted, types = quote_postgres(self.name), self.types
        check = f" CHECK ({types.postgres_check.format(quoted)})" if types.postgres_check else ""
        return f"{quoted} {types.postgres}{'' if self.nullable else ' NOT NULL'}{default}{check}"

    @property
    def clickhouse_ddl(self) -> str:
        """The column's line in ClickHouse's CREATE TABLE."""
        default = " DEFAULT ''" if self.type is ColumnType.TEXT and not self.nullable else ""
        return f"{quote_clickhouse(self.name)} {self.clickhouse_type}{default}"

    @property
    def clickhouse_type(self) -> str:
        """The column's type in ClickHouse."""
        name = self.types.clickhouse
        if self.nullable and self.types.clickhouse_nullable:
            name = f"Nullable({name})"
        return f"LowCardinality({name})" if self.low_cardinality else name

    @property
    def arrow_large(self) -> pa.DataType:
        """The column's Arrow type with text and bytes behind large offsets, which is how pandas holds text."""
        arrow = self.types.arrow
        return {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(arrow, arrow)

    @property
    def arrow_view(self) -> pa.DataType:
        """The column's Arrow type with text and bytes as views, which is how Polars holds them."""
        arrow = self.types.arrow
        return {pa.string(): pa.string_view(), pa.binary(): pa.binary_view()}.get(arrow, arrow)

    @property
    def postgres_arrow(self) -> pa.DataType:
        """The column's Arrow type as PostgreSQL has its values."""
        return self.types.postgres_arrow or self.types.arrow

    @property
    def element(self) -> Column:
        """What is in the lists of a column, as a column of its own; raises ValueError for another one."""
        types = self.types.element
        if types is None:
            raise ValueError(f"column {self.name} holds no lists")
        return Column(self.name, kind_of(types), nullable=types.clickhouse_nullable, exactly=types)

    @property
    def innermost(self) -> Column:
        """What is in lists of scalars, as `element`; a column of another kind is that itself."""
        return self.element if self.type in ARRAYS else self

    @property
    def fields(self) -> tuple[Column, ...]:
        """The fields of structs, or key and value of maps, as columns of their own."""
        return tuple(
            Column(name, kind_of(types), types.clickhouse_nullable and (self.type, name) != (ColumnType.MAP, "key"),
                   exactly=types)
            for name, types in self.types.fields
        )  # fmt: skip

    @property
    def parts(self) -> Iterator[Column]:
        """What is inside of what is nested, at any depth."""
        for part in (*self.fields, *([self.element] if self.types.element else [])):
            yield part
            yield from part.parts

    @property
    def pandas_dtype(self) -> str:
        """The column's dtype in pandas 3."""
        return self.types.pandas_nullable if self.nullable else self.types.pandas


def kind_of(types: Types) -> ColumnType:
    """The kind that types belong to, whatever their parameters."""

    def parted(of: Types) -> tuple[type, bool, bool]:
        nanoseconds = pa.types.is_timestamp(of.arrow) and of.arrow.unit == "ns"
        return type(of.polars), of.postgres == "jsonb", nanoseconds

    kinds = [kind for kind in ColumnType if kind.value == types]
    return (kinds or [kind for kind in ColumnType if parted(kind.value) == parted(types)])[0]


def _selected(expression: str, quoted: str) -> str:
    return quoted if expression == "{0}" else f"{expression.format(quoted)} AS {quoted}"


def refuse(
    table: Table, kinds: Collection[ColumnType], remedy: str, database: Literal["postgres", "clickhouse"],
    *, inside: bool = False,
) -> None:  # fmt: skip
    """Raises ValueError for a column of one of these kinds, with its type in this database and what to do.

    `inside` says that none may be in what is nested either.
    """
    for column in table.columns:
        if column.type in kinds:
            raise ValueError(f"column {column.name} is {getattr(column.types, database)}, {remedy}")
    if inside:
        refuse_inside(table, kinds, remedy, database)


def refuse_inside(
    table: Table, kinds: Collection[ColumnType], remedy: str, database: Literal["postgres", "clickhouse"]
) -> None:
    """As `refuse`, for columns that hold one of these kinds in what is nested."""
    for column in table.columns:
        if any(part.type in kinds for part in column.parts):
            raise ValueError(f"column {column.name} is {getattr(column.types, database)}, {remedy}")


def columns_in(schema: pa.Schema) -> tuple[Column, ...]:
    """Columns for an Arrow schema, whose text is text; raises KeyError for a type that none of the kinds has."""
    kinds = {kind.value.arrow: kind for kind in reversed(ColumnType)} | {pa.string(): ColumnType.TEXT}
    return tuple(Column(field.name, kinds[field.type], field.nullable) for field in schema)


@dataclass(frozen=True)
class Table:
    """A table: its columns, its primary key, and the month-partitioning date column for ClickHouse.

    `sort` is what ClickHouse sorts by where that is not the key. `postgres_body` and `clickhouse_body` are somebody's
    own CREATE TABLE from behind the name on, used in place of what follows from the columns.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    partition_by_month_of: str | None = None
    sort: tuple[str, ...] | None = None
    postgres_body: str = ""
    clickhouse_body: str = ""

    def renamed(self, name: str) -> Self:
        """The same table under another name."""
        return replace(self, name=name)

    @property
    def clickhouse_order(self) -> tuple[str, ...]:
        """The columns that ClickHouse sorts by; none where there is no key and nothing else was asked for."""
        return self.key if self.sort is None else self.sort

    @property
    def column_names(self) -> list[str]:
        """The columns' names, in order."""
        return [column.name for column in self.columns]

    def columns_of(self, *types: ColumnType) -> list[str]:
        """Names of the columns of these types, in order."""
        return [column.name for column in self.columns if column.type in types]

    def columns_within(self, *types: ColumnType) -> list[str]:
        """Names of the columns of these types and of lists of such, in order."""
        return [column.name for column in self.columns if column.innermost.type in types]

    @property
    def postgres_name(self) -> str:
        """The table's name, quoted for PostgreSQL."""
        return quote_postgres(self.name)

    @property
    def postgres_columns(self) -> str:
        """The columns' names, quoted for PostgreSQL and joined by commas."""
        return ", ".join(map(quote_postgres, self.column_names))

    @property
    def postgres_columns_as_in_frames(self) -> str:
        """`postgres_columns` for a SELECT that gives values as what they are in a dataframe: UUIDs as text."""
        return ", ".join(
            _selected(column.types.postgres_select, quote_postgres(column.name)) for column in self.columns
        )

    @property
    def postgres_key(self) -> str:
        """The key's columns, quoted for PostgreSQL and joined by commas."""
        return ", ".join(map(quote_postgres, self.key))

    @property
    def postgres_ddl(self) -> str:
        """CREATE TABLE for PostgreSQL, with the key, where there is one, as primary key."""
        if self.postgres_body:
            return f"CREATE TABLE {self.postgres_name} {self.postgres_body}"
        lines = [column.postgres_ddl for column in self.columns]
        if self.key:
            lines.append(f"PRIMARY KEY ({self.postgres_key})")
        return f"CREATE TABLE {self.postgres_name} (\n    " + ",\n    ".join(lines) + "\n)"

    @property
    def clickhouse_name(self) -> str:
        """The table's name, quoted for ClickHouse."""
        return quote_clickhouse(self.name)

    @property
    def clickhouse_columns(self) -> str:
        """The columns' names, quoted for ClickHouse and joined by commas."""
        return ", ".join(map(quote_clickhouse, self.column_names))

    @property
    def clickhouse_columns_as_in_frames(self) -> str:
        """`clickhouse_columns` for a SELECT that gives values as what they are in a dataframe: UUIDs as text."""
        return ", ".join(
            _selected(column.types.clickhouse_select, quote_clickhouse(column.name)) for column in self.columns
        )

    @property
    def clickhouse_key(self) -> str:
        """The columns that ClickHouse sorts by, quoted for it and joined by commas."""
        return ", ".join(map(quote_clickhouse, self.clickhouse_order))

    @property
    def clickhouse_structure(self) -> str:
        """Names and types of the columns, as ClickHouse's table functions take them."""
        return ", ".join(f"{quote_clickhouse(column.name)} {column.clickhouse_type}" for column in self.columns)

    @property
    def clickhouse_ddl(self) -> str:
        """CREATE TABLE for ClickHouse: a MergeTree ordered by the key, or by what else was asked for."""
        return f"CREATE TABLE {self.clickhouse_name} {self.clickhouse_body or self.clickhouse_definition()}"

    def clickhouse_definition(self, engine: str = "MergeTree", settings: str = "", *further: str) -> str:
        """What stands behind the name: columns, and `further` ones; an engine, its partitions, order and settings."""
        lines = ",\n    ".join((*(column.clickhouse_ddl for column in self.columns), *further))
        partition = (
            f"\nPARTITION BY toYYYYMM({quote_clickhouse(self.partition_by_month_of)})"
            if self.partition_by_month_of
            else ""
        )
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
        """`arrow_schema` with text and bytes behind large offsets."""
        return pa.schema([pa.field(c.name, c.arrow_large, c.nullable) for c in self.columns])

    @property
    def arrow_view_schema(self) -> pa.Schema:
        """`arrow_schema` with text and bytes as views."""
        return pa.schema([pa.field(c.name, c.arrow_view, c.nullable) for c in self.columns])

    @property
    def polars_schema(self) -> dict[str, pl.DataType]:
        """Column names to Polars dtypes."""
        return {column.name: column.types.polars for column in self.columns}

    @property
    def pandas_dtypes(self) -> dict[str, str]:
        """Column names to pandas dtypes."""
        return {column.name: column.pandas_dtype for column in self.columns}


_DIMENSIONS = tuple(f"dimension_{letter}" for letter in "abcdef")

ANALYTICS_METRICS = Table(
    name="framehaul_analytics_metrics",
    columns=(
        Column("entity_key", ColumnType.UUID),
        Column("event_date", ColumnType.DATE),
        Column("source_id", ColumnType.INT32),
        *(Column(name, ColumnType.TEXT, low_cardinality=name == "dimension_a") for name in _DIMENSIONS),
        Column("metric_1", ColumnType.INT32),
        Column("metric_2", ColumnType.INT32),
        Column("metric_3", ColumnType.INT32),
        Column("metric_value", ColumnType.FLOAT64),
    ),
    key=("entity_key", "event_date", "source_id", *_DIMENSIONS),
    partition_by_month_of="event_date",
)
"""The article's table: a UUID, a date, a source, six text dimensions, three integer metrics and one float."""

NESTED_METRICS = Table(
    name="framehaul_nested_metrics",
    columns=(
        Column("entity_key", ColumnType.UUID),
        Column("event_date", ColumnType.DATE),
        Column("source_id", ColumnType.INT32),
        Column("dimension", ColumnType.TEXT),
        Column("metric", ColumnType.INT64),
        Column("metric_value", ColumnType.FLOAT64),
        Column("amount", ColumnType.DECIMAL, exactly=decimal_types(24, 4)),
        Column("state", ColumnType.ENUM, exactly=enum_types("new", "open", "paid", "sent", "closed")),
        Column("numbers", ColumnType.LIST),
        Column("place", ColumnType.STRUCT, exactly=struct_types(
            {"name": ColumnType.TEXT.value, "latitude": ColumnType.FLOAT64.value, "code": ColumnType.INT32.value}
        )),
        Column("document", ColumnType.JSON),
    ),
    key=("entity_key", "event_date", "source_id"),
    partition_by_month_of="event_date",
)  # fmt: skip
"""Types beside each other: scalars, a decimal, an enum, a list of integers, a struct, a document of JSON."""

TABLES = {"standard": ANALYTICS_METRICS, "nested": NESTED_METRICS}
"""The tables that all techniques are measured with, by the name that TABLE has for them."""
