"""A `Table` for a frame of somebody's own, from its Arrow schema and from the values that it holds."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from framehaul.data.documents import check_document, document, first_refused
from framehaul.data.schema import (
    DATE32,
    POSTGRES_NAME_BYTES,
    Column,
    ColumnType,
    Table,
    TimeUnit,
    Types,
    decimal_types,
    enum_types,
    fixed_list_types,
    fixed_types,
    kind_of,
    list_types,
    map_types,
    nested_list_types,
    struct_types,
    timestamp_types,
    wide_decimal_types,
)
from framehaul.studies.own_data.files import DataError
from framehaul.studies.own_data.loading import (
    POLARS_DIGITS,
    ZONES,
    changed_inside,
    check_times,
    decoded,
    fitted,
    is_list,
    unwrapped,
    with_plain_dictionaries,
)
from framehaul.techniques.beyond.clickhouse_write import (
    DATES,
    FIRST_MOMENT,
    LAST_MOMENT,
    NULL_IS,
    any_outside,
    check_nested,
)
from framehaul.techniques.upsert.rows import as_compared

MOST_COLUMNS = 1600
SYSTEM_COLUMNS = {"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}
"""Names that PostgreSQL keeps for itself: https://www.postgresql.org/docs/18/ddl-system-columns.html"""
MOST_DISTINCT, REPEATED = 10_000, 10
"""LowCardinality pays up to so many texts, each there so many times on average.

The first is ClickHouse's own rule: https://clickhouse.com/docs/sql-reference/data-types/lowcardinality
"""
MOST_OF_ENUM = 2**15 - 1
"""Of ClickHouse's Enum16, numbered from 1: https://clickhouse.com/docs/sql-reference/data-types/enum"""
TEXTS = (pa.string(), pa.large_string(), pa.string_view())
STEM_CHARACTERS = 40
DAY_MS = 86_400_000

type Found = tuple[ColumnType, Types | None, str]
"""The kind of a column, its exact types where they are not those of the kind, and what is to be said of it."""

PLAIN: dict[pa.DataType, ColumnType] = {
    pa.bool_(): ColumnType.BOOL,
    pa.int16(): ColumnType.INT16,
    pa.int32(): ColumnType.INT32,
    pa.int64(): ColumnType.INT64,
    pa.float32(): ColumnType.FLOAT32,
    pa.float64(): ColumnType.FLOAT64,
    pa.string(): ColumnType.TEXT,
    pa.binary(): ColumnType.BYTES,
    pa.date32(): ColumnType.DATE,
}
WIDENED: dict[pa.DataType, tuple[ColumnType, str]] = {
    pa.int8(): (ColumnType.INT16, "PostgreSQL has no integer of 8 bits: carried in 16"),
    pa.float16(): (ColumnType.FLOAT32, "neither server has floats of 16 bits: carried in 32"),
    pa.null(): (ColumnType.TEXT, "holds nothing but NULL and has no type: carried as text"),
}
UNSIGNED: dict[pa.DataType, ColumnType] = {
    kind.value.arrow: kind for kind in (ColumnType.UINT8, ColumnType.UINT16, ColumnType.UINT32, ColumnType.UINT64)
}
INSIDE: dict[pa.DataType, Types] = (
    {
        kind.value.arrow: kind.value
        for kind in (
            ColumnType.BOOL,
            ColumnType.INT16,
            ColumnType.INT32,
            ColumnType.INT64,
            ColumnType.FLOAT32,
            ColumnType.FLOAT64,
            *UNSIGNED.values(),
        )
    }
    | dict.fromkeys((pa.string(), pa.large_string(), pa.string_view(), pa.null()), ColumnType.TEXT.value)
    | {pa.int8(): ColumnType.INT16.value, pa.date32(): DATE32}
)
"""Of what is nested; lists of scalars may have bytes as well."""
REFUSED: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (
        lambda kind: "list_view" in str(kind),
        "make lists of the views, for which Arrow has no sound cast (a Parquet file has none)",
    ),
    (pa.types.is_interval, "make it a number of days, or of microseconds"),
    (
        pa.types.is_nested,
        "numbers, booleans, text, UUIDs, dates, moments, times and durations in structs, lists and maps are, text and "
        "whole numbers as keys, and bytes in lists of nothing else: cast what else is in it to text (Polars: "
        "`bin.encode('hex')`), or make a column of each field (`unnest`) or a row of each element (`explode`)",
    ),
)
"""Types that the paths do not carry alike, and what to do; the first that fits."""


