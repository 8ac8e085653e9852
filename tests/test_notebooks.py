"""The notebooks, run end to end at tiny size through `make`, and what they leave behind."""

import ast
import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import psycopg
import pytest

from framehaul.bench.study import NOTEBOOKS, as_given
from framehaul.servers import Servers
from framehaul.servers.embedded import is_kept
from framehaul.settings import PRESETS, PROJECT
from framehaul.studies import scaling
from framehaul.studies.registry import chosen, parameters, studies
from framehaul.techniques import techniques
from framehaul.techniques.streaming import MOVES
from tests.conftest import WHOLE, RunsCommand, run_command

SOURCES = sorted(NOTEBOOKS.glob("*.ipynb"))


def results_of(out: Path, name: str) -> list[dict[str, str]]:
    with (out / "results" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def test_results_have_a_row_for_every_technique_and_pass_and_the_environment_of_the_run(out: Path) -> None:
    few = ["postgres_write", "clickhouse_read"]
    for name in few if out.name == "few" else [*few, "postgres_read", "clickhouse_write"]:
        rows, (database, direction) = results_of(out, name), name.split("_")
        names = [found.name for found in techniques(database, direction)]  # type: ignore[arg-type]
        assert sorted((row["technique"], row["pass"]) for row in rows) == sorted((name, "1") for name in names)
        assert {row["status"] for row in rows} <= {"ok", "skipped"}
        for row in rows:
            assert (row["status"] == "ok") == (row["reason"] == "") == bool(row["seconds"]), row
            if row["status"] == "ok":
                assert float(row["rows_per_s"]) == pytest.approx(300 / float(row["seconds"]))
                assert all(row[name] for name in ("wire_bytes", "peak_rss_bytes", "server_cpu_s")), row
    assert not list((out / "results").glob("*.partial.*"))
    metadata = json.loads((out / "results" / "environment.json").read_text())
    assert metadata["runs"]["01_postgres_write"]["server"]["settings"]["fsync"] == "on"
    assert metadata["runs"]["04_clickhouse_read"]["server"]["settings"]["async_insert"] == "0"
    assert metadata["libraries"]["polars"]
    assert metadata["machine"]["cores"] >= 1


@WHOLE
def test_scaling_has_every_size_technique_and_move(out: Path) -> None:
    compared = {(name, size) for names in scaling.COMPARED.values() for name in names for size in ("30", "300")}
    expected = [*compared, *((move.name, "300") for move in MOVES)]
    rows = [(row["technique"], row["rows"]) for row in results_of(out, "scaling") if row["status"] == "ok"]
    assert sorted(rows) == sorted(expected)


@WHOLE
def test_every_notebook_has_a_page_and_the_index_leads_to_it(out: Path) -> None:
    index = (out / "reports" / "index.html").read_text()
    for study in studies():
        assert (out / "reports" / f"{study.notebook}.html").is_file() == (not study.on_demand)
        assert (f'href="{study.notebook}.html"' in index) == (not study.on_demand)
    assert not list((out / "reports" / "failed").iterdir())
    drawn = """postgres_write summary_at_a_glance scaling_clickhouse ablations fidelity_types faults_postgres_write
        postgres_drivers clickhouse_clients warehouse parquet_codecs json_parquet pgbench scale_out network
        table_shapes_small upsert_postgres"""
    assert {f"{name}.svg" for name in drawn.split()} <= {path.name for path in (out / "figures").iterdir()}


def test_a_run_leaves_no_table_and_publishes_no_password_and_no_path_of_this_machine(
    out: Path, servers: Servers
) -> None:
    with psycopg.connect(servers.postgres.dsn()) as connection:
        left = connection.execute("SELECT relname FROM pg_class WHERE relname LIKE 'framehaul%'").fetchall()
    assert left == []
    secrets = [servers.postgres.password, servers.clickhouse.password, str(PROJECT), str(out), str(Path.home()) + "/"]
    for path in filter(Path.is_file, out.rglob("*")):
        assert not [secret for secret in secrets if secret in path.read_text()], path


def test_pages_load_nothing_from_the_network_and_images_say_what_they_show(out: Path) -> None:
    assert re.search("<img [^>]*svg", (out / "reports" / "01_postgres_write.html").read_text())
    for path in (out / "reports").glob("[0-9]*.html"):
        text = path.read_text()
        assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"'](?:https?:)?//", text), path
        assert not re.findall(r"@import\s+[^;]*//|url\(\s*[\"']?https?:", text), path
        images = re.findall("<img [^>]*>", text)
        assert all(re.search('alt="(?!No description has been)[^"]', image) for image in images), path


