"""Conversions between Arrow and dataframes that techniques share, without a Python object per value."""

from __future__ import annotations

import datetime as dt
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from framehaul.data.objects import exact_objects
from framehaul.data.schema import ARRAYS, LONG_NUMBERS, NESTED, Column, ColumnType, Table, whole_numbers
from framehaul.data.text import NotTextError, first_invalid_text, for_reading, rows_in_place

BATCH_ROWS = 65_536
"""Rows per record batch where nothing speaks for another number: large enough to amortise, small enough for caches."""
UUID_BYTES = 16
UUIDS = pd.ArrowDtype(pa.uuid())
"""The dtype of pandas for UUIDs as Arrow's extension type has them."""
FIRST_DAYS = -2_440_588
"""4713 BC, by days since 1970: no server has dates before it."""
OF_A_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
"""How many of a unit."""


def in_table_order[F: (pl.DataFrame, pd.DataFrame, pa.Table, pa.RecordBatch)](frame: F, table: Table) -> F:
    """The frame with its columns in the order of the table's, at no cost where they are: columns go by name.

    Raises ValueError with the names of columns that are missing, that the table does not have, or that are there more
    than once, for columns of several levels, for a field of Arrow's structs that the table does not have, and TypeError
    for what is no dataframe, a lazy frame of Polars among them.
    """
    if isinstance(frame, pl.LazyFrame):
        raise TypeError("the frame is lazy: collect() it first")
    if not isinstance(frame, pl.DataFrame | pd.DataFrame | pa.Table | pa.RecordBatch):
        raise TypeError(f"a {type(frame).__name__} is no dataframe: give one of Polars or pandas")
    if isinstance(frame, pd.DataFrame) and isinstance(frame.columns, pd.MultiIndex):
        raise ValueError(  # noqa: TRY004  it is a dataframe
            f"the columns of the frame have {frame.columns.nlevels} levels (a MultiIndex), and a table's none: join "
            "them, frame.columns = ['_'.join(map(str, names)) for names in frame.columns]"
        )
    wanted = table.column_names
    columns = frame.schema.names if isinstance(frame, pa.Table | pa.RecordBatch) else list(frame.columns)
    if isinstance(frame, pa.Table | pa.RecordBatch):
        for column in table.columns:
            if columns.count(column.name) == 1:
                check_fields(frame.schema.field(column.name).type, column.types.arrow, column.name)
    if columns == wanted:
        return frame
    wrong = {
        "missing": [name for name in wanted if name not in columns],
        "not in the table": [name for name in dict.fromkeys(columns) if name not in wanted],
        "more than once": [name for name, count in Counter(columns).items() if count > 1],
    }
    if any(wrong.values()):
        problems = "; ".join(f"{what}: {', '.join(map(repr, names))}" for what, names in wrong.items() if names)
        raise ValueError(f"the frame does not have the columns of table {table.name}: {problems}")
    return frame[wanted] if isinstance(frame, pd.DataFrame) else frame.select(wanted)


