"""Decoding of ClickHouse's Native format into Arrow record batches with string views, by compiled loops.

Columns are decoded while the server writes the next ones. Memory is reused, because the kernel would have to zero each
new page, which takes longer than decoding.

The format: https://clickhouse.com/docs/interfaces/formats/Native; only SELECTs of a table's own columns are decoded.
"""

from __future__ import annotations

from io import BufferedIOBase
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from framehaul.codecs import compiled
from framehaul.codecs.compiled import MOST_BYTES, SLACK, arrow_array, start_numba, uuid_views_of, views_of
from framehaul.data.frames import NotTextError, enum_values
from framehaul.data.schema import ARRAYS, LONG_NUMBERS, NESTED, Column, ColumnType, Table, refuse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from framehaul.codecs.compiled import Bytes, Int32s

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


def read_native(body: BufferedIOBase, table: Table, schema: pa.Schema | None = None) -> pa.Table:
    """Return all rows of a body with the table's columns, in `table.arrow_view_schema` or `table.arrow_large_schema`.

    Raises ValueError, with the position, if the body ends inside a block, has other columns, is damaged, or has text
    that is not UTF-8.
    """
    schema = schema or table.arrow_view_schema
    return pa.Table.from_batches(read_blocks(body, table, schema), schema)


def read_blocks(body: BufferedIOBase, table: Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the blocks of a body, one at a time. Raises as `read_native` does."""
    refuse(table, NOT_DECODED, "whose Native form is not decoded here: read it as Arrow", "clickhouse")
    source, first_row = Source(body), 0
    try:
        while not source.at_end():
            if (block := _read_block(source, table, schema, first_row)).num_rows:
                yield block
            first_row += block.num_rows
    except ValueError as error:
        raise ValueError(f"{error} (before byte {source.place:,} of the answer)") from error


def _read_block(source: Source, table: Table, schema: pa.Schema, first_row: int) -> pa.RecordBatch:
    columns, rows = source.number(), source.number()
    if columns != len(table.columns):
        raise ValueError(f"{columns} columns came for {table.name}, which has {len(table.columns)}")
    arrays = []
    start_numba(USUAL_VALUE_BYTES * rows * columns)
    for column, arrow in zip(table.columns, schema.types, strict=True):
        name, kind = source.text(), source.text()
        if (name, kind) != (column.name, column.clickhouse_type):
            raise ValueError(f"column {column.name} of type {column.clickhouse_type} came as {name} of type {kind}")
        arrays.append(read_column(source, column, arrow, rows, first_row) if rows else pa.nulls(0, arrow))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def read_column(source: Source, column: Column, arrow: pa.DataType, rows: int, first_row: int) -> pa.Array:
    """Return a column of a block in this Arrow type; errors count rows from `first_row`."""
    if column.type in ARRAYS:
        return read_lists(source, column, rows, first_row)
    if column.low_cardinality:
        return read_dictionary(source, column, rows, first_row).cast(arrow)
    return _read_plain(source, column, arrow, rows, first_row)


def _read_plain(source: Source, column: Column, arrow: pa.DataType, rows: int, first_row: int) -> pa.Array:
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
            raw = source.take(16 * rows)
            if len(raw) > MOST_BYTES:
                raise ValueError(f"column {column.name} takes more than {MOST_BYTES:,} bytes: ask for smaller blocks")
            buffers = uuid_views_of(raw.view(np.uint64).reshape(-1, 2), reverse=True, plain=plain)
        case ColumnType.BOOL:
            buffers = [np.packbits(source.take(rows), bitorder="little")]
        case ColumnType.DECIMAL if (size := decimal_bytes(arrow.precision)) < arrow.byte_width:
            numbers = source.take(size * rows).view(f"<i{size}").astype(np.int64)
            buffers = [np.stack([numbers, numbers >> 63], axis=1).view(np.uint8)]
        case ColumnType.DATE if column.types.clickhouse == "Date":
            buffers = [source.take(2 * rows).view("<u2").astype(np.int32)]
        case _:
            buffers = [source.take(arrow.bit_width // 8 * rows).copy()]
    array = arrow_array(arrow, rows, validity, buffers)
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
    buffers, invalid = views_of(data, starts, lengths, plain=plain)
    if len(invalid) and column.type is not ColumnType.BYTES:
        start, row = starts[invalid[0]], int(invalid[0])
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
    (views, texts), invalid = views_of(data, starts, lengths)
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
    return arrow_array(arrow, rows, validity, [views[indexes], texts])


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