def test_notebooks_run_in_order_and_on_demand_only_when_asked_for() -> None:
    numbers = [study.number for study in chosen("")]
    assert numbers[:-1] == sorted(set(numbers))
    assert numbers[-1] == "05", "what sums up is made again when all is there"
    assert not any(study.on_demand for study in chosen(""))
    assert [study.number for study in chosen("04 postgres_write")] == ["01", "04"]


def test_the_estimate_is_that_of_the_preset_and_grows_with_rows_and_rounds() -> None:
    for study in studies():
        quick = {one.name: one.default for one in study.parameters}
        rounds, rows = ({name: most} if name in quick else {} for name, most in (("rounds", 6), ("rows", 1_000_000)))
        usual, longer, more = (study.expected_seconds(quick | one, "quick") for one in ({}, rounds, rows))
        assert usual == study.seconds[1] <= more, study.notebook
        assert usual <= longer <= 6 * usual, study.notebook


def test_every_notebook_is_a_study_that_states_and_uses_its_parameters() -> None:
    assert [study.notebook for study in studies()] == [path.stem for path in SOURCES]
    for study, path in zip(studies(), SOURCES, strict=True):
        stated: dict[str, object] = {}
        used: set[str] = set()
        content = nbformat.read(path, as_version=4)
        nbformat.validate(content)
        assert content.cells[0].source.startswith("# ")
        for cell in content.cells:
            assert not (cell.get("outputs") or cell.get("execution_count")), path
            if "parameters" in cell.metadata.get("tags", []):
                exec(cell.source, {}, stated)
            elif cell.cell_type == "code":
                used |= {node.id for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Name)}
        assert {one.name: one.default for one in study.parameters} == stated
        assert stated.keys() <= used, study.notebook


def test_make_lists_every_parameter_with_its_default_and_refuses_a_mistyped_one() -> None:
    make = ["make", "variables"]
    mistyped = subprocess.run([*make, "ROWZ=10"], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert mistyped.returncode != 0
    assert "unknown variable ROWZ" in mistyped.stderr
    mine, env = ["make", "mine", "DATA=x"], os.environ | {"MODE": "mer$ge"}  # $g would be a variable of make
    refused = subprocess.run(mine, cwd=PROJECT, capture_output=True, text=True, check=False, env=env)
    assert "MODE='mer$ge'" in refused.stderr
    done = subprocess.run(make, cwd=PROJECT, capture_output=True, text=True, check=True)
    for name, several in parameters().items():
        [line] = [line for line in done.stdout.splitlines() if line.split()[0] == name.upper()]
        assert several[0].help in line
        for parameter in several:
            for preset in PRESETS:
                assert parameter.value(as_given(parameter.of(preset))) == parameter.of(preset)
                assert as_given(parameter.of(preset)) in line.partition(parameter.help)[2]


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--rows=0", "ROWS=0"), ("--rows=", "ROWS=''"), ("--seed=1.5", "SEED='1.5'"),
        ("--duration=nan", "DURATION=nan"), ("--workers=1 0", "WORKERS='1 0'"), ("--partitions=0", "PARTITIONS='0'"),
        ("--preset=x", "PRESET='x'"), ("--workload=x", "WORKLOAD='x'"),
        ("--notebooks=77", "no notebook '77'"),
    ],
)  # fmt: skip
def test_bad_input_is_named_and_nothing_is_written(
    argument: str, said: str, tmp_path: Path, within: RunsCommand
) -> None:
    done = within("run", argument, f"--out={tmp_path / 'out'}", state_dir=tmp_path / "state")
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert [*tmp_path.iterdir()] == []


