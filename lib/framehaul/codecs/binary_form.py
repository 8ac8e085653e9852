"""Arrow tables as PostgreSQL's binary formats take them: UUIDs as 16 bytes, JSON and addresses behind what they are.

The formats: https://github.com/postgres/postgres/blob/REL_18_STABLE/src/backend/utils/adt/jsonb.c (jsonb_recv) and
.../network.c (network_recv).
"""

from __future__ import annotations

from ipaddress import ip_address

import numpy as np
import polars as pl
import pyarrow as pa

from framehaul.codecs.compiled import parse_uuids
from framehaul.data.frames import UUID_BYTES, text_buffers
from framehaul.data.schema import ColumnType, Table
from framehaul.data.text import words_of_eight

IPV4_VERSION = 4


def in_binary_form(content: pa.Table, table: Table) -> pa.Table:
    """The content with what the binary formats take in place of text; raises ValueError for what is no such value."""
    content = with_uuid_bytes(content, table)
    for at, column in enumerate(table.columns):
        form = BINARY_FORMS.get(column.type)
        if form is not None:
            values = [None if value is None else form(value) for value in content.column(at).to_pylist()]
            content = content.set_column(at, column.name, pa.array(values, pa.large_binary()))
    return content


def with_uuid_bytes(content: pa.Table, table: Table) -> pa.Table:
    """The content with UUIDs as 16 bytes where it holds their text; raises ValueError for text that is none."""
    for name in table.columns_of(ColumnType.UUID):
        at = content.column_names.index(name)
        content = content.set_column(at, name, uuid_bytes(content.column(at), name))
    return content


def uuid_bytes(column: pa.ChunkedArray, name: str) -> pa.Array:
    """The bytes of UUIDs; 8-4-4-4-12 digits are parsed by a compiled loop, others with dashes or without by Polars.

    Raises ValueError, naming column and row, for text that is none.
    """
    text = pa.concat_arrays(column.cast(pa.large_string()).chunks or [pa.array([], pa.large_string())])
    data, offsets = text_buffers(text)
    halves, nulls = np.zeros((2, len(text)), np.uint64), text.is_null().to_numpy(zero_copy_only=False)
    if parse_uuids(data, words_of_eight(data), offsets, nulls.view(np.uint8), halves) >= 0:
        texts = pl.Series(values=column)
        raw = texts.str.replace_all("-", "", literal=True).str.decode("hex", strict=False)
        wrong = texts.is_not_null() & (raw.bin.size() != UUID_BYTES).fill_null(value=True)
        if (row := wrong.arg_max()) is not None and wrong[row]:
            raise ValueError(f"column {name}, row {row:,}: {texts[row]!r} is no UUID")
        return raw.to_arrow().cast(pa.binary(UUID_BYTES))
    validity = pa.py_buffer(np.packbits(~nulls, bitorder="little")) if nulls.any() else None
    raw_bytes = pa.py_buffer(np.ascontiguousarray(halves.T).astype(">u8"))
    return pa.Array.from_buffers(pa.binary(UUID_BYTES), len(text), [validity, raw_bytes])


def _jsonb(text: str) -> bytes:
    return b"\1" + text.encode()


def _inet(text: str) -> bytes:
    address = ip_address(text)
    family, bits = (2, 32) if address.version == IPV4_VERSION else (3, 128)
    return bytes([family, bits, 0, bits // 8]) + address.packed


BINARY_FORMS = {ColumnType.JSON: _jsonb, ColumnType.IPV4: _inet, ColumnType.IPV6: _inet}
