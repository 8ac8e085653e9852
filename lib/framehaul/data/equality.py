"""Bitwise comparison of columns in any dtypes, and the description of a difference."""

import datetime as dt
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from functools import cached_property
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, ip_interface
from itertools import chain
from types import NoneType
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from framehaul.data.documents import NOT_OF_THE_TYPE, is_missing, nested_array, no_number
from framehaul.data.frames import PLAIN, UUID_BYTES, uuid_text, with_scalars
from framehaul.data.schema import ARRAYS, FLOATS, LONG_NUMBERS, NESTED, Column, ColumnType, TimeUnit

T = ColumnType
BITS: dict[type[pl.DataType], type[pl.DataType]] = {pl.Float32: pl.Int32, pl.Float64: pl.Int64}
BOOLEANS = {"t": True, "true": True, "f": False, "false": False}
HEX = r"^\\x(?:[0-9a-f]{2})*$"
TIMESTAMP = (
    r"^(?<day>\d{4}-\d\d-\d\d)[ T](?<clock>\d\d:\d\d:\d\d)(?:\.(?<fraction>\d{1,9}))?(?<offset>Z|[+-]\d\d(?::?\d\d)?)?$"
)
SHOWN_CHARACTERS = 40
SEVERAL_SPELLINGS = (T.UUID, T.JSON, T.IPV4, T.IPV6, *LONG_NUMBERS)
"""Kinds in which different texts may be the same value."""
EXACTLY = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)
"""A decimal context without limits."""


class Difference(NamedTuple):
    """The first value that differs from the value that was sent."""

    column: str
    row: int
    sent: object
    received: object

    @property
    def change(self) -> str:
        """The change in one short line, such as `NULL became 0`, with the types if the values look alike."""
        sent, received = _shown(self.sent), _shown(self.received)
        kinds = [type(self.sent).__name__, type(self.received).__name__]
        if sent == received and kinds[0] != kinds[1]:
            return f"{sent} ({kinds[0]}) became {received} ({kinds[1]})"
        return f"{sent} became {received}"

    def __str__(self) -> str:
        return f"{f'column {self.column}, ' if self.column else ''}row {self.row}: {self.change}"


class Content:
    """The columns of a table, in the dtypes in which they are compared.

    `frame` holds each value in the dtype of its column's type, timestamps in UTC. `misfits` holds the values of other
    types by column and row; they are NULL in the frame.
    """

    def __init__(self, frame: pl.DataFrame, misfits: Mapping[str, Mapping[int, object]]) -> None:
        self.frame, self.misfits = frame, {name: values for name, values in misfits.items() if values}

    def __len__(self) -> int:
        return len(self.frame)

    @cached_property
    def fingerprint(self) -> int:
        """The `content_fingerprint` of the frame, cached because each comparison needs it."""
        return content_fingerprint(self.frame)

    def value(self, column: str, row: int) -> object:
        """Return a Python value; timestamps and dates are numpy's."""
        return self.misfits.get(column, {}).get(row, _python(self.frame[column][row : row + 1])[0])

    def in_order(self, key: Sequence[str]) -> "Content":
        """Return the rows sorted by a key; without a key, in an order that depends only on their values."""
        by = [self.frame[name] for name in key]
        rows = self.frame.select(pl.arg_sort_by(by)).to_series() if by else _hashes(self.frame).arg_sort()
        misfits = {
            name: {at: values[row] for at, row in enumerate(rows) if row in values}
            for name, values in self.misfits.items()
        }
        return Content(self.frame[rows], misfits)


def content_of(
    received: pl.DataFrame | pd.DataFrame | pa.Table | pa.RecordBatch, columns: Iterable[Column], *, nan_is_null: bool
) -> Content:
    """Return received columns in the dtypes in which they are compared.

    Other dtypes may represent the same values: a UUID may be 16 bytes, a date may be text or midnight, an integer may
    be a whole float. JSON documents are compared without white space and the order of keys, but with all digits and
    repeated keys. pandas often has one representation of NaN and NULL: with `nan_is_null` it is NULL in nullable
    columns.
    """
    typed, misfits = list[pl.Series](), dict[str, dict[int, object]]()
    for each in columns:
        values, misfits[each.name] = _values(received[each.name], each, nan_is_null=nan_is_null and each.nullable)
        typed.append(values.alias(each.name))
    return Content(pl.DataFrame(typed), misfits)


