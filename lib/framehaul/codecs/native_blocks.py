"""Encoding of Arrow tables as blocks of ClickHouse's Native format, each of one partition and in sorting order.

The server need not split or sort these blocks: it only compresses and writes their columns. Rows are grouped by
partition in one sequential pass over memory; a block then gathers its rows from a range that fits into a core's cache.

The format: https://clickhouse.com/docs/interfaces/formats/Native
"""

from __future__ import annotations

import os
from collections.abc import Buffer, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from framehaul.codecs.compiled import (
    MOST_LENGTH_BYTES,
    first_bytes,
    group_texts,
    parse_uuids,
    sort_runs,
    texts_bytes,
    write_texts,
)
from framehaul.codecs.native_format import (
    DIGITS_OF_32_BITS,
    DIGITS_OF_64_BITS,
    OWN_KEYS,
    SHARED_DICTIONARIES,
    enum_bytes,
)
from framehaul.data.frames import check_enum, enum_values, in_clickhouse_order
from framehaul.data.schema import Column, ColumnType, Table
from framehaul.data.text import WORD_SLACK, for_reading, words_of_eight

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from framehaul.data.text import Bytes, Int64s, Keys

    type Numbers = NDArray[Any]

BLOCK_ROWS = 262_144
"""The most rows of a block: the server stores a block while the next is encoded; each is sorted separately."""
HAS_OWN_KEYS_IN_EVERY_BLOCK = OWN_KEYS | 0x400
"""The flags that ClickHouse itself writes: keys are in the block, and the next block has its own dictionary."""
MOST_KEYS = 65_536
"""The most keys of a dictionary, which each block repeats; a column of more values is sent as plain text."""
SIGN = np.uint64(1 << 63)


def native_blocks(content: pa.Table, table: Table) -> Iterator[Iterator[Buffer]]:
    """Yield the blocks of a table in `table.arrow_schema`, each as an iterator of its parts.

    Text may have any offsets. A part is encoded in the thread that asks for it, so blocks can be encoded in parallel.
    Raises ValueError for text in a column of UUIDs that is not a UUID.
    """
    if not content.num_rows:
        return
    partitions = Partitions.of(content, table)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        values = [*pool.map(partial(values_of, content, partitions), table.columns)]
    for first, end in pairwise([*partitions.firsts.tolist(), content.num_rows]):
        for at in range(first, end, BLOCK_ROWS):
            last = min(at + BLOCK_ROWS, end)
            yield _block(table, values, partial(rows_in_order, content, table, partitions, values, at, last))


def _block(table: Table, values: list[Values], in_order: Callable[[], Int64s]) -> Iterator[Buffer]:
    """Yield the parts of a block of the rows that `in_order` returns."""
    rows = in_order()
    yield _varint(len(values)) + _varint(len(rows))
    for column, each in zip(table.columns, values, strict=True):
        yield _text(column.name) + _text(each.kind)
        yield from each.of(rows)


@dataclass(frozen=True)
class Partitions:
    """Rows grouped by partition: the place of a row is the position of its number in `rows`."""

    rows: Int64s
    of_row: NDArray[np.uint16]
    """The partition of each row."""
    firsts: Int64s
    """The first place of each partition; a partition may be empty."""

    @classmethod
    def one(cls, count: int) -> Self:
        """Return a single partition of all rows in their order."""
        return cls(np.arange(count), np.zeros(count, np.uint16), np.zeros(1, np.int64))

    @classmethod
    def of(cls, content: pa.Table, table: Table) -> Self:
        """Return the partitions by month, or a single partition if the table has none or a date is NULL."""
        count = content.num_rows
        if not table.partition_by_month_of or content.column(table.partition_by_month_of).null_count:
            return cls.one(count)
        days = _numbers(one_piece(content, table.partition_by_month_of)).astype(np.int64)
        first = days.min()
        months = np.arange(first, days.max() + 1).astype("M8[D]").astype("M8[M]").view(np.int64)
        of_row = (months - months[0]).astype(np.uint16).take(days - first)
        counts = np.bincount(of_row)
        return cls(np.argsort(of_row, kind="stable"), of_row, np.cumsum(counts) - counts)


