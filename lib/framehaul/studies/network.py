"""Network effects: techniques over networks with delay and limited rate, with TLS, and through PgBouncer."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pyarrow as pa

from framehaul.bench import measure, recording, statistics, store
from framehaul.bench.measure import PassOptions
from framehaul.bench.meter import Moved
from framehaul.bench.recording import Recording, recorded
from framehaul.bench.rounds import Ok, Pass, Rounds, Skipped, attempt, columns_of, describe, in_rounds, value_of
from framehaul.data import generator
from framehaul.data.frames import BATCH_ROWS, encode_stream, to_polars
from framehaul.data.schema import ANALYTICS_METRICS as TABLE
from framehaul.data.schema import Table
from framehaul.errors import UnavailableError, WrongResultError
from framehaul.servers import PostgresServer, Server, Servers
from framehaul.servers.embedded import home_of_a_run
from framehaul.servers.relay import Link, Pooler, Relaying, certificate, fill, pooling, relaying
from framehaul.settings import Settings
from framehaul.studies.registry import NETWORK
from framehaul.techniques import Technique, techniques
from framehaul.techniques.beyond.clickhouse_read import ARROW_DICTIONARY, read_arrow
from framehaul.techniques.beyond.clickhouse_write import INSERT
from framehaul.techniques.clients import HttpConnection
from framehaul.techniques.prepare import prepare
from framehaul.techniques.registry import DATABASES, Database, Direction, named

LOOPBACK, NEAR, SLOW = Link(statistics.LOOPBACK), Link("1 Gbit/s, 1 ms", 1, 1000), Link("100 Mbit/s, 10 ms", 10, 100)
LINKS = LOOPBACK, NEAR, Link("1 Gbit/s, 10 ms", 10, 1000), SLOW
"""The networks within a machine, an availability zone and a region, and from an office; times are round trips."""

COMPARED: dict[tuple[Database, Direction], tuple[str, str, str]] = {
    ("postgres", "write"): ("asyncpg_copy_binary", "pgpq_presorted", "pgpq_presorted_two_connections"),
    ("postgres", "read"): ("psycopg_copy_text", "asyncpg_copy_decoded", "psycopg_copy_decoded_two_connections"),
    ("clickhouse", "write"): ("urllib_parquet", "http_client_arrow_stream", "http_client_native_presorted"),
    ("clickhouse", "read"): ("urllib_csv", "http_client_arrow_dictionary", "http_client_native_decoded"),
}
"""For each direction, the best published technique of Polars and two fast ones; all writes append.

The fast ones of PostgreSQL use one and two connections. Those of ClickHouse use Arrow, which a codec can compress, and
Native.
"""
CODEC = "zstd"
WITH_CODEC = {"write": "polars_http_client_arrow_stream", "read": "polars_http_client_arrow_dictionary"}
"""The ClickHouse technique of each direction that is measured with `CODEC` as well."""
CALLS, REUSED_ROWS = 7, 700
"""The number of calls over one PgBouncer connection, and their rows.

