"""The servers of a run, the roads to them, and what those carry, measured."""

from __future__ import annotations

import os
import shlex
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, get_args

import psutil
import psycopg

from framehaul import servers
from framehaul.data.schema import quote_postgres_text
from framehaul.errors import UnavailableError
from framehaul.harness.environment import server_versions
from framehaul.harness.meter import cpu_s
from framehaul.servers import ClickHouseServer, PostgresServer, Servers, network, tls
from framehaul.servers.clickhouse import EmbeddedClickHouse
from framehaul.servers.embedded import home_of_a_run
from framehaul.servers.forwarder import Carried
from framehaul.servers.network import CLIENT, SERVER, Link, Network
from framehaul.servers.pgbouncer import Pooler, of_docker, pooling
from framehaul.servers.ports import choose_port
from framehaul.servers.postgres import FOR_TRANSFERS, EmbeddedPostgres
from framehaul.servers.slow_relay import Relayed, relayed_slowly
from framehaul.servers.tables import PostgresTables
from framehaul.settings import load_settings
from framehaul.studies.network import catalog
from framehaul.studies.network.catalog import Task
from framehaul.studies.network.wanted import AS_IT_IS, NAMESPACES, RELAY, Wanted
from framehaul.techniques.clients import open_http_client
from framehaul.techniques.registry import Database

LOOPBACK_ADDRESS = "127.0.0.1"
PINGS = 11
BULK_SECONDS = 0.5
"""How long a bulk transfer takes at the rate that was asked for, beside what TCP takes to find that."""
START_ROUND_TRIPS = 20
UNLIMITED_BYTES = 1 << 29
"""How much is transferred where no rate was asked for."""
HOW = {
    NAMESPACES: "two network namespaces, joined by TUN devices and a process that forwards packets late and at the "
    "rate; TCP goes from end to end, of the kernel",
    RELAY: "a relay in user space, for this system gives no network namespace: TCP ends there and begins anew",
    AS_IT_IS: "the road that is there",
}


@dataclass
class Roads:
    """Servers, and the networks to them; `found` is what is known of both."""

    both: Servers
    """As they are reached on their own side: outside the clock."""
    net: Network | Relayed | None
    links: dict[str, Link]
    found: dict[str, Any] = field(default_factory=dict)
    authority: Path | None = None
    """Of the certificates of servers, where those have any."""
    terminator: tls.Terminator | None = None
    pooler: Pooler | None = None
    without_tls: str = ""
    without_pooler: str = ""

    def server(self, task: Task) -> PostgresServer | ClickHouseServer:
        """The server as a task reaches it; raises UnavailableError where there is no such way."""
        if task.encryption == "tls" and self.without_tls:
            raise UnavailableError(self.without_tls)
        if task.via == "pgbouncer" and self.pooler is None:
            raise UnavailableError(self.without_pooler)
        server = self.both.of(task.database)
        if isinstance(server, PostgresServer) and task.via == "pgbouncer" and self.pooler is not None:
            server = replace(server, port=self.pooler.server.port)
        if task.encryption == "tls" and self.terminator is not None:
            http_port, native_port, postgres_port = self.terminator.ports
            if isinstance(server, PostgresServer):
                options = (("sslmode", "verify-full"), ("sslrootcert", str(self.authority)))
                server = replace(server, port=postgres_port, options=options)
            else:
                server = replace(server, http_port=http_port, native_port=native_port, secure=True)
        return server if self.net is None or self.links[task.network].loopback else self.net.far(server)

    def server_processes(self, task: Task) -> list[int | None]:
        """Whose CPU time is the server's in a task."""
        processes = [self.both.of(task.database).process_id]
        if task.via == "pgbouncer" and self.pooler is not None:
            processes.append(self.pooler.process_id)
        if task.encryption == "tls" and self.terminator is not None:
            processes.append(self.terminator.process_id)
        return processes

    @property
    def ports(self) -> list[int]:
        """All loopback ports at which servers are reached."""
        clickhouse = self.both.clickhouse
        pooled = [self.pooler.server.port] if self.pooler else []
        ended = self.terminator.ports if self.terminator else []
        return [self.both.postgres.port, clickhouse.http_port, clickhouse.native_port, *ended, *pooled]

    def on(self, link: Link) -> AbstractContextManager[None]:
        """What this thread opens in the block goes over this network."""
        if self.net is None or link.loopback:
            return nullcontext()
        self.net.use(link)
        return self.net.at_client()

    def carried(self) -> Carried:
        """What the network has carried so far."""
        return self.net.carried() if self.net is not None else Carried()

    def forwarder_cpu_s(self) -> float:
        """CPU seconds of what is in place of a network."""
        return cpu_s(psutil.Process(self.net.process_id)) if self.net is not None else 0.0