def rows_in_order(
    content: pa.Table, table: Table, partitions: Partitions, values: list[Values], first: int, end: int
) -> Int64s:
    """Return the places from `first` to `end`, which are in one partition, in the table's sort order."""
    rows, starts = np.arange(end - first), np.zeros(end - first, np.bool_)
    starts[0] = True
    by_name, distinct = dict(zip(table.column_names, values, strict=True)), True
    for name in table.clickhouse_order:
        levels = by_name[name].levels(first, end)
        for level in levels:
            sort_runs(level, rows, starts)
        distinct = bool(levels) and not isinstance(by_name[name], Texts)
        if not distinct or starts.all():
            break
    rows += first
    if not distinct:
        _sort_ties(content, table, partitions, rows, starts)
    return rows


def _sort_ties(content: pa.Table, table: Table, partitions: Partitions, rows: Int64s, starts: Any) -> None:
    """Sort each run of tied rows by the whole key."""
    places = np.flatnonzero(~(starts & np.append(starts[1:], True)))  # in runs of several rows
    if len(places):
        tied = content.select(table.clickhouse_order).take(pa.array(partitions.rows.take(rows.take(places))))
        place = f"place of {table.column_names}"  # no column has this name
        frame = pl.from_arrow(tied.append_column(place, pa.array(np.arange(len(places)))))
        assert isinstance(frame, pl.DataFrame)
        by_key = in_clickhouse_order(frame, table)[place].to_numpy()
        runs = np.cumsum(starts)[places]
        rows[places] = rows[places[by_key[np.argsort(runs[by_key], kind="stable")]]]


# The values of columns, by place


class Values(Protocol):
    """The values of a column, encoded as a ClickHouse type."""

    @property
    def kind(self) -> str:
        """The name of the type."""

    def of(self, places: Int64s) -> list[Buffer]:
        """Return the encoded values at these places."""

    def levels(self, first: int, end: int) -> list[Keys]:
        """Return sort keys of a range of places, the most significant first, or none if values have no such keys."""


def values_of(content: pa.Table, partitions: Partitions, column: Column) -> Values:
    """Return the values of an Arrow column. Raises ValueError for text that is not a UUID."""
    array, kind = one_piece(content, column.name), column.clickhouse_type
    texts = column.type not in (ColumnType.UUID, ColumnType.ENUM) and array.type in WIDE.values()
    if texts and column.low_cardinality:
        keys = array.dictionary_encode()
        if len(keys.dictionary) < MOST_KEYS:
            return _Dictionary.of_array(kind, keys, partitions, nullable=column.nullable)
    if column.low_cardinality:  # the server builds the dictionary
        kind = kind.removeprefix("LowCardinality(").removesuffix(")")
    values: Values
    if texts:
        values = Texts.of_array(kind, array, partitions)
    elif column.type is ColumnType.UUID:
        values = _Fixed(kind, _uuids(array, column.name).take(partitions.rows, axis=0))
    else:
        numbers = _enumerated(column, array) if column.type is ColumnType.ENUM else _fixed(column, array)
        values = _Fixed(kind, numbers.take(partitions.rows, axis=0))
    return _Nullable(kind, values, nulls_of(array).take(partitions.rows)) if column.nullable else values


@dataclass(frozen=True)
class _Fixed:
    """Values of a fixed size."""

    kind: str
    values: Numbers

    def of(self, places: Int64s) -> list[Buffer]:
        return [self.values.take(places, axis=0)]

    def levels(self, first: int, end: int) -> list[Keys]:
        """Return integers as their own sort keys, and the halves of UUIDs, the second before the first.

        https://clickhouse.com/docs/sql-reference/data-types/uuid
        """
        if self.kind == "UUID":
            return [self.values[first:end, half].copy() for half in (1, 0)]
        if self.values.dtype.kind not in "iu" or self.kind.startswith("Decimal"):
            return []
        if self.values.dtype.kind == "u":
            return [self.values[first:end].astype(np.uint64)]
        return [self.values[first:end].astype(np.int64).view(np.uint64) ^ SIGN]


