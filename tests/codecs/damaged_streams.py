"""Streams of ClickHouse's Native format, of Arrow and of binary COPY, bare and on the wire, damaged at random.

`python -m tests.codecs.damaged_streams KIND COUNT SEED` decodes so many in a process of its own, for a decoder that is
wrong may end it: the last number on standard error is then that of the stream, and gives the same stream again.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from functools import cache
from typing import Literal

import polars as pl
import psycopg
import pyarrow as pa

from framehaul.codecs import copy_binary, native_format
from framehaul.codecs.copy_binary import CopyDecoder
from framehaul.codecs.native_format import read_native
from framehaul.data import generator
from framehaul.data.frames import arrow_stream, to_polars, validated
from framehaul.data.schema import DATE32, Column, ColumnType, Table, decimal_types, enum_types, timestamp_types
from framehaul.settings import PROJECT
from framehaul.studies.fidelity.cases import NOT_UTF8
from tests.codecs.test_copy_binary import encoded
from tests.codecs.test_native_format import Trickle, block
from tests.techniques.test_copy_wire import answer, received

MOST_MEMORY = 4 << 30
"""Of a process that decodes: a number in a stream that is taken for a size ends in MemoryError, not in swapping."""
SEEDS, ROWS = 24, 20

T = ColumnType
EVERY_TYPE = Table(
    "every_type",
    (
        Column("id", T.INT32),
        *(
            Column(f"{kind.name}_{nullable}".lower(), kind, nullable)
            for kind in (T.TEXT, T.BYTES, T.UUID, T.BOOL, T.INT16, T.INT64, T.FLOAT32, T.FLOAT64, T.DATE,
                         T.TIMESTAMP, T.TIMESTAMP_UTC, T.TIMESTAMP_BERLIN)
            for nullable in (False, True)
        ),
    ),
    ("id",),
)  # fmt: skip
MORE_TYPES = Table(
    "more_types",
    (
        *(Column(f"d{digits}", T.DECIMAL, digits == 18, exactly=decimal_types(digits, 2)) for digits in (9, 18, 38)),
        Column("date32", T.DATE, exactly=DATE32),
        Column("nanoseconds", T.TIMESTAMP_NS, nullable=True),
        Column("milliseconds", T.TIMESTAMP, exactly=timestamp_types("ms")),
        Column("state", T.ENUM, nullable=True, exactly=enum_types("new", "it's", "é" * 20)),
        Column("low", T.TEXT, low_cardinality=True),
        Column("low_nullable", T.TEXT, nullable=True, low_cardinality=True),
    ),
    (),
)
NARROW = Table("narrow", (Column("text", T.TEXT),), ("text",))
NOT_TEXT = (*NOT_UTF8.values(), b"\x80", b"\xf0\x9f\x98")
"""No UTF-8: as in the matrix, and characters without their beginning or end."""
SIZES: tuple[tuple[int, Literal["big", "little"]], ...] = ((4, "big"), (2, "big"), (8, "little"), (4, "little"))
NUMBERS = (
    b"\xff" * 9 + b"\x01", b"\xff" * 8 + b"\x7f", b"\x80" * 12, b"\xff" * 4 + b"\x0f", b"\x80\x80\x80\x80\x08",
    *(value.to_bytes(size, order, signed=True)
      for size, order in SIZES
      for value in (-1, -2, -5, 0, 1, 255, 2 ** (8 * size - 1) - 1, -(2 ** (8 * size - 1)))),
    (2**32).to_bytes(8, "little"), (2**40).to_bytes(8, "little"), b"\xff" * 8,
)  # fmt: skip
"""Lengths and counts that a decoder must not believe."""


def content(table: Table, rows: int, seed: int) -> pa.Table:
    """Rows whose long text is partly not ASCII."""
    others = replace(table, columns=tuple(column for column in table.columns if column.type is not T.DECIMAL))
    made = generator.arrow_table(others, rows, seed)
    for at, column in enumerate(table.columns):
        if column.type is T.DECIMAL:
            values = [Decimal(row * 17 - 99).scaleb(-2) for row in range(rows)]
            made = made.add_column(at, column.name, pa.array(values, column.types.arrow))
        if column.type is T.TEXT and rows > 3:
            values = made.column(at).to_pylist()
            values[1], values[3] = "é" * 9, "a text that a view does not hold, €, 東京 \U0001f680"
            made = made.set_column(at, made.schema.field(at), pa.array(values, pa.string()))
    return made


@cache
def streams(kind: str) -> list[tuple[Table, bytes]]:
    """Streams as they should be, with the table that they are of."""
    made = []
    for seed in range(SEEDS):
        table = (EVERY_TYPE, EVERY_TYPE if kind in ("copy", "wire") else MORE_TYPES, NARROW)[seed % 3]
        rows = (0, 1, ROWS, 7)[seed % 4]
        whole = content(table, rows, seed)
        if kind == "native":
            made.append((table, b"".join(block(table, whole.slice(at, 8)) for at in range(0, max(rows, 1), 8))))
        elif kind == "copy":
            made.append((table, encoded(table, whole)))
        elif kind == "wire":
            made.append((table, answer(table, encoded(table, whole))))
        else:
            if seed % 2:
                low = [field.name for field in whole.schema if field.type == pa.string()]
                for name in low:
                    at = whole.column_names.index(name)
                    whole = whole.set_column(at, name, whole.column(at).dictionary_encode())
            made.append((table, b"".join(arrow_stream(whole, 8))))
    return made


def damaged(kind: str, chance: random.Random) -> tuple[Table, bytes]:
    """One of the streams, damaged in one to four places."""
    table, whole = chance.choice(streams(kind))
    data = bytearray(whole)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at = chance.randrange(len(data) + 1)
        some = chance.randrange(1, 20)
        match chance.randrange(9):
            case 0 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(data):
                data[at] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xC0, 0xFE, 0xFF))
            case 2:
                del data[at:]
            case 3:
                del data[at : at + some]
            case 4:
                data[at:at] = chance.randbytes(some)
            case 5:
                data[at:at] = data[at : at + some]
            case 6:
                number = chance.choice(NUMBERS)
                data[at : at + len(number)] = number
            case 7:
                number = chance.choice((*NUMBERS, *NOT_TEXT))
                data[at:at] = number
            case _:
                text = chance.choice(NOT_TEXT)
                data[at : at + len(text)] = text
    return table, bytes(data)


def decode_native(table: Table, data: bytes, chance: random.Random) -> pa.Table:
    native_format.SCRATCH_BYTES = chance.choice((16, 100, 1 << 12))
    native_format.READ_BYTES = chance.choice((5, 64, 1 << 12))
    schema = chance.choice((None, table.arrow_large_schema))
    return read_native(Trickle(data, chance.choice((7, 50, 1 << 20))), table, schema)


def decode_copy(table: Table, data: bytes, chance: random.Random) -> pa.Table:
    copy_binary.BATCH_BYTES = chance.choice((1, 1 << 10, 1 << 13))
    decoder, size = CopyDecoder(table), max(1, len(data) // chance.choice((1, 3, 20)))
    for at in range(0, len(data), size):
        decoder.feed(data[at : at + size])
    return decoder.finish()


def decode_wire(table: Table, data: bytes, chance: random.Random) -> pa.Table:
    copy_binary.BATCH_BYTES = chance.choice((64, 1 << 10, 1 << 13))
    return received(table, data, max(1, len(data) // chance.choice((1, 3, 20))))


def decode_arrow(table: Table, data: bytes, chance: random.Random) -> pa.Table:
    del table, chance
    return validated(pa.ipc.open_stream(data).read_all())


DECODERS: dict[str, Callable[[Table, bytes, random.Random], pa.Table]] = {
    "native": decode_native, "copy": decode_copy, "wire": decode_wire, "arrow": decode_arrow,
}  # fmt: skip


def outcome(kind: str, seed: int, number: int) -> str:
    """What came of one stream: `decoded` or `refused`; raises what the decoder should not have, or what it missed."""
    chance = random.Random(f"{kind}/{seed}/{number}")
    table, data = damaged(kind, chance)
    try:
        found = DECODERS[kind](table, data, chance)
    except (ValueError, psycopg.Error) as error:  # and pa.ArrowInvalid, of Arrow's own reader
        assert str(error)
        return "refused"
    except (pa.ArrowException, OSError):
        if kind == "arrow":  # its own reader's
            return "refused"
        raise
    found.validate(full=True)
    if kind != "arrow":
        to_polars(found, table, valid=True).select(pl.col(pl.String)).to_dicts()
    return "decoded"


def main(kind: str, count: int, seed: int) -> None:
    """Decode the streams, and print how many came to what; at an exception, which stream it was."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    counts: Counter[str] = Counter()
    for number in range(count):
        print(number, file=sys.stderr, flush=True)
        try:
            counts[outcome(kind, seed, number)] += 1
        except Exception as error:  # noqa: BLE001  it is what is looked for
            counts[f"{number}: {type(error).__name__}: {error}"] += 1
    print(json.dumps(dict(counts.most_common(20))))


def decoded_elsewhere(kind: str, count: int, seed: int, **environment: str) -> set[str]:
    """What came of so many streams, in a process of their own; if it dies, the number of its stream."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.codecs.damaged_streams", kind, str(count), str(seed)], cwd=PROJECT,
        capture_output=True, text=True, check=False, env=os.environ | environment,
    )  # fmt: skip
    if done.returncode:
        return {f"the process ended with {done.returncode}: {done.stderr[-300:]}"}
    return {*json.loads(done.stdout)}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
