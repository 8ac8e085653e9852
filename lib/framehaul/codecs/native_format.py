"""ClickHouse's Native format, decoded into Arrow record batches with string views, and encoded from Arrow tables.

Columns are decoded by compiled loops while the server writes the next ones. Memory is reused, because the kernel would
have to zero each new page, which takes longer than decoding.

Encoded blocks are each of one partition and in sorting order, so that the server only compresses and writes their
columns. Rows are grouped by partition in one sequential pass over memory; a block then gathers its rows from a range
that fits into a core's cache.

The format: https://clickhouse.com/docs/interfaces/formats/Native; only SELECTs of a table's own columns are decoded.
"""

from __future__ import annotations

import os
from collections.abc import Buffer, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BufferedIOBase
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from framehaul.codecs import compiled
from framehaul.codecs.compiled import MOST_BYTES, SLACK, WORD_SLACK, for_reading, start_numba, words_of_eight
from framehaul.data.frames import UUID_BYTES, NotTextError, check_enum, enum_values
from framehaul.data.schema import ARRAYS, LONG_NUMBERS, NESTED, Column, ColumnType, Table, refuse

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from framehaul.codecs.compiled import Bytes, Int32s, Int64s, Keys

    type Numbers = NDArray[Any]

SCRATCH_BYTES = 4 << 20
"""The initial size of the buffer of received bytes."""
USUAL_VALUE_BYTES = 16
READ_BYTES = 1 << 18
"""The bytes that are read at once before the end of a column is known."""
NOT_DECODED = (*NESTED, *LONG_NUMBERS, ColumnType.IPV4, ColumnType.IPV6)

# LowCardinality: https://github.com/ClickHouse/ClickHouse/blob/master/src/DataTypes/Serializations/SerializationLowCardinality.cpp
SHARED_DICTIONARIES = 1
INDEX_TYPE, GLOBAL_DICTIONARY, OWN_KEYS = 0xFF, 0x100, 0x200
INDEX_TYPES = ("<u1", "<u2", "<u4", "<u8")
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


def read_native(body: BufferedIOBase, table: Table, schema: pa.Schema | None = None) -> pa.Table:
    """Return all rows of a body with the table's columns, in `table.arrow_view_schema` or `table.arrow_large_schema`.

    Raises ValueError, with the position, if the body ends inside a block, has other columns, is damaged, or has text
    that is not UTF-8.
    """
    schema = schema or table.arrow_view_schema
    return pa.Table.from_batches(read_blocks(body, table, schema), schema)


def read_result(
    body: BufferedIOBase, column_of: Callable[[str, str], Column | None], *, plain: bool
) -> tuple[pa.Table, Table] | None:
    """Return all rows of a body, and the relation whose columns `column_of` gives for the names and types in it.

    None for a body without a block, which names no columns. Raises NotDecodedError where `column_of` gives None, and
    ValueError as `read_native` does.
    """
    source, layout = Source(body), attrgetter("arrow_large_schema" if plain else "arrow_view_schema")
    try:
        if source.at_end():
            return None
        count, rows = source.number(), source.number()
        columns, arrays = list[Column](), list[pa.Array]()
        while len(columns) < count:
            name, kind = source.text(), source.text()
            if (column := column_of(name, kind)) is None:
                raise NotDecodedError(f"column {name} is {kind}")
            columns.append(column)
            (arrow,) = layout(Table(name, (column,), ())).types
            arrays.append(read_column(source, column, arrow, rows, 0) if rows else pa.nulls(0, arrow))
        schema = layout(table := Table("query", tuple(columns), ()))
        first = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return pa.Table.from_batches([first, *_blocks(source, table, schema, rows)]), table
    except ValueError as error:
        raise ValueError(f"{error} (before byte {source.place:,} of the answer)") from error


class NotDecodedError(Exception):
    """A body has a column whose Native form is not decoded here."""


