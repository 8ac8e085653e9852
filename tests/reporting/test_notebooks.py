"""A run of notebooks: what runs in parallel, what it prints, and where an interrupted run continues."""

import csv
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from framehaul.bench import environment, store
from framehaul.bench.study import Study
from framehaul.reporting import notebooks
from framehaul.reporting.notebooks import LANES, Plan, in_parallel, logged, stages
from framehaul.reporting.tables import machines_text
from framehaul.settings import PRESETS, Settings
from framehaul.studies import registry


def plan(out: Path, wanted: str = "01 02 05", **changes: Any) -> Plan:
    (out / "results").mkdir(exist_ok=True)
    chosen = [(one, registry.values(one, "quick", {})) for one in registry.chosen(wanted)]
    return Plan(chosen, Settings(out=out, **changes))


def test_it_says_what_runs_what_is_next_and_keeps_where_the_time_went(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = plan(tmp_path)
    for study, values in made.left:
        with made.running(study, values):
            pass
    made.end(whole=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("quick: 3 notebooks, about ")
    assert lines[1].startswith("== 01_postgres_write (1 of 3; next: 02_postgres_read, about ")
    rows = [*csv.DictReader((tmp_path / "results" / "timing.csv").read_text().splitlines())]
    assert [row["notebook"] for row in rows] == ["01_postgres_write", "02_postgres_read", "05_summary"]


def test_an_interrupted_run_continues_with_what_is_left_or_failed_on_the_same_terms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        made = plan(tmp_path)
        for study, _ in made.left[1:]:
            made.finished(study)

    interrupted()
    assert [study.number for study, _ in plan(tmp_path).left] == ["01", "05"]
    assert "resumes an interrupted run, which finished 02_postgres_read 05_summary" in capsys.readouterr().out
    assert len(plan(tmp_path, fresh=True).left) == 3
    assert len(plan(tmp_path, "01 02 03").left) == 3, "another selection is another run"
    with monkeypatch.context() as other:
        other.setattr(environment, "digest", lambda _: "other libraries, or another machine")
        assert len(plan(tmp_path).left) == 3
    (tmp_path / "results" / "run.partial.json").write_text('{"finished": ["01_')
    assert len(plan(tmp_path).left) == 3
    interrupted()
    plan(tmp_path).end(whole=False)
    assert len(plan(tmp_path).left) == 2
    plan(tmp_path).end(whole=True)
    assert len(plan(tmp_path).left) == 3, "nothing is left of a run that ended"


def test_a_log_has_whole_lines_and_the_last_state_of_a_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with logged(tmp_path / "run.log"):
        print("== 01", flush=True)
        for part in ("\r10%", "\r50%", "\r100%\n", "unfinished"):
            sys.stdout.write(part)
        print("trouble", file=sys.stderr)
        taken = sys.stdout
    print("afterwards", file=taken, flush=True)
    lines = [line.split(" ", 1)[1] for line in (tmp_path / "run.log").read_text().splitlines()]
    assert lines == ["== 01", "100%", "trouble"]
    assert capsys.readouterr().out == "== 01\n\r10%\r50%\r100%\nunfinishedafterwards\n"


@pytest.mark.parametrize("preset", PRESETS)
def test_only_what_takes_no_time_runs_in_parallel(tmp_path: Path, preset: Any) -> None:
    left = plan(tmp_path, "", preset=preset).left
    staged = stages(left, preset)
    assert [pair for stage in staged for pair in stage] == left
    several = [[study for study, _ in stage] for stage in staged if len(stage) > 1]
    for stage in several:
        assert len({one.only_reads for one in stage}) == 1, "what only reads waits for what measures"
        assert stage[0].only_reads or not any(one.holds for one in stage)
    assert preset == "smoke" or [[study.number for study in stage] for stage in several] == [["08", "09"]]


def run(names: str, work: Callable[[Study], Any]) -> list[str]:
    """Run studies of these names in parallel, and return the names of those that ended well."""
    ended: list[str] = []
    pairs: list[notebooks.Pair] = [(Study(name, "?"), {}) for name in names]
    in_parallel(pairs, lambda study, _, __: work(study), lambda study, _: ended.append(study.notebook))
    return ended


def test_all_lanes_are_used_and_an_exception_ends_the_others_and_nothing_further_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel that heeds no interrupt is killed, and no process but kernels is touched."""
    assert sorted(run("abcdefg", lambda study: study.notebook)) == [*"abcdefg"]
    monkeypatch.setattr(notebooks, "PATIENCE_SECONDS", 0.5)
    deaf = "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); sys.stdin.read()"
    other = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    begun: list[str] = []
    every = threading.Barrier(LANES, timeout=60)

    def work(study: Study) -> None:
        begun.append(study.notebook)
        code = deaf if study.notebook == "b" else "import time; print(flush=True); time.sleep(600)"
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE) | {"stderr": subprocess.DEVNULL}
        with subprocess.Popen([sys.executable, "-c", code, "ipykernel"], **pipes) as kernel:
            assert kernel.stdout is not None
            kernel.stdout.readline()
            every.wait()
            if study.notebook == "a":
                kernel.kill()
                raise RuntimeError("no disk")
            assert kernel.wait() == (-9 if study.notebook == "b" else -2)

    with pytest.raises(RuntimeError, match="no disk"):
        run("abcd", work)
    assert sorted(begun) == ["a", "b", "c"]
    assert other.poll() is None
    other.communicate()
    assert other.returncode == 0


def test_runs_of_two_processes_are_both_recorded(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from framehaul.bench import store\n"
        "for at in range(40): store.write_run(Path(sys.argv[1]), {}, f'{sys.argv[2]}{at}', {'run_id': 'x'})"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name]) for name in "ab"]
    assert [one.wait() for one in both] == [0, 0]
    assert set(store.read_metadata(tmp_path)["runs"]) == {f"{name}{at}" for name in "ab" for at in range(40)}


def test_an_earlier_run_keeps_its_machine(tmp_path: Path) -> None:
    for notebook, cpu in (("a", "old"), ("b", "new"), ("c", "newest"), ("b", "newest")):
        made_with = {"machine": {"cpu": cpu}, "python": "3.13", "libraries": {}}
        store.write_run(tmp_path, made_with, notebook, {"made_with": cpu})
    metadata = store.read_metadata(tmp_path)
    assert [machines_text(metadata, [metadata["runs"][name]]) for name in "abc"] == ["old", "newest", "newest"]
    assert machines_text(metadata, metadata["runs"].values()) == "old; newest"
