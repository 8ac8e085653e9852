"""Run the embedded ClickHouse: the engine in the wheel `chdb-core` with its HTTP and native listeners.

`chdb-core` is clickhouse-local as a Python module. clickhouse-local can open a server's listeners since
https://github.com/ClickHouse/ClickHouse/pull/101143 and serves them until its last statement ends. Here the last
statement reads standard input, so that the server shuts down cleanly when its parent closes the input or dies.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from framehaul.servers.address import ClickHouseServer
from framehaul.servers.hostile import CLICKHOUSE_SETTINGS, HOSTILE
from framehaul.servers.local import password_in, when_ready, write_private

USER, DATABASE = "framehaul", "default"
GRANTS = "GRANT SYSTEM LISTEN ON *.*", "GRANT READ ON FILE", "GRANT CREATE TEMPORARY TABLE ON *.*"
"""The rights of the serving process, which opens the listeners and waits on standard input."""
# HTTP comes last, because the parent waits until it answers.
SERVE = """
SYSTEM START LISTEN TCP;
SYSTEM START LISTEN HTTP;
SELECT count() FROM file('/dev/stdin', 'LineAsString', 'line String') FORMAT Null;
"""


@dataclass
class EmbeddedClickHouse:
    """A ClickHouse process with its data under `state_dir`; `profile` has further settings of its user."""

    state_dir: Path
    http_port: int
    native_port: int
    profile: Mapping[str, str | int] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> ClickHouseServer:
        """Start serving and wait until HTTP answers; raises ServerError with the end of the log on failure."""
        home = self.state_dir / "clickhouse"
        store, log = home / "data" / "store", home / "output.log"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        store.mkdir(parents=True, exist_ok=True)
        # Without a journal, ext4 does not reuse recently freed inodes, and scans them for every new file: after many
        # dropped tables, an INSERT took two to three times as long. With this attribute ext4 spreads new directories
        # over the disk. Other file systems do not have it and do not need it.
        # https://man7.org/linux/man-pages/man1/chattr.1.html (T),
        # https://github.com/torvalds/linux/blob/v6.18/fs/ext4/ialloc.c (recently_deleted)
        with contextlib.suppress(FileNotFoundError):
            subprocess.run(["chattr", "+T", store], capture_output=True, check=False)
        password = password_in(home / "password")
        listeners = {"listen_host": "127.0.0.1", "http_port": self.http_port, "tcp_port": self.native_port}
        others = {"logger": {"errorlog": "server.log"}, "users_config": "users.xml", "default_profile": "default"}
        write_private(home / "config.xml", _xml({"clickhouse": {**listeners, **others}}))
        write_private(home / "users.xml", _xml({"clickhouse": self._users(password)}))
        command = [sys.executable, "-m", "framehaul.servers.clickhouse", "data"]
        how: dict[str, Any] = {"cwd": home, "stdin": subprocess.PIPE, "start_new_session": True}
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, **how)
        ports, ping = (self.http_port, self.native_port), f"http://127.0.0.1:{self.http_port}/ping"
        when_ready("ClickHouse", log, lambda: urllib.request.urlopen(ping, timeout=5).close(), self.is_running)
        return ClickHouseServer("127.0.0.1", *ports, USER, password, DATABASE, process_id=self._process.pid)

    def is_running(self) -> bool:
        """Return whether the serving process is alive."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Close the process's input, which ends it cleanly; kill it if it has not ended after 30 seconds."""
        if self._process is None or self._process.stdin is None:
            return
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _users(self, password: str) -> dict[str, Any]:
        """Return the profiles, quotas and users of the server."""
        common: dict[str, Any] = {"networks": {"ip": "127.0.0.1"}, "quota": "default"}
        login = {"password_sha256_hex": hashlib.sha256(password.encode()).hexdigest(), **common}
        grants = "".join(f"<query>{grant}</query>" for grant in GRANTS)
        return {
            "profiles": {
                # This profile sets what differs from a stock server in this build. A client may be silent for more than
                # 30 seconds within an INSERT, because compiling a codec can take that long. No URL can set that limit:
                # https://clickhouse.com/docs/operations/settings/settings#http_receive_timeout
                "default": {"async_insert": 0, "http_receive_timeout": 300, **self.profile},
                "hostile": CLICKHOUSE_SETTINGS,
                "serving": {"max_sessions_for_user": 1},
            },
            "quotas": {"default": ""},
            "users": {
                # The serving process itself logs in as `default`, without a password. That user may have one session,
                # which the process opens before the first listener: both protocols refuse every later login.
                "default": {"password": "", **common, "profile": "serving", "grants": grants},
                USER: {**login, "profile": "default"},
                HOSTILE: {**login, "profile": "hostile"},  # defined here, because SQL cannot create users
            },
        }


def _xml(tree: Mapping[str, Any]) -> str:
    """Return a tree of settings as XML elements."""
    parts = ((name, _xml(value) if isinstance(value, Mapping) else value) for name, value in tree.items())
    return "".join(f"<{name}>{value}</{name}>" for name, value in parts)


def serve(data: str) -> None:
    """Serve the directory `data`; the engine reads config.xml and users.xml from the working directory."""
    package = importlib.util.find_spec("chdb")
    if package is None or package.origin is None:
        raise SystemExit("the package chdb-core is not installed; run `make setup`")
    # Only the extension module is imported, because importing the package opens a session.
    sys.path.append(str(Path(package.origin).parent))
    # With any other output format, the HTTP handshake of clickhouse-connect fails.
    importlib.import_module("_chdb").query(SERVE, "TabSeparated", path=data)


if __name__ == "__main__":
    serve(sys.argv[1])
