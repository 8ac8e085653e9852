"""What no linter knows of workflows and scripts; actionlint, zizmor and check-jsonschema are pre-commit hooks."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from framehaul.settings import PROJECT

GITHUB, CI = PROJECT / ".github", PROJECT / ".ci"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
CALLERS = [*WORKFLOWS, CI / "run"]


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


def test_the_version_is_in_one_place_and_the_changelog_begins_with_it() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    headings = [line for line in (PROJECT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert next(one for one in headings[:2] if one != "## Unreleased") == f"## {project['version']}"
    assert "## Unreleased" not in headings[1:]
    citation = content(PROJECT / "CITATION.cff")
    assert "version" not in citation
    assert citation["license"] == project["license"]
