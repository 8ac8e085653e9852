"""The notebooks, run end to end at tiny size through `make`, and what they leave behind."""

from __future__ import annotations

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
import pytest

from framehaul.errors import SettingsError
from framehaul.reporting.study import NOTEBOOKS, as_given, imported
from framehaul.servers import Servers
from framehaul.servers.embedded import is_kept
from framehaul.settings import PRESETS, PROJECT
from framehaul.studies.registry import chosen, parameters, studies
from framehaul.studies.scaling import study as scaling
from framehaul.techniques import techniques
from framehaul.techniques.streaming import MOVES
from tests.conftest import WHOLE, RunsCommand, numbers_of, run_command

SOURCES = sorted(NOTEBOOKS.glob("*.ipynb"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_source_notebooks_hold_no_outputs_and_start_with_a_heading(path: Path) -> None:
    content = nbformat.read(path, as_version=4)
    nbformat.validate(content)
    assert content.cells[0].source.startswith("# ")
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in content.cells)


def test_results_have_a_row_for_every_technique_and_pass(out: Path) -> None:
    few = [("postgres", "write"), ("clickhouse", "read")]
    every = [(database, direction) for database in ("postgres", "clickhouse") for direction in ("write", "read")]
    for database, direction in few if out.name == "few" else every:
        with (out / "results" / f"{database}_{direction}.csv").open() as file:
            rows = list(csv.DictReader(file))
        names = [found.name for found in techniques(database, direction)]  # type: ignore[arg-type]
        expected = {(name, str(number)) for name in names for number in numbers_of(out)}
        assert {(row["technique"], row["pass"]) for row in rows} == expected
        assert len(rows) == len(expected)
        for row in rows:
            assert row["status"] in ("ok", "skipped"), row
            assert (row["status"] == "ok") == (row["reason"] == ""), row
            assert (row["status"] == "ok") == bool(row["seconds"]), row
            if row["status"] == "ok":
                assert float(row["rows_per_s"]) == pytest.approx(300 / float(row["seconds"]))
                assert int(row["wire_bytes"]) > 0
                assert row["peak_rss_bytes"]
                assert row["server_cpu_s"]
        assert not list((out / "results").glob("*.partial.*"))


@WHOLE
def test_scaling_has_every_size_technique_and_move(out: Path) -> None:
    with (out / "results" / "scaling.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["status"] for row in rows} == {"ok"}, [row for row in rows if row["status"] != "ok"]
    compared = {name for names in scaling.COMPARED.values() for name in names}
    found = {(row["technique"], row["rows"], row["pass"]) for row in rows}
    assert found == {
        (name, size, number)
        for names, sizes in ((compared, ("30", "90", "300")), ({move.name for move in MOVES}, ("300",)))
        for name in names for size in sizes for number in map(str, numbers_of(out))
    }  # fmt: skip
    assert all(int(row["peak_rss_bytes"]) >= 0 for row in rows)


def test_wire_bytes_hold_at_least_the_data(out: Path) -> None:
    with (out / "results" / "postgres_write.csv").open() as file:
        wire = {row["technique"]: int(row["wire_bytes"]) for row in csv.DictReader(file) if row["status"] == "ok"}
    assert wire["polars_psycopg_copy_text"] > 300 * 100


@WHOLE
def test_rounds_are_interleaved_and_shuffled(out: Path) -> None:
    with (out / "results" / "clickhouse_read.csv").open() as file:
        rows = list(csv.DictReader(file))
    first, second = ([row["technique"] for row in rows if row["pass"] == number] for number in ("1", "2"))
    assert [row["pass"] for row in rows] == sorted(row["pass"] for row in rows)
    assert sorted(first) == sorted(second)
    assert first != second


@WHOLE
def test_environment_is_recorded(out: Path) -> None:
    metadata = json.loads((out / "results" / "environment.json").read_text())
    assert set(metadata["runs"]) == {
        "01_postgres_write", "02_postgres_read", "03_clickhouse_write", "04_clickhouse_read", "06_scaling",
        "08_fidelity", "09_faults", "10_postgres_drivers", "11_clickhouse_clients",
        "12_warehouse", "13_parquet", "14_json_parquet",
        "15_pgbench", "16_noise", "17_table_shapes", "18_everyday_api", "19_upsert", "21_scale_out", "23_network",
    }  # fmt: skip
    assert metadata["runs"]["01_postgres_write"]["server"]["settings"]["fsync"] == "on"
    assert metadata["runs"]["03_clickhouse_write"]["server"]["settings"]["async_insert"] == "0"
    assert metadata["libraries"]["polars"]
    assert metadata["machine"]["cores"] >= 1


@WHOLE
def test_every_notebook_has_a_page_and_the_index_leads_to_it(out: Path) -> None:
    index = (out / "reports" / "index.html").read_text()
    for study in studies():
        assert (out / "reports" / f"{study.notebook}.html").is_file() == (not study.on_demand)
        assert (f'href="{study.notebook}.html"' in index) == (not study.on_demand)
    assert not list((out / "reports" / "failed").iterdir())
    assert sorted(path.name for path in (out / "figures").iterdir()) == sorted([
        "postgres_write.svg", "postgres_read.svg", "clickhouse_write.svg", "clickhouse_read.svg",
        "summary_at_a_glance.svg", "summary_published_against_measured.svg",
        "scaling_clickhouse_read.svg", "scaling_clickhouse_write.svg",
        "scaling_postgres_read.svg", "scaling_postgres_write.svg", "ablations.svg", "ablations_steps.svg",
        "everyday_api.svg", "fidelity_types.svg",
        *(
            f"{study}_{database}_{direction}.svg"
            for study in ("fidelity", "faults")
            for database in ("clickhouse", "postgres")
            for direction in ("read", "write")
        ),
        "postgres_drivers.svg", "postgres_drivers_latency.svg",
        "clickhouse_clients.svg", "clickhouse_clients_concurrency.svg", "warehouse.svg",
        "parquet_codecs.svg",
        "json_parquet.svg", "pgbench.svg", "pgbench_clients.svg",
        "scale_out_partitions.svg", "scale_out_workers.svg", "network.svg",
        "table_shapes_small.svg",
        "upsert_clickhouse.svg", "upsert_postgres.svg", "upsert_written.svg",
    ])  # fmt: skip


def test_nothing_published_holds_a_password_or_a_path_of_this_machine(out: Path, servers: Servers) -> None:
    secrets = [servers.postgres.password, servers.clickhouse.password, str(PROJECT), str(out), str(Path.home()) + "/"]
    for path in out.rglob("*"):
        if path.is_file():
            text = path.read_text()
            assert not [secret for secret in secrets if secret in text], path


def test_pages_load_nothing_from_the_network(out: Path) -> None:
    for path in (out / "reports").glob("*.html"):
        text = path.read_text()
        assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"'](?:https?:)?//", text), path
        assert not re.findall(r"@import\s+[^;]*//|url\(\s*[\"']?https?:", text), path


def test_every_image_says_what_it_shows(out: Path) -> None:
    assert "data:image/svg+xml" in (out / "reports" / "01_postgres_write.html").read_text()
    for path in (out / "reports").glob("[0-9]*.html"):
        images = re.findall("<img [^>]*>", path.read_text())
        named = [alt[1] for image in images if (alt := re.search('alt="([^"]*)"', image)) and alt[1]]
        assert len(named) == len(images), path
        assert "No description has been provided for this image" not in named, path


def test_code_is_folded_but_there(out: Path) -> None:
    text = (out / "reports" / "01_postgres_write.html").read_text()
    assert '<details class="code">' in text
    assert "study" in text


def test_no_table_is_left_on_the_servers(out: Path, servers: Servers) -> None:
    import psycopg

    with psycopg.connect(servers.postgres.dsn()) as connection:
        left = connection.execute("SELECT relname FROM pg_class WHERE relname LIKE 'framehaul%'").fetchall()
    assert left == []


def test_unknown_notebook_is_refused() -> None:
    with pytest.raises(SettingsError, match="no notebook '99'"):
        chosen("01 99")
    assert [study.number for study in chosen("04 01")] == ["01", "04"]


def test_what_is_on_demand_runs_only_when_asked_for() -> None:
    assert not any(study.on_demand for study in chosen(""))
    for study in studies():
        assert chosen(study.number) == chosen(study.name) == [study]


def test_studies_run_after_what_they_read_and_the_matrix_first() -> None:
    numbers = [study.number for study in chosen("")]
    assert numbers[:5] == ["01", "02", "03", "04", "05"]
    assert numbers[:-1] == sorted(set(numbers))
    assert numbers[-1] == "05", "what sums up is made again when all is there"


def test_every_notebook_is_a_study_with_the_parameters_of_its_cell() -> None:
    assert [study.notebook for study in studies()] == [path.stem for path in SOURCES]
    for study, path in zip(studies(), SOURCES, strict=True):
        stated: dict[str, object] = {}
        for cell in nbformat.read(path, as_version=4).cells:
            if "parameters" in cell.metadata.get("tags", []):
                exec(cell.source, {}, stated)
        assert {one.name: one.default for one in study.parameters} == stated


def test_every_parameter_of_a_notebook_is_used_by_it() -> None:
    """One that a cell states and no other names would be given, and change nothing."""
    for study in studies():
        cells = nbformat.read(NOTEBOOKS / f"{study.notebook}.ipynb", 4).cells
        code = [
            cell for cell in cells if cell.cell_type == "code" and "parameters" not in cell.metadata.get("tags", [])
        ]
        names = {node.id for cell in code for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Name)}
        assert {one.name for one in study.parameters} <= names, study.notebook


