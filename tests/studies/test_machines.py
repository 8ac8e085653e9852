"""Runs of other machines: a good one is taken, whole; one of any fault is not, and the fault is named."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from framehaul.__main__ import main
from framehaul.bench import committed
from framehaul.bench.store import Writer
from framehaul.errors import ResultsError, SettingsError
from framehaul.settings import PROJECT
from framehaul.studies import collected, machines
from framehaul.studies.transfers import STUDIES as TRANSFERS
from framehaul.techniques import techniques
from framehaul.techniques.registry import Direction
from tests.bench.test_store import result

DAY = "2026-11-30"
COMMIT = "0123456789ab"


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run as it has to be."""
    directory = tmp_path_factory.mktemp("good")
    runs = {}
    for study in TRANSFERS:
        database, direction = study.name.split("_")
        assert direction in get_args(Direction)
        for_run = {"run_id": study.name, "notebook": study.notebook, "database": database, "direction": direction}
        with Writer(directory / study.results) as writer:
            for one in techniques():
                if (one.database, one.direction) == (database, direction):
                    who = {"label": one.label, "origin": one.origin, "family": one.family, "driver": one.driver,
                           "frame": one.frame, "contract": one.contract and one.contract.kind}  # fmt: skip
                    for number in range(1, 7):
                        writer.write(result(one.name, number, 0.5 + number / 100, **for_run, **who))
        runs[study.notebook] = {
            "run_id": study.name, "started": f"{DAY} 10:00 UTC", "seed": 20260407, "rows": 1000, "passes": 6,
            "warmup": 1, "commit": COMMIT, "made_with": "these",
        }  # fmt: skip
    machine = {"cpu": "A CPU", "cores": 8, "memory_gib": 31.2, "system": "Linux"}
    environment = {"commit": COMMIT, "libraries": {}, "python": "3.13", "machine": machine, "runs": runs}
    (directory / "environment.json").write_text(json.dumps(environment))
    return directory


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "_known", lambda commit: commit == COMMIT)


@pytest.fixture
def run(good: Path, tmp_path: Path) -> Path:
    return shutil.copytree(good, tmp_path / "run")


def test_a_good_run_is_taken_and_stands_on_the_page(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "timing.csv").write_text("what nobody else needs")
    (run / "figures").mkdir()
    monkeypatch.setattr(committed, "MACHINES", tmp_path / "machines")
    place = machines.submit(run, "my-laptop")
    assert place == tmp_path / "machines" / "my-laptop" / DAY
    assert {one.name for one in place.iterdir()} == {"environment.json", *(study.results for study in TRANSFERS)}
    assert machines.problems(place) == []
    assert [one["name"] for one in collected.page(run)["runs"]] == ["this run"]  # and not a second time
    (theirs,) = collected.page(tmp_path / "nothing measured yet")["runs"]
    assert theirs["name"] == f"my-laptop, {DAY}, up to 1,000 rows"
    assert "A CPU, 8 cores, 31.2 GiB" in theirs["machine"]
    another = shutil.copytree(run, tmp_path / "another")
    metadata = (another / "environment.json").read_text()
    (another / "environment.json").write_text(metadata.replace('"run_id": "', '"run_id": "other-'))
    assert [one["name"] for one in collected.page(another)["runs"]] == ["this run", theirs["name"]]
    with pytest.raises(ResultsError, match="there already"):
        machines.submit(run, "my-laptop")
    monkeypatch.setattr("sys.argv", ["framehaul", "submitted", str(place)])
    assert main() == 0
    assert "can be taken" in capsys.readouterr().out


Rows = list[dict[str, str]]


def of_rows(edit: Callable[[Rows], Rows]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        path = run / "postgres_read.csv"
        rows = edit([*csv.DictReader(path.read_text().splitlines())])
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)

    return damage


def of_row(change: Callable[[dict[str, str]], object]) -> Callable[[Path], None]:
    """Changes the first row of a file."""

    def edit(rows: Rows) -> Rows:
        change(rows[0])
        return rows

    return of_rows(edit)


def only(keep: Callable[[dict[str, str]], bool]) -> Callable[[Path], None]:
    return of_rows(lambda rows: [row for row in rows if keep(row)])


