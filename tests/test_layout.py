"""The rooms of the library: imports go one way, and who looks at results loads no driver."""

import pkgutil
import re
import subprocess
import sys

import pytest

from framehaul.settings import PROJECT
from framehaul.studies.registry import studies

LIBRARY = PROJECT / "lib" / "framehaul"
HEAVY = (
    "numba", "psycopg", "asyncpg", "adbc_driver_postgresql", "duckdb", "clickhouse_driver", "clickhouse_connect",
    "asynch", "chdb", "httpx", "aiohttp", "urllib3", "sqlalchemy", "connectorx", "pgpq", "framehaul.servers",
)  # fmt: skip


def test_imports_go_one_way_and_in_no_circle() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as lint; lint()", "--no-cache"]
    path = {"PYTHONPATH": str(LIBRARY.parent)}
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, env=path)
    assert done.returncode == 0, done.stdout


def test_nothing_below_the_studies_knows_one_by_name() -> None:
    names = "|".join(study.notebook for study in studies())
    for path in LIBRARY.rglob("*.py"):
        if path.relative_to(LIBRARY).parts[0] not in ("studies", "__main__.py"):
            assert not re.findall(names, path.read_text()), path


def test_studies_measure_and_show_nothing() -> None:
    shows = re.compile(r"^\s*(?:from|import) (?:framehaul\.reporting|matplotlib|IPython|nbformat)", re.MULTILINE)
    shown = [path.name for path in (LIBRARY / "studies").rglob("*.py") if shows.search(path.read_text())]
    assert not shown


def test_docstrings_begin_with_a_sentence() -> None:
    begins = re.compile(r'"""(What|Of|As|How|Who)\b')
    assert not [path.name for path in LIBRARY.rglob("*.py") if begins.search(path.read_text())]


def test_every_room_has_the_name_of_its_notebooks() -> None:
    rooms = {module.name for module in pkgutil.iter_modules([str(LIBRARY / "studies")])}
    several = {"postgres_write", "postgres_read", "clickhouse_write", "clickhouse_read"}
    drivers = {"postgres_drivers", "clickhouse_clients"}
    shared = {"transfers", "drivers", "buildings", "machines", "registry"}
    assert {study.name for study in studies()} - several - drivers == rooms - shared


@pytest.mark.parametrize(
    ("what", "without"),
    [
        ("import framehaul.__main__", HEAVY), ("import framehaul.bench.compare, framehaul.reporting.comparison", HEAVY),
        ("from framehaul.studies.registry import studies; studies()", HEAVY),
        ("import framehaul; framehaul.read; from framehaul.techniques.beyond import clickhouse_read, clickhouse_write, "
         "postgres_read, postgres_write", ("numba", "pandas")),
    ],
)  # fmt: skip
def test_nothing_is_imported_that_is_not_needed(what: str, without: tuple[str, ...]) -> None:
    script = f"{what}; import sys; print([name for name in {without!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
