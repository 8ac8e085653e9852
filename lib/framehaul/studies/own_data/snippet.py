"""Scripts of a few lines that move one file or table with `framehaul.write` or `framehaul.read`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from framehaul.api.choice import MODES, named_techniques
from framehaul.data.schema import Table

DOES = {
    "append": "fills",
    "replace": "replaces all rows of",
    "upsert": "adds rows to or changes, by its key",
    None: "reads",
}
VARIABLES = {"postgres": "DATABASE_URL", "clickhouse": "CLICKHOUSE_URL"}
"""The usual variables with the address of a server."""


def callable_by_name(row: Mapping[str, Any]) -> bool:
    """Return whether `framehaul.write` takes the technique of a row by its name; a read's row has no contract."""
    return row["contract"] in MODES and row["technique"] in named_techniques(row["database"], row["contract"])


def script(row: Mapping[str, Any], table: Table, ddl: str) -> str:
    """Return a script for a recommended technique: a write calls it by name, a read leaves the choice to framehaul.

    Its docstring says what was measured, how to run the script, and which table it needs.
    """
    variable, frame, writes = VARIABLES[row["database"]], row["frame"], row["direction"] == "write"
    address, name = f'os.environ["{variable}"]', getattr(table, f"{row['database']}_name")
    text = (
        f"{row['label']}.\n\n{row['technique']} was measured at {row['rows_per_s']:,.0f} rows/s.\n\n"
        f"    python this_file.py{' data.parquet' * writes}\n\n{variable} is the address of the server. "
        f"The table that it {DOES[row['contract']]}:\n\n{textwrap.indent(ddl, '    ')}"
    )
    heading = f'r"""{text.replace('"""', '" " "')}\n"""\n\nimport os\n'
    if not writes:
        call = f'framehaul.read({address}, {f"SELECT * FROM {name}"!r}, frame="{frame}")'
        return f"{heading}\nimport framehaul\n\nframe = {call}\nprint(frame)\n"
    by_name = f', technique="{row["technique"]}"' if callable_by_name(row) else ""
    return f"""{heading}import sys

import framehaul
from framehaul.data.frames import to_{frame}
from framehaul.studies.own_data import open_frame

mine = open_frame(sys.argv[1], key={", ".join(table.key)!r}, sort={", ".join(table.sort or ())!r})
frame = to_{frame}(mine.derived.content, mine.table)
framehaul.write(frame, {address}, {name!r}, mode="{row["contract"]}"{by_name})
"""
