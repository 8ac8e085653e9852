"""What notebook 23 calls: techniques over networks that are slower and farther than loopback, with TLS, and pooled."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from framehaul import servers
from framehaul.bench import measure, store
from framehaul.bench.environment import server_versions
from framehaul.bench.meter import Meter
from framehaul.bench.passes import Pass, columns_of, describe
from framehaul.bench.recording import Recording, recording, which
from framehaul.bench.rounds import Rounds, check, in_rounds, interruptible
from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS
from framehaul.errors import UnavailableError, WrongResultError
from framehaul.reporting.shown import Shown, chart, view
from framehaul.servers import PostgresServer, Servers
from framehaul.servers.embedded import home_of_a_run
from framehaul.servers.network import Certificate, Relaying, certificate, relaying
from framehaul.servers.pgbouncer import Pooler, fill, of_docker, pooling
from framehaul.settings import Settings
from framehaul.studies.network import report
from framehaul.studies.network.catalog import LINKS, LOOPBACK, Result, Task, pooled, tasks
from framehaul.studies.registry import NETWORK
from framehaul.techniques.registry import DATABASES

CALLS, REUSED_ROWS = 7, 700
"""Over one connection of PgBouncer: psycopg prepares a query when it comes for the sixth time, asyncpg keeps each.
https://www.psycopg.org/psycopg3/docs/advanced/prepare.html"""
OURS_ONLY = "this study shapes the road to servers that this project runs; SERVERS=external has a road of its own"


@dataclass
class Roads:
    """The servers, and what stands before them; a reason in place of what cannot be had."""

    both: Servers
    shaped: Relaying
    tls: tuple[Relaying, Certificate] | str
    pooler: Pooler | str

    def server(self, task: Task) -> servers.PostgresServer | servers.ClickHouseServer:
        """The server as a task reaches it; raises UnavailableError where there is no such way."""
        server = self.both.of(task.database)
        if task.via == "pgbouncer":
            if isinstance(self.pooler, str):
                raise UnavailableError(self.pooler)
            return self.pooler.server
        relays = [] if task.network == LOOPBACK.name else [self.shaped]
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
def opened(settings: Settings, both: Servers) -> Iterator[Roads]:
    """What stands between clients and these servers, while the block lasts."""
    ports = [both.postgres.port, both.clickhouse.http_port]
    with ExitStack() as stack:
        tls: tuple[Relaying, Certificate] | str
        try:
            made = certificate(stack.enter_context(home_of_a_run(settings.state_dir, "network")))
            relay = stack.enter_context(relaying(*ports, made=made, postgres=both.postgres.port))
            # OpenSSL, and so Python, looks for authorities in this file alone.
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
        yield Roads(both, stack.enter_context(relaying(*behind)), tls, pooler)


def run(*, rows: int, rounds: int, warmup: int, seed: int) -> Network:
    """Measure over networks made by a relay, and write `results/network.csv`.

    Warm-ups are made over loopback: what they warm does not depend on the network. Raises ValueError for a parameter
    that makes no sense, ServerError and ResultsError for what their names say.
    """
    check(ROWS=(rows, 1))
    schedule = Rounds(rounds, warmup, seed)
    terms = {"rows": rows, **vars(schedule)}
    with (
        recording(NETWORK.notebook, NETWORK.results, Result, "pass", terms) as this_run,
        servers.running(this_run.settings) as both,
    ):
        this_run.metadata |= terms | {
            "servers": both.mode, "server": {"version": "; ".join(server_versions(both).values())},
        }  # fmt: skip
        record, finished = this_run.passes(lambda *ended: _row(this_run, rows, *ended))
        if both.mode == "external":
            in_rounds(tasks(), Rounds(rounds), _external, record)
        else:
            with opened(this_run.settings, both) as roads:
                this_run.metadata["pgbouncer"] = None if isinstance(roads.pooler, str) else roads.pooler.version
                this_run.expect((warmup + rounds) * len(tasks()) + len(pooled()))

                def work(stop: threading.Event) -> None:
                    # A loop of its own: a notebook's main thread runs one. A pooler takes one pass: it works, or not.
                    with moving(roads, rows, seed) as moves:
                        for planned, how_often in ((tasks(), schedule), (pooled(), Rounds(1))):
                            in_rounds(
                                planned, how_often, moves.measured, record, stop=stop, finished=finished,
                                progress=lambda task, number: this_run.progress(f"pass {number}: {task.words}"),
                            )  # fmt: skip

                interruptible(work)
    return Network.load(this_run.settings)


