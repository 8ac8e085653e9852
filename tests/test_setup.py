"""setup.sh, with a uv that only notes how it was called and with interpreters that do or do not run."""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from framehaul.settings import PROJECT

BASE = sys._base_executable  # type: ignore[attr-defined]
# All that the script needs besides uv and Python.
TOOLS = ("sh", "dirname", "sed", "tail", "touch", "mkdir", "chmod", "rm")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A directory with the script, and with the tools it needs and uv in `bin`."""
    shutil.copy(PROJECT / "setup.sh", tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / "bin").mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found
        (tmp_path / "bin" / name).symlink_to(found)
    program(tmp_path / "bin" / "uv", f'echo "$@" > {tmp_path}/called')
    return tmp_path


def program(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)


def setup(clone: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": str(clone / "bin"), "HOME": str(clone)} | environment
    done = subprocess.run(["/bin/sh", "setup.sh"], cwd=clone, capture_output=True, text=True, check=False, env=env)
    assert (clone / ".venv" / ".complete").exists() == (done.returncode == 0), done.stderr
    return done


def chosen(clone: Path, **environment: str) -> str:
    """The Python that uv was called with."""
    done = setup(clone, **environment)
    assert done.stderr.startswith("framehaul: making the environment in .venv from uv.lock: about half a minute")
    *options, python = (clone / "called").read_text().split()
    assert options == ["sync", "--locked", "--quiet", "--all-extras", "--python"]
    return python


def test_an_interpreter_that_does_not_run_is_passed_over(clone: Path) -> None:
    program(clone / "bin" / "python3.13", "echo no such version >&2", "exit 127")
    program(clone / "bin" / "python3.12", f'exec {sys.executable} "$@"')
    assert chosen(clone) == BASE


def test_an_interpreter_without_wheels_is_taken_only_when_it_is_named(clone: Path) -> None:
    newer = clone / "bin" / "python3"
    program(newer, 'case "$2" in', "  *base_executable*) echo /newer ;;", f'  *) exec {sys.executable} -c "import sys; '
            'sys.version_info = (3, 15, 0, \'final\', 0); ${2#import sys; }" ;;', "esac")  # fmt: skip
    assert chosen(clone) == ">=3.12,<3.15"
    assert chosen(clone, FRAMEHAUL_PYTHON=str(newer)) == "/newer"


def test_interpreters_of_pyenv_and_beneath_an_activated_environment_are_found(clone: Path) -> None:
    venv.create(clone / "activated", with_pip=False)
    assert chosen(clone, PATH=f"{clone}/activated/bin:{clone}/bin") == BASE
    program(clone / ".pyenv" / "versions" / "3.13.9" / "bin" / "python", f'exec {sys.executable} "$@"')
    assert chosen(clone) == BASE


def test_a_named_interpreter_that_does_not_run_is_an_error_that_names_it(clone: Path) -> None:
    for given in ({"FRAMEHAUL_PYTHON": "/opt/missing/python"}, {}):
        assert "FRAMEHAUL_PYTHON=/opt/missing/python" in setup(clone, **given).stderr
        (clone / ".env").write_text('export FRAMEHAUL_PYTHON="/opt/missing/python"\n')


def test_without_interpreter_or_uv_it_says_what_to_do(clone: Path) -> None:
    program(clone / "bin" / "uv", "echo 'no download possible' >&2", "exit 2")
    assert "install one, or set FRAMEHAUL_PYTHON" in setup(clone).stderr
    (clone / "bin" / "uv").unlink()
    said = setup(clone).stderr
    assert "cannot install uv" in said
    assert "conda env create -f environment.yml" in said
