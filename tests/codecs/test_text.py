"""Text is proven to be UTF-8 before a frame has it, and the decoders hold out against any bytes."""

import contextlib
import io
import itertools
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from framehaul.codecs.native_format import read_native
from framehaul.codecs.native_format import varint as number
from framehaul.codecs.native_format import with_length as text
from framehaul.data.frames import NotTextError, validated
from framehaul.data.schema import Column, ColumnType, Table
from tests.codecs.damaged_streams import DECODERS, NOT_TEXT, NUMBERS, decoded_elsewhere
from tests.codecs.test_copy_binary import HEADER, TRAILER, decoded, row
from tests.codecs.test_native_format import blocks


def texts_of(values: list[bytes | None], kind: pa.DataType) -> pa.Array:
    return pa.array(values, {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}[kind]).view(kind)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_arrow_arrays_hold_no_text_that_is_none(kind: pa.DataType) -> None:
    whole, before = "x€y".encode(), "\ufeff€\ud7ff\ue000\U00010000\U0010ffff"
    for cut in (2, 3):  # a character does not reach into the next row
        with pytest.raises(NotTextError, match="row 1: "):
            validated(pa.table({"t": texts_of([b"a", whole[:cut], b"", whole[cut:]], kind)}))
    for wrong in NOT_TEXT:
        array = texts_of([before.encode(), b"x" * 40 + wrong, b""], kind)
        with pytest.raises(NotTextError, match="column t, row 1: "):
            validated(pa.table({"t": array}))
        assert validated(pa.table({"t": array[:1]}))["t"].to_pylist() == [before]
        validated(pa.table({"t": array[2:]}))


def test_what_stands_under_null_is_nobodys() -> None:
    values = texts_of([b"a", b"\xff\xfe", b"c"], pa.string())
    hidden = pa.Array.from_buffers(pa.string(), 3, [pa.py_buffer(b"\x05"), *values.buffers()[1:]])
    found = validated(pa.table({"t": hidden}))["t"]
    found.validate(full=True)
    assert found.to_pylist() == ["a", None, "c"]
    shown = pa.Array.from_buffers(pa.string(), 3, [pa.py_buffer(b"\x03"), *values.buffers()[1:]])
    with pytest.raises(NotTextError, match="row 1: "):
        validated(pa.table({"t": shown}))


def test_dictionaries_are_looked_at_where_they_are_used() -> None:
    keys = texts_of([b"a", b"\xff", b"c"], pa.string())

    def column(*indexes: int | None) -> pa.Table:
        return pa.table({"t": pa.DictionaryArray.from_arrays(pa.array(indexes, pa.int8()), keys, safe=False)})

    assert validated(column(0, 2, None, 2))["t"].to_pylist() == ["a", "c", None, "c"]
    with pytest.raises(NotTextError, match="column t, row 2: "):
        validated(column(0, 2, 1))
    for index in (3, -1):
        with pytest.raises(ValueError, match="its dictionary of 3 has no"):
            validated(column(0, index))


def test_arrays_that_are_not_what_they_say_are_refused() -> None:
    data = pa.py_buffer(b"abcdef")

    def strings(*offsets: int, nulls: int = 0, validity: bytes | None = None) -> pa.Table:
        buffers = [validity and pa.py_buffer(validity), pa.py_buffer(np.array(offsets, np.int32)), data]
        return pa.table({"t": pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers, nulls)})

    validated(strings(0, 3, 6))
    for offsets in ((3, 1, 6), (0, 9, 6), (0, -5, 6)):
        with pytest.raises(ValueError, match="column t, from row 0 on: "):
            validated(strings(*offsets))
    with pytest.raises(ValueError, match=r"null_count value \(2\) doesn't match"):
        validated(strings(0, 1, 2, 3, nulls=2, validity=b"\x05"))
    digits = pa.Array.from_buffers(pa.decimal128(3, 0), 1, [None, pa.py_buffer((1000).to_bytes(16, "little"))])
    with pytest.raises(ValueError, match="column t, from row 0 on: "):
        validated(pa.table({"t": digits}))


PLAIN = Table("t", (Column("t", ColumnType.TEXT),), ())
MAYBE = Table("t", (Column("t", ColumnType.TEXT, nullable=True),), ())
LOW = Table("t", (Column("t", ColumnType.TEXT, low_cardinality=True),), ())


def native(column: Column, values: list[bytes | None], at_once: int = 3, *, plain: bool = False) -> pa.Table:
    """Decoded blocks of so many rows, as views or plain."""
    table, content = Table("t", (column,), ()), pa.table({"t": pa.array(values, pa.binary())})
    parts = [content.slice(at, at_once) for at in range(0, len(values), at_once)]
    body = b"".join(block for part in parts for block in blocks(part, table))
    return read_native(io.BytesIO(body), table, table.arrow_large_schema if plain else None)


@pytest.mark.parametrize("low_cardinality", [False, True])
@pytest.mark.parametrize("nullable", [False, True])
def test_native_gives_no_text_that_is_none(nullable: bool, low_cardinality: bool) -> None:
    column, as_bytes = (Column("t", kind, nullable, low_cardinality) for kind in (ColumnType.TEXT, ColumnType.BYTES))
    start: list[bytes | None] = ["é".encode(), b"", b"y" * 30, b"z", None if nullable else b"u"]
    refused = r"column t, row 5: .*is not UTF-8; read the column as binary \(before byte"
    for before, wrong, plain in itertools.product((b"", b"more than a view holds"), NOT_TEXT, (False, True)):
        with pytest.raises(ValueError, match=refused):
            native(column, [*start, before + wrong], plain=plain)
        found = native(as_bytes, [*start, before + wrong], plain=plain)
        found.validate(full=True)
        assert found["t"].to_pylist() == [*start, before + wrong]