def test_out_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path, within: RunsCommand) -> None:
    (tmp_path / "out").write_text("a file")
    done = within("run", f"--out={tmp_path / 'out'}", state_dir=tmp_path / "state")
    assert done.returncode == 2
    assert "choose a directory that can be written" in done.stderr
    assert not (tmp_path / "state").exists()


def test_unreachable_external_servers_are_named(tmp_path: Path, within: RunsCommand) -> None:
    done = within(
        "run", "--servers=external", "--notebooks=01", f"--out={tmp_path / 'out'}", state_dir=tmp_path / "state",
        FRAMEHAUL_POSTGRES_DSN="postgresql://u:hidden@127.0.0.1:1/x",
        FRAMEHAUL_CLICKHOUSE_URL="http://u:hidden@127.0.0.1:1/x",
    )  # fmt: skip
    assert done.returncode in (1, 2)
    assert "127.0.0.1:1" in done.stderr
    assert "hidden" not in done.stdout + done.stderr
    assert not list((tmp_path / "out").rglob("postgres_write.csv"))


def test_a_failing_notebook_is_kept_apart_and_said_wherever_temporary_files_lie(tmp_path: Path) -> None:
    deep = tmp_path / "long name" / ("x" * 180)  # no socket has so long a path
    deep.mkdir(parents=True)
    done = run_command("run", "--notebooks=05", f"--out={tmp_path}", state_dir=tmp_path / "state", TMPDIR=str(deep))
    assert done.returncode == 1
    assert "05_summary" in done.stderr
    assert "no results yet" in done.stderr
    assert not (tmp_path / "reports" / "05_summary.html").exists()
    assert (tmp_path / "reports" / "failed" / "05_summary.html").exists()
    assert "failed/05_summary.html" in (tmp_path / "reports" / "index.html").read_text()
    assert 'href="../index.html"' in (tmp_path / "reports" / "failed" / "05_summary.html").read_text()


@pytest.mark.slow
def test_an_interrupted_run_keeps_what_was_finished_and_leaves_no_process(open_dir: Path, tmp_path: Path) -> None:
    state, partial = open_dir / "interrupted", tmp_path / "results" / "clickhouse_clients.partial.jsonl"
    given = ["--notebooks=11", "--preset=smoke", "--rows=2000", "--rounds=50", f"--out={tmp_path}"]
    command = [sys.executable, "-m", "framehaul", "run", *given]
    env = os.environ | {"FRAMEHAUL_STATE_DIR": str(state)}
    with (tmp_path / "log").open("w") as log, subprocess.Popen(
        command, cwd=PROJECT, stdout=log, stderr=log, start_new_session=True, env=env
    ) as running:  # fmt: skip
        while not (partial.exists() and len(partial.read_text().splitlines()) > 2):
            assert running.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.1)
        family = psutil.Process(running.pid).children(recursive=True)
        assert family
        os.killpg(running.pid, signal.SIGINT)
    assert running.returncode == 130
    assert "interrupted" in (tmp_path / "log").read_text()
    assert len(partial.read_text().splitlines()) > 2
    assert not partial.with_name("clickhouse_clients.csv").exists()
    assert not psutil.wait_procs(family, timeout=60)[1]
    assert not is_kept(state)


def test_clean_removes_state_and_pages_and_leaves_results_and_what_was_built(
    within: RunsCommand, tmp_path: Path
) -> None:
    gone = """state/clickhouse/data state/lane-2147483647-abcdefgh/servers.json reports/index.html
        reports/01_postgres_write.html reports/assets/pages.css reports/20_own_data/x.py results/run.partial.json"""
    kept = """state/tools/bin/json2parquet state/lane-notes/theirs state/theirs.txt results/postgres_write.csv
        reports/quarterly.html"""
    paths = [tmp_path / name for name in (gone + " " + kept).split()]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert within("clean", f"--out={tmp_path}", state_dir=tmp_path / "state").returncode == 0
    assert [str(path.relative_to(tmp_path)) for path in paths if path.exists()] == kept.split()
