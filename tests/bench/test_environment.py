"""What is recorded of the machine and the commit of a run."""

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


def test_a_run_does_not_make_itself_dirty_and_code_that_is_not_committed_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*names: str) -> None:
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("__pycache__/\n" if name == ".gitignore" else str(names))

    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@x", *arguments], cwd=tmp_path, check=True)

    monkeypatch.setattr(environment, "PROJECT", tmp_path)
    results = "results/a.csv", "README.md", "docs/a.md", "figures/a.svg"
    write(*results, "lib/store.py", "notebooks/01.ipynb", "machines/m/9/results/a.csv", "Makefile", ".gitignore")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "x")
    clean = environment._commit()
    assert clean
    assert len(clean) == 12
    write(*results[:3], "results/new.csv", "reports/a.html", "notes.txt", "lib/__pycache__/a.pyc")
    (tmp_path / results[3]).unlink()
    assert environment._commit() == clean
    for name in ("lib/new.py", "notebooks/new/02.ipynb", "Makefile", "machines/m/9/results/a.csv"):
        write(name)
        assert environment._commit() == f"{clean}-dirty", name
        git("add", ".")
        assert environment._commit() == f"{clean}-dirty", name
        git("reset", "-q", "--hard")
        assert environment._commit() == clean
