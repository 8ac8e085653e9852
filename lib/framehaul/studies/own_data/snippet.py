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
    """Return a script for a recommended technique: a write calls it by name, a read leaves the choice to framehaul."""
    address, frame = f'os.environ["{VARIABLES[row["database"]]}"]', row["frame"]
    key, sort = ", ".join(table.key), ", ".join(table.sort or ())
    named = table.postgres_name if row["database"] == "postgres" else table.clickhouse_name
    if row["direction"] == "read":
        imports = ["import os", "", "import framehaul"]
        call = f'frame = framehaul.read({address}, {f"SELECT * FROM {named}"!r}, frame="{frame}")\nprint(frame)'
    else:
        imports = ["import os", "import sys", "", "import framehaul", f"from framehaul.data.frames import to_{frame}",
                   "from framehaul.studies.own_data import open_frame"]  # fmt: skip
        by_name = f', technique="{row["technique"]}"' if callable_by_name(row) else ""
        call = (
            f"mine = open_frame(sys.argv[1], key={key!r}, sort={sort!r})\n"
            f"frame = to_{frame}(mine.derived.content, mine.table)\n"
            f'framehaul.write(frame, {address}, {named!r}, mode="{row["contract"]}"{by_name})'
        )
    return f"{_heading(row, ddl)}\n{'\n'.join(imports)}\n\n{call}\n"


def _heading(row: Mapping[str, Any], ddl: str) -> str:
    """Return the docstring of a script: what was measured, how to run the script, and the table that it needs."""
    file = "" if row["direction"] == "read" else " data.parquet"
    text = (
        f"{row['label']}.\n\n{row['technique']} was measured at {row['rows_per_s']:,.0f} rows/s.\n\n"
        f"    python this_file.py{file}\n\n{VARIABLES[row['database']]} is the address of the server. "
        f"The table that it {DOES[row['contract']]}:\n\n{textwrap.indent(ddl, '    ')}"
    )
    return f'r"""{text.replace('"""', '" " "')}\n"""\n'
