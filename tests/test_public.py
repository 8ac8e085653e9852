"""What a public repository has: scripts that workflows call, and metadata. The pre-commit hooks check the rest."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from framehaul.settings import PROJECT

GITHUB = PROJECT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
SCRIPTS = (PROJECT / ".ci" / "run", PROJECT / ".ci" / "smoke")


def content(path: Path) -> dict[str, Any]:
    loaded = yaml.safe_load(path.read_text())
    assert isinstance(loaded, dict), path
    return loaded


def steps(workflow: Path) -> Iterator[dict[str, Any]]:
    for job in content(workflow)["jobs"].values():
        yield from job["steps"]


def named(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=[path.stem for path in paths])


def test_ci_is_the_script_that_anybody_runs() -> None:
    commands = [step["run"] for step in steps(GITHUB / "workflows" / "ci.yml") if "run" in step]
    assert commands == [".ci/run"]


@named([*WORKFLOWS, *SCRIPTS])
def test_targets_and_scripts_that_are_called_exist(path: Path) -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (PROJECT / "Makefile").read_text()))
    text = re.sub(r"(?m)^\s*#.*$", "", path.read_text())
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets
    for script in re.findall(r"\.ci/[\w.]+", text):
        assert (PROJECT / script).exists()


def test_every_way_of_the_weekly_run_is_one_that_the_script_knows() -> None:
    known = set(re.findall(r"(?m)^(\w+)\)$", (PROJECT / ".ci" / "smoke").read_text()))
    matrix = content(GITHUB / "workflows" / "weekly.yml")["jobs"]["smoke"]["strategy"]["matrix"]["include"]
    assert {one["way"] for one in matrix} == known


@pytest.mark.parametrize("way", [[], ["else"]])
def test_the_smoke_script_says_its_ways(way: list[str]) -> None:
    done = subprocess.run([PROJECT / ".ci" / "smoke", *way], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert ".ci/smoke newest" in done.stderr


@pytest.mark.parametrize(
    ("way", "called"),
    [
        ("locked", ["make all PRESET=smoke OUT=runs/locked"]),
        (
            "newest",
            ["make setup", "uv lock --upgrade --python .venv/bin/python", "make all PRESET=smoke OUT=runs/newest"],
        ),
        (
            "conda",
            [
                "conda env create --file environment.yml",
                "conda run --no-capture-output --name framehaul make all PRESET=smoke OUT=runs/conda",
            ],
        ),
    ],
)
def test_the_smoke_script_calls(way: str, called: list[str], tmp_path: Path) -> None:
    shutil.copytree(PROJECT / ".ci", tmp_path / ".ci")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("make", "uv", "conda"):
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/called\n')
        (programs / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
    subprocess.run([tmp_path / ".ci" / "smoke", way], env=environment, check=True)
    assert (tmp_path / "called").read_text().splitlines() == called


def test_the_citation_is_of_this_project() -> None:
    citation = content(PROJECT / "CITATION.cff")
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert citation["title"] == project["name"]
    assert citation["license"] == project["license"]
    assert (PROJECT / "LICENSE").read_text().startswith(f"{citation['license']} License")


def test_the_version_is_in_one_place_and_the_changelog_begins_with_it() -> None:
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    headings = [line for line in (PROJECT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert next(one for one in headings[:2] if one != "## Unreleased") == f"## {version}"
    assert "## Unreleased" not in headings[1:]
    assert "version" not in content(PROJECT / "CITATION.cff")


def test_the_report_of_a_run_tells_failures_from_those_expected(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    rows = ["route,warehouse,status,reason", "adbc,duckdb,ok,", "csv_gzip,bigquery,failed,not `unpacked`"]
    (results / "warehouse.csv").write_text("\n".join(rows) + "\n")

    def report(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(PROJECT / ".ci" / "report.py"), str(tmp_path), *more]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = report()
    assert done.returncode == 1
    assert "| warehouse.csv | 1 | 0 | 1 |" in done.stdout
    assert "- 1 x `warehouse.csv`: `not 'unpacked'`" in done.stdout
    expected = ("--expected", "warehouse.csv route=csv_gzip warehouse=bigquery")
    assert report(*expected).returncode == 0
    stopped = tmp_path / "reports" / "failed"
    stopped.mkdir(parents=True)
    (stopped / "12_warehouse.ipynb").write_text("{}")
    done = report(*expected)
    assert done.returncode == 1
    assert "- `12_warehouse` stopped before its end" in done.stdout


def test_the_report_of_a_run_without_results_says_so(tmp_path: Path) -> None:
    (tmp_path / "upgraded.txt").write_text("Resolved 221 packages in 2s\nUpdated numpy v1 -> v2\n")
    done = subprocess.run(
        [sys.executable, PROJECT / ".ci" / "report.py", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "No results." in done.stdout
    assert "```text\nUpdated numpy v1 -> v2\n```" in done.stdout