def _external(*_: object) -> dict[str, Any]:
    raise UnavailableError(OURS_ONLY)


@dataclass(frozen=True)
class Moves:
    """Makes passes over the same rows, with tables that are there."""

    roads: Roads
    content: pa.Table
    runner: asyncio.Runner
    passes: dict[tuple[str, str], measure.Passes]

    def measured(self, task: Task, number: int) -> dict[str, Any]:
        """One pass: the columns of its row that were measured; raises what `attempt` takes for the end of a pass.

        That a technique does not work through a pooler is a finding: such a pass is skipped, with the error.
        """
        if number < 1 and task.network != LOOPBACK.name:
            return {}
        self.roads.shaped.use(next(link for link in LINKS if link.name == task.network))
        if task.via == "direct":
            return self.runner.run(self._one(task))
        does_not = "does not work through PgBouncer in transaction mode"
        try:
            measured = self.runner.run(self._one(task))
            does_not = f"works once, but {does_not} when a connection is used again"
            self.runner.run(self._several(task))
        except (UnavailableError, WrongResultError):
            raise
        except Exception as error:
            raise UnavailableError(f"{does_not}: {describe(error)}") from error
        return measured

    async def _one(self, task: Task) -> dict[str, Any]:
        moved = await self.passes[task.database, task.direction].one(task.of, 1, self._way(task))
        values = {"seconds": moved.seconds, "rows_per_s": self.content.num_rows / moved.seconds, "dtypes": moved.dtypes}
        return values | vars(moved.usage)

    async def _several(self, task: Task) -> None:
        """Several calls over one connection of PgBouncer, whose transactions go to several servers."""
        if isinstance(self.roads.pooler, Pooler):
            fill(self.roads.pooler.server)
        table, few = ANALYTICS_METRICS.renamed(f"{ANALYTICS_METRICS.name}_again"), self.content.slice(0, REUSED_ROWS)
        passes = measure.Passes(self.roads.both.postgres, table, few, [task.direction], ["polars"], calls=CALLS)
        with passes as again:
            await again.one(task.of, 1, self._way(task))

    def _way(self, task: Task) -> Callable[[], AbstractContextManager[measure.Way]]:
        """How a task reaches its server."""
        way = measure.Way(self.roads.server(task), Meter(self.roads.both.of(task.database).process_id))
        return lambda: nullcontext(way)


@contextmanager
def moving(roads: Roads, rows: int, seed: int) -> Iterator[Moves]:
    """Tables to write and to read on both servers, while the block lasts; all of it in one thread."""
    content = generator.arrow_table(ANALYTICS_METRICS, rows, seed)
    read = ANALYTICS_METRICS.renamed(f"{ANALYTICS_METRICS.name}_read")
    with ExitStack() as stack:
        made = {}
        for database in DATABASES:
            for table, direction in ((ANALYTICS_METRICS, "write"), (read, "read")):
                passes = measure.Passes(roads.both.of(database), table, content, [direction], ["polars"])
                made[database, direction] = stack.enter_context(passes)
        yield Moves(roads, content, stack.enter_context(asyncio.Runner()), made)


def _row(this_run: Recording, rows: int, task: Task, number: int, outcome: Pass[dict[str, Any]]) -> Result:
    one = task.of
    return Result(
        **which(one), run_id=this_run.run_id, notebook=NETWORK.notebook, driver=one.driver, connections=one.connections,
        contract=one.contract.kind if one.contract else None, codec=task.codec, network=task.network,
        encryption=task.encryption, via=task.via, task=task.words, rows=rows, pass_=number, **columns_of(outcome),
    )  # fmt: skip


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The blocks of the writeup, of the run in a results directory."""
    passes = store.read(directory / NETWORK.results, Result)
    tables = {
        "fastest": report.fastest_table(passes), "compared": report.compared_table(passes),
        "pgbouncer": report.pooler_table(passes),
    }  # fmt: skip
    return {f"network-{name}": str(table) for name, table in tables.items()}


class Network(Shown):
    """The passes of a run over networks."""

    study = NETWORK
    answer = view(lambda passes: str(report.fastest_table(passes)))
    compared = view(report.compared_table)
    pooler = view(report.pooler_table)
    missing = view(report.missing_table)
    chart = chart(report.figure)
