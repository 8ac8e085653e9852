"""A pass of a technique over a network, and what that has carried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, Self

import asyncpg
import psycopg
import pyarrow as pa

from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.errors import UnavailableError, WrongResultError
from framehaul.harness import measure
from framehaul.harness.meter import Meter, settle
from framehaul.harness.passes import describe
from framehaul.servers.pgbouncer import fill
from framehaul.studies.network.catalog import HELPS, HELPS_NOT, UNVERIFIED, Task
from framehaul.studies.network.queries import CALLS as QUERY_CALLS
from framehaul.studies.network.queries import QUERIES
from framehaul.studies.network.roads import Roads
from framehaul.studies.upsert.found import KEPT, before_upsert
from framehaul.techniques.registry import Database, Direction

CALLS, REUSED_ROWS = 7, 700
"""Over one connection of PgBouncer: psycopg prepares a query when it comes for the sixth time, asyncpg keeps each.
https://www.psycopg.org/psycopg3/docs/advanced/prepare.html"""
NOT_PREPARED: dict[str, tuple[Any, dict[str, Any]]] = {
    "asyncpg": (asyncpg, {"statement_cache_size": 0}), "psycopg": (psycopg, {"prepare_threshold": None}),
    "pgpq": (psycopg, {"prepare_threshold": None}),
}  # fmt: skip
"""Who connects, and what its documentation advises before PgBouncer, by driver.
https://magicstack.github.io/asyncpg/current/faq.html and the page above."""
type Kind = Direction | Literal["query", "upsert"]
CARRIED = ("wire_bytes", "packets", "dropped", "round_trips")


@contextmanager
def connecting(module: Any, options: dict[str, Any]) -> Iterator[None]:
    """While the block lasts, `connect` of a driver has these options as well."""
    plain = module.connect
    module.connect = partial(plain, **options)
    try:
        yield
    finally:
        module.connect = plain


class Passes:
    """Makes passes over the same rows: those that are read are there, those that are written are compared with them."""

    def __init__(
        self, roads: Roads, rows: int, seed: int, frames: Sequence[str], databases: Sequence[Database],
        table: Table = ANALYTICS_METRICS,
    ) -> None:  # fmt: skip
        whole = generator.arrow_table(table, rows + rows // KEPT + 1, seed)
        content, self._kept = whole.slice(0, rows), whole.slice(rows)
        self._roads, self._rows, self._content, self._stack = roads, rows, content, ExitStack()
        self._upserted, self._frames = table.renamed(f"{table.name}_upserted"), frames
        self._again, self._few = table.renamed(f"{table.name}_again"), content.slice(0, REUSED_ROWS)
        self._reused: set[Task] = set()
        self._advised: dict[Task, str] = {}
        self._of: dict[tuple[Database, Kind], measure.Passes] = {}
        for name in databases:
            server = roads.both.of(name)
            read = table.renamed(f"{table.name}_read")
            self._of[name, "write"] = measure.Passes(server, table, content, ["write"], frames)
            self._of[name, "read"] = measure.Passes(server, read, content, ["read"])
        if "postgres" in databases:
            one = table.renamed(f"{table.name}_one")
            self._of["postgres", "query"] = measure.Passes(
                roads.both.postgres, one, content.slice(0, 1), ["read"], calls=QUERY_CALLS
            )

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for each in self._of.values():
                stack.enter_context(each)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def one(self, task: Task) -> dict[str, Any]:
        """One pass: the columns of its row that were measured; raises what `attempt` takes for the end of a pass.

        That a path does not work through a pooler is a finding: such a pass is skipped, with the error.
        """
        settle()  # what the last one has imported
        if task.via == "direct":
            return await self._one(task)
        does_not = "does not work through PgBouncer in transaction mode"
        try:
            measured = await self._one(task)
            does_not = f"works once, but {does_not} when a connection is used again"
            if task not in self._reused:
                await self._several(task)
                self._reused.add(task)
        except (UnavailableError, WrongResultError):
            raise
        except Exception as error:
            prepared = task.of.driver in NOT_PREPARED and "prepared" in describe(error).lower()
            if prepared and task not in self._advised:
                self._advised[task] = f"; {await self._as_advised(task)}"
            advice = self._advised[task] if prepared else ""
            raise UnavailableError(f"{does_not}: {describe(error)}{advice}") from error
        return measured

    async def _as_advised(self, task: Task) -> str:
        """Whether it works where the driver is told to prepare nothing, called once and over a connection in use."""
        module, options = NOT_PREPARED[task.of.driver]
        told = ", ".join(f"{name}={value}" for name, value in options.items())
        told = f"connect {module.__name__} with {told}"
        try:
            with connecting(module, options):
                await self._one(task)
                await self._several(task)
        except WrongResultError:
            raise
        except Exception as error:  # noqa: BLE001  whatever it raises, this is no remedy then
            return f"{told}{HELPS_NOT}{describe(error)}"
        return f"{told}{HELPS}"

    async def _several(self, task: Task) -> None:
        """Several calls over one connection, whose transactions go to several servers."""
        postgres, way = self._roads.both.postgres, measure.Way(self._roads.server(task), Meter())
        if self._roads.pooler:
            fill(self._roads.pooler.server)
        found = self._found(self._few) if task.of.origin == "upsert" else None
        again = measure.Passes(
            postgres, self._again, self._few, [task.direction], [task.of.frame], calls=CALLS, found=found
        )  # fmt: skip
        with again as passes:
            await passes.one(task.of, 1, lambda: nullcontext(way))

    def _found(self, sent: pa.Table) -> measure.Found:
        """What an upsert of these rows finds: some of them as they were, and rows that it leaves."""
        return before_upsert(sent, self._kept, self._upserted, self._roads.both.postgres)

    def _with_upserts(self) -> None:
        """Make ready for upserts, which few efforts try."""
        if ("postgres", "upsert") not in self._of:
            passes = measure.Passes(
                self._roads.both.postgres, self._upserted, self._content, ["write"], self._frames,
                found=self._found(self._content),
            )  # fmt: skip
            self._of["postgres", "upsert"] = self._stack.enter_context(passes)

    async def _one(self, task: Task) -> dict[str, Any]:
        roads, technique = self._roads, task.of
        if task.encryption == "tls" and technique.driver in UNVERIFIED:
            raise UnavailableError(UNVERIFIED[technique.driver])
        server, link, counts = roads.server(task), roads.links[task.network], dict[str, Any]()

        @contextmanager
        def counting() -> Iterator[None]:
            before, forwarded_s = roads.carried(), roads.forwarder_cpu_s()
            yield
            after = roads.carried()
            counts["forwarder_cpu_s"] = roads.forwarder_cpu_s() - forwarded_s
            for name in CARRIED:
                counts[name] = getattr(after, name) - getattr(before, name)

        @contextmanager
        def way() -> Iterator[measure.Way]:
            with roads.on(link):
                yield measure.Way(server, Meter(*roads.server_processes(task)), counting)

        kind: Kind = "query" if task.technique in QUERIES else task.direction
        if technique.origin == "upsert":
            kind = "upsert"
            self._with_upserts()
        rows = QUERY_CALLS if kind == "query" else self._rows
        moved = await self._of[task.database, kind].one(technique, 1, way)
        measured = {"seconds": moved.seconds, "rows_per_s": rows / moved.seconds, "dtypes": moved.dtypes}
        return measured | vars(moved.usage) | ({} if roads.net is None or link.loopback else counts)