def test_copy_gives_no_text_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framehaul.codecs.copy_binary.BATCH_BYTES", 10)  # rows are counted from the first batch on
    as_bytes = Table("t", (Column("t", ColumnType.BYTES, nullable=True),), ())
    for before, wrong in itertools.product((b"", b"more than a view holds"), NOT_TEXT):
        values = ["é".encode(), b"", None, b"y" * 30, before + wrong]
        stream = HEADER + b"".join(map(row, values)) + TRAILER
        with pytest.raises(ValueError, match=r"column t, row 4: .* is not UTF-8"):
            decoded(MAYBE, stream[:39], stream[39:])
        assert decoded(as_bytes, stream)["t"].to_pylist() == values


HEAD = number(1) + number(2) + text("t") + text("String")
LOW_HEAD = number(1) + number(2) + text("t") + text("LowCardinality(String)")


def test_native_may_have_bytes_under_null_and_keys_that_no_row_uses() -> None:
    body = number(1) + number(2) + text("t") + text("Nullable(String)") + b"\x01\x00" + text(b"\xff\xfe") + text("b")
    assert read_native(io.BytesIO(body), MAYBE)["t"].to_pylist() == [None, "b"]
    keys = struct.pack("<QQQ", 1, 0x600, 3) + text("") + text(b"\xff") + text("c") + struct.pack("<Q", 2)
    found = read_native(io.BytesIO(LOW_HEAD + keys + b"\x02\x00"), LOW)
    assert found["t"].to_pylist() == ["c", ""]
    with pytest.raises(ValueError, match=r"column t, row 1: b'.xff' is not UTF-8"):
        read_native(io.BytesIO(LOW_HEAD + keys + b"\x02\x01"), LOW)


@pytest.mark.parametrize(
    ("table", "body", "message"),
    [
        (PLAIN, HEAD + number(2**63 - 1) + b"x", "more than 2,147,483,647 bytes"),
        (PLAIN, HEAD + number(2**31 - 2) + b"x", "ends inside a block"),
        (PLAIN, number(1) + b"\xff" * 9 + b"\x01" + HEAD[2:], "more than nine bytes"),
        (PLAIN, number(1) + number(1) + text(b"\xff\xfe") + text("String"), r"came as \\xff\\xfe of type String"),
        (LOW, LOW_HEAD + struct.pack("<QQQ", 1, 0x6FF, 1) + bytes(99), r"another kind \(1, 0x6ff\)"),
        (LOW, LOW_HEAD + struct.pack("<QQQ", 1, 0x600, 2**63) + bytes(99), "ends inside a block"),
        (LOW, LOW_HEAD + struct.pack("<QQQQ", 1, 0x600, 1, 0)[:-8] + text("") + struct.pack("<Q", 2) + b"\x00\x01",
         "an index 1 into a dictionary of 1"),
        (LOW, LOW_HEAD + struct.pack("<QQQ", 1, 0x603, 1) + text("") + struct.pack("<Q", 2) + b"\xff" * 16,
         "an index 18446744073709551615 into a dictionary of 1"),
        (LOW, LOW_HEAD + struct.pack("<QQQ", 1, 0x600, 1) + text("") + struct.pack("<Q", 3) + bytes(3),
         "3 rows in a block of 2"),
    ],
)  # fmt: skip
def test_damaged_native_is_refused(table: Table, body: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_native(io.BytesIO(body), table)


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (b"id\tname\n1\ta\n", "no binary COPY: it begins with b'i"),
        (b"", "ended before its trailer"),
        (HEADER + row(b"abc")[:-1], "ended before its trailer"),
        (HEADER + row(b"abc") + struct.pack(">hi", 1, -(2**31)) + TRAILER, "a field of -2147483648 bytes, after 1 row"),
        (HEADER + struct.pack(">hi", 1, 2**30) + TRAILER, "ended before its trailer"),
        (HEADER + row(b"abc") + struct.pack(">h", 0) + TRAILER, "rows of 0 fields, not of 1, after 1 rows and 28 byte"),
        (HEADER + row(b"abc") + TRAILER + b"x", "1 bytes follow the trailer"),
        (HEADER[:11] + b"\x00\x01\x00\x00" + HEADER[15:] + TRAILER, "has flags or an extension"),
    ],
)
@pytest.mark.parametrize("at_once", [1, 1000])
def test_damaged_copy_is_refused(stream: bytes, message: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framehaul.codecs.copy_binary.BATCH_BYTES", at_once)
    with pytest.raises(ValueError, match=message):
        decoded(MAYBE, *(stream[at : at + at_once] for at in range(0, len(stream), at_once)))


def test_a_decoder_holds_no_more_than_came() -> None:
    bodies = [HEAD + raw for raw in NUMBERS]
    bodies += [number(1) + number(2**63 - 1) + HEAD[2:] + b"\x01x", number(1) + number(1) + number(2**62)]
    tracemalloc.start()
    try:
        for body in bodies:
            with contextlib.suppress(ValueError):
                read_native(io.BytesIO(body), PLAIN)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_damaged_streams_are_decoded_or_refused(count: int) -> None:
    assert decoded_elsewhere(count, *DECODERS) == {kind: {"decoded", "refused"} for kind in DECODERS}


@pytest.mark.slow
def test_the_loops_stay_within_bounds(tmp_path: Path) -> None:
    found = decoded_elsewhere(1000, "native", "copy", "wire", NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(tmp_path))
    assert [*found.values()] == [{"decoded", "refused"}] * 3
