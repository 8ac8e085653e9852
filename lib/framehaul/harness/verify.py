"""Does the target hold exactly what was sent? Bit for bit, in whatever order."""

from __future__ import annotations

import re
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

from framehaul.data.frames import uuid_text
from framehaul.data.schema import FLOATS, Column, ColumnType, Table, TimeUnit
from framehaul.errors import ReferenceTableError
from framehaul.results.store import EXACT
from framehaul.servers.tables import Fingerprint, Tables

BOOLEANS = {"t": True, "true": True, "f": False, "false": False}
NOT_UTF8 = re.compile(r"Invalid UTF8 sequence at string index (\d+)")
TIMESTAMP_TEXT = (
    r"^(?<day>\d{4}-\d\d-\d\d)[ T](?<clock>\d\d:\d\d:\d\d)(?:\.(?<fraction>\d{1,9}))?(?<offset>Z|[+-]\d\d(?::?\d\d)?)?$"
)


class Expected:
    """What was sent, ready to be compared with what is found."""

    def __init__(self, table: Table, content: pa.Table) -> None:
        self._table = table
        frame = pl.from_arrow(content, schema=table.polars_schema)
        assert isinstance(frame, pl.DataFrame)
        self._frame = _in_order(frame, table)
        self._rows_fingerprint: Fingerprint | None = None

    def difference(self, received: pl.DataFrame | pd.DataFrame) -> str | None:
        """What differs in a frame that was read, or None when its content is exactly what was sent.

        Dtypes may differ (see `dtype_drift`) as long as every value is still the same, and the frame is valid.
        """
        table = self._table
        if list(received.columns) != table.column_names:
            return f"columns are {list(received.columns)}"
        if len(received) != len(self._frame):
            return f"{len(received)} rows instead of {len(self._frame)}"
        if not_valid := invalid(received):
            return not_valid
        try:
            frame = pl.DataFrame([_canonical(received[column.name], column) for column in table.columns])
        except (pl.exceptions.PolarsError, ValueError, TypeError, OverflowError, pa.ArrowException) as error:
            return f"a value is not of its column's type: {error}"
        frame = _in_order(frame, table)
        differing = [name for name in table.column_names if not _identical(frame[name], self._frame[name])]
        return f"content differs in {', '.join(differing)}" if differing else None

    def keep_reference(self, tables: Tables, reference: Table) -> None:
        """Load what was sent into `reference` and prove, by reading all of it back, that it is there.

        From then on a written table is compared with it on the server. Raises ReferenceTableError when it is not there.
        """
        tables.create(reference)
        tables.load(reference, self._frame.to_arrow().cast(self._table.arrow_schema))
        difference = self.difference(tables.content(reference))
        if difference:
            raise ReferenceTableError(f"the reference table itself is wrong: {difference}")
        self._rows_fingerprint = tables.rows_fingerprint(reference)
        self._reference = reference

    def difference_on_server(self, tables: Tables) -> str | None:
        """What differs in the written table from the reference, or None when their rows are exactly the same."""
        assert self._rows_fingerprint is not None, "keep_reference comes first"
        found = tables.rows_fingerprint(self._table)
        if found == self._rows_fingerprint:
            return None
        if found[0] != self._rows_fingerprint[0]:
            return f"{found[0]} rows instead of {self._rows_fingerprint[0]}"
        written, sent = tables.column_fingerprints(self._table), tables.column_fingerprints(self._reference)
        differing = [name for name in self._table.column_names if written[name] != sent[name]]
        return f"content differs in {', '.join(differing) or 'how values are combined into rows'}"


def invalid(frame: pl.DataFrame | pd.DataFrame) -> str | None:
    """Where a frame breaks the promise of its own dtypes: text that is no UTF-8, an index past its dictionary.

    Decoders that trust a server make such frames. They look whole until something uses them, and then fail or do
    anything at all: so this comes before any kernel of Polars. It is Arrow's full validation, of which most columns
    need little: https://arrow.apache.org/docs/cpp/api/array.html#_CPPv4NK5arrow5Array12ValidateFullEv
    """
    for at, name in enumerate(frame.columns):
        try:
            start = 0
            for chunk in _arrow_chunks(frame.to_series(at) if isinstance(frame, pl.DataFrame) else frame.iloc[:, at]):
                chunk.validate(full=True)
                start += len(chunk)
        except pa.ArrowException as error:
            if found := NOT_UTF8.search(str(error)):
                return f"column {name}, row {start + int(found[1])}: text that is no UTF-8"
            return f"column {name} is not valid: {error}"
    return None


def _arrow_chunks(values: pl.Series | pd.Series) -> list[pa.Array]:
    """The Arrow arrays behind a column, without a copy; none where there are only numbers or Python objects."""
    if isinstance(values, pl.Series):
        plain = values.dtype.is_numeric() or values.dtype == pl.Object
        return [] if plain else [values.to_arrow(compat_level=pl.CompatLevel.newest())]
    if not isinstance(values.array, pd.arrays.ArrowExtensionArray | pd.Categorical):
        return []
    found = pa.array(values.array)
    return found.chunks if isinstance(found, pa.ChunkedArray) else [found]


def content_fingerprint(frame: pl.DataFrame) -> int:
    """A sum over rows: the same for the same rows in any order, and of parts added up modulo 2**64."""
    return int(frame.hash_rows(seed=1).to_numpy().sum(dtype=np.uint64))


