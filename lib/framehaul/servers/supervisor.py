"""The process that keeps both embedded servers; run as `python -m framehaul.servers.supervisor`.

It starts them, writes their addresses to `servers.json`, restarts one that dies, and stops both when it is told to
(SIGTERM, SIGINT) or, unless `--detached`, when its standard input closes because its parent has ended or died, and no
other process uses them any more.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from framehaul.errors import ServerError
from framehaul.servers.address import Servers
from framehaul.servers.clickhouse import EmbeddedClickHouse
from framehaul.servers.embedded import ADDRESSES, LOCK, USERS
from framehaul.servers.ports import choose_port
from framehaul.servers.postgres import EmbeddedPostgres
from framehaul.servers.secret import write_private

MAX_RESTARTS = 20
LOCK_SECONDS = 2


def main() -> None:
    """Keep both servers until told to stop; exit status 1 with the reason on standard error when they cannot start."""
    arguments = _arguments()
    state_dir: Path = arguments.state_dir
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if not arguments.detached:
        threading.Thread(target=_stop_at_end_of_input, args=(state_dir, stop), daemon=True).start()

    # Held for as long as this process lives, whatever ends it: the one truth about whether servers are kept here.
    lock = (state_dir / LOCK).open("w")
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            # Somebody may just be asking whether a supervisor lives.
            if time.monotonic() > deadline:
                raise SystemExit(f"another process keeps the servers of {state_dir}") from None
            time.sleep(0.05)
    try:
        keep(arguments, stop)
    except ServerError as error:
        raise SystemExit(str(error)) from error


def keep(arguments: argparse.Namespace, stop: threading.Event) -> None:
    """Start both servers at once, publish their addresses, and restart what dies until `stop` is set."""
    state_dir: Path = arguments.state_dir
    addresses = state_dir / ADDRESSES
    addresses.unlink(missing_ok=True)
    postgres = EmbeddedPostgres(
        state_dir, choose_port(arguments.postgres_port, "FRAMEHAUL_POSTGRES_PORT"), arguments.postgres_extensions,
        socket=arguments.postgres_socket,
    )  # fmt: skip
    clickhouse = EmbeddedClickHouse(
        state_dir, choose_port(arguments.clickhouse_http_port, "FRAMEHAUL_CLICKHOUSE_HTTP_PORT"), choose_port(None, ""),
    )  # fmt: skip
    restarts = 0
    try:
        while True:
            with ThreadPoolExecutor(2) as pool:
                started = pool.submit(postgres.start), pool.submit(clickhouse.start)
            servers = Servers(started[0].result(), started[1].result(), "embedded", os.getpid())
            write_private(addresses, json.dumps(servers.as_json()))
            while postgres.is_running() and clickhouse.is_running():
                if stop.wait(0.2):
                    return
            restarts += 1
            if restarts > MAX_RESTARTS:
                raise ServerError(f"a server died {restarts} times; see the logs below {state_dir}")
            logging.warning("a server died; starting both again (%d of %d)", restarts, MAX_RESTARTS)
            addresses.unlink()
            postgres.stop()
            clickhouse.stop()
    finally:
        addresses.unlink(missing_ok=True)
        postgres.stop()
        clickhouse.stop()


def _stop_at_end_of_input(state_dir: Path, stop: threading.Event) -> None:
    # os.read, not sys.stdin: a buffered read that never ends would hold its lock while the interpreter shuts down.
    while os.read(0, 4096):
        pass
    users = os.open(state_dir / USERS, os.O_RDWR | os.O_CREAT, 0o600)  # never closed: who comes now waits for the end
    fcntl.flock(users, fcntl.LOCK_EX)
    stop.set()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m framehaul.servers.supervisor", description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--postgres-port", type=int)
    parser.add_argument("--clickhouse-http-port", type=int)
    parser.add_argument("--postgres-extensions", type=Path)
    parser.add_argument("--postgres-socket", action="store_true")
    parser.add_argument("--detached", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
