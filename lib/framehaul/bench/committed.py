"""The runs that are committed beside the code: the writeup shows them."""

from __future__ import annotations

from pathlib import Path

from framehaul.settings import PROJECT

RUN = PROJECT / "results"
"""The reference run: of all studies, at `PRESET=reference`; `make all` in this directory puts its own in its place."""
MACHINES = PROJECT / "machines"
"""Of machines, `<name>/<date>/`: results and environment.json."""


def runs() -> list[Path]:
    """The results directories of all kept runs, the latest of a machine first."""
    return sorted((path.parent for path in MACHINES.glob("*/*/environment.json")), reverse=True)
