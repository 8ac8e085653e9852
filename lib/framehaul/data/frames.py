"""Conversions between Arrow and dataframes, with checks of their values, without a Python object per value."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeIs

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from framehaul.data.documents import NOT_OF_THE_TYPE, TEXTS, check_zone, exact_objects
from framehaul.data.schema import ARRAYS, LONG_NUMBERS, NESTED, Column, ColumnType, Table, whole_numbers

if TYPE_CHECKING:
    import pandas as pd

BATCH_ROWS = 65_536
"""Default rows per record batch: enough to amortise the cost of a batch, few enough for a CPU cache."""
UUID_BYTES = 16
FIRST_DAYS = -2_440_588
"""4713 BC in days since 1970: PostgreSQL has no earlier dates."""
UNITS_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
"""Units of time in a day."""
SHOWN_BYTES = 24
"""The number of bytes of invalid text that an error message shows."""


class NotTextError(ValueError):
    """An error for text that is not UTF-8; the message names column, row and remedy."""

    def __init__(self, name: str, row: int, value: bytes) -> None:
        self.row, self.value = row, value
        shown = f"{value[:SHOWN_BYTES]!r}{'...' if len(value) > SHOWN_BYTES else ''}"
        super().__init__(f"column {name}, row {row:,}: {shown} is not UTF-8; read the column as binary")


def is_pandas(frame: object) -> TypeIs[pd.DataFrame]:
    """Return whether a frame is one of pandas, which takes a third of a second to import."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(frame, pandas.DataFrame)


def in_table_order[F: (pl.DataFrame, pd.DataFrame, pa.Table, pa.RecordBatch)](frame: F, table: Table) -> F:
    """Return the frame with its columns in the table's order, matched by name.

    Raises ValueError with the names of columns that are missing, unknown or repeated, and for an unknown field of
    Arrow's structs. Raises TypeError for a lazy frame and for anything but a dataframe.
    """
    if isinstance(frame, pl.LazyFrame):
        raise TypeError("the frame is lazy: collect() it first")
    wanted, columns = table.column_names, list[str]()
    if isinstance(frame, pa.Table | pa.RecordBatch):
        columns = frame.schema.names
        for column in table.columns:
            if columns.count(column.name) == 1:
                check_meaning(frame.schema.field(column.name).type, column.types.arrow, column.name)
    elif isinstance(frame, pl.DataFrame) or is_pandas(frame):
        columns = list(frame.columns)
    else:
        raise TypeError(f"a {type(frame).__name__} is no dataframe: give one of Polars or pandas")
    if columns == wanted:
        return frame
    problems = {
        "missing": [name for name in wanted if name not in columns],
        "not in the table": [name for name in dict.fromkeys(columns) if name not in wanted],
        "more than once": [name for name in dict.fromkeys(columns) if columns.count(name) > 1],
    }
    if said := listed(problems):
        raise ValueError(f"the frame does not have the columns of table {table.name}: {said}")
    return frame.select(wanted) if isinstance(frame, pa.Table | pa.RecordBatch) else frame[wanted]  # a `*` is a name


def listed(problems: Mapping[str, list[str]]) -> str:
    """Return the problems that have names, with these names; empty if there are none."""
    return "; ".join(f"{what}: {', '.join(map(repr, names))}" for what, names in problems.items() if names)


def from_pandas(frame: pd.DataFrame, table: Table) -> pa.Table:
    """Return a pandas frame as an Arrow table in `table.arrow_schema`; raises as `from_polars` does."""
    frame, arrays = in_table_order(frame, table), list[pa.Array | pa.ChunkedArray]()
    for column in table.columns:
        arrays.append(_stored(frame[column.name], column))
        refuse_nulls(arrays[-1].null_count, column)
        check_forms(arrays[-1], column)
    return validated(pa.Table.from_arrays(arrays, schema=table.arrow_schema))


