"""The embedded servers: who gets in, what survives, and what is left when a process dies."""

import contextlib
import fcntl
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import clickhouse_driver
import httpx
import psutil
import psycopg
import pytest
from clickhouse_driver.errors import Error as NativeError
from psycopg.conninfo import conninfo_to_dict

from framehaul import collected
from framehaul import servers as all_servers
from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS
from framehaul.errors import ServerError
from framehaul.servers import Servers
from framehaul.servers.embedded import LOCK, LOCK_OF_A_RUN, home_of_a_run, is_kept
from framehaul.servers.local import EmbeddedPostgres, choose_port, elsewhere
from framehaul.servers.relay import Relay, relayed
from framehaul.servers.tables import ClickHouseTables, PostgresTables
from framehaul.settings import Settings
from framehaul.techniques import techniques
from tests.conftest import RunsCommand, call, one_for_each_driver, url_of

WRONG_LOGINS = [("default", ""), ("default", "x"), ("", ""), ("framehaul", ""), ("framehaul", "wrong"), ("nobody", "")]
STATEMENTS = ["CREATE TABLE intruder (a Int32) ENGINE = Memory", "SELECT * FROM file('/etc/passwd', 'LineAsString')"]
GOOD, URL = "postgresql://u:hidden@h/d", "http://u:hidden@h/"
# Holds servers until its input ends, or until it is killed.
HOLDER = """
import sys
from pathlib import Path
from framehaul import servers
from framehaul.settings import Settings
with servers.running(Settings(state_dir=Path(sys.argv[1]))) as found:
    print(found.supervisor_process_id, found.postgres.process_id, found.clickhouse.process_id, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def own(open_dir: Path) -> Iterator[Settings]:
    """Settings with a state directory that no other test uses; whatever still runs there is stopped at the end."""
    directory = Path(tempfile.mkdtemp(dir=open_dir))
    directory.chmod(0o711)
    settings = Settings(state_dir=directory / "state")
    yield settings
    all_servers.stop(settings)


def eventually(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def gone(process_ids: list[int]) -> bool:
    return not [pid for pid in process_ids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]


def native(servers: Servers, login: tuple[str, str], statement: str) -> object:
    server = servers.clickhouse
    with clickhouse_driver.Client(server.host, server.native_port, user=login[0], password=login[1]) as client:
        return client.execute(statement)


def on_both(servers: Servers, statement: str, engine: str = "") -> tuple[object, bytes]:
    """Return both servers' answers to a statement, which may have a place for the engine of ClickHouse's table."""
    clickhouse = ClickHouseTables(servers.clickhouse).run(statement.format(engine))
    return PostgresTables(servers.postgres).run(statement.format("")), clickhouse


def answers(servers: Servers) -> bool:
    login = servers.clickhouse.user, servers.clickhouse.password
    return on_both(servers, "SELECT 1") == ([(1,)], b"1\n") and native(servers, login, "SELECT 1") == [(1,)]


def kept(servers: Servers) -> bool:
    """Whether both servers answer, and have what was committed."""
    with contextlib.suppress(ServerError):
        return on_both(servers, "SELECT a FROM kept") == ([(7,)], b"7\n")
    return False


def test_clickhouse_refuses_whoever_lacks_the_password(servers: Servers) -> None:
    for login in WRONG_LOGINS:
        for statement in STATEMENTS:
            asked = {"query": statement}
            response = httpx.post(servers.clickhouse.url, params=asked, auth=login, trust_env=False)
            assert response.status_code >= 400, response.text
            assert "Exception" in response.text
            with pytest.raises((NativeError, EOFError)):
                native(servers, login, statement)
    for query in ("?query=SELECT+1", "?user=default&query=SELECT+1", "?user=framehaul&password=x&query=SELECT+1"):
        assert httpx.get(servers.clickhouse.url + query, trust_env=False).status_code >= 400
    assert answers(servers)
    assert ClickHouseTables(servers.clickhouse).run("EXISTS TABLE intruder") == b"0\n"


def test_postgres_refuses_whoever_lacks_the_password(servers: Servers) -> None:
    for user, password, database in itertools.product(
        ("framehaul", "postgres", "nobody", "root"), ("", "wrong"), ("framehaul", "postgres", "template1")
    ):
        intruder = replace(servers.postgres, user=user, password=password, database=database)
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(intruder.dsn())


def test_every_listener_is_on_loopback_and_there_is_no_socket_file(servers: Servers) -> None:
    for process_id in (servers.postgres.process_id, servers.clickhouse.process_id):
        connections = psutil.Process(process_id).net_connections(kind="all")
        listening = [found for found in connections if found.status == psutil.CONN_LISTEN]
        assert listening
        assert {found.laddr.ip for found in listening} == {"127.0.0.1"}
        assert not [found.laddr for found in connections if found.family == socket.AF_UNIX and found.laddr]


def test_every_driver_reads_over_a_unix_socket(
    own: Settings, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres = EmbeddedPostgres(own.state_dir, choose_port(), configuration={"unix_socket_directories": "."})
    with contextlib.ExitStack() as stack:
        stack.callback(postgres.stop)
        server = replace(postgres.start(), host=str(postgres.data))
        tables, sent = PostgresTables(server), generator.arrow_table(ANALYTICS_METRICS, 50, 1)
        tables.create(ANALYTICS_METRICS)
        tables.load(ANALYTICS_METRICS, sent)
        for technique in filter(one_for_each_driver, techniques("postgres", "read")):
            found = call(technique, replace(servers, postgres=server), ANALYTICS_METRICS)
            assert len(found) == sent.num_rows, technique.name
        with relayed(server, Relay) as (reached, relay):
            assert (reached, relay) == (server, None)
        assert tables.metadata()["transport"] == "Unix socket"
        # Of somebody else's server the address says it, or the environment of libpq.
        login = f"user={server.user} dbname={server.database}"
        external = Settings(servers="external", clickhouse_url="http://u:p@h/", postgres_dsn=login)
        for name, value in {"HOST": server.host, "PORT": str(server.port), "PASSWORD": server.password}.items():
            monkeypatch.setenv(f"PG{name}", value)
        with all_servers.running(external) as elsewhere_there:
            assert PostgresTables(elsewhere_there.postgres).run("SELECT inet_client_addr() IS NULL") == [(True,)]


def test_passwords_are_in_private_files_only(servers: Servers, settings: Settings) -> None:
    secrets = [servers.postgres.password, servers.clickhouse.password]
    assert secrets[0] != secrets[1]
    files = [path for path in settings.state_dir.rglob("*") if path.is_file() and "data" not in path.parts]
    private = [path for path in files if any(secret in path.read_text("latin1") for secret in secrets)]
    modes = {(path.name, path.stat().st_mode & 0o777) for path in private}
    assert modes == {("password", 0o600), ("servers.json", 0o600)}
    assert servers.supervisor_process_id
    supervisor = psutil.Process(servers.supervisor_process_id)
    for process in (supervisor, *supervisor.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            assert not [secret for secret in secrets if secret in " ".join(process.cmdline())]


def test_started_servers_stay_until_they_are_stopped_whatever_is_killed(open_dir: Path, tmp_path: Path) -> None:
    """One life of servers: the state directory has any name, and root's is reached by nobody else."""
    root = os.geteuid() == 0
    home = (tmp_path if root else open_dir) / 'R&D <state> d\'été "x" %s'
    home.mkdir(mode=0o700)
    own = Settings(state_dir=home / "state")
    stand_in = elsewhere(own.state_dir / "postgres")
    try:
        assert all_servers.stop(own) is False
        first = all_servers.start(own)
        passwords = [one.password for one in (first.postgres, first.clickhouse)]
        assert all_servers.start(own) == first
        with all_servers.running(own) as found:
            assert found == first
        on_both(first, "CREATE TABLE kept {} AS SELECT 7 AS a", "ENGINE = MergeTree ORDER BY a")
        if root:
            assert psutil.Process(first.postgres.process_id).username() == "nobody"
            assert stand_in.is_dir()
            assert home.stat().st_mode & 0o777 == 0o700
        with busy(first):  # the postmaster comes back though a backend of it still works
            os.kill(first.postgres.process_id or 0, signal.SIGKILL)
            eventually(lambda: kept(first), "the killed PostgreSQL did not come back")
        os.kill(all_servers.start(own).clickhouse.process_id or 0, signal.SIGKILL)
        eventually(lambda: kept(first), "the killed ClickHouse did not come back")

        supervisor = psutil.Process(first.supervisor_process_id)
        children = [one.pid for one in supervisor.children(recursive=True)]
        supervisor.kill()
        eventually(lambda: gone(children), f"{children} outlived their supervisor")
        again = all_servers.start(own)
        assert [one.password for one in (again.postgres, again.clickhouse)] == passwords
        assert kept(again)
        assert all_servers.stop(own) is True
        assert gone([pid for pid in (again.supervisor_process_id, again.postgres.process_id) if pid])
        assert all_servers.stop(own) is False
    finally:
        all_servers.stop(own)
        shutil.rmtree(stand_in, ignore_errors=True)


