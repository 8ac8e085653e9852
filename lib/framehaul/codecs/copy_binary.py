"""PostgreSQL's binary COPY, decoded into Arrow record batches, and the binary form and order of Arrow content for it.

A compiled loop decodes without an object per value. Text becomes string views, the layout of Polars.

The format: https://www.postgresql.org/docs/18/sql-copy.html#SQL-COPY-FILE-FORMATS
"""

from __future__ import annotations

from collections.abc import Buffer, Callable, Iterator
from decimal import Decimal
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from framehaul.codecs import compiled, native_format
from framehaul.codecs.compiled import MOST_BYTES, SLACK, WORD_SLACK, numba_waits, start_numba, words_of_eight
from framehaul.codecs.native_format import nulls_of, one_piece, uuid_halves
from framehaul.data.documents import with_documents, without_documents
from framehaul.data.frames import PLAIN, UUID_BYTES, NotTextError
from framehaul.data.schema import ARRAYS, LONG_NUMBERS, NESTED, Column, ColumnType, Table, quote_postgres

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from framehaul.codecs.compiled import Bytes, Int64s, Keys

BATCH_BYTES = 1 << 20
"""The bytes that are decoded at once: they and their batch fit into the CPU's cache."""
COLUMNS_OF_A_BATCH = 32
"""More columns get larger batches, because creating an array of few rows takes longer than decoding the rows."""

SIGNATURE = b"PGCOPY\n\xff\r\n\0"
HEADER_BYTES = len(SIGNATURE) + 8
"""The bytes of the signature, of flags, and of the length of an extension. PostgreSQL sends neither of the two."""
TRAILER = b"\xff\xff"
TEXT_TYPES, BYTES_TYPES = (pa.string_view(), pa.large_string()), (pa.binary_view(), pa.large_binary())
"""Arrow's types of text and bytes, as views and plain."""
# PostgreSQL counts days and microseconds from 2000-01-01, Arrow from 1970-01-01.
DAYS_TO_2000 = 10_957
MICROSECONDS_TO_2000 = DAYS_TO_2000 * 86_400_000_000
ROWS_BEFORE_NUMBA = 1_500_000
"""The rows that Polars sorts sooner than numba starts."""
PARSED: dict[ColumnType, Callable[[str], object]] = {
    **dict.fromkeys((ColumnType.IPV4, ColumnType.IPV6), ip_address),
    **dict.fromkeys(LONG_NUMBERS, Decimal),
}
"""The types of text of which psycopg makes the binary form, once it is parsed."""


