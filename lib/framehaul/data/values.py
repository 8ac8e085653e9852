"""A column's values as plain Python values that compare to the bit, whatever dtype a path gave it."""

from __future__ import annotations

import datetime as dt
import re
import struct
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

from framehaul.data.schema import FLOATS, ColumnType

if TYPE_CHECKING:
    from collections.abc import Callable

EPOCH = dt.date(1970, 1, 1)
UNIT_NS = {"ms": 1_000_000, "us": 1_000, "ns": 1}
HEX = re.compile(r"\\x(?:[0-9a-f]{2})*")
TIMESTAMP = re.compile(r"(\d{4,})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:Z|([+-]\d\d):?(\d\d)?)?")


def plain_values(values: pl.Series | pd.Series | pa.Array, column_type: ColumnType) -> list[Any]:
    """The values in one form for each type, None for NULL; a value that is not of the type stays what it is.

    Timestamps are nanoseconds since 1970 in UTC, dates are days since 1970, UUIDs text, floats `Bits`. Where a path
    gives a value in another dtype that says the same (a UUID as 16 bytes, a date as ISO text), it is that value.
    """
    convert = _CONVERTERS.get(column_type, _unchanged)
    found: list[Any] = []
    listed = _listed(values, column_type)
    if column_type is ColumnType.BYTES and all(value is None or _is_hex(value) for value in listed):
        convert = _of_hex  # PostgreSQL's text form of all bytes; one such value alone may be what was sent
    for value in listed:
        try:
            found.append(None if value is None else convert(value))
        except (ValueError, TypeError, ArithmeticError):
            found.append(value)
    return found


class Bits:
    """A float that equals another when all their bits are the same, NaN whatever its payload."""

    def __init__(self, value: float) -> None:
        self._value = value
        self._bits = "nan" if value != value else struct.pack(">d", value)  # noqa: PLR0124  only NaN is not itself

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bits) and self._bits == other._bits

    def __hash__(self) -> int:
        return hash(self._bits)

    def __repr__(self) -> str:
        return repr(self._value)


def first_difference(sent: list[Any], found: list[Any]) -> str | None:
    """What was sent and what was found where they first differ, in one line; None where they do not."""
    if len(sent) != len(found):
        return f"{len(found)} rows instead of {len(sent)}"
    for ours, theirs in zip(sent, found, strict=True):
        if not _same(ours, theirs):
            return f"{_shown(ours)} became {_shown(theirs)}"
    return None


def _same(left: object, right: object) -> bool:
    return type(left) is type(right) and left == right


def _shown(value: object) -> str:
    text = "NULL" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:30]}... ({len(text)} characters)"  # noqa: PLR2004


def _listed(values: pl.Series | pd.Series | pa.Array, column_type: ColumnType) -> list[Any]:
    """Python objects, None where a value is missing, timestamps as nanoseconds."""
    if isinstance(values, pd.Series):
        if values.dtype == object:
            return [_missing_to_none(value, column_type) for value in values]
        # NaN is a value of a float column and a missing value elsewhere: pandas has no other there.
        values = pa.array(values, from_pandas=column_type not in FLOATS)
    if isinstance(values, pa.ChunkedArray | pa.Array):
        values = pl.Series(values=values)
    assert isinstance(values, pl.Series)
    if isinstance(values.dtype, pl.Datetime):
        unit = UNIT_NS[values.dtype.time_unit]
        return [None if value is None else Moment(value * unit) for value in values.to_physical().to_list()]
    if values.dtype == pl.Date:  # as days: not all of them are a date in Python
        return [None if value is None else Day(value) for value in values.to_physical().to_list()]
    if values.dtype == pl.String:  # by way of bytes: a path may have put bytes there that are no text
        return [None if value is None else _text_of(value) for value in values.cast(pl.Binary).to_list()]
    return [_missing_to_none(value, column_type) for value in values.to_list()]