def in_clickhouse_order(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """The rows in the order of the table's sorting key as ClickHouse has it: UUIDs go by their second half.

    https://clickhouse.com/docs/sql-reference/data-types/uuid
    """
    uuids, keys = table.columns_of(ColumnType.UUID), list[pl.Expr]()
    for name in table.clickhouse_order:
        if name in uuids:
            text = pl.col(name).str.to_lowercase()
            keys += [text.str.slice(19), text]  # where the second halves are the same, the first ones decide
        else:
            keys.append(pl.col(name))
    return frame.sort(keys)


def from_pandas(frame: pd.DataFrame, table: Table) -> pa.Table:
    """A pandas frame as an Arrow table in `table.arrow_schema`; text is already Arrow inside pandas 3.

    Raises ValueError for other columns than the table's, where a value does not fit its column, for NULL where there
    may be none, and for text that is not UTF-8.
    """
    frame = in_table_order(frame, table)
    try:
        objects = {column.name: exact_objects(frame[column.name], column.types.arrow) for column in table.columns
                   if column.type in (*ARRAYS, *NESTED) or _is_of_objects(frame[column.name], column)}  # fmt: skip
        uuids = {name: pd.Series(uuid_text(pl.Series(values=pa.array(frame[name]))).to_list(), frame.index, dtype="str")
                 for name in table.columns_of(ColumnType.UUID) if frame[name].dtype == UUIDS}  # fmt: skip
        content = pa.Table.from_pandas(
            frame.assign(**objects, **uuids), schema=table.arrow_schema, preserve_index=False
        )
    except UnicodeEncodeError as error:  # which does not say where
        raise surrogate_in(frame) from error
    for column in table.columns:
        stored = content.column(column.name)
        if (given := given_otherwise(frame[column.name], column)) is not None:
            check_kept(given, pl.Series(values=stored))
        check_forms(stored, column)
    return validated(content)


def _is_of_objects(values: pd.Series[Any], column: Column) -> bool:
    """Whether Arrow might cut something off these values, which it does not of a dtype's, nor of those in `ROUNDED`."""
    kind = column.types.arrow
    cut = pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind)
    return cut and values.dtype == object


ROUNDED = (ColumnType.FLOAT32, ColumnType.FLOAT64, ColumnType.DECIMAL, ColumnType.BOOL, ColumnType.DATE)
"""What Arrow makes of other numbers and of moments without a word: https://arrow.apache.org/docs/cpp/compute.html#casts"""


def given_otherwise(values: pd.Series[Any], column: Column) -> pl.Series | None:
    """What stands in a column of pandas that Arrow may have rounded; None where it has the table's dtype.

    Raises ValueError for objects that are of no one type.
    """
    usual = str(values.dtype) in (column.types.pandas, column.types.pandas_nullable)
    if usual and column.type is ColumnType.DATE:  # objects, and so are moments, of which Arrow keeps the day
        check_midnights(values)
    if usual or column.type not in ROUNDED:
        return None
    try:
        return pl.Series(column.name, pa.array(values, from_pandas=True))
    except pa.ArrowException as error:
        raise ValueError(f"column {column.name} does not fit {column.types.arrow}: {error}") from error


def check_midnights(values: pd.Series[Any]) -> None:
    """Raises ValueError for a moment among dates that is not the midnight which a day begins with."""
    if not any(issubclass(kind, dt.datetime) for kind in {*map(type, values.to_numpy())}):
        return
    for row, value in enumerate(values):
        if isinstance(value, dt.datetime) and not pd.isna(value) and value.time() != dt.time():
            raise ValueError(f"column {values.name}, row {row:,}: {value} is no date: make a date of it")


def in_polars(values: pa.ChunkedArray, name: str) -> pl.Series:
    """The values as Polars has them; lists of one size as lists: with NULL, Polars 2.1.0 takes none out of a slice."""
    fixed = pa.types.is_fixed_size_list(values.type)
    return pl.Series(name, values.cast(pa.list_(values.type.value_type)) if fixed else values)


def check_kept(given: pl.Series, stored: pl.Series) -> None:
    """Raises ValueError for a value that is another in the dtype that it is stored in."""
    if given.dtype in (stored.dtype, pl.Null):
        return
    try:
        if given.dtype.is_nested():  # Arrow takes structs by their fields' names, and those that are missing for NULL
            back = pl.Series(stored.to_arrow().cast(given.to_arrow().type))
        else:
            back = stored.cast(given.dtype)
        kept = back.equals(given, null_equal=True)
    except (pl.exceptions.PolarsError, pa.ArrowException):
        kept = False
    if not kept:
        raise ValueError(f"column {given.name} holds {given.dtype} values that {stored.dtype} does not have")


def check_forms(values: pa.Array | pa.ChunkedArray, column: Column) -> None:
    """Raises ValueError for text that is none of an enum, in lists as well, of an address or a long number."""
    if column.type in ARRAYS:
        check_forms(pc.list_flatten(values), column.element)
    check_enum(values, column)
    check_wide(values, column)
    check_addresses(values, column)