def read_blocks(body: BufferedIOBase, table: Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the blocks of a body, one at a time. Raises as `read_native` does."""
    refuse(table, NOT_DECODED, "whose Native form is not decoded here: read it as Arrow", "clickhouse")
    source = Source(body)
    try:
        yield from _blocks(source, table, schema)
    except ValueError as error:
        raise ValueError(f"{error} (before byte {source.place:,} of the answer)") from error


def _blocks(source: Source, table: Table, schema: pa.Schema, first_row: int = 0) -> Iterator[pa.RecordBatch]:
    while not source.at_end():
        columns, rows = source.number(), source.number()
        if columns != len(table.columns):
            raise ValueError(f"{columns} columns came for {table.name}, which has {len(table.columns)}")
        arrays = []
        start_numba(USUAL_VALUE_BYTES * rows * columns)
        for column, arrow in zip(table.columns, schema.types, strict=True):
            name, kind = source.text(), source.text()
            if (name, kind) != (column.name, column.clickhouse_type):
                raise ValueError(f"column {column.name} of type {column.clickhouse_type} came as {name} of type {kind}")
            if rows:
                arrays.append(read_column(source, column, arrow, rows, first_row))
        if rows:
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        first_row += rows


def read_column(source: Source, column: Column, arrow: pa.DataType, rows: int, first_row: int) -> pa.Array:
    """Return a column of a block in this Arrow type; errors count rows from `first_row`."""
    if column.type in ARRAYS:
        return read_lists(source, column, rows, first_row)
    if column.low_cardinality:
        return read_dictionary(source, column, rows, first_row).cast(arrow)
    null = source.take(rows) != 0 if column.nullable else None
    if column.type is ColumnType.ENUM:
        return read_enum(source, column, rows, null).cast(arrow)
    validity = None if null is None else np.packbits(~null, bitorder="little")
    buffers: list[Any]
    plain = arrow in (pa.large_string(), pa.large_binary())
    match column.type:
        case ColumnType.TEXT | ColumnType.BYTES | ColumnType.JSON:
            buffers = read_texts(source, column, rows, first_row, null, plain=plain)
        case ColumnType.UUID:
            halves = source.take(16 * rows).view(np.uint64).reshape(-1, 2)
            buffers = compiled.uuid_views_of(halves, reverse=True, plain=plain)
        case ColumnType.BOOL:
            buffers = [np.packbits(source.take(rows), bitorder="little")]
        case ColumnType.DECIMAL if (size := decimal_bytes(arrow.precision)) < arrow.byte_width:
            numbers = source.take(size * rows).view(f"<i{size}").astype(np.int64)
            buffers = [np.stack([numbers, numbers >> 63], axis=1).view(np.uint8)]
        case ColumnType.DATE if column.types.clickhouse == "Date":
            buffers = [source.take(2 * rows).view("<u2").astype(np.int32)]
        case _:
            buffers = [source.take(arrow.bit_width // 8 * rows).copy()]
    array = compiled.arrow_array(arrow, rows, validity, buffers)
    if column.type in (ColumnType.DECIMAL, ColumnType.TIME):  # too many digits, or longer than a day
        array.validate(full=True)
    return array


def read_lists(source: Source, column: Column, rows: int, first_row: int) -> pa.Array:
    """Return a column of lists, which are never NULL: where each ends, then all elements. Raises as `read_column`."""
    ends = np.append(0, source.take(8 * rows).view("<i8"))
    if (np.diff(ends) < 0).any() or ends[-1] > MOST_BYTES:
        raise ValueError(f"column {column.name} came with lists whose ends are no ends of {rows} lists")
    (arrow,) = Table(column.name, (column.element,), ()).arrow_large_schema.types
    try:
        values = read_column(source, column.element, arrow, int(ends[-1]), 0)
    except NotTextError as error:
        row = first_row + int(np.searchsorted(ends, error.row, "right")) - 1
        raise NotTextError(column.name, row, error.value) from error
    lists = pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), values.cast(column.element.types.arrow))
    return lists.cast(column.types.arrow)


def read_texts(
    source: Source, column: Column, rows: int, first_row: int, null: NDArray[np.bool_] | None, *, plain: bool
) -> list[Any]:
    """Return the buffers of a column of text or bytes; raises NotTextError for text that is not UTF-8."""
    data, starts, lengths = source.texts(rows)
    if null is not None:
        lengths[null] = -1  # the values at NULL are arbitrary
    buffers, suspects = compiled.views_of(data, starts, lengths, plain=plain)
    if column.type is not ColumnType.BYTES:
        for at in compiled.not_utf8(data, starts[suspects], lengths[suspects]):
            row, start = int(suspects[at]), starts[suspects[at]]
            raise NotTextError(column.name, first_row + row, data[start : start + lengths[row]].tobytes())
    return buffers


def decimal_bytes(precision: int) -> int:
    """Return the size of a decimal in bytes."""  # https://clickhouse.com/docs/sql-reference/data-types/decimal
    return next(size for size, digits in ((4, 9), (8, 18), (16, 38)) if precision <= digits)


def read_dictionary(source: Source, column: Column, rows: int, first_row: int) -> pa.Array:
    """Return a LowCardinality column as text. Raises ValueError as `read_column` does."""
    version, flags, size = source.take(24).view("<u8").tolist()
    kind = flags & INDEX_TYPE
    if version != SHARED_DICTIONARIES or not flags & OWN_KEYS or flags & GLOBAL_DICTIONARY or kind >= len(INDEX_TYPES):
        raise ValueError(f"column {column.name} came with a dictionary of another kind ({version}, {flags:#x})")
    data, starts, lengths = source.texts(size)
    (views, texts), suspects = compiled.views_of(data, starts, lengths)
    invalid = suspects[compiled.not_utf8(data, starts[suspects], lengths[suspects])]
    values = [data[starts[key] : starts[key] + lengths[key]].tobytes() for key in invalid]
    if (again := int(source.take(8).view("<u8")[0])) != rows:
        raise ValueError(f"column {column.name} came with {again} rows in a block of {rows}")
    indexes = source.take(rows << kind).view(INDEX_TYPES[kind])
    if (last := int(indexes.max())) >= size:
        raise ValueError(f"column {column.name} came with an index {last} into a dictionary of {size}")
    if len(invalid) and column.type is ColumnType.TEXT and (used := np.isin(indexes, invalid)).any():
        row = int(np.argmax(used))
        raise NotTextError(column.name, first_row + row, values[int(np.searchsorted(invalid, indexes[row]))])
    # The first key of a nullable column represents NULL.
    validity = np.packbits(indexes != 0, bitorder="little") if column.nullable else None
    arrow = pa.string_view() if column.type is ColumnType.TEXT else pa.binary_view()
    return compiled.arrow_array(arrow, rows, validity, [views[indexes], texts])


def read_enum(source: Source, column: Column, rows: int, null: NDArray[np.bool_] | None) -> pa.Array:
    """Return a column of an enum, whose numbers begin with 1, as text; raises ValueError for an unknown number."""
    texts, size = enum_values(column), enum_bytes(column)
    numbers = source.take(rows * size).view(f"<i{size}").astype(np.int32) - 1
    if null is not None:
        numbers[null] = 0  # the values at NULL are arbitrary
    if (wrong := (numbers < 0) | (numbers >= len(texts))).any():
        raise ValueError(f"column {column.name} came with the number {numbers[wrong][0] + 1} of {len(texts)} texts")
    return pa.array(texts, pa.string()).take(pa.array(numbers, mask=null))


def enum_bytes(column: Column) -> int:
    """Return the size of an enum's value in bytes."""
    return 1 if column.types.clickhouse.startswith("Enum8") else 2


class Source:
    """A reader of a body in pieces, each of which is valid until the next is read.

    Its buffer is never larger than twice the received bytes, whatever lengths a damaged body claims.
    """

    def __init__(self, body: BufferedIOBase) -> None:
        self._body = body
        self._data = np.empty(SCRATCH_BYTES + len(SLACK), np.uint8)
        self._at = self._end = self._dropped = 0

    @property
    def place(self) -> int:
        """The number of bytes read from the body."""
        return self._dropped + self._at

    def at_end(self) -> bool:
        """Return whether all of the body has been read."""
        return self._at == self._end and not self._receive(1)

    def take(self, length: int) -> Bytes:
        """Return the next `length` bytes. Raises ValueError if there are fewer."""
        self._have(length)
        self._at += length
        return self._data[self._at - length : self._at]

    def number(self) -> int:
        """Return the next LEB128 number. Raises ValueError if it is incomplete or too long."""
        number = 0
        for shift in range(0, 63, 7):
            byte = int(self.take(1)[0])
            number |= (byte & 127) << shift
            if not byte & 128:
                return number
        raise ValueError("a number has more than nine bytes")

    def text(self) -> str:
        """Return the next text, which follows its length; invalid UTF-8 is escaped."""
        return self.take(self.number()).tobytes().decode(errors="backslashreplace")

    def texts(self, count: int) -> tuple[Bytes, Int32s, Int32s]:
        """Return the bytes of the next `count` texts, followed by SLACK, and each text's start and length."""
        self._have(count)  # each length takes at least one byte
        starts, lengths = np.empty((2, count), np.int32)
        done, size, wrong = compiled.find_texts(self._data[self._at : self._end], 0, starts, lengths, 0)
        while done < count and not wrong:
            self._have(self._end - self._at + 1)
            done, size, wrong = compiled.find_texts(self._data[self._at : self._end], size, starts, lengths, done)
        self._at += size
        if wrong or size > MOST_BYTES:
            raise ValueError(f"texts of a block take more than {MOST_BYTES:,} bytes: ask for smaller blocks")
        return self._data[self._at - size : self._at + len(SLACK)], starts, lengths

    def _have(self, length: int) -> None:
        """Receive until the buffer holds `length` more bytes. Raises ValueError if there are fewer."""
        while (held := self._end - self._at) < length:
            if not self._receive(length - held):
                raise ValueError("the body ends inside a block")

    def _receive(self, length: int) -> bool:
        """Receive up to `length` bytes, or READ_BYTES if that is more; return False at the end."""
        most = len(self._data) - len(SLACK)
        if most - self._end < length:
            rest = self._data[self._at : self._end]
            if 2 * len(rest) > most:
                self._data = np.empty(2 * len(self._data), np.uint8)
            self._data[: len(rest)] = rest
            self._dropped += self._at
            self._at, self._end = 0, len(rest)
        wanted = min(max(length, READ_BYTES), len(self._data) - len(SLACK) - self._end)
        count = self._body.readinto(memoryview(self._data)[self._end : self._end + wanted])
        self._end += count
        return count > 0


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
    if column.type in ARRAYS:
        return _lists(column, array, rows)
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


def _lists(column: Column, array: pa.Array, rows: Int64s) -> Values:
    """Return lists, which are never NULL: where each ends, then all elements."""
    lists = array.cast(pa.large_list(array.type.value_type))
    starts, sizes = np.asarray(lists.offsets)[:-1].take(rows), np.diff(lists.offsets).take(rows)
    inner = values_of(pa.table({column.name: lists.values}), one_partition(len(lists.values)), column.element)

    def encoded(places: Int64s) -> list[Buffer]:
        counts = sizes.take(places)
        ends = np.cumsum(counts)
        before = starts.take(places) - ends + counts  # for each list: its first element, less those sent before it
        return [ends, *inner.encoded(np.arange(counts.sum()) + np.repeat(before, counts))]

    return Values(f"Array({inner.kind})", encoded)


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


WIDE = dict.fromkeys((pa.string(), pa.string_view(), pa.large_string()), pa.large_string())
WIDE |= dict.fromkeys((pa.binary(), pa.binary_view(), pa.large_binary()), pa.large_binary())
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
        if not compiled.numba_waits() or len(array) > FEW_ROWS:
            start_numba()
            halves, (data, offsets) = np.zeros((2, len(array)), np.uint64), _text_buffers(array)
            if compiled.parse_uuids(data, offsets, nulls_of(array), halves) < 0:
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
    places = np.frombuffer(offsets or bytes(8), np.int64)[array.offset : array.offset + len(array) + 1]
    return for_reading(np.frombuffer(data or b"", np.uint8)), for_reading(places)


def _numbers(array: pa.Array) -> Numbers:
    """Return the values of an array, 0 for NULL; dates, times and timestamps are integers."""
    if pa.types.is_temporal(array.type):
        array = array.view(f"int{array.type.bit_width}")
    values: Numbers = array.fill_null(0).to_numpy()
    return values


def nulls_of(array: pa.Array) -> Bytes:
    """Return 1 for each row that is NULL and 0 for other rows."""
    return np.asarray(array.is_null()).view(np.uint8)


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
