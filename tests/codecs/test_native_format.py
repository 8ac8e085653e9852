"""Arrow tables as Native blocks and back, in the table's order, in pieces, at the limits of its forms, and damaged."""

import io
import itertools
import string
import struct
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from framehaul.codecs import compiled, native_format
from framehaul.codecs.compiled import SHORT_RUN
from framehaul.codecs.native_format import native_blocks, read_native
from framehaul.codecs.native_format import varint as number
from framehaul.codecs.native_format import with_length as text
from framehaul.data import generator, schema
from framehaul.data.schema import ANALYTICS_METRICS, ARRAYS, NO_NATIVE, Column, ColumnType, Table, enum_types
from tests.second_table import SECOND_TABLE

NARROW = Table("narrow", (Column("t", ColumnType.TEXT, nullable=True),), ())
KINDS = [kind for kind in ColumnType if kind not in NO_NATIVE]
COMBINATIONS = [*itertools.product(KINDS, [False]), *((kind, True) for kind in KINDS if kind not in ARRAYS)]
EVERY_TYPE = Table(
    "every type",
    (
        *itertools.starmap(lambda kind, null: Column(f"{kind.name} {null}", kind, null), COMBINATIONS),
        Column("date32", ColumnType.DATE, exactly=schema.DATE32),
        Column("keys", ColumnType.TEXT, low_cardinality=True),
        Column("keys or NULL", ColumnType.TEXT, nullable=True, low_cardinality=True),
    ),
    ("INT64 False",),
)


def blocks(content: pa.Table, table: Table) -> list[bytes]:
    return [b"".join(map(bytes, block)) for block in native_blocks(content, table)]


def decoded(content: pa.Table, table: Table) -> list[pl.DataFrame]:
    return [pl.DataFrame(read_native(io.BytesIO(block), table)) for block in blocks(content, table)]


def in_order(content: pa.Table, table: Table) -> pl.DataFrame:
    """The rows by their partition and the sorting key, in which the second half of a UUID comes first."""
    by, keys = table.partition_by_month_of, list[pl.Expr]()
    for name in table.clickhouse_order:
        is_uuid = name in table.columns_of(ColumnType.UUID)
        keys += [pl.col(name).str.slice(19), pl.col(name)] if is_uuid else [pl.col(name)]
    return pl.DataFrame(content).sort([pl.col(by).dt.month_start(), *keys] if by else keys, maintain_order=True)


@pytest.mark.parametrize("table", [ANALYTICS_METRICS, SECOND_TABLE, EVERY_TYPE], ids=["standard", "second", "types"])
@pytest.mark.parametrize("rows", [0, 1, 3000])
def test_gives_back_what_was_sent_in_the_tables_order(table: Table, rows: int) -> None:
    content = generator.arrow_table(table, rows, 3)
    frames = decoded(content, table)
    assert pl.concat([pl.DataFrame(content)[:0], *frames]).equals(in_order(content, table), null_equal=True)
    if by := table.partition_by_month_of:
        assert all(frame[by].dt.month_start().n_unique() == 1 for frame in frames)


def test_a_month_that_may_be_null_parts_nothing() -> None:
    columns = Column("d", ColumnType.DATE, nullable=True), Column("n", ColumnType.INT16)
    table = Table("t", columns, ("n",), partition_by_month_of="d")
    days = pa.array([20_000, None, 20_900], pa.int32()).cast(pa.date32())
    (back,) = decoded(pa.table({"d": days, "n": pa.array([3, 1, 2], pa.int16())}), table)
    assert back["n"].to_list() == [1, 2, 3]
    assert back["d"].is_null().to_list() == [True, False, False]


def test_a_partition_may_be_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_format, "BLOCK_ROWS", 7)
    content = generator.arrow_table(ANALYTICS_METRICS, 500, 3)
    frames = decoded(content, ANALYTICS_METRICS)
    assert max(map(len, frames)) == 7
    for frame in frames:  # a part has an order of its own
        assert frame.equals(in_order(frame.to_arrow(), ANALYTICS_METRICS))
    assert in_order(pl.concat(frames).to_arrow(), ANALYTICS_METRICS).equals(in_order(content, ANALYTICS_METRICS))


@pytest.mark.parametrize("digits", [1, 9, 10, 18, 19, 38])
def test_decimals_of_every_width(digits: int) -> None:
    kind = schema.decimal_types(digits, 1)
    table = Table("t", tuple(Column(f"{null}", ColumnType.DECIMAL, null, exactly=kind) for null in (False, True)), ())
    most, least = (Decimal((sign, (9,) * digits, -1)) for sign in (0, 1))
    content = pa.table({"False": [most, least, Decimal(0)], "True": [most, None, least]}, table.arrow_schema)
    (back,) = decoded(content, table)
    assert back.equals(pl.DataFrame(content), null_equal=True)


