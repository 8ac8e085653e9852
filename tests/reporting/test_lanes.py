"""Which notebooks run beside each other, and that what shares a table does not."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from framehaul.bench import store
from framehaul.bench.study import Study
from framehaul.reporting import progress
from framehaul.reporting.tables import machines_text
from framehaul.settings import PRESETS, load_settings
from framehaul.studies import registry


def test_only_what_takes_no_time_runs_beside_others() -> None:
    chosen: list[progress.Pair] = [(study, {}) for study in registry.chosen("")]
    for preset in PRESETS:
        left = progress.Plan(chosen, replace(load_settings(), preset=preset, fresh=True)).left
        stages = progress.stages(left, preset)
        assert [pair for stage in stages for pair in stage] == left
        several = [[study for study, _ in stage] for stage in stages if len(stage) > 1]
        for stage in several:
            assert len({one.only_reads for one in stage}) == 1, "what only reads waits for what measures"
            assert stage[0].only_reads or not any(one.holds for one in stage)
        if preset != "smoke":
            assert [[study.number for study in stage] for stage in several] == [["08", "09"]]


def run(names: str, work: Callable[[Study], Any]) -> list[str]:
    """Run studies of these names beside each other; gives their names as they ended well."""
    ended: list[str] = []
    pairs: list[progress.Pair] = [(Study(name, "?"), {}) for name in names]
    progress.in_parallel(pairs, lambda study, _, __: work(study), lambda study, _, __: ended.append(study.notebook))
    return ended


def test_as_many_run_at_once_as_there_are_lanes() -> None:
    active, most, lock = 0, 0, threading.Lock()

    def work(_: Study) -> None:
        nonlocal active, most
        with lock:
            active += 1
            most = max(most, active)
        time.sleep(0.02)
        with lock:
            active -= 1

    assert sorted(run("abcdefg", work)) == [*"abcdefg"]
    assert most == progress.LANES


def test_what_one_raises_ends_the_others_and_nothing_further_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that heeds no interrupt is killed, and no process but kernels is touched."""
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.5)
    deaf = "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); sys.stdin.read()"
    other = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    begun: list[str] = []
    every = threading.Barrier(progress.LANES, timeout=60)

    def work(study: Study) -> None:
        begun.append(study.notebook)
        code = deaf if study.notebook == "b" else "import time; print(flush=True); time.sleep(600)"
        with subprocess.Popen(
            [sys.executable, "-c", code, "ipykernel"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as kernel:  # fmt: skip
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
    cpus = {name: store.made_by(metadata, run)["machine"]["cpu"] for name, run in metadata["runs"].items()}
    assert cpus == {"a": "old", "b": "newest", "c": "newest"}
    assert machines_text(metadata, metadata["runs"].values()) == "old; newest"
