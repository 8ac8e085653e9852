"""A file of somebody's own as an Arrow table: Parquet, CSV, JSON lines or Arrow IPC, all of it or its first rows."""

from __future__ import annotations

import csv
import io
import itertools
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from framehaul.errors import SettingsError
from framehaul.studies.own_data.json_lines import fields_of
from framehaul.studies.own_data.loading import parsed_lines, undamaged

KINDS = (
    "Parquet, CSV (.csv or .tsv) or JSON lines (.jsonl or .ndjson), both also .gz or .zst, or Arrow IPC (.arrow, .ipc, "
    ".feather)"
)
PARQUET, ARROW_FILE, FEATHER_1, ARROW_STREAM = b"PAR1", b"ARROW1", b"FEA1", b"\xff\xff\xff\xff"
TEXT_SUFFIXES, PACKED_SUFFIXES = {".csv": ",", ".tsv": "\t", ".txt": ","}, {".gz": "gzip", ".zst": "zstd"}
JSON_SUFFIXES = {".jsonl", ".ndjson"}
PICKLE_SUFFIXES, PICKLE = (".pkl", ".pickle"), b"\x80"
"""A pickle of protocol 2 or later begins so: https://docs.python.org/3/library/pickletools.html"""
MOST_TEXT_BYTES = 2**31 - 2
"""Types are inferred over one block, whose size pyarrow keeps in 32 bits."""
DIGITS_OF_A_FLOAT = 16
"""Whole numbers of fewer digits are floats, all of them."""
MOST_CSV_COLUMNS = 10_000
"""pyarrow takes 8 KiB of memory for each column of a CSV, and a header is soon long where a file is damaged."""
READ_BYTES = 1 << 24
COPIES = 6
"""What is held of a frame at once: Arrow, a frame of each library, and what a technique makes of them on its way."""
UNPACKED = 4
"""How much larger a packed file is taken to be."""


class DataError(SettingsError):
    """A file, or a column of it, that cannot be taken; the message names it and the remedy."""


def suffix_of(path: Path) -> tuple[str, str | None]:
    """The suffix that says what a file is, and how it is packed, if it is."""
    *_, before, last = ("", "", *map(str.lower, path.suffixes))
    packed = PACKED_SUFFIXES.get(last)
    return (before if packed else last), packed


def read(path: Path, rows: int = 0) -> tuple[pa.Table, list[str]]:
    """The first `rows` rows of a file, or all for 0, and what was decided in reading it.

    Raises DataError for what is no such file, holds no rows, or would not fit into memory. Its message has the file's
    name, not its directory: notebooks are published.
    """
    if not path.is_file():
        raise DataError(f"{path.name} is {'a directory: give one file of it' if path.is_dir() else 'not there'}")
    try:
        content, notes = _read(path, rows)
        undamaged(content)
    except DataError:
        raise
    except Exception as error:  # of damaged bytes also UnicodeDecodeError, MemoryError, KeyError ...
        message = " ".join(str(error).replace(f"{path.parent}/", "").split())[:300]
        raise DataError(f"{path.name} cannot be read: {message or type(error).__name__}") from error
    if not content.num_rows:
        raise DataError(f"{path.name} holds no rows: there is nothing to measure")
    # A column of NULLs, or of runs, has a number of rows that no bytes bear out.
    _check_memory(path, max(content.nbytes, content.num_rows * _width(content.schema)), rows)
    return content, notes


def _read(path: Path, rows: int) -> tuple[pa.Table, list[str]]:
    suffix, packed = suffix_of(path)
    with path.open("rb") as plain_file:
        start = plain_file.read(8)
    if (not packed and suffix in PICKLE_SUFFIXES) or start.startswith(PICKLE):
        raise DataError(
            f"{path.name} is a pickle, and loading one runs whatever code it holds: write the frame with "
            "write_parquet (Polars) or to_parquet (pandas)"
        )
    if start.startswith(PARQUET):
        return _parquet(path, rows)
    if start.startswith((ARROW_FILE, ARROW_STREAM)):
        if not rows:
            _check_memory(path, path.stat().st_size, rows)
        open_ipc = pa.ipc.open_file if start.startswith(ARROW_FILE) else pa.ipc.open_stream
        with pa.OSFile(str(path)) as file:  # Python's own would allocate whatever length a damaged message gives
            return _first(open_ipc(file), rows), []
    if start.startswith(FEATHER_1):
        raise DataError(f"{path.name} is Feather of version 1: write it again as version 2, or as Parquet")
    if suffix in TEXT_SUFFIXES:
        return _csv(path, packed, TEXT_SUFFIXES[suffix], rows)
    if suffix in JSON_SUFFIXES:
        return _json_lines(path, packed, rows)
    raise DataError(f"{path.name} is none of the files that are read here: {KINDS}")


