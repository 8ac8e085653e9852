"""The runs that are committed beside the code: the writeup shows them."""

from __future__ import annotations

from pathlib import Path

from framehaul.settings import PROJECT

RUN = PROJECT / "results"
"""Of `make all`, as it runs when nothing is said."""
MACHINES = PROJECT / "machines"
"""Of machines, `<name>/<date>/`: results and environment.json; ours have their figures as well."""
LARGER_RUN = MACHINES / "epyc-2-cores" / "2026-11-25"
"""Of 1,000,000 rows in nine rounds; who falls behind in the race to them moves fewer. Of tables of other shapes in nine
rounds as well, and of all networks in six."""
WITHOUT_A_RACE = MACHINES / "epyc-2-cores" / "2026-11-21"
"""Of 1,000,000 rows in five rounds by every technique as it was then, memory cold."""
LARGEST_RUN = MACHINES / "epyc-2-cores" / "2026-11-23"
"""Of up to 10,000,000 rows: how cost grows with them."""
STREAMS = MACHINES / "xeon-2-cores" / "2026-11-25"
"""Of small batches into ClickHouse, for twenty seconds at each rate, in two rounds."""
EVERY_SIZE = MACHINES / "xeon-2-cores" / "2026-11-26"
"""Of tables of all shapes with every number of rows, in six rounds; of one row into a table of 1,000,000, and of two
writers by how many of their keys are there, in three; of all ways to read up to 10,000,000 rows in batches, in one."""


def runs() -> list[Path]:
    """The results directories of all kept runs, the latest of a machine first."""
    return sorted((path.parent for path in MACHINES.glob("*/*/environment.json")), reverse=True)
