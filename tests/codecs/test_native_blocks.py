"""Arrow tables as Native blocks: the decoder of the other direction gives back what was sent, in the table's order."""

from __future__ import annotations

import io
import itertools
import string
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from framehaul.codecs import compiled
from framehaul.codecs import native_blocks as codec
from framehaul.codecs.compiled import SHORT_RUN
from framehaul.codecs.native_blocks import native_blocks
from framehaul.codecs.native_format import read_native
from framehaul.data import generator, schema
from framehaul.data.schema import ANALYTICS_METRICS, NO_NATIVE, Column, ColumnType, Table
from tests.second_table import SECOND_TABLE

COMBINATIONS = itertools.product([kind for kind in ColumnType if kind not in NO_NATIVE], (False, True))
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


def polars(content: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(content)
    assert isinstance(frame, pl.DataFrame)
    return frame


def blocks(content: pa.Table, table: Table) -> list[bytes]:
    return [b"".join(map(bytes, block)) for block in native_blocks(content, table)]


def decoded(content: pa.Table, table: Table) -> list[pl.DataFrame]:
    return [polars(read_native(io.BytesIO(block), table)) for block in blocks(content, table)]


def in_order(content: pa.Table, table: Table) -> pl.DataFrame:
    """The rows by their partition and the sorting key, in which the second half of a UUID comes first."""
    by, keys = table.partition_by_month_of, list[pl.Expr]()
    for name in table.clickhouse_order:
        is_uuid = name in table.columns_of(ColumnType.UUID)
        keys += [pl.col(name).str.slice(19), pl.col(name)] if is_uuid else [pl.col(name)]
    return polars(content).sort([pl.col(by).dt.month_start(), *keys] if by else keys, maintain_order=True)


@pytest.mark.parametrize("table", [ANALYTICS_METRICS, SECOND_TABLE, EVERY_TYPE], ids=["standard", "second", "types"])
@pytest.mark.parametrize("rows", [0, 1, 3000])
def test_gives_back_what_was_sent_in_the_tables_order(table: Table, rows: int) -> None:
    content = generator.arrow_table(table, rows, 3)
    frames = decoded(content, table)
    assert len(frames) >= min(rows, 1)
    assert pl.concat([polars(content)[:0], *frames]).equals(in_order(content, table), null_equal=True)
    if by := table.partition_by_month_of:
        assert all(frame[by].dt.month_start().n_unique() == 1 for frame in frames)


def test_a_month_that_may_be_null_parts_nothing() -> None:
    columns = Column("d", ColumnType.DATE, nullable=True), Column("n", ColumnType.INT16)
    table = Table("t", columns, ("n",), partition_by_month_of="d")
    days = pa.Array.from_buffers(
        pa.date32(), 3, [pa.py_buffer(b"\x05"), pa.array([20_000, -(2**31), 20_900], pa.int32()).buffers()[1]]
    )
    (back,) = decoded(pa.table({"d": days, "n": pa.array([3, 1, 2], pa.int16())}), table)
    assert back["n"].to_list() == [1, 2, 3]
    assert back["d"].is_null().to_list() == [True, False, False]


def test_a_partition_may_be_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "BLOCK_ROWS", 7)
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
    assert back.equals(polars(content), null_equal=True)


def test_chunks_slices_and_plain_offsets_are_no_other_rows() -> None:
    content = generator.arrow_table(EVERY_TYPE, 300, 3)
    pieces = [content.slice(at, 50) for at in range(0, 300, 50)]
    large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    wide = pa.schema(pa.field(field.name, large.get(field.type, field.type)) for field in content.schema)
    once = blocks(content, EVERY_TYPE)
    assert blocks(pa.concat_tables(pieces), EVERY_TYPE) == once
    assert blocks(content.cast(wide), EVERY_TYPE) == once
    cut = content.slice(37, 200)
    assert pl.concat(decoded(cut, EVERY_TYPE)).equals(in_order(cut, EVERY_TYPE), null_equal=True)


@pytest.mark.parametrize("keys", [1, 255, 256, 257, 65_535, 65_536])
@pytest.mark.parametrize("nullable", [False, True])
def test_dictionaries_of_every_size(keys: int, nullable: bool) -> None:
    column = Column("t", ColumnType.TEXT, nullable=nullable, low_cardinality=True)
    table = Table("t", (column,), ())
    values = [str(number) for number in range(keys)] + ([None] if nullable else [])
    (block,) = blocks(pa.table({"t": pa.array(values, pa.large_string())}), table)
    plain = keys == 65_536
    back = replace(table, columns=(replace(column, low_cardinality=False),)) if plain else table
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
    for at in (0, 7, 8, 12, 13, 18, 23, 24, 35):
        allowed = "-" if good[at] == "-" else string.hexdigits
        for other in map(chr, range(128)):
            text = good[:at] + other + good[at + 1 :]
            if other in allowed:
                assert decoded(pa.table({"u": pa.array([text])}), table)[0]["u"].to_list() == [str(UUID(text))]
            else:
                with pytest.raises(ValueError, match=r"column u, row 1: .* is no UUID"):
                    decoded(pa.table({"u": pa.array([good, text])}), table)
    assert decoded(pa.table({"u": pa.array([good.replace("-", "")])}), table)[0]["u"].to_list() == [str(UUID(good))]
    for text in ("", good[:-1], f"{good}0"):
        with pytest.raises(ValueError, match="is no UUID"):
            decoded(pa.table({"u": pa.array([text])}), table)


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