@dataclass(frozen=True)
class Mapping:
    """A column, the Arrow type that it has in the file, and what is to be said of the way from one to the other."""

    column: Column
    arrow: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Derived:
    """The table of a frame, the frame in its types, and what was decided."""

    table: Table
    content: pa.Table
    mappings: tuple[Mapping, ...]
    notes: tuple[str, ...]


def derive(content: pa.Table, stem: str, key: str = "", sort: str = "") -> Derived:
    """The table for a frame that comes from a file of this name, without its suffix.

    `key` names the columns of the primary key and `sort` those that ClickHouse sorts by, where they differ, as
    `columns_named` reads them. Raises DataError, naming column, type and remedy, for what cannot be carried.
    """
    _check_names(content.column_names)
    mappings = tuple(_mapping(name, values) for name, values in zip(content.column_names, content.columns, strict=True))
    keys = columns_named("KEY", key, content.column_names)
    order = columns_named("SORT", sort, content.column_names)
    table = Table(table_name(stem), tuple(mapping.column for mapping in mappings), keys, sort=order or None)
    try:
        carried = fitted(content, table)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"a value does not fit its column: {error}") from error
    _check_key(table, carried)
    return Derived(table, carried, mappings, (*_said_of_key(table), *_said_of_nulls(table)))


def table_name(stem: str) -> str:
    """`framehaul_` and what of a file's name goes without quotes."""
    return f"framehaul_{re.sub(r'[^a-z0-9]+', '_', stem.lower()).strip('_')[:STEM_CHARACTERS] or 'mine'}"


def columns_named(variable: str, text: str, names: list[str]) -> tuple[str, ...]:
    """The columns in `a b`, or in `a, b c` where names have blanks; raises DataError for one that is not there."""
    whole = [text.strip()] if text.strip() in names else None
    columns = whole or [name for name in (part.strip() for part in text.split("," if "," in text else None)) if name]
    for name in columns:
        if name not in names:
            raise DataError(
                f"{variable}={text!r}: there is no column {name!r} among {', '.join(names)}; "
                "between names with blanks put commas"
            )
        if columns.count(name) > 1:
            raise DataError(f"{variable}={text!r} names {name} twice: name it once")
    return tuple(columns)


NEAR_MOMENTS = dt.datetime(1900, 1, 1), dt.datetime(2299, 12, 31, 23, 59, 59, 999_999)
"""What ClickHouse had before July 2026: https://github.com/ClickHouse/ClickHouse/pull/107907"""


def holds_far_moments(content: pa.Table) -> bool:
    """Whether there is a moment, in what is nested as well, that only later versions of ClickHouse have."""
    return any(_is_far(chunk) for column in content.columns for chunk in column.chunks)


def _is_far(array: pa.Array) -> bool:
    kind = array.type
    if pa.types.is_struct(kind):
        return any(map(_is_far, array.flatten()))
    if pa.types.is_map(kind):
        return any(map(_is_far, array.values.flatten()))
    if pa.types.is_nested(kind):
        return _is_far(array.flatten())
    return pa.types.is_timestamp(kind) and any_outside(array, *NEAR_MOMENTS)


def _check_names(names: list[str]) -> None:
    if not names:
        raise DataError("the file has no columns")
    if len(names) > MOST_COLUMNS:
        raise DataError(
            f"the file has {len(names):,} columns, and a table in PostgreSQL at most {MOST_COLUMNS:,}: split it"
        )
    for at, name in enumerate(names, 1):
        if not name or "\0" in name:
            raise DataError(f"column {at} has {'a NUL character in its' if name else 'no'} name: rename it")
        if names.count(name) > 1:
            raise DataError(f"{names.count(name)} columns are called {name!r}: rename all but one")
        if len(name.encode()) > POSTGRES_NAME_BYTES:
            raise DataError(
                f"the name of column {name[:30]!r}... has {len(name.encode())} bytes, and PostgreSQL keeps "
                f"{POSTGRES_NAME_BYTES}: shorten it"
            )
        if name in SYSTEM_COLUMNS:
            raise DataError(f"PostgreSQL has a column {name} of its own in every table: rename it")