@dataclass(frozen=True)
class Texts:
    """Texts or bytes by their data and offsets."""

    kind: str
    data: Bytes
    offsets: Int64s

    @classmethod
    def of_array(cls, kind: str, array: pa.Array, partitions: Partitions) -> Self:
        """Return the texts of a column, grouped by partition."""
        data, offsets = _text_buffers(array)
        if len(partitions.firsts) == 1:
            return cls(kind, data, offsets)
        near = np.empty(int(offsets[-1] - offsets[0]) + int(WORD_SLACK), np.uint8)
        places = np.empty(len(offsets), np.int64)
        words, near_words = words_of_eight(data), words_of_eight(near)
        group_texts(data, words, offsets, partitions.of_row, partitions.firsts, near, near_words, places)
        return cls(kind, for_reading(near), for_reading(places))

    def of(self, places: Int64s) -> list[Buffer]:
        """Return the texts at these places, each after its length."""
        size = texts_bytes(self.data, self.offsets, places)
        out = np.empty(size + MOST_LENGTH_BYTES * len(places) + int(WORD_SLACK), np.uint8)
        words = words_of_eight(self.data), words_of_eight(out)
        return [out[: write_texts(self.data, words[0], self.offsets, places, out, words[1])]]

    def levels(self, first: int, end: int) -> list[Keys]:
        """Return the first bytes of the texts, by which longer texts may be tied."""
        keys = np.empty(end - first, np.uint64)
        first_bytes(self.data, self.offsets[first : end + 1], keys)
        return [keys]


@dataclass(frozen=True)
class _Dictionary:
    """A LowCardinality column: the header with the keys, and the index of each row's key."""

    kind: str
    head: bytes
    indexes: Numbers
    ranks: Keys | None
    """The ranks of the keys; None if the column is nullable."""

    @classmethod
    def of_array(cls, kind: str, keys: pa.DictionaryArray, partitions: Partitions, *, nullable: bool) -> Self:
        """Return the dictionary of a column of text; the first key of a nullable column represents NULL."""
        texts, indexes, ranks = keys.dictionary, np.asarray(keys.indices.fill_null(0)), None
        if nullable:
            texts = pa.concat_arrays([pa.array([""], texts.type), texts])
            indexes = np.where(nulls_of(keys), 0, indexes + 1)
        else:
            ranks = pc.rank(texts.cast(pa.large_binary()), "ascending").to_numpy()
        width = 0 if len(texts) <= 1 << 8 else 1
        head = np.array([SHARED_DICTIONARIES, HAS_OWN_KEYS_IN_EVERY_BLOCK | width, len(texts)], "<u8").tobytes()
        head += b"".join(map(_text, texts.cast(pa.large_binary()).to_pylist()))
        return cls(kind, head, indexes.astype(f"<u{1 << width}").take(partitions.rows), ranks)

    def of(self, places: Int64s) -> list[Buffer]:
        return [self.head, np.array([len(places)], "<u8"), self.indexes.take(places)]

    def levels(self, first: int, end: int) -> list[Keys]:
        return [] if self.ranks is None else [self.ranks.take(self.indexes[first:end])]


@dataclass(frozen=True)
class _Nullable:
    """Values that are NULL if `nulls` is 1."""

    kind: str
    values: Values
    nulls: Bytes

    def of(self, places: Int64s) -> list[Buffer]:
        return [self.nulls.take(places), *self.values.of(places)]

    def levels(self, first: int, end: int) -> list[Keys]:
        """Return no sort keys, because only special settings allow NULL in a sorting key."""
        del first, end
        return []


# Arrow's values as numbers


WIDE = {
    pa.string(): pa.large_string(), pa.string_view(): pa.large_string(), pa.large_string(): pa.large_string(),
    pa.binary(): pa.large_binary(), pa.binary_view(): pa.large_binary(), pa.large_binary(): pa.large_binary(),
}  # fmt: skip
"""The type with 64-bit offsets for each type of text or bytes."""


