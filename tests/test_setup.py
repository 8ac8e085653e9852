"""setup.sh, with a uv that only notes how it was called and with interpreters that do or do not run."""

from __future__ import annotations

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
    """A directory with the script, and with the tools it needs in `bin`."""
    shutil.copy(PROJECT / "setup.sh", tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / ".venv").mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found
        (tmp_path / "bin" / name).symlink_to(found)
    return tmp_path


def program(path: Path, *lines: str) -> None:
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)


def setup(clone: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "setup.sh"], cwd=clone, capture_output=True, text=True, check=False,
        env={"PATH": str(clone / "bin"), "HOME": str(clone)} | environment,
    )  # fmt: skip


def test_an_interpreter_that_does_not_run_is_passed_over(clone: Path) -> None:
    program(clone / "bin" / "uv", f'echo "$@" > {clone}/called')
    program(clone / "bin" / "python3.13", "echo no such version >&2", "exit 127")
    program(clone / "bin" / "python3.12", f'exec {sys.executable} "$@"')
    done = setup(clone)
    assert done.returncode == 0, done.stderr
    assert (clone / "called").read_text().split() == ["sync", "--locked", "--quiet", "--all-extras", "--python", BASE]
    assert done.stderr.startswith("framehaul: making the environment in .venv from uv.lock: about half a minute")
    assert (clone / ".venv" / ".complete").exists()


def test_an_interpreter_without_wheels_is_taken_only_when_it_is_named(clone: Path) -> None:
    program(clone / "bin" / "uv", f'echo "$@" > {clone}/called')
    newer = clone / "bin" / "python3"
    program(newer, 'case "$2" in', "  *base_executable*) echo /newer ;;", f'  *) exec {sys.executable} -c "import sys; '
            'sys.version_info = (3, 15, 0, \'final\', 0); ${2#import sys; }" ;;', "esac")  # fmt: skip
    assert setup(clone).returncode == 0
    assert (clone / "called").read_text().split()[-1] == ">=3.12,<3.15"
    assert setup(clone, FRAMEHAUL_PYTHON=str(newer)).returncode == 0
    assert (clone / "called").read_text().split()[-1] == "/newer"


def test_interpreters_of_pyenv_are_found_though_not_on_the_path(clone: Path) -> None:
    program(clone / "bin" / "uv", f'echo "$@" > {clone}/called')
    (clone / ".pyenv" / "versions" / "3.13.9" / "bin").mkdir(parents=True)
    program(clone / ".pyenv" / "versions" / "3.13.9" / "bin" / "python", f'exec {sys.executable} "$@"')
    assert setup(clone).returncode == 0
    assert (clone / "called").read_text().split()[-2:] == ["--python", BASE]


def test_the_python_of_an_activated_environment_stands_for_the_one_beneath(clone: Path) -> None:
    program(clone / "bin" / "uv", f'echo "$@" > {clone}/called')
    venv.create(clone / "activated", with_pip=False)
    assert setup(clone, PATH=f"{clone}/activated/bin:{clone}/bin").returncode == 0
    assert (clone / "called").read_text().split()[-1] == BASE


def test_a_named_interpreter_that_does_not_run_is_an_error_that_names_it(clone: Path) -> None:
    """The environment names it, or the file .env."""
    program(clone / "bin" / "uv", "exit 0")
    for given in ({"FRAMEHAUL_PYTHON": "/opt/missing/python"}, {}):
        done = setup(clone, **given)
        assert done.returncode != 0
        assert "FRAMEHAUL_PYTHON=/opt/missing/python" in done.stderr
        assert not (clone / ".venv" / ".complete").exists()
        (clone / ".env").write_text("FRAMEHAUL_PYTHON=/opt/missing/python\n")


def test_no_interpreter_at_all_says_what_to_do(clone: Path) -> None:
    program(clone / "bin" / "uv", f'echo "$@" > {clone}/called', "echo 'no download possible' >&2", "exit 2")
    done = setup(clone)
    assert done.returncode != 0
    assert (clone / "called").read_text().split()[-2:] == ["--python", ">=3.12,<3.15"]
    assert "install one, or set FRAMEHAUL_PYTHON" in done.stderr
    assert not (clone / ".venv" / ".complete").exists()


def test_neither_uv_nor_python_says_what_to_do(clone: Path) -> None:
    done = setup(clone)
    assert done.returncode != 0
    assert "cannot install uv" in done.stderr
    assert "conda env create -f environment.yml" in done.stderr