def check_enum(values: pa.Array | pa.ChunkedArray, column: Column) -> None:
    """Raises ValueError for a text that the enum of a column does not have; of other columns nothing is asked."""
    if column.type is ColumnType.ENUM:
        texts = values.cast(pa.string())
        unknown = texts.filter(pc.invert(pc.is_in(texts, pa.array([*enum_values(column), None]))))
        if len(unknown):
            said = unknown[0].as_py()
            raise ValueError(f"column {column.name} is an enum that does not have {said!r}: add it to its values")


def check_wide(values: pa.Array | pa.ChunkedArray, column: Column) -> None:
    """Raises ValueError for text that is no number of a column of long ones; of other columns nothing is asked."""
    if column.type in LONG_NUMBERS:
        for row, text in enumerate(values.to_pylist()):
            if text is not None and not is_wide(text, column):
                raise ValueError(f"column {column.name}, row {row:,}: {text!r} is no {column.types.clickhouse}")


BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
ADDRESSES = {
    ColumnType.IPV4: rf"^({BYTE}[.]){{3}}{BYTE}$",
    ColumnType.IPV6: "^[0-9A-Fa-f.]*:[0-9A-Fa-f.:]*$",
}
"""What an address looks like; which of those of the second kind is none is for the servers to say."""


def check_addresses(values: pa.Array | pa.ChunkedArray, column: Column) -> None:
    """Raises ValueError for text that is no address of a column's version; of other columns nothing is asked.

    Servers and drivers drop the length of a network, make an IPv6 of an IPv4, or 0.0.0.0 of what is empty.
    """
    if column.type in ADDRESSES:
        fits = pc.match_substring_regex(values, ADDRESSES[column.type])
        if pc.all(fits).as_py() is False:
            row = pc.index(fits, False).as_py()
            raise ValueError(f"column {column.name}, row {row:,}: {values[row].as_py()!r} is no {column.type.name}")


def is_wide(text: str, column: Column) -> bool:
    """Whether a text is a number that the type of the column holds, every digit of it."""
    if column.type is ColumnType.WIDE_DECIMAL:
        precision, scale = map(int, re.findall(r"\d+", column.types.clickhouse))
        whole, _, fraction = text.removeprefix("-").partition(".")
        digits = re.fullmatch(r"-?\d+(\.\d+)?", text, re.ASCII)
        return bool(digits) and len(whole.lstrip("0")) <= precision - scale and len(fraction.rstrip("0")) <= scale
    least, most = whole_numbers(column.types.clickhouse)
    return bool(re.fullmatch(r"-?\d{1,78}", text, re.ASCII)) and least <= int(text) <= most


def enum_values(column: Column) -> list[str]:
    """The values of a column's enum."""
    kind: Any = column.types.polars
    return [*kind.categories]


def surrogate_in(frame: pd.DataFrame) -> ValueError:
    """What is said of half a surrogate pair, which Python's text may hold and UTF-8 does not have: where the first is.

    https://docs.python.org/3/library/codecs.html#error-handlers
    """
    halves = re.compile("[\ud800-\udfff]")
    row, name, value = next(
        (row, name, value)
        for name in frame.columns
        for row, value in enumerate(frame[name])
        if isinstance(value, str) and halves.search(value)
    )
    return ValueError(f"column {name}, row {row:,}: {value!r} has half a surrogate pair, which is no text")


def from_polars(frame: pl.DataFrame, table: Table) -> pa.Table:
    """A Polars frame as an Arrow table with plain strings, which every reader knows, instead of string views.

    Raises as `conform` does, and ValueError for text that is not UTF-8.
    """
    content = conform(frame, table).to_arrow(compat_level=pl.CompatLevel.oldest())
    for at, column in enumerate(table.columns):
        # Polars has other units of time, dictionaries for enums, and bytes of any size.
        if column.innermost.type in (ColumnType.TIME, ColumnType.ENUM, ColumnType.FIXED_BYTES):
            try:
                content = content.set_column(at, column.name, content.column(at).cast(column.types.arrow))
            except pa.ArrowInvalid as error:
                raise ValueError(f"column {column.name} does not fit {column.types.arrow}: {error}") from error
    return validated(content)


