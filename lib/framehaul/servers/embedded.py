"""Run both embedded servers in a supervisor process, and start, find and stop it.

The supervisor runs `python -m framehaul.servers.embedded`. It starts the servers, writes their addresses to
`servers.json`, and restarts both when one dies. It stops them on SIGTERM or SIGINT and, unless `--detached`, when its
standard input closes, because its parent has ended. It inherits the locked file `supervisor.lock` and never closes it,
so that the lock ends with the process.
"""

import contextlib
import fcntl
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from threading import Event, Thread
from typing import IO, Any

import psutil

from framehaul.errors import ServerError, SettingsError
from framehaul.servers import ClickHouseServer, PostgresServer, Servers
from framehaul.servers.local import EmbeddedClickHouse, EmbeddedPostgres, choose_port, end_of, remove, write_private
from framehaul.settings import PREFIX, Settings, load_settings

ADDRESSES, LOG, LOCK_OF_A_RUN = "servers.json", "supervisor.log", "run.lock"
LOCK = "supervisor.lock"
"""File that a living supervisor keeps locked; unlike a process id, the lock is never stale."""
OURS_IN_STATE = re.compile(r"postgres|clickhouse|docker|servers\.json|supervisor\.lo(ck|g)|run\.lock|[a-z_]+-\d+-\w{8}")
"""Pattern of the servers' files in the state directory, which also contains tools that take minutes to build."""
START_SECONDS, MAX_RESTARTS = 90, 20


@contextmanager
def running(settings: Settings) -> Iterator[Servers]:
    """Yield running servers, or start servers that are stopped at the end of the block."""
    servers, supervisor = _find_or_start(settings, detached=False)
    try:
        yield servers
    finally:
        if supervisor is not None:
            supervisor.communicate()  # closing its input stops it


def start(settings: Settings) -> Servers:
    """Return running servers, or start servers that outlive this process."""
    servers, supervisor = _find_or_start(settings, detached=True)
    if supervisor is not None:  # only a parent can reap the process
        Thread(target=supervisor.wait, name="framehaul-reaper", daemon=True).start()
    return servers


def stop(settings: Settings) -> bool:
    """Stop the servers of the state directory and return whether any were running."""
    was_kept = is_kept(settings.state_dir)
    while is_kept(settings.state_dir):
        if (servers := _published(settings.state_dir)) and servers.supervisor_process_id:
            with contextlib.suppress(ProcessLookupError):
                os.kill(servers.supervisor_process_id, signal.SIGTERM)
        time.sleep(0.05)
    return was_kept


def is_kept(state_dir: Path) -> bool:
    """Return whether a supervisor runs servers in the state directory."""
    if not (state_dir / LOCK).exists():
        return False
    with (state_dir / LOCK).open() as file:
        return not locked(file, fcntl.LOCK_SH)


