"""Explain known losses by their reason and remedy. A loss that is not in the table needs an investigation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from framehaul.techniques import Technique

UNEXPLAINED = "not explained yet"


@dataclass(frozen=True)
class Loss:
    """A reason with its remedy, and the patterns of technique (`database direction name`), case, session and detail."""

    technique: str
    case: str
    session: str
    detail: str
    why: str


# Tab-separated without quoting, because the patterns contain quotes and backslashes.
_LINES = Path(__file__).with_suffix(".tsv").read_text("utf8").splitlines()
LOSSES = [Loss(*line.split("\t")) for line in _LINES[1:]]
"""All known losses; the first that matches explains a cell."""


def why(technique: Technique, case: str, session: str, detail: str) -> str:
    """Return the reason and remedy of a loss, or UNEXPLAINED."""
    path = f"{technique.database} {technique.direction} {technique.name}"
    for loss in LOSSES:
        pairs = zip((loss.technique, loss.case, loss.session, loss.detail), (path, case, session, detail), strict=True)
        if all(re.search(pattern, text) for pattern, text in pairs):
            return loss.why
    return UNEXPLAINED
