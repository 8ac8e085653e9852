"""Runs of other machines: a good one is taken, whole; one of any fault is not, and the fault is named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from framehaul import collected
from framehaul.bench import recording, store
from framehaul.bench.store import writing
from framehaul.errors import ResultsError, SettingsError
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
def known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machines, "git", lambda *asked: "" if COMMIT in asked[-1] else None)
    monkeypatch.setattr(store, "MACHINES", tmp_path / "machines")


@pytest.fixture
def run(good: Path, tmp_path: Path) -> Path:
    return shutil.copytree(good, tmp_path / "run")


def test_a_good_run_is_taken_and_stands_on_the_page(run: Path, tmp_path: Path) -> None:
    (run / "notes.csv").write_text("what nobody else needs")
    place = machines.submit(run, "my-laptop")
    assert place == tmp_path / "machines" / "my-laptop" / DAY
    assert {one.name for one in place.iterdir()} == {"environment.json", *(study.results for study in TRANSFERS)}
    assert [one["name"] for one in collected.page(run)["runs"]] == ["this run"]  # and not a second time
    (theirs,) = collected.page(tmp_path / "nothing measured yet")["runs"]
    assert theirs["name"] == f"my-laptop, {DAY}, up to 1,000 rows"
    with pytest.raises(ResultsError, match="exists already"):
        machines.submit(run, "my-laptop")


FILE = "postgres_read.csv"
type Damage = Callable[[Path], object]


def changed(file: str, old: str, new: str, times: int = -1) -> Damage:
    return lambda run: (run / file).write_text((run / file).read_text().replace(old, new, times))


def without_a_round(run: Path) -> None:
    pl.read_csv(run / FILE, infer_schema=False).filter(pl.col("pass") != "6").write_csv(run / FILE)


DAMAGED: list[tuple[Damage, str]] = [
    (changed("environment.json", COMMIT, "x-dirty"), "x-dirty: changed, or not in this repository"),
    (changed("environment.json", COMMIT, "cba987654321", 1), "made at several commits"),
    (changed(FILE, ",ok,,", ",failed,x,", 1), "failed"),
    (without_a_round, "5 rounds are too few"),
    (lambda run: (run / FILE).write_text((run / FILE).read_text()[:-20_000]), FILE),
    (lambda run: (run / "clickhouse_read.csv").unlink(), "clickhouse_read.csv is missing"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGED, ids=[said for _, said in DAMAGED])
def test_what_is_wrong_with_a_run_is_named_and_leaves_nothing(damage: Damage, said: str, run: Path) -> None:
    damage(run)
    with pytest.raises(ResultsError, match=said):
        machines.submit(run, "my-laptop")
    assert not store.MACHINES.exists()


def test_a_name_that_is_none_and_a_run_that_is_not_there_are_refused(run: Path, tmp_path: Path) -> None:
    for bad in ("", "My Laptop", "../x", "a/b", "-x-"):
        with pytest.raises(SettingsError, match="MACHINE="):
            machines.submit(run, bad)
    with pytest.raises(ResultsError, match="no finished run"):
        machines.submit(tmp_path, "my-laptop")