psycopg prepares a query at its sixth execution, asyncpg prepares every query.
https://www.psycopg.org/psycopg3/docs/advanced/prepare.html
"""
EXTERNAL = "this study shapes the network of servers that framehaul starts; with SERVERS=external it is skipped"


@dataclass(frozen=True)
class Task:
    """A technique on a network, with or without a codec, TLS and PgBouncer."""

    database: Database
    direction: Direction
    technique: str
    codec: str
    network: str
    encryption: Literal["none", "tls"] = "none"
    via: Literal["direct", "pgbouncer"] = "direct"

    @property
    def measured(self) -> Technique:
        """The technique, with its codec."""
        plain = named(self.database, self.direction, self.technique)
        return plain if self.codec == "none" else with_codec(plain)

    @property
    def text(self) -> str:
        """The task in words, which identifies its rows."""
        names = {"none": "", "direct": "", "tls": "TLS", "pgbouncer": "PgBouncer"}
        parts = self.technique, self.codec, self.network, self.encryption, self.via
        path = f"{DATABASES[self.database]} {self.direction}"
        return ", ".join(filter(None, (path, *(names.get(part, part) for part in parts))))


def with_codec(technique: Technique) -> Technique:
    """Return a technique that moves Arrow streams between Polars and ClickHouse, with compressed buffers."""

    def write(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> None:
        query = f"{table.clickhouse_insert} FORMAT ArrowStream"
        content, options = prepare(frame, table, "clickhouse"), pa.ipc.IpcWriteOptions(compression=CODEC)
        batches = content.to_batches(max_chunksize=BATCH_ROWS)
        connection.post(query, body=encode_stream(content.schema, batches, options), settings=INSERT).read()

    def read(connection: HttpConnection, table: Table) -> pl.DataFrame:
        query = f"{table.clickhouse_select_as_in_frames} FORMAT ArrowStream"
        compressed = ARROW_DICTIONARY | {"output_format_arrow_compression_method": CODEC}
        return to_polars(read_arrow(connection.post(query, settings=compressed)), table)

    function = write if technique.direction == "write" else read
    function.__name__ = technique.name
    return replace(technique, function=function, label=f"{technique.label}, {CODEC}")


def tasks() -> list[Task]:
    """Return the tasks that are measured in rounds; with TLS, clients verify authority and host."""
    planned = []
    for path, names in COMPARED.items():
        for name in (f"polars_{short}" for short in names):
            codecs = ["none", CODEC] if name == WITH_CODEC[path[1]] else ["none"]
            planned += [Task(*path, name, codec, link.name) for codec in codecs for link in LINKS]
            planned += [Task(*path, name, codec, link.name, "tls") for codec in codecs for link in (NEAR, SLOW)]
    return [*planned, Task("clickhouse", "write", "polars_http_client_parquet_zstd", "none", SLOW.name, "tls")]


def pooled() -> list[Task]:
    """Return the tasks through PgBouncer: the first Polars technique of each direction, driver, family, connections.

    Techniques that need an empty table cannot be called twice over a connection. They are left out, as are techniques
    that use pg_parquet.
    """
    chosen: dict[tuple[str, ...], Task] = {}
    for one in techniques("postgres"):
        usual = one.origin in ("published", "beyond") and not {"pg_parquet", "empty_table"} & {*one.requires}
        if usual and one.frame == "polars":
            task = Task("postgres", one.direction, one.name, "none", LOOPBACK.name, via="pgbouncer")
            chosen.setdefault((one.direction, one.driver, one.family, str(one.connections)), task)
    return [*chosen.values()]


@dataclass(frozen=True, kw_only=True)
class Result(store.Result):
    """A pass of a technique over a network; a missing number is None, never 0."""

    codec: str
    network: str
    encryption: str
    via: str
    task: str
    """`Task.text`"""


def placed(directory: Path) -> pl.DataFrame:
    """Return the passes of a results directory with the columns of `statistics.PLACE`: network and codec."""
    tls = pl.when(encryption="tls").then(pl.lit(", TLS")).otherwise(pl.lit(""))
    pooler = pl.when(via="pgbouncer").then(pl.lit(", PgBouncer")).otherwise(pl.lit(""))
    return store.read(directory / NETWORK.results, Result).with_columns(
        road=pl.concat_str("network", tls, pooler),
        variant=pl.col("codec").replace("none", ""),
        label=pl.col("label").str.strip_suffix(pl.concat_str(pl.lit(", "), "codec")),
    )


@recorded(NETWORK, Result)
def run(this_run: Recording, *, rows: int, rounds: int, warmup: int, seed: int) -> None:
    """Measure every task; warm-ups run over loopback only, because their effect does not depend on the network."""
    both = this_run.servers()

    def row(task: Task, number: int, outcome: Pass[dict[str, Any]]) -> Result:
        plain = recording.result(this_run.run_id, NETWORK.notebook, task.measured, rows, number, Skipped(""))
        return Result(**vars(plain) | vars(task) | columns_of(outcome), task=task.text)

    log = this_run.log(row, lambda task: task.text)
    if both.mode == "external":
        external: Pass[dict[str, Any]] = Skipped(EXTERNAL)
        in_rounds(tasks(), Rounds(rounds), lambda *_: value_of(external), log)
        return
    proxies = this_run.entered(opened(this_run.settings, both))
    this_run.metadata["pgbouncer"] = proxies.pooler.values.version if isinstance(proxies.pooler, Ok) else None
    make_pass = this_run.entered(measuring(proxies, rows, seed))
    for planned, part in ((tasks(), Rounds(rounds, warmup, seed)), (pooled(), Rounds(1))):
        in_rounds(planned, part, make_pass, log)


@dataclass
class Proxies:
    """The servers, and the relays and PgBouncer in front of them."""

    both: Servers
    network: Relaying
    tls: Relaying
    authority: Path
    pooler: Pass[Pooler]

    def server(self, task: Task) -> Server:
        """Return the server with the address that a task connects to; raises UnavailableError without PgBouncer."""
        if task.via == "pgbouncer":
            return value_of(self.pooler).server
        server, encrypted = self.both.of(task.database), task.encryption == "tls"
        port = server.port if isinstance(server, PostgresServer) else server.http_port
        port = self.tls.ports[port] if encrypted else port
        port = port if task.network == LOOPBACK.name else self.network.ports[port]
        if isinstance(server, PostgresServer):
            verified = {"sslmode": "verify-full", "sslrootcert": str(self.authority)} if encrypted else {}
            return replace(server, port=port, options=(*server.options, *verified.items()))
        return replace(server, http_port=port, secure=server.secure or encrypted)


@contextmanager
def opened(settings: Settings, both: Servers) -> Iterator[Proxies]:
    """Run the network relay, the TLS relay and PgBouncer in front of the servers while the block lasts."""
    ports = [both.postgres.port, both.clickhouse.http_port]
    with ExitStack() as stack:
        authority = certificate(stack.enter_context(home_of_a_run(settings.state_dir, "network")))
        tls = stack.enter_context(relaying(*ports, authority=authority, postgres=both.postgres.port))
        network = stack.enter_context(relaying(*ports, *tls.ports.values()))
        # OpenSSL reads authorities from this file only.
        before = {name: value for name, value in os.environ.items() if name == "SSL_CERT_FILE"}
        os.environ["SSL_CERT_FILE"] = str(authority)
        stack.callback(os.environ.update, before)
        stack.callback(os.environ.pop, "SSL_CERT_FILE")
        pooler = attempt(lambda: stack.enter_context(pooling(both.postgres)))
        yield Proxies(both, network, tls, authority, pooler)


@contextmanager
def measuring(proxies: Proxies, rows: int, seed: int) -> Iterator[Callable[[Task, int], dict[str, Any]]]:
    """Keep tables to write and to read on both servers while the block lasts, and yield a function that makes a pass.

    It verifies the pass and returns the measured columns of its row. It raises UnavailableError, with the driver's
    error, for a technique that does not work through PgBouncer. Only one thread may use it.
    """
    content, every = generator.arrow_table(TABLE, rows, seed), [task.measured for task in (*tasks(), *pooled())]
    names = {"write": TABLE, "read": TABLE.renamed(f"{TABLE.name}_read")}
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        passes_of = {
            path: stack.enter_context(measure.Passes(
                proxies.both.of(path[0]), names[path[1]], content, [one for one in every if one.key[:2] == path]
            ))
            for path in COMPARED
        }  # fmt: skip

        def one_pass(passes: measure.Passes, task: Task) -> Moved:
            return runner.run(passes.one(task.measured, 1, proxies.server(task)))

        def make_pass(task: Task, number: int) -> dict[str, Any]:
            if number < 1 and task.network != LOOPBACK.name:
                return {}
            proxies.network.use(next(link for link in LINKS if link.name == task.network))
            fails = "does not work through PgBouncer in transaction mode"
            try:
                moved = one_pass(passes_of[task.database, task.direction], task)
                fails = f"works once, but {fails} when a connection is used again"
                if task.via == "pgbouncer":  # calls over one connection to it use several server connections
                    fill(value_of(proxies.pooler).server)
                    table, few = TABLE.renamed(f"{TABLE.name}_again"), content.slice(0, REUSED_ROWS)
                    options = [task.measured], PassOptions(calls=CALLS)
                    with measure.Passes(proxies.both.postgres, table, few, *options) as passes:
                        one_pass(passes, task)
            except Exception as error:
                if task.via == "direct" or isinstance(error, UnavailableError | WrongResultError):
                    raise
                raise UnavailableError(f"{fails}: {describe(error)}") from error
            speed = {"seconds": moved.seconds, "rows_per_s": rows / moved.seconds}
            return vars(moved.usage) | speed | {"dtypes": moved.dtypes}

        yield make_pass
