"""Open the clients that techniques take; opening is not on the clock.

Each opener imports its driver, because importing all drivers takes half a second and most processes open one client.
"""

from __future__ import annotations

import base64
import contextlib
import inspect
import secrets
import select
import ssl
import warnings
from collections.abc import AsyncIterator, Buffer, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from http.client import OK, HTTPConnection, HTTPResponse, HTTPSConnection, IncompleteRead
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode
from urllib.request import Request

from framehaul.data.schema import Table, quote_clickhouse_text, quote_postgres, quote_postgres_text
from framehaul.errors import UnavailableError
from framehaul.servers import TIMEOUT_SECONDS, ClickHouseServer, PostgresServer

if TYPE_CHECKING:
    import adbc_driver_postgresql.dbapi
    import chdb
    import duckdb
    import httpx
    import psycopg
    import sqlalchemy
    from clickhouse_connect.driver.client import Client as ConnectClient

type Settings = Mapping[str, str | int]
"""Settings of ClickHouse by name."""
type Body = bytes | Iterator[Buffer]
type RequestMaker = Callable[..., Request]
type SyncOpener = Callable[[Any], AbstractContextManager[Any]]

# The extension is created, and preloaded if this user may read the setting: https://github.com/CrunchyData/pg_parquet
PG_PARQUET_WORKS = """
SELECT 1 FROM pg_extension WHERE extname = 'pg_parquet' AND NOT EXISTS (
    SELECT 1 FROM pg_settings WHERE name = 'shared_preload_libraries' AND setting NOT LIKE '%pg_parquet%'
)
"""

# Text has the session's encoding, also in binary COPY, and a role, a database or a pooler may have set another one.
# The setting lasts until the end of the transaction, which the caller may have begun.
# https://www.postgresql.org/docs/18/multibyte.html#MULTIBYTE-AUTOMATIC-CONVERSION
UTF8 = "SET LOCAL client_encoding = 'UTF8'"

CERTIFICATES = ssl.get_default_verify_paths().cafile
"""The system's certificates, for drivers that by default trust certifi's alone."""


