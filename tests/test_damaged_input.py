"""Damaged files of a user's own: a clear error, whatever the bytes are."""

import datetime as dt
import gzip
import io
import random
import subprocess
import sys
import tempfile
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
from framehaul.data.frames import unwrapped, validated
from framehaul.errors import FrameError
from framehaul.studies.json_parquet import study as json_parquet
from framehaul.studies.own_data import files
from tests.codecs.damaged_streams import changed, decoded_elsewhere, main
from tests.studies.test_own_data import WRITERS

ROWS = 40


def many_types(*, views: bool = False) -> pa.Table:
    days = pa.array([dt.date(2020, 1, 1) + dt.timedelta(at) for at in range(ROWS)])
    texts = pa.array([None if at % 7 == 0 else f"Grüße {at} 日本" + "x" * at for at in range(ROWS)])
    as_views = {"view": texts.cast(pa.string_view()), "bytes": texts.cast(pa.binary()).cast(pa.binary_view())}
    return pa.table(
        {
            "number": pa.array([None if at % 3 else at for at in range(ROWS)], pa.int32()),
            "text": texts,
            "moment": days.cast(pa.timestamp("us")).cast(pa.timestamp("us", "Europe/Berlin")),
            "decimal": pa.array(range(ROWS)).cast(pa.decimal128(21, 2)),
            "category": pa.array(["new", None, "größe", "new"] * (ROWS // 4)).dictionary_encode(),
            "list": pa.array([[at, None] if at % 3 else None for at in range(ROWS)], pa.list_(pa.int8())),
            **(as_views if views else {}),
        }
    )


def parquet(table: pa.Table, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=15, **options)
    return buffer.getvalue()


def ipc(table: pa.Table, opened: Callable[..., Any] = pa.ipc.new_stream, compression: str | None = None) -> bytes:
    buffer = io.BytesIO()
    with opened(buffer, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=15)
    return buffer.getvalue()


CSV = b"id,text,day\n" + b"".join(b'%d,"a ""%d"" \xc3\xbc",2020-01-02\n' % (at, at) for at in range(ROWS))
KINDS: dict[str, bytes] = {
    "snappy.parquet": parquet(many_types(), compression="snappy"),
    "file.arrow": ipc(many_types(views=True), pa.ipc.new_file),
    "lz4.arrows": ipc(many_types(), compression="lz4"),
    "text.csv": CSV,
    "text.tsv.gz": gzip.compress(CSV.replace(b",", b"\t"), mtime=0),
}


def damaged(good: bytes, chance: random.Random) -> bytes:
    """The bytes with one to three places changed: most of them near the ends, where formats have their numbers."""

    def place(size: int) -> int:
        from_end = int(chance.expovariate(1 / 500))
        return int(chance.choice([from_end, size - 1 - from_end, chance.randrange(size)])) % size

    return changed(good, chance, place)


def outcome(kind: str, seed: int, number: int) -> str:
    """Whether a damaged file was read or refused; what was read must be such that Polars takes it."""
    chance = random.Random(f"{kind}/{seed}/{number}")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / kind
        path.write_bytes(damaged(KINDS[kind], chance))
        try:
            content, _ = files.read(path, chance.choice([0, 0, 7]))
        except FrameError as error:
            assert str(error).startswith(path.name)
            return "refused"
    for column in validated(content).columns:
        if not pa.types.is_nested(column.type) and not pa.types.is_timestamp(column.type):  # whose zones are anything
            pl.Series(values=unwrapped(column)).rechunk()
    return "read"


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_a_damaged_file_is_read_or_refused(count: int) -> None:
    found = decoded_elsewhere(count, *KINDS, module=__name__)
    assert set[str]().union(*found.values()) == {"read", "refused"}


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
        ("x.parquet", no_text(parquet(TEXTS, compression="none"), "grüße"), "column größe, row 1: .* is not UTF-8"),
        ("x.arrow", no_text(ipc(TEXTS, pa.ipc.new_file), "grüße"), "column größe, row 1: .* is not UTF-8"),
        ("x.parquet", CHECKED.replace("grüße".encode(), "grüne.".encode()[:7]), "CRC|checksum"),
        ("x.arrows", no_text(ipc(TEXTS), "größe"), "x.arrows cannot be read: 'utf-8' codec"),
        ("x.csv", b"a,\xff\n1,2\n", "x.csv cannot be read: 'utf-8' codec"),
        # Python's file would allocate 2 GiB for the first, and 2**56 bytes for the second.
        ("x.arrows", ipc(TEXTS)[:4] + b"\xff\xff\xff\x7f", "x.arrows cannot be read"),
        ("x.arrows", ipc(TEXTS).replace(b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\xff\xff\xff\x7f"), "cannot be read"),
        ("x.csv", b",".join(b"c%d" % at for at in range(20_000)) + b"\n" + b"," * 19_999 + b"\n", "20,000 columns"),
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
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10))
    for rows, name in enumerate(("x.parquet", "x.csv", "x.arrow") * 2):
        WRITERS[name](tmp_path / name)
        with pytest.raises(FrameError, match=f"{name} takes at least .* give .*ROWS"):
            files.read(tmp_path / name, rows % 2)


def test_a_scale_that_no_decimal_has_is_refused() -> None:
    """pyarrow casts it for minutes."""
    values = pa.Array.from_buffers(pa.decimal256(50, -16_777_214), 1, [None, pa.py_buffer(b"\1" + bytes(31))])
    for content in (values, pa.DictionaryArray.from_arrays(pa.array([0]), values)):
        with pytest.raises(FrameError, match=r"column a .* has a scale that no decimal has"):
            derive(validated(pa.table({"a": content})), "x")


VIEW_OF_NULL = """
import struct
import polars as pl, pyarrow as pa
from framehaul.data.frames import unwrapped, validated
text = b"long enough to be outside"
good = struct.pack("<i4sii", len(text), text[:4], 0, 0)
for size in (-2_000_000_000, -1, 2_000_000_000):
    data = good + struct.pack("<iiii", size, 7, size, size) + good
    buffers = [pa.py_buffer(part) for part in (bytes([0b101]), data, text)]
    whole = pa.table({"a": pa.Array.from_buffers(pa.string_view(), 3, buffers)})
    for content in (whole, whole.slice(1)):
        for values in (unwrapped(content["a"]), validated(content)["a"]):
            assert pl.Series(values=values).str.len_bytes().to_list() == [25, None, 25][-len(content):]
"""


def test_a_view_in_the_place_of_null_is_not_followed() -> None:
    """pyarrow 26 finds nothing wrong with it, and the process died in casting it, as it does in Polars."""
    done = subprocess.run([sys.executable, "-c", VIEW_OF_NULL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_damaged_file_of_a_converter_is_a_difference(tmp_path: Path) -> None:
    path, good = tmp_path / "x.parquet", parquet(TEXTS, compression="snappy")
    for cut in range(len(good)):
        path.write_bytes(good[:cut])
        assert json_parquet.difference(path, TEXTS, "snappy")[0]


if __name__ == "__main__":
    main(outcome, *sys.argv[1:])