NOT_IN_ARROW = {"period": ".dt.to_timestamp()", "interval": "two columns of its ends", "Sparse": ".sparse.to_dense()"}
"""pandas' dtypes that Arrow converts to other values, or not at all, and what to use in their place."""
ROUNDED = [ColumnType[one] for one in ("FLOAT32", "FLOAT64", "DECIMAL", "BOOL", "DATE", "TIME")]
"""Kinds as which Arrow silently stores other values: https://arrow.apache.org/docs/cpp/compute.html#casts"""


def _stored(values: pd.Series[Any], column: Column) -> pa.Array | pa.ChunkedArray:
    """Return a column of pandas in its Arrow type. Raises ValueError for a value that is not of the type."""
    import pandas as pd

    name, kind = str(values.dtype), column.types.arrow
    for start, remedy in NOT_IN_ARROW.items():
        if name.startswith(start):
            raise ValueError(f"column {values.name} is {name}, which Arrow does not have: use {remedy}")
    is_uuid = column.type is ColumnType.UUID and "uuid" in name  # Arrow's, whose cast to text returns their bytes
    is_whole = pa.types.is_decimal(kind) and pd.api.types.is_integer_dtype(values.dtype)
    if is_uuid or is_whole or name == "object" or column.type in (*ARRAYS, *NESTED):
        return exact_objects(values.map(str, na_action="ignore") if column.type in LONG_NUMBERS else values, kind)
    if name == "category" and not pd.api.types.is_string_dtype(values.cat.categories):  # NULL makes floats of integers
        decoded = pa.array(values).dictionary_decode().to_pandas(types_mapper=pd.ArrowDtype)
        return _stored(decoded.rename(values.name), column)
    empty = pa.array(values[:0], from_pandas=True)
    check_meaning(empty.type, kind, column.name)
    try:
        of_floats = pa.types.is_decimal(kind) and pa.types.is_floating(empty.type)
        stored = pa.array(values, None if of_floats else kind, from_pandas=True).cast(kind)
    except NOT_OF_THE_TYPE as error:
        raise ValueError(f"column {values.name} does not fit {kind}: {error}") from error
    is_parsed = empty.type in TEXTS and pa.types.is_integer(kind)
    if (is_parsed or column.type in ROUNDED) and (given := pa.array(values, from_pandas=True)).type != kind:
        check_kept(pl.Series(column.name, given), pl.Series(values=stored))
    return stored


def refuse_nulls(count: int, column: Column) -> None:
    """Raise ValueError, with the number of NULLs, if a column that is not nullable holds any."""
    if count and not column.nullable:
        raise ValueError(f"column {column.name} may not be NULL, and {count} of its values are")


def check_kept(given: pl.Series, stored: pl.Series) -> None:
    """Raise ValueError if the conversion to the stored dtype changed a value."""
    if given.dtype in (stored.dtype, pl.Null, pl.List(pl.Null)):
        return
    try:
        if given.dtype.is_nested():  # Arrow matches fields by name; missing ones are NULL
            back = pl.Series(stored.to_arrow().cast(given.to_arrow().type))
        else:
            back = stored.cast(given.dtype)
        kept = back.equals(given, null_equal=True)
    except (pl.exceptions.PolarsError, pa.ArrowException):
        kept = False
    if not kept:
        raise ValueError(f"column {given.name} holds {given.dtype} values that {stored.dtype} does not have")


BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
ADDRESSES = {ColumnType.IPV4: rf"^({BYTE}[.]){{3}}{BYTE}$", ColumnType.IPV6: "^[0-9A-Fa-f.]*:[0-9A-Fa-f.:]*$"}
"""Patterns of addresses; the servers validate IPv6 further."""