def other_shape(names: Sequence[str], rows: int, sent_names: Sequence[str], sent_rows: int) -> str | None:
    """Return a description of different column names, another order or number of rows; None if all are equal."""
    if list(names) != list(sent_names):
        return f"columns are {', '.join(map(str, names))}"
    return None if rows == sent_rows else f"{rows} rows instead of {sent_rows}"


def first_difference(sent: Content, received: Content) -> Difference | None:
    """Return the first difference, by column, between contents with the same number of rows in the same order."""
    for name in sent.frame.columns:
        differs = _bits(sent.frame[name]).ne_missing(_bits(received.frame[name]))
        rows = {
            row
            for row in (*sent.misfits.get(name, ()), *received.misfits.get(name, ()))
            if _differ(sent.value(name, row), received.value(name, row))
        }
        if differs.any() and (first := differs.arg_max()) is not None:
            rows.add(first)
        if rows:
            return Difference(name, row := min(rows), sent.value(name, row), received.value(name, row))
    return None


def _differ(left: Any, right: Any) -> bool:
    try:
        return type(left) is not type(right) or bool(left != right)
    except OverflowError:  # of numpy's moments, of which one is not in the range of the other's unit
        return True


def difference_in_any_order(sent: Content, received: Content, key: Sequence[str]) -> str | None:
    """Return a description of a misfit or of the columns that differ in any order of rows; None if equal."""
    if received.misfits and not sent.misfits:
        name, values = next(iter(received.misfits.items()))
        row, value = next(iter(values.items()))
        return f"column {name}, row {row}: {_shown(value)} is no {sent.frame[name].dtype}"
    # Sorting takes longest, and is not needed for rows in the order sent or with the same fingerprint.
    if first_difference(sent, received) is None:
        return None
    whole = not (sent.misfits or received.misfits) and sent.frame.schema == received.frame.schema
    if whole and sent.fingerprint == received.fingerprint:
        return None
    sent, received = sent.in_order(key), received.in_order(key)
    if first_difference(sent, received) is None:
        return None

    def only(content: Content, name: str) -> Content:
        # Without a key, one wrong value moves its whole row. Therefore each column is sorted and compared separately.
        column = Content(content.frame[[name]], {name: content.misfits.get(name, {})})
        return column if key else column.in_order(())

    return differs_in(name for name in sent.frame.columns if first_difference(only(sent, name), only(received, name)))


def differs_in(columns: Iterable[str]) -> str:
    """Return the description of a difference in these columns, or, without columns, in how rows combine values."""
    return f"content differs in {', '.join(columns) or 'how values are combined into rows'}"


def content_fingerprint(*frames: pl.DataFrame) -> int:
    """Return a sum over rows, which is the same for the same rows in any order and in any number of frames."""
    return sum(int(_hashes(frame).to_numpy().sum(dtype=np.uint64)) for frame in frames) % 2**64


def _hashes(frame: pl.DataFrame) -> pl.Series:
    return pl.DataFrame([_bits(values) for values in frame]).hash_rows(seed=1)


def _bits(values: pl.Series) -> pl.Series:
    """Return floats as their bits, which distinguish -0.0 from 0.0; all NaN have the same bits."""
    kind: Any = values.dtype.inner if isinstance(values.dtype, pl.List) else values.dtype
    if (bits := BITS.get(type(kind))) is None:
        return values
    if isinstance(values.dtype, pl.List):
        return values.list.eval(pl.element().fill_nan(float("nan")).reinterpret(dtype=bits))
    return values.fill_nan(float("nan")).reinterpret(dtype=bits)


def _python(values: pl.Series) -> list[Any]:
    """Return Python values; dates and timestamps are numpy's, which hold any year."""
    if not isinstance(values.dtype, pl.Datetime | pl.Date):
        return values.to_list()
    unit: Any = getattr(values.dtype, "time_unit", "D")
    return [None if value is None else np.datetime64(value, unit) for value in values.to_physical().to_list()]


def _shown(value: object) -> str:
    text = "NULL" if value is None else str(value) if isinstance(value, np.datetime64) else repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:30]}... ({len(text)} characters)"


