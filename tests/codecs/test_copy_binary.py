"""Binary COPY decoded, with pgpq and hand-made bytes as the other side, and content in binary and in a key's order."""

import datetime as dt
import itertools
import random
import struct
from typing import Any
from unittest import mock
from uuid import UUID

import pgpq
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framehaul.codecs import copy_binary
from framehaul.codecs.copy_binary import CopyDecoder, in_binary_form, near_key_order, uuid_bytes
from framehaul.codecs.native_format import one_piece
from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS, Column, ColumnType, Table, fixed_types
from framehaul.techniques.beyond.postgres_write import picked
from tests.codecs import test_native_format
from tests.codecs.test_native_format import in_order
from tests.second_table import SECOND_TABLE

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
NARROW = Table("narrow", (Column("n", ColumnType.INT32, nullable=True),), ("n",))


def encoded(table: Table, content: pa.Table) -> bytes:
    content = in_binary_form(content, table).combine_chunks()
    encoder = pgpq.ArrowToPostgresBinaryEncoder(content.schema)
    parts = [encoder.write_header(), *map(encoder.write_batch, content.to_batches()), encoder.finish()]
    return b"".join(map(bytes, parts))


def decoded(table: Table, *parts: bytes, schema: pa.Schema | None = None) -> pa.Table:
    decoder = CopyDecoder(table, schema)
    for part in parts:
        decoder.feed(part)
    return decoder.finish()


def row(*fields: bytes | None) -> bytes:
    sized = (struct.pack(">i", -1 if field is None else len(field)) + (field or b"") for field in fields)
    return struct.pack(">h", len(fields)) + b"".join(sized)


@pytest.mark.parametrize("table", [ANALYTICS_METRICS, SECOND_TABLE], ids=["standard", "second"])
@pytest.mark.parametrize("rows", [0, 1, 2000])
def test_gives_back_what_pgpq_encoded(table: Table, rows: int) -> None:
    content = generator.arrow_table(table, rows, 1)
    stream = encoded(table, content)
    assert decoded(table, stream).cast(table.arrow_schema).equals(content)
    as_pandas_holds_it = decoded(table, stream, schema=table.arrow_large_schema)
    assert as_pandas_holds_it.schema.equals(table.arrow_large_schema)
    assert as_pandas_holds_it.cast(table.arrow_schema).equals(content)


@pytest.mark.parametrize("batch_bytes", [1, 300])
@pytest.mark.parametrize("size", [1, 2, 7, 64, 700])
def test_parts_may_be_cut_anywhere_and_a_batch_is_handed_out_once(
    batch_bytes: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_binary, "BATCH_BYTES", batch_bytes)
    content = generator.arrow_table(SECOND_TABLE, 20, 1)
    stream = encoded(SECOND_TABLE, content)
    decoder, batches = CopyDecoder(SECOND_TABLE), list[pa.RecordBatch]()
    for at in range(0, len(stream), size):
        decoder.feed(stream[at : at + size])
        batches += decoder.take()
    assert len(batches) > 1
    batches += decoder.finish().to_batches()
    assert pa.Table.from_batches(batches).cast(SECOND_TABLE.arrow_schema).equals(content)


def test_dates_on_both_sides_of_the_epochs() -> None:
    table = Table("dates", (Column("d", ColumnType.DATE, nullable=True),), ("d",))
    days = [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(1999, 12, 31), dt.date(2000, 1, 1), dt.date(9999, 12, 31)]
    rows = [row(struct.pack(">i", (day - dt.date(2000, 1, 1)).days)) for day in days]
    for parts in ((HEADER, *rows, row(None), TRAILER), (b"".join((HEADER, *rows, row(None), TRAILER)),)):
        assert decoded(table, *parts)["d"].to_pylist() == [*days, None]
    for day in (-(2**31), 2**31 - 1, 2**31 - 9):
        with pytest.raises(ValueError, match="column d holds infinity"):
            decoded(table, HEADER, row(struct.pack(">i", day)), TRAILER)
    with pytest.raises(ValueError, match="column n does not come as integer"):
        decoded(NARROW, HEADER + row(bytes(8)) + TRAILER)


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=2)
SMALL, LARGE = st.integers(-2, 2), st.integers(-(2**63), 2**63 - 1)
UUIDS = (st.integers(0, 2**128 - 1) | st.integers(0, 3)).map(lambda number: str(UUID(int=number)))


