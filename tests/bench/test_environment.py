"""What is recorded of the machine and the commit of a run."""

from __future__ import annotations

import getpass
import json
import platform
import socket
import subprocess
from pathlib import Path

import pytest

from framehaul.bench import environment
from framehaul.settings import PROJECT, Settings


def test_it_is_the_same_each_time_and_names_no_path_host_or_user(tmp_path: Path) -> None:
    settings = Settings(out=tmp_path / "out", state_dir=tmp_path / "state")
    metadata = environment.metadata(settings)
    assert json.loads(json.dumps(metadata)) == metadata == environment.metadata(settings)
    assert metadata["machine"]["cores"] >= 1
    hidden = {socket.gethostname(), platform.node(), str(Path.home()), str(PROJECT), str(settings.out)}
    hidden |= {getpass.getuser()} - {"root"}
    for text in map(str, metadata["machine"].values()):
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


def test_a_run_does_not_make_itself_dirty_and_code_that_is_not_committed_does(checkout: Path) -> None:
    clean = environment._commit()
    assert clean
    assert len(clean) == 12
    (checkout / "figures" / "a.svg").unlink()
    written = ("results/a.csv", "README.md", "docs/a.md", "results/new.csv", "reports/a.html", "notes.txt")
    for name in (*written, "lib/framehaul/__pycache__/a.pyc"):
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text("of this run")
    assert environment._commit() == clean
    for name in ("lib/new.py", "notebooks/new/02.ipynb", "Makefile", "machines/m/9/results/a.csv"):
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text("changed")
        assert environment._commit() == f"{clean}-dirty", name
        subprocess.run(["git", "add", "."], cwd=checkout, check=True)
        assert environment._commit() == f"{clean}-dirty", name
        subprocess.run(["git", "reset", "-q", "--hard"], cwd=checkout, check=True)
        assert environment._commit() == clean