@contextmanager
def opened(wanted: Wanted) -> Iterator[Roads]:
    """The servers and the networks.

    Raises UnavailableError where there is no such road, ServerError without servers.
    """
    with ExitStack() as stack:
        links = {link.name: link for link in (*catalog.LINKS, catalog.AS_IT_IS) if link.name in wanted.links}
        if wanted.road == AS_IT_IS:
            both = stack.enter_context(servers.running(load_settings()))
            settings = load_settings()
            reason = "the server's own address says whether it is encrypted, and whether there is a pooler before it"
            roads = Roads(both, None, links, without_tls=reason, without_pooler=reason)
            if settings.servers == "docker":
                try:
                    roads.pooler = of_docker(settings)
                except UnavailableError as error:
                    roads.without_pooler = str(error)
            measured = {catalog.road_to(one): found for one in get_args(Database) if (found := _existing(both.of(one)))}
        else:
            net = stack.enter_context(network.opened()) if wanted.road == NAMESPACES else None
            port = stack.enter_context(network.sink())
            roads = stack.enter_context(_embedded(net, links))
            if net is None:
                roads.net = stack.enter_context(relayed_slowly(port, *roads.ports))
            measured = _measured(roads, port)
        roads.found = {
            "how": HOW[wanted.road], "links": measured, "servers": roads.both.mode,
            "server": {"version": "; ".join(server_versions(roads.both).values())},
            "pgbouncer": roads.pooler.version if roads.pooler else None,
        }  # fmt: skip
        if wanted.road == NAMESPACES:
            roads.found["congestion_control"] = network.congestion_control()
        yield roads


@contextmanager
def _embedded(net: Network | None, links: dict[str, Link]) -> Iterator[Roads]:
    """Servers of our own in this namespace, with TLS and PgBouncer where they can be had."""
    addresses = (LOOPBACK_ADDRESS, SERVER) if net else (LOOPBACK_ADDRESS,)
    with ExitStack() as stack:
        home = stack.enter_context(home_of_a_run(load_settings().state_dir, "network"))
        made, without_tls = None, ""
        try:
            made = tls.certificate(home, *addresses)
            # Where OpenSSL, and so Python, looks for authorities: clients in this process trust no other. Before the
            # first of them, for urllib keeps what it has found.
            os.environ["SSL_CERT_FILE"] = str(made.authority)
        except UnavailableError as error:
            without_tls = str(error)
        postgres = EmbeddedPostgres(
            home, choose_port(None, ""), configuration=FOR_TRANSFERS | {"listen_addresses": ", ".join(addresses)}
        )
        clickhouse = EmbeddedClickHouse(
            home, choose_port(None, ""), choose_port(None, ""),
            more=f"<listen_host>{SERVER}</listen_host>" if net else "", clients=(CLIENT,) if net else (),
        )  # fmt: skip
        for each in (postgres, clickhouse):
            stack.callback(each.stop)
        both = postgres.start(), clickhouse.start()
        # By the server, whose account alone writes there.
        append = quote_postgres_text(f"cat >> {shlex.quote(str(postgres.data / 'pg_hba.conf'))}")
        let_in = (
            f"COPY (SELECT 'host all all {CLIENT}/32 scram-sha-256') TO PROGRAM {append}", "SELECT pg_reload_conf()"
        )  # fmt: skip
        for statement in let_in if net else ():
            PostgresTables(both[0]).run(statement)
        roads = Roads(Servers(*both, "embedded"), net, links, without_tls=without_tls)
        if made is not None:
            postgres_server, clickhouse_server = both
            behind = clickhouse_server.http_port, clickhouse_server.native_port
            roads.authority = made.authority
            roads.terminator = stack.enter_context(tls.ended_before(made, *behind, postgres=(postgres_server.port,)))
        try:
            roads.pooler = stack.enter_context(pooling(postgres, both[0], home / "pgbouncer"))
        except UnavailableError as error:
            roads.without_pooler = str(error)
        yield roads


