"""Generation of rows for any `Table`: the same seed returns the same values on every machine and version.

Values come from a counter-based generator (SplitMix64) that is written out here, because numpy's `Generator` methods
may change their streams between releases: https://numpy.org/doc/stable/reference/random/compatibility.html
"""

import datetime as dt
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from framehaul.data.frames import enum_values, to_polars, uuid_texts
from framehaul.data.schema import ARRAYS, LONG_NUMBERS, NESTED, Column, Table
from framehaul.data.schema import ColumnType as T

UInt64s = npt.NDArray[np.uint64]

FIRST_DAY = dt.date(2025, 1, 1)
DAYS = 365
ROWS_PER_ENTITY = 4
"""Rows per entity, on different days: entity keys repeat, pairs of an entity key and a date do not."""
EDGE_CASE_SHARE = 100
"""One row in this many has edge-case text, in a randomly chosen text column."""
DAY_MICROSECONDS = 86_400_000_000
TIMESTAMP_TICKS = 10**15
"""The first tick of timestamps, and the number of ticks that they cover."""
NULL_SHARE = 10
"""One value in this many is NULL in a nullable column."""

EDGE_CASE_TEXTS = (
    "",
    "tab\there",
    "line\nbreak",
    "carriage\r\nreturn",
    'say "hello"',
    "it's",
    "back\\slash",
    "C:\\new\\table",
    "comma, semicolon; pipe|",
    " leading and trailing ",
    "Grüße, Ελλάδα, 東京, עברית",
    "emoji \U0001f680\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "e\u0301 is not \u00e9",
    "100% :name {x} $1 ?",
    "007",
    "1e5",
    "true",
    "2025-01-01",
)
"""Values that occur in real text and break text formats."""

CARDINALITIES = (24, 200, 1_000, 10_000, 50_000, 250_000)
"""Distinct texts per text column by position, varied as in real tables; more columns start over."""
WORDS = ("north", "cart", "mobile", "search", "promo", "video", "retail", "beta", "signup", "email", "organic", "paid")


def arrow_table(table: Table, rows: int, seed: int) -> pa.Table:
    """Return generated rows as an Arrow table in `table.arrow_schema`."""
    texts = table.columns_of(T.TEXT)
    arrays = []
    for position, column in enumerate(table.columns):
        values = _values(table, column, position, rows, seed)
        if column.name in texts:
            values = _with_edge_case_texts(values, texts.index(column.name), len(texts), rows, seed)
        arrays.append(_with_nulls(values, column, _random(rows, seed, 1_000 + position)))
    return pa.Table.from_arrays(arrays, schema=table.arrow_schema)


def polars_frame(table: Table, rows: int, seed: int) -> pl.DataFrame:
    """Return generated rows as a Polars frame with the dtypes of `table.polars_schema`."""
    return to_polars(arrow_table(table, rows, seed), table)


