"""The embedded ClickHouse: the engine in the wheel `chdb-core`, serving its real HTTP and native listeners."""

from __future__ import annotations

import array
import errno
import fcntl
import hashlib
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from framehaul.errors import ServerError
from framehaul.servers.address import ClickHouseServer
from framehaul.servers.hostile import CLICKHOUSE_SETTINGS, HOSTILE
from framehaul.servers.secret import password_in, write_private

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

# `default` is the session of the serving process itself, which logs in without a password. It is allowed one session
# in all, its own, which it opens before the first listener: every later login as `default` is refused, on both
# protocols. Its grants are what serving takes: opening the listeners and waiting on standard input.
#
# The settings of the other profile are those in which this build differs from a stock server, or would hide a choice.
# And a client may be silent for more than 30 seconds within an INSERT: on a busy machine compiling a codec, once, takes
# that long. No URL can say so: https://clickhouse.com/docs/operations/settings/settings#http_receive_timeout
#
# The third user, of the same password as ours, has a session of other settings: SQL cannot make users here.
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


# FS_IOC_GETFLAGS, FS_IOC_SETFLAGS and FS_TOPDIR_FL of linux/fs.h
GET_FLAGS, SET_FLAGS, TOP_OF_TREE = 0x8008_6601, 0x4008_6602, 0x0002_0000
NO_SUCH_FLAG = (errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.ENOSYS)
"""What file systems say that have no such flag, or systems that are not Linux, or let nobody set it."""


@dataclass
class EmbeddedClickHouse:
    """One ClickHouse under `state_dir`; start, watch and stop it.

    `profile` holds further settings of its user.
    """

    state_dir: Path
    http_port: int
    native_port: int
    profile: Mapping[str, str | int] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> ClickHouseServer:
        """Start serving and wait until HTTP answers; raises ServerError with the end of the log when it does not."""
        home = self.state_dir / "clickhouse"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        password = password_in(home / "password")
        ports = CONFIGURATION.format(http_port=self.http_port, native_port=self.native_port)
        write_private(home / "config.xml", ports)
        digest = hashlib.sha256(password.encode()).hexdigest()
        users = USERS.format(
            user=USER, password_sha256=digest, profile=_elements(self.profile), hostile=HOSTILE,
            hostile_profile=_elements(CLICKHOUSE_SETTINGS),
        )  # fmt: skip
        write_private(home / "users.xml", users)
        store = home / "data" / "store"
        store.mkdir(parents=True, exist_ok=True)
        spread_directories(store)
        with (home / "output.log").open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "framehaul.servers.clickhouse_process", "data"],
                cwd=home, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        self._wait_until_ready(home)
        return ClickHouseServer(
            "127.0.0.1", self.http_port, self.native_port, USER, password, DATABASE, process_id=self._process.pid
        )

    def is_running(self) -> bool:
        """Whether the serving process is alive."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Close the process's input, which ends it cleanly; kill it when it does not end."""
        if self._process is None or self._process.stdin is None:
            return
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_until_ready(self, home: Path) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.is_running():
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/ping", timeout=5):
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.05)
        self.stop()
        tail = (home / "output.log").read_text(errors="replace").splitlines()[-8:]
        raise ServerError("ClickHouse did not start; its output ends:\n  " + "\n  ".join(tail))


def spread_directories(parent: Path) -> None:
    """Have ext4 lay out each new directory below this one apart from the others, as it does at the top of a disk.

    Without a journal ext4 takes no inode again that was freed in the last minutes: it looks at each of them for every
    new file. Whoever drops tables of hundreds of files, and makes others beside them, waits for that and not for
    ClickHouse: an INSERT took two to three times its time here. Other file systems have nothing of the kind, and no
    such flag. https://man7.org/linux/man-pages/man2/ioctl_iflags.2.html,
    https://github.com/torvalds/linux/blob/v6.18/fs/ext4/ialloc.c (recently_deleted)
    """
    descriptor = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        flags = array.array("L", [0])
        fcntl.ioctl(descriptor, GET_FLAGS, flags, True)
        flags[0] |= TOP_OF_TREE
        fcntl.ioctl(descriptor, SET_FLAGS, flags)
    except OSError as error:
        if error.errno not in NO_SUCH_FLAG:
            raise
    finally:
        os.close(descriptor)


def _elements(settings: Mapping[str, str | int]) -> str:
    return "".join(f"\n      <{name}>{value}</{name}>" for name, value in settings.items())
