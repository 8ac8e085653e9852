"""Streams of ClickHouse's Native format, of Arrow and of binary COPY, bare and on the wire, damaged at random.

`python -m tests.codecs.damaged_streams COUNT SEED KIND...` decodes COUNT streams in another process, because a wrong
decoder may end it: the last line on standard error then has the kind and number of the stream, which give it again.
"""

import itertools
import json
import os
import random
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Literal

import polars as pl
import psutil
import psycopg
import pyarrow as pa

from framehaul.codecs import copy_binary, native_format
from framehaul.codecs.native_format import NotDecodedError, read_native, read_result
from framehaul.data import generator, schema
from framehaul.data.frames import arrow_stream, to_polars, validated
from framehaul.data.schema import Column, ColumnType, Table
from framehaul.settings import PROJECT
from framehaul.studies.fidelity.cases import NOT_UTF8
from tests.codecs.test_copy_binary import HEADER, TRAILER, decoded, encoded
from tests.codecs.test_native_format import EVERY_TYPE, Trickle, blocks
from tests.techniques.test_copy_wire import answer, received

MORE_MEMORY = 4 << 30
"""For a process that decodes: a number in a stream that is taken for a size ends in MemoryError, not in swapping."""
SEEDS, ROWS = 24, 20

T = ColumnType
OF_COPY = (T.TEXT, T.BYTES, T.UUID, T.BOOL, T.INT16, T.INT32, T.INT64, T.FLOAT32, T.FLOAT64, T.DATE,
           T.TIMESTAMP, T.TIMESTAMP_UTC, T.TIMESTAMP_BERLIN, T.DECIMAL)  # fmt: skip
LISTS = (Column("numbers", T.LIST, nullable=True), Column("texts", T.LIST, exactly=schema.list_types(T.TEXT.value)))
FOR_COPY = replace(EVERY_TYPE, columns=(*(one for one in EVERY_TYPE.columns if one.type in OF_COPY), *LISTS))
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
    made = generator.arrow_table(table, rows, seed)
    for at, column in enumerate(table.columns):
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
        table = NARROW if seed % 3 == 0 else FOR_COPY if kind in ("copy", "wire") else EVERY_TYPE
        whole = content(table, (0, 1, ROWS, 7)[seed % 4], seed)
        if kind == "native":
            data = b"".join(block for at in range(0, len(whole), 8) for block in blocks(whole.slice(at, 8), table))
        elif kind == "arrow":
            for at, field in enumerate(whole.schema if seed % 2 else ()):
                if field.type == pa.string():
                    whole = whole.set_column(at, field.name, whole.column(at).dictionary_encode())
            data = b"".join(arrow_stream(whole, 8))
        elif kind == "copy":
            data = encoded(table, whole)
        else:
            rows = [encoded(table, whole.slice(at, 1)) for at in range(len(whole))]
            data = answer(*(one.removeprefix(HEADER).removesuffix(TRAILER) for one in rows))
        made.append((table, data))
    return made


def changed(good: bytes, chance: random.Random, place: Callable[[int], int]) -> bytes:
    """The bytes with one to four places changed; `place` chooses each of them by their number."""
    data = bytearray(good)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at, some = place(len(data)) if data else 0, chance.randrange(1, 20)
        flipped = bytes(byte ^ 1 << chance.randrange(8) for byte in data[at : at + 1])
        pieces = b"", flipped, b"\xff", chance.randbytes(some), bytes(data[at : at + some])
        piece = chance.choice((*pieces, chance.choice(NUMBERS), chance.choice(NOT_TEXT)))
        data[at : at + chance.choice((0, some, len(piece), len(piece), len(data)))] = piece
    return bytes(data)


def decode_native(table: Table, data: bytes, chance: random.Random) -> pa.Table:
    native_format.SCRATCH_BYTES = chance.choice((16, 100, 1 << 12))
    native_format.READ_BYTES = chance.choice((5, 64, 1 << 12))
    body, schema = Trickle(data, chance.choice((7, 50, 1 << 20))), chance.choice((None, table.arrow_large_schema))
    if chance.random() < 1 / 2:
        return read_native(body, table, schema)
    columns = {(column.name, column.clickhouse_type): column for column in table.columns}
    found = read_result(body, lambda *of: columns.get(of), plain=schema is not None)
    if found and found[1].columns != table.columns:
        raise ValueError("the answer has other columns, which is right for a query")
    return found[0] if found else table.arrow_schema.empty_table()


def decode_copy(table: Table, data: bytes, chance: random.Random) -> pa.Table:
    copy_binary.BATCH_BYTES = chance.choice((1, 1 << 10, 1 << 13))
    size = max(1, len(data) // chance.choice((1, 3, 20)))
    return decoded(table, *(data[at : at + size] for at in range(0, len(data), size)))


def decode_wire(table: Table, data: bytes, chance: random.Random) -> pa.Table:
    copy_binary.BATCH_BYTES = chance.choice((64, 1 << 10, 1 << 13))
    return received(table, data, max(1, len(data) // chance.choice((1, 3, 20))))


DECODERS: dict[str, Callable[[Table, bytes, random.Random], pa.Table]] = {
    "native": decode_native,
    "copy": decode_copy,
    "wire": decode_wire,
    "arrow": lambda table, data, chance: validated(pa.ipc.open_stream(data).read_all()),
}


def outcome(kind: str, seed: int, number: int) -> str:
    """What came of one stream: `decoded` or `refused`; raises what the decoder should not have, or what it missed."""
    chance = random.Random(f"{kind}/{seed}/{number}")
    table, whole = chance.choice(streams(kind))
    data = changed(whole, chance, lambda size: chance.randrange(size + 1))
    try:
        found = DECODERS[kind](table, data, chance)
    except (ValueError, NotDecodedError, psycopg.Error) as error:  # and pa.ArrowInvalid, of Arrow's own reader
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


def main(outcome: Callable[[str, int, int], str], count: str, seed: str, *kinds: str) -> None:
    """Try `count` streams of each kind, and print how often each outcome came; an exception has its number."""
    limit = psutil.Process().memory_info().vms + MORE_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    for kind, number in itertools.product(kinds, range(int(count))):
        print(kind, number, file=sys.stderr, flush=True)
        try:
            counts[kind][outcome(kind, int(seed), number)] += 1
        except Exception as error:  # noqa: BLE001  it is what is looked for
            counts[kind][f"{number}: {type(error).__name__}: {error}"] += 1
    print(json.dumps({kind: dict(found.most_common(20)) for kind, found in counts.items()}))


def decoded_elsewhere(count: int, *kinds: str, module: str = __name__, **environment: str) -> dict[str, set[str]]:
    """Return the outcomes of `count` streams of each kind, from a process that runs a module and must not die."""
    command, env = [sys.executable, "-m", module, str(count), "1", *kinds], os.environ | environment
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr[-300:]
    return {kind: {*found} for kind, found in json.loads(done.stdout).items()}


if __name__ == "__main__":
    main(outcome, *sys.argv[1:])
