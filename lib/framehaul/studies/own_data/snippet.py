"""The code of one technique for one table, as a file that runs without framehaul.

It is the library's own source: the technique, and of everything that it uses only what it uses. So what is handed out
is what was measured.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import packages_distributions, version

import polars as pl
import pyarrow as pa

from framehaul.data.schema import DATE32, NATIVE_JSON, Column, ColumnType, Table, Types, kind_of, timestamp_types
from framehaul.techniques import Technique
from framehaul.techniques.beyond.clickhouse_write import exchanged
from framehaul.techniques.clients import CLIENTS, open_http_client
from framehaul.techniques.registry import Database
from framehaul.techniques.replacing import Emptying, making_room, replacing
from framehaul.techniques.source import Module, Uses, bound

ENVIRONMENT: dict[Database, str] = {
    "postgres": "DATABASE_URL (postgresql://user:password@host:port/database), or PGHOST, PGPORT, PGUSER, "
    "PGPASSWORD and PGDATABASE",
    "clickhouse": "CLICKHOUSE_URL (http://user:password@host:port/database), and CLICKHOUSE_NATIVE_PORT where it is "
    "not the usual one",
}
ALSO_NEEDED = {
    "chdb": {"chdb-core"},
    "duckdb": {"duckdb-extension-postgres-scanner"},
    "clickhouse_sqlalchemy": {"clickhouse-sqlalchemy", "clickhouse-driver"},
    "clickhouse_sqlalchemy_http": {"clickhouse-sqlalchemy"},
    "clickhouse_connect_sqlalchemy": {"clickhouse-connect"},
    "clickhouse_connect_rust": {"clickhouse-connect-core"},
    "sqlalchemy": {"psycopg"},
    "ibis_postgres": {"psycopg"},
    "ibis_clickhouse": {"clickhouse-connect"},
}
"""Distributions, by client, that no import at the top of the code names."""
EXTRAS = {"psycopg": "psycopg[binary]", "ibis-framework": "ibis-framework[clickhouse,postgres]"}


class SnippetError(RuntimeError):
    """Code cannot be taken out of the library; the message says what stands in the way."""


@dataclass(frozen=True)
class Snippet:
    """A file of Python and what has to be installed for it."""

    code: str
    requirements: tuple[str, ...]


def snippet(technique: Technique, table: Table, ddl: str, kind: str, *, replaces: bool = False) -> Snippet:
    """The technique for this table; `kind` is that of the files that frames come from, a key of READERS.

    `replaces` says that its frame takes the place of all rows that are there. Raises SnippetError when two things of
    one name are needed.
    """
    room = making_room(technique) if replaces else None
    used = bundled(f"{_imports(technique, kind, room)}\n{_main(technique, table, kind, room)}")
    known, roots = _installed(), {imported.root for imported in used.imports} - sys.stdlib_module_names
    distributions = {known[root][0] for root in roots} | ALSO_NEEDED.get(technique.client, set())
    requirements = tuple(f"{EXTRAS.get(name, name)}=={version(name)}" for name in sorted(distributions))
    parts = [
        _heading(technique, table, ddl, requirements, replaces=replaces) + used.import_lines(),
        *(text for _, text in used.modules()),
    ]
    return Snippet("\n\n\n".join(parts) + "\n", requirements)


@cache
def _installed() -> Mapping[str, list[str]]:
    """Which distributions bring which packages; to look takes most of a second."""
    return packages_distributions()


def bundled(program: str) -> Uses:
    """A program with all that it uses of the library; raises SnippetError when two things of one name are needed."""
    main, used = Module("the main part", program), Uses()
    for statement in main.statements:
        used.add(main, statement)
    makers = [(name, where) for where, (_, kept) in used.kept.items() for one in kept for name in bound(one)]
    makers += [
        (imported.bound, imported.statement if imported.original else imported.root) for imported in used.imports
    ]
    first: dict[str, str] = {}
    for name, maker in makers:
        if first.setdefault(name, maker) != maker:
            raise SnippetError(f"{name} is defined by {first[name]} and by {maker}: rename one")
    return used


DOES = {"replace": "replaces all rows of", "upsert": "adds rows to or changes, by its key"}


def _heading(
    technique: Technique, table: Table, ddl: str, requirements: tuple[str, ...], *, replaces: bool
) -> str:  # fmt: skip
    """The docstring: what it is, what it needs, how it is run."""
    found = replacing(technique) if replaces else technique
    writes = found.contract is not None
    does = DOES.get(found.contract.kind, "fills") if found.contract else "reads"
    usage = f"python this_file.py {table.name.removeprefix('framehaul_')}.parquet" if writes else "python this_file.py"
    exchange = (
        ", and EXCHANGE_DIR, a directory that the server reaches too"
        if "shared_directory" in technique.requires
        else ""
    )
    text = "\n\n".join(
        [
            f"{found.label}.",
            f"Needs Python 3.12 and: pip install {' '.join(f'"{name}"' for name in requirements)}",
            textwrap.fill(f"Connects by {ENVIRONMENT[technique.database]}{exchange}.", 118),
            f"Run it: {usage}. In code of your own: {'write(frame)' if writes else 'frame = read()'}"
            + (", awaited." if inspect.iscoroutinefunction(technique.function) else "."),
            f"Table that it {does}:\n\n{textwrap.indent(ddl, '    ')}",
        ]
    )  # fmt: skip
    return f'r"""{text.replace('"""', '" " "')}\n"""\n\nfrom __future__ import annotations\n\n'


def _main(technique: Technique, table: Table, kind: str, room: Emptying | None) -> str:
    """The part that is written for this table: its description, and `write` or `read`, inside of what makes room."""
    is_async = inspect.iscoroutinefunction(technique.function)
    define, opening, wait = ("async def", "async with", "await ") if is_async else ("def", "with", "")
    run = "asyncio.run({})" if is_async else "{}"
    library = {"polars": "pl.DataFrame", "pandas": "pd.DataFrame"}[technique.frame]
    client = f"{opening} {CLIENTS[technique.client].__name__}({_server_function(technique)}()) as client:"
    title = f'"""{technique.function.__doc__}"""' if technique.function.__doc__ else '""""""'
    split = any(column.left_over_of for column in table.columns)
    of_frame = "whole_table(TABLE)" if split else "TABLE"
    if technique.direction == "read":
        found = f"{wait}{technique.name}(client, TABLE)"
        actions = [
            f"{define} read() -> {library}:", f"    {title}", f"    {client}",
            f"        return {f'whole_{technique.frame}({found}, TABLE)' if split else found}", "", "",
            'if __name__ == "__main__":', f"    print({run.format('read()')})",
        ]  # fmt: skip
    else:
        actions = [
            f"def frame_of(path: str) -> {library}:",
            f'    """The file as a frame in the dtypes of the table; for one of your own, these are {of_frame}.'
            f'{technique.frame}_{"schema" if technique.frame == "polars" else "dtypes"}."""',
            f"    return to_{technique.frame}({READERS[kind]}(path, {of_frame}), {of_frame})", "", "",
            f"{define} write(frame: {library}) -> None:", f"    {title}",
            *([f"    frame = split_{technique.frame}(frame, TABLE)"] if split else []), f"    {client}",
            *_call(technique, f"{wait}{technique.name}", opening, room), "", "",
            'if __name__ == "__main__":', f"    {run.format('write(frame_of(sys.argv[1]))')}",
        ]  # fmt: skip
    return "\n".join([f"TABLE = {_table_code(table)}", "", "", *actions, ""])


