"""Measure techniques over networks with delay and limited rate, with TLS, and through PgBouncer."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from framehaul.bench import measure, recording
from framehaul.bench.measure import PassOptions
from framehaul.bench.meter import Moved
from framehaul.bench.passes import Pass, Skipped, columns_of, describe
from framehaul.bench.rounds import Rounds, check, interruptible
from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS
from framehaul.errors import UnavailableError, WrongResultError
from framehaul.servers import ClickHouseServer, PostgresServer, Servers
from framehaul.servers.embedded import home_of_a_run
from framehaul.servers.network import Relaying, certificate, relaying
from framehaul.servers.pgbouncer import Pooler, fill, of_docker, pooling
from framehaul.settings import Settings
from framehaul.studies.network.catalog import LINKS, LOOPBACK, Result, Task, pooled, tasks
from framehaul.studies.registry import NETWORK
from framehaul.techniques.registry import DATABASES

CALLS, REUSED_ROWS = 7, 700
"""The number of calls over one PgBouncer connection, and their rows.

psycopg prepares a query at its sixth execution, asyncpg prepares every query.
https://www.psycopg.org/psycopg3/docs/advanced/prepare.html
"""
HOW = "a relay process on loopback delays and limits what it forwards; each TCP connection ends in it"
EXTERNAL = "this study shapes the network of servers that framehaul starts; with SERVERS=external it is skipped"


@recording.study(NETWORK.notebook, Result)
def run(*, rows: int, rounds: int, warmup: int, seed: int) -> None:
    """Measure every task of the catalog and return one row per task and pass.

    Warm-ups run over loopback only, because their effect does not depend on the network.
    """
    check(ROWS=(rows, 1))
    schedule = Rounds(rounds, warmup, seed)
    with recording.with_servers(NETWORK, Result, schedule, rows=rows) as (this_run, both):
        this_run.metadata["how"] = HOW

        def row(task: Task, number: int, outcome: Pass[dict[str, Any]]) -> Result:
            plain = recording.result(this_run.run_id, NETWORK.notebook, task.measured, rows, number, Skipped(""))
            return Result(**vars(plain) | vars(task) | columns_of(outcome), task=task.text)

        if both.mode == "external":
            this_run.in_rounds(tasks(), Rounds(rounds), _skip, row, lambda task: task.text)
            return
        with opened(this_run.settings, both) as proxies:
            this_run.metadata["pgbouncer"] = None if isinstance(proxies.pooler, str) else proxies.pooler.version
            this_run.expect((warmup + rounds) * len(tasks()) + len(pooled()))

            def work(stop: threading.Event) -> None:
                # The event loop is opened in this thread: a notebook's main thread already runs one.
                with measuring(proxies, rows, seed) as make_pass:
                    for planned, part in ((tasks(), schedule), (pooled(), Rounds(1))):
                        this_run.in_rounds(planned, part, make_pass, row, lambda task: task.text, stop=stop)

            interruptible(work)


def _skip(*_: object) -> dict[str, Any]:
    raise UnavailableError(EXTERNAL)


@dataclass
class Proxies:
    """The servers, and the relays and PgBouncer in front of them; a text is the reason why PgBouncer is missing."""

    both: Servers
    network: Relaying
    tls: Relaying
    authority: Path
    pooler: Pooler | str

    def server(self, task: Task) -> PostgresServer | ClickHouseServer:
        """Return the server with the address that a task connects to; raises UnavailableError without PgBouncer."""
        if task.via == "pgbouncer":
            if isinstance(self.pooler, str):
                raise UnavailableError(self.pooler)
            return self.pooler.server
        server, encrypted = self.both.of(task.database), task.encryption == "tls"
        port = server.port if isinstance(server, PostgresServer) else server.http_port
        if encrypted:
            port = self.tls.port(port)
        if task.network != LOOPBACK.name:
            port = self.network.port(port)
        if isinstance(server, PostgresServer):
            verified = {"sslmode": "verify-full", "sslrootcert": str(self.authority)} if encrypted else {}
            return replace(server, port=port, options=(*server.options, *verified.items()))
        return replace(server, http_port=port, secure=server.secure or encrypted)


@contextmanager
def opened(settings: Settings, both: Servers) -> Iterator[Proxies]:
    """Run the network relay, the TLS relay and PgBouncer in front of the servers while the block lasts."""
    ports = [both.postgres.port, both.clickhouse.http_port]
    with ExitStack() as stack:
        made = certificate(stack.enter_context(home_of_a_run(settings.state_dir, "network")))
        tls = stack.enter_context(relaying(*ports, made=made, postgres=both.postgres.port))
        network = stack.enter_context(relaying(*ports, *map(tls.port, ports)))
        # OpenSSL reads authorities from this file only.
        before = {name: value for name, value in os.environ.items() if name == "SSL_CERT_FILE"}
        os.environ["SSL_CERT_FILE"] = str(made.authority)
        stack.callback(os.environ.update, before)
        stack.callback(os.environ.pop, "SSL_CERT_FILE")
        pooler: Pooler | str
        try:
            pooler = of_docker(settings) if both.mode == "docker" else stack.enter_context(pooling(both.postgres))
        except UnavailableError as error:
            pooler = str(error)
        yield Proxies(both, network, tls, made.authority, pooler)


@contextmanager
def measuring(proxies: Proxies, rows: int, seed: int) -> Iterator[Callable[[Task, int], dict[str, Any]]]:
    """Keep tables to write and to read on both servers while the block lasts, and yield a function that makes a pass.

    It verifies the pass and returns the measured columns of its row. It raises UnavailableError, with the driver's
    error, for a technique that does not work through PgBouncer. Only one thread may use it.
    """
    content = generator.arrow_table(ANALYTICS_METRICS, rows, seed)
    read, again = (ANALYTICS_METRICS.renamed(f"{ANALYTICS_METRICS.name}_{name}") for name in ("read", "again"))
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        every = [task.measured for task in (*tasks(), *pooled())]
        passes_of = {
            (name, direction): measure.Passes(
                proxies.both.of(name), table, content, [one for one in every if one.key[:2] == (name, direction)]
            )
            for name in DATABASES
            for direction, table in (("write", ANALYTICS_METRICS), ("read", read))
        }
        for passes in passes_of.values():
            stack.enter_context(passes)

        def one_pass(passes: measure.Passes, task: Task) -> Moved:
            return runner.run(passes.one(task.measured, 1, proxies.server(task)))

        def call_several_times(task: Task) -> None:
            """Call a technique several times over one PgBouncer connection, which uses several server connections."""
            if isinstance(proxies.pooler, Pooler):
                fill(proxies.pooler.server)
            few, options = content.slice(0, REUSED_ROWS), PassOptions(calls=CALLS)
            with measure.Passes(proxies.both.postgres, again, few, [task.measured], options) as passes:
                one_pass(passes, task)

        def make_pass(task: Task, number: int) -> dict[str, Any]:
            if number < 1 and task.network != LOOPBACK.name:
                return {}
            proxies.network.use(next(link for link in LINKS if link.name == task.network))
            fails = "does not work through PgBouncer in transaction mode"
            try:
                moved = one_pass(passes_of[task.database, task.direction], task)
                fails = f"works once, but {fails} when a connection is used again"
                if task.via == "pgbouncer":
                    call_several_times(task)
            except Exception as error:
                if task.via == "direct" or isinstance(error, UnavailableError | WrongResultError):
                    raise
                raise UnavailableError(f"{fails}: {describe(error)}") from error
            speed = {"seconds": moved.seconds, "rows_per_s": rows / moved.seconds}
            return vars(moved.usage) | speed | {"dtypes": moved.dtypes}

        yield make_pass