@settings(max_examples=100)
@given(
    st.lists(st.tuples(UUIDS, SMALL, TEXTS, LARGE | SMALL), min_size=1, max_size=100),
    st.permutations(["u", "n", "t", "d"]), st.integers(1, 4), st.sampled_from([1, 1, 5]), st.booleans(),
)  # fmt: skip
def test_rows_are_in_the_order_of_any_key_of_either_server(
    values: list[tuple[str, int, str, int]], key: list[str], length: int, times: int, long: bool
) -> None:
    kinds = {"u": ColumnType.UUID, "n": ColumnType.INT16, "t": ColumnType.TEXT, "d": ColumnType.INT64}
    table = Table("t", tuple(Column(name, kind) for name, kind in kinds.items()), tuple(key[:length]))
    content = pa.table(dict(zip(kinds, zip(*values * times, strict=True), strict=True)), table.arrow_schema)
    if long:
        texts = ["the same start, another end: " + text for text in content["t"].to_pylist()]
        content = content.set_column(2, "t", pa.array(texts))
    rows = content.to_pylist()

    def by_key(row: dict[str, Any]) -> list[Any]:
        return [row[name].encode() if name == "t" else row[name] for name in table.key]

    for numba_waits in (True, False):
        with mock.patch.object(copy_binary, "numba_waits", lambda waits=numba_waits: waits):
            laid_out, order = near_key_order(content, table)
        ordered = laid_out.take(pa.array(order))
        assert [*map(by_key, ordered.to_pylist())] == sorted(map(by_key, rows))
        again, order = near_key_order(ordered, table)  # rows in order stay where they are
        assert again is ordered
        assert pa.Table.from_batches(picked(again, order)).equals(ordered)
    (back,), wanted = test_native_format.decoded(content, table), in_order(content, table)
    assert back[key[:length]].equals(wanted[key[:length]])
    assert back.sort(pl.all()).equals(wanted.sort(pl.all()))


@pytest.mark.parametrize("kind", [*ColumnType, 7, 16], ids=str)
def test_a_key_of_any_type_orders_rows_or_leaves_them(kind: ColumnType | int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content is tried in PostgreSQL's binary form as well; a number is a size of fixed bytes."""
    exactly = fixed_types(kind) if isinstance(kind, int) else None
    column = Column("k", ColumnType.FIXED_BYTES if isinstance(kind, int) else kind, exactly=exactly)
    table = Table("t", (column, Column("n", ColumnType.INT32)), ("k", "n"))
    content = generator.arrow_table(table, 300, 1)
    for form, waits in itertools.product((content, in_binary_form(content, table)), (True, False)):
        monkeypatch.setattr(copy_binary, "numba_waits", lambda waits=waits: waits)
        laid_out, order = near_key_order(form, table)
        assert sorted(order) == list(range(300))
    if column.type in (ColumnType.UUID, ColumnType.ENUM, ColumnType.IPV4, ColumnType.IPV6):
        values = laid_out.take(pa.array(order))["k"].to_pylist()  # the binary form, by compiled loops
        assert values == sorted(values)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_uuids_are_parsed_however_they_are_written(kind: pa.DataType) -> None:
    chance = random.Random(1)
    uuids = [None if chance.random() < 0.2 else UUID(int=chance.getrandbits(128)) for _ in range(40)]
    raw = [None if one is None else one.bytes for one in uuids]
    for how in (str, lambda one: str(one).upper(), lambda one: one.hex):
        texts = [None if one is None else how(one) for one in uuids]
        column = pa.table({"c": pa.chunked_array([texts[:7], texts[7:7], texts[7:]], kind)})
        for start, rows in ((0, 40), (5, 9), (0, 0)):
            assert uuid_bytes(one_piece(column.slice(start, rows), "c"), "c").to_pylist() == raw[start : start + rows]
    for text in ("", "x" * 36, "01234567-89ab-cdef-0123-456789abcde", "0" * 31):
        with pytest.raises(ValueError, match=f"column c, row 1: {text!r} is no UUID"):
            uuid_bytes(one_piece(pa.table({"c": pa.array([None, text], kind)}), "c"), "c")