def _mapping(name: str, values: pa.ChunkedArray) -> Mapping:
    arrow = values.type
    try:
        if values.num_chunks:
            values = pa.chunked_array(map(decoded, values.chunks))
        plain = unwrapped(values)
    except pa.ArrowException as error:
        raise DataError(
            f"column {name} ({arrow}) cannot be unpacked: {error}: cast it to what is in it, or leave it out"
        ) from error
    except ValueError as error:
        raise DataError(f"column {name} ({arrow}) {error}") from error
    wrapped = next((rule for fits, rule in WRAPPED if fits(values.type)), None)
    found, rule = (
        (values, wrapped) if wrapped else (plain, next((rule for fits, rule in RULES if fits(plain.type)), None))
    )
    if rule is None:
        remedy = next((remedy for fits, remedy in REFUSED if fits(plain.type)), "cast it to another type")
        raise DataError(f"column {name} is {arrow}, which is not carried: {remedy}, or leave the column out")
    try:
        kind, exactly, why = rule(found)
        if kind in NULL_IS:
            _check_inside(plain, kind, exactly)
    except (ValueError, pa.ArrowException) as error:
        raise DataError(f"column {name} ({arrow}) {error}") from error
    inside = "" if wrapped else ", ".join(filter(None, dict.fromkeys(changed_inside(arrow))))
    notes = [note for note in (_wrapping(arrow), inside and f"inside, {inside}", why) if note]
    low_cardinality = False
    texts = pc.list_flatten(plain) if is_list(plain.type) else plain
    if texts.type == pa.string() and pc.any(pc.match_substring(texts, "\0")).as_py():
        raise DataError(
            f"column {name} ({arrow}) holds NUL characters, which PostgreSQL's text cannot: make the column "
            "binary, or take them out"
        )
    if kind is ColumnType.TEXT and plain.type == pa.string():
        distinct = pc.count_distinct(plain).as_py()
        low_cardinality = distinct <= MOST_DISTINCT and distinct * REPEATED <= len(values)
        if low_cardinality:
            notes.append(f"{distinct:,} different texts: LowCardinality in ClickHouse")
    column = Column(name, kind, plain.null_count > 0, low_cardinality, exactly)
    return Mapping(column, str(arrow), tuple(notes))


def _check_inside(values: pa.ChunkedArray, kind: ColumnType, exactly: Types | None) -> None:
    """Raises ValueError for what ClickHouse lacks: NULL in place of what is nested, and some dates and moments."""
    table = Table("it", (Column("it", kind, exactly=exactly),), ())
    try:
        check_nested(pa.table({"it": values.cast(table.columns[0].types.arrow)}), table)
    except ValueError as error:
        raise ValueError(str(error).removeprefix("column it ")) from error


def _wrapping(arrow: pa.DataType) -> str:
    """What is to be said of what Arrow wraps around values."""
    if pa.types.is_dictionary(arrow) and not _is_enum(arrow):
        return "a dictionary (categorical): carried as its values"
    if pa.types.is_run_end_encoded(arrow):
        return "run-end encoded: carried as its values"
    if isinstance(arrow, pa.BaseExtensionType) and not isinstance(arrow, pa.UuidType | pa.JsonType):
        return f"carried as the {arrow.storage_type} that it is stored as"
    return ""


def _plain(values: pa.ChunkedArray) -> Found:
    return PLAIN[values.type], None, ""


def _widened(values: pa.ChunkedArray) -> Found:
    kind, why = WIDENED[values.type]
    return kind, None, why


def _uuid(_: pa.ChunkedArray) -> Found:
    return ColumnType.UUID, None, "text in a frame: Polars has no type for UUIDs, pandas only Arrow's"


def _is_enum(kind: pa.DataType) -> bool:
    """Whether it has an order: Polars writes enums so, and pandas what is called ordered."""
    return pa.types.is_dictionary(kind) and kind.ordered and kind.value_type in TEXTS


def _enum(values: pa.ChunkedArray) -> Found:
    parts = with_plain_dictionaries(values).unify_dictionaries().chunks
    texts = parts[0].dictionary.to_pylist() if parts else []
    of = f"an enum of {len(texts):,} texts"
    if why := _no_enum(texts):
        return ColumnType.TEXT, None, f"{of}, {why}: carried as text"
    return ColumnType.ENUM, enum_types(*texts), of


