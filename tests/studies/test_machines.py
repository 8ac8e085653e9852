"""Runs of other machines: a good one is taken, whole; one of any fault is not, and the fault is named."""

import json
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from framehaul import collected
from framehaul.__main__ import main
from framehaul.bench import recording, store
from framehaul.bench.store import writing
from framehaul.errors import ResultsError, SettingsError
from framehaul.settings import PROJECT
from framehaul.studies import machines
from framehaul.studies.registry import TRANSFERS
from framehaul.techniques import techniques
from tests.bench.test_store import result

DAY = "2026-11-30"
COMMIT = "0123456789ab"


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run as it has to be."""
    directory = tmp_path_factory.mktemp("good")
    runs = {}
    for study in TRANSFERS:
        of_run = {"run_id": study.name, "notebook": study.notebook}
        with writing(directory / study.results) as writer:
            for one in (one for one in techniques() if f"{one.database}_{one.direction}" == study.name):
                which = recording.which(one) | {"driver": one.driver, "contract": one.contract and one.contract.kind}
                for number in range(1, 7):
                    writer.write(result(number=number, seconds=0.5 + number / 100, **which, **of_run))
        run = {"run_id": study.name, "started": f"{DAY} 10:00 UTC", "rows": 1000, "passes": 6, "warmup": 1}
        runs[study.notebook] = run | {"seed": 20260407, "commit": COMMIT, "made_with": "these"}
    machine = {"cpu": "A CPU", "cores": 8, "memory_gib": 31.2, "system": "Linux"}
    environment = {"commit": COMMIT, "libraries": {}, "python": "3.13", "machine": machine, "runs": runs}
    (directory / "environment.json").write_text(json.dumps(environment))
    return directory


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "git", lambda *asked: "" if COMMIT in asked[-1] else None)


@pytest.fixture
def run(good: Path, tmp_path: Path) -> Path:
    return shutil.copytree(good, tmp_path / "run")


def test_a_good_run_is_taken_and_stands_on_the_page(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "notes.csv").write_text("what nobody else needs")
    (run / "figures").mkdir()
    monkeypatch.setattr(store, "MACHINES", tmp_path / "machines")
    place = machines.submit(run, "my-laptop")
    assert place == tmp_path / "machines" / "my-laptop" / DAY
    assert {one.name for one in place.iterdir()} == {"environment.json", *(study.results for study in TRANSFERS)}
    assert [one["name"] for one in collected.page(run)["runs"]] == ["this run"]  # and not a second time
    (theirs,) = collected.page(tmp_path / "nothing measured yet")["runs"]
    assert theirs["name"] == f"my-laptop, {DAY}, up to 1,000 rows"
    with pytest.raises(ResultsError, match="exists already"):
        machines.submit(run, "my-laptop")
    monkeypatch.setattr("sys.argv", ["framehaul", "submitted", str(place)])
    assert main() == 0
    assert "can be taken" in capsys.readouterr().out


FILE = "postgres_read.csv"
type Damage = Callable[[Path], object]


def rows(keep: pl.Expr | bool = True, **of_first: str) -> Damage:
    """Keeps some rows of a file, and changes values of the first."""

    def damage(run: Path) -> None:
        kept = pl.read_csv(run / FILE, infer_schema=False).filter(keep)
        changed = {name.rstrip("_"): pl.lit(value or None, pl.String) for name, value in of_first.items()}
        pl.concat([kept[:1].with_columns(**changed), kept[1:]]).write_csv(run / FILE)

    return damage


def record(of_runs: dict[str, Any] | None = None, **values: Any) -> Damage:
    """Changes environment.json: what it says of each run, and the rest."""

    def damage(run: Path) -> None:
        known = json.loads((run / "environment.json").read_text())
        known |= {"runs": {name: one | (of_runs or {}) for name, one in known["runs"].items()}} | values
        (run / "environment.json").write_text(json.dumps(known))

    return damage


DAMAGED: list[tuple[Damage, str]] = [
    (record({"commit": "x-dirty"}, commit="x-dirty"), "x-dirty: changed, or not in this repository"),
    (record({"seed": 1}), "SEED=1"),
    (record(machine={}), "machine's cpu"),
    (record({"run_id": "other"}), "not those of a run"),
    (record({"started": "yesterday"}), "a run with a date"),
    (rows(status="failed", seconds="", rows_per_s="", reason="x"), "failed"),
    (rows(rows_per_s="9999"), "other rows/s"),
    (rows(client_cpu_s="inf"), "client_cpu_s has a value that is no finite number"),
    (rows(label="mine"), "has another label"),
    (rows(pass_="2"), "twice"),
    (rows(pl.col("pass") != "6"), "5 rounds are too few"),
    (rows(pl.col("technique") != "polars_adbc_fetch"), "polars_adbc_fetch is missing"),
    (lambda run: (run / FILE).write_text((run / FILE).read_text()[:-20_000]), FILE),
    (lambda run: (run / "clickhouse_read.csv").unlink(), "clickhouse_read.csv is missing"),
    (lambda run: (run / "run.sh").write_text("rm -rf /"), "run.sh"),
    (lambda run: (run / "scaling.csv").symlink_to("/etc/passwd"), "scaling.csv"),
    (lambda run: (run / "scaling.csv").write_bytes(b"x" * 4_000_001), "a run has at most 4,000,000; measure"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGED, ids=[said for _, said in DAMAGED])
def test_what_is_wrong_with_a_run_is_named_and_it_is_not_taken(damage: Damage, said: str, run: Path) -> None:
    damage(run)
    found = machines.problems(run)
    assert any(said in one for one in found), found


def test_a_run_that_is_refused_leaves_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MACHINES", tmp_path / "machines")
    rows(pl.col("pass") < "4")(run)
    with pytest.raises(ResultsError, match=r"not taken:\n- postgres_read\.csv: 3 rounds"):
        machines.submit(run, "my-laptop")
    (run / "postgres_read.partial.jsonl").touch()
    with pytest.raises(ResultsError, match="has not ended"):
        machines.submit(run, "my-laptop")
    for bad in ("", "My Laptop", "../x", "a/b", "-x-"):
        with pytest.raises(SettingsError, match="MACHINE="):
            machines.submit(run, bad)
    with pytest.raises(ResultsError, match="no finished run"):
        machines.submit(tmp_path, "my-laptop")
    assert not (tmp_path / "machines").exists()


def test_ci_reads_what_comes_and_runs_none_of_it(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkout to which somebody's branch brings files."""
    home = tmp_path / "project"
    for directory in (".venv/bin", ".ci"):
        (home / directory).mkdir(parents=True)
    shutil.copy(PROJECT / ".ci" / "machines", home / ".ci" / "machines")
    # What stands for the checker says what it was given.
    (home / ".venv/bin/python").write_text('#!/bin/sh\nshift 3\nfor run in "$@"; do ls -l "$run"; done\n')
    (home / ".venv/bin/python").chmod(0o755)
    (home / "Makefile").write_text("setup:\n\t@true\n")
    (home / ".gitignore").write_text(".venv\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    brought = partial(shutil.copytree, run, home / "machines" / "x-1" / DAY)

    def git(arguments: str) -> str:
        command = ["git", "-c", "user.name=x", "-c", "user.email=x@x", *arguments.split()]
        return subprocess.run(command, cwd=home, check=True, capture_output=True, text=True).stdout

    for command in ("init -q -b main", "add .", "commit -qm base"):
        git(command)

    def checked(bring: Callable[[], object]) -> tuple[int, str]:
        """What CI says of a branch."""
        git("switch -qC theirs main")
        (home / "machines").mkdir()
        bring()
        for command in ("add -A -f machines", "commit -qm theirs --allow-empty", "switch -q main"):
            git(command)
        done = subprocess.run([".ci/machines", "main", "theirs"], cwd=home, check=False, capture_output=True, text=True)
        assert git("status --short") == ""
        assert not [path for path in (home / "machines").rglob("*") if path.is_file()]
        shutil.rmtree(home / "machines", ignore_errors=True)
        return done.returncode, done.stdout + done.stderr

    code, said = checked(brought)
    assert (code, "postgres_read.csv" in said, "->" in said) == (0, True, False), said
    _, said = checked(lambda: (brought() / "scaling.csv").symlink_to("/etc/passwd"))
    assert "->" not in said  # a link comes as text, and reads nothing
    for bring in (lambda: (brought() / "run.sh").write_text("true"), (home / "machines" / "a b.csv").touch):
        code, said = checked(bring)
        assert (code, "not taken" in said) == (1, True)
    assert checked(lambda: None) == (0, "no runs in this change\n")
