"""Verify that the target holds exactly the rows that were sent, to the bit, in any order."""

import re

import pandas as pd
import polars as pl
import pyarrow as pa

from framehaul.bench.rounds import PanicError, panics_raised
from framehaul.bench.store import EXACT
from framehaul.data.equality import content_of, difference_in_any_order, differs_in, other_shape
from framehaul.data.schema import Table
from framehaul.errors import ReferenceTableError
from framehaul.servers.tables import Tables

ZONE = r":\d\d(\.\d+)?(Z|[+-]\d\d(:?\d\d)?)$"
"""A zone at the end of a timestamp's text."""
NOT_UTF8 = re.compile(r"Invalid UTF8 sequence at string index (\d+)")


class Expected:
    """The rows that were sent, to compare received rows with."""

    def __init__(self, table: Table, content: pa.Table) -> None:
        self._table, self._content = table, content
        self._sent = content_of(content, table.columns, nan_is_null=False)

    def difference(self, received: pl.DataFrame | pd.DataFrame) -> str | None:
        """Return how a frame that was read differs from the rows that were sent; None when all values are the same.

        The frame has to be valid. Dtypes may differ (see `dtype_drift`).
        """
        shape = list(received.columns), len(received), self._table.column_names, len(self._sent)
        try:
            with panics_raised():
                if wrong := other_shape(*shape) or invalid(received) or self._zones_differ(received):
                    return wrong
                content = content_of(received, self._table.columns, nan_is_null=True)
                return difference_in_any_order(self._sent, content, self._table.key)
        except PanicError as error:
            # Values that no frame can hold, such as decimals beyond their digits, make Polars panic on access.
            return f"the frame is not valid: Polars panics where its values are looked at ({error.__cause__})"

    def _zones_differ(self, received: pl.DataFrame | pd.DataFrame) -> str | None:
        """Return which timestamps came as text with a zone although none was sent, or the reverse."""
        for column in self._table.columns:
            if isinstance(column.types.polars, pl.Datetime):
                values, wanted = received[column.name], column.types.polars.time_zone is not None
                if isinstance(values, pd.Series):
                    values = pl.Series(values.dropna().tolist() if pd.api.types.is_string_dtype(values) else [])
                if values.dtype == pl.String and (values.drop_nulls().str.contains(ZONE) != wanted).any():
                    return f"column {column.name} holds text that {'does not say' if wanted else 'has'} a zone"
        return None

    def keep_reference(self, tables: Tables, reference: Table) -> None:
        """Load the rows into a table to compare written tables with; raise ReferenceTableError when it is wrong."""
        tables.create(reference)
        tables.load(reference, self._content.cast(self._table.arrow_schema))
        if difference := self.difference(tables.content(reference)):
            raise ReferenceTableError(f"the reference table itself is wrong: {difference}")
        self._reference, self._rows_fingerprint = reference, tables.rows_fingerprint(reference)

    def difference_on_server(self, tables: Tables) -> str | None:
        """Return how the written table differs from `keep_reference`; None when their rows are exactly the same."""
        names, fingerprint = self._table.column_names, tables.rows_fingerprint(self._table)
        if fingerprint == self._rows_fingerprint:
            return None
        if wrong := other_shape(names, fingerprint[0], names, self._rows_fingerprint[0]):
            return wrong
        written, sent = tables.column_fingerprints(self._table), tables.column_fingerprints(self._reference)
        return differs_in(name for name in names if written[name] != sent[name])


def invalid(frame: pl.DataFrame | pd.DataFrame) -> str | None:
    """Return where a frame is invalid for its dtypes, such as text that is no UTF-8 or an index past its dictionary.

    Decoders that trust a server can make such frames, and using them is undefined behaviour: this check comes before
    any kernel of Polars. https://arrow.apache.org/docs/cpp/api/array.html#_CPPv4NK5arrow5Array12ValidateFullEv
    """
    for at, name in enumerate(frame.columns):
        values, start = frame.to_series(at) if isinstance(frame, pl.DataFrame) else frame.iloc[:, at], 0
        try:
            for chunk in _arrow_chunks(values):
                chunk.validate(full=True)
                start += len(chunk)
        except pa.ArrowException as error:
            if match := NOT_UTF8.search(str(error)):
                return f"column {name}, row {start + int(match[1])}: text that is no UTF-8"
            return f"column {name} is not valid: {error}"
    return None


def _arrow_chunks(values: pl.Series | pd.Series) -> list[pa.Array]:
    """Return the Arrow arrays behind a column, without a copy; none for numbers and Python objects."""
    if isinstance(values, pl.Series):
        plain = values.dtype.is_numeric() or values.dtype == pl.Object
        return [] if plain else [values.to_arrow(compat_level=pl.CompatLevel.newest())]
    if not isinstance(values.array, pd.arrays.ArrowExtensionArray | pd.Categorical):
        return []
    array = pa.array(values.array)
    return array.chunks if isinstance(array, pa.ChunkedArray) else [array]


def dtype_drift(frame: pl.DataFrame | pd.DataFrame, table: Table) -> str:
    """Return `exact`, or the columns whose dtype is not the table's, as `entity_key:str;event_date:str`."""
    wanted = table.polars_schema if isinstance(frame, pl.DataFrame) else table.pandas_dtypes
    drift = [
        f"{name}:{str(dtype).replace(';', ',')}"
        for name, dtype in zip(frame.columns, frame.dtypes, strict=True)
        if str(dtype) != str(wanted.get(str(name)))
    ]
    return ";".join(drift) or EXACT