def of_environment(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        environment = json.loads((run / "environment.json").read_text())
        change(environment)
        (run / "environment.json").write_text(json.dumps(environment))

    return damage


def all_runs(**values: Any) -> Callable[[Path], None]:
    return of_environment(lambda found: [one.update(values) for one in found["runs"].values()])


def made_at(run: Path, commit: str) -> None:
    all_runs(commit=commit)(run)
    of_environment(lambda found: found.update(commit=commit))(run)


def cut_off(run: Path) -> None:
    text = (run / "postgres_read.csv").read_text()
    (run / "postgres_read.csv").write_text(text[: -len(text) // 3])


DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "several commits": (of_environment(lambda found: found.update(commit=f"{COMMIT}-dirty")), "several commits"),
    "changed code": (lambda run: made_at(run, "x-dirty"), "code that was changed"),
    "unknown commit": (lambda run: made_at(run, "f" * 12), "does not have"),
    "other data": (all_runs(seed=1), "SEED=1"),
    "several machines": (
        of_environment(lambda found: found["runs"]["01_postgres_write"].update(made_with="other")), "several machines"
    ),
    "no number": (of_row(lambda row: row.update(client_cpu_s="nan")), "client_cpu_s has a number that is none"),
    "a hostile run": (all_runs(run_id=[]), "not those of the run"),
    "broken record": (lambda run: (run / "environment.json").write_text("{"), "cannot be read"),
    "few rounds of one": (
        only(lambda row: row["technique"] != "polars_adbc_fetch" or int(row["pass"]) < 3), "2 rounds are too few"
    ),
    "made faster": (of_row(lambda row: row.update(rows_per_s="9999")), "other rows/s"),
    "failed": (of_row(lambda row: row.update(status="failed", seconds="", rows_per_s="", reason="x")), "failed"),
    "unknown technique": (of_row(lambda row: row.update(technique="polars_mine_best")), "no technique"),
    "other label": (of_row(lambda row: row.update(label="<b>mine</b>")), "or of another name"),
    "one left out": (only(lambda row: row["technique"] != "polars_adbc_fetch"), "polars_adbc_fetch is missing"),
    "twice": (of_row(lambda row: row.update({"pass": "2"})), "twice"),
    "other direction": (of_row(lambda row: row.update(direction="write")), "another direction"),
    "cut off": (cut_off, "postgres_read.csv"),
    "no file": (lambda run: (run / "clickhouse_read.csv").unlink(), "clickhouse_read.csv is missing"),
    "other file": (lambda run: (run / "run.sh").write_text("rm -rf /"), "run.sh"),
    "a link": (lambda run: (run / "scaling.csv").symlink_to("/etc/passwd"), "scaling.csv"),
    "too large": (
        lambda run: (run / "scaling.csv").write_bytes(b"x" * (machines.MOST_BYTES + 1)),
        "bytes are too many: a run has at most 20,000,000; run it with PROFILE=0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_wrong_with_a_run_is_named_and_it_is_not_taken(name: str, run: Path) -> None:
    damage, said = DAMAGED[name]
    damage(run)
    found = machines.problems(run)
    assert found
    assert any(said in one for one in found), found


def test_a_run_that_is_refused_leaves_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed, "MACHINES", tmp_path / "machines")
    only(lambda row: int(row["pass"]) < 4)(run)
    with pytest.raises(ResultsError, match=r"not taken:\n- postgres_read\.csv: 3 rounds"):
        machines.submit(run, "my-laptop")
    (run / "postgres_read.partial.csv").touch()
    with pytest.raises(ResultsError, match="has not ended"):
        machines.submit(run, "my-laptop")
    for bad in ("", "My Laptop", "../x", "a/b", "-x-"):
        with pytest.raises(SettingsError, match="MACHINE="):
            machines.submit(run, bad)
    with pytest.raises(ResultsError, match="no run that is done"):
        machines.submit(tmp_path, "my-laptop")
    assert not (tmp_path / "machines").exists()


def test_ci_reads_what_comes_and_runs_none_of_it(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "project"
    python = home / ".venv" / "bin" / "python"
    for directory in (home / ".ci", python.parent):
        directory.mkdir(parents=True)
    shutil.copy(PROJECT / ".ci" / "machines", home / ".ci" / "machines")
    # What stands for the checker says what it was given.
    python.write_text('#!/bin/sh\nshift 3\nfor run in "$@"; do ls -l "$run"; done\n')
    python.chmod(0o755)
    (home / "Makefile").write_text("setup:\n\t@true\n")
    (home / ".gitignore").write_text(".venv\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")

    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=x", "-c", "user.email=x@x", *arguments]
        return subprocess.run(command, cwd=home, check=True, capture_output=True, text=True).stdout

    git("init", "-q", "-b", "main")
    git("add", ".")
    git("commit", "-qm", "base")

    def looked(bring: Callable[[Path], object]) -> tuple[int, str]:
        """What is said of a branch that brings a run and this."""
        git("switch", "-qC", "theirs", "main")
        bring(shutil.copytree(run, home / "machines" / "x-1" / DAY))
        git("add", "-A", "-f", "machines")
        git("commit", "-qm", "theirs", "--allow-empty")
        git("switch", "-q", "main")
        done = subprocess.run([".ci/machines", "main", "theirs"], cwd=home, check=False, capture_output=True, text=True)
        assert git("status", "--short") == ""
        assert not [path for path in (home / "machines").rglob("*") if path.is_file()]
        shutil.rmtree(home / "machines", ignore_errors=True)
        return done.returncode, done.stdout + done.stderr

    code, said = looked(lambda theirs: None)
    assert code == 0, said
    assert "postgres_read.csv" in said
    _, said = looked(lambda theirs: (theirs / "scaling.csv").symlink_to("/etc/passwd"))
    assert "->" not in said  # a link comes as text, and reads nothing
    for name in ("run.sh", "a b.csv"):
        code, said = looked(lambda theirs, name=name: (theirs / name).touch())  # type: ignore[misc]
        assert (code, "not taken" in said) == (1, True)
    assert looked(shutil.rmtree) == (0, "no runs in this change\n")
