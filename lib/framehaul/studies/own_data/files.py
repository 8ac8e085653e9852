"""Read a Parquet, CSV or Arrow IPC file, or its first rows, as an Arrow table."""

import contextlib
import csv
import glob
import io
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Self

import duckdb
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from framehaul.data.frames import BATCH_ROWS, validated
from framehaul.errors import FrameError, SettingsError
from framehaul.techniques.prepare import DATES, any_outside

KINDS = (
    "Parquet, CSV (.csv or .tsv, also .gz or .zst), or Arrow IPC (.arrow, .ipc, .feather). Read it into a dataframe, "
    "and write that as Parquet"
)
PARQUET, ARROW_FILE, ARROW_STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
TEXT_SUFFIXES, PACKED_SUFFIXES = {".csv": ",", ".tsv": "\t", ".txt": ","}, (".gz", ".zst")
FORMS = {"separator": "tab|.", "decimal": "[.,]", "encoding": ".+", "skip": "[0-9]+"}
"""Patterns of what may be given of the form of a CSV."""
UTF_16, SEPARATORS = (b"\xff\xfe", b"\xfe\xff"), ",;\t|"
ENCODINGS = "Name its encoding: CSV='encoding=latin-1', for example, or cp1252"
OTHER_FORM = "A line above the header: CSV='skip=1'; another separator: CSV='separator=;'; else correct it or its end"
OTHER_TYPES = [pa.bool_(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")]
"""The types of a CSV column: the first one that holds all of its fields, else text."""
FEW_FIELDS = 1_000
"""If one of the first fields has no other type than text, the others need not be looked at."""
MISSING = pa.array(["NA", "N/A", "NULL", "null", "NaN", "nan", "\\N"])
"""Fields that are NULL among numbers, dates and booleans; in text only an empty field is NULL."""
NUMBER = r"^(?:0|-?[1-9][0-9]*|-?(?:0|[1-9][0-9]*)[.][0-9]+)$"
"""Numbers without a leading zero, a plus sign or an exponent: the others are often codes, as `01234` or `1E10`."""
EXPONENT = "^-?[1-9](?:[.][0-9]+)?e[-+]?(?:0[1-9]|[1-9][0-9]{0,2})$"
"""Numbers with an exponent as pandas (`1e-09`) and Polars (`1e-9`) write them."""
FLOAT_DIGITS = 15
"""The most digits of a number that every float keeps."""
MOST_CSV_COLUMNS = 10_000
"""A damaged file may have a long header."""
SECONDS = len("2026-01-01 00:00:00")
READ_BYTES = 1 << 24
"""The size of a block of text, and the maximum size of a row of a CSV."""
COPIES = 6
"""Copies of a frame in memory at once: Arrow, a frame of each library, and the buffers of a technique."""
UNPACKED = 4
"""The assumed size of a compressed file after decompression, over its size."""


@dataclass(frozen=True)
class Form:
    """The form of a CSV; without a separator it is that of the file's suffix."""

    separator: str = ""
    decimal: str = "."
    encoding: str = "utf-8"
    skip: int = 0
    """The lines above the header."""

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the form in `separator=; decimal=, encoding=latin-1 skip=1`; raises SettingsError for another."""
        given = dict(part.partition("=")[::2] for part in text.split())
        known = all(re.fullmatch(FORMS.get(name, "(?!)"), value) for name, value in given.items())
        separator, decimal = given.get("separator", ""), given.get("decimal", ".")
        if not known or separator == decimal:
            raise SettingsError(
                f"CSV={text!r}: give any of separator=; (one character, or tab), decimal=, (or a point), "
                "encoding=latin-1, skip=1 (lines above the header), with blanks between them"
            )
        separator = "\t" if separator == "tab" else separator
        return cls(separator, decimal, given.get("encoding", "utf-8"), int(given.get("skip", 0)))


def read(path: Path, rows: int = 0, form: Form | None = None) -> tuple[pa.Table, list[str]]:
    """Return the first `rows` rows of a file, or all for 0, and notes on how it was read.

    `form` says how a CSV is written. Raises FrameError for a file of another kind, without rows, or too large for
    memory. Its message has the file's name without its directory, because notebooks are published.
    """
    try:
        return _read(path, rows, form or Form())
    except (FrameError, duckdb.Error, UnicodeError) as error:
        said = str(error)
        if isinstance(error, duckdb.Error):
            said = re.split("Possible (?:fixes|Solution)", said)[0].removeprefix("Invalid Input Error: ")
            said = f"cannot be read: {' '.join(said.split())[:300]}. {ENCODINGS if 'unicode' in said else OTHER_FORM}"
        elif isinstance(error, UnicodeError):
            said = f"cannot be read: {said}. {ENCODINGS}"
        raise FrameError(f"{path.name} {said}") from error
    except Exception as error:  # of damaged bytes also UnicodeDecodeError, MemoryError, KeyError ...
        message = " ".join(str(error).replace(f"{path.parent}/", "").split())[:300]
        raise FrameError(f"{path.name} cannot be read: {message or type(error).__name__}") from error


def _read(path: Path, rows: int, form: Form) -> tuple[pa.Table, list[str]]:
    if not path.is_file():
        raise FrameError(f"is {'a directory: give one file of it' if path.is_dir() else 'not there'}")
    import_module("pandas.core.arrays.arrow.extension_types")  # without them, periods of pandas are read as numbers
    content, notes = _content(path, rows, form)
    content = validated(content)
    if not content.num_rows:
        raise FrameError("holds no rows: there is nothing to measure")
    # In a frame a NULL may take 16 bytes; a column of NULLs or of runs takes none for a row.
    bare = sum(pa.types.is_null(kind) or pa.types.is_run_end_encoded(kind) for kind in content.schema.types)
    _check_memory(content.nbytes + 16 * bare * content.num_rows)
    return content, notes


def _content(path: Path, rows: int, form: Form) -> tuple[pa.Table, list[str]]:
    packed = path.suffix in PACKED_SUFFIXES
    suffix = (path.with_suffix("") if packed else path).suffix.lower()
    with path.open("rb") as plain_file:
        start = plain_file.read(8)
    if not rows:
        _check_memory(path.stat().st_size * (UNPACKED if packed else 1))
    if start.startswith(PARQUET):
        # INT96 counts nanoseconds, of which 64 bits reach to 2262 only: others would wrap around without a word.
        with pq.ParquetFile(str(path), coerce_int96_timestamp_unit="us", page_checksum_verification=True) as parquet:
            many = 4 * BATCH_ROWS  # of a file of 1 GB, BATCH_ROWS at once take 1.7 times as long
            batches = parquet.iter_batches(batch_size=min(rows or many, many))
            content, schema = _first(batches, parquet.schema_arrow, rows), parquet.schema_arrow
            for column in parquet.schema:  # pyarrow reads Parquet's ENUM and intervals as bytes
                at = schema.get_field_index(column.path.removesuffix(".list.element"))
                if column.logical_type.type == "ENUM" and at >= 0:
                    kind = pa.list_(pa.string()) if column.max_repetition_level else pa.string()
                    schema = schema.set(at, schema.field(at).with_type(kind))
                if column.converted_type == "INTERVAL":
                    raise FrameError(f"has intervals in column {column.path}: cast it to text, or to a number")
            _check_nanoseconds(path, content, [one.path for one in parquet.schema if one.physical_type == "INT96"])
            return content.cast(schema), []
    if start.startswith((ARROW_FILE, ARROW_STREAM)):
        with pa.OSFile(str(path)) as file:  # Python's own would allocate whatever length a damaged message gives
            if start.startswith(ARROW_STREAM):
                stream = pa.ipc.open_stream(file)
                content = _first(stream, stream.schema, rows)
                if not rows and file.tell() < file.size():
                    raise FrameError("has more behind the end of its stream: read and join its streams yourself")
                return content, []
            of = pa.ipc.open_file(file)
            return _first(map(of.get_batch, range(of.num_record_batches)), of.schema, rows), []
    if suffix in TEXT_SUFFIXES:
        with pa.input_stream(str(path)) as stream:
            encoding = "utf-16" if form.encoding == "utf-8" and stream.read(2) in UTF_16 else form.encoding
        written = replace(form, separator=form.separator or TEXT_SUFFIXES[suffix], encoding=encoding)
        return _csv(path, rows, written, guessed=not form.separator)
    raise FrameError(f"is none of the files that are read here: {KINDS}")


def _check_nanoseconds(path: Path, content: pa.Table, columns: list[str]) -> None:
    """Raise FrameError for INT96 moments whose microseconds, in `content`, are not all of them."""
    with pq.ParquetFile(str(path)) as parquet:
        exact = _first(parquet.iter_batches(columns=columns), None, content.num_rows) if columns else pa.table({})
    for name in exact.column_names:
        micro, nano = content[name], exact[name]
        while pa.types.is_list(micro.type):
            micro, nano = pc.list_flatten(micro), pc.list_flatten(nano)
        if pa.types.is_timestamp(micro.type):  # far from 1970 both products wrap around alike
            is_whole = pc.equal(pc.multiply(micro.cast(pa.int64()), 1000), nano.cast(pa.int64()))
            if not pc.all(is_whole, min_count=0).as_py():
                raise FrameError(f"holds nanoseconds in column {name}, and servers have microseconds: round them")


def _first(batches: Iterable[pa.RecordBatch], schema: pa.Schema | None, rows: int) -> pa.Table:
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


def _csv(path: Path, rows: int, form: Form, *, guessed: bool) -> tuple[pa.Table, list[str]]:
    """Read texts by DuckDB, which refuses fields that break the rules of quoting, and infer their types."""
    with contextlib.ExitStack() as stack:
        if form.encoding != "utf-8":
            directory, given = stack.enter_context(tempfile.TemporaryDirectory()), str(path)
            path = Path(directory) / "in_utf8.csv"  # in UTF-8, which DuckDB reads best
            with pa.input_stream(given) as stream, path.open("wb") as file:
                shutil.copyfileobj(pa.transcoding_input_stream(stream, form.encoding, "utf-8"), file, READ_BYTES)
        header = _header(path, form, guessed=guessed)
        texts = None
        if form.separator == "\t":  # no field of such a file needs quotes: unless all are in pairs, they are text
            with contextlib.suppress(duckdb.Error):
                texts = _texts(path, rows, form, header, quote="")
        if texts is None or _all_in_pairs(texts):
            texts = _texts(path, rows, form, header, quote='"')
    with ThreadPoolExecutor() as pool:
        columns = [*pool.map(partial(_typed, decimal=form.decimal), texts.columns)]
    stays = "stays text: no other type has its fields as they are written"
    kept = [f"`{name}` {stays} (`{first}`)" for name, (_, first) in zip(header, columns, strict=True) if first]
    return pa.Table.from_arrays([values for values, _ in columns], header), [
        f"A CSV has no types: they are inferred from {f'the first {rows:,} rows' if rows else 'the whole file'}. "
        "A field with nothing in it is NULL, and among numbers, dates and booleans so are `NA`, `\\N` and the like.",
        *kept,
    ]


def _header(path: Path, form: Form, *, guessed: bool) -> list[str]:
    """Return the names in the header; raises FrameError where it has another separator, or too many names."""
    with pa.input_stream(str(path)) as stream:
        header = next(csv.reader(_lines(stream, form), delimiter=form.separator, skipinitialspace=True), [])
    if not header:
        raise FrameError(f"is empty, or its first line is: CSV='skip={form.skip + 1}' leaves that out")
    first = "".join(header)
    first.encode()  # fails where a name is not UTF-8
    if guessed and first.lower().startswith("sep="):
        separator = first[4:5] or form.separator
        remedy = f"CSV='separator={'tab' if separator == '\t' else separator} skip={form.skip + 1}'"
        raise FrameError(f"begins with {first!r}, a line that Excel reads: give {remedy}")
    if guessed and len(header) == 1 and (others := [other for other in SEPARATORS if other in first]):
        remedy = f"CSV='separator={others[0] if others[0] != '\t' else 'tab'}'"
        raise FrameError(f"has {others[0]!r} and no {form.separator!r} in its header, {first[:80]!r}: give {remedy}")
    if len(header) > MOST_CSV_COLUMNS:
        raise FrameError(f"has {len(header):,} columns: more than {MOST_CSV_COLUMNS:,} are not read")
    return header


def _texts(path: Path, rows: int, form: Form, header: list[str], *, quote: str) -> pa.Table:
    """Return the fields as texts, of which one with nothing in it is NULL, and `""` is not; raises duckdb.Error."""
    options = {
        "delim": form.separator, "quote": quote, "escape": quote, "skip": form.skip, "header": False,
        "columns": dict.fromkeys((f"c{at}" for at in range(len(header))), "VARCHAR"), "hive_partitioning": False,
        "auto_detect": False, "strict_mode": True, "allow_quoted_nulls": False, "max_line_size": READ_BYTES,
    }  # fmt: skip
    texts = {name: f"'{one.replace("'", "''")}'" for name, one in options.items() if isinstance(one, str)}
    given = ", ".join(f"{name} = {value}" for name, value in (options | texts).items())
    with duckdb.connect() as connection:
        query = f"SELECT * FROM read_csv(?, {given})" + f" LIMIT {rows + 1}" * bool(rows)
        stream = connection.execute(query, [glob.escape(str(path))]).to_arrow_reader(BATCH_ROWS)
        try:
            content = _first(stream, stream.schema, rows and rows + 1)
        except OSError as error:  # in a row after the first
            raise duckdb.InvalidInputException(str(error)) from error
    plain = partial(re.sub, '["\\s]', "")  # a record above the header may have several lines
    if [plain(row[0].as_py() or "") for row in content[:1].columns if len(row)] != [*map(plain, header)]:
        raise duckdb.InvalidInputException(f"the header is not read as {header}")
    _check_ends(path, form, header, content, quote=quote)
    return content[1:]


def _check_ends(path: Path, form: Form, header: list[str], content: pa.Table, *, quote: str) -> None:
    """Raise duckdb.Error if some rows have an empty field more than the header, which DuckDB leaves out.

    Their values may have moved, behind a separator within one of them; if all rows have it, their lines end so.
    """
    ends, last, separator = 0, b"", form.separator.encode()
    with pa.input_stream(str(path)) as stream:
        while block := stream.read(READ_BYTES):
            ends += sum((last + block).count(separator + end) for end in (b"\n", b"\r") if end in block)
            last = block[-len(separator) :]
    if ends + (last == separator) <= content.column(-1).null_count:
        return
    quoting: Any = csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE
    with pa.input_stream(str(path)) as stream:
        records = csv.reader(_lines(stream, form), delimiter=form.separator, skipinitialspace=True, quoting=quoting)
        rows = islice(filter(None, records), 1, content.num_rows)
        longer = [number for number, record in enumerate(rows, 1) if len(record) > len(header)]
    if longer and (not quote or len(longer) < content.num_rows - 1):
        raise duckdb.InvalidInputException(f"row {longer[0]:,} has a field more than the header, {len(header)}")


def _lines(stream: pa.NativeFile, form: Form) -> Iterator[str]:
    """Return the lines from the header on."""
    csv.field_size_limit(READ_BYTES)
    lines = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="")
    return islice(lines, form.skip, None)


def _all_in_pairs(texts: pa.Table) -> bool:
    """Return whether there are quotes, and every field that begins with one ends with one, those within it doubled."""
    has_quotes = [pc.any(pc.match_substring(values, '"')).as_py() for values in texts.columns]
    quoted = (values.filter(pc.starts_with(values, '"')) for values in texts.columns)
    in_pairs = (pc.match_substring_regex(values, r'(?s)^"([^"]|"")*"$') for values in quoted)
    return any(has_quotes) and all(pc.all(each, min_count=0).as_py() for each in in_pairs)


def _typed(texts: pa.ChunkedArray, decimal: str) -> tuple[pa.ChunkedArray, str | None]:
    """Return a CSV column in a type whose values are written as its fields are, else as text.

    All fractions may have zeros at their ends. The second result is the first field that kept a column text, and ""
    where a field has no other type.
    """
    if decimal == ",":
        swapped = texts  # 1.234,5 becomes 1,234.5, which is no number
        for old, new in ((".", "\0"), (",", "."), ("\0", ",")):
            swapped = pc.replace_substring(swapped, old, new)
        typed, first = _typed(swapped, ".")
        return (texts if typed.type == pa.string() else typed), first and first.translate({44: ".", 46: ","})
    if len(texts) > FEW_FIELDS and _typed(texts[:FEW_FIELDS], ".")[1] == "":
        return texts, ""
    present = pc.if_else(pc.is_in(texts, MISSING), pa.scalar(None, pa.string()), texts)
    if not len(written := present.drop_null()):
        return texts, None
    with contextlib.suppress(pa.ArrowInvalid):
        if (integers := present.cast(pa.int64())).cast(pa.string()).equals(present):
            return integers, None
    others, kinds, otherwise = written, OTHER_TYPES, written[:1].to_pylist()
    if re.fullmatch(f"{NUMBER}|{EXPONENT}", otherwise[0]):
        plain = pc.match_substring_regex(written, NUMBER)
        others = written.filter(pc.invert(plain))
        kinds, otherwise = [], others.filter(pc.invert(pc.match_substring_regex(others, EXPONENT)))[:1].to_pylist()
        if not otherwise:
            long = written.filter(pc.and_(plain, pc.greater(pc.utf8_length(written), FLOAT_DIGITS)))
            long = long.filter(pc.not_equal(long.cast(pa.float64()).cast(pa.string()), long))
            fields = others.to_pylist() + long.to_pylist()
            otherwise = _padded(written) or [one for one in fields if not _is_as_written(one)]
            kinds = [] if otherwise else [pa.float64()]
    for kind in kinds:
        with contextlib.suppress(pa.ArrowInvalid):
            typed = present.cast(kind)
            values = typed.filter(pc.is_in(typed, others.cast(kind))) if kind == pa.float64() else typed.drop_null()
            first = _otherwise_written(others, values) if len(others) else None
            return (typed, None) if first is None else (texts, first)
    first = ""
    with contextlib.suppress(pa.ArrowInvalid):
        written.cast(pa.float64())
        first = next(iter(otherwise), None)
    return texts, first


def _is_as_written(number: str) -> bool:
    """Return whether a float has the digits of this fraction or power, apart from zeros at the end."""
    is_of_form = "e" in repr(float(number)) if "e" in number else "." in number
    return is_of_form and Decimal(repr(float(number))) == Decimal(number)


def _padded(written: pa.ChunkedArray) -> list[str]:
    """Return the first number with a zero at its end that others lack, as in 3.1 and 3.10, or in 1 and 1.0."""
    padded = written.filter(pc.ends_with(written, "0"))
    padded = padded.filter(pc.match_substring_regex(padded, "^-?[0-9]+[.][0-9]*0$"))
    point = pc.find_substring(written, ".")
    places = pc.subtract(pc.utf8_length(written), pc.if_else(pc.less(point, 0), pc.utf8_length(written), point))
    has_integers = not pc.all(pc.match_substring(written.filter(pc.less(point, 0)), "e"), min_count=0).as_py()
    is_by_repr = pc.all(pc.ends_with(padded, ".0"), min_count=0).as_py() and not has_integers
    return [] if is_by_repr or pc.count_distinct(places).as_py() == 1 else padded[:1].to_pylist()


def _otherwise_written(texts: pa.ChunkedArray, typed: pa.ChunkedArray) -> str | None:
    """Return a text that another form than the first one's, or no server has; moments are in UTC, numbers of any form.

    Of different texts of one value, it is the first text. Of floats, the texts are those with an exponent.
    """
    kind, form = typed.type, re.sub("[.][0-9]+", "", str(texts[0]))
    marks = ["[0-9]" if mark.isdigit() else re.escape(mark) for mark in form]
    pattern = "".join([*marks[:SECONDS], "([.][0-9]+)?", *marks[SECONDS:]])
    if pa.types.is_boolean(kind):
        pattern = "[a-z]+" if form.islower() else "[A-Z]+" if form.isupper() else "[A-Z][a-z]+"
    has_other_form = pc.index(pc.match_substring_regex(texts, f"^{pattern}$"), False).as_py()
    if has_other_form >= 0 and not pa.types.is_floating(kind):
        return str(texts[has_other_form])
    outside = pa.types.is_date(kind) and any_outside(typed, *DATES["Date32"][:2])
    is_in_utc = not getattr(kind, "tz", None) or pc.all(pc.match_substring_regex(texts, "(Z|[+]00(:?00)?)$")).as_py()
    is_of_one_form = pc.count_distinct(pc.utf8_length(texts)).as_py() == 1 and not pa.types.is_floating(kind)
    is_kept = is_of_one_form or pc.count_distinct(typed).as_py() == pc.count_distinct(texts).as_py()
    return None if is_kept and is_in_utc and not outside and len(typed) == len(texts) else str(texts[0])


def _check_memory(size: int) -> None:
    """Raise FrameError when memory cannot hold a frame of this many bytes and its copies."""
    available = psutil.virtual_memory().available
    if size * COPIES > available:
        raise FrameError(
            f"takes at least {size / 2**30:.1f} GiB as a frame, {COPIES} times that while it is moved, and "
            f"{available / 2**30:.1f} GiB of memory are free: give ROWS, or fewer of them, and the first rows are taken"
        )
