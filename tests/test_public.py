"""What no linter knows of workflows and scripts; actionlint, zizmor and check-jsonschema are pre-commit hooks."""

import re
import tomllib

import yaml

from framehaul.settings import PROJECT

WORKFLOWS = PROJECT / ".github" / "workflows"


def test_workflows_call_targets_that_anybody_runs() -> None:
    jobs = yaml.safe_load((WORKFLOWS / "ci.yml").read_text())["jobs"].values()
    assert [step["run"] for job in jobs for step in job["steps"] if "run" in step] == [".ci/run"]
    targets = set(re.findall(r"(?m)^([a-z-]+):", (PROJECT / "Makefile").read_text()))
    for path in (*WORKFLOWS.glob("*.yml"), PROJECT / ".ci" / "run"):
        text = re.sub(r"(?m)^\s*#.*$", "", path.read_text())
        assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets, path


def test_the_version_is_in_one_place_and_the_changelog_begins_with_it() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    headings = [line for line in (PROJECT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert next(one for one in headings[:2] if one != "## Unreleased") == f"## {project['version']}"
    assert "## Unreleased" not in headings[1:]
    citation = yaml.safe_load((PROJECT / "CITATION.cff").read_text())
    assert "version" not in citation
    assert citation["license"] == project["license"]
