"""What no linter knows of workflows and scripts; actionlint, zizmor and check-jsonschema are pre-commit hooks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from framehaul.settings import PROJECT

GITHUB, CI = PROJECT / ".github", PROJECT / ".ci"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
CALLERS = [*WORKFLOWS, CI / "run", CI / "smoke"]


def content(path: Path) -> dict[str, Any]:
    loaded = yaml.safe_load(path.read_text())
    assert isinstance(loaded, dict), path
    return loaded


def test_ci_is_the_script_that_anybody_runs() -> None:
    jobs = content(GITHUB / "workflows" / "ci.yml")["jobs"].values()
    assert [step["run"] for job in jobs for step in job["steps"] if "run" in step] == [".ci/run"]


@pytest.mark.parametrize("path", CALLERS, ids=lambda path: path.stem)
def test_targets_and_scripts_that_are_called_exist(path: Path) -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (PROJECT / "Makefile").read_text()))
    text = re.sub(r"(?m)^\s*#.*$", "", path.read_text())
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets
    for script in re.findall(r"\.ci/[\w.]+", text):
        assert (PROJECT / script).exists()


def test_the_weekly_run_takes_each_way_that_the_script_knows() -> None:
    known = set(re.findall(r"(?m)^(\w+)\)$", (CI / "smoke").read_text()))
    matrix = content(GITHUB / "workflows" / "weekly.yml")["jobs"]["smoke"]["strategy"]["matrix"]["include"]
    assert {one["way"] for one in matrix} == known
    done = subprocess.run([CI / "smoke", "else"], capture_output=True, text=True, check=False)
    assert (done.returncode, ".ci/smoke newest" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("way", "called"),
    [
        ("locked", "make all PRESET=smoke OUT=runs/locked"),
        ("newest", "uv lock --upgrade --python .venv/bin/python\nmake all PRESET=smoke OUT=runs/newest"),
        ("conda", "conda run --no-capture-output --name framehaul make all PRESET=smoke OUT=runs/conda"),
    ],
)
def test_the_smoke_script_calls_make_and_fails_as_it_does(way: str, called: str, tmp_path: Path) -> None:
    shutil.copytree(CI, tmp_path / ".ci")
    for name in ("make", "uv", "conda"):
        log = f'echo "{name} $*" >> {tmp_path}/called\ncase "$*" in *PRESET=smoke*) exit $STATUS;; esac\n'
        (tmp_path / name).write_text(f"#!/bin/sh\n{log}")
        (tmp_path / name).chmod(0o755)
    for status in (0, 2):
        environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "STATUS": str(status)}
        assert subprocess.run([tmp_path / ".ci" / "smoke", way], env=environment, check=False).returncode == status
    assert (tmp_path / "called").read_text().endswith(f"{called}\n")


def test_the_version_is_in_one_place_and_the_changelog_begins_with_it() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    headings = [line for line in (PROJECT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert next(one for one in headings[:2] if one != "## Unreleased") == f"## {project['version']}"
    assert "## Unreleased" not in headings[1:]
    citation = content(PROJECT / "CITATION.cff")
    assert "version" not in citation
    assert citation["license"] == project["license"]


def test_the_report_of_a_run_tells_failures_from_those_expected(tmp_path: Path) -> None:
    def report(*more: str) -> tuple[int, str]:
        command = [sys.executable, str(CI / "report.py"), str(tmp_path), *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    (tmp_path / "upgraded.txt").write_text("Resolved 221 packages in 2s\nUpdated numpy v1 -> v2\n")
    status, said = report()
    assert status == 1
    assert "No results." in said
    assert "```text\nUpdated numpy v1 -> v2\n```" in said
    (tmp_path / "results").mkdir()
    rows = ["route,warehouse,status,reason", "adbc,duckdb,ok,", "csv_gzip,bigquery,failed,not `unpacked`"]
    (tmp_path / "results" / "warehouse.csv").write_text("\n".join(rows) + "\n")
    status, said = report()
    assert status == 1
    assert "| warehouse.csv | 1 | 0 | 1 |" in said
    assert "- 1 x `warehouse.csv`: `not 'unpacked'`" in said
    expected = ("--expected", "warehouse.csv route=csv_gzip warehouse=bigquery")
    assert report(*expected)[0] == 0
    (tmp_path / "reports" / "failed").mkdir(parents=True)
    (tmp_path / "reports" / "failed" / "12_warehouse.ipynb").write_text("{}")
    status, said = report(*expected)
    assert status == 1
    assert "- `12_warehouse` stopped before its end" in said