def _values(values: Any, column: Column, *, nan_is_null: bool) -> tuple[pl.Series, dict[int, object]]:
    """Return a column in the dtype of its type, and the values of other types by row."""
    if column.type in NESTED:
        return _nested(values, column)
    if isinstance(values, pd.Series) and values.dtype != object:
        # NaN is a value in columns of floats, and pandas' missing value in any other.
        values = pa.array(values, from_pandas=nan_is_null or column.type not in FLOATS)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        values = pl.Series(values=values)
    if not isinstance(values, pl.Series) or values.dtype == pl.Object:
        return _of_objects(list(values), column, nan_is_null=nan_is_null)
    typed = _typed(values, column)
    rows = (typed.is_null() & values.is_not_null()).arg_true()
    return typed, dict(zip(rows, _python(values[rows]), strict=True)) if len(rows) else {}


def _of_objects(values: list[Any], column: Column, *, nan_is_null: bool) -> tuple[pl.Series, dict[int, object]]:
    """Return `_values` of Python objects; objects of the same Python type are converted together."""
    if column.type in ARRAYS:
        return _of_lists(values, column)
    typed = pl.repeat(None, len(values), dtype=_dtype(column), eager=True)
    misfits, groups = dict[int, object](), _rows_by_type(values, has_nan=column.type in FLOATS and not nan_is_null)
    while groups:
        rows = groups.pop()
        try:
            some = values if len(rows) == len(values) else [values[row] for row in rows]
            if column.type in NESTED:
                if isinstance(some[0], str | bytes):  # JSON, of which objects become pairs
                    some = [json.loads(each, object_pairs_hook=list, parse_constant=no_number) for each in some]
                nested = nested_array(some, column.types.arrow, texts=True)
                series, others = _as_documents(nested), dict[int, object]()
            else:
                series, others = _values(_series(some, column), column, nan_is_null=nan_is_null)
        except (*NOT_OF_THE_TYPE, pl.exceptions.PolarsError, RuntimeError):
            if len(rows) == 1:
                misfits[rows[0]] = values[rows[0]]
            groups += [[row] for row in rows] if len(rows) > 1 else []
        else:
            typed = series if len(rows) == len(values) else typed.scatter(rows, series)
            misfits |= {rows[at]: value for at, value in others.items()}
    return typed, misfits


def _rows_by_type(values: list[Any], *, has_nan: bool) -> list[list[int]]:
    """Return the rows of each Python type without missing values; NaN is missing unless `has_nan`."""
    kinds = {*map(type, values)}
    if len(kinds) == 1 and not kinds & {NoneType, type(pd.NaT), type(pd.NA), float, np.float64}:
        return [[*range(len(values))]]  # the usual case, in which inspecting values takes as long as converting them
    rows = defaultdict[type, list[int]](list)
    for row, value in enumerate(values):
        if not is_missing(value) or (has_nan and isinstance(value, float)):
            rows[type(value)].append(row)
    return list(rows.values())


def _of_lists(values: list[Any], column: Column) -> tuple[pl.Series, dict[int, object]]:
    """Return `_values` of Python objects in a column of lists."""
    missing = [not isinstance(value, list | tuple | np.ndarray) for value in values]
    lists = [() if is_none else value for value, is_none in zip(values, missing, strict=True)]
    typed, rows = _grouped([*chain.from_iterable(lists)], [*map(len, lists)], missing, column)
    rows |= {row for row, value in enumerate(values) if missing[row] and not is_missing(value)}
    return typed, {row: values[row] for row in rows}


def _grouped(values: Any, counts: Any, missing: Any, column: Column) -> tuple[pl.Series, set[int]]:
    """Return the values as lists of these lengths, and the rows with a value of another type; these lists are NULL."""
    typed, misfits = _values(values, column.element, nan_is_null=False)
    lengths, is_null = np.array(counts, np.int64), np.array(missing, np.bool_)
    rows = np.repeat(np.arange(len(lengths)), lengths)[np.array([*misfits], np.int64)]
    is_null[rows] = True
    offsets = pa.array(np.append(0, np.cumsum(lengths)))
    lists = pa.LargeListArray.from_arrays(offsets, typed.to_arrow(), mask=pa.array(is_null))
    return pl.Series(values=lists).cast(_dtype(column)), {*rows.tolist()}


