"""Modes: append to the rows of a table, replace them, or upsert; each mode has its own competing techniques."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from framehaul.data.schema import FLOATS, Table
from framehaul.errors import SettingsError, UnavailableError
from framehaul.studies.upsert.found import KEPT
from framehaul.techniques import Technique, upserts
from framehaul.techniques.registry import named
from framehaul.techniques.replacing import making_room, replacing

APPEND, REPLACE, UPSERT = MODES = ("append", "replace", "upsert")


def check_mode(mode: str, key: str) -> None:
    """Raise SettingsError for an unknown mode, or for an upsert without a key."""
    if mode not in MODES:
        raise SettingsError(f"MODE={mode!r}: choose from {', '.join(MODES)}")
    if mode == UPSERT and not key.strip():
        raise SettingsError("MODE='upsert' finds rows by their key, and there is none: give its columns, KEY='a b'")


def check_key(table: Table, mode: str) -> None:
    """Raise SettingsError for a key with floats, by which an upsert does not find rows."""
    for column in table.columns if mode == UPSERT else ():
        if column.name in table.key and column.type in FLOATS:
            raise SettingsError(
                f"KEY={' '.join(table.key)!r}: column {column.name} is a float, and NaN equals itself on some servers "
                "only: leave it out, or cast it to a decimal or to text"
            )


def competing(techniques: Iterable[Technique], mode: str) -> list[Technique]:
    """Return the techniques of one direction that compete in a mode; reads compete in every mode."""
    moving = [one for one in techniques if one.origin != "everyday"]
    writing = [one for one in moving if one.contract]
    if mode == APPEND or not writing:
        return [one for one in moving if one.contract is None or one.contract.kind == "append"]
    if mode == UPSERT:
        return upserts(writing[0].database)
    return [replacing(one) for one in writing if _can_replace(one)]


def _can_replace(technique: Technique) -> bool:
    try:
        making_room(technique)
    except UnavailableError:
        return False
    return technique.origin != "baseline"


def as_measured(row: Mapping[str, Any]) -> tuple[Technique, Technique]:
    """Return the technique of a row as it is registered, and as it was measured in the mode of the row."""
    plain = named(row["database"], row["direction"], row["technique"])
    return plain, replacing(plain) if row["contract"] == REPLACE else plain


def parted(content: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows that an upsert sends, and the rows that it finds and leaves unchanged."""
    sent = content.num_rows - content.num_rows // KEPT
    return content.slice(0, sent), content.slice(sent)
