"""A pass of a technique over a network: reset, connect, run on the clock, verify."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from numba.core.event import install_timer

from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.errors import ServerError, UnavailableError, WrongResultError
from framehaul.harness.measure import IN_FRAMES, called, opened
from framehaul.harness.meter import Meter, settle
from framehaul.harness.passes import describe, right
from framehaul.harness.verify import Expected, dtype_drift
from framehaul.results.store import EXACT
from framehaul.servers.tables import Tables, tables_of
from framehaul.studies.network.catalog import UNVERIFIED, Task
from framehaul.studies.network.roads import Roads


@dataclass(frozen=True)
class Made:
    """What a pass took."""

    seconds: float
    rows_per_s: float
    client_cpu_s: float
    server_cpu_s: float | None
    dtypes: str
    forwarder_cpu_s: float | None = None
    wire_bytes: int | None = None
    packets: int | None = None
    dropped: int | None = None
    round_trips: int | None = None


class Passes:
    """Makes passes over the same rows: those that are read are there, those that are written are compared with them."""

    def __init__(
        self, roads: Roads, rows: int, seed: int, frames: Sequence[str], databases: Sequence[str],
        table: Table = ANALYTICS_METRICS,
    ) -> None:  # fmt: skip
        content = generator.arrow_table(table, rows, seed)
        self._roads, self._rows, self._table = roads, rows, table
        self._frames = {frame: IN_FRAMES[frame](content, table) for frame in frames}
        self._read, self._sent = (table.renamed(f"{table.name}_{what}") for what in ("read", "sent"))
        self._tables: dict[str, Tables] = {name: tables_of(roads.both.of(name)) for name in databases}
        self._content = content
        self._expected: dict[str, Expected] = {}

    def __enter__(self) -> Self:
        try:
            for name, tables in self._tables.items():
                expected = self._expected[name] = Expected(self._table, self._content)
                expected.keep_reference(tables, self._sent)
                tables.create(self._read)
                tables.load(self._read, self._content)
                tables.quiesce()
        except BaseException:
            self._drop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()

    def _drop(self) -> None:
        # Where a server is gone for good, the next run drops what is ours.
        for tables in self._tables.values():
            with contextlib.suppress(ServerError):
                for ours in (self._table, self._read, self._sent):
                    tables.drop(ours)

    async def one(self, task: Task) -> Made:
        """One pass; raises what `attempt` takes for the end of a pass.

        That a path does not work through a pooler is a finding: such a pass is skipped, with the error.
        """
        settle()  # what the last one has imported
        try:
            return await self._one(task)
        except (UnavailableError, WrongResultError):
            raise
        except Exception as error:
            if task.via == "direct":
                raise
            raise UnavailableError(f"does not work through PgBouncer in transaction mode: {describe(error)}") from error

    async def _one(self, task: Task) -> Made:
        roads, technique, tables = self._roads, task.of, self._tables[task.database]
        if task.encryption == "tls" and technique.driver in UNVERIFIED:
            raise UnavailableError(UNVERIFIED[technique.driver])
        server, link = roads.server(task), roads.links[task.network]
        if technique.direction == "write":
            tables.create(self._table)
            tables.quiesce()
            arguments: list[Any] = [self._table, self._frames[technique.frame]]
        else:
            arguments = [self._read]
        meter, compiling = Meter(*roads.server_processes(task)), list[float]()
        with roads.on(link), install_timer("numba:compile", compiling.append):
            async with opened(technique, server) as client:
                before, forwarded_s = roads.carried(), roads.forwarder_cpu_s()
                meter.start()
                start = time.perf_counter()
                returned = await called(technique, client, *arguments)
                seconds = time.perf_counter() - start
                usage = meter.stop()
                after, forwarded_s = roads.carried(), roads.forwarder_cpu_s() - forwarded_s
        if compiling:
            return await self._one(task)  # what a machine does once is no part of a path
        expected = self._expected[task.database]
        dtypes = EXACT
        if technique.direction == "read":
            dtypes = right(dtype_drift(returned, self._table), expected.difference(returned))
        else:
            right(None, expected.difference_on_server(tables))
        moved = Made(seconds, self._rows / seconds, usage.client_cpu_s, usage.server_cpu_s, dtypes)
        if roads.net is None or link.loopback:
            return moved
        return replace(
            moved, forwarder_cpu_s=forwarded_s, wire_bytes=after.wire_bytes - before.wire_bytes,
            packets=after.packets - before.packets, dropped=after.dropped - before.dropped,
            round_trips=after.round_trips - before.round_trips,
        )  # fmt: skip