def test_every_parameter_is_listed_with_its_default() -> None:
    done = subprocess.run(["make", "variables"], cwd=PROJECT, capture_output=True, text=True, check=True)
    for name, several in parameters().items():
        [line] = [line for line in done.stdout.splitlines() if line.split()[0] == name.upper()]
        assert several[0].help in line
        for parameter in several:
            for preset in PRESETS:
                assert parameter.value(as_given(parameter.of(preset))) == parameter.of(preset)
                assert as_given(parameter.of(preset)) in line.partition(parameter.help)[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rows=0"], "ROWS=0"), (["--rows=-5"], "ROWS=-5"), (["--rows=many"], "ROWS='many'"),
        (["--rows="], "ROWS=''"),
        (["--passes=0"], "PASSES=0"), (["--warmup=-1"], "WARMUP=-1"), (["--seed=1.5"], "SEED='1.5'"),
        (["--connections=0"], "CONNECTIONS=0"), (["--duration=0"], "DURATION=0"),
        (["--duration=long"], "DURATION='long'"),
        (["--warmup-duration=-1"], "WARMUP_DURATION=-1"), (["--rate=nan"], "RATE=nan"),
        (["--preset=huge"], "PRESET='huge'"), (["--workload=huge"], "WORKLOAD='huge'"),
        (["--notebooks=77"], "no notebook '77'"), (["--servers=cloud"], "SERVERS='cloud'"),
        (["--scheduler=here"], "SCHEDULER='here'"),
    ],
)  # fmt: skip
def test_bad_input_is_named_and_nothing_is_written(
    arguments: list[str], said: str, tmp_path: Path, within: RunsCommand
) -> None:
    done = within("run", *arguments, f"--out={tmp_path / 'out'}", state_dir=tmp_path / "state")
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "state").exists()


