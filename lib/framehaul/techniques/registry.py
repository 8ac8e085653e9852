"""The registry of techniques, whose records follow from their modules and names."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import update_wrapper
from itertools import product
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from framehaul.techniques.contract import APPEND, Contract

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

type DataFrame = pl.DataFrame | pd.DataFrame
type ToFrame = Callable[..., DataFrame]
"""Makes a frame of what a driver returns."""
Database = Literal["postgres", "clickhouse"]
Direction = Literal["write", "read"]
Frame = Literal["pandas", "polars", "batches", "none"]
"""`batches` are record batches; `none` is for baselines, which have no dataframe."""
Origin = Literal["published", "beyond", "baseline", "framehaul", "everyday", "streamed", "upsert"]
"""In the order of pages: published; faster or safer than published; the server alone, of the family `server`;
framehaul's functions; the first call in a library's documentation; in bounded memory; replacing rows by key."""
Requirement = Literal["key", "pg_parquet", "shared_directory", "empty_table"]
type Key = tuple[Database, Direction, str]


def _names(kind: str) -> dict[str, str]:
    """Return the display names of a kind, in the order of `names.tsv`."""
    lines = Path(__file__).with_name("names.tsv").read_text(encoding="utf-8").splitlines()
    return {name: shown for its_kind, name, shown in (line.split("\t") for line in lines) if its_kind == kind}


DATABASES: dict[Database, str] = {"postgres": "PostgreSQL", "clickhouse": "ClickHouse"}
DRIVERS = _names("driver")
"""Display names of drivers, by their part of a technique's name."""
FAMILIES = _names("family")
"""Display names of families: the transport and the shape of the payload."""
REQUIREMENTS = _names("requirement")
"""The requirements of techniques, except a server and the packages that they import."""
REQUIREMENTS_OF: dict[str, tuple[Requirement, ...]] = {
    "psycopg_parquet": ("pg_parquet", "shared_directory"),
    "bulk_load": ("empty_table",),
    "upsert": ("key",),
    "key": ("key",),
}
"""The requirements of clients, of kinds of contracts, and of techniques that use the key."""
CLIENTS_OF = {"pgpq": "psycopg", "connectorx": "address", "adbc_uri": "address", "pg_parquet": "psycopg_parquet"}
"""Clients of a family and of drivers that share one: pgpq only encodes rows, and the others take an address."""


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
    engine: str = ""
    """The table engine of ClickHouse that an upsert needs."""

    @property
    def name(self) -> str:
        """Return `frame_driver_method`, which is unique for its database and direction."""
        return self.function.__name__

    @property
    def key(self) -> Key:
        """Return the technique's key in results, as in the columns `statistics.NAMES`."""
        return self.database, self.direction, self.name

    @property
    def final(self) -> bool:
        """Return whether reads after an upsert need FINAL, as its label says."""
        return self.label.endswith("read with FINAL")


REGISTERED: dict[Key, Technique] = {}
"""The techniques of all modules that have been imported."""


def _add(one: Technique) -> None:
    if one.key in REGISTERED:
        raise ValueError(f"there are two techniques {one.name} in {one.function.__module__}")
    REGISTERED[one.key] = one


def frame_and_driver(name: str) -> tuple[Frame, str]:
    """Return the frame and the driver in a technique's name; raises ValueError for a name without them."""
    frame, _, rest = name.partition("_")
    drivers = [driver for driver in DRIVERS if rest.startswith(f"{driver}_")]
    if frame not in get_args(Frame) or not drivers:
        raise ValueError(f"{name} is not of the form frame_driver_method with a driver of DRIVERS")
    return cast("Frame", frame), max(drivers, key=len)