def _no_enum(texts: list[str | None]) -> str:
    """Why a server has no enum of these texts; empty where both have."""
    if not texts:
        return "and ClickHouse's have at least one"
    if len(texts) > MOST_OF_ENUM:
        return f"and ClickHouse's Enum16, numbered from 1, has {MOST_OF_ENUM:,}"
    if len({*texts} - {None}) < len(texts):
        return "of which one is NULL or there twice"
    has_nul = any("\0" in (text or "") for text in texts)
    return "of which one holds a NUL character, which PostgreSQL's text cannot" if has_nul else ""


def _json(values: pa.ChunkedArray) -> Found:
    """Raises ValueError for what is no document, or one that PostgreSQL would change."""
    if found := first_refused(unwrapped(values).to_pylist(), check_document):
        row, error = found
        raise ValueError(
            f"holds in row {row:,} what PostgreSQL's jsonb does not take as it is: make the column text, "
            f"which keeps it, or change it ({error})"
        ) from error
    return ColumnType.JSON, None, "JSON is text in a frame, and a document in PostgreSQL"


def _is_documents(kind: pa.DataType) -> bool:
    """Whether JSON has all that is in a nested type."""
    if pa.types.is_map(kind):
        return kind.key_type in TEXTS and _is_in_documents(kind.item_type)
    if pa.types.is_struct(kind):
        return all(_is_in_documents(field.type) for field in kind)
    return is_list(kind) and _is_in_documents(kind.value_type)