def test_out_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path, within: RunsCommand) -> None:
    (tmp_path / "out").write_text("a file")
    done = within("run", f"--out={tmp_path / 'out'}", state_dir=tmp_path / "state")
    assert done.returncode == 2
    assert "choose a directory that can be written" in done.stderr
    assert not (tmp_path / "state").exists()


def test_a_mistyped_variable_is_refused_by_make() -> None:
    done = subprocess.run(["make", "all", "ROWZ=10"], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "unknown variable ROWZ" in done.stderr


def test_make_help_lists_every_target() -> None:
    done = subprocess.run(["make", "help"], cwd=PROJECT, capture_output=True, text=True, check=True)
    for target in (
        "setup", "all", "mine", "tools", "test", "lab", "explore", "compare", "submit", "report", "servers",
        "stop", "clean",
    ):  # fmt: skip
        assert f"make {target}" in done.stdout


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"FRAMEHAUL_POSTGRES_DSN": "postgresql://u:hidden@127.0.0.1:1/x", "FRAMEHAUL_CLICKHOUSE_URL": "http://u:hidden@127.0.0.1:1/x"},
         "127.0.0.1:1"),
        ({"FRAMEHAUL_POSTGRES_DSN": "postgresql://u:hidden@127.0.0.1:1/x"}, "FRAMEHAUL_CLICKHOUSE_URL"),
    ],
)  # fmt: skip
def test_unreachable_external_servers_are_named(
    environment: dict[str, str], said: str, tmp_path: Path, within: RunsCommand
) -> None:
    done = within(
        "run", "--servers=external", "--notebooks=01", "--rows=10", f"--out={tmp_path / 'out'}",
        state_dir=tmp_path / "state", **environment,
    )  # fmt: skip
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "hidden" not in done.stdout + done.stderr
    assert not list((tmp_path / "out").rglob("postgres_write.csv"))


