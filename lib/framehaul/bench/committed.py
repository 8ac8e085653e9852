"""The runs that are committed to the repository, which the writeup shows."""

from __future__ import annotations

from pathlib import Path

from framehaul.settings import PROJECT

RUN = PROJECT / "results"
"""The reference run; `make all` in this directory replaces it."""
MACHINES = PROJECT / "machines"
"""Runs of other machines, `<name>/<date>/`: results and environment.json."""


def runs() -> list[Path]:
    """Return the results directories of other machines' runs, the latest of a machine first."""
    return sorted((path.parent for path in MACHINES.glob("*/*/environment.json")), reverse=True)