@contextlib.contextmanager
def busy(servers: Servers) -> Iterator[None]:
    """A backend that works for longer than a server takes to come back."""
    with psycopg.connect(servers.postgres.dsn()) as connection:
        connection.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 1000000000)")
        backend = psutil.Process(connection.info.backend_pid)
        eventually(lambda: backend.cpu_times().user > 0.1, "the query does not run")
        yield
        connection.close()


@contextlib.contextmanager
def holding(own: Settings) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """Another process that holds the servers, in spite of proxies, and the ids of the supervisor and both servers."""
    command = [sys.executable, "-c", HOLDER, str(own.state_dir)]
    names = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy")
    proxies = dict.fromkeys(names, "http://127.0.0.1:9")  # nothing listens on the discard port
    env = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"} | proxies
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "env": env}
    with subprocess.Popen(command, start_new_session=True, **pipes) as holder:  # type: ignore[call-overload]
        yield holder, [int(word) for word in holder.stdout.readline().split()]


def test_nothing_is_left_when_the_process_that_holds_the_servers_dies(own: Settings) -> None:
    with holding(own) as (holder, process_ids):
        assert len(process_ids) == 3
        os.killpg(holder.pid, signal.SIGKILL)
    eventually(lambda: gone(process_ids), f"{process_ids} outlived their holder")
    assert not is_kept(own.state_dir)