def _parquet(path: Path, rows: int) -> tuple[pa.Table, list[str]]:
    # INT96 counts nanoseconds, of which 64 bits reach to 2262 only: others would wrap around without a word.
    with pq.ParquetFile(str(path), coerce_int96_timestamp_unit="us", page_checksum_verification=True) as parquet:
        return _parquet_rows(path, parquet, rows)


def _parquet_rows(path: Path, parquet: pq.ParquetFile, rows: int) -> tuple[pa.Table, list[str]]:
    meta = parquet.metadata
    if not rows:
        encoded = sum(meta.row_group(at).total_byte_size for at in range(meta.num_row_groups))
        _check_memory(path, max(encoded, meta.num_rows * _width(parquet.schema_arrow)), rows)
    physical = {meta.schema.column(at).path: meta.schema.column(at).physical_type for at in range(meta.num_columns)}
    notes = [
        f"`{name}` is stored as INT96, and read as microseconds" for name, kind in physical.items() if kind == "INT96"
    ]
    if not rows:
        return parquet.read(), notes
    batches, missing = [], rows
    for batch in parquet.iter_batches(batch_size=min(rows, 65_536)):
        batches.append(batch.slice(0, missing))
        missing -= batches[-1].num_rows
        if not missing:
            break
    return pa.Table.from_batches(batches, parquet.schema_arrow), notes


def _width(schema: pa.Schema) -> int:
    """Bytes that a row takes at least; text counts as its Arrow view does."""
    bits = 0
    for kind in schema.types:
        try:
            bits += (kind.value_type if pa.types.is_dictionary(kind) else kind).bit_width or 128
        except ValueError:  # of no fixed width
            bits += 128
    return bits // 8


def _first(reader: Any, rows: int) -> pa.Table:
    """The record batches of an Arrow file or stream, up to so many rows."""
    if not rows:
        return reader.read_all()
    stream = isinstance(reader, pa.ipc.RecordBatchStreamReader)
    batches, missing = [], rows
    for batch in reader if stream else map(reader.get_batch, range(reader.num_record_batches)):
        batches.append(batch.slice(0, missing))
        missing -= batches[-1].num_rows
        if not missing:
            break
    return pa.Table.from_batches(batches, reader.schema)


def _csv(path: Path, packed: str | None, delimiter: str, rows: int) -> tuple[pa.Table, list[str]]:
    parse = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    if rows:
        text = _first_lines(path, packed, parse, rows)
        parse.delimiter = ","
    else:
        _check_memory(path, path.stat().st_size * (UNPACKED if packed else 1), rows)
        text = _text(path, packed)
        _check_header(path, io.BytesIO(text), delimiter)
    if len(text) > MOST_TEXT_BYTES:
        raise DataError(f"{path.name} has more than {MOST_TEXT_BYTES:,} bytes of text: give ROWS, or make it Parquet")
    whole = pa.csv.ReadOptions(block_size=len(text) + 1)
    content = pa.csv.read_csv(io.BytesIO(text), whole, parse)
    _check_whole_numbers(path, content, text, whole, parse)
    names = [field.name for field in content.schema if pa.types.is_string(field.type) or pa.types.is_null(field.type)]
    if names and len(set(content.column_names)) == len(content.column_names):
        # NA and the like are NULL among numbers; in text only nothing at all is, which needs a second look.
        convert = pa.csv.ConvertOptions(
            include_columns=names, column_types=dict.fromkeys(names, pa.string()), null_values=[""],
            strings_can_be_null=True, quoted_strings_can_be_null=False,
        )  # fmt: skip
        for name, column in zip(names, pa.csv.read_csv(io.BytesIO(text), whole, parse, convert).columns, strict=True):
            content = content.set_column(content.column_names.index(name), name, column)
    of = f"the first {rows:,} rows" if rows else "the whole file"
    return content, [
        f"A CSV has no types: they are inferred from {of} by pyarrow. A field with nothing in it is NULL, and among "
        "numbers, dates and booleans so are `NA`, `NULL`, `NaN` and the like. Where `007` is text, give Parquet."
    ]


