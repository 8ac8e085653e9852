"""What becomes of the rows that are there when a frame comes: which techniques compete in each mode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from framehaul.errors import UnavailableError
from framehaul.studies.own_data.files import DataError
from framehaul.techniques import Technique
from framehaul.techniques.registry import named
from framehaul.techniques.replacing import making_room, replacing

APPEND, REPLACE, UPSERT = MODES = ("append", "replace", "upsert")
THERE_ROWS = 1_000
"""Rows that a write which replaces them finds in the table, at most."""


def check_mode(mode: str, key: str) -> None:
    """Raises DataError for a mode that there is not, or that lacks a key."""
    if mode not in MODES:
        raise DataError(f"MODE={mode!r}: choose from {', '.join(MODES)}")
    if mode == UPSERT and not key.strip():
        raise DataError("MODE='upsert' finds rows by their key, and there is none: give its columns, KEY='a b'")


def competing(techniques: Iterable[Technique], mode: str) -> list[Technique]:
    """Of techniques those that compete in a mode; those that read do in each."""
    moving = [one for one in techniques if one.origin != "everyday"]
    if mode == APPEND:
        return [one for one in moving if one.contract is None or one.contract.kind == "append"]
    return [one if one.contract is None else replacing(one) for one in moving if _can_replace(one)]


def _can_replace(technique: Technique) -> bool:
    if technique.contract is None:
        return True
    try:
        making_room(technique)
    except UnavailableError:
        return False
    return technique.origin != "baseline"


def as_measured(row: Mapping[str, Any]) -> tuple[Technique, Technique]:
    """The technique of a row as it is registered, and as it was measured in the row's mode."""
    plain = named(row["database"], row["direction"], row["technique"])
    return plain, replacing(plain) if row["contract"] == REPLACE else plain


def there(content: pa.Table, mode: str) -> pa.Table | None:
    """The rows that a write finds in the table; None where it is empty.

    They are some of those that come: one that stays is a row too many, or its key an error.
    """
    return content.slice(0, THERE_ROWS) if mode == REPLACE else None
