"""Explain known losses by their reason and remedy. A loss that is not in the table needs an investigation."""

from __future__ import annotations

import re
from pathlib import Path

from framehaul.techniques import Technique

UNEXPLAINED = "not explained yet"
# Tab-separated without quoting, because the patterns contain quotes and backslashes.
LOSSES = [line.split("\t") for line in Path(__file__).with_suffix(".tsv").read_text("utf8").splitlines()[1:]]
"""All known losses: the patterns of technique (`database direction name`), case, session and detail, then the reason
with its remedy."""


def why(technique: Technique, case: str, session: str, detail: str) -> str:
    """Return the reason and remedy of the first loss whose patterns all match, or UNEXPLAINED."""
    texts = (" ".join(technique.key), case, session, detail)
    for *patterns, reason in LOSSES:
        if all(re.search(pattern, text) for pattern, text in zip(patterns, texts, strict=True)):
            return reason
    return UNEXPLAINED