def check_forms(values: pa.Array | pa.ChunkedArray, column: Column) -> None:
    """Raise ValueError for what is not a value of its enum, an address, a long number or of a size, in lists as well.

    Servers and drivers drop the prefix length of a network, turn an IPv4 into an IPv6, or empty text into 0.0.0.0.
    """
    if column.type in ARRAYS:
        check_forms(pc.list_flatten(values), column.element)
    check_enum(values, column)
    name, fits = column.type.name, pa.array([], pa.bool_())
    if column.type in ADDRESSES:
        fits = pc.match_substring_regex(values, ADDRESSES[column.type])
    elif column.type is ColumnType.FIXED_BYTES:
        name, fits = str(column.types.arrow), pc.equal(pc.binary_length(values), column.types.arrow.byte_width)
    elif column.type in LONG_NUMBERS:
        name, texts = column.types.clickhouse, values.to_pylist()
        fits = pa.array([None if text is None else _is_number(text, column) for text in texts], pa.bool_())
    if pc.all(fits).as_py() is False:
        row = pc.index(fits, False).as_py()
        raise ValueError(f"column {column.name}, row {row:,}: {values[row].as_py()!r} is no {name}")


def check_enum(values: pa.Array | pa.ChunkedArray, column: Column) -> None:
    """Raise ValueError for text that is not a value of the column's enum; other kinds of columns pass."""
    if column.type is ColumnType.ENUM:
        texts = values.cast(pa.string())
        unknown = texts.filter(pc.invert(pc.is_in(texts, pa.array([*enum_values(column), None]))))
        if len(unknown):
            text = unknown[0].as_py()
            raise ValueError(f"column {column.name} is an enum that does not have {text!r}: add it to its values")


def _is_number(text: str, column: Column) -> bool:
    """Return whether the text is a number that fits the column's type with every digit."""
    if column.type is ColumnType.WIDE_DECIMAL:
        precision, scale = map(int, re.findall(r"\d+", column.types.clickhouse))
        whole, _, fraction = text.removeprefix("-").partition(".")
        digits = re.fullmatch(r"-?\d+(\.\d+)?", text, re.ASCII)
        return bool(digits) and len(whole.lstrip("0")) <= precision - scale and len(fraction.rstrip("0")) <= scale
    least, most = whole_numbers(column.types.clickhouse)
    return bool(re.fullmatch(r"-?\d{1,78}", text, re.ASCII)) and least <= int(text) <= most


def enum_values(column: Column) -> list[str]:
    """Return the values of a column's enum."""
    kind: Any = column.types.polars
    return [*kind.categories]


def from_polars(frame: pl.DataFrame, table: Table) -> pa.Table:
    """Return a Polars frame as an Arrow table with plain strings, which every reader supports.

    Raises as `in_table_order` does. Raises ValueError for a value that does not fit its column, for NULL in a column
    that is not nullable, and for text that is not UTF-8: some techniques would silently store another value.
    """
    content = conform(frame, table).to_arrow(compat_level=pl.CompatLevel.oldest())
    for at, column in enumerate(table.columns):
        # Polars exports times in nanoseconds, enums as dictionaries, and bytes without their size.
        if column.innermost.type in (ColumnType.TIME, ColumnType.ENUM, ColumnType.FIXED_BYTES):
            content = content.set_column(at, column.name, content.column(at).cast(column.types.arrow))
    return validated(content)


