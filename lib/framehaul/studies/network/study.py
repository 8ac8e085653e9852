"""Measure techniques over networks with delay and limited rate, with TLS, and through PgBouncer."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from framehaul.bench import measure, recording
from framehaul.bench.measure import PassOptions, Target
from framehaul.bench.meter import Meter
from framehaul.bench.passes import Pass, columns_of, describe
from framehaul.bench.recording import which
from framehaul.bench.rounds import Rounds, check, interruptible
from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS
from framehaul.errors import UnavailableError, WrongResultError
from framehaul.servers import ClickHouseServer, PostgresServer, Servers
from framehaul.servers.embedded import home_of_a_run
from framehaul.servers.network import Certificate, Relaying, certificate, relaying
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

    Warm-ups run over loopback only, because their effect does not depend on the network. Raises ValueError for a
    parameter out of range, ServerError when a server does not start, ResultsError when results cannot be written.
    """
    check(ROWS=(rows, 1))
    schedule = Rounds(rounds, warmup, seed)
    with recording.with_servers(NETWORK, Result, schedule, rows=rows) as (this_run, both):
        this_run.metadata["how"] = HOW
        row = partial(_row, this_run.run_id, rows)
        if both.mode == "external":
            this_run.in_rounds(tasks(), Rounds(rounds), _skip, row, lambda task: task.text)
            return
        with opened(this_run.settings, both) as proxies:
            this_run.metadata["pgbouncer"] = None if isinstance(proxies.pooler, str) else proxies.pooler.version
            this_run.expect((warmup + rounds) * len(tasks()) + len(pooled()))

            def work(stop: threading.Event) -> None:
                # The event loop is opened in this thread: a notebook's main thread already runs one.
                with measuring(proxies, rows, seed) as measurement:
                    for planned, part in ((tasks(), schedule), (pooled(), Rounds(1))):
                        this_run.in_rounds(planned, part, measurement.make_pass, row, lambda task: task.text, stop=stop)

            interruptible(work)


def _skip(*_: object) -> dict[str, Any]:
    raise UnavailableError(EXTERNAL)


def _row(run_id: str, rows: int, task: Task, number: int, outcome: Pass[dict[str, Any]]) -> Result:
    technique = task.measured
    return Result(
        **which(technique) | vars(task) | columns_of(outcome),
        run_id=run_id,
        notebook=NETWORK.notebook,
        driver=technique.driver,
        connections=technique.connections,
        contract=technique.contract.kind if technique.contract else None,
        task=task.text,
        rows=rows,
        pass_=number,
    )


@dataclass
class Proxies:
    """The servers and the processes in front of them; a text is the reason why a process is missing."""

    both: Servers
    network: Relaying
    tls: tuple[Relaying, Certificate] | str
    pooler: Pooler | str

    def server(self, task: Task) -> PostgresServer | ClickHouseServer:
        """Return the server with the address that a task connects to; raises UnavailableError without its process."""
        server = self.both.of(task.database)
        if task.via == "pgbouncer":
            if isinstance(self.pooler, str):
                raise UnavailableError(self.pooler)
            return self.pooler.server
        relays = [] if task.network == LOOPBACK.name else [self.network]
        if task.encryption == "tls":
            if isinstance(self.tls, str):
                raise UnavailableError(self.tls)
            relay, made = self.tls
            relays.insert(0, relay)
            if isinstance(server, PostgresServer):
                server = replace(server, options=(("sslmode", "verify-full"), ("sslrootcert", str(made.authority))))
            else:
                server = replace(server, secure=True)
        for relay in relays:
            if isinstance(server, PostgresServer):
                server = replace(server, port=relay.port(server.port))
            else:
                server = replace(server, http_port=relay.port(server.http_port))
        return server


