"""The open clients that techniques take, one way of opening per driver; opening is never on the clock.

A driver is imported by who opens it: all of them take half a second, and most processes open one.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import inspect
import secrets
import selectors
import ssl
import warnings
from collections.abc import AsyncIterator, Buffer, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode
from urllib.request import Request

from framehaul.data.schema import ColumnType, Table, quote_clickhouse_text, quote_postgres_text
from framehaul.errors import UnavailableError
from framehaul.servers import ClickHouseServer, PostgresServer
from framehaul.servers.address import TIMEOUT_SECONDS

if TYPE_CHECKING:
    import adbc_driver_manager.dbapi
    import adbc_driver_postgresql.dbapi
    import aiohttp
    import asyncpg
    import chdb
    import clickhouse_driver
    import duckdb
    import httpx
    import ibis
    import psycopg
    import psycopg2.extensions
    import sqlalchemy
    import urllib3
    from asynch.proto.connection import Connection as AsynchConnection
    from clickhouse_connect.driver.client import Client as ClickHouseConnectClient

NO_SETTINGS: Mapping[str, str | int] = {}

# Created, and preloaded as it must be (as far as this user may know): https://github.com/CrunchyData/pg_parquet
PG_PARQUET_WORKS = """
SELECT 1 FROM pg_extension WHERE extname = 'pg_parquet' AND NOT EXISTS (
    SELECT 1 FROM pg_settings WHERE name = 'shared_preload_libraries' AND setting NOT LIKE '%pg_parquet%'
)
"""


# Text comes and goes in the session's encoding, in binary COPY as well, and a role, a database or a pooler may have set
# another one. Said for one transaction: for one that the caller has begun, until the end of that.
# https://www.postgresql.org/docs/18/multibyte.html#MULTIBYTE-AUTOMATIC-CONVERSION
UTF8 = "SET LOCAL client_encoding = 'UTF8'"


def check_encoding(connection: duckdb.DuckDBPyConnection) -> None:
    """Raises ValueError where sessions of the attached `pg` are not in UTF-8, which DuckDB takes all text for."""
    query = "SELECT current_setting(''client_encoding'')"
    ((encoding,),) = connection.execute(f"FROM postgres_query('pg', '{query}')").fetchall()
    if encoding != "UTF8":
        raise ValueError(f"text would come as {encoding}: attach PostgreSQL with client_encoding=utf8 in its address")


@dataclass(frozen=True)
class ParquetExchange:
    """A psycopg connection and the directory that pg_parquet's files pass through, as both sides see it."""

    connection: psycopg.Connection[Any]
    on_client: Path
    on_server: str

    def new_file(self) -> tuple[Path, str]:
        """The path of a file that does not exist yet, for the client and for the server; nobody can guess its name."""
        name = f"framehaul-{secrets.token_hex(16)}.parquet"
        return self.on_client / name, f"{self.on_server}/{name}"


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


class QueryError(RuntimeError):
    """ClickHouse answered a query with an error; the message is its own."""


def in_chunks(parts: Iterable[Buffer]) -> Iterator[Buffer]:
    """The parts of a body as chunks, which `http.client` would copy.

    https://www.rfc-editor.org/rfc/rfc9112#section-7.1
    """
    for part in parts:
        chunk = memoryview(part).cast("B")
        if len(chunk):
            yield b"%x\r\n" % len(chunk)
            yield chunk
            yield b"\r\n"
    yield b"0\r\n\r\n"


class Answer(http.client.HTTPResponse):
    """A response that knows whether it was closed before its end: the rest of it is still to come."""

    cut_off = False

    def close(self) -> None:
        """As any file."""
        self.cut_off = self.cut_off or getattr(self, "fp", None) is not None
        super().close()


def has_ended(connection: http.client.HTTPConnection) -> bool:
    """Whether the server has closed a kept connection on which nothing is asked: its end is all there is to receive.

    ClickHouse does so after 30 seconds. Other clients look before each request as well, `http.client` does not:
    https://clickhouse.com/docs/operations/server-configuration-parameters/settings#keep_alive_timeout
    """
    if connection.sock is None:
        return False
    with selectors.DefaultSelector() as selector:
        selector.register(connection.sock, selectors.EVENT_READ)
        return bool(selector.select(timeout=0))


