"""Conversion of Arrow columns to PostgreSQL's binary formats: UUIDs as 16 bytes, JSON and addresses with a header.

The formats: https://github.com/postgres/postgres/blob/REL_18_STABLE/src/backend/utils/adt/jsonb.c (jsonb_recv) and
.../network.c (network_recv), .../numeric.c (numeric_recv).
"""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, ip_address

import numpy as np
import pyarrow as pa

from framehaul.codecs.compiled import arrow_array
from framehaul.codecs.native_blocks import nulls_of, one_piece, uuid_halves
from framehaul.data.documents import with_documents
from framehaul.data.frames import UUID_BYTES
from framehaul.data.schema import LONG_NUMBERS, NESTED, ColumnType, Table

NEGATIVE = 0x4000
"""The sign of a numeric."""


def in_binary_form(content: pa.Table, table: Table) -> pa.Table:
    """Return the content with text in PostgreSQL's binary formats; raises ValueError for text of another type."""
    content = with_documents(with_uuid_bytes(content, table), table)
    for at, column in enumerate(table.columns):
        if form := BINARY_FORMS.get(column.type):
            values = [None if value is None else form(value) for value in content.column(at).to_pylist()]
            content = content.set_column(at, column.name, pa.array(values, pa.large_binary()))
        elif column.type is ColumnType.FIXED_LIST:
            content = content.set_column(at, column.name, content.column(at).cast(pa.list_(column.element.types.arrow)))
    return content


def with_uuid_bytes(content: pa.Table, table: Table) -> pa.Table:
    """Return the content with UUIDs as 16 bytes; raises ValueError for text that is not a UUID."""
    for name in table.columns_of(ColumnType.UUID):
        at = content.column_names.index(name)
        content = content.set_column(at, name, uuid_bytes(one_piece(content, name), name))
    return content


def uuid_bytes(text: pa.Array, name: str) -> pa.Array:
    """Return the bytes of UUIDs in text; raises ValueError as `uuid_halves` does."""
    validity = np.packbits(1 - nulls_of(text), bitorder="little") if text.null_count else None
    raw = np.ascontiguousarray(uuid_halves(text, name)).astype(">u8")
    return arrow_array(pa.binary(UUID_BYTES), len(text), validity, [raw])


def _jsonb(text: str) -> bytes:
    return b"\1" + text.encode()


def _inet(text: str) -> bytes:
    address = ip_address(text)
    family = 2 if isinstance(address, IPv4Address) else 3
    return bytes([family, address.max_prefixlen, 0, len(address.packed)]) + address.packed


def _numeric(text: str) -> bytes:
    """Return a numeric: the number of groups, weight, sign and scale, then each group of four digits in two bytes."""
    whole, _, fraction = text.removeprefix("-").partition(".")
    digits = whole.zfill(-(-len(whole) // 4) * 4) + fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    groups = [int(digits[at : at + 4]) for at in range(0, len(digits), 4)]
    sign = NEGATIVE if text.startswith("-") and any(groups) else 0
    return struct.pack(f">HhHH{len(groups)}H", len(groups), -(-len(whole) // 4) - 1, sign, len(fraction), *groups)


BINARY_FORMS = {
    **dict.fromkeys((ColumnType.JSON, *NESTED), _jsonb),
    **dict.fromkeys((ColumnType.IPV4, ColumnType.IPV6), _inet),
    **dict.fromkeys(LONG_NUMBERS, _numeric),
}