@contextmanager
def opened(settings: Settings, both: Servers) -> Iterator[Proxies]:
    """Run the network relay, the TLS relay and PgBouncer in front of the servers while the block lasts."""
    ports = [both.postgres.port, both.clickhouse.http_port]
    with ExitStack() as stack:
        tls: tuple[Relaying, Certificate] | str
        try:
            made = certificate(stack.enter_context(home_of_a_run(settings.state_dir, "network")))
            relay = stack.enter_context(relaying(*ports, made=made, postgres=both.postgres.port))
            # OpenSSL reads authorities from this file only.
            before = {name: value for name, value in os.environ.items() if name == "SSL_CERT_FILE"}
            os.environ["SSL_CERT_FILE"] = str(made.authority)
            stack.callback(os.environ.update, before)
            stack.callback(os.environ.pop, "SSL_CERT_FILE")
            tls, behind = (relay, made), [*ports, *map(relay.port, ports)]
        except UnavailableError as error:
            tls, behind = str(error), ports
        pooler: Pooler | str
        try:
            pooler = of_docker(settings) if both.mode == "docker" else stack.enter_context(pooling(both.postgres))
        except UnavailableError as error:
            pooler = str(error)
        yield Proxies(both, stack.enter_context(relaying(*behind)), tls, pooler)


@dataclass(frozen=True)
class Measurement:
    """Tables with rows to move on both servers, and the event loop that techniques run in."""

    proxies: Proxies
    content: pa.Table
    runner: asyncio.Runner
    passes: dict[tuple[str, str], measure.Passes]

    def make_pass(self, task: Task, number: int) -> dict[str, Any]:
        """Make one verified pass and return the measured columns of its row.

        Raises UnavailableError, with the driver's error, for a technique that does not work through PgBouncer.
        """
        if number < 1 and task.network != LOOPBACK.name:
            return {}
        self.proxies.network.use(next(link for link in LINKS if link.name == task.network))
        if task.via == "direct":
            return self.runner.run(self._one_call(task))
        fails = "does not work through PgBouncer in transaction mode"
        try:
            measured = self.runner.run(self._one_call(task))
            fails = f"works once, but {fails} when a connection is used again"
            self.runner.run(self._several_calls(task))
        except (UnavailableError, WrongResultError):
            raise
        except Exception as error:
            raise UnavailableError(f"{fails}: {describe(error)}") from error
        return measured

    async def _one_call(self, task: Task) -> dict[str, Any]:
        passes = self.passes[task.database, task.direction]
        moved = await passes.one(task.measured, 1, self._connection_target(task))
        values = {"seconds": moved.seconds, "rows_per_s": self.content.num_rows / moved.seconds, "dtypes": moved.dtypes}
        return values | vars(moved.usage)

    async def _several_calls(self, task: Task) -> None:
        """Call the technique several times over one PgBouncer connection, which uses several server connections."""
        if isinstance(self.proxies.pooler, Pooler):
            fill(self.proxies.pooler.server)
        table, few = ANALYTICS_METRICS.renamed(f"{ANALYTICS_METRICS.name}_again"), self.content.slice(0, REUSED_ROWS)
        passes = measure.Passes(
            self.proxies.both.postgres, table, few, [task.direction], ["polars"], PassOptions(calls=CALLS)
        )
        with passes as again:
            await again.one(task.measured, 1, self._connection_target(task))

    def _connection_target(self, task: Task) -> Target:
        """Return the address that a task connects to, and the meter of its server."""
        return Target(self.proxies.server(task), Meter(self.proxies.both.of(task.database).process_id))


@contextmanager
def measuring(proxies: Proxies, rows: int, seed: int) -> Iterator[Measurement]:
    """Keep tables to write and to read on both servers while the block lasts; only one thread may use them."""
    content = generator.arrow_table(ANALYTICS_METRICS, rows, seed)
    read = ANALYTICS_METRICS.renamed(f"{ANALYTICS_METRICS.name}_read")
    with ExitStack() as stack:
        made = {}
        for database in DATABASES:
            for table, direction in ((ANALYTICS_METRICS, "write"), (read, "read")):
                passes = measure.Passes(proxies.both.of(database), table, content, [direction], ["polars"])
                made[database, direction] = stack.enter_context(passes)
        yield Measurement(proxies, content, stack.enter_context(asyncio.Runner()), made)
