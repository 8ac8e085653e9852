"""Encoding of Arrow tables as blocks of ClickHouse's Native format, each of one partition and in sorting order.

The server need not split or sort these blocks: it only compresses and writes their columns. Rows are grouped by
partition in one sequential pass over memory; a block then gathers its rows from a range that fits into a core's cache.

The format: https://clickhouse.com/docs/interfaces/formats/Native
"""

from __future__ import annotations

import os
from collections.abc import Buffer, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from framehaul.codecs import compiled
from framehaul.codecs.compiled import WORD_SLACK, for_reading, numba_waits, start_numba, words_of_eight
from framehaul.codecs.native_format import OWN_KEYS, SHARED_DICTIONARIES, decimal_bytes, enum_bytes
from framehaul.data.frames import UUID_BYTES, check_enum, enum_values
from framehaul.data.schema import Column, ColumnType, Table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from framehaul.codecs.compiled import Bytes, Int64s, Keys

    type Numbers = NDArray[Any]

BLOCK_ROWS = 262_144
"""The most rows of a block: the server stores a block while the next is encoded; each is sorted separately."""
HAS_OWN_KEYS_IN_EVERY_BLOCK = OWN_KEYS | 0x400
"""The flags that ClickHouse itself writes: keys are in the block, and the next block has its own dictionary."""
MOST_KEYS = 65_536
"""The most keys of a dictionary, which each block repeats; a column of more values is sent as plain text."""
SORTED_BYTES = 64
"""The bytes of a text that are compared; the server sorts a block whose texts first differ after them."""
SIGN = np.uint64(1 << 63)
FEW_ROWS = 2_000
"""The UUIDs that Polars parses sooner than numba starts."""


def native_blocks(content: pa.Table, table: Table) -> Iterator[Iterator[Buffer]]:
    """Yield the blocks of a table, each as an iterator of its parts; raises ValueError for text that is not a UUID."""
    if not content.num_rows:
        return
    partitions = partitions_of(content, table)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        values = [*pool.map(partial(values_of, content, partitions), table.columns)]
    for first, end in pairwise([*partitions[2].tolist(), content.num_rows]):
        for at in range(first, end, BLOCK_ROWS):
            yield _block(table, values, at, min(at + BLOCK_ROWS, end))


def _block(table: Table, values: list[Values], first: int, end: int) -> Iterator[Buffer]:
    """Yield the parts of a block of the rows at a range of places, in the table's sort order."""
    by_name = dict(zip(table.column_names, values, strict=True))
    levels = (level for name in table.clickhouse_order for level in by_name[name].levels(first, end))
    rows = sorted_rows(levels, end - first) + first
    yield varint(len(values)) + varint(len(rows))
    for name, each in by_name.items():
        yield with_length(name) + with_length(each.kind)
        yield from each.encoded(rows)


def sorted_rows(levels: Iterable[Keys], count: int) -> Int64s:
    """Return the numbers of `count` rows, sorted stably by levels of keys, the most significant first."""
    start_numba()
    rows, starts = np.arange(count), np.zeros(count, np.bool_)
    starts[:1] = True
    for level in levels:
        compiled.sort_runs(level, rows, starts)
        if starts.all():
            break
    return rows


type Partitions = tuple[Int64s, NDArray[np.uint16], Int64s]
"""The rows grouped by partition, in the order of their places; the partition of each row; each one's first place."""


def one_partition(count: int) -> Partitions:
    """Return a single partition of all rows in their order."""
    return np.arange(count), np.zeros(count, np.uint16), np.zeros(1, np.int64)


def partitions_of(content: pa.Table, table: Table) -> Partitions:
    """Return the partitions by month, or a single partition if the table has none or a date is NULL."""
    name = table.partition_by_month_of
    if not name or content.column(name).null_count:
        return one_partition(content.num_rows)
    days = _numbers(one_piece(content, name)).astype(np.int64)
    first = days.min()
    months = np.arange(first, days.max() + 1).astype("M8[D]").astype("M8[M]").view(np.int64)
    of_row = (months - months[0]).astype(np.uint16).take(days - first)
    counts = np.bincount(of_row)
    return np.argsort(of_row, kind="stable"), of_row, np.cumsum(counts) - counts


