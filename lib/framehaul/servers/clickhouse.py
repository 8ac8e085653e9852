"""Run the embedded ClickHouse: the engine in the wheel `chdb-core` with its HTTP and native listeners."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from framehaul.errors import ServerError
from framehaul.servers.address import ClickHouseServer
from framehaul.servers.files import end_of, password_in, write_private
from framehaul.servers.hostile import CLICKHOUSE_SETTINGS, HOSTILE

USER = "framehaul"
DATABASE = "default"

CONFIGURATION = """<clickhouse>
  <logger><errorlog>server.log</errorlog></logger>
  <listen_host>127.0.0.1</listen_host>
  <http_port>{http_port}</http_port>
  <tcp_port>{native_port}</tcp_port>
  <users_config>users.xml</users_config>
  <default_profile>default</default_profile>
</clickhouse>
"""

# The serving process itself logs in as `default`, without a password. That user may have one session, which the process
# opens before the first listener: both protocols refuse every later login as `default`. Its grants let it open the
# listeners and wait on standard input.
#
# The default profile sets what differs from a stock server in this build. A client may be silent for more than 30
# seconds within an INSERT, because compiling a codec can take that long. No URL can set that limit:
# https://clickhouse.com/docs/operations/settings/settings#http_receive_timeout
#
# The third user has the same password and unusual settings; SQL cannot create users here.
USERS = """<clickhouse>
  <profiles>
    <default>
      <async_insert>0</async_insert>
      <http_receive_timeout>300</http_receive_timeout>{profile}
    </default>
    <hostile>{hostile_profile}
    </hostile>
    <serving>
      <max_sessions_for_user>1</max_sessions_for_user>
    </serving>
  </profiles>
  <quotas><default/></quotas>
  <users>
    <default>
      <password></password>
      <networks><ip>127.0.0.1</ip></networks>
      <profile>serving</profile>
      <quota>default</quota>
      <grants>
        <query>GRANT SYSTEM LISTEN ON *.*</query>
        <query>GRANT READ ON FILE</query>
        <query>GRANT CREATE TEMPORARY TABLE ON *.*</query>
      </grants>
    </default>
    <{user}>
      <password_sha256_hex>{password_sha256}</password_sha256_hex>
      <networks><ip>127.0.0.1</ip></networks>
      <profile>default</profile>
      <quota>default</quota>
    </{user}>
    <{hostile}>
      <password_sha256_hex>{password_sha256}</password_sha256_hex>
      <networks><ip>127.0.0.1</ip></networks>
      <profile>hostile</profile>
      <quota>default</quota>
    </{hostile}>
  </users>
</clickhouse>
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
        store = home / "data" / "store"
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
        configuration = CONFIGURATION.format(http_port=self.http_port, native_port=self.native_port)
        write_private(home / "config.xml", configuration)
        users = USERS.format(
            user=USER,
            password_sha256=hashlib.sha256(password.encode()).hexdigest(),
            profile=_elements(self.profile),
            hostile=HOSTILE,
            hostile_profile=_elements(CLICKHOUSE_SETTINGS),
        )
        write_private(home / "users.xml", users)
        log = home / "output.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "framehaul.servers.clickhouse_process", "data"],
                cwd=home,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        server = ClickHouseServer(
            "127.0.0.1", self.http_port, self.native_port, USER, password, DATABASE, process_id=self._process.pid
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.is_running():
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/ping", timeout=5):
                    return server
            except OSError:
                time.sleep(0.05)
        self.stop()
        raise ServerError("ClickHouse did not start; its output ends:\n" + end_of(log))

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


def _elements(settings: Mapping[str, str | int]) -> str:
    return "".join(f"\n      <{name}>{value}</{name}>" for name, value in settings.items())