def technique[F: Callable[..., Any]](
    family: str,
    label: str,
    contract: Contract | None = None,
    engine: str = "",
    *,
    client: str | None = None,
    key: bool = False,
    pandas: ToFrame | str | bool = False,
) -> Callable[[F], F]:
    """Register a function, with origin, database and direction from its module, frame and driver from its name.

    A function of `connections` takes a pair of clients, and a write without a contract appends. With `pandas`, a write
    that takes either frame is registered for pandas as well, and a read whose last parameter makes the frame is
    registered with `pandas` in place of its default. Raises ValueError for an unknown family, a name that is already
    registered, or a name that is not of the form `frame_driver_method`.
    """

    def register(function: F) -> F:
        origin, module = function.__module__.split(".")[-2:]
        database, direction = cast("tuple[Database, Direction]", tuple(module.split("_")))
        frame, driver = frame_and_driver(function.__name__)
        if family not in FAMILIES:
            raise ValueError(f"{function.__name__}: unknown family {family!r}; add it to FAMILIES")
        pair = [*inspect.signature(function).parameters][:1] == ["connections"]
        opened = (client or CLIENTS_OF.get(family) or CLIENTS_OF.get(driver, driver)) + "_pair" * pair
        terms = (contract or APPEND[database]) if direction == "write" else None
        causes = "key" * key, opened, terms.kind if terms else ""
        needs = tuple(needed for cause in causes for needed in REQUIREMENTS_OF.get(cause, ()))
        origin = "baseline" if family == "server" else origin
        names = function, database, direction, frame, driver, opened, family, label, cast("Origin", origin)
        _add(Technique(*names, terms, 1 + pair, needs, engine))
        if pandas:
            defaults, name = () if pandas is True else (pandas,), function.__name__.replace("polars_", "pandas_")
            also(name, label.replace("Polars", "Pandas"), *defaults)(function)
        return function

    return register


def also[F: Callable[..., Any]](name: str, label: str, *defaults: object, **changes: Any) -> Callable[[F], F]:
    """Register a technique's function under another name too, with other defaults and other fields of its record."""

    def register(function: F) -> F:
        one = next(one for one in REGISTERED.values() if one.function is function)
        frame, driver = frame_and_driver(name)
        client = one.client if driver == one.driver else CLIENTS_OF.get(driver, driver)
        fields = {"frame": frame, "driver": driver, "client": client, "label": label, **changes}
        _add(replace(one, function=renamed(function, name, *defaults), **fields))
        return function

    return register


def renamed(function: Any, name: str, *defaults: object) -> FunctionType:
    """Return a copy of a function with another name, and with other defaults if any are given."""
    kept = defaults or function.__defaults__, function.__closure__
    copy = FunctionType(function.__code__, function.__globals__, name, *kept)
    copy.__kwdefaults__ = function.__kwdefaults__
    update_wrapper(copy, function, ("__module__", "__doc__", "__annotations__"))
    copy.__qualname__ = name
    return copy


def named(database: Database, direction: Direction, name: str) -> Technique:
    """Return the technique or upsert of this name; raises KeyError for an unknown name."""
    techniques(), upserts(database)  # both import the modules that register
    return REGISTERED[database, direction, name]


def techniques(database: Database | None = None, direction: Direction | None = None) -> list[Technique]:
    """Return the techniques of a database and a direction, each by default any, in the order of their source files."""
    paths, origins = [*product(DATABASES, ("write", "read"))], get_args(Origin)
    for path in paths:
        for place in ("techniques.published", "techniques.beyond", "api.framehaul", "techniques.everyday"):
            importlib.import_module(f"framehaul.{place}.{'_'.join(path)}")
    chosen = [one for one in REGISTERED.values() if database in (None, one.database) and one.origin != "upsert"]
    chosen = [one for one in chosen if direction in (None, one.direction)]
    return sorted(chosen, key=lambda one: (paths.index((one.database, one.direction)), origins.index(one.origin)))


def upserts(database: Database) -> list[Technique]:
    """Return the upserts of a database, in the order of their source file."""
    importlib.import_module(f"framehaul.techniques.upsert.{database}_write")
    return [one for one in REGISTERED.values() if one.origin == "upsert" and one.database == database]