def _measured(roads: Roads, port: int) -> dict[str, dict[str, float]]:
    """RTT and rate of each network as a ping and a bulk transfer see them, and what the forwarder takes for that."""
    measured = {}
    for name, link in roads.links.items():
        seconds = BULK_SECONDS + START_ROUND_TRIPS * link.rtt_ms / 1e3
        total = int(link.mbit_per_s * 1e6 / 8 * seconds) or UNLIMITED_BYTES
        relay = roads.net if isinstance(roads.net, Relayed) and not link.loopback else None
        address = LOOPBACK_ADDRESS if link.loopback or relay else SERVER
        there = relay.port(port) if relay else port
        with roads.on(link):
            rtt_s = median(network.echo(address, there, PINGS) if relay else _pinged(address, there))
            before = roads.forwarder_cpu_s()
            bytes_per_s = network.bulk(address, there, total)
            used = roads.forwarder_cpu_s() - before
        measured[name] = {"rtt_ms": rtt_s * 1e3, "mbit_per_s": bytes_per_s * 8 / 1e6}
        if not link.loopback:
            measured[name]["forwarder_cpu_s_per_gb"] = used / total * 1e9
    return measured


def _pinged(address: str, port: int) -> list[float]:
    """Round trips of a ping; of a byte to a sink and back where this process may send none."""
    try:
        return network.ping(address, PINGS)
    except PermissionError:  # root without CAP_NET_RAW
        return network.echo(address, port, PINGS)


def _existing(server: PostgresServer | ClickHouseServer) -> dict[str, float]:
    """RTT and rate of the road to somebody's server: the least time to connect, and how fast text comes.

    Nothing of one that is reached over a Unix socket.
    """
    if isinstance(server, PostgresServer) and server.over_socket:
        return {}
    port = server.port if isinstance(server, PostgresServer) else server.http_port
    times = []
    for _ in range(PINGS):
        start = time.perf_counter()
        socket.create_connection((server.host, port), timeout=10).close()
        times.append(time.perf_counter() - start)
    total = 0
    with _texts(server) as text:
        start = time.perf_counter()
        while time.perf_counter() - start < BULK_SECONDS:
            total += text()
        seconds = time.perf_counter() - start
    return {"rtt_ms": min(times) * 1e3, "mbit_per_s": total * 8 / seconds / 1e6}


@contextmanager
def _texts(server: PostgresServer | ClickHouseServer) -> Iterator[Callable[[], int]]:
    """What reads 8 MB from a server, over one connection, and says how many bytes these were.

    Of hexadecimal digits, which come from the server's memory and take it little.
    """
    if isinstance(server, PostgresServer):
        copy = "COPY (SELECT repeat(md5('a'), 65536) FROM generate_series(1, 4)) TO STDOUT"
        with psycopg.connect(server.dsn(), autocommit=True, connect_timeout=30) as connection:

            def copied() -> int:
                with connection.cursor().copy(copy) as rows:
                    return sum(len(row) for row in rows)

            yield copied
    else:
        query = "SELECT repeat(lower(hex(MD5('a'))), 65536) FROM numbers(4) FORMAT RawBLOB"
        with open_http_client(server) as client:
            yield lambda: len(client.post(query).read())