def conform(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """The frame in the columns and dtypes of `table.polars_schema`, at no cost where it has them already.

    Raises as `in_table_order` does, and ValueError where a value does not fit its column, and for NULL where there may
    be none: some paths would store something else without a word.
    """
    frame = in_table_order(frame, table)
    for column in table.columns:
        given, wanted = frame[column.name], column.types.polars
        values = in_form(given, column)
        if not column.nullable and values.null_count():
            raise ValueError(f"column {column.name} may not be NULL, and {values.null_count()} of its values are")
        if values is not given:
            frame = frame.with_columns(values)
        if values.dtype != wanted:
            try:
                cast = values.cast(wanted, strict=True)
            except pl.exceptions.PolarsError as error:
                raise ValueError(f"column {column.name}: {error}") from error
            check_kept(values, cast)
            frame = frame.with_columns(cast)
        if column.innermost.type is ColumnType.TIME:
            check_microseconds(frame[column.name])
        if column.type in (*LONG_NUMBERS, *ADDRESSES):
            check_forms(frame[column.name].to_arrow(), column)
    return frame


def check_microseconds(times: pl.Series) -> None:
    """Raises ValueError for nanoseconds in times of day, or in lists of them, which Polars has and no table here."""
    flat = times if times.dtype == pl.Time else times.explode()
    if (flat.to_physical() % 1000 != 0).any():
        raise ValueError(
            f"column {times.name} holds times with nanoseconds, and the table has microseconds: round them"
        )


def in_form(values: pl.Series, column: Column) -> pl.Series:
    """The values of a column where they are UUIDs as Polars takes Arrow's, or structs: as text, all fields in order.

    Raises ValueError for an enum, bytes of a fixed size and structs that hold what the column does not have.
    """
    wanted = column.types.polars
    if column.type is ColumnType.UUID and values.dtype == pl.Binary:
        return uuid_text(values).alias(values.name)
    if column.innermost.type is ColumnType.UUID and getattr(values.dtype, "inner", None) == pl.Binary:
        texts = [None if each is None else uuid_text(each).to_list() for each in values]
        return pl.Series(values.name, texts, wanted)
    if isinstance(values.dtype, pl.Struct) and isinstance(wanted, pl.Struct):
        return with_fields(values, wanted)
    if column.type is ColumnType.ENUM and values.dtype == pl.String:
        check_enum(values.to_arrow(), column)
    if column.type is ColumnType.FIXED_BYTES and values.dtype == pl.Binary:
        size = column.types.arrow.byte_width
        if (values.bin.size() != size).any():
            raise ValueError(f"column {column.name} has {size} bytes in each value, and one of its values has not")
    return values


def check_fields(found: pa.DataType, wanted: pa.DataType, name: str) -> None:
    """Raises ValueError for a field of structs that the type of a column does not have: Arrow's cast would drop it."""
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        for field in found:
            if wanted.get_field_index(field.name) < 0:
                raise ValueError(
                    f"column {name} holds structs with a field {field.name!r}, which {wanted} does not have"
                )
            check_fields(field.type, wanted.field(field.name).type, name)
    elif pa.types.is_map(found) and pa.types.is_map(wanted):
        check_fields(found.item_type, wanted.item_type, name)
    elif pa.types.is_nested(found) and pa.types.is_nested(wanted) and found.num_fields == wanted.num_fields == 1:
        check_fields(found.field(0).type, wanted.field(0).type, name)


def with_fields(values: pl.Series, wanted: pl.Struct) -> pl.Series:
    """Structs with their fields in order, by name, those that are missing NULL; raises ValueError for others."""
    found, names = [*values.struct.fields], [field.name for field in wanted.fields]
    if found == names:
        return values
    if more := [name for name in found if name not in names]:
        raise ValueError(f"column {values.name} holds structs with a field {more[0]!r}, which {wanted} does not have")
    column = pl.col(values.name)
    fields = [
        column.struct.field(field.name) if field.name in found else pl.lit(None, field.dtype).alias(field.name)
        for field in wanted.fields
    ]
    return (
        values.to_frame().select(pl.when(column.is_not_null()).then(pl.struct(fields)).alias(values.name)).to_series()
    )


def check_text(frame: pl.DataFrame, table: Table) -> None:
    """Raises ValueError for text that is not UTF-8: Polars takes what it is given for text, and writes it."""
    for name in table.columns_of(ColumnType.TEXT, ColumnType.UUID):
        raw = frame[name].cast(pl.Binary)
        wrong = raw.cast(pl.String, strict=False).is_null() & raw.is_not_null()
        if (row := wrong.arg_max()) is not None and wrong[row]:
            raise NotTextError(name, row, raw[row])


def to_pandas(arrow: pa.Table, table: Table, *, valid: bool = False) -> pd.DataFrame:
    """An Arrow table in `table.arrow_schema` as a pandas frame with the dtypes of `table.pandas_dtypes`.

    Raises ValueError for arrays that are not valid, unless `valid` says that whoever made them has seen to it.
    """
    arrow = arrow if valid else validated(with_bytes(arrow, table))
    columns: dict[str, Any] = {}
    for column in table.columns:
        values, wanted = arrow.column(column.name), column.types.arrow
        if not column.nullable and values.null_count and (pa.types.is_boolean(wanted) or pa.types.is_floating(wanted)):
            raise ValueError(
                f"column {column.name} holds NULL, which its dtype {column.pandas_dtype} would take for False or NaN"
            )
        if column.type is ColumnType.ENUM:
            check_enum(values, column)  # pandas would make NULL of what is none of its values
            columns[column.name] = pd.Categorical(values.cast(pa.string()).to_pylist(), enum_values(column))
            continue
        if values.type != wanted and not pa.types.is_string(wanted):  # pandas takes every kind of text as it is
            values = values.cast(wanted)
        # Through dtypes that have NULL where there is one, so that none turns an integer into a float on the way. For
        # integers the column's own: pandas 3.1.1 makes those of Arrow-backed ones through floats (`reproductions`).
        whole = column.nullable and pa.types.is_integer(wanted)
        backed = (lambda _, column=column: pd.api.types.pandas_dtype(column.pandas_dtype)) if whole else pd.ArrowDtype
        series: Any = values.to_pandas(types_mapper=backed if column.nullable else None)
        if column.pandas_dtype == "object":
            # numpy has no NULL beside integers: lists are Python's.
            objects = values.to_pylist() if pa.types.is_nested(wanted) else values.to_pandas().to_numpy()
            series = pd.Series(objects, dtype=object)
        columns[column.name] = series.astype(column.pandas_dtype)
    return pd.DataFrame(columns, copy=False)


def to_polars(arrow: pa.Table, table: Table, *, valid: bool = False) -> pl.DataFrame:
    """An Arrow table as a Polars frame with the dtypes of `table.polars_schema`; dictionaries become plain text.

    Extension types become what they are stored as, which for ADBC's numeric is its text. Raises ValueError for arrays
    that are not valid, unless `valid` says that whoever made them has seen to it.
    """
    arrow = arrow if valid else validated(with_bytes(arrow, table))
    for at, kind in enumerate(arrow.schema.types):
        if (stored := stored_type(kind)) != kind:
            arrow = arrow.set_column(at, arrow.column_names[at], arrow.column(at).cast(stored))
    frame = pl.from_arrow(arrow, rechunk=False)
    assert isinstance(frame, pl.DataFrame)
    return frame.cast(pl.Schema(table.polars_schema))


def stored_type(kind: pa.DataType, *, inside: bool = False) -> pa.DataType:
    """What an extension type is stored as, inside lists, structs and maps as well, whose decimals have 16 bytes then.

    Of smaller ones in there Polars makes a column that panics, or holds other numbers, once it is used.
    """
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if inside and (pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind)):
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(stored_type(field.type, inside=True)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(stored_type(kind.key_type, inside=True), stored_type(kind.item_type, inside=True))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(stored_type(kind.value_type, inside=True), kind.list_size)
    lists = {pa.types.is_list: pa.list_, pa.types.is_large_list: pa.large_list}
    make = next((make for fits, make in lists.items() if fits(kind)), None)
    return make(stored_type(kind.value_type, inside=True)) if make else kind


def with_bytes(arrow: pa.Table, table: Table) -> pa.Table:
    """The table with its columns of bytes as such, and lists of them.

    ClickHouse has one type for them and for text, and calls it text.
    """
    for column in table.columns:
        if column.innermost.type is not ColumnType.BYTES:
            continue
        at, values = arrow.column_names.index(column.name), arrow.column(column.name)
        if isinstance(values.type, pa.DictionaryType):
            values = values.combine_chunks().dictionary_decode()
        if (raw := as_bytes(values.type)) != values.type:
            arrow = arrow.set_column(at, column.name, values.cast(raw))
    return arrow


def as_bytes(kind: pa.DataType) -> pa.DataType:
    """The type with bytes in place of text, in lists as well."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(as_bytes(kind.value_type))
    return {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(kind, kind)


def validated(arrow: pa.Table) -> pa.Table:
    """The table, once its arrays are known to be what they say they are; text is UTF-8 above all.

    Neither pandas nor Polars looks, and what they do with anything else is undefined. Arrow's own full validation takes
    several times as long over text. Raises ValueError with the column, and for text with the row.
    """
    for at, name in enumerate(arrow.column_names):
        chunks, first_row = [], 0
        for chunk in arrow.column(at).chunks:
            try:
                chunks.append(valid_array(chunk, name, first_row))
            except pa.ArrowException as error:
                raise ValueError(f"column {name}, from row {first_row:,} on: {error}") from error
            first_row += len(chunk)
        if any(valid is not chunk for valid, chunk in zip(chunks, arrow.column(at).chunks, strict=True)):
            arrow = arrow.set_column(at, name, pa.chunked_array(chunks))
    return arrow


def valid_array(array: pa.Array, name: str, first_row: int) -> pa.Array:
    """The array; where something stands under its NULLs that is no text, one without that. Raises ValueError."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        valid_array(array.storage, name, first_row)
    elif isinstance(kind, pa.DictionaryType):
        check_nulls(array)
        within = pc.min_max(array.indices).as_py()
        if within["min"] is not None and not 0 <= within["min"] <= within["max"] < len(array.dictionary):
            raise pa.ArrowInvalid(f"its dictionary of {len(array.dictionary)} has no {within['max']}")
        try:
            valid_array(array.dictionary, name, first_row)
        except NotTextError:  # the row that uses it tells; when none does, no harm is done
            return valid_array(array.dictionary_decode(), name, first_row)
    elif kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()) and len(array):
        check_nulls(array)
        data, offsets = text_buffers(array)
        if not rows_in_place(offsets, len(data)):
            raise pa.ArrowInvalid("its offsets do not lie within its data")
        if kind in (pa.string(), pa.large_string()):
            return valid_text(array, name, first_row)
    else:  # takes Arrow no time where each value has its place, or where there is none
        array.validate(full=True)
        check_finite(array)
        if kind in (pa.string_view(), pa.binary_view()):
            return without_views_of_null(array)
    return array


