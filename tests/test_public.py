"""What a public repository has: workflows, forms and metadata, as far as they can be checked without GitHub."""

from __future__ import annotations

import json
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
# https://docs.github.com/en/communities/using-templates-to-encourage-useful-issues-and-pull-requests/syntax-for-githubs-form-schema
ATTRIBUTES = {
    "markdown": {"value"},
    "input": {"label", "description", "placeholder", "value"},
    "textarea": {"label", "description", "placeholder", "value", "render"},
    "dropdown": {"label", "description", "multiple", "options", "default"},
    "checkboxes": {"label", "description", "options"},
}
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


def test_there_are_workflows_and_forms() -> None:
    assert {"ci", "pages", "weekly"} <= {path.stem for path in WORKFLOWS}
    assert len(FORMS) >= 2


@named(WORKFLOWS)
def test_a_workflow_may_do_nothing_that_a_job_does_not_ask_for_and_ends(path: Path) -> None:
    workflow = content(path)
    assert workflow["permissions"] == {}
    assert "group" in workflow["concurrency"]
    # YAML 1.1 takes the key `on` for true.
    triggers = workflow[True]  # type: ignore[index]
    assert not {"pull_request_target", "workflow_run"} & set(triggers)
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 120
        assert isinstance(job["permissions"], dict)


@named(WORKFLOWS)
def test_actions_are_pinned_by_commit_and_leave_no_credentials(path: Path) -> None:
    uses = re.findall(r"(?m)^\s*(?:- )?uses: (.*)$", path.read_text())
    assert uses
    assert len(uses) == sum("uses" in step for step in steps(path))
    for line in uses:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line
    for step in steps(path):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@named(WORKFLOWS)
def test_no_expression_is_written_into_a_shell(path: Path) -> None:
    for step in steps(path):
        assert "${{" not in step.get("run", "")


def test_an_action_is_pinned_to_one_commit_everywhere() -> None:
    uses = {step["uses"] for workflow in WORKFLOWS for step in steps(workflow) if "uses" in step}
    assert len(uses) == len({one.partition("@")[0] for one in uses})


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


def test_a_smoke_run_that_fails_is_said_to(tmp_path: Path) -> None:
    shutil.copytree(PROJECT / ".ci", tmp_path / ".ci")
    (tmp_path / "make").write_text("#!/bin/sh\nexit 2\n")
    (tmp_path / "make").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert subprocess.run([tmp_path / ".ci" / "smoke", "locked"], env=environment, check=False).returncode == 2


@named(FORMS)
def test_a_form_has_what_github_asks_for(path: Path) -> None:
    form = content(path)
    assert {"name", "description", "body"} <= set(form) <= {"name", "description", "body", "title", "labels"}
    ids = [element["id"] for element in form["body"] if element["type"] != "markdown"]
    labels = [element["attributes"]["label"] for element in form["body"] if element["type"] != "markdown"]
    assert ids, path
    assert len(set(ids)) == len(ids)
    assert len(set(labels)) == len(labels)
    for element in form["body"]:
        assert set(element) <= {"type", "id", "attributes", "validations"}
        assert set(element["attributes"]) <= ATTRIBUTES[element["type"]]
        assert all(isinstance(text, str) for text in element["attributes"].get("options", []))
        assert element.get("validations", {"required": True}) == {"required": True}
        # A field that is rendered takes no files.
        if "dragged" in element["attributes"].get("description", ""):
            assert "render" not in element["attributes"]


@named(FORMS)
def test_a_form_asks_for_the_environment_and_what_was_expected(path: Path) -> None:
    text = path.read_text()
    assert "results/environment.json" in text
    assert "expected" in text or "should show" in text


def test_who_has_another_number_is_asked_for_all_that_it_takes_to_compare() -> None:
    form = content(GITHUB / "ISSUE_TEMPLATE" / "1-number-differs.yml")
    required = {one["id"] for one in form["body"] if one.get("validations", {}).get("required")}
    assert required == {"seen", "command", "machine", "environment", "run", "compare"}


def test_dependabot_waits_before_it_takes_a_version_and_looks_where_there_is_something() -> None:
    for update in content(GITHUB / "dependabot.yml")["updates"]:
        assert update["cooldown"]["default-days"] >= 7
        assert (PROJECT / update["directory"].lstrip("/")).is_dir()


def test_the_citation_has_what_its_format_asks_for_and_is_of_this_project() -> None:
    # https://github.com/citation-file-format/citation-file-format/blob/1.2.0/schema-guide.md
    citation = content(PROJECT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
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


def test_the_devcontainer_sets_up_with_make_and_has_no_more_rights_than_others() -> None:
    container = json.loads((PROJECT / ".devcontainer" / "devcontainer.json").read_text())
    assert container["postCreateCommand"] == "make setup"
    assert not {"privileged", "runArgs", "mounts", "capAdd", "securityOpt"} & set(container)


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
