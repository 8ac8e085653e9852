"""Binary COPY decoded: pgpq and hand-made bytes are the other side, so that the decoder is not judged by itself."""

from __future__ import annotations

import datetime as dt
import struct

import pgpq
import pyarrow as pa
import pytest

from framehaul.codecs import copy_binary
from framehaul.codecs.binary_form import in_binary_form
from framehaul.codecs.copy_binary import CopyDecoder
from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS, Column, ColumnType, Table
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
    return struct.pack(">h", len(fields)) + b"".join(
        struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field for field in fields
    )


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