class Values(NamedTuple):
    """The values of a column."""

    kind: str
    """The name of their type in ClickHouse."""
    encoded: Callable[[Int64s], list[Buffer]]
    """A function that returns the encoded values at these places."""
    levels: Callable[[int, int], Iterable[Keys]] = lambda *_: ()
    """A function that returns sort keys of a range of places, the most significant first.

    Floats have none. Columns with NULL have none, because only special settings allow NULL in a sorting key.
    """


def values_of(content: pa.Table, partitions: Partitions, column: Column) -> Values:
    """Return the values of an Arrow column, by place."""
    array, kind, rows = one_piece(content, column.name), column.clickhouse_type, partitions[0]
    is_text = column.type not in (ColumnType.UUID, ColumnType.ENUM) and array.type in WIDE.values()
    if is_text and column.low_cardinality:
        keys = array.dictionary_encode()
        if len(keys.dictionary) < MOST_KEYS:
            return _dictionary(kind, keys, rows, nullable=column.nullable)
    if column.low_cardinality:  # the server builds the dictionary
        kind = kind.removeprefix("LowCardinality(").removesuffix(")")
    if is_text:
        values = _texts(kind, *grouped_texts(array, partitions))
    else:
        values = _fixed(kind, _fixed_numbers(column, array).take(rows, axis=0))
    if not column.nullable:
        return values
    nulls = nulls_of(array).take(rows)
    return Values(kind, lambda places: [nulls.take(places), *values.encoded(places)])


def _fixed(kind: str, numbers: Numbers) -> Values:
    """Return values of a fixed size, each of one number or two."""

    def levels(first: int, end: int) -> list[Keys]:
        part = numbers[first:end]
        if part.dtype.kind == "f":
            return []
        # The second half of a UUID comes first, as the high half of a long decimal does:
        # https://clickhouse.com/docs/sql-reference/data-types/uuid
        words = [word.astype(np.uint64) for word in np.atleast_2d(part.T)[::-1]]
        if part.dtype.kind == "i":
            words[0] ^= SIGN
        return words

    return Values(kind, lambda places: [numbers.take(places, axis=0)], levels)


def _texts(kind: str, data: Bytes, offsets: Int64s) -> Values:
    """Return texts or bytes, which are encoded each after its length."""
    words = words_of_eight(data)

    def encoded(places: Int64s) -> list[Buffer]:
        size = compiled.texts_bytes(data, offsets, places)
        out = np.empty(size + compiled.MOST_LENGTH_BYTES * len(places) + int(WORD_SLACK), np.uint8)
        return [out[: compiled.write_texts(data, words, offsets, places, out, words_of_eight(out))]]

    def levels(first: int, end: int) -> Iterator[Keys]:
        part = offsets[first : end + 1]
        for skipped in range(0, min(int(np.diff(part).max(initial=0)), SORTED_BYTES), 8):
            keys = np.empty(end - first, np.uint64)
            compiled.eight_bytes(data, part, skipped, keys)
            yield keys

    return Values(kind, encoded, levels)


def grouped_texts(array: pa.Array, partitions: Partitions) -> tuple[Bytes, Int64s]:
    """Return the data and the offsets of texts or bytes, grouped by partition."""
    (data, offsets), (_, of_row, firsts) = _text_buffers(array), partitions
    if len(firsts) == 1:
        return data, offsets
    start_numba()
    out, places = np.empty(int(offsets[-1] - offsets[0]) + int(WORD_SLACK), np.uint8), np.empty(len(offsets), np.int64)
    compiled.group_texts(data, words_of_eight(data), offsets, of_row, firsts, out, words_of_eight(out), places)
    return for_reading(out), for_reading(places)


def _dictionary(kind: str, keys: pa.DictionaryArray, rows: Int64s, *, nullable: bool) -> Values:
    """Return a LowCardinality column of text; the first key of a nullable column represents NULL."""
    texts, indexes = keys.dictionary.cast(pa.large_binary()), np.asarray(keys.indices.fill_null(0))
    if nullable:
        texts = pa.concat_arrays([pa.array([b""], texts.type), texts])
        indexes = np.where(nulls_of(keys), 0, indexes + 1)
    width = 0 if len(texts) <= 1 << 8 else 1
    head = np.array([SHARED_DICTIONARIES, HAS_OWN_KEYS_IN_EVERY_BLOCK | width, len(texts)], "<u8").tobytes()
    head += b"".join(map(with_length, texts.to_pylist()))
    indexes = indexes.astype(f"<u{1 << width}").take(rows)

    def encoded(places: Int64s) -> list[Buffer]:
        return [head, np.array([len(places)], "<u8"), indexes.take(places)]

    def levels(first: int, end: int) -> list[Keys]:
        return [] if nullable else [pc.rank(texts, "ascending").to_numpy().take(indexes[first:end])]

    return Values(kind, encoded, levels)


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


