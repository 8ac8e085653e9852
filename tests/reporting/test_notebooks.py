"""A run of notebooks: what it prints, and where an interrupted run continues."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from framehaul.bench import environment, store
from framehaul.reporting.notebooks import Plan
from framehaul.reporting.tables import machines_text
from framehaul.settings import Settings
from framehaul.studies import registry


def plan(out: Path, wanted: str = "01 02 05", **changes: Any) -> Plan:
    (out / "results").mkdir(exist_ok=True)
    chosen = [(one, registry.values(one, "quick", {})) for one in registry.chosen(wanted)]
    return Plan(chosen, Settings(out=out, **changes))


def test_it_says_what_runs_and_what_is_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = plan(tmp_path)
    for at in (0, 2):
        made.announce(at)
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("quick: 3 notebooks, about ")
    assert second.startswith("== 01_postgres_write (1 of 3; next: 02_postgres_read, about ")
    assert last.startswith("== 05_summary (3 of 3; about ")


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