def _check_whole_numbers(
    path: Path, content: pa.Table, text: bytes, whole: pa.csv.ReadOptions, parse: pa.csv.ParseOptions
) -> None:  # fmt: skip
    """Raises DataError for a column of a CSV that is taken for floats and has an integer which a float rounds."""
    floats = [field.name for field in content.schema if pa.types.is_floating(field.type)]
    if not floats or len(set(content.column_names)) < len(content.column_names):
        return
    convert = pa.csv.ConvertOptions(include_columns=floats, column_types=dict.fromkeys(floats, pa.string()))
    as_text = pa.csv.read_csv(io.BytesIO(text), whole, parse, convert)
    for name, column in zip(floats, as_text.columns, strict=True):
        long = column.filter(pc.match_substring_regex(column, rf"^\s*[+-]?[0-9]{{{DIGITS_OF_A_FLOAT},}}\s*$"))
        rounded = next((one for one in long.to_pylist() if int(float(one)) != int(one)), None)
        if rounded is not None:
            raise DataError(
                f"{path.name}: column {name} is taken for floats, and {rounded.strip()} in it is an integer that a "
                f"float rounds: give Parquet with decimals, or with text"
            )


def _json_lines(path: Path, packed: str | None, rows: int) -> tuple[pa.Table, list[str]]:
    if rows:
        with pa.input_stream(str(path), compression=packed) as stream:
            lines = (line for line in io.BufferedReader(stream) if line.strip())
            text = b"".join(itertools.islice(lines, rows))
    else:
        _check_memory(path, path.stat().st_size * (UNPACKED if packed else 1), rows)
        text = _text(path, packed)
    if len(text) > MOST_TEXT_BYTES:
        raise DataError(f"{path.name} has more than {MOST_TEXT_BYTES:,} bytes of text: give ROWS, or make it Parquet")
    schema, count = fields_of(text)
    if not count:
        raise DataError(f"{path.name} holds no rows: there is nothing to measure")
    nested = [field.name for field in schema if field.type == pa.json_()]
    content = parsed_lines(text, schema, nested).cast(schema)
    if content.num_rows != count:
        raise DataError(f"{path.name} has {count:,} lines, and {content.num_rows:,} rows were made of it")
    return content, [
        f"JSON lines have no types but JSON's: a column's follows from {'the first rows' if rows else 'all rows'}. A "
        "field that is missing is NULL, a number with a fraction a float, and what looks like a date is text.",
        *[
            f"`{name}` holds objects, or lists that are NULL, mixed, or of numbers past 63 bits: carried as JSON"
            for name in nested
        ],
    ]


def _text(path: Path, packed: str | None) -> bytes:
    """All of a file of text, unpacked as far as there is room for it: a few bytes may unpack to any number of them."""
    text = bytearray()
    with pa.input_stream(str(path), compression=packed) as stream:
        while len(text) <= MOST_TEXT_BYTES and (piece := stream.read(READ_BYTES)):
            text += piece
            _check_memory(path, len(text), 0)
    return bytes(text)


def _check_header(path: Path, file: Any, delimiter: str) -> None:
    """Raises DataError for more columns than a file has that is in order."""
    header = next(csv.reader(io.TextIOWrapper(file, "utf-8-sig", newline=""), delimiter=delimiter), [])
    if len(header) > MOST_CSV_COLUMNS:
        raise DataError(f"{path.name} has {len(header):,} columns: more than {MOST_CSV_COLUMNS:,} are not read")


def _first_lines(path: Path, packed: str | None, parse: pa.csv.ParseOptions, rows: int) -> bytes:
    """The first rows of a CSV, as CSV with commas, without reading the rest."""
    with pa.input_stream(str(path), compression=packed) as stream:
        _check_header(path, stream, parse.delimiter)
    with pa.input_stream(str(path), compression=packed) as stream:
        header = pa.csv.open_csv(stream, parse_options=parse).schema.names
    if len(set(header)) < len(header):
        raise DataError(f"{path.name} has two columns of one name among {header}: rename one")
    convert = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(header, pa.string()), null_values=[""], strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )  # fmt: skip
    with pa.input_stream(str(path), compression=packed) as stream:
        reader = pa.csv.open_csv(stream, parse_options=parse, convert_options=convert)
        batches, missing = [], rows
        while missing:
            try:
                batches.append(reader.read_next_batch().slice(0, missing))
            except StopIteration:
                break
            missing -= batches[-1].num_rows
    buffer = io.BytesIO()
    pa.csv.write_csv(pa.Table.from_batches(batches, reader.schema), buffer)
    return buffer.getvalue()


def _check_memory(path: Path, size: int, rows: int) -> None:
    """Raises DataError when a frame of so many bytes leaves no room for what is made of it."""
    available = psutil.virtual_memory().available
    if size * COPIES > available:
        raise DataError(
            f"{path.name} takes at least {size / 2**30:.1f} GiB as a frame, {COPIES} times that while it is moved, and "
            f"{available / 2**30:.1f} GiB of memory are free: give {'a smaller ' if rows else ''}ROWS, and the first "
            "rows are taken"
        )
