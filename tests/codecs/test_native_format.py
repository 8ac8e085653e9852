"""ClickHouse's Native format decoded, in pieces, at the limits of its forms, and where it is wrong."""

from __future__ import annotations

import io
import struct
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from framehaul.codecs import native_format
from framehaul.codecs.native_blocks import varint as number
from framehaul.codecs.native_blocks import with_length as text
from framehaul.codecs.native_format import read_native
from framehaul.data import generator
from framehaul.data.schema import Column, ColumnType, Table, enum_types
from tests.codecs.test_native_blocks import blocks
from tests.second_table import SECOND_TABLE

NARROW = Table("narrow", (Column("t", ColumnType.TEXT, nullable=True),), ())


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
    for schema in (None, SECOND_TABLE.arrow_large_schema):
        parts = [content.slice(start, 7) for start in range(0, 60, 7)]
        body = b"".join(block for part in parts for block in blocks(part, SECOND_TABLE))
        found = read_native(Trickle(body, at_once), SECOND_TABLE, schema)
        assert found.schema == (schema or SECOND_TABLE.arrow_view_schema)
        wanted = pl.concat([pl.DataFrame(part).sort("Order", maintain_order=True) for part in parts])
        assert pl.DataFrame(found.cast(SECOND_TABLE.arrow_schema)).equals(wanted)


@pytest.mark.parametrize("index_type", range(4))
@pytest.mark.parametrize("nullable", [False, True])
def test_dictionaries_of_every_index_type(index_type: int, nullable: bool) -> None:
    """With keys of their own, of which the first stands for NULL where there may be one."""
    column = Column("t", ColumnType.TEXT, nullable=nullable, low_cardinality=True)
    keys = [*([None] if nullable else []), "", "b", "a text longer than a view"]
    values = ["", "b", "a text longer than a view", "b", *([None] if nullable else [])]
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
    for schema in (table.arrow_view_schema, table.arrow_large_schema):
        found = read_native(io.BytesIO(body), table, schema)
        found.validate(full=True)
        assert (found.schema, found["e"].to_pylist()) == (schema, values)
    for wrong in (0, len(texts) + 1, -1):
        with pytest.raises(ValueError, match=f"column e came with the number {wrong} of {len(texts)} texts"):
            read_native(io.BytesIO(body[:-size] + wrong.to_bytes(size, "little", signed=True)), table)


def test_a_column_that_views_cannot_point_into_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_format, "MOST_BYTES", 1000)
    (body,) = blocks(pa.table({"t": pa.array(["x" * 100] * 20)}), NARROW)
    with pytest.raises(ValueError, match="more than 1,000 bytes: ask for smaller blocks"):
        read_native(io.BytesIO(body), NARROW)


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
