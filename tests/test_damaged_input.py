"""Damaged files of a user's own: a clear error, whatever the bytes are."""

from __future__ import annotations

import collections
import datetime as dt
import gzip
import io
import json
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framehaul.api.derive import derive
from framehaul.data.unwrapping import undamaged, unwrapped
from framehaul.errors import FrameError
from framehaul.settings import PROJECT
from framehaul.studies.json_parquet import study as json_parquet
from framehaul.studies.own_data import files
from tests.codecs.damaged_streams import changed

ROWS = 40
MORE_BYTES = 4 << 30
"""What the process that reads damaged files may map: an allocation of a damaged size shows as an error."""


def many_types() -> pa.Table:
    days = pa.array([dt.date(2020, 1, 1) + dt.timedelta(at) for at in range(ROWS)])
    texts = pa.array([None if at % 7 == 0 else f"Grüße {at} 日本" + "x" * at for at in range(ROWS)])
    return pa.table(
        {
            "number": pa.array([None if at % 3 else at for at in range(ROWS)], pa.int32()),
            "text": texts,
            "moment": days.cast(pa.timestamp("us")).cast(pa.timestamp("us", "Europe/Berlin")),
            "decimal": pa.array(range(ROWS)).cast(pa.decimal128(21, 2)),
            "category": pa.array(["new", None, "größe", "new"] * (ROWS // 4)).dictionary_encode(),
            "list": pa.array([[at, None] if at % 3 else None for at in range(ROWS)], pa.list_(pa.int8())),
        }
    )


def with_views() -> pa.Table:
    table = many_types()
    views = {
        "view": table["text"].cast(pa.string_view()),
        "bytes": table["text"].cast(pa.binary()).cast(pa.binary_view()),
    }
    return pa.table({**dict(zip(table.column_names, table.columns, strict=True)), **views})


def parquet(table: pa.Table, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=15, **options)
    return buffer.getvalue()


def ipc(table: pa.Table, opened: Callable[..., Any] = pa.ipc.new_stream, compression: str | None = None) -> bytes:
    buffer = io.BytesIO()
    with opened(buffer, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=15)
    return buffer.getvalue()


def csv_text() -> bytes:
    return b"id,text,day\n" + b"".join(b'%d,"a ""%d"" \xc3\xbc",2020-01-02\n' % (at, at) for at in range(ROWS))


def json_lines() -> bytes:
    line = b'{"id": %d, "text": "\xc3\xbc \\u00fc \\"", "real": -1.5e3, "of": {"a": [1, null]}}\n'
    return b"".join(line % at for at in range(ROWS))


KINDS: dict[str, Callable[[], bytes]] = {
    "snappy.parquet": lambda: parquet(many_types(), compression="snappy"),
    "file.arrow": lambda: ipc(with_views(), pa.ipc.new_file),
    "lz4.arrows": lambda: ipc(many_types(), compression="lz4"),
    "text.csv": csv_text,
    "lines.jsonl.gz": lambda: gzip.compress(json_lines(), mtime=0),
}


def damaged(good: bytes, chance: random.Random) -> bytes:
    """The bytes with one to three places changed: most of them near the ends, where formats have their numbers."""

    def place(size: int) -> int:
        from_end = int(chance.expovariate(1 / 500))
        return int(chance.choice([from_end, size - 1 - from_end, chance.randrange(size)])) % size

    return changed(good, chance, place)


def outcome(path: Path, rows: int) -> str:
    """Whether a file was read or refused; what was read must be such that Polars takes it."""
    try:
        content, _ = files.read(path, rows)
    except FrameError as error:
        return "refused" if str(error).startswith(path.name) else f"no name in: {error}"
    for column in undamaged(content).columns:
        if not pa.types.is_nested(column.type) and not pa.types.is_timestamp(column.type):  # whose zones are anything
            pl.Series(values=unwrapped(column)).rechunk()
    return "read"


def read_damaged(directory: str, count: int) -> None:
    """In a process of its own, which may crash: read damaged files and print how many were read or refused."""
    limit = psutil.Process().memory_info().vms + MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    counts: collections.Counter[str] = collections.Counter()
    for kind, made in KINDS.items():
        path, good = Path(directory) / kind, made()
        for seed in range(count):
            chance = random.Random(f"{kind}/{seed}")
            path.write_bytes(damaged(good, chance))
            (path.parent / "last").write_text(f"{kind}/{seed}")
            counts[outcome(path, chance.choice([0, 0, 7]))] += 1
    print(json.dumps(counts))


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_a_damaged_file_is_read_or_refused(count: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.test_damaged_input", str(tmp_path), str(count)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, ((tmp_path / "last").read_text(), done.returncode, done.stderr[-2000:])
    counts = json.loads(done.stdout)
    assert set(counts) == {"read", "refused"}
    assert sum(counts.values()) == len(KINDS) * count


def no_text(data: bytes, text: str) -> bytes:
    """The bytes with what is no UTF-8 in the place of a text."""
    assert text.encode() in data
    return data.replace(text.encode(), b"\xff" * len(text.encode()))


TEXTS = pa.table({"first": ["a", "b"], "größe": pa.array(["a", "grüße"])})
CHECKED = parquet(TEXTS, compression="none", use_dictionary=False, write_page_checksum=True, write_statistics=False)


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("x.parquet", no_text(parquet(TEXTS, compression="none"), "grüße"), "column größe: .*Invalid UTF8"),
        ("x.arrow", no_text(ipc(TEXTS, pa.ipc.new_file), "grüße"), "column größe: .*Invalid UTF8"),
        ("x.parquet", CHECKED.replace("grüße".encode(), "grüne.".encode()[:7]), "CRC|checksum"),
        ("x.arrows", no_text(ipc(TEXTS), "größe"), "x.arrows cannot be read: 'utf-8' codec"),
        ("x.csv", b"a,\xff\n1,2\n", "x.csv cannot be read: 'utf-8' codec"),
        # Python's file would allocate 2 GiB for the first, and 2**56 bytes for the second.
        ("x.arrows", ipc(TEXTS)[:4] + b"\xff\xff\xff\x7f", "x.arrows cannot be read"),
        ("x.arrows", ipc(TEXTS).replace(b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\xff\xff\xff\x7f"), "cannot be read"),
        ("x.csv", b",".join(b"c%d" % at for at in range(20_000)) + b"\n" + b"," * 19_999 + b"\n", "20,000 columns"),
        ("x.csv.gz", gzip.compress(csv_text())[:-9], "x.csv.gz cannot be read"),
    ],
)  # fmt: skip
def test_what_was_once_another_error_is_refused(name: str, data: bytes, said: str, rows: int, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(FrameError, match=said):
        files.read(tmp_path / name, rows)


def test_what_there_is_no_memory_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column of nulls takes no bytes of a file, and text unpacks to more than the file has."""
    nulls = pa.table({"nulls": pa.Array.from_buffers(pa.null(), 2**31 - 1, [None])})
    with pa.ipc.new_stream(tmp_path / "x.arrows", nulls.schema) as writer:
        writer.write_table(nulls)
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"a\n" + b"1\n" * 1_000_000))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2**36))
    with pytest.raises(FrameError, match=r"takes at least 32\.0 GiB"):
        files.read(tmp_path / "x.arrows")
    assert files.read(tmp_path / "x.arrows", 2)[0].num_rows == 2
    monkeypatch.setattr(files, "READ_BYTES", 1000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=100_000))
    with pytest.raises(FrameError, match="takes at least"):
        files.read(tmp_path / "x.csv.gz")


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "x.csv"))

    (tmp_path / "x.csv").write_bytes(b"a\n1\n")
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(FrameError, match=r"x\.csv cannot be read: .*: 'x\.csv'"):
        files.read(tmp_path / "x.csv")


def test_a_scale_that_no_decimal_has_is_refused() -> None:
    """pyarrow casts it for minutes."""
    values = pa.Array.from_buffers(pa.decimal256(50, -16_777_214), 1, [None, pa.py_buffer(b"\1" + bytes(31))])
    for content in (values, pa.DictionaryArray.from_arrays(pa.array([0]), values)):
        with pytest.raises(FrameError, match=r"column a .* has a scale that no decimal has"):
            derive(undamaged(pa.table({"a": content})), "x")


VIEW_OF_NULL = """
import struct
import polars as pl, pyarrow as pa
from framehaul.data.frames import validated
from framehaul.data.unwrapping import unwrapped, undamaged
text = b"long enough to be outside"
good = struct.pack("<i4sii", len(text), text[:4], 0, 0)
for size in (-2_000_000_000, -1, 2_000_000_000):
    data = good + struct.pack("<iiii", size, 7, size, size) + good
    buffers = [pa.py_buffer(part) for part in (bytes([0b101]), data, text)]
    whole = pa.table({"a": pa.Array.from_buffers(pa.string_view(), 3, buffers)})
    for content in (whole, whole.slice(1)):
        for values in (unwrapped(undamaged(content)["a"]), validated(content)["a"]):
            assert pl.Series(values=values).str.len_bytes().to_list() == [25, None, 25][-len(content):]
"""


def test_a_view_in_the_place_of_null_is_not_followed() -> None:
    """pyarrow 26 finds nothing wrong with it, and the process died in casting it, as it does in Polars."""
    done = subprocess.run([sys.executable, "-c", VIEW_OF_NULL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_damaged_file_of_a_converter_is_a_difference(tmp_path: Path) -> None:
    path, good = tmp_path / "x.parquet", parquet(TEXTS, compression="snappy")
    for seed in range(100):
        path.write_bytes(damaged(good, random.Random(seed)))
        assert json_parquet.difference(path, TEXTS, "snappy")


if __name__ == "__main__":
    read_damaged(sys.argv[1], int(sys.argv[2]))