@dataclass(frozen=True)
class HttpConnection:
    """ClickHouse's HTTP interface over one kept connection of the standard library's `http.client`."""

    connection: http.client.HTTPConnection
    database: str
    headers: dict[str, str]
    _last: list[http.client.HTTPResponse] = field(default_factory=list, compare=False, repr=False)

    def post(
        self, query: str, *, body: bytes | Iterator[Buffer] = b"", settings: Mapping[str, str | int] = NO_SETTINGS
    ) -> http.client.HTTPResponse:
        """Run `query`, with `body` as its data, sent in chunks as they come when it is an iterator.

        Where a response was not read to its end, or half of a body was sent, the connection is closed, and the next
        query opens another; so it does where the server has closed the connection since the last. Raises QueryError,
        and what the iterator raises.
        """
        parameters = urlencode({"database": self.database, "query": query, **settings})
        headers, content = self.headers, body
        if not isinstance(body, bytes):
            # What comes first is made before the server is asked, which waits for more for 30 seconds:
            # https://clickhouse.com/docs/operations/settings/settings#http_receive_timeout
            chunks = in_chunks(body)
            content, headers = chain([*islice(chunks, 1)], chunks), {**headers, "Transfer-Encoding": "chunked"}
        if any(isinstance(one, Answer) and one.cut_off for one in self._last) or has_ended(self.connection):
            self.connection.close()
        try:
            # A server that refuses a body closes the connection while we are sending; its answer says why.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.connection.request("POST", f"/?{parameters}", content, headers)
            response = self.connection.getresponse()
        except BaseException:
            self.connection.close()
            raise
        self._last[:] = [response]
        if response.status != http.client.OK:
            raise QueryError(response.read().decode(errors="replace"))
        return response


@dataclass(frozen=True)
class UrlLib3Endpoint:
    """ClickHouse's HTTP interface over a urllib3 pool that keeps one connection."""

    pool: urllib3.HTTPConnectionPool
    database: str
    headers: dict[str, str]

    def post(self, query: str, *, settings: Mapping[str, str | int] = NO_SETTINGS) -> urllib3.BaseHTTPResponse:
        """Run `query`; the response is not read yet. Raises QueryError."""
        parameters = urlencode({"database": self.database, "query": query, **settings})
        response = self.pool.request("POST", f"/?{parameters}", headers=self.headers, preload_content=False)
        if response.status != http.client.OK:
            raise QueryError(response.data.decode(errors="replace"))
        return response


@asynccontextmanager
async def open_asyncpg(server: PostgresServer) -> AsyncIterator[asyncpg.Connection[Any]]:
    """An asyncpg connection, in autocommit as asyncpg always is outside a transaction."""
    import asyncpg

    connection = await asyncpg.connect(server.dsn(), timeout=30)
    try:
        yield connection
    finally:
        connection.terminate() if connection.is_closed() else await connection.close(timeout=30)


@asynccontextmanager
async def open_asyncpg_pair(
    server: PostgresServer,
) -> AsyncIterator[tuple[asyncpg.Connection[Any], asyncpg.Connection[Any]]]:
    """Two asyncpg connections."""
    async with open_asyncpg(server) as first, open_asyncpg(server) as second:
        yield first, second


