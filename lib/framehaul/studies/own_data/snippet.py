"""Scripts of a few lines that import a technique and move one file or table with it."""

from __future__ import annotations

import inspect
import textwrap

from framehaul.data.schema import COMMENT, Table, quote_clickhouse_text
from framehaul.techniques import Technique
from framehaul.techniques.beyond.clickhouse_write import exchanged
from framehaul.techniques.clients import CLIENTS, open_http_client
from framehaul.techniques.replacing import making_room, replacing

OURS = f"\nCOMMENT {quote_clickhouse_text(COMMENT)}"
"""The clause that marks a table as one that the next run may drop."""
DOES = {"append": "fills", "replace": "replaces all rows of", "upsert": "adds rows to or changes, by its key"}


def unmarked(statement: str) -> str:
    """Return a CREATE TABLE for a table of the reader, which later runs must not drop."""
    return statement.replace(OURS, "")


def snippet(technique: Technique, table: Table, ddl: str, *, replaces: bool = False) -> str:
    """Return a script that moves a file into the table, or the table into a frame, by this technique.

    With `replaces` the frame takes the place of all rows that are there.
    """
    is_async, writes = inspect.iscoroutinefunction(technique.function), technique.direction == "write"
    opener, server = CLIENTS[technique.client].__name__, f"{technique.database}_server"
    if "shared_directory" in technique.requires:
        server = "postgres_server_with_exchange"
    imports = {
        f"from {technique.function.__module__} import {technique.name}",
        f"from framehaul.studies.own_data.addresses import {server}",
        "from framehaul.studies.own_data import open_frame",
        f"from framehaul.techniques.clients import {opener}",
    }
    into, opened = "table", "async with" if is_async else "with"
    lines = [f"{opened} {opener}({server}()) as client:"]
    if replaces and (room := making_room(technique)):
        imports.add(f"from {room.__module__} import {room.__name__}")
        into, beside = "new", "client"
        if room is exchanged:
            imports.add(f"from framehaul.techniques.clients import {open_http_client.__name__}")
            lines.append(f"with {open_http_client.__name__}({server}()) as beside:")
            opened, beside = "with", "beside"
        lines.append(f"{opened} {room.__name__}({beside}, table) as {into}:")
    call = f"{'await ' * is_async}{technique.name}(client, {into}{', frame' * writes})"
    lines = ["    " * at + line for at, line in enumerate([*lines, call if writes else f"frame = {call}"])]
    if not writes:
        lines.append("print(frame)")
    key, sort = ", ".join(table.key), ", ".join(table.sort or ())
    body = [
        f"mine = open_frame(sys.argv[1], key={key!r}, sort={sort!r})", f"table = mine.table.renamed({table.name!r})"
    ]  # fmt: skip
    if writes:
        imports.add(f"from framehaul.data.frames import to_{technique.frame}")
        body.append(f"frame = to_{technique.frame}(mine.derived.content, table)")
    if is_async:
        lines = ["", "", "async def main() -> None:", *(f"    {line}" for line in lines), "", "", "asyncio.run(main())"]
    standard = ["import asyncio", "import sys"] if is_async else ["import sys"]
    return "\n".join(
        [_heading(technique, ddl, replaces=replaces), *standard, "", *sorted(imports), "", *body, *lines, ""]
    )


def _heading(technique: Technique, ddl: str, *, replaces: bool) -> str:
    """Return the docstring of a script: the technique, how to run it, and the table that it needs."""
    measured = replacing(technique) if replaces else technique
    does = DOES.get(measured.contract.kind, "fills") if measured.contract else "reads"
    text = (
        f"{measured.label}.\n\nRun it with a file that has the columns of the table: python this_file.py data.parquet\n"
        f"DATABASE_URL or CLICKHOUSE_URL names the server.\n\n"
        f"Table that it {does}:\n\n{textwrap.indent(ddl, '    ')}"
    )
    return f'r"""{text.replace('"""', '" " "')}\n"""\n'
