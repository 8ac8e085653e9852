"""The registry: what every technique is called, and everything that follows from its name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from framehaul.techniques.contract import APPEND, Contract

Database = Literal["postgres", "clickhouse"]
Direction = Literal["write", "read"]
Frame = Literal["pandas", "polars", "batches", "none"]
"""`batches` are record batches, one after the other; `none` is for baselines: nothing of a dataframe is in them."""
Registered = Literal["published", "beyond", "everyday", "baseline"]
"""Of the published comparison, faster or otherwise better than it, called without a choice, or the server alone."""
Origin = Literal[Registered, "streamed", "upsert"]
"""Or a move in bounded memory, or one of rows that may be there already."""

DATABASES = {"postgres": "PostgreSQL", "clickhouse": "ClickHouse"}
"""As a reader knows them."""
DRIVERS = {
    "asyncpg": "asyncpg",
    "psycopg": "psycopg",
    "pgpq": "pgpq over psycopg",
    "psycopg2": "psycopg2",
    "adbc": "ADBC",
    "adbc_uri": "ADBC, given an address",
    "connectorx": "ConnectorX",
    "duckdb": "DuckDB",
    "sqlalchemy": "SQLAlchemy over psycopg",
    "sqlalchemy_psycopg2": "SQLAlchemy over psycopg2",
    "clickhouse_driver": "clickhouse-driver",
    "clickhouse_sqlalchemy": "SQLAlchemy over clickhouse-driver",
    "clickhouse_sqlalchemy_http": "SQLAlchemy over requests",
    "clickhouse_connect_sqlalchemy": "SQLAlchemy over clickhouse-connect",
    "asynch": "asynch",
    "urllib": "urllib",
    "urllib3": "urllib3",
    "http_client": "http.client",
    "httpx": "httpx",
    "aiohttp": "aiohttp",
    "clickhouse_connect": "clickhouse-connect",
    "chdb": "chDB",
    "ibis": "Ibis",
}
"""Names of drivers as they stand in a technique's name, and as a reader knows them."""
CONNECT_IN_CALL = ("connectorx", "adbc_uri", "urllib", "chdb")
"""Drivers that cannot but connect within the call that moves rows, and so on the clock."""

Requirement = Literal["key", "pg_parquet", "shared_directory", "adbc_clickhouse", "empty_table"]
REQUIREMENTS: dict[Requirement, str] = {
    "key": "a table with a primary key (PostgreSQL) or a sorting key (ClickHouse)",
    "pg_parquet": "a server with the extension pg_parquet",
    "shared_directory": "a directory that client and server both reach",
    "adbc_clickhouse": "ADBC's driver for ClickHouse (`make tools`, or `dbc install clickhouse`)",
    "empty_table": "a table that is empty or may be replaced, and nobody else's meanwhile",
}
"""What a technique may ask for beside its packages, which its code imports, and a server."""
REQUIREMENTS_OF_CLIENTS: dict[str, tuple[Requirement, ...]] = {
    "psycopg_parquet": ("pg_parquet", "shared_directory"), "psycopg_parquet_stream": ("pg_parquet",),
    "adbc_clickhouse": ("adbc_clickhouse",),
}  # fmt: skip
CLIENTS_OF_DRIVERS = {"pgpq": "psycopg", "connectorx": "address", "adbc_uri": "address"}
"""Clients of drivers that have none of their own name: pgpq only encodes, others open connections themselves."""

FAMILIES = {
    "copy_binary": "COPY, binary",
    "copy_text": "COPY, delimited text",
    "pg_parquet": "COPY, Parquet file (pg_parquet)",
    "prepared_fetch": "prepared row fetch",
    "row_fetch": "row fetch",
    "convenience": "convenience reader",
    "insert_rows": "INSERT of rows",
    "insert_text": "INSERT FORMAT CSV / TSV",
    "native_columnar": "native protocol, columnar",
    "http_parquet": "Parquet over HTTP",
    "http_csv": "CSV over HTTP",
    "arrow": "Arrow",
    "http_native": "Native over HTTP",
    "engine": "query engine's connector",
    "server": "server alone",
}
"""Families of techniques: the transport and the shape of the payload."""


