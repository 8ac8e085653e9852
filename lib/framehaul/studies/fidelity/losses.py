"""Known losses, each with its reason and remedy. A loss without a line in the table needs an investigation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from framehaul.techniques import Technique

UNEXPLAINED = "not explained yet"


@dataclass(frozen=True)
class Loss:
    """Patterns of technique (`database direction name`), case, session and detail, and the reason and remedy."""

    technique: str
    case: str
    session: str
    detail: str
    why: str


def _read(path: Path) -> tuple[Loss, ...]:
    """Read the table of losses: tab-separated without quoting, because its patterns hold quotes and backslashes."""
    _, *lines = path.read_text("utf8").splitlines()
    return tuple(Loss(*line.split("\t")) for line in lines)


LOSSES = _read(Path(__file__).with_suffix(".tsv"))
"""Every known loss; the first that matches explains a cell."""


def why(technique: Technique, case: str, session: str, detail: str) -> str:
    """Return the explanation of a loss, or UNEXPLAINED."""
    path = f"{technique.database} {technique.direction} {technique.name}"
    for loss in LOSSES:
        pairs = zip((loss.technique, loss.case, loss.session, loss.detail), (path, case, session, detail), strict=True)
        if all(re.search(pattern, text) for pattern, text in pairs):
            return loss.why
    return UNEXPLAINED
