"""Start, find and stop the process that keeps both embedded servers."""

from __future__ import annotations

import contextlib
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
from typing import IO, Any

import psutil

from framehaul.errors import ServerError
from framehaul.servers.address import Servers
from framehaul.servers.files import end_of
from framehaul.servers.postgres import remove
from framehaul.settings import PREFIX, TOOLS, Settings

ADDRESSES = "servers.json"
LOCK = "supervisor.lock"
"""File that the supervisor keeps locked while it lives, so that no stale file or reused process id can mislead."""
LOCK_OF_A_RUN = "run.lock"
LOG = "supervisor.log"
HOME_OF_A_RUN = re.compile(r"[a-z_]+-(\d+)-\w{8}")
"""Name of a directory with the servers of one process: it holds their kind and the process id."""
FILES = ("postgres", "clickhouse", "docker", ADDRESSES, LOCK, LOCK_OF_A_RUN, LOG)
OURS_IN_STATE = re.compile("|".join([*map(re.escape, FILES), HOME_OF_A_RUN.pattern]))
"""Names of what servers keep in the state directory, which also holds tools that take minutes to build."""
FOR_SUPERVISOR = ("state_dir", "transport", "postgres_port", "clickhouse_http_port", "postgres_extensions")
START_SECONDS = 90


@contextmanager
def running(settings: Settings) -> Iterator[Servers]:
    """Yield the servers that run already, or start servers that are stopped when the block ends."""
    servers, supervisor = _find_or_start(settings, detached=False)
    try:
        yield servers
    finally:
        if supervisor is not None:
            supervisor.communicate()  # closing its input stops it


def start(settings: Settings) -> Servers:
    """Return the servers that run already, or start servers that outlive this process."""
    servers, supervisor = _find_or_start(settings, detached=True)
    if supervisor is not None:  # any process may stop it, but only its parent can reap it
        Thread(target=supervisor.wait, name="framehaul-reaper", daemon=True).start()
    return servers


def stop(settings: Settings) -> bool:
    """Stop the servers of the state directory, whichever process started them; return whether any were running."""
    was_kept = is_kept(settings.state_dir)
    while is_kept(settings.state_dir):
        servers = _published(settings.state_dir)
        if servers is not None and servers.supervisor_process_id is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(servers.supervisor_process_id, signal.SIGTERM)
        time.sleep(0.05)
    return was_kept


def is_kept(state_dir: Path) -> bool:
    """Return whether a supervisor keeps servers in the state directory."""
    if not (state_dir / LOCK).exists():
        return False
    with (state_dir / LOCK).open() as file:
        return not _lock(file, fcntl.LOCK_SH)


def _lock(file: IO[Any], kind: int) -> bool:
    """Lock a file until it is closed, and return whether that was possible at once."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def home_of_a_run(state_dir: Path, kind: str) -> Iterator[Path]:
    """Yield a directory for servers of this process alone, on the disk of the others; it is removed at the end.

    Directories of the same kind are removed as well if the process that made them was killed.
    """
    state_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
    for left in state_dir.glob(f"{kind}-*"):
        name = HOME_OF_A_RUN.fullmatch(left.name)
        if name and not psutil.pid_exists(int(name[1])) and not is_kept(left):
            remove(left)
    home = Path(tempfile.mkdtemp(prefix=f"{kind}-{os.getpid()}-", dir=state_dir))
    home.chmod(0o711)  # PostgreSQL's own account passes through
    try:
        yield home
    finally:
        remove(home)


def moved(settings: Settings, home: Path) -> Settings:
    """Return the settings of further servers in `home`, with free ports and the tools that are already built."""
    settings.tools_dir.mkdir(exist_ok=True)
    (home / TOOLS).symlink_to(settings.tools_dir)
    return replace(settings, state_dir=home, postgres_port=None, clickhouse_http_port=None)


def _find_or_start(settings: Settings, *, detached: bool) -> tuple[Servers, subprocess.Popen[bytes] | None]:
    """Return the servers, and their supervisor if this call has started it."""
    state_dir = settings.state_dir
    if {*str(state_dir)} & {*"{}*?"}:
        raise ServerError(
            f"in {state_dir} ClickHouse makes no table: it takes braces, * and ? for a pattern; set "
            "FRAMEHAUL_STATE_DIR to another directory"
        )
    try:
        # Passable, so that PostgreSQL's unprivileged account reaches its own directory in it; not listable.
        state_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
        lock = (state_dir / LOCK).open("w")
    except OSError as error:
        raise ServerError(f"FRAMEHAUL_STATE_DIR={state_dir}: {error.strerror}; choose a writable one") from error
    deadline = time.monotonic() + START_SECONDS
    with lock:
        while time.monotonic() < deadline:
            if _lock(lock, fcntl.LOCK_EX):
                return _start(settings, lock, detached=detached)
            if servers := _published(state_dir):
                return servers, None
            time.sleep(0.02)
    raise ServerError(f"the servers did not start within {START_SECONDS} s; see the logs below {state_dir}")


def _start(settings: Settings, lock: IO[Any], *, detached: bool) -> tuple[Servers, subprocess.Popen[bytes]]:
    """Start a supervisor, which inherits the lock, and wait until it has published the addresses of the servers."""
    given = {f"{PREFIX}{name.upper()}": getattr(settings, name) for name in FOR_SUPERVISOR}
    others = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    (settings.state_dir / ADDRESSES).unlink(missing_ok=True)
    with (settings.state_dir / LOG).open("ab") as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "framehaul.servers.supervisor", *(["--detached"] if detached else [])],
            env=others | {name: str(value) for name, value in given.items() if value is not None},
            pass_fds=[lock.fileno()],
            stdin=subprocess.DEVNULL if detached else subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches this process only, which then stops the servers in order
        )
    try:
        return _wait_until_published(settings.state_dir, supervisor), supervisor
    except BaseException:
        supervisor.terminate()
        supervisor.communicate()
        raise


def _wait_until_published(state_dir: Path, supervisor: subprocess.Popen[bytes]) -> Servers:
    deadline = time.monotonic() + START_SECONDS
    while supervisor.poll() is None and time.monotonic() < deadline:
        if servers := _published(state_dir):
            return servers
        time.sleep(0.02)
    raise ServerError(end_of(state_dir / LOG) or f"no server started within {START_SECONDS} s; see {state_dir / LOG}")


def _published(state_dir: Path) -> Servers | None:
    """Return the servers whose addresses a living supervisor has written, if there is one."""
    try:
        servers = Servers.from_json(json.loads((state_dir / ADDRESSES).read_text()))
    except FileNotFoundError:
        return None
    return servers if psutil.pid_exists(servers.supervisor_process_id or 0) else None
