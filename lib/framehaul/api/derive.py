"""Derive a `Table` from the Arrow schema of a frame and the values that it holds."""

import zoneinfo
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from framehaul.api.types import POLARS_DIGITS
from framehaul.data import schema
from framehaul.data.documents import TEXTS, check_document, document, first_refused
from framehaul.data.frames import is_list, unwrapped
from framehaul.data.schema import DATE32, POSTGRES_NAME_BYTES, Column, Table, TimeUnit, Types
from framehaul.data.schema import ColumnType as T
from framehaul.errors import FrameError
from framehaul.techniques.prepare import DATES, FIRST_MOMENT, LAST_MOMENT, NULL_IS, any_outside, check_for_clickhouse
from framehaul.techniques.upsert.rows import as_compared

MOST_COLUMNS = 1600
SYSTEM_COLUMNS = {"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}
"""Column names that PostgreSQL reserves: https://www.postgresql.org/docs/18/ddl-system-columns.html"""
CLICKHOUSE_COLUMNS = {"_block_number", "_block_offset", "_row_exists"}
"""Columns that a MergeTree stores for itself: https://clickhouse.com/docs/engines/table-engines/mergetree-family/mergetree"""
MOST_DISTINCT, REPEATED = 10_000, 10
"""A column with at most so many texts, each repeated so often on average, becomes LowCardinality.

The first number is ClickHouse's own advice: https://clickhouse.com/docs/sql-reference/data-types/lowcardinality
"""
MOST_OF_ENUM = 2**15 - 1
"""The largest number of texts in ClickHouse's Enum16, numbered from 1: https://clickhouse.com/docs/sql-reference/data-types/enum"""
ZONES = zoneinfo.available_timezones()
"""Names of time zones, which ClickHouse has as well."""

type Choice = tuple[T, Types | None, str]
"""The kind of a column, its exact types where they differ from those of the kind, and a note for the reader."""

CHECKED = "PostgreSQL has no unsigned integers: a wider type, checked"
SIZED = "PostgreSQL's bytes have no fixed size: checked"
PLAIN: dict[pa.DataType, tuple[T, str]] = {
    **{kind.value.arrow: (kind, CHECKED) for kind in (T.UINT8, T.UINT16, T.UINT32, T.UINT64)},
    **{kind.value.arrow: (kind, "") for kind in (T.BOOL, T.INT16, T.INT32, T.INT64, T.FLOAT32, T.FLOAT64)},
    **{kind.value.arrow: (kind, "") for kind in (T.TEXT, T.BYTES)},
    pa.int8(): (T.INT16, "PostgreSQL has no integer of 8 bits: carried in 16"),
    pa.float16(): (T.FLOAT32, "neither server has floats of 16 bits: carried in 32"),
    pa.null(): (T.TEXT, "holds nothing but NULL and has no type: carried as text"),
}
IN_NESTED = (
    "numbers, booleans, text, dates, and timestamps in structs, lists and maps are, with text and whole numbers as "
    "keys, and UUIDs, times and bytes in lists of nothing else: cast what else is in it to text (Polars: "
    "`bin.encode('hex')`), or make a column of each field (`unnest`) or a row of each element (`explode`)"
)


class Mapping(NamedTuple):
    """A column, its Arrow type in the file, and notes on how it is carried."""

    column: Column
    arrow: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Derived:
    """The table of a frame, the frame in the types of that table, and the decisions made."""

    table: Table
    content: pa.Table
    mappings: tuple[Mapping, ...]
    notes: tuple[str, ...]


def derive(content: pa.Table, name: str, key: Sequence[str] = (), sort: Sequence[str] = ()) -> Derived:
    """Return the table of this name for a frame.

    `key` names the columns of the primary key and `sort` those that ClickHouse sorts by, where they differ. Raises
    FrameError, naming column, type and remedy, for what cannot be carried.
    """
    names = content.column_names
    _check_names(names)
    mappings, carried = zip(*map(_carried, names, content.columns), strict=True)
    for column in (*key, *sort):
        if column not in names:
            raise FrameError(f"the key names {column!r}, and the frame has the columns {', '.join(names)}")
    table = Table(name, tuple(mapping.column for mapping in mappings), tuple(key), sort=tuple(sort) or None)
    rows = pa.Table.from_arrays(list(carried), schema=table.arrow_schema)
    _check_nested(table, rows)
    _check_key(table, rows)
    notes = (
        "A column may be NULL where it holds one in the rows that were read.",
        "Without a key PostgreSQL's table has no primary key, and ClickHouse's no order but that of columns to sort "
        "by. Techniques about the order of a key are skipped.",
    )
    return Derived(table, rows, mappings, notes[:1] if key else notes)


def _check_names(names: list[str]) -> None:
    if not names:
        raise FrameError("the frame has no columns")
    if len(names) > MOST_COLUMNS:
        raise FrameError(f"the frame has {len(names):,} columns, and PostgreSQL's tables {MOST_COLUMNS:,}: split it")
    for at, name in enumerate(names, 1):
        if not name or "\0" in name:
            raise FrameError(f"column {at} has {'a NUL character in its' if name else 'no'} name: rename it")
        if names.count(name) > 1:
            raise FrameError(f"{names.count(name)} columns are called {name!r}: rename all but one")
        if (size := len(name.encode())) > POSTGRES_NAME_BYTES:
            kept = f"and PostgreSQL keeps {POSTGRES_NAME_BYTES}: shorten it"
            raise FrameError(f"the name of column {name[:30]!r}... has {size} bytes, {kept}")
        for server, taken in (("PostgreSQL", SYSTEM_COLUMNS), ("ClickHouse", CLICKHOUSE_COLUMNS)):
            if name in taken:
                raise FrameError(f"{server} has a column {name} of its own in every table: rename it")


def _check_nested(table: Table, rows: pa.Table) -> None:
    """Raise FrameError for lists and maps that ClickHouse takes for columns of one Nested: lists of one length.

    Source: https://clickhouse.com/docs/sql-reference/data-types/nested-data-structures/nested
    """
    first = dict[str, tuple[str, pa.ChunkedArray | None]]()
    for column, values in zip(table.columns, rows.columns, strict=True):
        prefix, dot, _ = column.name.partition(".")
        if not dot or not column.clickhouse_type.startswith(("Array(", "Map(")):
            continue
        lengths = pc.list_value_length(values) if is_list(values.type) else None
        name, others = first.setdefault(prefix, (column.name, lengths))
        if name != column.name and (lengths is None or others is None or not lengths.equals(others)):
            what = f"{name} and {column.name} hold lists of other lengths, or maps"
            raise FrameError(f"{what}, and ClickHouse makes one Nested of them: rename one without its point")


def _carried(name: str, values: pa.ChunkedArray) -> tuple[Mapping, pa.ChunkedArray]:
    """Return a column of the table and its values in the type of that column; raises FrameError."""
    arrow = values.type
    try:
        (kind, exactly, note), plain = _choose(values)
        column = Column(name, kind, plain.null_count > 0, exactly=exactly)
        carried = plain.cast(column.types.arrow)
        if kind in NULL_IS:
            check_for_clickhouse(pa.table({name: carried}), Table("it", (column,), ()))
    except pa.ArrowException as error:
        remedy = "Cast it to text, or moments and times to numbers, or leave it out"
        raise FrameError(f"column {name} ({arrow}) holds what is not carried: {error}. {remedy}") from error
    except ValueError as error:
        raise FrameError(f"column {name} ({arrow}) {str(error).removeprefix(f'column {name} ')}") from error
    texts = pc.list_flatten(carried) if is_list(carried.type) else carried
    if texts.type == pa.string() and pc.any(pc.match_substring(texts, "\0")).as_py():
        said = "holds NUL characters, which PostgreSQL's text cannot: make it binary, or take them out"
        raise FrameError(f"column {name} ({arrow}) {said}")
    notes = [note] if note else []
    if pa.types.is_dictionary(arrow) and kind is not T.ENUM:
        notes.append("a dictionary (categorical): carried as its values")
    if kind is T.TEXT:
        distinct = pc.count_distinct(carried).as_py()
        if 0 < distinct <= MOST_DISTINCT and distinct * REPEATED <= len(carried):
            notes.append(f"{distinct:,} different texts: LowCardinality in ClickHouse")
            column = replace(column, low_cardinality=True)
    return Mapping(column, str(arrow), tuple(notes)), carried


def _choose(values: pa.ChunkedArray) -> tuple[Choice, pa.ChunkedArray]:
    """Choose the kind of a column, and return it with the plain values; raises ValueError."""
    kind, plain = values.type, unwrapped(values)
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    if inner == pa.uuid():
        return (T.UUID, None, "text in a frame: Polars has no type for UUIDs, pandas only Arrow's"), plain
    if isinstance(inner, pa.JsonType):
        _check_documents(plain.to_pylist(), check_document)
        return (T.JSON, None, "JSON is text in a frame, and a document in PostgreSQL"), plain
    if pa.types.is_dictionary(kind) and kind.ordered and inner in TEXTS:
        return _enum(values), plain
    if is_list(kind) and kind.value_type == pa.uuid():
        return _list_of(T.UUID.value, kind), plain
    is_stored_as_others = isinstance(inner, pa.BaseExtensionType)  # as pandas' periods are
    if plain.type in PLAIN and not is_stored_as_others:
        of, note = PLAIN[plain.type]
        return (of, None, note), plain
    for fits, rule in RULES:
        if fits(plain.type) and not is_stored_as_others:
            found = rule(plain)
            if found[0] is T.WIDE_DECIMAL:  # as text, without exponents
                digits = [None if value is None else f"{value:f}" for value in plain.to_pylist()]
                plain = pa.chunked_array([digits], pa.string())
            return found, plain
    remedy = IN_NESTED if pa.types.is_nested(kind) else "cast it to text or numbers"
    raise ValueError(f"is of a type that is not carried: {remedy}, or leave the column out")


def _check_documents(values: Iterable[Any], check: Callable[[Any], object]) -> None:
    if found := first_refused(values, check):
        row, error = found
        remedy = f"make it text, or change it ({error})"
        raise ValueError(f"holds in row {row:,} what PostgreSQL's jsonb does not take as it is: {remedy}") from error


def _enum(values: pa.ChunkedArray) -> Choice:
    """Choose an enum for an ordered dictionary: Polars writes enums so, pandas ordered categoricals."""
    texts = [*dict.fromkeys(text for chunk in values.chunks for text in chunk.dictionary.to_pylist())]
    note = f"an enum of {len(texts):,} texts"
    if 0 < len(texts) <= MOST_OF_ENUM and len({*texts} - {None}) == len(texts) and "\0" not in "".join(texts):
        return T.ENUM, schema.enum_types(*texts), note
    return T.TEXT, None, f"{note}, which one of the servers cannot hold: carried as text"


def _date(values: pa.ChunkedArray) -> Choice:
    if not any_outside(values, *DATES["Date"][:2]):
        return T.DATE, None, ""
    _check_range(values, "D", *DATES["Date32"][:2])
    return T.DATE, DATE32, ""


def _check_range(values: pa.ChunkedArray, unit: Any, first: Any, last: Any) -> None:
    """Raise ValueError for dates or moments that ClickHouse does not have; numpy formats any year."""
    if any_outside(values, first, last):
        ends = pc.min_max(values.cast(pa.int32() if unit == "D" else pa.int64())).as_py().values()
        least, most = (np.datetime64(end, unit) for end in ends)
        remedy = "make the column text, or replace those outside by NULL"
        raise ValueError(f"holds values from {least} to {most}, and ClickHouse has {first} to {last}: {remedy}")


def _timestamp(values: pa.ChunkedArray) -> Choice:
    """Choose a timestamp; raises ValueError for nanoseconds, and for moments that a server does not have."""
    unit, zone, notes = values.type.unit, values.type.tz, list[str]()
    if unit == "ns":
        _microseconds(values, pa.timestamp("us", zone))
        notes.append("whole microseconds, which is what PostgreSQL keeps")
    else:
        _check_range(values, unit, FIRST_MOMENT, LAST_MOMENT)
    if zone and zone not in ZONES:
        notes.append(f"its zone {zone} is only an offset, or unknown here: carried in UTC, the same moments")
    elif zone:
        notes.append("PostgreSQL keeps the moment, and not the zone")
    types = _moments(values.type)
    kind = T.TIMESTAMP_NS if unit == "ns" else T.TIMESTAMP_UTC if zone else T.TIMESTAMP
    return kind, None if types == kind.value else types, "; ".join(notes)


def _moments(kind: pa.DataType) -> Types:
    """Return the types of a timestamp: Polars has no seconds, and both servers take zones by name only."""
    zone = "UTC" if kind.tz and kind.tz not in ZONES else kind.tz
    return schema.timestamp_types(cast("TimeUnit", "ms" if kind.unit == "s" else kind.unit), zone)


def _microseconds(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return values in microseconds; raises ValueError where that loses nanoseconds."""
    try:
        return values.cast(kind)
    except pa.ArrowInvalid as error:
        if values.type.unit != "ns":
            raise
        remedy = "make it a number, which keeps them (cast to int64), or round it (Polars: `dt.cast_time_unit('us')`)"
        raise ValueError(f"holds nanoseconds, and PostgreSQL has microseconds: {remedy}") from error


def _time_or_duration(values: pa.ChunkedArray) -> Choice:
    is_time = pa.types.is_time(values.type)
    _microseconds(values, pa.time64("us") if is_time else pa.duration("us"))
    return T.TIME if is_time else T.DURATION, None, ""


def _decimal(values: pa.ChunkedArray) -> Choice:
    precision, scale = values.type.precision, values.type.scale
    if not 0 <= scale <= precision:
        raise ValueError("has a scale that no decimal has on the servers: cast it to another decimal")
    if precision <= POLARS_DIGITS:
        return T.DECIMAL, schema.decimal_types(precision, scale), ""
    note = "text in a frame: Polars has 38 digits, pandas more only in Arrow's"
    return T.WIDE_DECIMAL, schema.wide_decimal_types(precision, scale), note


def _list(values: pa.ChunkedArray) -> Choice:
    if pa.types.is_time(values.type.value_type):
        _microseconds(pc.list_flatten(values), pa.time64("us"))
    return _list_of(cast("Types", _element_types(values.type)), values.type)


def _list_of(element: Types, kind: pa.DataType) -> Choice:
    """Choose a list of these elements for Arrow's type `kind`, of a fixed size or of any."""
    if pa.types.is_fixed_size_list(kind) and kind.list_size:
        note = "a list of so many in each value: PostgreSQL checks it, ClickHouse does not"
        return T.FIXED_LIST, schema.fixed_list_types(element, kind.list_size), note
    return T.LIST, schema.list_types(element), "Python's lists in pandas: numpy's arrays have no NULL"


def _element_types(kind: pa.DataType) -> Types | None:
    """Return the types of scalars in a list; None for nested elements and elements that are not carried."""
    if not is_list(kind) or pa.types.is_nested(kind.value_type):
        return None
    if pa.types.is_time(kind.value_type):
        return T.TIME.value
    if "binary" in str(kind.value_type):  # of any size, a fixed one, or views
        return T.BYTES.value
    return types_inside(kind.value_type)


def _nested(values: pa.ChunkedArray) -> Choice:
    """Choose a struct, a map or a nested list; raises ValueError for values that jsonb does not have."""
    types = cast("Types", types_inside(values.type))
    _check_documents(values.cast(types.arrow), document)
    in_postgres = "a document" if types.postgres == "jsonb" else types.postgres_form or types.postgres
    return schema.kind_of(types), types, f"{in_postgres} in PostgreSQL, in ClickHouse what it is"


def types_inside(kind: pa.DataType) -> Types | None:
    """Return the types of an element of nested types; None where a server cannot hold it in its own type."""
    if pa.types.is_dictionary(kind):
        return types_inside(kind.value_type)
    if pa.types.is_map(kind):
        key, item = types_inside(kind.key_type), types_inside(kind.item_type)
        whole = kind.key_type in TEXTS or pa.types.is_integer(kind.key_type)
        return schema.map_types(key, item) if whole and key and item else None
    if pa.types.is_struct(kind):
        named = {field.name: types for field in kind if (types := types_inside(field.type)) and field.name}
        return schema.struct_types(named) if 0 < len(named) == kind.num_fields else None
    if is_list(kind):
        inner = types_inside(kind.value_type)
        make = schema.nested_list_types if pa.types.is_nested(kind.value_type) else schema.list_types
        return make(inner) if inner else None
    return _scalar_inside(kind)


def _scalar_inside(kind: pa.DataType) -> Types | None:
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= POLARS_DIGITS:
        return schema.decimal_types(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return _moments(pa.timestamp("us", kind.tz) if kind.unit == "ns" else kind)
    if kind in TEXTS or isinstance(kind, pa.JsonType):
        return T.TEXT.value
    if kind == pa.date32():
        return DATE32
    return PLAIN[kind][0].value if kind in PLAIN and kind != pa.binary() else None


RULES: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.ChunkedArray], Choice]], ...] = (
    (pa.types.is_date32, _date),
    (pa.types.is_timestamp, _timestamp),
    (lambda kind: pa.types.is_time(kind) or pa.types.is_duration(kind), _time_or_duration),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_fixed_size_binary, lambda found: (T.FIXED_BYTES, schema.fixed_types(found.type.byte_width), SIZED)),
    (lambda kind: _element_types(kind) is not None, _list),
    (lambda kind: pa.types.is_nested(kind) and types_inside(kind) is not None, _nested),
)
"""For each Arrow type that is not in `PLAIN`, the function that chooses the type of a column."""


