"""What is recorded of the machine and the commit of a run."""

from __future__ import annotations

import getpass
import json
import platform
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from framehaul.bench import environment
from framehaul.settings import PROJECT, Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(out=tmp_path / "out", state_dir=tmp_path / "state")


def texts(value: Any) -> list[str]:
    """All texts of a tree of plain values, its keys too."""
    if isinstance(value, dict):
        return [text for pair in value.items() for one in pair for text in texts(one)]
    return [text for one in value for text in texts(one)] if isinstance(value, list) else [str(value)]


def test_it_is_the_same_each_time_and_names_no_path_host_or_user(settings: Settings) -> None:
    metadata = environment.metadata(settings)
    assert json.loads(json.dumps(metadata)) == metadata == environment.metadata(settings)
    assert metadata["machine"]["cores"] >= 1
    said = texts(metadata["machine"])
    hidden = {socket.gethostname(), platform.node(), str(Path.home()), str(PROJECT), str(settings.out)}
    hidden |= {getpass.getuser()} - {"root"}
    for text in said:
        assert "/" not in text
        assert not [one for one in hidden - {""} if one in text.split() or (len(one) > 5 and one in text)], text


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a commit, in which everything that counts has a file."""
    home = tmp_path / "project"
    for name in ("lib/framehaul/bench/store.py", "notebooks/01.ipynb", "results/a.csv", "figures/a.svg", "README.md",
                 "docs/a.md", "machines/m/9/results/a.csv", "Makefile", ".gitignore"):  # fmt: skip
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("__pycache__/\n")
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=home, check=True)
    monkeypatch.setattr(environment, "PROJECT", home)
    return home


def test_a_run_does_not_make_itself_dirty(checkout: Path) -> None:
    clean = environment._commit(checkout)
    assert clean
    assert len(clean) == 12
    for name in ("results/a.csv", "figures/a.svg", "README.md", "docs/a.md"):
        (checkout / name).write_text("of this run")
    (checkout / "figures" / "a.svg").unlink()
    for name in ("results/new.csv", "reports/a.html", "notes.txt", "lib/framehaul/__pycache__/a.pyc"):
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text("of this run")
    assert environment._commit(checkout) == clean
    (checkout / "machines/m/9/results/a.csv").write_text("of another run")
    assert environment._commit(checkout) == f"{clean}-dirty"
    assert environment._commit(checkout / "machines" / "m" / "9") == clean


def test_code_that_is_not_committed_is_dirty(checkout: Path) -> None:
    clean = environment._commit(checkout)
    for name in ("lib/new.py", "notebooks/new/02.ipynb", "Makefile"):
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text("changed")
        assert environment._commit(checkout) == f"{clean}-dirty", name
        subprocess.run(["git", "add", "."], cwd=checkout, check=True)
        assert environment._commit(checkout) == f"{clean}-dirty", name
        subprocess.run(["git", "reset", "-q", "--hard"], cwd=checkout, check=True)
        assert environment._commit(checkout) == clean
