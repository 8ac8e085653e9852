"""ClickHouse's Native format decoded; the other side is written here by hand, value by value."""

from __future__ import annotations

import datetime as dt
import io
import struct
from typing import Any
from uuid import UUID

import polars as pl
import pyarrow as pa
import pytest

from framehaul.codecs import native_format
from framehaul.codecs.native_format import read_native
from framehaul.data import generator
from framehaul.data.frames import enum_values
from framehaul.data.schema import ANALYTICS_METRICS, Column, ColumnType, Table, enum_types
from tests.second_table import SECOND_TABLE

NARROW = Table("narrow", (Column("t", ColumnType.TEXT, nullable=True),), ("t",))


def number(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return number(len(raw)) + raw


def field(column: Column, value: Any) -> bytes:
    """A value as Native has it: a date as its days, a text of an enum as its number, from 1 on."""
    match column.type:
        case ColumnType.TEXT | ColumnType.BYTES:
            return text("" if value is None else value)
        case ColumnType.UUID:
            raw = bytes(16) if value is None else UUID(value).bytes
            return raw[:8][::-1] + raw[8:][::-1]
        case ColumnType.DATE:
            return struct.pack("<H", (value - dt.date(1970, 1, 1)).days if value else 0)
        case ColumnType.ENUM:
            number = 0 if value is None else enum_values(column).index(value) + 1
            return struct.pack("<b" if column.types.clickhouse.startswith("Enum8") else "<h", number)
        case _:
            return struct.pack(f"<{FORMATS[column.type]}", value or 0)


FORMATS = {ColumnType.INT16: "h", ColumnType.INT32: "i", ColumnType.INT64: "q", ColumnType.FLOAT64: "d"}


def block(table: Table, content: pa.Table) -> bytes:
    parts = [number(len(table.columns)), number(content.num_rows)]
    for column in table.columns:
        values = content.column(column.name).to_pylist()
        parts += [text(column.name), text(column.clickhouse_type)]
        if column.low_cardinality:
            parts.append(dictionary(column, values))
            continue
        if column.nullable:
            parts.append(bytes(value is None for value in values))
        parts += [field(column, value) for value in values]
    return b"".join(parts)


def dictionary(column: Column, values: list[Any], index_type: int = 1) -> bytes:
    """A LowCardinality column with keys of its own; 0 stands for NULL where there may be one."""
    if not values:
        return b""
    keys = [*([None] if column.nullable else []), *sorted({value for value in values if value is not None})]
    indexes = struct.pack(f"<{len(values)}{'BHIQ'[index_type]}", *(keys.index(value) for value in values))
    header = struct.pack("<QQQ", 1, 0x600 | index_type, len(keys))
    return header + b"".join(field(column, key) for key in keys) + struct.pack("<Q", len(values)) + indexes


class Trickle(io.BytesIO):
    def __init__(self, content: bytes, at_once: int) -> None:
        super().__init__(content)
        self._at_once = at_once

    def readinto(self, buffer: Any, /) -> int:
        return super().readinto(memoryview(buffer)[: self._at_once])


def frame(content: pa.Table, table: Table) -> pl.DataFrame:
    found = pl.from_arrow(content, schema=table.polars_schema)
    assert isinstance(found, pl.DataFrame)
    return found


@pytest.mark.parametrize("table", [ANALYTICS_METRICS, SECOND_TABLE], ids=["standard", "second"])
def test_gives_back_what_was_written(table: Table) -> None:
    content = generator.arrow_table(table, 1000, 1)
    body = b"".join(block(table, content.slice(start, 300)) for start in range(0, 1000, 300))
    assert frame(read_native(io.BytesIO(body), table), table).equals(frame(content, table))
    as_pandas_holds_it = read_native(io.BytesIO(body), table, table.arrow_large_schema)
    assert as_pandas_holds_it.schema.equals(table.arrow_large_schema)
    assert as_pandas_holds_it.cast(table.arrow_schema).equals(content)


@pytest.mark.parametrize(("scratch_bytes", "at_once"), [(16, 5), (64, 64), (1000, 77)])
def test_blocks_may_be_cut_anywhere(scratch_bytes: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_format, "SCRATCH_BYTES", scratch_bytes)
    monkeypatch.setattr(native_format, "READ_BYTES", at_once)
    content = generator.arrow_table(SECOND_TABLE, 60, 1)
    body = b"".join(block(SECOND_TABLE, content.slice(start, 7)) for start in range(0, 60, 7))
    found = read_native(Trickle(body, at_once), SECOND_TABLE)
    assert frame(found, SECOND_TABLE).equals(frame(content, SECOND_TABLE))


def test_text_of_every_length_around_what_a_view_holds() -> None:
    short = ["é" * (length // 2) + "x" * (length % 2) for length in range(30)]
    values = [*short, None, "y" * 127, "z" * 128, "w" * 40_000]
    content = pa.table({"t": pa.array(values)})
    found = read_native(io.BytesIO(block(NARROW, content)), NARROW)
    found.validate(full=True)
    assert found["t"].to_pylist() == values
    # Views of equal text are equal to the byte: what lies behind a short text on the wire is not in its view.
    assert frame(found, NARROW)["t"].n_unique() == len(values)


@pytest.mark.parametrize("index_type", range(4))
@pytest.mark.parametrize("nullable", [False, True])
def test_dictionaries_of_every_index_type(index_type: int, nullable: bool) -> None:
    table = Table("d", (Column("t", ColumnType.TEXT, nullable=nullable, low_cardinality=True),), ("t",))
    values = ["", "b", "a text longer than a view", "b", *([None, "a"] if nullable else [])]
    body = number(1) + number(len(values)) + text("t") + text(table.columns[0].clickhouse_type)
    found = read_native(io.BytesIO(body + dictionary(table.columns[0], values, index_type)), table)
    found.validate(full=True)
    assert found["t"].to_pylist() == values


@pytest.mark.parametrize("texts", [("a", "it's", "é" * 20), tuple(f"text {at}" for at in range(300))])
@pytest.mark.parametrize("nullable", [False, True])
def test_enums_come_as_their_texts(texts: tuple[str, ...], nullable: bool) -> None:
    column = Column("e", ColumnType.ENUM, nullable, exactly=enum_types(*texts))
    table = Table("enums", (column,), ())
    values = [texts[-1], texts[0], *([None] if nullable else []), texts[1]]
    content = pa.table({"e": pa.array(values)})
    body = block(table, content)
    for schema in (table.arrow_view_schema, table.arrow_large_schema):
        found = read_native(io.BytesIO(body), table, schema)
        found.validate(full=True)
        assert found.schema.types == schema.types
        assert found["e"].to_pylist() == values
    # The last value, of which the number has one byte or two.
    for number_of_none in (0, len(texts) + 1, -1):
        size = 1 if len(texts) < 128 else 2
        wrong = body[:-size] + number_of_none.to_bytes(size, "little", signed=True)
        with pytest.raises(ValueError, match=f"column e came with the number {number_of_none} of {len(texts)} texts"):
            read_native(io.BytesIO(wrong), table)


def test_a_column_that_views_cannot_point_into_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_format, "MOST_BYTES", 1000)
    body = block(NARROW, pa.table({"t": pa.array(["x" * 100] * 20)}))
    with pytest.raises(ValueError, match="more than 1,000 bytes: ask for smaller blocks"):
        read_native(io.BytesIO(body), NARROW)


def test_bad_bodies_are_refused() -> None:
    for nothing in (b"", block(NARROW, pa.table({"t": pa.array([], pa.string())}))):
        assert read_native(io.BytesIO(nothing), NARROW).num_rows == 0
    whole = block(NARROW, pa.table({"t": pa.array(["a", None])}))
    for cut in range(1, len(whole)):
        with pytest.raises(ValueError, match="ends inside a block"):
            read_native(io.BytesIO(whole[:cut]), NARROW)
    with pytest.raises(ValueError, match="2 columns came for narrow, which has 1"):
        read_native(io.BytesIO(number(2) + whole[1:]), NARROW)
    other = Table("narrow", (Column("t", ColumnType.INT32),), ("t",))
    with pytest.raises(ValueError, match=r"column t of type Int32 came as t of type Nullable\(String\)"):
        read_native(io.BytesIO(whole), other)