def test_servers_that_run_are_shared_and_end_with_the_process_that_started_them(own: Settings) -> None:
    with pytest.raises(KeyboardInterrupt), all_servers.running(own) as servers:
        with holding(own) as (other, (supervisor, *_)):
            assert supervisor == servers.supervisor_process_id
            other.communicate()
            assert other.returncode == 0
        assert answers(servers)
        raise KeyboardInterrupt
    assert not is_kept(own.state_dir)


@pytest.mark.parametrize(
    ("before", "after"),
    [("", "127.0.0.1,localhost,::1"), ("corp.example, localhost", "corp.example,localhost,127.0.0.1,::1"), ("*", "*")],
)
def test_what_was_excepted_from_the_proxy_stays_so(before: str, after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, before)
    for _ in range(2):
        all_servers.reach_loopback_directly()
    assert {os.environ["no_proxy"], os.environ["NO_PROXY"]} == {after}


def test_a_run_beside_another_one_with_the_same_servers_is_refused(
    servers: Servers, settings: Settings, tmp_path: Path, within: RunsCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collected, "page", lambda _: {"rows": []})  # which reads every committed run
    with (settings.state_dir / LOCK_OF_A_RUN).open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = within("run", "--notebooks=13", "--preset=smoke", f"--out={tmp_path}", state_dir=settings.state_dir)
    assert done.returncode == 2
    assert "another run has the servers" in done.stderr
    assert "FRAMEHAUL_STATE_DIR" in done.stderr
    assert not [*(tmp_path / "results").glob("parquet*")]


