"""Modes: append to the rows of a table, replace them, or upsert; each mode has its own competing techniques."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from framehaul.api.choice import MODES
from framehaul.bench.measure import ExistingRows
from framehaul.data.schema import Table
from framehaul.errors import UnavailableError
from framehaul.servers import Server
from framehaul.studies.upsert.places import as_read
from framehaul.techniques import Technique, upserts
from framehaul.techniques.registry import named
from framehaul.techniques.replacing import replacing
from framehaul.techniques.upsert.rows import target

APPEND, REPLACE, UPSERT = MODES
THERE_ROWS = 1_000
"""The maximum of rows that are in the table before a write that replaces them."""
KEPT = 10
"""One in ten rows of a frame is in the table before an upsert and stays unchanged."""


def competing(techniques: Iterable[Technique], mode: str) -> list[Technique]:
    """Return the techniques of one direction that compete in a mode; reads compete in every mode."""
    moving = [one for one in techniques if one.origin != "everyday"]
    writing = [one for one in moving if one.contract]
    if mode == APPEND or not writing:
        return [one for one in moving if one.contract is None or one.contract.kind == "append"]
    if mode == UPSERT:
        return upserts(writing[0].database)
    replacements = list[Technique]()
    for one in writing:
        with contextlib.suppress(UnavailableError):  # its write is not one transaction
            replacements += [] if one.origin == "baseline" else [replacing(one)]
    return replacements


def as_measured(row: Mapping[str, Any]) -> Technique:
    """Return the technique of a row of results as it was measured in the mode of the row."""
    technique = named(row["database"], row["direction"], row["technique"])
    return replacing(technique) if row["contract"] == REPLACE else technique


def parted(content: pa.Table, mode: str) -> tuple[pa.Table, pa.Table]:
    """Return the rows that are written, and the rows that an upsert finds and leaves unchanged."""
    sent = content.num_rows - (content.num_rows // KEPT if mode == UPSERT else 0)
    return content.slice(0, sent), content.slice(sent)


def existing_rows(mode: str, sent: pa.Table, kept: pa.Table, table: Table, server: Server) -> ExistingRows | None:
    """Return the rows that are in the table before a write; None for an empty table.

    Before an upsert they have every second key that is sent, with the values of another row, and the `kept` rows.
    """
    if mode == APPEND:
        return None
    if mode == REPLACE:
        # They are rows of the frame: one that is not removed is a row too many, or its key is an error.
        return ExistingRows(sent.slice(0, THERE_ROWS))
    known = sent.filter(pa.array(np.arange(sent.num_rows) % 2 == 0))
    moved = pa.concat_tables([known.slice(1), known.slice(0, 1)])
    changed = [(known if name in table.key else moved).column(name) for name in known.column_names]
    existing = pa.concat_tables([pa.Table.from_arrays(changed, schema=known.schema), kept])
    expected = pa.concat_tables([sent, kept])
    return ExistingRows(existing, expected, target, lambda technique, _: as_read(technique, server))
