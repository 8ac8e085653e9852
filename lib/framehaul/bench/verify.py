"""Does the target hold exactly what was sent? Bit for bit, in whatever order."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import polars as pl
import pyarrow as pa

from framehaul.bench.passes import PanicError, panics_raised
from framehaul.bench.store import EXACT
from framehaul.data.equality import content_of, difference_in_any_order, differs_in, other_shape
from framehaul.data.schema import Table
from framehaul.errors import ReferenceTableError
from framehaul.servers.tables import Fingerprint, Tables

ZONE = r":\d\d(\.\d+)?(Z|[+-]\d\d(:?\d\d)?)$"
"""At the end of a timestamp's text."""
NOT_UTF8 = re.compile(r"Invalid UTF8 sequence at string index (\d+)")


class Expected:
    """What was sent, ready to be compared with what is found."""

    def __init__(self, table: Table, content: pa.Table) -> None:
        self._table, self._content = table, content
        self._sent = content_of(content, table.columns, nan_is_null=False)
        self._rows_fingerprint: Fingerprint | None = None

    def difference(self, received: pl.DataFrame | pd.DataFrame) -> str | None:
        """What differs in a frame that was read, or None when its content is exactly what was sent.

        Dtypes may differ (see `dtype_drift`) as long as every value is still the same, and the frame is valid.
        """
        try:
            with panics_raised():
                return self._difference(received)
        except PanicError as error:
            # What no frame can hold, such as decimals beyond their digits, makes Polars panic when it is looked at.
            return f"the frame is not valid: Polars panics where its values are looked at ({error.__cause__})"

    def _difference(self, received: pl.DataFrame | pd.DataFrame) -> str | None:
        table = self._table
        wrong = other_shape(list(received.columns), len(received), table.column_names, len(self._sent))
        if wrong := wrong or invalid(received) or self._zones_differ(received):
            return wrong
        return difference_in_any_order(self._sent, content_of(received, table.columns, nan_is_null=True), table.key)

    def _zones_differ(self, received: pl.DataFrame | pd.DataFrame) -> str | None:
        """Which timestamps came as text that says a zone where none was sent, or none where one was."""
        for column in self._table.columns:
            if isinstance(column.types.polars, pl.Datetime):
                zones, wanted = _zones_in_text(received[column.name]), column.types.polars.time_zone is not None
                if zones - {wanted}:
                    return f"column {column.name} holds text that {'does not say' if wanted else 'has'} a zone"
        return None

    def keep_reference(self, tables: Tables, reference: Table) -> None:
        """Load what was sent into `reference` and prove, by reading all of it back, that it is there.

        From then on a written table is compared with it on the server. Raises ReferenceTableError when it is not there.
        """
        tables.create(reference)
        tables.load(reference, self._content.cast(self._table.arrow_schema))
        difference = self.difference(tables.content(reference))
        if difference:
            raise ReferenceTableError(f"the reference table itself is wrong: {difference}")
        self._rows_fingerprint = tables.rows_fingerprint(reference)
        self._reference = reference

    def difference_on_server(self, tables: Tables) -> str | None:
        """What differs in the written table from the reference, or None when their rows are exactly the same."""
        assert self._rows_fingerprint is not None, "keep_reference comes first"
        fingerprint = tables.rows_fingerprint(self._table)
        if fingerprint == self._rows_fingerprint:
            return None
        names = self._table.column_names
        if wrong := other_shape(names, fingerprint[0], names, self._rows_fingerprint[0]):
            return wrong
        written, sent = tables.column_fingerprints(self._table), tables.column_fingerprints(self._reference)
        return differs_in(name for name in names if written[name] != sent[name])


def _zones_in_text(values: pl.Series | pd.Series) -> set[bool]:
    """Whether values that are text say a zone, or do not, or both; nothing where they are no text."""
    if isinstance(values, pd.Series):
        values = pl.Series(values.dropna().tolist() if pd.api.types.is_string_dtype(values) else [])
    return {*values.drop_nulls().str.contains(ZONE)} if values.dtype == pl.String else set()


def invalid(frame: pl.DataFrame | pd.DataFrame) -> str | None:
    """Where a frame breaks the promise of its own dtypes: text that is no UTF-8, an index past its dictionary.

    Decoders that trust a server make such frames. They look whole until something uses them, and then fail or do
    anything at all: so this comes before any kernel of Polars. It is Arrow's full validation, of which most columns
    need little: https://arrow.apache.org/docs/cpp/api/array.html#_CPPv4NK5arrow5Array12ValidateFullEv
    """
    places = range(len(frame.columns))
    columns = [frame.to_series(at) if isinstance(frame, pl.DataFrame) else frame.iloc[:, at] for at in places]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Arrow's validation lets other threads go on
        return next(filter(None, pool.map(_invalid, frame.columns, columns)), None)


def _invalid(name: object, values: pl.Series | pd.Series) -> str | None:
    try:
        start = 0
        for chunk in _arrow_chunks(values):
            chunk.validate(full=True)
            start += len(chunk)
    except pa.ArrowException as error:
        if match := NOT_UTF8.search(str(error)):
            return f"column {name}, row {start + int(match[1])}: text that is no UTF-8"
        return f"column {name} is not valid: {error}"
    return None


def _arrow_chunks(values: pl.Series | pd.Series) -> list[pa.Array]:
    """The Arrow arrays behind a column, without a copy; none where there are only numbers or Python objects."""
    if isinstance(values, pl.Series):
        plain = values.dtype.is_numeric() or values.dtype == pl.Object
        return [] if plain else [values.to_arrow(compat_level=pl.CompatLevel.newest())]
    if not isinstance(values.array, pd.arrays.ArrowExtensionArray | pd.Categorical):
        return []
    array = pa.array(values.array)
    return array.chunks if isinstance(array, pa.ChunkedArray) else [array]


def dtype_drift(frame: pl.DataFrame | pd.DataFrame, table: Table) -> str:
    """`exact`, or the columns whose dtype is not the table's, as `entity_key:str;event_date:str`."""
    wanted = table.polars_schema if isinstance(frame, pl.DataFrame) else table.pandas_dtypes
    drift = [
        f"{name}:{str(dtype).replace(';', ',')}"
        for name, dtype in zip(frame.columns, frame.dtypes, strict=True)
        if str(dtype) != str(wanted.get(str(name)))
    ]
    return ";".join(drift) or EXACT