def check_finite(array: pa.Array) -> None:
    """Raises ArrowInvalid for days and moments that are none, at any depth.

    For infinity of PostgreSQL drivers give the greatest numbers there are, or those that come of counting on beyond
    them. Its days begin with 4713 BC: https://www.postgresql.org/docs/18/datatype-datetime.html
    """
    kind = array.type
    if pa.types.is_date32(kind) or (pa.types.is_timestamp(kind) and kind.unit != "ns"):  # all nanoseconds are moments
        first = FIRST_DAYS * (1 if pa.types.is_date32(kind) else OF_A_DAY[kind.unit])
        number = pa.int32() if pa.types.is_date32(kind) else pa.int64()
        least, most = pc.min_max(array.cast(number)).as_py().values()
        greatest = 2 ** (number.bit_width - 1) - 1
        if least is not None and (least < first or most == greatest):
            raise pa.ArrowInvalid("it holds infinity or -infinity, which no dataframe has in place of a date")
    elif pa.types.is_struct(kind):
        for inner in array.flatten():
            check_finite(inner)
    elif pa.types.is_map(kind):
        check_finite(array.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        check_finite(array.flatten())


def without_views_of_null(values: pa.Array) -> pa.Array:
    """Views that are empty where NULL is; what a file has there is not validated, yet followed: the process crashes."""
    if not values.null_count:
        return values
    valid, views, *texts = values.buffers()
    cleared = np.frombuffer(views, "V16", values.offset + len(values)).copy()
    cleared[values.offset :][values.is_null().to_numpy(zero_copy_only=False)] = np.void(bytes(16))
    buffers = [valid, pa.py_buffer(cleared), *texts]
    return pa.Array.from_buffers(values.type, len(values), buffers, values.null_count, values.offset)


def check_nulls(array: pa.Array) -> None:
    """Raises ArrowInvalid for buffers that are too short, and for another number of NULLs than it says it has."""
    array.validate()
    if (validity := array.buffers()[0]) is not None:
        bits = pa.Array.from_buffers(pa.bool_(), len(array), [None, validity], offset=array.offset)
        if bits.true_count != len(array) - array.null_count:
            raise pa.ArrowInvalid(f"it has {len(array) - bits.true_count} NULLs and says {array.null_count}")


def valid_text(array: pa.Array, name: str, first_row: int) -> pa.Array:
    """As `valid_array`, of strings whose offsets lie within their data."""
    row = first_invalid_text(*text_buffers(array))
    if row >= 0 and array.null_count:
        array = pc.if_else(array.is_valid(), array.fill_null(""), pa.scalar(None, array.type))
        row = first_invalid_text(*text_buffers(array))
    if row >= 0:
        data, offsets = text_buffers(array)
        raise NotTextError(name, first_row + row, data[offsets[row] : offsets[row + 1]].tobytes())
    return array


def text_buffers(array: pa.Array) -> tuple[Any, Any]:
    """The bytes of an array of strings, and where each begins and the last one ends; its validity is not looked at."""
    _, offsets, data = array.buffers()
    if not len(array):
        return for_reading(np.empty(0, np.uint8)), for_reading(np.zeros(1, np.int32))
    wide = array.type in (pa.large_string(), pa.large_binary())
    places = np.frombuffer(offsets, np.int64 if wide else np.int32)[array.offset : array.offset + len(array) + 1]
    return for_reading(np.frombuffer(data or b"", np.uint8)), for_reading(places)


def uuid_text(series: pl.Series) -> pl.Series:
    """UUIDs of 16 bytes as their 8-4-4-4-12 text; raises ValueError for other bytes."""
    raw = series.cast(pl.Binary)
    if not (raw.bin.size() == UUID_BYTES).fill_null(True).all():
        raise ValueError(f"a UUID is not {UUID_BYTES} bytes long")
    digits = raw.bin.encode("hex")
    parts = [digits.str.slice(start, length) for start, length in ((0, 8), (8, 4), (12, 4), (16, 4), (20, 12))]
    return pl.select(pl.concat_str(parts, separator="-")).to_series()


def arrow_stream(content: pa.Table, batch_rows: int = BATCH_ROWS) -> Iterator[bytes]:
    """The Arrow IPC stream of a table, record batch by record batch, each made when it is asked for."""
    return encode_stream(content.schema, content.to_batches(max_chunksize=batch_rows))


def encode_stream(schema: pa.Schema, batches: Iterable[pa.RecordBatch], options: Any = None) -> Iterator[bytes]:
    """The Arrow IPC stream of record batches in this schema, each encoded when it is asked for; `IpcWriteOptions`."""
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, schema, options=options) as stream:
        for batch in batches:
            stream.write_batch(batch)
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()
