"""What a run says of itself: what runs, what is next, how long it takes, and where an interrupted one goes on."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import pytest

from framehaul.bench import environment
from framehaul.reporting.progress import Plan, logged
from framehaul.settings import Settings
from framehaul.studies import registry


def plan(out: Path, notebooks: str = "01 02 05", **changes: Any) -> Plan:
    settings = Settings(out=out, **changes)
    (out / "results").mkdir(exist_ok=True)
    return Plan([(one, registry.values(one, "quick", {})) for one in registry.chosen(notebooks)], settings)


def test_it_says_what_runs_what_is_next_and_keeps_where_the_time_went(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with plan(tmp_path) as made:
        for study, values in made.left:
            with made.running(study, values):
                pass
        made.end(whole=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("quick: 3 notebooks, about ")
    assert lines[1].startswith("== 01_postgres_write (1 of 3; next: 02_postgres_read, about ")
    with (tmp_path / "results" / "timing.csv").open() as file:
        rows = [row["notebook"] for row in csv.DictReader(file)]
    assert rows == ["01_postgres_write", "02_postgres_read", "05_summary"]


def test_an_interrupted_run_goes_on_with_what_is_left_on_the_same_terms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        with pytest.raises(KeyboardInterrupt), plan(tmp_path) as made:
            for study, values in made.left:
                with made.running(study, values):
                    made.finished(study)
                    if study.number == "02":
                        raise KeyboardInterrupt

    interrupted()
    capsys.readouterr()
    with plan(tmp_path) as made:
        assert [study.number for study, _ in made.left] == ["05"]
    assert "resumes an interrupted run, which finished 01_postgres_write 02_postgres_read" in capsys.readouterr().out
    assert len(plan(tmp_path, fresh=True).left) == 3
    assert len(plan(tmp_path, "01 02 03").left) == 3, "another selection is another run"
    (tmp_path / "results" / "run.partial.json").write_text('{"finished": ["01_')
    assert len(plan(tmp_path).left) == 3
    interrupted()
    with monkeypatch.context() as other:
        other.setattr(environment, "digest", lambda _: "other libraries, or another machine")
        assert len(plan(tmp_path).left) == 3
    with plan(tmp_path) as made:
        made.end(whole=True)
    assert len(plan(tmp_path).left) == 3, "nothing is left of a run that ended"


def test_what_failed_is_run_again(tmp_path: Path) -> None:
    with plan(tmp_path) as made:
        for study, _ in made.left:
            if study.number != "01":
                made.finished(study)
        made.end(whole=False)
    assert [study.number for study, _ in plan(tmp_path).left] == ["01", "05"]


def test_a_log_has_whole_lines_and_what_a_bar_ends_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
