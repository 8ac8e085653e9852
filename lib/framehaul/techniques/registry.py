"""The registry of techniques, whose records follow from their modules and names."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from framehaul.techniques.contract import APPEND, Contract

Database = Literal["postgres", "clickhouse"]
Direction = Literal["write", "read"]
Frame = Literal["pandas", "polars", "batches", "none"]
"""`batches` are record batches; `none` is for baselines, which have no dataframe."""
Registered = Literal["published", "beyond", "framehaul", "everyday", "baseline"]
"""Published; faster or safer than published; framehaul's functions; the first call in a library's documentation; the
server alone."""
Origin = Literal[Registered, "streamed", "upsert"]
"""`streamed` moves rows in bounded memory."""

DATABASES = {"postgres": "PostgreSQL", "clickhouse": "ClickHouse"}
"""Display names of databases."""
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
    "http_client": "http.client",
    "httpx": "httpx",
    "clickhouse_connect": "clickhouse-connect",
    "chdb": "chDB",
    "framehaul": "framehaul",
    "ibis": "Ibis",
}
"""Display names of drivers, by their part of a technique's name."""

Requirement = Literal["key", "pg_parquet", "shared_directory", "adbc_clickhouse", "empty_table"]
REQUIREMENTS: dict[Requirement, str] = {
    "key": "a table with a primary key (PostgreSQL) or a sorting key (ClickHouse)",
    "pg_parquet": "a server with the extension pg_parquet",
    "shared_directory": "a directory that client and server both reach",
    "adbc_clickhouse": "ADBC's driver for ClickHouse (`make tools`, or `dbc install clickhouse`)",
    "empty_table": "a table that is empty or may be replaced, and that nobody else uses",
}
"""The requirements of techniques, except a server and the packages that they import."""
REQUIREMENTS_OF_CLIENTS: dict[str, tuple[Requirement, ...]] = {
    "psycopg_parquet": ("pg_parquet", "shared_directory"),
    "adbc_clickhouse": ("adbc_clickhouse",),
}
CLIENTS_OF_DRIVERS = {"pgpq": "psycopg", "connectorx": "address", "adbc_uri": "address"}
"""Clients of drivers that share a client: pgpq only encodes rows, and the others take an address."""

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
    "framehaul": "framehaul's choice",
    "server": "server alone",
}
"""Display names of families: the transport and the shape of the payload."""


@dataclass(frozen=True)
class Technique:
    """A technique and its record; a reader can paste the code of `function`."""

    function: Callable[..., Any]
    database: Database
    direction: Direction
    frame: Frame
    driver: str
    client: str
    """The open client that the function takes, by its key in `clients.CLIENTS`."""
    family: str
    label: str
    origin: Origin
    contract: Contract | None = None
    """The terms of a write; None for a read."""
    connections: int = 1
    """The number of connections that move rows."""
    requires: tuple[Requirement, ...] = ()
    """Keys of REQUIREMENTS."""
    engine: str = ""
    """The table engine of ClickHouse, or the partitioning of PostgreSQL, that an upsert needs."""
    final: bool = False
    """Whether reads after an upsert need FINAL."""

    @property
    def name(self) -> str:
        """Return `frame_driver_method`, which is unique for its database and direction."""
        return self.function.__name__

    @property
    def key(self) -> Key:
        """Return the technique's key in results, as in the columns `statistics.NAMES`."""
        return self.database, self.direction, self.name


type Key = tuple[Database, Direction, str]
_TECHNIQUES: dict[Key, Technique] = {}


def frame_and_driver(name: str) -> tuple[Frame, str]:
    """Return the frame and the driver in a technique's name; raises ValueError for a name without them."""
    frame, _, rest = name.partition("_")
    drivers = [driver for driver in DRIVERS if rest.startswith(f"{driver}_")]
    if frame not in get_args(Frame) or not drivers:
        raise ValueError(f"{name} is not of the form frame_driver_method with a driver of DRIVERS")
    return cast("Frame", frame), max(drivers, key=len)


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
    """Register a function, with origin, database and direction from its module, frame and driver from its name.

    A write without a contract appends. Raises ValueError for an unknown family, a name that is already registered, or
    a name that does not have the form `frame_driver_method`.
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
        terms = (contract or APPEND[database]) if direction == "write" else None
        needs: tuple[Requirement, ...] = (*requires, *REQUIREMENTS_OF_CLIENTS.get(client_name, ()))
        if terms and terms.kind == "bulk_load":
            needs = (*needs, "empty_table")
        names = function, *key[:2], frame, driver, client_name, family, label, cast("Origin", origin)
        _TECHNIQUES[key] = Technique(*names, terms, connections, needs, engine, final)
        return function

    return register


def named(database: Database, direction: Direction, name: str) -> Technique:
    """Return the technique or upsert of this name; raises KeyError for an unknown name."""
    techniques(), upserts(database)  # both import the modules that register
    return _TECHNIQUES[database, direction, name]


MODULES = ("postgres_write", "postgres_read", "clickhouse_write", "clickhouse_read")


def techniques(database: Database | None = None, direction: Direction | None = None) -> list[Technique]:
    """Return the techniques of a database and a direction, each by default any, in the order of their source files."""
    rooms = {"framehaul": "framehaul.api"}
    modules = [
        f"{rooms.get(origin, 'framehaul.techniques')}.{origin}.{name}"
        for name in MODULES
        for origin in get_args(Registered)
    ]
    for module in modules:
        importlib.import_module(module)
    registered = [
        one
        for one in _TECHNIQUES.values()
        if one.function.__module__ in modules
        and database in (None, one.database)
        and direction in (None, one.direction)
    ]
    return sorted(registered, key=lambda one: modules.index(one.function.__module__))


def upserts(database: Database) -> list[Technique]:
    """Return the upserts of a database, in the order of their source file."""
    importlib.import_module(f"framehaul.techniques.upsert.{database}_write")
    return [one for one in _TECHNIQUES.values() if one.origin == "upsert" and one.database == database]