def _call(technique: Technique, called: str, opening: str, room: Emptying | None) -> list[str]:
    """The lines that write, where a client is open."""
    if room is None:
        return [f"        {called}(client, TABLE, frame)"]
    if technique.database == "postgres":
        into = f"{opening} {room.__name__}(client, TABLE) as table:"
    else:
        opened = f"{open_http_client.__name__}(clickhouse_server())"
        into = f"with {opened} as beside, {room.__name__}(beside, TABLE) as table:"
    return [f"        {into}", f"            {called}(client, table, frame)"]


READERS = {"parquet": "read_parquet", "csv": "read_csv", "json": "read_json_lines", "arrow": "read_ipc"}
"""Functions of `loading.py`, by the kind of file."""


def _server_function(technique: Technique) -> str:
    if "shared_directory" in technique.requires:
        return "postgres_server_with_exchange"
    return f"{technique.database}_server"


def _imports(technique: Technique, kind: str, room: Emptying | None) -> str:
    """What the main part may use, as a module of the library would import it."""
    clients = {CLIENTS[technique.client].__name__, *([open_http_client.__name__] if room == exchanged else [])}
    replaced = f"from {room.__module__} import {room.__name__}" if room else ""
    return f"""
import asyncio
import sys
import pandas as pd
import polars as pl
from framehaul.techniques.clients import {", ".join(sorted(clients))}
{replaced}
from framehaul.data.frames import to_pandas, to_polars
from framehaul.data.nanoseconds import split_pandas, split_polars, whole_pandas, whole_polars, whole_table
from framehaul.studies.own_data.addresses import {_server_function(technique)}
from framehaul.studies.own_data.loading import {READERS[kind]}
from framehaul.data.schema import DATE32, Column, ColumnType, Table, decimal_types, enum_types, fixed_types, list_types
from framehaul.data.schema import timestamp_types, fixed_list_types, nested_list_types, struct_types, map_types
from framehaul.data.schema import wide_decimal_types, NATIVE_JSON
from {technique.function.__module__} import {technique.name}
"""