def locked(file: IO[Any], kind: int = fcntl.LOCK_EX) -> bool:
    """Lock a file until it is closed; return False if another process holds the lock."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(file, kind | fcntl.LOCK_NB)
        return True
    return False


@contextmanager
def home_of_a_run(state_dir: Path, kind: str) -> Iterator[Path]:
    """Yield a directory in the state directory for servers of this process alone, and remove it at the end."""
    state_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix=f"{kind}-{os.getpid()}-", dir=state_dir))
    home.chmod(0o711)  # so that PostgreSQL's account can enter
    try:
        yield home
    finally:
        remove(home)


def _find_or_start(settings: Settings, *, detached: bool) -> tuple[Servers, subprocess.Popen[bytes] | None]:
    """Return the servers, and the supervisor if this call has started it."""
    state_dir = settings.state_dir
    try:
        # Mode 711: PostgreSQL's unprivileged account reaches its own directory but cannot list this one.
        state_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
        lock = (state_dir / LOCK).open("w")
    except OSError as error:
        raise ServerError(f"FRAMEHAUL_STATE_DIR={state_dir}: {error.strerror}; choose a writable one") from error
    supervisor: subprocess.Popen[bytes] | None = None
    deadline = time.monotonic() + START_SECONDS
    with lock, contextlib.ExitStack() as on_failure:
        while time.monotonic() < deadline and (supervisor is None or supervisor.poll() is None):
            if supervisor is None and locked(lock):
                supervisor = _start(settings, lock, detached=detached)
                on_failure.callback(supervisor.communicate)
                on_failure.callback(supervisor.terminate)
            elif servers := _published(state_dir):
                on_failure.pop_all()
                return servers, supervisor
            time.sleep(0.02)
    reason = end_of(state_dir / LOG) if supervisor else ""
    raise ServerError(reason or f"the servers did not start within {START_SECONDS} s; see the logs below {state_dir}")


def _start(settings: Settings, lock: IO[Any], *, detached: bool) -> subprocess.Popen[bytes]:
    """Start a supervisor, which inherits the lock and publishes the addresses of the servers."""
    names = ("state_dir", "postgres_port", "clickhouse_http_port", "postgres_extensions")
    given = {f"{PREFIX}{name.upper()}": str(getattr(settings, name) or "") for name in names}
    command = [sys.executable, "-m", "framehaul.servers.embedded", *["--detached"] * detached]
    how: dict[str, Any] = {"stdin": subprocess.DEVNULL if detached else subprocess.PIPE, "pass_fds": [lock.fileno()]}
    (settings.state_dir / ADDRESSES).unlink(missing_ok=True)
    with (settings.state_dir / LOG).open("ab") as log:
        # In a session of its own, Ctrl-C reaches this process only, which then stops the servers in order.
        return subprocess.Popen(command, env=os.environ | given, stdout=log, stderr=log, start_new_session=True, **how)


def _published(state_dir: Path) -> Servers | None:
    """Return the servers whose addresses a living supervisor has published, or None."""
    try:
        values = json.loads((state_dir / ADDRESSES).read_text())
    except FileNotFoundError:
        return None
    postgres, clickhouse = values.pop("postgres"), values.pop("clickhouse")
    postgres |= {"options": (), "exchange": tuple(postgres["exchange"])}  # lists in JSON
    servers = Servers(PostgresServer(**postgres), ClickHouseServer(**clickhouse), **values)
    return servers if psutil.pid_exists(servers.supervisor_process_id or 0) else None


def _keep(settings: Settings, stop: Event, inputs: list[IO[str]]) -> None:
    """Start both servers, publish their addresses, and restart both when one dies, until `stop` or an input's end."""
    home, addresses = settings.state_dir, settings.state_dir / ADDRESSES
    port = choose_port(settings.postgres_port, "FRAMEHAUL_POSTGRES_PORT")
    http_port = choose_port(settings.clickhouse_http_port, "FRAMEHAUL_CLICKHOUSE_HTTP_PORT")
    postgres = EmbeddedPostgres(home, port, settings.postgres_extensions)
    clickhouse = EmbeddedClickHouse(home, http_port, choose_port())
    for restarts in range(MAX_RESTARTS + 1):
        try:
            with ThreadPoolExecutor(2) as pool:
                started = pool.submit(postgres.start), pool.submit(clickhouse.start)
            servers = Servers(started[0].result(), started[1].result(), "embedded", os.getpid())
            write_private(addresses, json.dumps(asdict(servers)))
            while postgres.is_running() and clickhouse.is_running():
                if stop.wait(0.2) or select.select(inputs, [], [], 0)[0]:  # nothing is written to the input
                    return
        finally:
            addresses.unlink(missing_ok=True)
            postgres.stop()
            clickhouse.stop()
        print(f"a server died; starting both again ({restarts} of {MAX_RESTARTS})", flush=True)
    raise ServerError(f"a server died {MAX_RESTARTS} times; see the logs below {settings.state_dir}")


if __name__ == "__main__":
    ended = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        _keep(load_settings(env_file=None), ended, [] if "--detached" in sys.argv else [sys.stdin])
    except (ServerError, SettingsError) as error:
        raise SystemExit(str(error)) from error
