"""Run both embedded servers, as `python -m framehaul.servers.supervisor` with settings in environment variables.

The process starts the servers, writes their addresses to `servers.json`, and restarts both when one dies. It stops them
on SIGTERM or SIGINT. Unless `--detached`, it also stops them when its standard input closes, because its parent has
ended. It inherits the locked file `supervisor.lock` and never closes it, so that the lock ends with the process.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from framehaul.errors import ServerError, SettingsError
from framehaul.servers.address import Servers
from framehaul.servers.clickhouse import EmbeddedClickHouse
from framehaul.servers.embedded import ADDRESSES
from framehaul.servers.files import write_private
from framehaul.servers.ports import choose_port
from framehaul.servers.postgres import EmbeddedPostgres
from framehaul.settings import Settings, load_settings

MAX_RESTARTS = 20


def main() -> None:
    """Run both servers until a signal; exit with status 1 and print the reason if they cannot start."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if "--detached" not in sys.argv:
        threading.Thread(target=_stop_at_end_of_input, args=(stop,), daemon=True).start()
    try:
        keep(load_settings(env_file=None), stop)
    except (ServerError, SettingsError) as error:
        raise SystemExit(str(error)) from error


def keep(settings: Settings, stop: threading.Event) -> None:
    """Start both servers, publish their addresses, and restart both when one dies, until `stop` is set."""
    home, addresses = settings.state_dir, settings.state_dir / ADDRESSES
    port = choose_port(settings.postgres_port, "FRAMEHAUL_POSTGRES_PORT")
    http_port = choose_port(settings.clickhouse_http_port, "FRAMEHAUL_CLICKHOUSE_HTTP_PORT")
    postgres = EmbeddedPostgres(home, port, settings.postgres_extensions, socket=settings.transport == "unix")
    clickhouse = EmbeddedClickHouse(home, http_port, choose_port())
    for restarts in range(MAX_RESTARTS + 1):
        try:
            with ThreadPoolExecutor(2) as pool:
                started = pool.submit(postgres.start), pool.submit(clickhouse.start)
            servers = Servers(started[0].result(), started[1].result(), "embedded", os.getpid())
            write_private(addresses, json.dumps(asdict(servers)))
            while postgres.is_running() and clickhouse.is_running():
                if stop.wait(0.2):
                    return
        finally:
            addresses.unlink(missing_ok=True)
            postgres.stop()
            clickhouse.stop()
        logging.warning("a server died; starting both again (%d of %d)", restarts, MAX_RESTARTS)
    raise ServerError(f"a server died {MAX_RESTARTS} times; see the logs below {settings.state_dir}")


def _stop_at_end_of_input(stop: threading.Event) -> None:
    # os.read, because a blocking read of sys.stdin would hold its lock while the interpreter shuts down.
    while os.read(0, 4096):
        pass
    stop.set()


if __name__ == "__main__":
    main()