NAMED = {DATE32: "DATE32", NATIVE_JSON: "NATIVE_JSON"}
"""Types that a constant of the schema holds."""


def _table_code(table: Table) -> str:
    columns = "".join(f"        {_column_code(column)},\n" for column in table.columns)
    sort = f"    sort={table.sort!r},\n" if table.sort is not None else ""
    return f"Table(\n    name={table.name!r},\n    columns=(\n{columns}    ),\n    key={table.key!r},\n{sort})"


def _column_code(column: Column) -> str:
    options = [f"{name}=True" for name in ("nullable", "low_cardinality") if getattr(column, name)]
    if column.left_over_of:
        options.append(f"left_over_of={column.left_over_of!r}")
    if column.exactly is not None:
        options.append(f"exactly={_types_code(column.exactly)}")
    return f"Column({', '.join([repr(column.name), f'ColumnType.{column.type.name}', *options])})"


def _types_code(types: Types) -> str:  # noqa: PLR0911  one for each function that makes types
    if types in NAMED:
        return NAMED[types]
    kind = kind_of(types)
    if types == kind.value:
        return f"ColumnType.{kind.name}.value"
    if types.element is not None:
        size = f", {types.arrow.list_size}" if kind is ColumnType.FIXED_LIST else ""
        return f"{kind.name.lower()}_types({_types_code(types.element)}{size})"
    if kind is ColumnType.STRUCT:
        fields = ", ".join(f"{name!r}: {_types_code(each)}" for name, each in types.fields)
        return f"struct_types({{{fields}}})"
    if kind is ColumnType.MAP:
        return f"map_types({', '.join(_types_code(each) for _, each in types.fields)})"
    if digits := re.fullmatch(r"Decimal\((\d+), (\d+)\)", types.clickhouse if types.arrow == pa.string() else ""):
        return f"wide_decimal_types({digits[1]}, {digits[2]})"
    if isinstance(types.polars, pl.Enum):
        return f"enum_types({', '.join(map(repr, types.polars.categories))})"
    if pa.types.is_fixed_size_binary(types.arrow):
        return f"fixed_types({types.arrow.byte_width})"
    if types.arrow.id == ColumnType.DECIMAL.value.arrow.id:
        return f"decimal_types({types.arrow.precision}, {types.arrow.scale})"
    zone = f", {types.arrow.tz!r}" if types.arrow.tz else ""
    assert types == timestamp_types(types.arrow.unit, types.arrow.tz)
    return f"timestamp_types({types.arrow.unit!r}{zone})"