@dataclass(frozen=True)
class Technique:
    """A technique and its record; `function` is what a reader would paste into their own code."""

    function: Callable[..., Any]
    database: Database
    direction: Direction
    frame: Frame
    driver: str
    client: str
    """Which open client the function takes, a key of `clients.CLIENTS`."""
    family: str
    label: str
    origin: Origin
    contract: Contract | None = None
    """Of a write, its terms."""
    connections: int = 1
    """How many it moves its rows over."""
    requires: tuple[Requirement, ...] = ()
    """What has to be there: keys of REQUIREMENTS."""
    engine: str = ""
    """Of an upsert, the engine of ClickHouse, or the partitions of PostgreSQL, that its table has to be of."""
    final: bool = False
    """Whether who reads has to ask for FINAL."""

    @property
    def connects_inside(self) -> bool:
        """Whether connecting is on the clock."""
        return self.driver in CONNECT_IN_CALL

    @property
    def name(self) -> str:
        """`frame_driver_method`, unique for its database and direction."""
        return self.function.__name__

    @property
    def key(self) -> Key:
        """What tells it apart: the columns `statistics.NAMES` of results."""
        return self.database, self.direction, self.name


type Key = tuple[Database, Direction, str]
_TECHNIQUES: dict[Key, Technique] = {}


def frame_and_driver(name: str) -> tuple[Frame, str]:
    """What a technique's name says: its kind of frame, and its driver; raises ValueError for one without."""
    frame, _, rest = name.partition("_")
    drivers = [driver for driver in DRIVERS if rest.startswith(f"{driver}_")]
    if frame not in get_args(Frame) or not drivers:
        raise ValueError(f"{name} is not of the form frame_driver_method with a driver of DRIVERS")
    return cast("Frame", frame), max(drivers, key=len)


def terms_of(database: str, direction: str, own: Contract | None) -> Contract | None:
    """The terms of a write, which are those of a plain append unless it has its own; a read has none."""
    return (own or APPEND[database]) if direction == "write" else None


def asked_for(own: tuple[Requirement, ...], client: str, terms: Contract | None) -> tuple[Requirement, ...]:
    """What has to be there: for itself, for its client, and for its terms."""
    empty: tuple[Requirement, ...] = ("empty_table",) if terms and terms.kind == "bulk_load" else ()
    return (*own, *REQUIREMENTS_OF_CLIENTS.get(client, ()), *empty)


def technique[F: Callable[..., Any]](
    *,
    family: str,
    label: str,
    client: str | None = None,
    connections: int = 1,
    contract: Contract | None = None,
    requires: tuple[Requirement, ...] = (),
    engine: str = "",
    final: bool = False,
) -> Callable[[F], F]:
    """Register a function; its module says origin, database and direction, its name says frame and driver.

    A write without a contract of its own appends, as its database does.
    Raises ValueError when the name does not follow the grammar `frame_driver_method` or is taken.
    """

    def register(function: F) -> F:
        origin, module = function.__module__.split(".")[-2:]
        database, direction = module.split("_")
        frame, driver = frame_and_driver(function.__name__)
        if family not in FAMILIES:
            raise ValueError(f"{function.__name__}: unknown family {family!r}; add it to FAMILIES")
        key = cast("Database", database), cast("Direction", direction), function.__name__
        if key in _TECHNIQUES:
            raise ValueError(f"there are two techniques {function.__name__} in {function.__module__}")
        client_name = client or CLIENTS_OF_DRIVERS.get(driver, driver)
        terms = terms_of(database, direction, contract)
        _TECHNIQUES[key] = Technique(
            function, key[0], key[1], frame, driver, client_name, family, label, cast("Origin", origin),
            terms, connections, asked_for(requires, client_name, terms), engine, final,
        )  # fmt: skip
        return function

    return register


def named(database: Database, direction: Direction, name: str) -> Technique:
    """The technique of this name, an upsert as well; raises KeyError where there is none."""
    known = [*techniques(database, direction), *(upserts(database) if direction == "write" else [])]
    return {one.name: one for one in known}[name]


MODULES = ("postgres_write", "postgres_read", "clickhouse_write", "clickhouse_read")


def techniques(database: Database | None = None, direction: Direction | None = None) -> list[Technique]:
    """All techniques, or those of a database and direction, in the order of their source files."""
    for name in MODULES:
        for kind in get_args(Registered):
            importlib.import_module(f"framehaul.techniques.{kind}.{name}")

    def place(one: Technique) -> tuple[int, int]:  # whatever was imported first
        return MODULES.index(f"{one.database}_{one.direction}"), get_args(Registered).index(one.origin)

    registered = (one for one in _TECHNIQUES.values() if one.origin in get_args(Registered))
    return [
        one
        for one in sorted(registered, key=place)
        if database in (None, one.database) and direction in (None, one.direction)
    ]


def upserts(database: Database) -> list[Technique]:
    """The techniques of rows that may be there already, in the order of their source file: no rivals of an append."""
    importlib.import_module(f"framehaul.techniques.upsert.{database}_write")
    return [one for one in _TECHNIQUES.values() if one.origin == "upsert" and one.database == database]