def conform(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """Return the frame in the columns and dtypes of `table.polars_schema`; raises as `from_polars` does."""
    frame = in_table_order(frame, table)
    for column in table.columns:
        name, given, wanted = column.name, frame[column.name], column.types.polars
        kept = values = given
        if column.innermost.type is ColumnType.UUID and pl.Binary in (given.dtype, getattr(given.dtype, "inner", None)):
            kept = values = pl.Series(name, uuid_texts(given.to_arrow(compat_level=pl.CompatLevel.oldest())))
        refuse_nulls(values.null_count(), column)
        if values.dtype != wanted:
            empty = values[:0].cast(pl.Int64) if "128" in str(values.dtype) else values[:0]  # which Arrow does not have
            check_meaning(empty.to_arrow().type, column.types.arrow, name)
            try:
                if column.type in NESTED:
                    values = pl.Series(name, values.to_arrow().cast(column.types.arrow))
                kept = values.cast(wanted, strict=True)
            except (pl.exceptions.PolarsError, pa.ArrowException) as error:
                raise ValueError(f"column {name}: {error}") from error
            check_kept(given if column.type in NESTED else values, kept)
        if kept is not given:
            frame = frame.with_columns(kept)
        if column.innermost.type is ColumnType.TIME and (kept.explode().to_physical() % 1000 != 0).any():
            raise ValueError(f"column {name} holds times with nanoseconds, and the table has microseconds: round them")
        if column.type in (*LONG_NUMBERS, *ADDRESSES, ColumnType.FIXED_BYTES):
            check_forms(kept.to_arrow(), column)
    return frame


def check_meaning(found: pa.DataType, wanted: pa.DataType, name: str) -> None:
    """Raise ValueError for values that mean something else in the wanted type, at any depth, although they fit it.

    Arrow and Polars drop fields, take numbers for moments of any unit or for bytes, and moments without a zone for UTC.
    """
    found = found.value_type if pa.types.is_dictionary(found) else found
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        for field in found:
            if wanted.get_field_index(field.name) < 0:
                raise ValueError(f"column {name} holds structs with a field {field.name!r}, which {wanted} lacks")
            check_meaning(field.type, wanted.field(field.name).type, name)
    elif pa.types.is_map(found) and pa.types.is_map(wanted):
        check_meaning(found.key_type, wanted.key_type, name)
        check_meaning(found.item_type, wanted.item_type, name)
    elif pa.types.is_nested(found) and pa.types.is_nested(wanted) and found.num_fields == wanted.num_fields == 1:
        check_meaning(found.field(0).type, wanted.field(0).type, name)
    elif pa.types.is_timestamp(wanted) and (pa.types.is_timestamp(found) or (pa.types.is_date(found) and wanted.tz)):
        check_zone(f"column {name}", getattr(found, "tz", None), wanted.tz)
    elif _means_other(found, wanted):
        raise ValueError(f"column {name} holds {found}, and the table has {wanted}: convert one of them")


def _means_other(found: pa.DataType, wanted: pa.DataType) -> bool:
    numbers = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal
    is_number, wants_number = (any(each(kind) for each in numbers) for kind in (found, wanted))
    if "binary" in str(wanted):
        return is_number or any(each(found) for each in (pa.types.is_primitive, pa.types.is_nested))
    if pa.types.is_temporal(found):
        return wants_number or bool(pa.types.is_duration(found) and wanted == pa.string())
    return is_number and bool(pa.types.is_temporal(wanted))


def check_text(frame: pl.DataFrame, table: Table) -> None:
    """Raise NotTextError for text that is not UTF-8, which Polars writes without a check."""
    texts = frame[[*table.columns_of(ColumnType.TEXT, ColumnType.UUID)]]
    validated(texts.to_arrow(compat_level=pl.CompatLevel.oldest()))


def to_pandas(arrow: pa.Table, table: Table, *, valid: bool = False) -> pd.DataFrame:
    """Return an Arrow table in `table.arrow_schema` as a pandas frame with the dtypes of `table.pandas_dtypes`.

    Raises ValueError for invalid arrays; `valid` skips the validation of arrays that are valid by construction.
    """
    import pandas as pd

    arrow = arrow if valid else validated(with_bytes(arrow, table))
    columns: dict[str, Any] = {}
    for column in table.columns:
        values, wanted = arrow.column(column.name), column.types.arrow
        if not column.nullable and values.null_count and (pa.types.is_boolean(wanted) or pa.types.is_floating(wanted)):
            dtype = column.pandas_dtype
            raise ValueError(f"column {column.name} holds NULL, which its dtype {dtype} would take for False or NaN")
        if column.type is ColumnType.ENUM:
            check_enum(values, column)  # pandas would turn unknown values into NULL
            columns[column.name] = pd.Categorical(values.cast(pa.string()).to_pylist(), enum_values(column))
            continue
        if values.type != wanted and not pa.types.is_string(wanted):  # pandas accepts every layout of text
            values = values.cast(wanted)
        # Nullable columns are converted through nullable dtypes, because integers would become floats. Integers take
        # the column's own dtype, because pandas 3.1.1 converts Arrow-backed integers through floats (`reproductions`).
        whole = column.nullable and pa.types.is_integer(wanted)
        backed = (lambda _, column=column: pd.api.types.pandas_dtype(column.pandas_dtype)) if whole else pd.ArrowDtype
        series: Any = values.to_pandas(types_mapper=backed if column.nullable else None)
        if column.pandas_dtype == "object":
            # Lists become Python lists, because numpy's integers have no NULL.
            objects = values.to_pylist() if pa.types.is_nested(wanted) else values.to_pandas().to_numpy()
            series = pd.Series(objects, dtype=object)
        columns[column.name] = series.astype(column.pandas_dtype)
    return pd.DataFrame(columns, copy=False)


def to_polars(arrow: pa.Table, table: Table, *, valid: bool = False) -> pl.DataFrame:
    """Return an Arrow table as a Polars frame with the dtypes of `table.polars_schema`; dictionaries become text.

    Extension types become their storage type, which for ADBC's numeric is text. Raises ValueError for invalid arrays;
    `valid` skips the validation of arrays that are valid by construction.
    """
    arrow = arrow if valid else validated(with_bytes(arrow, table))
    for at, kind in enumerate(arrow.schema.types):
        if (stored := with_scalars(kind, _wide_decimal)) != kind:
            arrow = arrow.set_column(at, arrow.column_names[at], arrow.column(at).cast(stored))
    frame = pl.from_arrow(arrow, rechunk=False)
    assert isinstance(frame, pl.DataFrame)
    return frame.with_columns(frame[name].cast(kind) for name, kind in table.polars_schema.items())


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is one of Arrow's lists that all techniques support."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def with_scalars(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return the type with its scalar types changed, at any depth, without extension types and long lists."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(with_scalars(field.type, change)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(with_scalars(kind.key_type, change), with_scalars(kind.item_type, change))
    if is_list(kind):
        return pa.list_(with_scalars(kind.value_type, change), getattr(kind, "list_size", -1))
    return change(kind)


def _wide_decimal(kind: pa.DataType) -> pa.DataType:
    """Return decimals in 16 bytes: from smaller ones in nested types Polars makes columns of other numbers."""
    small = pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind)
    return pa.decimal128(kind.precision, kind.scale) if small else kind