@contextmanager
def open_psycopg(server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """A psycopg connection in autocommit, so that a technique's last statement is its commit."""
    import psycopg

    with psycopg.connect(server.dsn(), autocommit=True, connect_timeout=30) as connection:
        yield connection


@contextmanager
def open_psycopg_pair(server: PostgresServer) -> Iterator[tuple[psycopg.Connection[Any], psycopg.Connection[Any]]]:
    """Two psycopg connections in autocommit."""
    with open_psycopg(server) as first, open_psycopg(server) as second:
        yield first, second


@contextmanager
def open_psycopg_plain(server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """A psycopg connection whose socket holds what the server sends; raises UnavailableError where it is encrypted."""
    with open_psycopg(server) as connection:
        if connection.pgconn.ssl_in_use:
            raise UnavailableError(
                "the connection is encrypted, and rows are read from its socket: add sslmode=disable to the address "
                "where the road to the server is private"
            )
        yield connection


@contextmanager
def open_psycopg_plain_pair(
    server: PostgresServer,
) -> Iterator[tuple[psycopg.Connection[Any], psycopg.Connection[Any]]]:
    """Two of them."""
    with open_psycopg_plain(server) as first, open_psycopg_plain(server) as second:
        yield first, second


@contextmanager
def open_adbc(server: PostgresServer) -> Iterator[adbc_driver_postgresql.dbapi.Connection]:
    """An ADBC connection, which begins a transaction with its first statement."""
    import adbc_driver_postgresql.dbapi

    with adbc_driver_postgresql.dbapi.connect(server.dsn()) as connection:
        yield connection


@contextmanager
def open_adbc_pair(
    server: PostgresServer,
) -> Iterator[tuple[adbc_driver_postgresql.dbapi.Connection, adbc_driver_postgresql.dbapi.Connection]]:
    """Two ADBC connections."""
    with open_adbc(server) as first, open_adbc(server) as second:
        yield first, second


@contextmanager
def open_psycopg_adbc(
    server: PostgresServer,
) -> Iterator[tuple[psycopg.Connection[Any], adbc_driver_postgresql.dbapi.Connection]]:
    """A connection of each: of psycopg for what is decoded here, of ADBC for the rest."""
    with open_psycopg(server) as connection, open_adbc(server) as adbc:
        yield connection, adbc


@contextmanager
def open_adbc_clickhouse(server: ClickHouseServer) -> Iterator[adbc_driver_manager.dbapi.Connection]:
    """A connection of ClickHouse's ADBC driver, already open; raises UnavailableError where that is not installed.

    No wheel has it; driver managers find it by its name.
    """
    import adbc_driver_manager.dbapi

    login = {
        "uri": f"{server.url}?database={quote(server.database, safe='')}",
        "username": server.user,
        "password": server.password,
    }
    try:
        # ClickHouse has no transactions: without autocommit there would only be a warning.
        connection = adbc_driver_manager.dbapi.connect("clickhouse", db_kwargs=login, autocommit=True)
    except adbc_driver_manager.ProgrammingError as error:
        if error.status_code != adbc_driver_manager.AdbcStatusCode.NOT_FOUND:
            raise
        raise UnavailableError(
            "ADBC's driver for ClickHouse is not installed: make tools builds it, in about two minutes, or "
            "dbc install clickhouse (https://docs.columnar.tech/dbc)"
        ) from None
    with connection:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.fetchall()
        yield connection


def adbc_settings(settings: Mapping[str, str | int]) -> dict[str, str]:
    """Settings of ClickHouse as options of a statement."""
    return {f"clickhouse.setting.{name}": str(value) for name, value in settings.items()}


@contextmanager
def open_address(server: PostgresServer) -> Iterator[str]:
    """The server's URL, for what opens its connections itself: there it is part of the technique."""
    yield server.dsn()


@contextmanager
def connected_duckdb(database: str | Path = ":memory:") -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB without the bar that it shows in notebooks where a query takes longer than two seconds."""
    import duckdb

    with duckdb.connect(database) as connection:
        connection.execute("SET enable_progress_bar = false")  # no option of `connect`: it is the session's
        yield connection


@contextmanager
def open_duckdb(server: PostgresServer) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB in memory with the server attached as `pg`, by the extension from the wheel that holds it."""
    import duckdb
    import duckdb_extension_postgres_scanner

    extension = next(
        Path(path) / "extensions" / f"v{duckdb.__version__}" / "postgres_scanner.duckdb_extension"
        for path in duckdb_extension_postgres_scanner.__path__
    )
    with connected_duckdb() as connection:
        connection.execute(f"LOAD {quote_postgres_text(str(extension))}")
        # DuckDB takes all text for UTF-8, and asks for no encoding by itself: it opens sessions as it needs them, and
        # only the address reaches all of them.
        server = replace(server, options=(*server.options, ("client_encoding", "utf8")))
        connection.execute(f"ATTACH {quote_postgres_text(server.dsn())} AS pg (TYPE postgres)")
        yield connection


@contextmanager
def _open_with_pg_parquet(server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """A psycopg connection to a server with pg_parquet; raises UnavailableError without it."""
    with open_psycopg(server) as connection:
        if connection.execute(PG_PARQUET_WORKS).fetchone() is None:
            raise UnavailableError(
                "this server does not have the extension pg_parquet: point FRAMEHAUL_POSTGRES_EXTENSIONS at a "
                "directory where it is built, use SERVERS=docker, or run CREATE EXTENSION pg_parquet on your own server"
            )
        yield connection


@contextmanager
def open_psycopg_parquet_stream(server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """A psycopg connection to a server with pg_parquet, without any files; raises UnavailableError without it."""
    with _open_with_pg_parquet(server) as connection:
        # pg_parquet 0.5.1 keeps the stream in a directory that COPY FROM STDIN expects and only COPY TO STDOUT makes.
        with connection.cursor() as cursor, cursor.copy("COPY (SELECT 1 AS one) TO STDOUT (FORMAT parquet)") as copy:
            list(copy)
        yield connection


@contextmanager
def open_psycopg_parquet(server: PostgresServer) -> Iterator[ParquetExchange]:
    """A psycopg connection to a server with pg_parquet; raises UnavailableError when it or its directory is missing."""
    with _open_with_pg_parquet(server) as connection:
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
def sqlalchemy_over(driver: str, connect: Callable[[], Any]) -> Iterator[sqlalchemy.Connection]:
    """A SQLAlchemy connection to PostgreSQL over what `connect` opens with this driver."""
    import sqlalchemy

    engine = sqlalchemy.create_engine(f"postgresql+{driver}://", creator=connect)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def open_sqlalchemy(server: PostgresServer) -> AbstractContextManager[sqlalchemy.Connection]:
    """A SQLAlchemy connection over psycopg."""
    import psycopg

    return sqlalchemy_over("psycopg", lambda: psycopg.connect(server.dsn()))


@contextmanager
def open_psycopg2(server: PostgresServer) -> Iterator[psycopg2.extensions.connection]:
    """A psycopg2 connection, which begins a transaction with its first statement."""
    import psycopg2

    with contextlib.closing(psycopg2.connect(server.dsn(), connect_timeout=30)) as connection:
        yield connection


def open_sqlalchemy_psycopg2(server: PostgresServer) -> AbstractContextManager[sqlalchemy.Connection]:
    """A SQLAlchemy connection over psycopg2."""
    import psycopg2

    return sqlalchemy_over("psycopg2", lambda: psycopg2.connect(server.dsn()))


@contextmanager
def open_clickhouse_driver(
    server: ClickHouseServer, settings: Mapping[str, bool] | None = None
) -> Iterator[clickhouse_driver.Client]:
    """A clickhouse-driver client over the native protocol, uncompressed as by default."""
    import clickhouse_driver

    client = clickhouse_driver.Client(
        host=server.host, port=server.native_port, user=server.user, password=server.password, settings=settings,
        database=server.database, secure=server.secure, send_receive_timeout=TIMEOUT_SECONDS,
        ca_certs=ssl.get_default_verify_paths().cafile,  # as all others, and not only whom certifi trusts
    )  # fmt: skip
    client.execute("SELECT 1")
    try:
        yield client
    finally:
        client.disconnect()


def open_clickhouse_driver_numpy(server: ClickHouseServer) -> AbstractContextManager[clickhouse_driver.Client]:
    """A clickhouse-driver client that makes arrays of numpy."""
    return open_clickhouse_driver(server, {"use_numpy": True})


def _clickhouse_engine(
    dialect: str, server: ClickHouseServer, port: int, query: Mapping[str, str]
) -> sqlalchemy.Engine:  # fmt: skip
    import sqlalchemy

    return sqlalchemy.create_engine(
        sqlalchemy.URL.create(dialect, server.user, server.password, server.host, port, server.database, query)
    )


@contextmanager
def _connected(engine: sqlalchemy.Engine) -> Iterator[sqlalchemy.Connection]:
    """A connection that is open, and the engine is gone with it."""
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1")
            yield connection
    finally:
        engine.dispose()


@contextmanager
def open_clickhouse_sqlalchemy(server: ClickHouseServer) -> Iterator[sqlalchemy.Connection]:
    """A SQLAlchemy connection over clickhouse-driver."""
    import clickhouse_sqlalchemy  # noqa: F401  it brings the dialect

    secure = {"secure": "True"} if server.secure else {}
    with _connected(_clickhouse_engine("clickhouse+native", server, server.native_port, secure)) as connection:
        native = connection.connection.dbapi_connection
        try:
            yield connection
        finally:
            native.transport.disconnect()  # type: ignore[union-attr]  # the dialect's own close does nothing


@contextmanager
def open_clickhouse_sqlalchemy_http(server: ClickHouseServer) -> Iterator[sqlalchemy.Connection]:
    """A SQLAlchemy connection over requests, by the dialect of clickhouse-sqlalchemy for HTTP."""
    import clickhouse_sqlalchemy  # noqa: F401  it brings the dialect

    trusted = ssl.get_default_verify_paths().cafile  # as all others, and not only whom certifi trusts
    secure = {"protocol": "https"} | ({"verify": trusted} if trusted else {}) if server.secure else {}
    with _connected(_clickhouse_engine("clickhouse+http", server, server.http_port, secure)) as connection:
        session = connection.connection.dbapi_connection
        try:
            yield connection
        finally:
            session.transport.http.close()  # type: ignore[union-attr]  # the dialect's own close does nothing


@contextmanager
def open_clickhouse_connect_sqlalchemy(server: ClickHouseServer) -> Iterator[sqlalchemy.Connection]:
    """A SQLAlchemy connection over clickhouse-connect, by its own dialect."""
    import clickhouse_connect  # noqa: F401  it brings the dialect

    with warnings.catch_warnings():
        # It says that clickhouse:// is the other dialect's: neither is asked for by that name.
        warnings.filterwarnings("ignore", "The 'clickhouse://' URL remains registered", UserWarning)
        secure = {"secure": "True"} if server.secure else {}
        # Its clients share one pool of connections, which outlives them all.
        query = secure | {"dedicated_pool": "True"}
        engine = _clickhouse_engine("clickhousedb", server, server.http_port, query)
    with _connected(engine) as connection:
        yield connection


@asynccontextmanager
async def open_asynch(server: ClickHouseServer) -> AsyncIterator[AsynchConnection]:
    """An asynch connection over the native protocol."""
    from asynch.proto.connection import Connection as AsynchConnection

    connection = AsynchConnection(  # type: ignore[no-untyped-call]  # its stub leaves __init__ untyped
        host=server.host, port=server.native_port, user=server.user, password=server.password,
        database=server.database, secure=server.secure, send_receive_timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    await connection.connect()
    try:
        yield connection
    finally:
        await connection.disconnect()


def _headers(server: ClickHouseServer) -> dict[str, str]:
    login = base64.b64encode(f"{server.user}:{server.password}".encode()).decode("ascii")
    return {"Authorization": f"Basic {login}", "Content-Type": "application/octet-stream"}


@contextmanager
def open_urllib(server: ClickHouseServer) -> Iterator[HttpEndpoint]:
    """The HTTP interface for urllib, which opens a connection per request: there it is part of the technique."""
    yield HttpEndpoint(server.url, server.database, _headers(server))


@contextmanager
def open_urllib3(server: ClickHouseServer) -> Iterator[UrlLib3Endpoint]:
    """A urllib3 pool with a connection already open."""
    import urllib3

    with urllib3.connection_from_url(server.url, timeout=TIMEOUT_SECONDS, maxsize=1) as pool:
        endpoint = UrlLib3Endpoint(pool, server.database, _headers(server))
        endpoint.post("SELECT 1").drain_conn()
        yield endpoint


@contextmanager
def open_http_client(server: ClickHouseServer) -> Iterator[HttpConnection]:
    """A connection of `http.client`, already open."""
    kind = http.client.HTTPSConnection if server.secure else http.client.HTTPConnection
    with contextlib.closing(kind(server.host, server.http_port, timeout=TIMEOUT_SECONDS)) as plain:
        plain.response_class = Answer
        connection = HttpConnection(plain, server.database, _headers(server))
        connection.post("SELECT 1").read()
        yield connection


@contextmanager
def open_http_client_pair(server: ClickHouseServer) -> Iterator[tuple[HttpConnection, HttpConnection]]:
    """Two connections of `http.client`."""
    with open_http_client(server) as first, open_http_client(server) as second:
        yield first, second


@asynccontextmanager
async def open_aiohttp(server: ClickHouseServer) -> AsyncIterator[aiohttp.ClientSession]:
    """An aiohttp session bound to the server, its database and its login, with a connection already open."""
    import aiohttp

    async with aiohttp.ClientSession(
        server.url, timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS), raise_for_status=_raise_query_error,
        # Else it asks for compression, which costs the server more than loopback saves.
        headers={**_headers(server), "X-ClickHouse-Database": server.database, "Accept-Encoding": "identity"},
    ) as session:  # fmt: skip
        async with session.post("/", params={"query": "SELECT 1"}) as response:
            await response.read()
        yield session


async def _raise_query_error(response: aiohttp.ClientResponse) -> None:
    if not response.ok:
        raise QueryError(await response.text(errors="replace"))


@contextmanager
def open_clickhouse_connect(
    server: ClickHouseServer, native_codec: str = "python"
) -> Iterator[ClickHouseConnectClient]:
    """A clickhouse-connect client, uncompressed, which on loopback is its fastest."""
    import clickhouse_connect

    client = clickhouse_connect.get_client(
        host=server.host, port=server.http_port, username=server.user, password=server.password,
        database=server.database, secure=server.secure, compress=False, native_codec=native_codec,
        send_receive_timeout=TIMEOUT_SECONDS, dedicated_pool=True,
    )  # fmt: skip
    with client:
        yield client


def open_clickhouse_connect_rust(server: ClickHouseServer) -> AbstractContextManager[ClickHouseConnectClient]:
    """A clickhouse-connect client that encodes and decodes Native blocks in Rust (`clickhouse-connect-core`)."""
    return open_clickhouse_connect(server, "rust_strict")


@dataclass(frozen=True)
class ChdbRemote:
    """A ClickHouse engine inside this process, and how it sees a server."""

    engine: chdb.state.sqlitelike.Connection
    server: ClickHouseServer

    def table(self, name: str) -> str:
        """A table of the server as the engine's table function, login included: for queries only, never for logs."""
        server = self.server
        function = "remoteSecure" if server.secure else "remote"
        arguments = f"{server.host}:{server.native_port}", server.database, name, server.user, server.password
        return f"{function}({', '.join(map(quote_clickhouse_text, arguments))})"

    def settings(self, chosen: Mapping[str, str | int]) -> str:
        """The end of a query that has these settings, which go to the server as well, and LZ4 on the way there."""
        compressed = {**chosen, "network_compression_method": "LZ4"}
        return "SETTINGS " + ", ".join(f"{name} = {value!r}" for name, value in compressed.items())


@contextmanager
def open_chdb(server: ClickHouseServer) -> Iterator[ChdbRemote]:
    """chDB in memory, which speaks the native protocol to the server; its connection there opens with the first query.

    One engine serves a process: a second one cannot be opened under other settings while the first lives.
    Raises UnavailableError where it is not installed: it is the one driver of half a gigabyte.
    """
    try:
        import chdb
    except ImportError:
        raise UnavailableError("chDB is not installed: pip install chdb-core") from None
    with contextlib.closing(chdb.connect(":memory:")) as engine:
        yield ChdbRemote(engine, server)


@contextmanager
def open_ibis_postgres(server: PostgresServer) -> Iterator[ibis.BaseBackend]:
    """Ibis over a psycopg connection; raises UnavailableError where it is not installed, which few need."""
    backend = ibis_backend("postgres")
    with open_psycopg(server) as connection:
        yield backend.from_connection(connection)


@contextmanager
def open_ibis_clickhouse(server: ClickHouseServer) -> Iterator[ibis.BaseBackend]:
    """Ibis over a clickhouse-connect client; raises UnavailableError where it is not installed."""
    backend = ibis_backend("clickhouse")
    with open_clickhouse_connect(server) as client:
        yield backend.from_connection(client)


def ibis_backend(name: str) -> Any:
    """A server's part of Ibis, which takes a second to import; raises UnavailableError where it is not installed."""
    try:
        import ibis

        return getattr(ibis, name)
    except (ImportError, AttributeError):
        needed = "ibis-framework[clickhouse,postgres]"
        raise UnavailableError(f"Ibis is not installed for this server: pip install '{needed}'") from None


def table_by_ibis(backend: ibis.BaseBackend, table: Table) -> ibis.Table:
    """A table as Ibis can make Arrow of it: of drivers' UUIDs it makes none, so the server gives them as text."""
    stored = backend.table(table.name)
    return stored.mutate(**{name: stored[name].cast("string") for name in table.columns_of(ColumnType.UUID)})


@asynccontextmanager
async def open_httpx(server: ClickHouseServer) -> AsyncIterator[httpx.AsyncClient]:
    """An httpx client bound to the server, its database and its login, with a connection already open."""
    import httpx

    async with httpx.AsyncClient(
        base_url=server.url, auth=(server.user, server.password), params={"database": server.database},
        timeout=TIMEOUT_SECONDS, trust_env=False, verify=server.secure,  # without TLS no certificates have to be read
    ) as client:  # fmt: skip
        (await client.post("/", params={"query": "SELECT 1"})).raise_for_status()
        yield client


async def awaited(returned: Any) -> Any:
    """What a function has returned, awaited where it is asynchronous."""
    return await returned if inspect.isawaitable(returned) else returned


@asynccontextmanager
async def entered[T](block: AbstractContextManager[T] | AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """A block of either kind as an asynchronous one."""
    if isinstance(block, AbstractAsyncContextManager):
        async with block as value:
            yield value
    else:
        with block as value:
            yield value


type Opener = Callable[[Any], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]

CLIENTS: dict[str, Opener] = {
    name.removeprefix("open_"): function for name, function in [*globals().items()] if name.startswith("open_")
}
"""How each kind of client is opened, by the name that a technique's record gives."""