def _is_in_documents(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return _is_documents(kind)
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or kind in (pa.bool_(), pa.null(), *TEXTS)


def _documents(values: pa.ChunkedArray) -> Found:
    """Raises ValueError for NaN, for keys that are there twice, and for what jsonb does not have."""
    if found := first_refused(values, document):
        row, error = found
        fields = "a column of each field (Polars: `unnest`), or " if pa.types.is_struct(values.type) else ""
        raise ValueError(
            f"holds in row {row:,} what PostgreSQL's jsonb does not take as it is: make {fields}text of it, "
            f"or change it ({error})"
        ) from error
    return ColumnType.JSON, None, "carried as JSON: text in a frame"


def _types_inside(kind: pa.DataType) -> Types | None:
    """The types of what is inside of nested types; None where both servers do not have it as what it is."""
    parts: list[Types | None]
    if pa.types.is_map(kind):
        parts = [_types_inside(kind.key_type), _types_inside(kind.item_type)]
        whole = kind.key_type in TEXTS or pa.types.is_integer(kind.key_type)
        return map_types(*parts) if whole and None not in parts else None  # type: ignore[arg-type]  # none is None
    if pa.types.is_struct(kind):
        fields = {kind.field(at).name: _types_inside(kind.field(at).type) for at in range(kind.num_fields)}
        named = {name: types for name, types in fields.items() if types and name}
        return struct_types(named) if 0 < len(named) == kind.num_fields else None
    if is_list(kind):
        inner = _types_inside(kind.value_type)
        make = nested_list_types if pa.types.is_nested(kind.value_type) else list_types
        return make(inner) if inner else None
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= POLARS_DIGITS:
        return decimal_types(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind) and kind.unit in ("ms", "us") and (kind.tz or "UTC") in ZONES:
        return timestamp_types(cast("TimeUnit", kind.unit), kind.tz)
    return INSIDE.get(kind)


def _nested(values: pa.ChunkedArray) -> Found:
    """As what it is; raises ValueError for what jsonb does not have."""
    _documents(values)
    types = cast("Types", _types_inside(values.type))
    in_postgres = "a document" if types.postgres == "jsonb" else types.postgres_form or types.postgres
    sizes = ", lists of a fixed size as lists of any" if _has_fixed_size(values.type) else ""
    return kind_of(types), types, f"{in_postgres} in PostgreSQL, in ClickHouse what it is{sizes}"


def _has_fixed_size(kind: pa.DataType) -> bool:
    """Whether it is, or holds, lists of a fixed size."""
    parts = (kind.field(at).type for at in range(kind.num_fields))
    return pa.types.is_fixed_size_list(kind) or any(map(_has_fixed_size, parts))


def _fixed_bytes(values: pa.ChunkedArray) -> Found:
    size = values.type.byte_width
    if not size:
        return ColumnType.BYTES, None, "bytes of no size are a fixed size that ClickHouse does not have"
    return ColumnType.FIXED_BYTES, fixed_types(size), "PostgreSQL's bytes have no fixed size: checked"


def _unsigned(values: pa.ChunkedArray) -> Found:
    kind = UNSIGNED[values.type]
    return kind, None, f"PostgreSQL has no unsigned integers: {kind.value.postgres} that is checked"


def _time(values: pa.ChunkedArray) -> Found:
    """Raises ValueError for nanoseconds, and for times that no day has."""
    check_times(values)
    return ColumnType.TIME, None, _microseconds(values, "Time64(9)", "cast to int64")


def _duration(values: pa.ChunkedArray) -> Found:
    """Raises ValueError for nanoseconds."""
    values.cast(pa.duration("us"), safe=values.type.unit != "ns")
    return ColumnType.DURATION, None, _microseconds(values, "IntervalNanosecond", "Polars: `dt.total_nanoseconds()`")


def _microseconds(values: pa.ChunkedArray, in_clickhouse: str, as_number: str) -> str:
    """What is to be said of a unit other than microseconds. Raises ValueError for nanoseconds."""
    unit = values.type.unit
    if unit == "ns" and not _are_multiples(values.cast(pa.int64()), 1000):
        raise ValueError(
            "holds nanoseconds; PostgreSQL has microseconds, and these are what is carried, though ClickHouse has "
            f"{in_clickhouse}: make it a number, which keeps them ({as_number}), or round it"
        )
    return "" if unit == "us" else f"whole units of {unit}: carried as microseconds"


def _list(values: pa.ChunkedArray) -> Found:
    return _list_of(cast("Types", _element_types(values.type)), values.type)


def _list_of(element: Types, kind: pa.DataType) -> Found:
    """Lists in Arrow's type `kind`, of a fixed size or of any."""
    if pa.types.is_fixed_size_list(kind) and kind.list_size:
        exactly = fixed_list_types(element, kind.list_size)
        why = "a list of so many in each value: PostgreSQL checks it, ClickHouse does not"
        return ColumnType.FIXED_LIST, exactly, why
    types = list_types(element)
    checked = f"{types.postgres_form} in PostgreSQL; " if types.postgres_form else ""
    return ColumnType.LIST, types, f"{checked}Python's lists in pandas: numpy's arrays have no NULL"


def _element_types(kind: pa.DataType) -> Types | None:
    """The types of the scalars in lists; None for lists of what is nested, or not carried."""
    if not is_list(kind) or pa.types.is_nested(kind.value_type):
        return None
    return ColumnType.BYTES.value if kind.value_type == pa.binary() else _types_inside(kind.value_type)


def _list_of_uuids(values: pa.ChunkedArray) -> Found:
    kind, exactly, why = _list_of(ColumnType.UUID.value, values.type)
    return kind, exactly, f"{why}; UUIDs are text there"


def _list_of_enum(values: pa.ChunkedArray) -> Found:
    kind, exactly, of = _enum(pc.list_flatten(values))
    listed, types, why = _list_of(exactly or kind.value, values.type)
    return listed, types, f"{why}; {of}"


def _list_of_times(values: pa.ChunkedArray) -> Found:
    kind, exactly, why = _list_of(ColumnType.TIME.value, values.type)
    unit = values.type.value_type.unit
    return kind, exactly, why if unit == "us" else f"{why}; whole units of {unit}: carried as microseconds"


def _is_list_of(kind: pa.DataType, fits: Callable[[pa.DataType], bool]) -> bool:
    return is_list(kind) and fits(kind.value_type)


def _date(values: pa.ChunkedArray) -> Found:
    """Raises ValueError for dates that ClickHouse does not have."""
    days = pl.Series(values=values)
    least, most = (_shown(end, "D") for end in _ends(days))
    for types in (ColumnType.DATE.value, DATE32):
        first, last, _ = DATES[types.clickhouse]
        if days.is_between(first, last).all():
            why = f"dates from {least} to {most}: ClickHouse's `Date` has fewer" if types is DATE32 else ""
            return ColumnType.DATE, DATE32 if why else None, why
    raise ValueError(
        f"holds dates from {least} to {most}, and ClickHouse's Date32 has {first} to {last}: make the column "
        "text, or replace those outside by NULL"
    )


def _ends(values: pl.Series) -> tuple[int, int]:
    """The least and the greatest of what dates or timestamps count, 0 where all are NULL."""
    counted = values.to_physical().drop_nulls().to_numpy()
    return (int(counted.min()), int(counted.max())) if len(counted) else (0, 0)


def _shown(count: int, unit: str) -> str:
    """A date or a moment, of any year: Python's own have those from 1 to 9999."""
    return str(np.array(count).astype(f"datetime64[{unit}]"))


def _date64(values: pa.ChunkedArray) -> Found:
    """Raises ValueError for dates that ClickHouse does not have."""
    if _are_multiples(values.cast(pa.int64()), DAY_MS):
        kind, exactly, why = _date(values.cast(pa.date32()))
        return kind, exactly, why or "all of it whole days"
    kind, exactly, _ = _timestamp(values.cast(pa.timestamp("ms")))
    return kind, exactly, "not all of it whole days: carried as timestamps"


def _decimal(values: pa.ChunkedArray) -> Found:
    """Raises ArrowInvalid where values have more digits than Polars holds."""
    precision, scale = values.type.precision, values.type.scale
    if precision > POLARS_DIGITS and 0 <= scale <= precision:
        try:
            values.cast(pa.decimal128(POLARS_DIGITS, scale))
        except pa.ArrowInvalid:
            types = wide_decimal_types(precision, scale)
            return ColumnType.WIDE_DECIMAL, types, "text in a frame: Polars has 38 digits, pandas more only in Arrow's"
    if precision > POLARS_DIGITS or scale < 0:
        values.cast(pa.decimal128(POLARS_DIGITS, max(scale, 0)))
        types = decimal_types(POLARS_DIGITS, max(scale, 0))
        return ColumnType.DECIMAL, types, f"its values fit into {POLARS_DIGITS} digits"
    return ColumnType.DECIMAL, decimal_types(max(precision, scale), scale), ""


def _timestamp(values: pa.ChunkedArray) -> Found:
    """Raises ValueError for nanoseconds, and for moments that a server does not have."""
    if _holds_nanoseconds(values):
        raise ValueError(
            "holds nanoseconds, and PostgreSQL has microseconds: make it a number, which keeps them (cast to int64), "
            "or cut them off (Polars: `dt.cast_time_unit('us')`)"
        )
    return _moments(values, ["whole microseconds, which is what PostgreSQL keeps"] if values.type.unit == "ns" else [])


def _holds_nanoseconds(values: pa.ChunkedArray) -> bool:
    """Whether they are timestamps of which one is no whole number of microseconds."""
    if not pa.types.is_timestamp(values.type) or values.type.unit != "ns":
        return False
    return not _are_multiples(values.cast(pa.int64()), 1000)


def _moments(values: pa.ChunkedArray, why: list[str]) -> Found:
    """`why` is what is to be said already. Raises ValueError for moments that a server does not have."""
    unit, zone = values.type.unit, values.type.tz
    if unit == "s":
        unit = "ms"
        why.append("Polars has no unit of seconds: carried as milliseconds")
    if zone and zone not in ZONES:
        why.append(f"its zone {zone} is only an offset, or unknown here: carried in UTC, the same moments")
        zone = "UTC"
    elif zone:
        why.append("PostgreSQL keeps the moment, and not the zone")
    timestamps = pl.Series(values=values.cast(pa.timestamp(unit))).dt.cast_time_unit("ms")
    if not timestamps.is_between(FIRST_MOMENT, LAST_MOMENT).all():
        least, most = (_shown(end, "ms") for end in _ends(timestamps))
        raise ValueError(
            f"holds moments from {least} to {most}, and ClickHouse's DateTime64 has "
            "year 1 to 9999: make the column text, or replace those outside by NULL"
        )
    exactly = timestamp_types(cast("TimeUnit", unit), zone)
    kind = ColumnType.TIMESTAMP_UTC if zone else ColumnType.TIMESTAMP
    if unit == "ns":
        kind = ColumnType.TIMESTAMP_NS
    return kind, None if exactly == kind.value else exactly, "; ".join(why)


def _are_multiples(numbers: pa.ChunkedArray, of: int) -> bool:
    """Whether all numbers but NULL are multiples of another."""
    return pc.all(pc.equal(pc.multiply(pc.divide(numbers, of), of), numbers)).as_py() is not False


RULES: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.ChunkedArray], Found]], ...] = (
    (lambda kind: kind == pa.date32(), _date),
    (PLAIN.__contains__, _plain),
    (WIDENED.__contains__, _widened),
    (UNSIGNED.__contains__, _unsigned),
    (pa.types.is_time, _time),
    (pa.types.is_duration, _duration),
    (lambda kind: _element_types(kind) is not None, _list),
    (lambda kind: pa.types.is_nested(kind) and _types_inside(kind) is not None, _nested),
    (pa.types.is_date64, _date64),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_fixed_size_binary, _fixed_bytes),
    (_is_documents, _documents),
)
"""How the type of a column is found, for every Arrow type that is carried."""
WRAPPED: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.ChunkedArray], Found]], ...] = (
    (lambda kind: kind == pa.uuid(), _uuid),
    (lambda kind: isinstance(kind, pa.JsonType), _json),
    (_is_enum, _enum),
    (lambda kind: _is_list_of(kind, pa.uuid().equals), _list_of_uuids),
    (lambda kind: _is_list_of(kind, _is_enum), _list_of_enum),
    (lambda kind: _is_list_of(kind, pa.types.is_time), _list_of_times),
)
"""Those that what Arrow wraps around values decides; they come before the others, and get the values as they are."""


