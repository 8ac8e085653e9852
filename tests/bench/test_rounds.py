"""The loop of every study: order, warm-up, skipping, failing, interruption, resumption."""

import json
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from framehaul.bench import recording, store
from framehaul.bench.rounds import Failed, Log, Ok, Pass, Rounds, Skipped, columns_of, in_rounds, interruptible
from framehaul.bench.study import ROWS, Study
from framehaul.errors import ResultsError, SettingsError, UnavailableError, WrongResultError
from framehaul.studies.registry import UPSERT_STUDY

TASKS = ["a", "b", "c", "d"]
type Recorded = list[tuple[str, int, Pass[Any]]]


def run(rounds: Rounds, measure: Any = lambda task, number: task) -> Recorded:
    recorded: Recorded = []
    in_rounds(TASKS, rounds, measure, Log(lambda *row: recorded.append(row)))
    return recorded


def test_every_task_runs_once_in_each_round_in_an_order_shuffled_anew_and_the_same_for_a_seed() -> None:
    recorded = run(Rounds(passes=8, warmup=2, seed=1), lambda *which: which)
    measured = [outcome.values for _, _, outcome in recorded if isinstance(outcome, Ok)]
    assert measured == [(task, number) for task, number, _ in recorded]
    assert sorted(measured) == [(task, number) for task in TASKS for number in range(1, 9)]
    assert len({tuple(task for task, number in measured if number == n) for n in range(1, 9)}) > 1
    first, again, other = (run(Rounds(8, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_what_cannot_run_is_skipped_once_for_all_and_what_raises_is_asked_again() -> None:
    asked: Counter[str] = Counter()
    absent, wrong = UnavailableError("there is no extension: build it"), WrongResultError("2 rows instead of 3")
    raised = {"a": absent, "b": wrong, "c2": RuntimeError("lost  the\nconnection")}

    def measure(task: str, number: int) -> int:
        asked[task] += 1
        if error := raised.get(task) or raised.get(f"{task}{number}"):
            raise error
        return number

    ended = {(task, number): found for task, number, found in run(Rounds(2, warmup=1), measure)}
    assert [ended["a", n] for n in (1, 2)] == [Skipped("there is no extension: build it")] * 2
    assert [ended["b", n] for n in (1, 2)] == [Failed("2 rows instead of 3")] * 2
    assert [ended["c", n] for n in (1, 2)] == [Ok(1), Failed("RuntimeError: lost the connection")]
    assert asked == {"a": 1, "b": 3, "c": 3, "d": 3}


def test_stop_ends_between_two_tasks_and_an_error_in_the_thread_is_raised() -> None:
    seen: list[str] = []

    def work(stop: threading.Event) -> None:
        def record(task: str, number: int, found: object) -> None:
            seen.append(task)
            if len(seen) == 6:
                stop.set()

        in_rounds(TASKS, Rounds(3), lambda *_: None, Log(record, stop=stop))

    with pytest.raises(KeyboardInterrupt):
        interruptible(work)
    assert len(seen) == 6


@dataclass(frozen=True)
class Row(store.Row):
    """A row of the study below."""

    task: str
    value: int | None = None


def study(rows: int, fail_after: int | None = None) -> list[tuple[str, int]]:
    """A study that dies after so many passes; what it measured."""
    measured: list[tuple[str, int]] = []

    @recording.recorded(Study("99_example", "", (ROWS,)), Row)
    def run(made: recording.Recording, *, rows: int) -> None:
        def measure(task: str, number: int) -> dict[str, Any]:
            if len([one for one in measured if one[1] > 0]) == fail_after:
                raise KeyboardInterrupt
            measured.append((task, number))
            return {"value": number}

        def row(task: str, number: int, found: Pass[dict[str, Any]]) -> Row:
            return Row(made.run_id, number, task, **columns_of(found))

        in_rounds(TASKS, Rounds(2, warmup=1), measure, made.log(row, str))

    run(rows=rows)
    return measured


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FRAMEHAUL_OUT", str(tmp_path))
    return tmp_path / "results"


def interrupt(results: Path) -> Path:
    with pytest.raises(KeyboardInterrupt):
        study(1, fail_after=5)
    partial = results / "example.partial.jsonl"
    assert len(partial.read_text().splitlines()) == 6  # the terms and five passes
    return partial


def test_an_interrupted_run_goes_on_where_it_ended(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = json.loads(interrupt(results).read_text().splitlines()[1])[0]
    measured = study(1)
    assert "goes on after 5 passes" in capsys.readouterr().out
    assert [number for _, number in measured if number > 0] == [2, 2, 2]
    assert len(measured) == 6  # a task that has nothing left needs no warm-up
    frame = store.read(results / "example.csv", Row)
    assert sorted(frame.select("task", "pass").rows()) == [(task, n) for task in TASKS for n in (1, 2)]
    assert set(frame["run_id"]) == {run_id}
    assert not [*results.glob("*.partial.*")]
    assert store.read_metadata(results)["runs"]["99_example"]["resumed_after"] == 5
    assert len(study(1)) == 12


def test_other_terms_fresh_and_damage_start_anew_and_a_row_that_was_cut_off_is_measured_again(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = interrupt(results).read_bytes()
    assert len(study(2)) == 12
    for damage in (b"", content.replace(b"[", b"\0", 1), b"\xff\xfe\n", b'"'):
        interrupt(results).write_bytes(damage)
        assert len(study(1)) == 12, damage
    partial = interrupt(results)
    assert len(store.read(results / "example.csv", Row)) == 8  # of the run before
    partial.write_bytes(partial.read_bytes()[:-4])
    assert len([number for _, number in study(1) if number > 0]) == 4
    interrupt(results)
    monkeypatch.setenv("FRAMEHAUL_FRESH", "1")
    assert len(study(1)) == 12


def test_an_invalid_parameter_is_named_before_a_run_begins(results: Path) -> None:
    for rows in (0, True, "x"):
        with pytest.raises(SettingsError, match=f"ROWS='?{rows}'?: give a whole number of at least 1"):
            study(rows)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="choose from all, "):
        UPSERT_STUDY.check({"tried": "some"})
    assert not results.exists()


def test_who_finds_another_run_at_work_takes_nothing_from_it(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.writing(results / "example.csv", Row):
        left = {path.name: path.read_bytes() for path in results.iterdir()}
        monkeypatch.setenv("FRAMEHAUL_FRESH", "1")
        with pytest.raises(ResultsError, match="is being written by another run"):
            study(1)
        assert {path.name: path.read_bytes() for path in results.iterdir()} == left