def dtype_drift(frame: pl.DataFrame | pd.DataFrame, table: Table) -> str:
    """`exact`, or the columns whose dtype is not the table's, as `entity_key:str;event_date:str`."""
    wanted = table.polars_schema if isinstance(frame, pl.DataFrame) else table.pandas_dtypes
    drift = [
        f"{name}:{str(dtype).replace(';', ',')}"
        for name, dtype in zip(frame.columns, frame.dtypes, strict=True)
        if str(dtype) != str(wanted.get(str(name)))
    ]
    return ";".join(drift) or EXACT


def _canonical(values: pl.Series | pd.Series, column: Column) -> pl.Series:
    """The values in the table's own Polars dtype; raises when one cannot be converted without loss."""
    series, wanted = _as_series(values, column), column.types.polars
    if isinstance(wanted, pl.Datetime):
        series = _timestamps(series, wanted)
    match column.type:
        case ColumnType.UUID if series.dtype == pl.Binary or isinstance(series.dtype, pl.Array):
            series = uuid_text(series)
        case ColumnType.DATE:
            series = _dates(series)
        case ColumnType.INT16 | ColumnType.INT32 | ColumnType.INT64 if series.dtype.is_float():
            if not (series == series.round()).fill_null(True).all():
                raise ValueError(f"{column.name} holds fractions")
        case ColumnType.FLOAT32 | ColumnType.FLOAT64 if series.dtype not in (column.types.polars, pl.Float64):
            raise TypeError(f"{column.name} is {series.dtype}")
        case ColumnType.DECIMAL if series.dtype.is_float():
            raise TypeError(f"{column.name} is {series.dtype}, which has no tenths")
        case ColumnType.BOOL if series.dtype == pl.String:
            series = series.str.to_lowercase().replace_strict(BOOLEANS, return_dtype=pl.Boolean)
    return series.cast(wanted, strict=True).alias(column.name)


def _as_series(values: pl.Series | pd.Series, column: Column) -> pl.Series:
    series = values if isinstance(values, pl.Series) else _from_pandas(values, column)
    if series.dtype == pl.Object:
        series = pl.Series(
            [_plain(value) for value in series], dtype=pl.String if column.type is ColumnType.UUID else None
        )
    return series.cast(column.types.polars) if series.dtype == pl.Null else series


def _in_order(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """The rows in an order that does not depend on that in which they came."""
    if table.key:
        return frame.sort(table.key)
    # Without a key by a hash of the whole row; floats by their bits, or -0.0 and 0.0 would be one.
    bits = frame.with_columns(pl.col(pl.Float32).reinterpret(signed=True), pl.col(pl.Float64).reinterpret(signed=True))
    return frame[bits.hash_rows(0).arg_sort()]


def _timestamps(series: pl.Series, wanted: pl.Datetime) -> pl.Series:
    """Timestamps from their text, or in another unit where nothing is cut off; raises ValueError where it would be."""
    if series.dtype == pl.String:
        parts = series.str.extract_groups(TIMESTAMP_TEXT).struct.unnest()
        if not parts["clock"].is_null().equals(series.is_null()):
            raise ValueError(f"{series.name} holds text that is no timestamp")
        zoned = parts["offset"].is_not_null()
        if bool(zoned.any()) != (wanted.time_zone is not None) and not series.is_null().all():
            raise ValueError(f"{series.name} holds text that {'has' if zoned.any() else 'does not say'} a zone")
        clock = parts["day"] + "T" + parts["clock"] + "." + parts["fraction"].fill_null("").str.pad_end(9, "0")
        offset = parts["offset"].replace("Z", "+00").fill_null("+00").str.replace(":", "").str.pad_end(5, "0")
        unit: TimeUnit = "ns" if wanted.time_unit == "ns" else "us"  # which reach further
        found = (clock + offset).str.to_datetime("%Y-%m-%dT%H:%M:%S%.9f%z", time_unit=unit).alias(series.name)
        series = found if wanted.time_zone else found.dt.replace_time_zone(None)
    if not isinstance(series.dtype, pl.Datetime):
        raise TypeError(f"{series.name} is {series.dtype}")
    if not series.dt.cast_time_unit(wanted.time_unit).dt.cast_time_unit(series.dtype.time_unit).equals(series):
        raise ValueError(f"{series.name} holds parts of a second that {wanted} does not have")
    return series


def _dates(series: pl.Series) -> pl.Series:
    """Dates from their ISO text, from days since 1970, or from timestamps that are all at midnight."""
    if series.dtype == pl.String:
        return series.str.to_date("%Y-%m-%d", strict=True)
    if series.dtype.is_integer():
        return series.cast(pl.Int32)
    if isinstance(series.dtype, pl.Datetime) and not (series == series.dt.truncate("1d")).all():
        raise ValueError("a date holds a time of day")
    return series


def _from_pandas(values: pd.Series, column: Column) -> pl.Series:
    plain = [_plain(value) for value in values] if values.dtype == object else values
    # In pandas a missing value is NaN, None or NA; all mean NULL, in a column that may hold it.
    return pl.Series(values=pa.array(plain, from_pandas=column.nullable or column.type not in FLOATS))


def _plain(value: object) -> object:
    if isinstance(value, UUID):
        return str(value)
    return None if value is None or value is pd.NaT or (isinstance(value, float) and np.isnan(value)) else value


def _identical(left: pl.Series, right: pl.Series) -> bool:
    """Equality to the bit: -0.0 is not 0.0, NaN is NaN, NULL is NULL only."""
    if not left.is_null().equals(right.is_null()):
        return False
    if left.dtype in (pl.Float32, pl.Float64):
        bits = np.int32 if left.dtype == pl.Float32 else np.int64
        ours, theirs = (series.fill_null(0.0).to_numpy().view(bits) for series in (left, right))
        return bool(np.array_equal(ours, theirs))
    return left.equals(right, null_equal=True)