def _fixed_numbers(column: Column, array: pa.Array) -> Numbers:
    """Return values in ClickHouse's binary format: one number per row, or two for a UUID or a long decimal."""
    numbers: Numbers
    match column.type:
        case ColumnType.BOOL:
            numbers = array.fill_null(False).to_numpy(zero_copy_only=False).view(np.uint8)
        case ColumnType.UUID:
            numbers = uuid_halves(array, column.name)
        case ColumnType.ENUM:  # numbers begin with 1
            indexes = pc.index_in(array.cast(pa.string()), pa.array(enum_values(column)))
            if indexes.null_count > array.null_count:
                check_enum(array, column)
            numbers = (pc.fill_null(indexes, 0).to_numpy() + 1).astype(f"i{enum_bytes(column)}")
        case ColumnType.DECIMAL:
            words = np.frombuffer(array.buffers()[1], np.int64).reshape(-1, 2)[array.offset : array.offset + len(array)]
            size = decimal_bytes(array.type.precision)
            numbers = words if size > words.itemsize else words[:, 0].astype(f"i{size}")
        case _:
            numbers = _numbers(array)
            if column.types.clickhouse == "Date":
                numbers = numbers.astype(np.uint16)
    return numbers


def uuid_halves(array: pa.Array, name: str) -> Keys:
    """Return UUIDs in bytes or text as [row, half], 0 for NULL in text.

    A compiled loop parses 8-4-4-4-12 digits, Polars few rows, sooner than numba starts, and other positions of dashes.
    Raises ValueError, naming column and row, for text that is not a UUID.
    """
    if not pa.types.is_fixed_size_binary(array.type):
        if not numba_waits() or len(array) > FEW_ROWS:
            start_numba()
            halves, (data, offsets) = np.zeros((2, len(array)), np.uint64), _text_buffers(array)
            if compiled.parse_uuids(data, words_of_eight(data), offsets, nulls_of(array), halves) < 0:
                return halves.T
        texts = pl.Series(values=array)
        raw = texts.str.replace_all("-", "", literal=True).str.decode("hex", strict=False)
        wrong = texts.is_not_null() & (raw.bin.size() != UUID_BYTES).fill_null(value=True)
        if (row := wrong.arg_max()) is not None and wrong[row]:
            raise ValueError(f"column {name}, row {row:,}: {texts[row]!r} is no UUID")
        array = raw.fill_null(bytes(UUID_BYTES)).to_arrow().cast(pa.binary(UUID_BYTES))
    raw_halves = np.frombuffer(array.buffers()[1] or b"", ">u8").reshape(-1, 2)
    return raw_halves[array.offset : array.offset + len(array)].astype(np.uint64)


def _text_buffers(array: pa.Array) -> tuple[Bytes, Int64s]:
    """Return the data and the offsets of texts with 64-bit offsets, without regard to NULL."""
    _, offsets, data = array.buffers()
    if not len(array):
        return for_reading(np.empty(0, np.uint8)), for_reading(np.zeros(1, np.int64))
    places = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return for_reading(np.frombuffer(data or b"", np.uint8)), for_reading(places)


def _numbers(array: pa.Array) -> Numbers:
    """Return the values of an array, which are arbitrary at NULL."""
    kind = "f" if pa.types.is_floating(array.type) else "i"  # dates and timestamps are integers
    kind = "u" if pa.types.is_unsigned_integer(array.type) else kind
    values = np.frombuffer(array.buffers()[1], f"<{kind}{array.type.bit_width // 8}")
    return values[array.offset : array.offset + len(array)]


def nulls_of(array: pa.Array) -> Bytes:
    """Return 1 for each row that is NULL and 0 for other rows."""
    nulls: NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return nulls.view(np.uint8)


def varint(value: int) -> bytes:
    """Return a number as LEB128."""
    parts = bytearray()
    while value > 127:  # noqa: PLR2004  the most in seven bits
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def with_length(value: str | bytes) -> bytes:
    """Return the length of a text and the text."""
    raw = value.encode() if isinstance(value, str) else value
    return varint(len(raw)) + raw
