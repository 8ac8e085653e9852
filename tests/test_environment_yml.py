"""environment.yml and uv.lock are one truth."""

from __future__ import annotations

import tomllib

import yaml

from framehaul.bench.environment import dependencies
from framehaul.settings import PROJECT

PROJECT_TABLE = tomllib.loads((PROJECT / "pyproject.toml").read_text())


def locked_versions() -> dict[str, str]:
    lock = tomllib.loads((PROJECT / "uv.lock").read_text())
    return {package["name"]: package["version"] for package in lock["package"]}


def conda_packages() -> dict[str, str]:
    content = yaml.safe_load((PROJECT / "environment.yml").read_text())
    pip = next(entry["pip"] for entry in content["dependencies"] if isinstance(entry, dict))
    return dict(line.split("==") for line in pip if "==" in line)


def development_dependencies() -> list[str]:
    return [line.partition(">")[0] for line in PROJECT_TABLE["dependency-groups"]["dev"]]


def test_environment_yml_pins_every_direct_dependency_to_the_locked_version() -> None:
    locked, wanted = locked_versions(), [*dependencies(), *development_dependencies()]
    given = {name.partition("[")[0]: version for name, version in conda_packages().items()}
    assert given == {name: locked[name] for name in wanted}


def test_environment_yml_installs_the_project_itself_with_all_extras() -> None:
    content = (PROJECT / "environment.yml").read_text()
    assert f"- -e .[{','.join(sorted(PROJECT_TABLE['project']['optional-dependencies']))}]" in content