def _series(values: list[Any], column: Column) -> pl.Series:
    """Return Python objects of one type, none missing, as a series; raises the errors of Polars and Arrow."""
    match values[0]:
        case dict() | list() if column.type is T.JSON:
            values = [json.dumps(value) for value in values]
        case IPv4Address() | IPv6Address() | IPv4Interface() | IPv6Interface():
            values = [str(value) for value in values]
        case UUID():
            values = [value.bytes for value in values]
        case Decimal():
            texts = pl.Series([f"{value:f}" for value in values])
            return texts if column.type in (T.DECIMAL, *LONG_NUMBERS) else _decimals(texts, pl.Decimal(38, 0))
        case np.datetime64() | np.timedelta64():
            return pl.Series(np.array(values))
        case pd.Timestamp():  # Polars would truncate nanoseconds
            return pl.Series(values=pa.array(pd.Series(values)))
        case dt.date() if not isinstance(values[0], dt.datetime):
            return pl.Series(values=pa.array(values, pa.date32()))  # seven times as fast as Polars
        case int() if column.type in LONG_NUMBERS:
            values = [str(value) for value in values]
        case bytearray() | memoryview():
            values = [bytes(value) for value in values]
    return pl.Series(values, dtype=pl.Float64 if isinstance(values[0], float) else None)


def _typed(series: pl.Series, column: Column) -> pl.Series:
    """Return the values in the dtype of the column's type, NULL for values of other types."""
    series, wanted = _simplified(series, column.type), _dtype(column)
    if series.dtype == pl.Null or (series.dtype == wanted and column.innermost.type not in SEVERAL_SPELLINGS):
        return series.cast(wanted)
    if column.type in ARRAYS and isinstance(series.dtype, pl.List | pl.Array):
        series = series.cast(pl.List(series.dtype.inner))
        flat, counts = series.drop_nulls().list.explode(empty_as_null=False), series.list.len().fill_null(0).to_numpy()
        return _grouped(flat, counts, series.is_null().to_numpy(), column)[0]
    convert = (_FROM_TEXT if series.dtype == pl.String else _CONVERTERS).get(column.type, _numbers)
    typed = None if column.type in ARRAYS else convert(series, wanted)
    return pl.repeat(None, len(series), dtype=wanted, eager=True) if typed is None else typed


def _simplified(series: pl.Series, kind: ColumnType) -> pl.Series:
    """Return categories, Arrow's JSON, text in bytes, and numbers of which every digit counts as text."""
    if isinstance(series.dtype, pl.Categorical | pl.Enum):
        return series.cast(pl.String)
    if kind is T.JSON and isinstance(series.dtype, pl.BaseExtension) and series.dtype.ext_name() == "arrow.json":
        return series.ext.storage()
    if kind in (T.TEXT, T.ENUM, T.JSON) and series.dtype == pl.Binary:
        try:
            return series.cast(pl.String)
        except pl.exceptions.ComputeError:  # at least one value is not UTF-8
            return _texts_of(series, bytes.decode)
    if kind in (T.DECIMAL, *LONG_NUMBERS) and series.dtype.is_float():  # the float 0.1 is not a tenth
        return _texts_of(series, lambda value: f"{Decimal(value):f}")
    return series.cast(pl.String) if kind in LONG_NUMBERS and series.dtype.is_numeric() else series


def _dtype(column: Column) -> pl.DataType:
    wanted = column.types.polars
    if column.type in ARRAYS:
        return pl.List(_dtype(column.element))
    if column.type in NESTED or isinstance(wanted, pl.Enum):
        return pl.String()
    return pl.Datetime(wanted.time_unit) if isinstance(wanted, pl.Datetime) else wanted


def _nested(values: Any, column: Column) -> tuple[pl.Series, dict[int, object]]:
    """Return `_values` of nested values as JSON in one spelling, with the entries of maps sorted by key.

    Values may arrive as Arrow's nested types, as JSON, or as Python objects.
    """
    kind = column.types.arrow
    if isinstance(values, pl.Series) and values.dtype != pl.Object:
        values = values.to_arrow(compat_level=pl.CompatLevel.oldest())
    elif isinstance(values, pd.Series) and isinstance(values.dtype, pd.ArrowDtype):
        values = pa.array(values)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        if with_scalars(values.type, lambda of: PLAIN.get(of, of)) == kind:
            return _as_documents(values.cast(kind)), {}
        values = values.to_pylist()
    return _of_objects([*values], column, nan_is_null=True)


