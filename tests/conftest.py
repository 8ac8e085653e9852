"""What the tests share: one pair of embedded servers, apart from those that a user of this checkout may run."""

import ast
import asyncio
import gc
import multiprocessing.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pyarrow as pa
import pytest

from framehaul.__main__ import main
from framehaul.bench import store
from framehaul.bench.measure import called, opened
from framehaul.bench.meter import settle
from framehaul.bench.study import Study
from framehaul.data.schema import Table
from framehaul.errors import UnavailableError
from framehaul.servers import ClickHouseServer, Server, Servers, running
from framehaul.servers.tables import tables_of
from framehaul.settings import GIVEN_TO_MAKE, PREFIX, PROJECT, Settings
from framehaul.studies import registry
from framehaul.studies.drivers.catalog import driver_program
from framehaul.techniques import Technique, techniques

REFERENCE = store.MACHINES / "epyc-2-cores" / "2026-11-28"
"""The reference run as it is kept, whatever `make all` has put into `results/` since."""
TEMPORARY = pytest.StashKey[Path]()

# No test has a time limit, for a busy machine breaks it: Hypothesis would have 200 ms, and one for making examples.
hypothesis.settings.register_profile("ours", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("ours")


def pytest_configure(config: pytest.Config) -> None:
    """Everything temporary goes into one directory, of all workers, so that what is left there can be looked at."""
    if hasattr(config, "workerinput"):
        return
    multiprocessing.util.get_temp_dir()  # not in the directory: multiprocessing removes it last of all
    directory = Path(tempfile.mkdtemp(prefix="framehaul-tests-"))
    directory.chmod(0o711)  # any account may pass: PostgreSQL runs as `nobody` when the tests run as root
    os.environ["TMPDIR"] = tempfile.tempdir = str(directory)
    config.stash[TEMPORARY] = directory


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tests that pass leave nothing behind; those that fail, what may tell why."""
    directory = session.config.stash.get(TEMPORARY, None)
    if directory is None:
        return
    kept = ("pytest-of-*", "uv-*.lock")  # what pytest keeps for a look, and uv's locks
    left = sorted(path.name for path in directory.iterdir() if not any(map(path.match, kept)))
    if session.exitstatus == pytest.ExitCode.OK and not left:
        shutil.rmtree(directory)
        return
    print(f"\nleft behind in {directory}: {', '.join(left)}")
    session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


LONGEST = (
    "test_techniques", "test_own_data_code", "test_scale_out", "test_own_data", "test_faults",
    "test_properties", "test_sessions", "test_beyond", "test_clients", "test_notebooks", "test_reproductions",
)  # fmt: skip
"""Files that come first, so that no worker is left alone with one of them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first: what reads a whole run, and then the longest files."""
    places = {name: place for place, name in enumerate(LONGEST)}
    of_runs = {item for item in items if "out" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: (item not in of_runs, places.get(item.path.stem, len(places))))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A worker takes the tests of a file, or all that read a whole run; a slow test, which takes longer, is alone."""
    from xdist.scheduler import LoadScopeScheduling

    slow = config.option.markexpr == "slow"

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # ships no types
        def _split_scope(self, nodeid: str) -> str:
            file, name = nodeid.partition("[")[0].split("::", 1)
            by_itself = f"{file}::{name}" if slow else file
            return "a whole run" if name in readers_of_a_run(PROJECT / file) else by_itself

    return ByFile(config, log)


@cache
def readers_of_a_run(path: Path) -> set[str]:
    """The functions of a file that take `out`, or what is made of it."""
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    found = {"out"}
    for _ in functions:
        found |= {one.name for one in functions if found & {argument.arg for argument in one.args.args}}
    return found


EXTENSIONS = os.environ.get("FRAMEHAUL_POSTGRES_EXTENSIONS")


def lacks(found: Technique) -> bool:
    """Whether it needs what no package brings, and what is not here."""
    return "pg_parquet" in found.requires and not EXTENSIONS


# Tests call make as a user does. Below `make test` it would say which directory it enters, and take what that has:
# https://www.gnu.org/software/make/manual/html_node/Options_002fRecursion.html
for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
    os.environ.pop(name, None)

# The processes that tests start are many: each would compile all that it imports for itself.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


type RunsCommand = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def open_dir() -> Iterator[Path]:
    """A directory that any account may pass through; pytest's own are mode 0700."""
    with tempfile.TemporaryDirectory(prefix="framehaul-tests-") as directory:
        Path(directory).chmod(0o711)
        yield Path(directory)


@pytest.fixture(scope="session")
def settings(open_dir: Path) -> Settings:
    """Embedded servers with a state directory of their own, and pg_parquet when the environment names it."""
    extensions = Path(EXTENSIONS).absolute() if EXTENSIONS else None
    return Settings(state_dir=open_dir / "state", postgres_extensions=extensions)


@pytest.fixture(scope="session")
def servers(settings: Settings) -> Iterator[Servers]:
    """Both servers, for as long as the tests run."""
    with running(settings) as found:
        yield found


def run_command(*arguments: str, state_dir: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command, own = [sys.executable, "-m", "framehaul", *arguments], {"FRAMEHAUL_STATE_DIR": str(state_dir)}
    env = os.environ | own | environment
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, env=env)


@pytest.fixture
def within(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunsCommand:
    """The command line within this process, for what a process of its own proves no more of."""

    def run(*arguments: str, state_dir: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        # The command sets some of them itself: afterwards all are as they were.
        given = {f"{PREFIX}{name.upper()}": "" for name in GIVEN_TO_MAKE}
        for name, value in (given | {f"{PREFIX}STATE_DIR": str(state_dir)} | environment).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["framehaul", *arguments])
        try:
            status = main()
        except SystemExit as ended:  # of argparse
            status = int(ended.code or 0)
        return subprocess.CompletedProcess(arguments, status, *capsys.readouterr())

    return run


@pytest.fixture(scope="session", autouse=True)
def few_objects_to_walk() -> Iterator[None]:
    """What pytest and the libraries hold is collected once, not before each technique that is measured."""
    settle()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def built_drivers(settings: Settings) -> None:
    """The drivers of Go and Node where their toolchains are there, though no run waits for them to be built."""
    for language in ("Go", "Node"):
        with suppress(UnavailableError):
            driver_program(language, settings, make=True)


GIVEN: dict[str, dict[str, str | None]] = {
    "few": {"notebooks": "01 04 08"},
    "all": {"tried": "tenth", "concurrency": "1 4", "workers": "1 2", "partitions": "2 4"},
}
"""What `make all PRESET=smoke` is given for the tests, beside OUT: `make test` runs a write, a read and the matrix."""
WHOLE = pytest.mark.parametrize("out", [pytest.param("all", marks=pytest.mark.slow)], indirect=True)
"""For a test that needs another notebook than the few."""


@pytest.fixture(scope="session")
def committed() -> Path:
    """The results of the committed run; without them, as after `make all` without OUT, a test of them is skipped."""
    changed = ["git", "diff", "--quiet", "HEAD", "--", "results"]
    if shutil.which("git") and subprocess.run(changed, cwd=PROJECT, capture_output=True, check=False).returncode == 1:
        pytest.skip("results/ has another run: git checkout results docs figures README.md brings the committed back")
    return store.RUN


@pytest.fixture(scope="session", params=["few", pytest.param("all", marks=pytest.mark.slow)])
def out(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, settings: Settings, servers: Servers
) -> Path:
    """What `make all` leaves at tiny size: results, figures and reports."""
    if request.param == "all":
        request.getfixturevalue("built_drivers")  # in a minute
    directory = tmp_path_factory.mktemp("out") / str(request.param)
    given = [f"--{name}={value}" for name, value in GIVEN[request.param].items()]
    done = run_command("run", "--preset=smoke", *given, f"--out={directory}", state_dir=settings.state_dir)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return directory


def values_of(out: Path, study: Study) -> dict[str, Any]:
    """The parameters that a study had in the run that left `out`."""
    return registry.values(study, "smoke", GIVEN[out.name])


def mostly_slow(values: Iterable[Any], fast: Callable[[Any], object], name: Callable[[Any], str]) -> list[Any]:
    """Parameters of which `make test` takes those that are `fast`, and `make test-all` the others."""
    return [pytest.param(one, id=name(one), marks=() if fast(one) else pytest.mark.slow) for one in values]


def one_for_each_driver(found: Technique) -> bool:
    """Whether it is the first technique of its database, direction and driver."""
    return found is next(one for one in techniques(found.database, found.direction) if one.driver == found.driver)


def check_each(chosen: Iterable[Technique], check: Callable[[Technique], None]) -> None:
    """Check all techniques; what fails names each that did, with what it raised."""
    failures: list[Exception] = []
    for found in chosen:
        try:
            check(found)
        except Exception as error:  # noqa: BLE001  raised below
            error.add_note(f"This was {found.name}, {found.database} {found.direction}.")
            failures.append(error)
    if failures:
        raise ExceptionGroup("some techniques failed", failures)


def table_on(server: Server, table: Table, content: pa.Table | None = None) -> AbstractContextManager[Any]:
    """The tables of a server, among them this one, with these rows, until the block ends."""
    return tables_of(server).loaded(table, content)


def url_of(server: ClickHouseServer) -> str:
    return f"http://{server.user}:{server.password}@{server.host}:{server.http_port}/{server.database}"


def call(technique: Technique, servers: Servers, *arguments: object) -> Any:
    """What a technique returns, called with a client of its own that is opened and closed for it."""

    async def with_client() -> Any:
        async with opened(technique, servers.of(technique.database)) as client:
            return await called(technique, client, *arguments)

    return asyncio.run(with_client())