def with_bytes(arrow: pa.Table, table: Table) -> pa.Table:
    """Return the table with bytes, and lists of bytes, as binary: ClickHouse exports its String as text."""
    for column in table.columns:
        if column.innermost.type is ColumnType.BYTES:
            at, values = arrow.column_names.index(column.name), arrow.column(column.name)
            if isinstance(values.type, pa.DictionaryType):
                values = values.combine_chunks().dictionary_decode()
            arrow = arrow.set_column(at, column.name, values.cast(as_bytes(values.type)))
    return arrow


def as_bytes(kind: pa.DataType) -> pa.DataType:
    """Return the type with binary in place of strings, inside lists as well."""
    binary = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    return with_scalars(kind, lambda scalar: binary.get(scalar, scalar))


def validated(arrow: pa.Table) -> pa.Table:
    """Return the table after validating its arrays; raises ValueError with the column, and for text with the row.

    Neither pandas nor Polars checks that text is UTF-8, and their behaviour is undefined otherwise.
    """
    for at, name in enumerate(arrow.column_names):
        chunks, first_row, given = [], 0, arrow.column(at).chunks
        for chunk in given:
            try:
                chunks.append(valid_array(chunk, name, first_row))
            except pa.ArrowException as error:
                raise ValueError(f"column {name}, from row {first_row:,} on: {error}") from error
            first_row += len(chunk)
        if any(valid is not chunk for valid, chunk in zip(chunks, given, strict=True)):
            arrow = arrow.set_column(at, name, pa.chunked_array(chunks))
    return arrow