def one_piece(content: pa.Table, name: str) -> pa.Array:
    """Return a column as one array, text with 64-bit offsets."""
    column = content.column(name)
    column = column.cast(WIDE.get(column.type, column.type))
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _fixed(column: Column, array: pa.Array) -> Numbers:
    """Return values in ClickHouse's binary format: one number per row, or two for a long decimal."""
    if column.type is ColumnType.BOOL:
        return _bits(array, array.buffers()[1])
    if column.type is ColumnType.DECIMAL:  # https://clickhouse.com/docs/sql-reference/data-types/decimal
        words = np.frombuffer(array.buffers()[1], np.int64).reshape(-1, 2)[array.offset : array.offset + len(array)]
        precision = array.type.precision
        if precision > DIGITS_OF_64_BITS:
            return words
        return words[:, 0].astype(np.int32 if precision <= DIGITS_OF_32_BITS else np.int64)
    numbers = _numbers(array)
    return numbers.astype(np.uint16) if column.types.clickhouse == "Date" else numbers


def _enumerated(column: Column, array: pa.Array) -> Numbers:
    """Return the number of each text in its enum, beginning with 1; raises ValueError for unknown text."""
    indexes = pc.index_in(array.cast(pa.string()), pa.array(enum_values(column)))
    if indexes.null_count > array.null_count:
        check_enum(array, column)
    numbers: Numbers = (pc.fill_null(indexes, 0).to_numpy() + 1).astype(f"i{enum_bytes(column)}")
    return numbers


def _uuids(array: pa.Array, name: str) -> Keys:
    """Return UUIDs in text or bytes as [row, half]; raises ValueError for text that is not a UUID."""
    if pa.types.is_fixed_size_binary(array.type):
        raw = np.frombuffer(array.buffers()[1], ">u8").reshape(-1, 2)[array.offset : array.offset + len(array)]
        return raw.astype(np.uint64)
    halves, row = uuid_halves(array)
    if row >= 0:
        raise ValueError(f"column {name}, row {row:,}: {array[row].as_py()!r} is no UUID of 8-4-4-4-12 digits")
    return halves.T


def uuid_halves(array: pa.Array) -> tuple[Keys, int]:
    """Return both halves of UUIDs in text as [half, row], 0 for NULL, and the first row without a UUID, or -1."""
    halves = np.zeros((2, len(array)), np.uint64)
    data, offsets = _text_buffers(array)
    return halves, parse_uuids(data, words_of_eight(data), offsets, nulls_of(array), halves)


def _text_buffers(array: pa.Array) -> tuple[Any, Any]:
    """Return the data and the offsets of an array of strings, without regard to NULL."""
    _, offsets, data = array.buffers()
    if not len(array):
        return for_reading(np.empty(0, np.uint8)), for_reading(np.zeros(1, np.int32))
    wide = array.type in (pa.large_string(), pa.large_binary())
    places = np.frombuffer(offsets, np.int64 if wide else np.int32)[array.offset : array.offset + len(array) + 1]
    return for_reading(np.frombuffer(data or b"", np.uint8)), for_reading(places)


def _numbers(array: pa.Array) -> Numbers:
    """Return the values of an array, which are arbitrary at NULL."""
    kind = "f" if pa.types.is_floating(array.type) else "i"  # dates and timestamps are integers
    kind = "u" if pa.types.is_unsigned_integer(array.type) else kind
    values = np.frombuffer(array.buffers()[1], f"<{kind}{array.type.bit_width // 8}")
    return values[array.offset : array.offset + len(array)]


def nulls_of(array: pa.Array) -> Bytes:
    """Return 1 for each row that is NULL and 0 for other rows."""
    if not array.null_count:
        return np.zeros(len(array), np.uint8)
    return 1 - _bits(array, array.buffers()[0])


def _bits(array: pa.Array, buffer: pa.Buffer) -> Bytes:
    """Return a bitmap of an array as one byte per row."""
    end = array.offset + len(array)
    return np.unpackbits(np.frombuffer(buffer, np.uint8), count=end, bitorder="little")[array.offset :]


def _varint(value: int) -> bytes:
    """Return a number as LEB128."""
    parts = bytearray()
    while value > 127:  # noqa: PLR2004  the most in seven bits
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def _text(value: str | bytes) -> bytes:
    """Return the length of a text and the text."""
    raw = value.encode() if isinstance(value, str) else value
    return _varint(len(raw)) + raw
