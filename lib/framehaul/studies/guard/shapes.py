"""The shapes of queries that drivers are asked, as paths of a guard: one path is a driver and a shape."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any, Self

from framehaul.errors import WrongResultError
from framehaul.servers import PostgresServer, Server, Servers
from framehaul.studies.drivers import catalog
from framehaul.studies.drivers.catalog import Contender
from framehaul.studies.drivers.program import checked, digest, loop_factory
from framehaul.studies.drivers.runner import ClickHouseGround, Ground, Load, PostgresGround, Task
from framehaul.studies.drivers.shapes import CLICKHOUSE_TABLES, POSTGRES_SHAPES, Shape
from framehaul.studies.guard.asking import SEPARATOR, asked, driver_of, queries_of
from framehaul.studies.guard.rows import prefix_of
from framehaul.techniques.registry import Database, Direction

CLICKHOUSE_ROWS = 5_000
OWN_OF_THE_SERVER = " AND oid < 16384"
"""Types that come with PostgreSQL: others come and go with everybody's tables.
https://www.postgresql.org/docs/18/system-catalog-initial-data.html#SYSTEM-CATALOG-OID-ASSIGNMENT"""
CONTENDERS: dict[Database, tuple[Contender, ...]] = {"postgres": catalog.POSTGRES, "clickhouse": catalog.CLICKHOUSE}
ANY_LOAD = Load(1, 1.0, 0, 0)


def shapes_of(database: Database) -> list[Shape]:
    """All that its drivers are asked."""
    if database == "clickhouse":
        return [one.shape(CLICKHOUSE_ROWS) for one in CLICKHOUSE_TABLES]
    return [replace(one, sql=one.sql + OWN_OF_THE_SERVER) if one.name == "pg_type" else one for one in POSTGRES_SHAPES]


@dataclass(frozen=True)
class ShapePath:
    """A driver and a shape, with what a guard wants to know of a path; a technique has the same."""

    database: Database
    contender: Contender
    shape: Shape

    origin = "driver"
    frame = "none"
    family = "shape"
    requires = ()

    @property
    def direction(self) -> Direction:
        """Where its rows go."""
        return "read" if self.shape.kind == "fetch" else "write"

    @property
    def name(self) -> str:
        """As `asyncpg/copy`."""
        return f"{self.contender.name}{SEPARATOR}{self.shape.name}"

    @property
    def driver(self) -> str:
        """The way of using a driver."""
        return self.contender.name

    @property
    def label(self) -> str:
        """In words."""
        return f"{self.contender.label}: {self.shape.label}"

    def of(self, contender: str) -> Self:
        """The same shape, asked by another."""
        return replace(self, contender=next(one for one in CONTENDERS[self.database] if one.name == contender))

    @property
    def key(self) -> tuple[Database, Direction, str]:
        """What tells it apart."""
        return self.database, self.direction, self.name


def shape_paths() -> list[ShapePath]:
    """All of Python, in the catalog's order."""
    return [
        ShapePath(database, contender, shape)
        for database, contenders in CONTENDERS.items()
        for contender in contenders
        if contender.packages
        for shape in shapes_of(database)
    ]


def is_shape(name: str) -> bool:
    """Whether a path of this name is one of these."""
    return SEPARATOR in name


class Shapes:
    """Asks drivers the shapes, over tables of its own for as long as the stack lasts."""

    def __init__(self, both: Servers, stack: ExitStack, database: Database, mark: str, side: str) -> None:
        self._server, self._stack, self._prefix = both.of(database), stack, prefix_of(mark, side)
        self._database: Database = database
        if isinstance(self._server, PostgresServer):
            self._ground: Ground = stack.enter_context(PostgresGround(self._server, self._prefix).with_tables())
        else:
            of_clickhouse = ClickHouseGround(self._server, CLICKHOUSE_ROWS, self._prefix)
            self._ground = stack.enter_context(of_clickhouse.with_tables())
        self._runners: dict[str, asyncio.Runner] = {}
        self._digests: dict[str, str] = {}

    def sent(self, name: str, server: Server, block: Callable[[], AbstractContextManager[Any]]) -> Any:
        """What the last query of a call gave; connected outside the block, asked within."""
        contender, shape = self._of(name)
        driver = driver_of(self._database, contender.name)
        if driver.loop not in self._runners:
            runner = asyncio.Runner(loop_factory=loop_factory(driver.loop))
            self._runners[driver.loop] = self._stack.enter_context(runner)
        return self._runners[driver.loop].run(asked(driver, shape, server, block))

    def verified(self, name: str, returned: Any, *, stored: bool) -> None:
        """Raises WrongResultError where rows are missing or others; those that were written only where `stored`."""
        contender, shape = self._of(name)
        if shape.kind != "fetch":
            if stored and isinstance(self._ground, PostgresGround):
                _right(self._ground.stored(shape, shape.count * queries_of(shape)))
            return
        rows = checked(shape, returned, {})["rows"]
        told = digest(rows)
        if self._digests.get(name) != told:
            of_postgres = isinstance(self._ground, PostgresGround)
            given = _Given({"rows": rows if of_postgres else len(rows), "digest": told})
            _right(self._ground.check(Task(contender, shape, ANY_LOAD), given))
            self._digests[name] = told

    def types(self, name: str, returned: Any) -> str:
        """The Python types of the first row's values, or Arrow's of the columns."""
        shape = self._of(name)[1]
        if shape.kind != "fetch":
            return ""
        if not isinstance(returned, list):
            return ", ".join(str(one) for one in returned.schema.types)
        first = next(iter(returned), ())
        values = first.values() if hasattr(first, "values") else first
        return ", ".join(type(value).__name__ for value in values)

    def _of(self, name: str) -> tuple[Contender, Shape]:
        contender, _, shape = name.partition(SEPARATOR)
        return (
            next(one for one in CONTENDERS[self._database] if one.name == contender),
            next(one for one in shapes_of(self._database) if one.name == shape).among(self._prefix),
        )


class _Given:
    """Answers with what a driver has given already."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self._answer = answer

    def ask(self, _: dict[str, Any], __: Any = None) -> dict[str, Any]:
        """The same, whatever is asked."""
        return self._answer


def _right(wrong: str | None) -> None:
    if wrong:
        raise WrongResultError(wrong)