def _text_of(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return InvalidText(value)


def _missing_to_none(value: object, column_type: ColumnType) -> object:
    if value is pd.NaT or value is pd.NA:
        return None
    return None if isinstance(value, float) and value != value and column_type not in FLOATS else value  # noqa: PLR0124


class Moment(int):
    """Nanoseconds since 1970, in UTC."""

    def __repr__(self) -> str:
        seconds, fraction = divmod(int(self), 10**9)
        return f"{np.datetime64(seconds, 's')}.{fraction:09d}"  # any year, which datetime does not have


class InvalidText(bytes):
    """What stands in a column of text and is no UTF-8, so that a frame fails when it is used."""

    def __repr__(self) -> str:
        return f"text that is no UTF-8, {super().__repr__()}"


class Day(int):
    """Days since 1970."""

    def __repr__(self) -> str:
        return str(np.datetime64(int(self), "D"))


def _unchanged(value: object) -> object:
    return value


def _integer(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return int(value) if isinstance(value, Decimal) and value == value.to_integral_value() else value


def _boolean(value: object) -> object:
    if isinstance(value, str):
        return {"t": True, "f": False, "true": True, "false": False}.get(value.lower(), value)
    return bool(value) if value in (0, 1) else value


def _float(value: object) -> object:
    whole = isinstance(value, int) and float(value) == value
    return Bits(float(value)) if isinstance(value, float) or whole else value  # type: ignore[arg-type]


def _single(value: object) -> object:
    # Of half the digits: a path may give it as a float with all of its own, or as the text that is nearest to it.
    return _float(float(np.float32(value))) if isinstance(value, float) else _float(value)


def _decimal(value: object) -> object:
    # A float is taken as what it is in binary: 0.1 is not a tenth.
    return Decimal(value) if isinstance(value, str | int | float | Decimal) else value


def _text(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


def _uuid(value: object) -> object:
    return str(UUID(bytes=value)) if isinstance(value, bytes) else str(UUID(str(value)))


def _is_hex(value: object) -> bool:
    return isinstance(value, str) and HEX.fullmatch(value) is not None


def _of_hex(value: str) -> bytes:
    return bytes.fromhex(value[2:])


def _bytes(value: object) -> object:
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


def _day(value: object) -> object:
    if isinstance(value, str):
        return Day((dt.date.fromisoformat(value) - EPOCH).days)
    if isinstance(value, Moment):
        days, rest = divmod(value, 86_400 * 10**9)
        return value if rest else Day(days)
    if isinstance(value, dt.datetime):
        return _day(_moment(value))
    if isinstance(value, dt.date):
        return Day((value - EPOCH).days)
    return Day(value) if isinstance(value, int) else value


def _moment(value: object) -> object:
    if isinstance(value, dt.datetime):
        utc = value.astimezone(dt.UTC) if value.tzinfo else value
        seconds = (utc.toordinal() - EPOCH.toordinal()) * 86_400 + utc.hour * 3600 + utc.minute * 60 + utc.second
        return Moment(seconds * 10**9 + utc.microsecond * 1000 + getattr(utc, "nanosecond", 0))
    if isinstance(value, str) and (match := TIMESTAMP.fullmatch(value)):
        *clock, fraction, hours, minutes = match.groups()
        moment = _moment(dt.datetime(*map(int, clock)))  # type: ignore[arg-type]
        assert isinstance(moment, int)
        sign = -1 if (hours or "").startswith("-") else 1
        offset_s = int(hours or 0) * 3600 + sign * int(minutes or 0) * 60
        return Moment(moment + int((fraction or "0").ljust(9, "0")) - offset_s * 10**9)
    return value


_CONVERTERS: dict[ColumnType, Callable[[Any], Any]] = {
    ColumnType.BOOL: _boolean,
    ColumnType.INT16: _integer,
    ColumnType.INT32: _integer,
    ColumnType.INT64: _integer,
    ColumnType.FLOAT32: _single,
    ColumnType.FLOAT64: _float,
    ColumnType.DECIMAL: _decimal,
    ColumnType.TEXT: _text,
    ColumnType.BYTES: _bytes,
    ColumnType.UUID: _uuid,
    ColumnType.DATE: _day,
    ColumnType.TIMESTAMP: _moment,
    ColumnType.TIMESTAMP_NS: _moment,
    ColumnType.TIMESTAMP_UTC: _moment,
    ColumnType.TIMESTAMP_BERLIN: _moment,
}