def _check_key(table: Table, content: pa.Table) -> None:
    """Raise FrameError for a key that PostgreSQL would not take, or an order that ClickHouse would not take."""
    for what, names in (("key", table.key), ("sort", table.sort or ())):
        for name in names:
            said = f"{what} {', '.join(names)}: column {name}"
            kind = next(column for column in table.columns if column.name == name)
            if kind.type in NULL_IS:
                raise FrameError(f"{said} is {kind.types.clickhouse}, by which ClickHouse does not sort: leave it out")
            if count := content.column(name).null_count:
                first = pc.index(content.column(name).is_null(), True).as_py()
                nulls = f"{count:,} NULL{'s' * (count > 1)}, the first in row {first:,}"
                raise FrameError(
                    f"{said} holds {nulls}, which neither a key nor an order may: leave it out, or fill them"
                )
    if not table.key:
        return
    keys = as_compared(cast("pl.DataFrame", pl.from_arrow(content.select(table.key))), table)
    repeated = keys.filter(keys.is_duplicated())
    if not repeated.is_empty():
        first = repeated.row(0, named=True)
        times = keys.join(repeated.head(1), on=list(table.key), how="semi").height
        shown = f"{', '.join(f'{name} = {value}' for name, value in first.items())} ({times} times)"
        said = f"key {', '.join(table.key)} is not unique: {repeated.unique().height:,} of its values repeat"
        raise FrameError(f"{said}, first {shown}. Add a column to it, or sort by it instead")