def valid_array(array: pa.Array, name: str, first_row: int) -> pa.Array:
    """Return the array if it is valid, without invalid text at its NULLs; raises ValueError otherwise."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        valid_array(array.storage, name, first_row)
    elif isinstance(kind, pa.DictionaryType):
        array.indices.validate(full=True)
        array.dictionary.validate()  # of a damaged length
        least, most = pc.min_max(array.indices).as_py().values()
        if least is not None and not 0 <= least <= most < len(array.dictionary):
            raise pa.ArrowInvalid(f"its dictionary of {len(array.dictionary)} has no {least if least < 0 else most}")
        try:
            valid_array(array.dictionary, name, first_row)
        except NotTextError:  # unused text is harmless, and the error names the row that uses the text
            return valid_array(array.dictionary_decode(), name, first_row)
    elif kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()) and len(array):
        return valid_text(array, name, first_row)
    else:
        array.validate(full=True)
        check_finite(array)
        if kind in (pa.string_view(), pa.binary_view()):
            return without_views_of_null(array)
    return array


def check_finite(array: pa.Array) -> None:
    """Raise ArrowInvalid for dates and timestamps out of range, in lists as well.

    Drivers return PostgreSQL's infinity as the greatest number, or as a number that overflowed, as Polars does when it
    multiplies greater moments. PostgreSQL's dates begin in 4713 BC: https://www.postgresql.org/docs/18/datatype-datetime.html
    """
    kind = array.type
    if pa.types.is_date32(kind) or (pa.types.is_timestamp(kind) and kind.unit != "ns"):  # all of ns is in range
        units, number = (1, pa.int32()) if pa.types.is_date32(kind) else (UNITS_PER_DAY[kind.unit], pa.int64())
        greatest = 2**31 - 1 if pa.types.is_date32(kind) else (2**63 - 1) * units // UNITS_PER_DAY["us"]
        least, most = pc.min_max(array.cast(number)).as_py().values()
        if least is not None and (least < FIRST_DAYS * units or most >= greatest):
            raise pa.ArrowInvalid("it holds infinity or -infinity, which no dataframe has in place of a date")
    elif is_list(kind):
        check_finite(array.flatten())


def without_views_of_null(values: pa.Array) -> pa.Array:
    """Return string views that are empty at NULL: readers follow views at NULL unvalidated, and the process crashes."""
    if not values.null_count:
        return values
    valid, views, *texts = values.buffers()
    cleared = np.frombuffer(views, "V16", values.offset + len(values)).copy()
    cleared[values.offset :][values.is_null().to_numpy(zero_copy_only=False)] = np.void(bytes(16))
    buffers = [valid, pa.py_buffer(cleared), *texts]
    return pa.Array.from_buffers(values.type, len(values), buffers, values.null_count, values.offset)


def valid_text(array: pa.Array, name: str, first_row: int) -> pa.Array:
    """Return strings or bytes if they are valid, without invalid text at NULL, which Arrow's validation passes over."""
    raw = array.view(as_bytes(array.type))
    raw.validate(full=True)  # its offsets and its number of NULLs
    if array.type == raw.type or is_utf8(array):
        return array
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        found = ((row, value.as_py()) for row, value in enumerate(raw) if value.is_valid)
        row, text = next((row, text) for row, text in found if text.decode(errors="ignore").encode() != text)
        raise NotTextError(name, first_row + row, text) from error
    return pc.if_else(array.is_valid(), array.fill_null(""), pa.scalar(None, array.type))