def test_a_failing_notebook_is_kept_apart_and_said_wherever_temporary_files_lie(tmp_path: Path) -> None:
    deep = tmp_path / "long name" / ("x" * 180)  # no socket has so long a path
    deep.mkdir(parents=True)
    done = run_command(
        "run", "--notebooks=05", f"--out={tmp_path}", state_dir=tmp_path / "state", TMPDIR=str(deep)
    )  # fmt: skip
    assert done.returncode == 1
    assert "05_summary" in done.stderr
    assert "no results yet" in done.stderr
    assert not (tmp_path / "reports" / "05_summary.html").exists()
    assert (tmp_path / "reports" / "failed" / "05_summary.html").exists()
    assert "failed/05_summary.html" in (tmp_path / "reports" / "index.html").read_text()
    assert 'href="../index.html"' in (tmp_path / "reports" / "failed" / "05_summary.html").read_text()


@pytest.mark.slow
def test_an_interrupted_run_keeps_what_was_finished_and_leaves_no_process(open_dir: Path, tmp_path: Path) -> None:
    """Two notebooks at once, which only a smoke run has."""
    studies, state = ["01_postgres_write", "03_clickhouse_write"], open_dir / "interrupted"
    partials = [tmp_path / "results" / f"{name.partition('_')[2]}.partial.csv" for name in studies]
    command = [
        sys.executable, "-m", "framehaul", "run", f"--notebooks={' '.join(name[:2] for name in studies)}",
        "--preset=smoke", "--rows=2000", "--passes=50",
    ]  # fmt: skip
    log = (tmp_path / "log").open("w")
    with log, subprocess.Popen(
        [*command, f"--out={tmp_path}"], cwd=PROJECT, stdout=log, stderr=log, start_new_session=True,
        env=os.environ | {"FRAMEHAUL_STATE_DIR": str(state)},
    ) as running:  # fmt: skip
        while not all(partial.exists() and len(partial.read_text().splitlines()) > 2 for partial in partials):
            assert running.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.1)
        family = psutil.Process(running.pid).children(recursive=True)
        assert family
        os.killpg(running.pid, signal.SIGINT)
    assert running.returncode == 130
    assert "interrupted" in (tmp_path / "log").read_text()
    for partial in partials:
        assert len(partial.read_text().splitlines()) > 2
        assert not partial.with_name(partial.name.replace(".partial", "")).exists()
    assert not psutil.wait_procs(family, timeout=60)[1]
    assert not is_kept(state)


def test_clean_removes_state_and_pages_and_leaves_results_and_what_was_built(
    within: RunsCommand, tmp_path: Path
) -> None:
    state, out = tmp_path / "state", tmp_path / "out"
    gone = [
        state / "clickhouse" / "data",
        state / "supervisor.log",
        state / "lane-2147483647-abcdefgh" / "servers.json",
    ]
    gone += [out / "reports" / name for name in ("index.html", "run.log", "01_postgres_write.html", "20_own_data/x.py")]
    gone += [out / "results" / "run.partial.json"]
    kept = [state / "tools" / "bin" / "json2parquet", out / "results" / "postgres_write.csv"]
    kept += [state / "lane-notes" / "theirs", state / "theirs.txt", out / "reports" / "quarterly.html"]
    for path in (*gone, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert within("clean", f"--out={out}", state_dir=state).returncode == 0
    assert [path for path in (*gone, *kept) if path.exists()] == kept


@pytest.mark.parametrize("name", ["08_fidelity", "09_faults"])
def test_a_study_that_tries_all_techniques_is_given_hours(name: str) -> None:
    """On a machine that did much else each took half an hour, which is what every study is given."""
    study = next(one for one in studies() if one.notebook == name)
    patience = imported(study.patience)
    assert patience({"tried": "all"}) > 3600 > 5 * patience({"tried": "directions"})
