"""Define a driver, and the queries that drivers run: shapes of PostgreSQL and tables of ClickHouse with their rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from operator import methodcaller
from typing import Any, Literal

type Row = tuple[Any, ...]


@dataclass(frozen=True)
class Driver:
    """The functions with which a Python driver connects, fetches and closes.

    `open` takes the server's address. `fetch` takes a connection and a shape, and returns fully decoded rows in a list
    or an Arrow table. Both are coroutines if `loop` is an event loop. With `threads` each connection has a thread.
    """

    open: Callable[..., Any]
    fetch: Callable[..., Any]
    loop: Literal["threads", "asyncio", "uvloop"] = "threads"
    close: Callable[[Any], Any] = methodcaller("close")


@dataclass(frozen=True)
class Shape:
    """A query that programs receive; `count` is its number of rows if that is known in advance."""

    name: str
    label: str
    sql: str
    arguments: tuple[Any, ...] = ()
    count: int = 0


BLOBS, ARRAYS = "framehaul_blobs", "framehaul_arrays"
POSTGRES_TABLES = {
    BLOBS: (
        f"CREATE TABLE {BLOBS} (b bytea)",
        f"INSERT INTO {BLOBS} SELECT convert_to(repeat('a', 1000), 'UTF8') FROM generate_series(1, 100)",
    ),
    ARRAYS: (
        f"CREATE TABLE {ARRAYS} (a int[])",
        f"INSERT INTO {ARRAYS} SELECT (SELECT array_agg(i) FROM generate_series(1, 100) AS i) "
        "FROM generate_series(1, 100)",
    ),
}
"""The statements that create and fill the tables of the shapes."""

# The queries of https://github.com/MagicStack/pgbench, the benchmark published with asyncpg, and its later versions.
POSTGRES_SHAPES = (
    Shape(
        "pg_type", "wide rows: all of pg_type",
        "SELECT typname, typnamespace, typowner, typlen, typbyval, typcategory, typispreferred, typisdefined, "
        "typdelim, typrelid, typelem, typarray FROM pg_type WHERE typtypmod = $1 AND typisdefined = $2",
        (-1, True),
    ),
    Shape("integers", "1,000 rows of an integer", "SELECT i FROM generate_series(1, $1) AS i", (1000,)),
    Shape("blobs", "100 rows of 1 KB of bytes", f"SELECT b FROM {BLOBS}"),
    Shape("arrays", "100 rows of an array of 100 integers", f"SELECT a FROM {ARRAYS}"),
    Shape("one", "round trip: SELECT 1+1", "SELECT 1+1"),
)  # fmt: skip
PUBLISHED_SHAPES = ("pg_type", "integers", "blobs", "arrays")
"""The four shapes of the published geometric mean."""


@dataclass(frozen=True)
class Generated:
    """A table that ClickHouse generates; `row` returns the expected row for an id."""

    name: str
    label: str
    columns: str
    select: str
    row: Callable[[int], Row]

    @property
    def table(self) -> str:
        """The name of the table on the server."""
        return f"framehaul_{self.name}"

    def shape(self, rows: int) -> Shape:
        """Return the query for the first `rows` rows, in order."""
        sql = f"SELECT * FROM {self.table} WHERE id < {rows} ORDER BY id"
        return Shape(self.name, self.label, sql, count=rows)


def _flat(number: int) -> Row:
    prices = [Decimal((number + step) % 1000) / 100 for step in range(3)]
    event = dt.datetime.fromtimestamp(1_734_160_800 + number, dt.UTC)
    return number, event, ("evt", number % 65_535), prices


def _texts(number: int) -> Row:
    return number, *(f"v{at}-{number % 500}" for at in range(9))


def _nested(number: int) -> Row:
    tags = {"a": [number % 255], "b": [1, 2]}
    return number, [[], [0], [0, 1]], tags, [number, None, 2 + number]


# The first table is the published one of https://github.com/DarkStussy/aiochlite/tree/master/benchmarks. The others are
# from later versions of that benchmark.
CLICKHOUSE_TABLES = (
    Generated(
        "flat", "id, time, tuple, decimals",
        "id UInt64, event_time DateTime('UTC'), payload Tuple(String, UInt16), prices Array(Decimal(10, 2))",
        "number, toDateTime(1734160800 + number, 'UTC'), tuple('evt', toUInt16(number % 65535)), "
        "arrayMap(step -> toDecimal64((number + step) % 1000, 2) / 100, [0, 1, 2])",
        _flat,
    ),
    Generated(
        "texts", "id and nine texts",
        "id UInt64, " + ", ".join(f"s{at} String" for at in range(9)),
        "number, " + ", ".join(f"concat('v{at}-', toString(number % 500))" for at in range(9)),
        _texts,
    ),
    Generated(
        "nested", "nested arrays, map, NULLs",
        "id UInt64, nested Array(Array(UInt8)), tags Map(String, Array(UInt8)), opt Array(Nullable(UInt64))",
        "number, arrayMap(x -> range(x % 3), range(3)), map('a', [toUInt8(number % 255)], 'b', [1, 2]), "
        "arrayMap(x -> if(x % 2, NULL, toUInt64(x + number)), range(3))",
        _nested,
    ),
)  # fmt: skip
PUBLISHED_TABLE = CLICKHOUSE_TABLES[0].name
