"""Read a Parquet, CSV, JSON lines or Arrow IPC file, or its first rows, as an Arrow table."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from framehaul.api.types import POLARS_DIGITS
from framehaul.data.frames import validated
from framehaul.errors import FrameError
from framehaul.studies.own_data.json_lines import table_of_lines

KINDS = (
    "Parquet, CSV (.csv or .tsv) or JSON lines (.jsonl or .ndjson), both also .gz or .zst, or Arrow IPC (.arrow, .ipc, "
    ".feather)"
)
PARQUET, ARROW_FILE, ARROW_STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
TEXT_SUFFIXES, PACKED_SUFFIXES = {".csv": ",", ".tsv": "\t", ".txt": ","}, {".gz": "gzip", ".zst": "zstd"}
JSON_SUFFIXES = {".jsonl", ".ndjson"}
OTHER_TYPES = [pa.bool_(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")]
"""The types of a CSV column: the first one that holds all of its fields, else text."""
MISSING = pa.array(["NA", "N/A", "NULL", "null", "NaN", "nan"])
"""Fields that are NULL among numbers, dates and booleans; in text only an empty field is NULL."""
NUMBER = r"^(?:0|-?[1-9][0-9]*|-?(?:0|[1-9][0-9]*)[.][0-9]+)$"
"""Numbers without a leading zero, a plus sign or an exponent: the others are often codes, as `01234` or `1E10`."""
EXPONENT = "^-?[1-9](?:[.][0-9]+)?e[-+]?(?:0[1-9]|[1-9][0-9]{0,2})$"
"""Numbers with an exponent as pandas (`1e-09`) and Polars (`1e-9`) write them."""
FLOAT_DIGITS = 15
"""The most digits of a number that every float keeps."""
MOST_CSV_COLUMNS = 10_000
"""pyarrow uses 8 KiB of memory for each column of a CSV, and a damaged file may have a long header."""
READ_BYTES = 1 << 24
"""The size of a block of text, and the maximum size of a row of a CSV."""
BATCH_ROWS = 65_536
COPIES = 6
"""Copies of a frame in memory at once: Arrow, a frame of each library, and the buffers of a technique."""
UNPACKED = 4
"""The assumed size of a compressed file after decompression, over its size."""
NULL_BYTES = 16
"""The bytes of a NULL as text in a frame."""


def read(path: Path, rows: int = 0) -> tuple[pa.Table, list[str]]:
    """Return the first `rows` rows of a file, or all for 0, and notes on how it was read.

    Raises FrameError for a file of another kind, without rows, or too large for memory. Its message has the file's name
    without its directory, because notebooks are published.
    """
    try:
        return _read(path, rows)
    except FrameError as error:
        raise FrameError(f"{path.name} {error}") from error
    except Exception as error:  # of damaged bytes also UnicodeDecodeError, MemoryError, KeyError ...
        message = " ".join(str(error).replace(f"{path.parent}/", "").split())[:300]
        raise FrameError(f"{path.name} cannot be read: {message or type(error).__name__}") from error


def _read(path: Path, rows: int) -> tuple[pa.Table, list[str]]:
    if not path.is_file():
        raise FrameError(f"is {'a directory: give one file of it' if path.is_dir() else 'not there'}")
    content, notes = _content(path, rows)
    content = validated(content)
    if not content.num_rows:
        raise FrameError("holds no rows: there is nothing to measure")
    # A column of NULLs or of runs has many rows and few bytes.
    without_bytes = sum(pa.types.is_null(kind) or pa.types.is_run_end_encoded(kind) for kind in content.schema.types)
    _check_memory(content.nbytes + content.num_rows * NULL_BYTES * without_bytes)
    return content, notes


def _content(path: Path, rows: int) -> tuple[pa.Table, list[str]]:
    *_, before, last = ("", "", *map(str.lower, path.suffixes))
    packed = PACKED_SUFFIXES.get(last)
    suffix = before if packed else last
    with path.open("rb") as plain_file:
        start = plain_file.read(8)
    if not rows:
        _check_memory(path.stat().st_size * (UNPACKED if packed else 1))
    if start.startswith(PARQUET):
        # INT96 counts nanoseconds, of which 64 bits reach to 2262 only: others would wrap around without a word.
        with pq.ParquetFile(str(path), coerce_int96_timestamp_unit="us", page_checksum_verification=True) as parquet:
            batches = parquet.iter_batches(batch_size=min(rows or BATCH_ROWS, BATCH_ROWS))
            return _first(batches, parquet.schema_arrow, rows), []
    if start.startswith((ARROW_FILE, ARROW_STREAM)):
        with pa.OSFile(str(path)) as file:  # Python's own would allocate whatever length a damaged message gives
            if start.startswith(ARROW_STREAM):
                stream = pa.ipc.open_stream(file)
                return _first(stream, stream.schema, rows), []
            of = pa.ipc.open_file(file)
            return _first(map(of.get_batch, range(of.num_record_batches)), of.schema, rows), []
    if suffix in TEXT_SUFFIXES:
        return _csv(path, packed, TEXT_SUFFIXES[suffix], rows)
    if suffix in JSON_SUFFIXES:
        return _json_lines(path, packed, rows)
    raise FrameError(f"is none of the files that are read here: {KINDS}")


def _first(batches: Iterable[pa.RecordBatch], schema: pa.Schema, rows: int) -> pa.Table:
    """Return the first `rows` rows of record batches, or all for 0; raises FrameError when memory is too small."""
    found, size, missing = list[pa.RecordBatch](), 0, rows
    for batch in batches:
        found.append(batch.slice(0, missing) if rows else batch)
        size += found[-1].nbytes
        _check_memory(size)
        missing -= found[-1].num_rows
        if rows and not missing:
            break
    return pa.Table.from_batches(found, schema)


def _csv(path: Path, packed: str | None, delimiter: str, rows: int) -> tuple[pa.Table, list[str]]:
    with pa.input_stream(str(path), compression=packed) as stream:
        lines = io.TextIOWrapper(stream, "utf-8-sig", newline="")
        header = next(csv.reader(lines, delimiter=delimiter), [])
    if len(header) > MOST_CSV_COLUMNS:
        raise FrameError(f"has {len(header):,} columns: more than {MOST_CSV_COLUMNS:,} are not read")
    convert = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(header, pa.string()), null_values=[""], strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )  # fmt: skip
    parse = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    with pa.input_stream(str(path), compression=packed) as stream:
        reader = pa.csv.open_csv(stream, pa.csv.ReadOptions(block_size=READ_BYTES), parse, convert)
        texts = _first(reader, reader.schema, rows)
    of = f"the first {rows:,} rows" if rows else "the whole file"
    names, columns = texts.column_names, [*map(_typed, texts.columns)]
    decided = [(name, first) for name, (_, first) in zip(names, columns, strict=True) if first is not None]
    return pa.Table.from_arrays([values for values, _ in columns], names), [
        f"A CSV has no types: they are inferred from {of}. A field with nothing in it is NULL, and among numbers, "
        "dates and booleans so are `NA`, `NULL`, `NaN` and the like.",
        *[f"`{name}` stays text: as a number, `{first}` would be written otherwise" for name, first in decided],
    ]


def _typed(texts: pa.ChunkedArray) -> tuple[pa.ChunkedArray, str | None]:
    """Return a CSV column in a type whose values are written as its fields are, else as text.

    A fraction may have more zeros at its end; a number that a float would change is a decimal. The second result is the
    first field that kept a column of numbers text.
    """
    present = pc.if_else(pc.is_in(texts, MISSING), pa.scalar(None, pa.string()), texts)
    written = present.drop_null()
    if not len(written):
        return texts, None
    plain = pc.match_substring_regex(written, NUMBER)
    others = written.filter(pc.invert(plain))
    kinds: Iterable[pa.DataType] = ()
    exponents = pc.all(pc.match_substring_regex(others, EXPONENT), min_count=0).as_py()
    if exponents and all(map(_is_as_written, others.to_pylist())):
        kinds = _number_types(written, has_exponents=len(others) > 0)
    elif not pc.any(plain, min_count=0).as_py():
        kinds = OTHER_TYPES
    for kind in kinds:
        with contextlib.suppress(pa.ArrowInvalid):
            return present.cast(kind), None
    with contextlib.suppress(pa.ArrowInvalid):
        written.cast(pa.float64())
        return texts, next(iter(others.to_pylist()), None)
    return texts, None


def _number_types(numbers: pa.ChunkedArray, *, has_exponents: bool) -> Iterator[pa.DataType]:
    """Yield the types that may hold all these numbers as they are written, the usual ones first."""
    yield pa.int64()
    digits = pc.utf8_length(pc.replace_substring_regex(numbers, "[^0-9]", ""))
    if all(map(_is_as_written, numbers.filter(pc.greater(digits, FLOAT_DIGITS)).to_pylist())):
        yield pa.float64()
    elif not has_exponents:
        before, after = r"-|[.].*", "^[^.]*[.]?"  # what is taken out to leave the digits before and after the point
        whole, scale = (
            pc.max(pc.utf8_length(pc.replace_substring_regex(numbers, part, ""))).as_py() for part in (before, after)
        )
        if whole + scale <= POLARS_DIGITS:
            yield pa.decimal128(whole + scale, scale)


def _is_as_written(number: str) -> bool:
    """Return whether a float has the digits of this fraction or power, apart from zeros at the end."""
    return ("." in number or "e" in number) and Decimal(repr(float(number))) == Decimal(number)


def _json_lines(path: Path, packed: str | None, rows: int) -> tuple[pa.Table, list[str]]:
    with pa.input_stream(str(path), compression=packed) as stream:
        content = table_of_lines(_lines(io.BufferedReader(stream), rows))
    nested = [field.name for field in content.schema if isinstance(field.type, pa.JsonType)]
    return content, [
        f"JSON lines have no types but JSON's: a column's follows from {'the first rows' if rows else 'all rows'}. A "
        "field that is missing is NULL, a number with a fraction a float, and what looks like a date is text.",
        *[
            f"`{name}` holds objects, or lists that are NULL, mixed, or of numbers past 63 bits: carried as JSON"
            for name in nested
        ],
    ]


def _lines(stream: io.BufferedReader, rows: int) -> Iterator[bytes]:
    """Yield lines until `rows` of them are not blank; raises FrameError when memory is too small."""
    size = checked = count = 0
    for line in stream:
        size += len(line)
        if size > checked:
            _check_memory(size)
            checked = size + READ_BYTES
        yield line
        count += bool(line.strip())
        if rows and count == rows:
            return


def _check_memory(size: int) -> None:
    """Raise FrameError when memory cannot hold a frame of this many bytes and its copies."""
    available = psutil.virtual_memory().available
    if size * COPIES > available:
        raise FrameError(
            f"takes at least {size / 2**30:.1f} GiB as a frame, {COPIES} times that while it is moved, and "
            f"{available / 2**30:.1f} GiB of memory are free: give ROWS, or fewer of them, and the first rows are taken"
        )
