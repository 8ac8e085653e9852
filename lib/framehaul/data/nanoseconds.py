"""Nanoseconds in PostgreSQL, which has microseconds: a timestamp and, in a column behind it, what is left over.

Both round down, so what is left is from 0 to 999 before 1970 as well.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pandas as pd
import polars as pl
import pyarrow as pa

from framehaul.data.schema import Column, ColumnType, Table, timestamp_types

LEFT_OVER = "_nanoseconds"
"""Behind the name of a column of timestamps."""


def split_table(table: Table, names: Collection[str]) -> Table:
    """The table with two columns for each of these; in keys both of them, as moments may differ in the second only."""
    columns: list[Column] = []
    for column in table.columns:
        if column.name in names:
            exactly = timestamp_types("us", column.types.arrow.tz)
            kind = ColumnType.TIMESTAMP_UTC if column.types.arrow.tz else ColumnType.TIMESTAMP
            left_over = Column(column.name + LEFT_OVER, ColumnType.INT16, column.nullable, left_over_of=column.name)
            columns += [replace(column, type=kind, exactly=exactly), left_over]
        else:
            columns.append(column)

    def both(keys: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(part for name in keys for part in (name, *([name + LEFT_OVER] if name in names else [])))

    return replace(
        table, columns=tuple(columns), key=both(table.key), sort=None if table.sort is None else both(table.sort)
    )


def whole_table(table: Table) -> Table:
    """What `split_table` was given."""
    left_over = {column.name: column.left_over_of for column in table.columns if column.left_over_of}

    def whole(column: Column) -> Column:
        if column.name not in left_over.values():
            return column
        exactly = timestamp_types("ns", column.types.arrow.tz)
        kind = ColumnType.TIMESTAMP_UTC if column.types.arrow.tz else ColumnType.TIMESTAMP_NS
        return replace(column, type=kind, exactly=None if exactly == kind.value else exactly)

    def without(keys: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in keys if name not in left_over)

    return replace(
        table, columns=tuple(whole(column) for column in table.columns if column.name not in left_over),
        key=without(table.key), sort=None if table.sort is None else without(table.sort),
    )  # fmt: skip


def split_arrow(content: pa.Table, table: Table) -> pa.Table:
    """Content of the whole table as that of a split one."""
    columns = []
    for column in table.columns:
        moments = content.column(column.left_over_of or column.name)
        if column.left_over_of:
            moments = (pl.Series(values=moments).to_physical() % 1000).cast(pl.Int16).to_arrow()
        elif column.types.arrow != moments.type:
            moments = pl.Series(values=moments).dt.cast_time_unit("us").to_arrow()
        columns.append(moments)
    return pa.Table.from_arrays(columns, schema=table.arrow_schema)


def split_polars(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """A frame of the whole table as one of the split table."""
    pairs = {column.left_over_of: column.name for column in table.columns if column.left_over_of}
    return frame.with_columns(
        *[pl.col(name).dt.cast_time_unit("us") for name in pairs],
        *[(pl.col(name).to_physical() % 1000).cast(pl.Int16).alias(left_over) for name, left_over in pairs.items()],
    ).select(table.column_names)


def split_pandas(frame: pd.DataFrame, table: Table) -> pd.DataFrame:
    """A frame of the whole table as one of the split table; raises ValueError for NULL where the table has none."""
    columns = {}
    for column in table.columns:
        values = frame[column.left_over_of or column.name]
        if column.left_over_of:
            # Of a zone pandas would look at the clock, which in the last hours that there are is out of bounds.
            moments = values.dt.tz_convert(None) if isinstance(values.dtype, pd.DatetimeTZDtype) else values
            values = moments.dt.nanosecond.astype(column.pandas_dtype)
        elif pd.api.types.is_datetime64_any_dtype(values.dtype):
            values = values.dt.as_unit(column.types.arrow.unit)
        columns[column.name] = values
    return pd.DataFrame(columns)


def whole_polars(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """A frame of the split table as one of the whole table; raises InvalidOperationError for years without nanoseconds.

    They reach from 1677 to 2262.
    """
    pairs = [(column.left_over_of, column.name) for column in table.columns if column.left_over_of]
    return frame.with_columns(
        pl.col(name).dt.cast_time_unit("ns") + pl.duration(nanoseconds=left_over, time_unit="ns")
        for name, left_over in pairs
    ).drop(left_over for _, left_over in pairs)


def whole_pandas(frame: pd.DataFrame, table: Table) -> pd.DataFrame:
    """A frame of the split table as one of the whole table; raises OutOfBoundsDatetime for years without nanoseconds.

    They reach from 1677 to 2262.
    """
    pairs = {column.left_over_of: column.name for column in table.columns if column.left_over_of}
    whole = {
        name: frame[name].dt.as_unit("ns") + pd.to_timedelta(frame[left_over], unit="ns")
        for name, left_over in pairs.items()
    }
    return frame.drop(columns=list(pairs.values())).assign(**whole)