def _check_key(table: Table, content: pa.Table) -> None:
    """Raises DataError for a key that PostgreSQL would not take, or an order that ClickHouse would not."""
    for variable, names in (("KEY", table.key), ("SORT", table.sort or ())):
        for name in names:
            if (kind := next(column for column in table.columns if column.name == name)).type in NULL_IS:
                raise DataError(
                    f"{variable}={' '.join(names)!r}: column {name} is {kind.types.clickhouse}, by which ClickHouse "
                    "does not sort, as there may be NULL in it: leave it out"
                )
            missing = pl.Series(values=content.column(name)).is_null()
            if missing.any():
                raise DataError(
                    f"{variable}={' '.join(names)!r}: column {name} holds {missing.sum():,} "
                    f"NULL{'s' * (missing.sum() > 1)}, the first in row "
                    f"{missing.arg_max():,}, which neither a key nor an order may: leave it out, or fill them"
                )
    if not table.key:
        return
    keys = as_compared(cast("pl.DataFrame", pl.from_arrow(content.select(table.key))), table)
    repeated = keys.filter(keys.is_duplicated())
    if not repeated.is_empty():
        first = repeated.row(0, named=True)
        times = keys.join(repeated.head(1), on=list(table.key), how="semi").height
        shown = ", ".join(f"{name} = {value}" for name, value in first.items())
        raise DataError(
            f"KEY={' '.join(table.key)!r} is not unique: {repeated.unique().height:,} of its values repeat, first "
            f"{shown} ({times} times). Add a column to it, or give SORT instead"
        )


def _said_of_key(table: Table) -> list[str]:
    """What the reader should know about key and order."""
    key, order = ", ".join(table.key), ", ".join(table.clickhouse_order)
    notes = [
        f"PostgreSQL's primary key: {key}." if key
        else "No key was given: PostgreSQL's table has no primary key and no index, so nothing keeps a row from being "
        "there twice.",
        f"ClickHouse sorts by {order}." if order
        else "Neither a key nor an order was given: ClickHouse stores rows as they come, `ORDER BY tuple()`, and can "
        "skip none of them in a query.",
    ]  # fmt: skip
    if not key or not order:
        notes.append("Techniques about the order of a key are skipped. `KEY='a b'` and `SORT='b a'` name columns.")
    return notes


def _said_of_nulls(table: Table) -> list[str]:
    nullable = [column.name for column in table.columns if column.nullable]
    return [
        "A column may be NULL where it holds one in the rows that were read"
        + (f": {', '.join(nullable)}." if nullable else "; none does.")
    ]
