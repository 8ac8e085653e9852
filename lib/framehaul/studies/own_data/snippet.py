"""The code of one technique for one file: a script of a few lines that imports the technique and calls it."""

from __future__ import annotations

import inspect
import textwrap

from framehaul.data.schema import Table
from framehaul.techniques import Technique
from framehaul.techniques.beyond.clickhouse_write import exchanged
from framehaul.techniques.clients import CLIENTS, open_http_client
from framehaul.techniques.replacing import making_room, replacing

DOES = {"append": "fills", "replace": "replaces all rows of", "upsert": "adds rows to or changes, by its key"}


def snippet(technique: Technique, table: Table, ddl: str, *, replaces: bool = False) -> str:
    """Return a script that moves a file into the table, or the table into a frame, by this technique.

    `replaces` says that the frame takes the place of all rows that are there. A technique that is asynchronous is
    awaited.
    """
    is_async = inspect.iscoroutinefunction(technique.function)
    opener, server = CLIENTS[technique.client].__name__, _server_function(technique)
    imports = {
        f"from {technique.function.__module__} import {technique.name}",
        f"from framehaul.studies.own_data.addresses import {server}",
        "from framehaul.studies.own_data.study import open_frame",
        f"from framehaul.techniques.clients import {opener}",
    }
    into, lines = "table", [f"{'async with' if is_async else 'with'} {opener}({server}()) as client:"]
    called = f"{'await ' if is_async else ''}{technique.name}(client, {{}})"
    if replaces and (room := making_room(technique)):
        imports.add(f"from {room.__module__} import {room.__name__}")
        beside, into = "client", "new"
        if technique.database == "clickhouse":
            imports.add(f"from framehaul.techniques.clients import {open_http_client.__name__}")
            lines.append(f"    with {open_http_client.__name__}({server}()) as beside:")
            beside = "beside"
        indent = "    " * len(lines)
        opening = "async with" if is_async and room is not exchanged else "with"
        lines.append(f"{indent}{opening} {room.__name__}({beside}, table) as {into}:")
    indent = "    " * len(lines)
    if technique.direction == "write":
        imports.add(f"from framehaul.data.frames import to_{technique.frame}")
        lines.append(f"{indent}{called.format(f'{into}, frame')}")
    else:
        lines.append(f"{indent}frame = {called.format(into)}")
        lines.append("print(frame)")
    key, sort = ", ".join(table.key), ", ".join(table.sort or ())
    body = [
        f"mine = open_frame(sys.argv[1], key={key!r}, sort={sort!r})", f"table = mine.table.renamed({table.name!r})",
        *([f"frame = to_{technique.frame}(mine.derived.content, table)"] if technique.direction == "write" else []),
    ]  # fmt: skip
    if is_async:
        body += ["", "", "async def main() -> None:", *(f"    {line}" for line in lines), "", "", "asyncio.run(main())"]
    else:
        body += lines
    standard = ["import asyncio", "import sys"] if is_async else ["import sys"]
    return "\n".join([_heading(technique, ddl, replaces=replaces), *standard, "", *sorted(imports), "", *body, ""])


def _heading(technique: Technique, ddl: str, *, replaces: bool) -> str:
    """The docstring: what it is, how it is run, and which table it needs."""
    found = replacing(technique) if replaces else technique
    does = DOES.get(found.contract.kind, "fills") if found.contract else "reads"
    text = (
        f"{found.label}.\n\nRun it with a file that has the columns of the table: python this_file.py data.parquet\n"
        f"DATABASE_URL or CLICKHOUSE_URL say where the server is.\n\n"
        f"Table that it {does}:\n\n{textwrap.indent(ddl, '    ')}"
    )
    return f'r"""{text.replace('"""', '" " "')}\n"""\n'


def _server_function(technique: Technique) -> str:
    if "shared_directory" in technique.requires:
        return "postgres_server_with_exchange"
    return f"{technique.database}_server"
