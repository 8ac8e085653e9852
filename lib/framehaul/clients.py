"""The open clients that techniques take, one way of opening per driver; opening is never on the clock."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request

import asyncpg
import clickhouse_driver
import httpx
import psycopg
import sqlalchemy
from asynch.proto.connection import Connection as AsynchConnection

from framehaul.servers import ClickHouseServer, PostgresServer

TIMEOUT_SECONDS = 600

# Created, and preloaded as it must be (as far as this user may know): https://github.com/CrunchyData/pg_parquet
PG_PARQUET_WORKS = """
SELECT 1 FROM pg_extension WHERE extname = 'pg_parquet' AND NOT EXISTS (
    SELECT 1 FROM pg_settings WHERE name = 'shared_preload_libraries' AND setting NOT LIKE '%pg_parquet%'
)
"""


class UnavailableError(RuntimeError):
    """A technique cannot run on this server; the message says why and what would make it run."""


@dataclass(frozen=True)
class ParquetExchange:
    """A psycopg connection and the directory that pg_parquet's files pass through, as both sides see it."""

    connection: psycopg.Connection[Any]
    on_client: Path
    on_server: str


@dataclass(frozen=True)
class HttpEndpoint:
    """ClickHouse's HTTP interface for clients that keep no connection."""

    url: str
    database: str
    headers: dict[str, str]

    def request(self, query: str, body: bytes = b"", **settings: str | int) -> Request:
        """A POST request that runs `query`, with `body` as its data."""
        parameters = urlencode({"database": self.database, "query": query, **settings})
        return Request(f"{self.url}?{parameters}", data=body, headers=self.headers, method="POST")


@asynccontextmanager
async def open_asyncpg(server: PostgresServer) -> AsyncIterator[asyncpg.Connection[Any]]:
    """An asyncpg connection, in autocommit as asyncpg always is outside a transaction."""
    connection = await asyncpg.connect(server.dsn(), timeout=30)
    try:
        yield connection
    finally:
        connection.terminate() if connection.is_closed() else await connection.close(timeout=30)


@contextmanager
def open_psycopg(server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """A psycopg connection in autocommit, so that a technique's last statement is its commit."""
    with psycopg.connect(server.dsn(), autocommit=True, connect_timeout=30) as connection:
        yield connection


@contextmanager
def open_psycopg_parquet(server: PostgresServer) -> Iterator[ParquetExchange]:
    """A psycopg connection to a server with pg_parquet; raises UnavailableError when it or its directory is missing."""
    with open_psycopg(server) as connection:
        if connection.execute(PG_PARQUET_WORKS).fetchone() is None:
            raise UnavailableError(
                "this server does not have the extension pg_parquet: point FRAMEHAUL_POSTGRES_EXTENSIONS at a "
                "directory where it is built, use SERVERS=docker, or run CREATE EXTENSION pg_parquet on your own server"
            )
        if server.exchange is None:
            raise UnavailableError(
                "pg_parquet reads and writes files on the server: set FRAMEHAUL_EXCHANGE_DIR to a directory that this "
                "machine shares with it"
            )
        directory = Path(server.exchange.on_client)
        try:
            yield ParquetExchange(connection, directory, server.exchange.on_server)
        finally:
            for file in directory.glob("framehaul-*.parquet"):
                file.unlink()


@contextmanager
def open_sqlalchemy(server: PostgresServer) -> Iterator[sqlalchemy.Connection]:
    """A SQLAlchemy connection over psycopg."""
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(server.dsn()))
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


@contextmanager
def open_clickhouse_driver(server: ClickHouseServer) -> Iterator[clickhouse_driver.Client]:
    """A clickhouse-driver client over the native protocol, uncompressed as by default."""
    client = clickhouse_driver.Client(
        host=server.host, port=server.native_port, user=server.user, password=server.password,
        database=server.database, secure=server.secure, send_receive_timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    client.execute("SELECT 1")
    try:
        yield client
    finally:
        client.disconnect()


@contextmanager
def open_clickhouse_sqlalchemy(server: ClickHouseServer) -> Iterator[sqlalchemy.Connection]:
    """A SQLAlchemy connection over clickhouse-driver."""
    url = sqlalchemy.URL.create(
        "clickhouse+native", server.user, server.password, server.host, server.native_port, server.database,
        {"secure": "True"} if server.secure else {},
    )  # fmt: skip
    engine = sqlalchemy.create_engine(url)
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1")
            native = connection.connection.dbapi_connection
            try:
                yield connection
            finally:
                native.transport.disconnect()  # type: ignore[union-attr]  # the dialect's own close does nothing
    finally:
        engine.dispose()


@asynccontextmanager
async def open_asynch(server: ClickHouseServer) -> AsyncIterator[AsynchConnection]:
    """An asynch connection over the native protocol."""
    connection = AsynchConnection(  # type: ignore[no-untyped-call]  # its stub leaves __init__ untyped
        host=server.host, port=server.native_port, user=server.user, password=server.password,
        database=server.database, secure=server.secure, send_receive_timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    await connection.connect()
    try:
        yield connection
    finally:
        await connection.disconnect()


@contextmanager
def open_urllib(server: ClickHouseServer) -> Iterator[HttpEndpoint]:
    """The HTTP interface for urllib, which opens a connection per request: there it is part of the technique."""
    login = base64.b64encode(f"{server.user}:{server.password}".encode()).decode("ascii")
    yield HttpEndpoint(
        server.url,
        server.database,
        {"Authorization": f"Basic {login}", "Content-Type": "application/octet-stream"},
    )


@asynccontextmanager
async def open_httpx(server: ClickHouseServer) -> AsyncIterator[httpx.AsyncClient]:
    """An httpx client bound to the server, its database and its login, with a connection already open."""
    async with httpx.AsyncClient(
        base_url=server.url, auth=(server.user, server.password), params={"database": server.database},
        timeout=TIMEOUT_SECONDS, trust_env=False,
    ) as client:  # fmt: skip
        (await client.post("/", params={"query": "SELECT 1"})).raise_for_status()
        yield client


type Opener = Callable[[Any], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]

CLIENTS: dict[str, Opener] = {
    "asyncpg": open_asyncpg,
    "psycopg": open_psycopg,
    "psycopg_parquet": open_psycopg_parquet,
    "sqlalchemy": open_sqlalchemy,
    "clickhouse_driver": open_clickhouse_driver,
    "clickhouse_sqlalchemy": open_clickhouse_sqlalchemy,
    "asynch": open_asynch,
    "urllib": open_urllib,
    "httpx": open_httpx,
}
"""How each kind of client is opened, by the name that a technique's record gives."""