@contextmanager
def in_utf8(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Run statements in UTF-8, which is a transaction unless the session is idle and in UTF-8 already."""
    is_alone = connection.autocommit and connection.info.transaction_status.name == "IDLE"
    if is_alone and connection.info.parameter_status("client_encoding") == "UTF8":
        yield
        return
    with connection.transaction():
        connection.execute(UTF8)
        yield


def attached_name(connection: duckdb.DuckDBPyConnection, table: Table) -> str:
    """Return the name of a table in the attached `pg`, with the schema in which its sessions find it.

    DuckDB itself looks in `public`. Raises ValueError when the sessions are not in UTF-8, which DuckDB expects, and for
    names of columns that differ in case alone: DuckDB reads the first of them in place of the others.
    """
    lower = [name.lower() for name in table.column_names]
    if alike := ", ".join(name for name in table.column_names if lower.count(name.lower()) > 1):
        raise ValueError(f"columns {alike} differ in case alone, and DuckDB takes them for one: use ADBC or COPY")
    query = (
        f"SELECT current_setting('client_encoding'), (SELECT relnamespace::regnamespace::text FROM pg_class "
        f"WHERE oid = to_regclass({quote_postgres_text(table.postgres_name)}))"
    )
    ((encoding, schema),) = connection.execute(f"FROM postgres_query('pg', {quote_postgres_text(query)})").fetchall()
    if encoding != "UTF8":
        raise ValueError(f"text would come as {encoding}: attach PostgreSQL with client_encoding=utf8 in its address")
    is_found = schema and not table.reference
    return f"pg.{schema}.{quote_postgres(table.name)}" if is_found else f"pg.{table.postgres_name}"


@dataclass(frozen=True)
class ParquetExchange:
    """A psycopg connection, and the paths of a directory that client and server share."""

    connection: psycopg.Connection[Any]
    on_client: Path
    on_server: str

    def new_file(self) -> tuple[Path, str]:
        """Return the path of a new file with an unguessable name, as the client and as the server see it."""
        name = f"framehaul-{secrets.token_hex(16)}.parquet"
        return self.on_client / name, f"{self.on_server}/{name}"


class QueryError(RuntimeError):
    """An error that ClickHouse returned for a query, with the server's message."""


def in_chunks(parts: Iterable[Buffer]) -> Iterator[Buffer]:
    """Yield the parts of a body in chunked transfer encoding, without the copy that `http.client` makes."""
    # https://www.rfc-editor.org/rfc/rfc9112#section-7.1
    for part in parts:
        chunk = memoryview(part).cast("B")
        if len(chunk):
            yield b"%x\r\n" % len(chunk)
            yield chunk
            yield b"\r\n"
    yield b"0\r\n\r\n"


class OwnedResponse(HTTPResponse):
    """A response that closes its connection if it is closed before its end, which would precede the next response.

    Reading it after that, or past a body that ends before its length, raises IncompleteRead.
    """

    connection: HTTPConnection | None = None
    is_cut_off = False

    def close(self) -> None:
        """Close the response, and the connection if there is more to read."""
        self.is_cut_off = self.is_cut_off or getattr(self, "fp", None) is not None
        super().close()
        if self.is_cut_off and self.connection:
            self.connection.close()

    def read(self, size: int | None = None) -> bytes:
        """Return at most `size` bytes, or all that are left."""
        return self._whole(super().read(size), size)

    def readinto(self, buffer: Buffer) -> int:
        """Read bytes into a buffer and return their number."""
        view = memoryview(buffer)
        return self._whole(super().readinto(view), len(view))

    def _whole[T](self, received: T, wanted: int | None) -> T:
        if not received and wanted != 0 and (self.is_cut_off or self.length):
            raise IncompleteRead(b"", self.length)
        return received


@dataclass
class HttpConnection:
    """ClickHouse's HTTP interface over one persistent connection of the standard library's `http.client`."""

    connection: HTTPConnection
    database: str
    headers: dict[str, str]

    def post(self, query: str, *, body: Body = b"", settings: Settings | None = None) -> HTTPResponse:
        """Run `query` with `body` as its data; the parts of an iterator are sent as chunks.

        A query opens another connection when the last response was not read to its end, a body was sent in part, or
        the server has closed the connection. Raises QueryError, and the errors of the iterator.
        """
        parameters = urlencode({"database": self.database, "query": query, **(settings or {})})
        headers, content = self.headers, body
        if not isinstance(body, bytes):
            # The first chunk is made before the request starts, because the server waits 30 seconds for data:
            # https://clickhouse.com/docs/operations/settings/settings#http_receive_timeout
            chunks = in_chunks(body)
            content, headers = chain([*islice(chunks, 1)], chunks), {**headers, "Transfer-Encoding": "chunked"}
        # ClickHouse closes an idle connection after 30 seconds; `http.client` does not check whether it did:
        # https://clickhouse.com/docs/operations/server-configuration-parameters/settings#keep_alive_timeout
        if self.connection.sock:
            ready = select.poll()
            ready.register(self.connection.sock, select.POLLIN)
            if ready.poll(0):
                self.connection.close()
        try:
            # A server that rejects a body closes the connection during sending; its response has the reason.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.connection.request("POST", f"/?{parameters}", content, headers)
            response = self.connection.getresponse()
        except BaseException:
            self.connection.close()
            raise
        assert isinstance(response, OwnedResponse)
        response.connection = self.connection
        # With send_progress_in_http_headers the status comes before the query's error.
        if response.status != OK or response.headers["X-ClickHouse-Exception-Code"]:
            raise QueryError(response.read().decode(errors="replace"))
        return response


type HttpPair = tuple[HttpConnection, HttpConnection]


@asynccontextmanager
async def open_asyncpg(server: PostgresServer) -> AsyncIterator[Any]:
    """Open an asyncpg connection, which is in autocommit outside a transaction."""
    import asyncpg

    connection = await asyncpg.connect(server.dsn(), timeout=30)
    try:
        yield connection
    finally:
        connection.terminate() if connection.is_closed() else await connection.close(timeout=30)


def open_psycopg(server: PostgresServer) -> psycopg.Connection[Any]:
    """Open a psycopg connection in autocommit, so that a technique's last statement is its commit."""
    import psycopg

    return psycopg.connect(server.dsn(), autocommit=True, connect_timeout=30)


@contextmanager
def open_psycopg_plain(server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """Open a psycopg connection without TLS, to read rows from its socket; raise UnavailableError for one with TLS."""
    with open_psycopg(server) as connection:
        if connection.pgconn.ssl_in_use:
            remedy = "add sslmode=disable to the address if the network to the server is private"
            raise UnavailableError(f"the connection is encrypted, and rows are read from its socket: {remedy}")
        yield connection


def open_adbc(server: PostgresServer) -> adbc_driver_postgresql.dbapi.Connection:
    """Open an ADBC connection, which begins a transaction with its first statement."""
    import adbc_driver_postgresql.dbapi

    return adbc_driver_postgresql.dbapi.connect(server.dsn())


def open_address(server: PostgresServer) -> AbstractContextManager[str]:
    """Return the server's URL, for drivers that connect within the technique."""
    return contextlib.nullcontext(server.dsn())


@contextmanager
def connected_duckdb(database: str | Path = ":memory:") -> Iterator[duckdb.DuckDBPyConnection]:
    """Open DuckDB without the progress bar that it shows in notebooks after two seconds."""
    import duckdb

    with duckdb.connect(database) as connection:
        connection.execute("SET enable_progress_bar = false")  # `connect` takes no settings of a session
        yield connection


@contextmanager
def open_duckdb(server: PostgresServer) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open DuckDB in memory with the server attached as `pg`, by the extension in its wheel."""
    import duckdb
    import duckdb_extension_postgres_scanner

    extensions = f"{duckdb_extension_postgres_scanner.__path__[0]}/extensions/v{duckdb.__version__}"
    with connected_duckdb() as connection:
        connection.execute(f"LOAD {quote_postgres_text(f'{extensions}/postgres_scanner.duckdb_extension')}")
        # DuckDB expects UTF-8 but does not request it. It opens sessions when it needs them, so the address sets it.
        server = replace(server, options=(*server.options, ("client_encoding", "utf8")))
        connection.execute(f"ATTACH {quote_postgres_text(server.dsn())} AS pg (TYPE postgres)")
        yield connection


@contextmanager
def _open_with_pg_parquet(server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """Open a psycopg connection to a server with pg_parquet; raise UnavailableError without it."""
    with open_psycopg(server) as connection:
        if connection.execute(PG_PARQUET_WORKS).fetchone() is None:
            remedy = "point FRAMEHAUL_POSTGRES_EXTENSIONS at a directory where it is built, use SERVERS=docker"
            own = "or run CREATE EXTENSION pg_parquet on your own server"
            raise UnavailableError(f"this server does not have the extension pg_parquet: {remedy}, {own}")
        yield connection


@contextmanager
def open_psycopg_parquet_stream(server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """Open a psycopg connection for Parquet over the connection itself; raise UnavailableError without pg_parquet."""
    with _open_with_pg_parquet(server) as connection:
        # pg_parquet 0.5.1 keeps the stream in a directory that COPY FROM STDIN expects and only COPY TO STDOUT makes.
        with connection.cursor() as cursor, cursor.copy("COPY (SELECT 1 AS one) TO STDOUT (FORMAT parquet)") as copy:
            list(copy)
        yield connection


@contextmanager
def open_psycopg_parquet(server: PostgresServer) -> Iterator[ParquetExchange]:
    """Open a psycopg connection for Parquet files; raise UnavailableError without pg_parquet or a shared directory."""
    with _open_with_pg_parquet(server) as connection:
        if server.exchange is None:
            remedy = "set FRAMEHAUL_EXCHANGE_DIR to a directory that this machine shares with it"
            raise UnavailableError(f"pg_parquet reads and writes files on the server: {remedy}")
        directory, on_server = Path(server.exchange[0]), server.exchange[1]
        try:
            yield ParquetExchange(connection, directory, on_server)
        finally:
            for file in directory.glob("framehaul-*.parquet"):
                file.unlink()


def _sqlalchemy(url: str | sqlalchemy.URL, **options: Any) -> sqlalchemy.Connection:
    """Return a SQLAlchemy connection that no pool keeps after it is closed."""
    import sqlalchemy

    return sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool, **options).connect()


def open_sqlalchemy(server: PostgresServer, driver: str = "psycopg") -> sqlalchemy.Connection:
    """Open a SQLAlchemy connection over psycopg or psycopg2, which takes the address as it is."""
    return _sqlalchemy(f"postgresql+{driver}://", creator=partial(import_module(driver).connect, server.dsn()))


open_sqlalchemy_psycopg2 = partial(open_sqlalchemy, driver="psycopg2")


def open_psycopg2(server: PostgresServer) -> contextlib.closing[Any]:
    """Open a psycopg2 connection, which begins a transaction with its first statement."""
    import psycopg2

    return contextlib.closing(psycopg2.connect(server.dsn(), connect_timeout=30))


def options_of(server: ClickHouseServer, port: int) -> dict[str, Any]:
    """Return the options that ClickHouse's drivers have in common."""
    options = {name: getattr(server, name) for name in ("host", "secure", "database", "user", "password")}
    return options | {"port": port, "send_receive_timeout": TIMEOUT_SECONDS}


@contextmanager
def open_clickhouse_driver(server: ClickHouseServer, *, use_numpy: bool = False) -> Iterator[Any]:
    """Open a clickhouse-driver client over the native protocol, by default without compression."""
    import clickhouse_driver

    options = options_of(server, server.native_port) | {"settings": {"use_numpy": use_numpy}, "ca_certs": CERTIFICATES}
    with clickhouse_driver.Client(**options) as client:
        client.execute("SELECT 1")
        yield client


open_clickhouse_driver_numpy = partial(open_clickhouse_driver, use_numpy=True)


def _sqlalchemy_clickhouse(dialect: str, server: ClickHouseServer, port: int, options: Any) -> sqlalchemy.Connection:
    """Return a SQLAlchemy connection by a dialect of ClickHouse, connected before the clock starts."""
    import sqlalchemy

    login = server.user, server.password, server.host, port, server.database
    connection = _sqlalchemy(sqlalchemy.URL.create(dialect, *login, options))
    connection.exec_driver_sql("SELECT 1")
    return connection


@contextmanager
def open_clickhouse_sqlalchemy(server: ClickHouseServer, protocol: str = "native") -> Iterator[sqlalchemy.Connection]:
    """Open a SQLAlchemy connection over clickhouse-driver, or with the protocol `http` over requests."""
    import clickhouse_sqlalchemy  # noqa: F401  it registers the dialects

    port, secure = server.native_port, {"secure": "True"}
    if protocol == "http":
        port, secure = server.http_port, {"protocol": "https"} | ({"verify": CERTIFICATES} if CERTIFICATES else {})
    with _sqlalchemy_clickhouse(f"clickhouse+{protocol}", server, port, secure if server.secure else {}) as connection:
        driver: Any = connection.connection.dbapi_connection
        transport = driver.transport if protocol == "native" else contextlib.closing(driver.transport.http)
        with transport:  # the dialect's own close does nothing
            yield connection


open_clickhouse_sqlalchemy_http = partial(open_clickhouse_sqlalchemy, protocol="http")


def open_clickhouse_connect_sqlalchemy(server: ClickHouseServer) -> sqlalchemy.Connection:
    """Open a SQLAlchemy connection over clickhouse-connect, by its own dialect."""
    import clickhouse_connect  # noqa: F401  it registers the dialect

    # By default its clients share one pool of connections, which outlives them.
    options = {"dedicated_pool": "True"} | ({"secure": "True"} if server.secure else {})
    with warnings.catch_warnings():
        # It warns that clickhouse:// is the other package's dialect, but this URL is clickhousedb://.
        warnings.filterwarnings("ignore", "The 'clickhouse://' URL remains registered", UserWarning)
        return _sqlalchemy_clickhouse("clickhousedb", server, server.http_port, options)


@asynccontextmanager
async def open_asynch(server: ClickHouseServer) -> AsyncIterator[Any]:
    """Open an asynch connection over the native protocol."""
    from asynch.proto.connection import Connection as AsynchConnection

    connection = AsynchConnection(**options_of(server, server.native_port))  # type: ignore[no-untyped-call]  # an untyped stub
    await connection.connect()
    try:
        yield connection
    finally:
        await connection.disconnect()


def _headers(server: ClickHouseServer) -> dict[str, str]:
    login = base64.b64encode(f"{server.user}:{server.password}".encode()).decode("ascii")
    return {"Authorization": f"Basic {login}", "Content-Type": "application/octet-stream"}


def open_urllib(server: ClickHouseServer) -> AbstractContextManager[RequestMaker]:
    """Return a maker of requests for urllib, which connects for each of them, within the technique."""

    def request(query: str, body: bytes = b"") -> Request:
        parameters = urlencode({"database": server.database, "query": query})
        return Request(f"{server.url}?{parameters}", data=body, headers=_headers(server), method="POST")

    return contextlib.nullcontext(request)


@contextmanager
def open_http_client(server: ClickHouseServer) -> Iterator[HttpConnection]:
    """Open a connection of `http.client`."""
    kind = HTTPSConnection if server.secure else HTTPConnection
    with contextlib.closing(kind(server.host, server.http_port, timeout=TIMEOUT_SECONDS)) as plain:
        plain.response_class = OwnedResponse
        connection = HttpConnection(plain, server.database, _headers(server))
        connection.post("SELECT 1").read()
        yield connection


def open_clickhouse_connect(server: ClickHouseServer, native_codec: str = "python") -> ConnectClient:
    """Open a clickhouse-connect client without compression, its fastest setting on loopback."""
    import clickhouse_connect

    options = {"compress": False, "native_codec": native_codec, "dedicated_pool": True}
    return clickhouse_connect.get_client(**(options_of(server, server.http_port) | options))


open_clickhouse_connect_rust = partial(open_clickhouse_connect, native_codec="rust_strict")
"""Open a client that encodes and decodes Native blocks in Rust (`clickhouse-connect-core`)."""


@dataclass(frozen=True)
class ChdbRemote:
    """A ClickHouse engine inside this process, and the server that its queries reach."""

    engine: chdb.state.sqlitelike.Connection
    server: ClickHouseServer

    def table(self, name: str) -> str:
        """Return the table function of a table on the server, which contains the login: do not log it."""
        server = self.server
        function = "remoteSecure" if server.secure else "remote"
        arguments = f"{server.host}:{server.native_port}", server.database, name, server.user, server.password
        return f"{function}({', '.join(map(quote_clickhouse_text, arguments))})"

    def settings(self, chosen: Settings) -> str:
        """Return a SETTINGS clause, which applies to engine and server, with LZ4 between them."""
        compressed = {**chosen, "network_compression_method": "LZ4"}
        return "SETTINGS " + ", ".join(f"{name} = {value!r}" for name, value in compressed.items())


@contextmanager
def open_chdb(server: ClickHouseServer) -> Iterator[ChdbRemote]:
    """Open chDB in memory, which connects to the server with its first query; raise UnavailableError without chDB."""
    # A process has one engine: a second engine with other settings cannot be opened before the first is closed.
    try:
        import chdb
    except ImportError:
        raise UnavailableError("chDB is not installed: pip install chdb-core") from None
    with contextlib.closing(chdb.connect(":memory:")) as engine:
        yield ChdbRemote(engine, server)


@contextmanager
def _ibis(name: str, opener: SyncOpener, server: Any) -> Iterator[Any]:
    """Open a backend of Ibis, which takes a second to import, over a client; raise UnavailableError without Ibis."""
    try:
        backend = getattr(import_module("ibis"), name)
    except (ImportError, AttributeError):
        remedy = "pip install 'ibis-framework[clickhouse,postgres]'"
        raise UnavailableError(f"Ibis is not installed for this server: {remedy}") from None
    with opener(server) as client:
        yield backend.from_connection(client)


open_ibis_postgres = partial(_ibis, "postgres", open_psycopg)
open_ibis_clickhouse = partial(_ibis, "clickhouse", open_clickhouse_connect)


@asynccontextmanager
async def open_httpx(server: ClickHouseServer) -> AsyncIterator[httpx.AsyncClient]:
    """Open an httpx client with the server's address, database and login, and its connection."""
    import httpx

    options: dict[str, Any] = {"base_url": server.url, "auth": (server.user, server.password)}
    options |= {"params": {"database": server.database}, "timeout": TIMEOUT_SECONDS, "trust_env": False}
    # Without TLS no certificates are read, which takes time.
    async with httpx.AsyncClient(**options, verify=server.secure) as client:
        (await client.post("/", params={"query": "SELECT 1"})).raise_for_status()
        yield client


async def awaited(returned: Any) -> Any:
    """Return the result of a function, awaited if the function is asynchronous."""
    return await returned if inspect.isawaitable(returned) else returned


@asynccontextmanager
async def entered[T](block: AbstractContextManager[T] | AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Enter a context manager of either kind as an asynchronous one."""
    async with contextlib.AsyncExitStack() as stack:
        if isinstance(block, AbstractAsyncContextManager):
            yield await stack.enter_async_context(block)
        else:
            yield stack.enter_context(block)


@contextmanager
def _both(first: SyncOpener, second: SyncOpener, server: Any) -> Iterator[tuple[Any, Any]]:
    """Open two clients."""
    with first(server) as one, second(server) as other:
        yield one, other


open_psycopg_pair = partial(_both, open_psycopg, open_psycopg)
open_psycopg_plain_pair = partial(_both, open_psycopg_plain, open_psycopg_plain)
open_http_client_pair = partial(_both, open_http_client, open_http_client)

CLIENTS: dict[str, Callable[[Any], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]] = {
    name.removeprefix("open_"): function for name, function in [*globals().items()] if name.startswith("open_")
}
"""The opener `open_<client>` of each client, by the client's name in a technique's record."""


def opened_now(client: str, server: Any) -> AbstractContextManager[Any]:
    """Open a client that is not asynchronous while the block lasts."""
    return cast("AbstractContextManager[Any]", CLIENTS[client](server))