def test_what_keeps_servers_from_starting_is_named_with_the_remedy(
    servers: Servers, own: Settings, open_dir: Path, tmp_path: Path
) -> None:
    for field in ("postgres_port", "clickhouse_http_port"):
        with socket.create_server(("127.0.0.1", 0)) as occupant:
            port = occupant.getsockname()[1]
            with pytest.raises(ServerError, match=rf"port {port} is occupied.*FRAMEHAUL_{field.upper()}"):
                all_servers.start(replace(own, **{field: port}))
    (tmp_path / "file").write_text("")
    for refused, said in (
        (replace(own, postgres_extensions=open_dir), "FRAMEHAUL_POSTGRES_EXTENSIONS"),
        (Settings(state_dir=tmp_path / "file" / "state"), "FRAMEHAUL_STATE_DIR=.*choose a writable one"),
    ):
        with pytest.raises(ServerError, match=said):
            all_servers.start(refused)
    assert not is_kept(own.state_dir)
    assert answers(servers)


def test_external_servers_are_found_by_their_addresses(servers: Servers) -> None:
    port = servers.clickhouse.native_port
    external = Settings(servers="external", clickhouse_url=url_of(servers.clickhouse), clickhouse_native_port=port)
    words = " ".join(f"{name}={value}" for name, value in conninfo_to_dict(servers.postgres.dsn()).items())
    for dsn in (servers.postgres.dsn(), f"{words} application_name=x"):
        with all_servers.running(replace(external, postgres_dsn=dsn)) as found:
            assert answers(found)
            assert found.postgres.process_id is None


@pytest.mark.parametrize(
    ("dsn", "url", "said"),
    [
        (None, URL, "FRAMEHAUL_POSTGRES_DSN"),
        (GOOD, None, "FRAMEHAUL_CLICKHOUSE_URL"),
        (GOOD, "clickhouse://u:hidden@h:9000/", "FRAMEHAUL_CLICKHOUSE_URL must look like"),
        (GOOD, "http://u:hidden@h:many/", "FRAMEHAUL_CLICKHOUSE_URL"),
        (GOOD, "http://u:hidden#hidden@h:8123/", "FRAMEHAUL_CLICKHOUSE_URL must look like"),
        ("nonsense", URL, "FRAMEHAUL_POSTGRES_DSN is not a libpq connection string"),
        ("postgresql://u:hidden%zzhidden@h/d", URL, "FRAMEHAUL_POSTGRES_DSN is not a libpq"),
        ("host=a,b port=1,2 password=hidden", URL, "FRAMEHAUL_POSTGRES_DSN"),
        ("service=prod password=hidden", URL, "names a service of a file, which is not read here"),
    ],
)
def test_external_addresses_that_are_missing_or_malformed_are_named_without_the_password(
    dsn: str | None, url: str | None, said: str
) -> None:
    with pytest.raises(ServerError) as raised:
        all_servers.start(Settings(servers="external", postgres_dsn=dsn, clickhouse_url=url))
    assert said in str(raised.value)
    assert "hidden" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    "words",
    [
        "host=/var/run/pg port=5433 user=u password=p dbname=d",
        "host=::1 port=5433 user=u password='p w%/@:' dbname='d b'",
        "host=h port=5433 user=u@x password=p dbname=d options='-c search_path=a,b -c work_mem=5MB' sslmode=disable",
    ],
)
def test_an_external_address_comes_out_of_its_url_as_it_went_in(words: str) -> None:
    assert conninfo_to_dict(all_servers.parse_postgres_dsn("x", words).dsn()) == conninfo_to_dict(words)


@pytest.mark.slow
def test_whoever_starts_servers_at_the_same_time_gets_the_same_ones(own: Settings) -> None:
    own.state_dir.mkdir(mode=0o711)
    with (own.state_dir / LOCK).open("w") as held, ThreadPoolExecutor(3) as pool:
        fcntl.flock(held, fcntl.LOCK_SH)  # as `is_kept` does for an instant: it keeps nobody from starting
        release = threading.Timer(0.5, fcntl.flock, (held, fcntl.LOCK_UN))
        release.start()
        first, *others = pool.map(all_servers.start, [own] * 3)
        release.join()
    assert others == [first] * 2
    assert answers(first)


def test_a_home_of_a_run_is_removed_with_all_that_stands_in_for_it(tmp_path: Path) -> None:
    with home_of_a_run(tmp_path / "state", "pgbench") as home:
        (home / "default").mkdir()
        stand_ins = [elsewhere(where / "postgres") for where in (home, home / "default")]
        for one in stand_ins:
            one.mkdir()
    assert not [path for path in (home, *stand_ins) if path.exists()]