def _values(table: Table, column: Column, position: int, rows: int, seed: int) -> pa.Array:
    random = _random(rows, seed, position)
    match column.type:
        case T.UUID:
            return _uuids(_visits(rows)[1], seed, position)
        case T.DATE:
            # The visits of an entity are spread so that no two are on one day.
            visit, entity = _visits(rows)
            first = _hash(entity, seed, position) % np.uint64(DAYS)
            days = (first + visit * np.uint64(DAYS // ROWS_PER_ENTITY)) % np.uint64(DAYS)
            start = (FIRST_DAY - dt.date(1970, 1, 1)).days
            return pa.array((days + np.uint64(start)).astype(np.int32), pa.int32()).cast(pa.date32())
        case T.INT32:
            # An integer in the key is a source with few values; any other is a metric with many.
            spread = 50 if column.name in table.key else 1_000_000
            return pa.array((random % np.uint64(spread)).astype(np.int32) - np.int32(spread // 10))
        case T.FLOAT32 | T.FLOAT64:
            floats = (random >> np.uint64(11)).astype(np.float64) * 2.0**-53 * 1e4 - 500.0
            return pa.array(floats).cast(column.types.arrow, safe=False)
        case T.TEXT:
            ordinal = table.columns_of(T.TEXT).index(column.name)
            cardinality = CARDINALITIES[ordinal % len(CARDINALITIES)]
            codes = (random % np.uint64(cardinality)).astype(np.int32)
            used = np.bincount(codes) > 0  # few rows need few words of a vocabulary of up to 250,000
            vocabulary = pa.array([_phrase(code) for code in np.flatnonzero(used).tolist()], pa.string())
            return vocabulary.take(pa.array((np.cumsum(used) - 1)[codes]))
        case _:
            return PLAIN.get(column.type, _ticks)(column, random)


def _numbers(random: UInt64s) -> pa.Array:
    """Return signed integers of 40 bits."""
    return pa.array(random.astype(np.int64) >> np.int64(24))


def _fixed_bytes(random: UInt64s, size: int) -> pa.Array:
    raw = np.repeat(random.reshape(-1, 1), -(-size // 8), axis=1).view(np.uint8)[:, :size].tobytes()
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), len(random), [None, pa.py_buffer(raw)])


def _enums(column: Column, random: UInt64s) -> pa.Array:
    values = pa.array(enum_values(column), pa.string())
    return values.take(pa.array((random % np.uint64(len(values))).astype(np.int32)))


def _nested(column: Column, random: UInt64s) -> pa.Array:
    """Return lists or maps of up to three values, lists of a fixed size, or structs; nullable fields may be NULL."""
    kind, offsets = column.types.arrow, np.append(0, np.cumsum(random % np.uint64(4))).astype(np.int32)
    if column.type is T.FIXED_LIST:
        values = _inner(column.element, kind.list_size * len(random), random)
        return pa.FixedSizeListArray.from_arrays(values, kind.list_size)
    if column.type is T.STRUCT:
        parts = [
            _with_nulls(_inner(field, len(random), random + np.uint64(at)), field, random >> np.uint64(at))
            for at, field in enumerate(column.fields)
        ]
        return pa.StructArray.from_arrays(parts, [field.name for field in column.fields])
    values = _inner(column.fields[1] if column.type is T.MAP else column.element, int(offsets[-1]), random)
    if column.type is T.MAP:
        keys = pa.array(np.arange(len(values)).astype(str)).cast(kind.key_type)
        return pa.MapArray.from_arrays(offsets, keys, values)
    return pa.ListArray.from_arrays(offsets, values)


def _inner(column: Column, count: int, random: UInt64s) -> pa.Array:
    """Return `count` values for the elements or a field of a nested type."""
    seed = int(random[0]) if len(random) else 0
    return _values(Table("elements", (column,), ()), column, 0, count, seed).cast(column.types.arrow)


def _with_nulls(values: pa.Array, column: Column, random: UInt64s) -> pa.Array:
    """Return the values, some of which are NULL if the column is nullable."""
    if not column.nullable:
        return values
    return pc.if_else(pa.array(random % np.uint64(NULL_SHARE) == 0), pa.scalar(None, values.type), values)


def _wide(column: Column, random: UInt64s) -> pa.Array:
    least = 0 if column.types.clickhouse.startswith("U") else -(2**63)
    return pa.array([str(int(each) + least) + "0" * 15 for each in random], pa.string())


def _ticks(column: Column, random: UInt64s) -> pa.Array:
    """Return timestamps or durations; timestamps are from 2001 to 2033, those in nanoseconds from January 1970."""
    ticks = (random % np.uint64(TIMESTAMP_TICKS)).astype(np.int64) + np.int64(TIMESTAMP_TICKS)
    return pa.array(ticks).cast(column.types.arrow)


PLAIN: dict[T, Callable[[Column, UInt64s], pa.Array]] = {
    T.BOOL: lambda _, random: pa.array(random % np.uint64(2) == 1),
    T.INT16: lambda _, random: pa.array((random.astype(np.int64) >> np.int64(24)).astype(np.int16)),
    T.INT64: lambda _, random: pa.array(random.astype(np.int64) >> np.int64(8)),
    **dict.fromkeys((T.UINT8, T.UINT16, T.UINT32, T.UINT64),
                    lambda column, random: pa.array(random.astype(column.types.arrow.to_pandas_dtype()))),
    T.DECIMAL: lambda column, random: _numbers(random).cast(column.types.arrow),
    T.BYTES: lambda _, random: _fixed_bytes(random, 8).cast(pa.binary()),
    T.FIXED_BYTES: lambda column, random: _fixed_bytes(random, column.types.arrow.byte_width),
    T.TIME: lambda _, random: pa.array((random % np.uint64(DAY_MICROSECONDS)).astype(np.int64)).view(pa.time64("us")),
    T.JSON: lambda _, random: pc.binary_join_element_wise('{"n": ', _numbers(random).cast(pa.string()), "}", ""),
    T.ENUM: _enums,
    T.IPV4: lambda _, random: pa.array([str(IPv4Address(int(number) >> 32)) for number in random], pa.string()),
    T.IPV6: lambda _, random: pa.array([str(IPv6Address(int(number) << 64)) for number in random], pa.string()),
    **dict.fromkeys((*ARRAYS, *NESTED), _nested),
    **dict.fromkeys(LONG_NUMBERS, _wide),
    T.WIDE_DECIMAL: lambda column, random: pc.binary_join_element_wise(_wide(column, random), "25", "."),
}  # fmt: skip
"""Generators of values that both servers can store, for kinds that depend on no other column."""


def _with_edge_case_texts(values: pa.Array, ordinal: int, texts: int, rows: int, seed: int) -> pa.Array:
    """Return the values with EDGE_CASE_TEXTS in the edge-case rows of this column."""
    random = _random(rows, seed, 2_000)
    is_edge_case, column = random % np.uint64(EDGE_CASE_SHARE) == 0, (random >> np.uint64(32)) % np.uint64(texts)
    choice = ((random >> np.uint64(40)) % np.uint64(len(EDGE_CASE_TEXTS))).astype(np.int32)
    edge_cases = pa.array(EDGE_CASE_TEXTS).take(pa.array(choice))
    return pc.if_else(pa.array(is_edge_case & (column == ordinal)), edge_cases, values)


def _phrase(code: int) -> str:
    """Return a readable label for a code: `promo`, `promo-video`, `promo-video-17`."""
    rest, first = divmod(code, len(WORDS))
    number, second = divmod(rest, len(WORDS))
    return WORDS[first] + (f"-{WORDS[second]}" if rest else "") + (f"-{number}" if number else "")


def _uuids(entity: UInt64s, seed: int, position: int) -> pa.Array:
    """Return version-4 UUIDs as text, one per entity number."""
    high, low = _hash(entity, seed, 3_000 + position), _hash(entity, seed, 4_000 + position)
    high = (high & np.uint64(0xFFFF_FFFF_FFFF_0FFF)) | np.uint64(0x4000)
    low = (low & np.uint64(0x3FFF_FFFF_FFFF_FFFF)) | np.uint64(0x8000_0000_0000_0000)
    raw = np.stack([high, low], axis=1).astype(">u8")
    array = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(entity), [None, pa.py_buffer(raw)])
    return uuid_texts(array)


def _visits(rows: int) -> tuple[UInt64s, UInt64s]:
    """Return the number of the visit and of the entity for each row."""
    return np.divmod(np.arange(rows, dtype=np.uint64), np.uint64(max(1, -(-rows // ROWS_PER_ENTITY))))


def _random(rows: int, seed: int, stream: int) -> UInt64s:
    """Return 64 random bits for each row, of streams that are independent of each other."""
    return _hash(np.arange(rows, dtype=np.uint64), seed, stream)


def _hash(numbers: UInt64s, seed: int, stream: int) -> UInt64s:
    """Return the output of SplitMix64 (https://prng.di.unimi.it/splitmix64.c) at the counters `numbers`."""
    start = (seed * 0x9E37_79B9_7F4A_7C15 + stream * 0xD1B5_4A32_D192_ED03) % 2**64
    z = numbers * np.uint64(0x9E37_79B9_7F4A_7C15) + np.uint64(start)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return z ^ (z >> np.uint64(31))