class CopyDecoder:
    """A decoder of one binary COPY, fed in pieces, into record batches in `table.arrow_view_schema`.

    The only other `schema` is `table.arrow_large_schema`. A batch is decoded from about `batch_bytes`, by default
    BATCH_BYTES, and more for tables of many columns. The query has to select `columns`.
    """

    def __init__(self, table: Table, schema: pa.Schema | None = None, batch_bytes: int = 0) -> None:
        self.columns = ", ".join(map(selected, table.columns))
        self._table, self._schema, self._plain = table, schema or table.arrow_view_schema, schema is not None
        self.batch_bytes = (batch_bytes or BATCH_BYTES) * max(1, len(table.columns) // COLUMNS_OF_A_BATCH)
        self._held, self._held_bytes = np.empty(self.batch_bytes + len(SLACK), np.uint8), 0
        self._enough_bytes = self.batch_bytes
        self._buffers = Buffers(table, self.batch_bytes)
        self._begun = self._ended = False
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0  # decoded so far

    def feed(self, data: Buffer) -> None:
        """Decode more bytes, of any number. Raises ValueError if they are not a binary COPY of this table."""
        rest = np.frombuffer(data, np.uint8)
        while len(rest):
            part = rest[: len(self._held) - len(SLACK) - self._held_bytes]
            self._held[self._held_bytes : self._held_bytes + len(part)] = part
            self._held_bytes += len(part)
            rest = rest[len(part) :]
            if self._held_bytes >= self._enough_bytes:
                self._decode_held()

    def _decode_held(self) -> None:
        taken, held = self.decode(self._held, self._held_bytes), self._held_bytes
        if self._ended and taken < held:
            raise ValueError(f"{held - taken:,} bytes follow the trailer of the binary COPY of {self._table.name}")
        self._held_bytes = held - taken
        self._enough_bytes = max(self.batch_bytes, 2 * self._held_bytes)  # a row may be longer than a batch
        self._held = moved(self._held, taken, held, self._enough_bytes)

    def take(self) -> list[pa.RecordBatch]:
        """Return the batches decoded since the last call."""
        batches, self._batches = self._batches, []
        return batches

    def finish(self) -> pa.Table:
        """Return the remaining rows. Raises ValueError if the bytes ended before the trailer of binary COPY."""
        self._decode_held()
        if not self._ended:
            raise ValueError(f"the binary COPY of {self._table.name} ended before its trailer, after {self._place}")
        return pa.Table.from_batches(self.take(), self._schema)

    @property
    def _place(self) -> str:
        return f"{self._rows:,} rows and {self._bytes:,} bytes"

    def decode(self, data: Bytes, size: int, *, messages: bool = False) -> int:
        """Decode the whole rows in the first `size` bytes, which SLACK must follow, and return where they end.

        With `messages` each row is in a CopyData message, as the server sends it, and the header is overwritten.
        Raises as `feed` does.
        """
        begin = 0 if self._begun else self._header_bytes(data, size, messages=messages)
        self._bytes += begin
        start_numba(size)
        if self._ended or not self._begun:
            return begin
        data, size = data[begin:], size - begin
        if size > self._buffers.size:
            self._buffers = Buffers(self._table, max(size, min(2 * self._buffers.size, MOST_BYTES)))
        into, head = self._buffers, compiled.MESSAGE_HEAD_BYTES * messages
        source = data, words_of_eight(data), size, head, self._plain, into.widths, into.bases
        texts = words_of_eight(into.texts)
        rows, end, suspects, reason, field, number = compiled.decode_rows(
            *source, into.numbers, into.views, texts, into.free, into.nulls, into.suspects
        )
        for at in compiled.not_utf8(data, *into.suspects[2:, :suspects]):
            field, row, start, length = map(int, into.suspects[:, at])
            value = data[start : start + length].tobytes()
            raise NotTextError(self._table.column_names[field], self._rows + row, value)
        if rows:
            try:
                arrays = [
                    into.array(at, column, kind, rows, plain=self._plain)
                    for at, (column, kind) in enumerate(zip(self._table.columns, self._schema.types, strict=True))
                ]
            except ValueError as error:
                raise ValueError(f"{error} (in what follows {self._place})") from error
            self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        into.nulls[:, : rows + 1] = 0
        self._rows += rows
        self._bytes += end
        self._ended = reason == compiled.TRAILER
        if fault := self._fault(reason, self._table.columns[field], number):
            raise ValueError(f"{fault}, after {self._place}")
        return begin + end

    def _fault(self, reason: int, column: Column, number: int) -> str | None:
        """Return a description of the fault in the bytes after the last whole row, None if there is none."""
        copy = f"the binary COPY of {self._table.name}"
        return {
            compiled.OTHER_COUNT: f"{copy} has rows of {number} fields, not of {len(self._table.columns)}",
            compiled.OTHER_LENGTH: f"{copy} has a field of {number} bytes",
            compiled.OTHER_WIDTH: f"column {column.name} does not come as {column.types.postgres}: row {self._rows:,} "
            f"has {number} bytes, not {width_of(column)}",
            compiled.NO_DECIMAL: f"column {column.name}, row {self._rows:,}, holds NaN, infinity, or more digits than "
            f"{column.types.postgres}, which no decimal of a frame has: cast it to text, or to float8",
            compiled.NO_SINGLE_ROW: f"a message of {copy} is not one row",
        }.get(reason)

    def _header_bytes(self, data: Bytes, size: int, *, messages: bool) -> int:
        """Return the length of the header, or 0 if it is incomplete; set `_begun` if it is complete."""
        head = compiled.MESSAGE_HEAD_BYTES * messages
        start = data[head : min(size, head + HEADER_BYTES)].tobytes()
        if not start.startswith(SIGNATURE[: len(start)]):
            raise ValueError(f"this is no binary COPY: it begins with {start[: len(SIGNATURE)]!r}")
        if len(start) < HEADER_BYTES:
            return 0
        left = 1 + int.from_bytes(data[1:head].tobytes()) - head - HEADER_BYTES if messages else 0
        if left < 0:
            raise ValueError(f"the header of the binary COPY of {self._table.name} is not in one message")
        if any(start[len(SIGNATURE) :]):
            raise ValueError(f"the binary COPY of {self._table.name} has flags or an extension, unknown here")
        self._begun = True
        if not left:
            return head + HEADER_BYTES
        # The rest of the first message is the first row, and becomes a message.
        message = bytes([compiled.COPY_DATA]) + (4 + left).to_bytes(4)
        data[HEADER_BYTES : HEADER_BYTES + head] = np.frombuffer(message, np.uint8)
        return HEADER_BYTES


class Buffers:
    """The buffers that `decode_rows` fills for `size` bytes of COPY, reused for each batch.

    Untouched pages take no memory. Raises ValueError for a size beyond the range of offsets.
    """

    def __init__(self, table: Table, size: int) -> None:
        if size > MOST_BYTES:
            raise ValueError(f"a row of {table.name} takes more than {MOST_BYTES:,} bytes")
        fields, rows = len(table.columns), size // (2 + 4 * len(table.columns)) + 1
        self.size, text_bytes = size, size + int(WORD_SLACK)
        self.widths = np.array([width_of(column) for column in table.columns], np.int64)
        has_text = (self.widths == compiled.TEXT_BYTES) | (self.widths == compiled.ANY_BYTES)
        of_texts = np.cumsum(has_text, dtype=np.uint64)
        self.bases = (of_texts - has_text).astype(np.uint64) * np.uint64(text_bytes)
        self.free = np.empty(fields, np.uint64)
        self.numbers, self.views = np.empty((fields, rows), np.uint64), np.empty((fields, rows, 2), np.uint64)
        self.texts = np.empty(text_bytes * (int(of_texts[-1]) + 1), np.uint8)
        self.nulls = np.zeros((fields, rows), np.uint8)
        self.suspects = np.empty((4, rows * int(of_texts[-1])), np.int32)

    def array(self, field: int, column: Column, kind: pa.DataType, rows: int, *, plain: bool) -> pa.Array:
        """Return a column of a batch in this Arrow type; raises ValueError for values that frames cannot represent."""
        numbers, null, arrow = self.numbers[field, :rows], self.nulls[field, :rows], kind
        buffers: list[Any]
        match column.type:
            case _ if (width := self.widths[field]) in (compiled.TEXT_BYTES, compiled.ANY_BYTES):
                text = self.texts[int(self.bases[field]) : int(self.free[field])]
                buffers = [np.append(np.uint64(0), numbers) if plain else self.views[field, :rows].copy(), text.copy()]
                arrow = (TEXT_TYPES if width == compiled.TEXT_BYTES else BYTES_TYPES)[plain]
            case ColumnType.UUID:
                buffers = compiled.uuid_views_of(self.views[field, :rows], reverse=False, plain=plain)
            case ColumnType.DECIMAL:
                buffers = [self.views[field, :rows].copy()]
            case ColumnType.BOOL:
                buffers = [np.packbits(numbers != 0, bitorder="little")]
            case ColumnType.DATE:
                buffers = [since_1970(column, numbers.astype(np.int32), DAYS_TO_2000)]
            case _ if pa.types.is_timestamp(arrow):
                arrow = pa.timestamp("us", arrow.tz)  # PostgreSQL's unit, whatever the frame's unit is
                buffers = [since_1970(column, numbers.astype(np.int64), MICROSECONDS_TO_2000)]
            case _:
                arrow = column.postgres_arrow  # the cast to the column's type finds numbers out of range
                buffers = [numbers.astype(f"u{arrow.bit_width // 8}")]
        validity = np.packbits(null == 0, bitorder="little") if null.any() else None
        array = compiled.arrow_array(arrow, rows, validity, buffers)
        if column.type in ARRAYS:
            return lists(array, column)
        if column.type in NESTED:
            texts = pa.table({column.name: pa.array(array.to_pylist(), pa.string())})
            return without_documents(texts, Table(column.name, (column,), ())).column(0).combine_chunks()
        if column.type in (ColumnType.TIME, ColumnType.DECIMAL):  # PostgreSQL has 24:00, which dataframes do not
            array.validate(full=True)
        # Arrow casts no views to numbers.
        return array if arrow == kind else array.cast(PLAIN.get(arrow, arrow)).cast(kind)


def lists(bodies: pa.Array, column: Column) -> pa.Array:
    """Return lists, whose elements are decoded as a binary COPY of one column, from PostgreSQL's binary arrays.

    Raises ValueError for an array of more than one dimension, and for elements as `Buffers.array` does.
    """
    plain = bodies.cast(pa.large_binary())
    offsets, data = (
        np.frombuffer(buffer, kind) for buffer, kind in zip(plain.buffers()[1:], ("<i8", "u1"), strict=True)
    )
    null = np.asarray(bodies.is_null())
    ends, copied = np.zeros(len(bodies) + 1, np.int32), np.empty(2 * len(data), np.uint8)
    size = compiled.split_arrays(data, offsets, null, ends, copied)
    if size < 0:
        raise ValueError(f"column {column.name} holds an array of more than one dimension, or none: cast it to text")
    element = Table(column.name, (column.element,), ())
    decoder = CopyDecoder(element, element.arrow_large_schema)
    for part in (SIGNATURE + bytes(HEADER_BYTES - len(SIGNATURE)), copied[:size].data, TRAILER):
        decoder.feed(part)
    values = decoder.finish().column(0).combine_chunks().cast(column.element.types.arrow)
    mask = pa.array(null) if null.any() else None
    return pa.ListArray.from_arrays(pa.array(ends), values, mask=mask).cast(column.types.arrow)


def width_of(column: Column) -> int:
    """Return the width of a column's fields, as `compiled.decode_rows` takes it; text if the form is not decoded."""
    kind = column.postgres_arrow
    match column.type:
        case ColumnType.UUID:
            return compiled.UUID_BYTES
        case ColumnType.DECIMAL:
            return compiled.NUMERIC - int(kind.scale)
        case ColumnType.BYTES | ColumnType.FIXED_BYTES | ColumnType.LIST | ColumnType.FIXED_LIST:
            return compiled.ANY_BYTES
    return max(1, kind.bit_width // 8) if pa.types.is_primitive(kind) else compiled.TEXT_BYTES


def selected(column: Column) -> str:
    """Return the expression that selects a column in the form that is decoded."""
    name, select = quote_postgres(column.name), column.innermost.types.postgres_select
    if column.innermost.type is ColumnType.UUID or select == "{0}":
        return name
    return f"{name}::text[]" if column.type in ARRAYS else select.format(name)


def moved(held: Bytes, first: int, end: int, size: int) -> Bytes:
    """Return a buffer of at least `size` bytes and SLACK that starts with the bytes from `first` to `end`."""
    to = held if len(held) >= size + len(SLACK) else np.empty(size + len(SLACK), np.uint8)
    to[: end - first] = held[first:end]
    return to


def since_1970(column: Column, since_2000: NDArray[Any], offset: int) -> NDArray[Any]:
    """Return days or microseconds since 1970. Raises ValueError for infinity, which frames cannot represent.

    PostgreSQL sends -infinity and infinity as the least and the greatest number.
    """
    limits = np.iinfo(since_2000.dtype)
    if len(since_2000) and (since_2000.min() == limits.min or since_2000.max() > limits.max - offset):
        raise ValueError(f"column {column.name} holds infinity or -infinity, which no dataframe has in place of a date")
    since_2000 += since_2000.dtype.type(offset)
    return since_2000


def in_binary_form(content: pa.Table, table: Table) -> pa.Table:
    """Return the content with text in PostgreSQL's binary formats; raises ValueError for text of another type."""
    from psycopg.adapt import PyFormat, Transformer

    content = with_documents(with_uuid_bytes(content, table), table)
    for at, column in enumerate(table.columns):
        if column.type in (ColumnType.JSON, *NESTED):  # jsonb begins with its version
            values = [None if text is None else b"\1" + text.encode() for text in content.column(at).to_pylist()]
            content = content.set_column(at, column.name, pa.array(values, pa.large_binary()))
        elif parse := PARSED.get(column.type):
            parsed = [None if text is None else parse(text) for text in content.column(at).to_pylist()]
            dumped = Transformer().dump_sequence(parsed, [PyFormat.BINARY] * len(parsed))
            content = content.set_column(at, column.name, pa.array(dumped, pa.large_binary()))
        elif column.type is ColumnType.FIXED_LIST:
            content = content.set_column(at, column.name, content.column(at).cast(pa.list_(column.element.types.arrow)))
    return content


def with_uuid_bytes(content: pa.Table, table: Table) -> pa.Table:
    """Return the content with UUIDs as 16 bytes; raises ValueError for text that is not a UUID."""
    for name in table.columns_of(ColumnType.UUID):
        at = content.column_names.index(name)
        content = content.set_column(at, name, uuid_bytes(one_piece(content, name), name))
    return content


def uuid_bytes(text: pa.Array, name: str) -> pa.Array:
    """Return the bytes of UUIDs in text; raises ValueError as `uuid_halves` does."""
    validity = np.packbits(1 - nulls_of(text), bitorder="little") if text.null_count else None
    raw = np.ascontiguousarray(uuid_halves(text, name)).astype(">u8")
    return compiled.arrow_array(pa.binary(UUID_BYTES), len(text), validity, [raw])


def near_key_order(content: pa.Table, table: Table) -> tuple[pa.Table, Int64s]:
    """Return the content, in one piece unless it is in order, and its rows near the order of PostgreSQL's primary key.

    An index benefits as much as from the exact order. Only columns of numbers and bytes are compared, no decimals and
    lists. Rows that are in order stay as they are, such as those of a key that counts up. The content may be in
    PostgreSQL's binary form. Raises ValueError for text that is not a UUID.
    """
    columns = {column.name: column for column in table.columns}
    kinds = {name: content.schema.field(name).type for name in table.key}
    compared = [
        columns[name]
        for name, kind in kinds.items()
        if columns[name].type is ColumnType.UUID or kind in native_format.WIDE or pa.types.is_primitive(kind)
    ]
    values = pl.DataFrame({str(at): content[column.name] for at, column in enumerate(compared)})
    # The first column shows sooner than all of them that rows are not in order.
    if not compared or (values.to_series().is_sorted() and values.to_struct().is_sorted()):
        return content, np.arange(content.num_rows)
    content = content.combine_chunks()
    if numba_waits() and content.num_rows <= ROWS_BEFORE_NUMBA:
        return content, values.select(pl.arg_sort_by(values.columns)).to_series().cast(pl.Int64).to_numpy()
    return content, native_format.sorted_rows(_levels(content, compared), content.num_rows)


def _levels(content: pa.Table, columns: list[Column]) -> Iterator[Keys]:
    """Yield the sort keys of these columns, the most significant first."""
    rows = content.num_rows
    for column in columns:
        levels = native_format.values_of(content, native_format.one_partition(rows), column).levels(0, rows)
        # PostgreSQL compares a UUID's first half first, and ClickHouse the second.
        yield from [*levels][::-1] if column.type is ColumnType.UUID else levels