def test_chunks_slices_and_plain_offsets_are_no_other_rows() -> None:
    content = generator.arrow_table(EVERY_TYPE, 300, 3)
    pieces, once = [content.slice(at, 50) for at in range(0, 300, 50)], blocks(content, EVERY_TYPE)
    assert blocks(pa.concat_tables(pieces), EVERY_TYPE) == once
    assert blocks(content.cast(EVERY_TYPE.arrow_large_schema), EVERY_TYPE) == once
    cut = content.slice(37, 200)
    assert pl.concat(decoded(cut, EVERY_TYPE)).equals(in_order(cut, EVERY_TYPE), null_equal=True)


@pytest.mark.parametrize("keys", [1, 255, 256, 257, 65_535, 65_536])
@pytest.mark.parametrize("nullable", [False, True])
def test_dictionaries_of_every_size(keys: int, nullable: bool) -> None:
    sent, back = (Table("t", (Column("t", ColumnType.TEXT, nullable, low),), ()) for low in (True, keys < 65_536))
    values = [*map(str, range(keys)), *([None] if nullable else [])]
    (block,) = blocks(pa.table({"t": pa.array(values, pa.large_string())}), sent)
    assert read_native(io.BytesIO(block), back).column("t").to_pylist() == values


def test_texts_of_every_length_anywhere_in_the_data() -> None:
    table = Table("t", (Column("t", ColumnType.TEXT, nullable=True),), ())
    around_a_view = ["é" * (length // 2) + "x" * (length % 2) for length in range(2, 30)]
    lengths = [*range(70), 127, 128, 129, 16_383, 16_384, 100_000]
    values = [*around_a_view, *("0" * length for length in lengths), None, "1" * 3, "2" * 9]
    for last in range(len(values)):
        some = values[: last + 1]
        (back,) = decoded(pa.table({"t": pa.array(some, pa.large_string())}), table)
        assert back["t"].to_list() == some
    # Views of equal text are equal to the byte: what lies behind a short text on the wire is not in its view.
    assert back["t"].n_unique() == len(values)


def test_only_hexadecimal_digits_make_a_uuid() -> None:
    table = Table("t", (Column("u", ColumnType.UUID),), ())
    good = "01234567-89ab-cdef-ABCD-EF0123456789"
    (back,) = decoded(pa.table({"u": pa.array([good])}), table)
    assert back["u"].to_list() == [str(UUID(good))]
    for at, other in itertools.product((0, 7, 8, 12, 13, 18, 23, 24, 35), map(chr, range(128))):
        text = good[:at] + other + good[at + 1 :]
        if other in ("-" if good[at] == "-" else string.hexdigits):
            assert decoded(pa.table({"u": pa.array([text])}), table)[0]["u"].to_list() == [str(UUID(text))]
        else:
            with pytest.raises(ValueError, match=r"column u, row 1: .* is no UUID"):
                decoded(pa.table({"u": pa.array([good, text])}), table)


@pytest.mark.parametrize("count", [1, SHORT_RUN, SHORT_RUN + 1, 5000, (1 << 19) + 3])
@pytest.mark.parametrize(("bits", "low"), [(0, 0), (1, 24), (8, 0), (8, 24), (20, 24), (40, 0), (40, 24), (64, 0)])
def test_runs_are_sorted_as_numpy_does(count: int, bits: int, low: int) -> None:
    random_bits = np.random.default_rng(5).integers(0, 2**64, count, np.uint64, endpoint=False)
    keys = (random_bits & np.uint64((1 << bits) - 1)) << np.uint64(low)
    rows, starts = np.arange(count), np.zeros(count, np.bool_)
    starts[0] = True
    compiled.start_numba()
    compiled.sort_runs(keys, rows, starts)
    assert (rows == np.argsort(keys, kind="stable")).all()
    assert (starts[1:] == (np.diff(keys[rows]) != 0)).all()


def test_dictionaries_enums_decimals_and_long_texts_go_by_their_values_in_an_order() -> None:
    texts = ["b", "", "ä", "a", "\x7f", "\U0001f680", "ab", "b"] * 30
    numbers = [Decimal((at % 7 - 3) * 10**30 + at % 5) for at in range(240)]
    enums = schema.enum_types(*dict.fromkeys(texts)), schema.enum_types(*dict.fromkeys(texts), *map(str, range(300)))
    cases: list[tuple[Column, list[Any]]] = [
        (Column("t", ColumnType.TEXT, low_cardinality=True), texts),
        (Column("t", ColumnType.TEXT), ["the same start, another end: " + text for text in texts]),
        (Column("t", ColumnType.DECIMAL, exactly=schema.decimal_types(38, 0)), numbers),
        *((Column("t", ColumnType.ENUM, exactly=types), texts) for types in enums),
    ]
    for column, values in cases:
        table = Table("t", (column, Column("n", ColumnType.INT16)), ("t", "n"))
        content = pa.table({"t": pa.array(values).cast(column.types.arrow), "n": pa.array(range(240), pa.int16())})
        (back,) = decoded(content, table)
        places = dict.fromkeys(values) if column.type is ColumnType.ENUM else sorted(set(values))
        order = {value: at for at, value in enumerate(places)}
        rows = sorted(zip(values, range(240), strict=True), key=lambda row: (order[row[0]], row[1]))
        assert [*back.iter_rows()] == rows


class Trickle(io.BytesIO):
    def __init__(self, content: bytes, at_once: int) -> None:
        super().__init__(content)
        self._at_once = at_once

    def readinto(self, buffer: Any, /) -> int:
        return super().readinto(memoryview(buffer)[: self._at_once])


@pytest.mark.parametrize(("scratch_bytes", "at_once"), [(16, 5), (64, 64), (1000, 77)])
def test_blocks_may_be_cut_anywhere(scratch_bytes: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_format, "SCRATCH_BYTES", scratch_bytes)
    monkeypatch.setattr(native_format, "READ_BYTES", at_once)
    content = generator.arrow_table(SECOND_TABLE, 60, 1)
    for layout in (None, SECOND_TABLE.arrow_large_schema):
        parts = [content.slice(start, 7) for start in range(0, 60, 7)]
        body = b"".join(block for part in parts for block in blocks(part, SECOND_TABLE))
        found = read_native(Trickle(body, at_once), SECOND_TABLE, layout)
        assert found.schema == (layout or SECOND_TABLE.arrow_view_schema)
        wanted = pl.concat([pl.DataFrame(part).sort("Order", maintain_order=True) for part in parts])
        assert pl.DataFrame(found.cast(SECOND_TABLE.arrow_schema)).equals(wanted)


@pytest.mark.parametrize("index_type", range(4))
@pytest.mark.parametrize("nullable", [False, True])
def test_dictionaries_of_every_index_type(index_type: int, nullable: bool) -> None:
    column = Column("t", ColumnType.TEXT, nullable=nullable, low_cardinality=True)
    null = [None] if nullable else []
    keys, values = [*null, "", "b", "longer than a view"], ["", "b", "longer than a view", "b", *null]
    body = number(1) + number(len(values)) + text("t") + text(column.clickhouse_type)
    body += struct.pack("<QQQ", 1, 0x600 | index_type, len(keys)) + b"".join(text(key or "") for key in keys)
    body += struct.pack(f"<Q{len(values)}{'BHIQ'[index_type]}", len(values), *map(keys.index, values))
    found = read_native(io.BytesIO(body), Table("d", (column,), ()))
    found.validate(full=True)
    assert found["t"].to_pylist() == values


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("nullable", [False, True])
def test_an_enum_has_only_its_numbers(size: int, nullable: bool) -> None:
    texts = [f"text {at}" for at in range(3 if size == 1 else 300)]
    table = Table("enums", (Column("e", ColumnType.ENUM, nullable, exactly=enum_types(*texts)),), ())
    values = [texts[-1], *([None] if nullable else []), texts[0]]
    (body,) = blocks(pa.table({"e": pa.array(values)}), table)
    for layout in (table.arrow_view_schema, table.arrow_large_schema):
        found = read_native(io.BytesIO(body), table, layout)
        found.validate(full=True)
        assert (found.schema, found["e"].to_pylist()) == (layout, values)
    for wrong in (0, len(texts) + 1, -1):
        with pytest.raises(ValueError, match=f"column e came with the number {wrong} of {len(texts)} texts"):
            read_native(io.BytesIO(body[:-size] + wrong.to_bytes(size, "little", signed=True)), table)


def test_a_column_that_views_cannot_point_into_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_format, "MOST_BYTES", 1000)
    (body,) = blocks(pa.table({"t": pa.array(["x" * 100] * 20)}), NARROW)
    with pytest.raises(ValueError, match="more than 1,000 bytes: ask for smaller blocks"):
        read_native(io.BytesIO(body), NARROW)
    monkeypatch.setattr(compiled, "MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="more than 1,000 bytes as text: ask for smaller blocks"):
        compiled.uuid_views_of(np.zeros((28, 2), np.uint64), reverse=True)


def test_bad_bodies_are_refused() -> None:
    for nothing in (b"", number(1) + number(0) + text("t") + text("Nullable(String)")):
        assert read_native(io.BytesIO(nothing), NARROW).num_rows == 0
    (whole,) = blocks(pa.table({"t": pa.array(["a", None])}), NARROW)
    for cut in range(1, len(whole)):
        with pytest.raises(ValueError, match="ends inside a block"):
            read_native(io.BytesIO(whole[:cut]), NARROW)
    with pytest.raises(ValueError, match="2 columns came for narrow, which has 1"):
        read_native(io.BytesIO(number(2) + whole[1:]), NARROW)
    other = Table("narrow", (Column("t", ColumnType.INT32),), ("t",))
    with pytest.raises(ValueError, match=r"column t of type Int32 came as t of type Nullable\(String\)"):
        read_native(io.BytesIO(whole), other)
