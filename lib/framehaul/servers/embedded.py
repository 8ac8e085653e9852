"""Both embedded servers from the outside: start the process that keeps them, find it, stop it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread

import psutil

from framehaul.errors import ServerError
from framehaul.servers.address import Servers
from framehaul.servers.postgres import remove
from framehaul.settings import TOOLS, Settings

ADDRESSES = "servers.json"
LOCK = "supervisor.lock"
LOCK_OF_A_RUN = "run.lock"
USERS = "users.lock"
"""Held, shared, by each process that uses servers which another one has started: they live until it ends as well."""
LOG = "supervisor.log"
HOME_OF_A_RUN = re.compile(r"[a-z_]+-(\d+)-\w{8}")
"""What a directory for servers of one process is called: of which kind, and of whom."""
OURS_IN_STATE = re.compile(
    "|".join([
        "postgres", "clickhouse", "docker", *map(re.escape, (ADDRESSES, LOCK, LOCK_OF_A_RUN, USERS, LOG)),
        HOME_OF_A_RUN.pattern,
    ])
)  # fmt: skip
"""What servers have in the state directory; what takes minutes to build is there as well."""
LOG_LINES = 10
START_SECONDS = 90

_reapers: dict[int, Thread] = {}
"""Of supervisors that this process started and that may outlive it, by their process ids."""


@contextmanager
def running(settings: Settings) -> Iterator[Servers]:
    """The servers that are kept already, or new ones that live as long as the block, and as others use them."""
    if is_kept(settings.state_dir):
        with _using(settings.state_dir):
            if is_kept(settings.state_dir):  # else they were just about to end
                yield _wait_for_addresses(settings.state_dir, None)
                return
    supervisor = _start_supervisor(settings, detached=False)
    try:
        servers = _wait_for_addresses(settings.state_dir, supervisor)
        if servers.supervisor_process_id == supervisor.pid:
            yield servers
        else:
            with running(settings) as servers:
                yield servers
    finally:
        used = _is_held(settings.state_dir / USERS, fcntl.LOCK_EX)
        assert supervisor.stdin is not None
        supervisor.stdin.close()
        if used:
            _reap(supervisor)
        else:
            supervisor.wait()


def start(settings: Settings) -> Servers:
    """Start servers that outlive this process; those that are kept already are returned as they are."""
    supervisor = None if is_kept(settings.state_dir) else _start_supervisor(settings, detached=True)
    if supervisor is not None:
        _reap(supervisor)
    return _wait_for_addresses(settings.state_dir, supervisor)


def stop(settings: Settings) -> bool:
    """Stop the servers kept in the state directory, whoever started them; false when there are none."""
    if not is_kept(settings.state_dir):
        return False
    supervisor = _wait_for_addresses(settings.state_dir, None).supervisor_process_id
    assert supervisor is not None
    os.kill(supervisor, signal.SIGTERM)
    while is_kept(settings.state_dir):
        time.sleep(0.05)
    if reaper := _reapers.pop(supervisor, None):
        reaper.join()  # it has let go of the servers, and is about to end
    return True


def is_kept(state_dir: Path) -> bool:
    """Whether a supervisor lives: it holds a lock that ends with it, so no stale file or reused process id can lie."""
    return _is_held(state_dir / LOCK, fcntl.LOCK_SH)


def _is_held(lock: Path, how: int) -> bool:
    """Whether another process holds a lock so that it cannot be taken."""
    if not lock.exists():
        return False
    with lock.open("r") as file:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


@contextmanager
def _using(state_dir: Path) -> Iterator[None]:
    """Who starts servers, and ends, leaves them to those inside of such a block; waits for servers that are ending."""
    with (state_dir / USERS).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def _reap(supervisor: subprocess.Popen[bytes]) -> None:
    """Whoever stops it: a process of ours that has ended is waited for."""
    _reapers[supervisor.pid] = Thread(target=supervisor.wait, name="framehaul-reaper", daemon=True)
    _reapers[supervisor.pid].start()


@contextmanager
def home_of_a_run(state_dir: Path, kind: str) -> Iterator[Path]:
    """A directory for servers of this process alone, on the others' disk, which is removed at the end.

    Those of the same kind that a process which was killed has left are removed as well.
    """
    state_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
    for left in state_dir.glob(f"{kind}-*"):
        of = HOME_OF_A_RUN.fullmatch(left.name)
        if of and not psutil.pid_exists(int(of[1])) and not is_kept(left):
            remove(left)
    home = Path(tempfile.mkdtemp(prefix=f"{kind}-{os.getpid()}-", dir=state_dir))
    home.chmod(0o711)  # PostgreSQL's own account passes through
    try:
        yield home
    finally:
        remove(home)


def moved(settings: Settings, home: Path) -> Settings:
    """The same servers beside others: elsewhere, at ports that are free, and with the tools that are there."""
    tools = settings.tools_dir
    tools.mkdir(exist_ok=True)
    if not (home / TOOLS).exists():
        (home / TOOLS).symlink_to(tools)
    return replace(settings, state_dir=home, postgres_port=None, clickhouse_http_port=None)


def _start_supervisor(settings: Settings, *, detached: bool) -> subprocess.Popen[bytes]:
    if {*str(settings.state_dir)} & {*"{}*?"}:
        raise ServerError(
            f"in {settings.state_dir} ClickHouse makes no table: it takes braces, * and ? for a pattern; set "
            "FRAMEHAUL_STATE_DIR to another directory"
        )
    try:
        # Passable, so that PostgreSQL's unprivileged account reaches its own directory in it; not listable.
        settings.state_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
        # Appended to: another process that starts servers at the same moment writes there, too.
        log = (settings.state_dir / LOG).open("ab")
    except OSError as error:
        raise ServerError(
            f"FRAMEHAUL_STATE_DIR={settings.state_dir}: {error.strerror}; choose a writable one"
        ) from error
    command = [sys.executable, "-m", "framehaul.servers.supervisor", f"--state-dir={settings.state_dir}"]
    if settings.postgres_port:
        command.append(f"--postgres-port={settings.postgres_port}")
    if settings.clickhouse_http_port:
        command.append(f"--clickhouse-http-port={settings.clickhouse_http_port}")
    if settings.postgres_extensions:
        command.append(f"--postgres-extensions={settings.postgres_extensions}")
    if settings.transport == "unix":
        command.append("--postgres-socket")
    if detached:
        command.append("--detached")
    with log:
        # A session of its own: Ctrl-C reaches this process only, which then stops the servers in order.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL if detached else subprocess.PIPE, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip


def _wait_for_addresses(state_dir: Path, supervisor: subprocess.Popen[bytes] | None) -> Servers:
    """Wait until the supervisor, ours or somebody else's (None), has published where the servers are."""
    addresses = state_dir / ADDRESSES
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if (supervisor is None or is_kept(state_dir)) and addresses.exists():
            servers = Servers.from_json(json.loads(addresses.read_text()))
            if supervisor is None or servers.supervisor_process_id == supervisor.pid:
                return servers
        if supervisor is not None and supervisor.poll() is not None:
            if not is_kept(state_dir):
                break
            supervisor = None  # somebody else was first, at the same moment: theirs will do
        if supervisor is None and not is_kept(state_dir):
            break  # it has ended, or could not start
        time.sleep(0.02)
    reason = "\n".join((state_dir / LOG).read_text(errors="replace").strip().splitlines()[-LOG_LINES:])
    raise ServerError(reason or f"the servers did not start within {START_SECONDS} s; see the logs below {state_dir}")