def _as_documents(values: pa.Array | pa.ChunkedArray) -> pl.Series:
    """Return nested values as JSON that is the same text if and only if the value is the same, to the bit."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    frame = pl.DataFrame([pl.Series("value", values=_json_values(array))])
    document = pl.struct("value").struct.json_encode().str.strip_prefix('{"value":').str.head(-1)
    return _where(pl.Series(values=array.is_valid()), frame.select(document).to_series())


def _json_values(array: pa.Array) -> pa.Array:
    """Return the array with the entries of maps sorted, and with text for values that JSON lacks or rounds."""
    kind, missing = array.type, array.is_null()
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        return pa.StructArray.from_arrays([_json_values(each) for each in array.flatten()], names, mask=missing)
    if pa.types.is_map(kind):
        pairs = array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
        by_key = pl.element().sort_by(pl.element().struct["key"], maintain_order=True)
        return pl.Series(values=_json_values(pairs)).list.eval(by_key).to_arrow()
    if pa.types.is_nested(kind):
        counts = pc.if_else(missing, 0, pc.list_value_length(array)).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.append(0, np.cumsum(counts)), pa.int64())
        return pa.LargeListArray.from_arrays(offsets, _json_values(array.flatten()), mask=missing)
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_nan(array), "nan", array.cast(pa.string()))
    return array if pa.types.is_integer(kind) or kind == pa.bool_() else array.cast(pa.large_string())


def _lossless(series: pl.Series, wanted: pl.DataType) -> pl.Series:
    """Return the values in another dtype, NULL if casting back returns another value."""
    cast = series.cast(wanted, strict=False)
    return _where(cast.cast(series.dtype, strict=False) == series, cast)


def _where(holds: pl.Series, values: pl.Series) -> pl.Series:
    return values.to_frame().select(pl.when(holds).then(values)).to_series()


def _numbers(series: pl.Series, wanted: pl.DataType) -> pl.Series | None:
    if wanted == pl.Float32 and series.dtype.is_float():
        # A Float32 may arrive as a Float64: its exact value, or the number nearest to its text.
        return series.cast(wanted)
    exact = wanted.is_integer() or wanted == pl.Boolean or isinstance(wanted, pl.Decimal)
    taken = series.dtype.is_numeric() if exact else wanted.is_float() and series.dtype.is_integer()
    return _lossless(series, wanted) if taken else None


def _decimals(texts: pl.Series, wanted: Any) -> pl.Series:
    fits = texts.str.contains(rf"^[+-]?\d+(\.\d{{0,{wanted.scale}}}0*)?$")  # Polars would round
    return _where(fits, texts).cast(wanted, strict=False)


def _texts_of(values: pl.Series, text_of: Callable[[Any], str | None]) -> pl.Series:
    """Return the texts that a function makes of the values, NULL if it raises ValueError."""

    def text_or_none(value: Any) -> str | None:
        try:
            return None if value is None else text_of(value)
        except (ValueError, RecursionError):
            return None

    return pl.Series([text_or_none(value) for value in values], dtype=pl.String)


def _bytes(texts: pl.Series, _wanted: pl.DataType) -> pl.Series:
    # All values have to be in PostgreSQL's text form of bytes, because single values may be sent like that.
    return texts.str.slice(2).str.decode("hex") if texts.str.contains(HEX).all() else texts.cast(pl.Binary)


def _document(text: str) -> str:
    """Return JSON in one spelling: keys sorted, repeated keys in their order, numbers by their value."""
    numbers: dict[str, Any] = {"parse_int": Decimal, "parse_float": Decimal, "parse_constant": no_number}
    return _spelled(json.loads(text, object_pairs_hook=tuple, **numbers))


def _spelled(value: Any) -> str:
    """Return the spelling of a value of JSON, whose objects are tuples of pairs."""
    match value:
        case tuple():
            pairs = sorted(value, key=lambda pair: pair[0])
            return f"{{{','.join(f'{json.dumps(key)}:{_spelled(item)}' for key, item in pairs)}}}"
        case list():
            return f"[{','.join(map(_spelled, value))}]"
        case Decimal():
            return str(value.normalize(EXACTLY))
    return json.dumps(value)


def _decimal(text: str) -> str | None:
    """Return a number in one spelling: zero has no sign, and trailing zeros are dropped."""
    is_number = re.fullmatch(r"[+-]?\d+(\.\d+)?", text)
    return f"{EXACTLY.add(Decimal(text), 0).normalize(EXACTLY):f}" if is_number else None


def _address(text: str) -> str:
    """Return an address in one spelling, without the prefix length of a network of a single address."""
    address = ip_interface(text)
    return str(address.ip if address.network.prefixlen == address.max_prefixlen else address)


def _temporal(series: pl.Series, wanted: pl.DataType) -> pl.Series | None:
    """Return dates, times, timestamps and durations in another dtype; timestamps without a zone are in UTC."""
    given = series.dtype
    if isinstance(given, pl.Datetime):
        in_utc = series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        return _lossless(in_utc, wanted) if wanted in (pl.Date, pl.Datetime) else None
    if isinstance(given, pl.Duration) and wanted == pl.Time:
        return _lossless(series.cast(pl.Duration("ns")).to_physical(), wanted)
    if isinstance(given, pl.Duration) and wanted == pl.Duration:
        return _lossless(series, wanted)
    is_number = (wanted == pl.Duration and given.is_numeric()) or (wanted == pl.Date and given.is_integer())
    return _lossless(series, pl.Int64()).cast(wanted, strict=False) if is_number else None


def _dates_of_text(texts: pl.Series, _wanted: pl.DataType) -> pl.Series:
    days = texts.str.to_date("%Y-%m-%d", strict=False)
    return _where(days.dt.to_string("%Y-%m-%d") == texts, days)


def _moments_of_text(texts: pl.Series, wanted: Any) -> pl.Series | None:
    parts = texts.str.extract_groups(TIMESTAMP).struct.unnest()
    fraction = parts["fraction"].fill_null("")
    clock = parts["day"] + "T" + parts["clock"] + "." + fraction.str.pad_end(9, "0")
    offset = parts["offset"].replace("Z", "+00").fill_null("+00").str.replace(":", "").str.pad_end(5, "0")
    unit: TimeUnit = "ns" if wanted.time_unit == "ns" else "us"  # a larger range
    moments = (clock + offset).str.to_datetime("%Y-%m-%dT%H:%M:%S%.9f%z", time_unit=unit, strict=False)
    whole = fraction.str.slice(9 if unit == "ns" else 6).str.strip_chars("0") == ""
    return _temporal(_where(whole, moments), wanted)


MOMENTS = (T.TIMESTAMP, T.TIMESTAMP_NS, T.TIMESTAMP_UTC, T.TIMESTAMP_BERLIN)
_FROM_TEXT: dict[ColumnType, Callable[[pl.Series, pl.DataType], pl.Series | None]] = {
    T.BOOL: lambda texts, _: texts.str.to_lowercase().replace_strict(BOOLEANS, default=None, return_dtype=pl.Boolean),
    T.UUID: lambda texts, _: texts.str.to_lowercase(),
    T.JSON: lambda texts, _: _texts_of(texts, _document),
    T.TIME: lambda texts, _: texts.str.to_time("%H:%M:%S%.f", strict=False),
    T.DATE: _dates_of_text,
    T.DECIMAL: _decimals,
    **dict.fromkeys((T.BYTES, T.FIXED_BYTES), _bytes),
    **dict.fromkeys((T.IPV4, T.IPV6), lambda texts, _: _texts_of(texts, _address)),
    **dict.fromkeys(LONG_NUMBERS, lambda texts, _: _texts_of(texts, _decimal)),
    **dict.fromkeys(MOMENTS, _moments_of_text),
}
"""Conversions of text that may represent a value."""
_CONVERTERS: dict[ColumnType, Callable[[pl.Series, pl.DataType], pl.Series | None]] = {
    T.UUID: lambda raw, _: uuid_text(_where(raw.bin.size() == UUID_BYTES, raw)) if raw.dtype == pl.Binary else None,
    **dict.fromkeys((T.TIME, T.DURATION, T.DATE, *MOMENTS), _temporal),
}
"""Conversions from other dtypes; the default converts numbers."""