def is_utf8(array: pa.Array) -> bool:
    """Return whether all strings are UTF-8, including the bytes at NULL.

    All bytes are validated as one text, and no string may begin within a character. Arrow's validation of each string
    takes longer.
    """
    places = np.frombuffer(array.buffers()[1], np.int32 if array.type == pa.string() else np.int64)
    places, data = places[array.offset : array.offset + len(array) + 1], array.buffers()[2]
    if places[0] == places[-1]:
        return True
    try:
        pa.Array.from_buffers(array.type, 1, [None, pa.py_buffer(places[[0, -1]]), data]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    first_bytes = np.frombuffer(data, np.uint8)[places[: np.searchsorted(places, places[-1])]]
    return not ((first_bytes & 0xC0) == 0x80).any()  # noqa: PLR2004  a byte within a character is 10xxxxxx


def uuid_text(series: pl.Series) -> pl.Series:
    """Return UUIDs of 16 bytes as text of 8-4-4-4-12 digits; raises ValueError for other lengths."""
    raw = series.cast(pl.Binary)
    if not (raw.bin.size() == UUID_BYTES).fill_null(True).all():
        raise ValueError(f"a UUID is not {UUID_BYTES} bytes long")
    digits = raw.bin.encode("hex")
    parts = [digits.str.slice(start, length) for start, length in ((0, 8), (8, 4), (12, 4), (16, 4), (20, 12))]
    return pl.select(pl.concat_str(parts, separator="-")).to_series()


def uuid_texts(values: pa.Array) -> pa.Array:
    """Return UUIDs of 16 bytes, or lists of them, as text; values outside of a slice or below a NULL are dropped."""
    if not is_list(values.type):
        return uuid_text(pl.Series(values=getattr(values, "storage", values))).to_arrow().cast(pa.string())
    lists = values.cast(pa.list_(pa.binary(UUID_BYTES)))
    ends = np.append(0, np.cumsum(pc.list_value_length(lists).fill_null(0))).astype(np.int32)
    return pa.ListArray.from_arrays(ends, uuid_texts(lists.flatten()), mask=lists.is_null())


PLAIN = {pa.string_view(): pa.string(), pa.large_string(): pa.string()}
PLAIN |= {pa.binary_view(): pa.binary(), pa.large_binary(): pa.binary()}
"""The plain type of each other layout of text and bytes."""


def unwrapped(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return scalars as plain values, UUIDs as text; nested values stay as they are, except lists of UUIDs."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        texts = [unwrapped(pa.chunked_array([each.dictionary])).combine_chunks() for each in values.chunks]
        used = [each.take(chunk.indices) for each, chunk in zip(texts, values.chunks, strict=True)]
        return pa.chunked_array(used, unwrapped(pa.chunked_array([], kind.value_type)).type)
    if pa.types.is_run_end_encoded(kind):
        return unwrapped(pc.run_end_decode(values))
    if kind == pa.uuid() or (is_list(kind) and kind.value_type == pa.uuid()):
        return pa.chunked_array(map(uuid_texts, values.chunks), pa.list_(pa.string()) if is_list(kind) else pa.string())
    if isinstance(kind, pa.BaseExtensionType):
        return unwrapped(values.cast(kind.storage_type))
    if kind in (pa.string_view(), pa.binary_view()):
        values = pa.chunked_array(map(without_views_of_null, values.chunks), kind)
    return values.cast(PLAIN[kind]) if kind in PLAIN else values


def arrow_stream(content: pa.Table, batch_rows: int = BATCH_ROWS) -> Iterator[bytes]:
    """Yield the Arrow IPC stream of a table, one record batch at a time."""
    return encode_stream(content.schema, content.to_batches(max_chunksize=batch_rows))


def encode_stream(schema: pa.Schema, batches: Iterable[pa.RecordBatch], options: Any = None) -> Iterator[bytes]:
    """Yield the Arrow IPC stream of record batches in this schema; `options` are pyarrow's IpcWriteOptions."""
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, schema, options=options) as stream:
        for batch in batches:
            stream.write_batch(batch)
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()
