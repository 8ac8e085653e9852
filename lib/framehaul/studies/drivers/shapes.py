"""Define a driver, and the queries that drivers run: shapes of PostgreSQL, and tables of ClickHouse."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from framehaul.data.schema import COMMENT

type Row = tuple[Any, ...]


@dataclass(frozen=True)
class Driver:
    """A Python driver, as tables and charts name it, and the functions with which it connects and fetches.

    `open` takes the server and returns a context manager of either kind, or a coroutine that returns one. `fetch` takes
    its connection and a shape, and returns fully decoded rows in a list or an Arrow table; under an event loop it is a
    coroutine. With `threads` each connection has a thread. `origin` is `published` if the article has the driver.
    """

    label: str
    open: Callable[[Any], Any]
    fetch: Callable[..., Any]
    loop: Literal["threads", "asyncio", "uvloop"] = "threads"
    origin: Literal["published", "beyond"] = "beyond"


@dataclass(frozen=True)
class Shape:
    """A query that programs receive."""

    name: str
    label: str
    sql: str
    arguments: tuple[Any, ...] = ()


POSTGRES_TABLES = {
    "framehaul_blobs": "SELECT convert_to(repeat('a', 1000), 'UTF8') AS b FROM generate_series(1, 100)",
    "framehaul_arrays": "SELECT array(SELECT generate_series(1, 100)) AS a FROM generate_series(1, 100)",
}
"""The queries that fill the tables of the shapes."""

# The queries of https://github.com/MagicStack/pgbench, the benchmark published with asyncpg, and its later versions.
POSTGRES_SHAPES = (
    Shape(
        "pg_type", "wide rows: all of pg_type",
        "SELECT typname, typnamespace, typowner, typlen, typbyval, typcategory, typispreferred, typisdefined, "
        "typdelim, typrelid, typelem, typarray FROM pg_type WHERE typtypmod = $1 AND typisdefined = $2",
        (-1, True),
    ),
    Shape("integers", "1,000 rows of an integer", "SELECT i FROM generate_series(1, $1) AS i", (1000,)),
    Shape("blobs", "100 rows of 1 KB of bytes", "SELECT b FROM framehaul_blobs"),
    Shape("arrays", "100 rows of an array of 100 integers", "SELECT a FROM framehaul_arrays"),
    Shape("one", "round trip: SELECT 1+1", "SELECT 1+1"),
)  # fmt: skip
PUBLISHED_SHAPES = tuple(shape.name for shape in POSTGRES_SHAPES[:4])
"""The four shapes of the published geometric mean."""


@dataclass(frozen=True)
class Generated:
    """A table that ClickHouse generates."""

    name: str
    label: str
    columns: str
    select: str

    @property
    def table(self) -> str:
        """The name of the table on the server."""
        return f"framehaul_{self.name}"

    def ddl(self, rows: int) -> str:
        """Return the statement that creates the table with a number of rows."""
        created = f"CREATE TABLE {self.table} ({self.columns}) ENGINE = Memory COMMENT '{COMMENT}'"
        return f"{created} AS SELECT {self.select} FROM numbers({rows})"

    def shape(self, rows: int) -> Shape:
        """Return the query for the first `rows` rows, in order."""
        return Shape(self.name, self.label, f"SELECT * FROM {self.table} WHERE id < {rows} ORDER BY id")


# The first table is the published one of https://github.com/DarkStussy/aiochlite/tree/master/benchmarks. The others are
# from later versions of that benchmark.
CLICKHOUSE_TABLES = (
    Generated(
        "flat", "id, time, tuple, decimals",
        "id UInt64, event_time DateTime('UTC'), payload Tuple(String, UInt16), prices Array(Decimal(10, 2))",
        "number, toDateTime(1734160800 + number, 'UTC'), tuple('evt', toUInt16(number % 65535)), "
        "arrayMap(step -> toDecimal64((number + step) % 1000, 2) / 100, [0, 1, 2])",
    ),
    Generated(
        "texts", "id and nine texts",
        "id UInt64, " + ", ".join(f"s{at} String" for at in range(9)),
        "number, " + ", ".join(f"concat('v{at}-', toString(number % 500))" for at in range(9)),
    ),
    Generated(
        "nested", "nested arrays, map, NULLs",
        "id UInt64, nested Array(Array(UInt8)), tags Map(String, Array(UInt8)), opt Array(Nullable(UInt64))",
        "number, arrayMap(x -> range(x % 3), range(3)), map('a', [toUInt8(number % 255)], 'b', [1, 2]), "
        "arrayMap(x -> if(x % 2, NULL, toUInt64(x + number)), range(3))",
    ),
)  # fmt: skip
