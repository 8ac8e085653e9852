"""ClickHouse over shards: two embedded servers, those of the compose file, or somebody's."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from framehaul.errors import ServerError, UnavailableError
from framehaul.servers import ClickHouseServer, docker
from framehaul.servers.address import parse_clickhouse_url
from framehaul.servers.clickhouse import USER, EmbeddedClickHouse
from framehaul.servers.ports import choose_port
from framehaul.servers.secret import password_in, write_private
from framehaul.servers.tables import ClickHouseTables
from framehaul.settings import Settings
from framehaul.studies.scale_out.clickhouse import CLUSTER

VARIABLE = "FRAMEHAUL_CLICKHOUSE_SHARDS_URLS"
SHARDS = 2
START = "COMPOSE_PROFILES=shards make servers SERVERS=docker"


@contextmanager
def running(settings: Settings) -> Iterator[tuple[ClickHouseServer, ...]]:
    """The shards, the first of which is asked; raises UnavailableError, with what to do, where there are none."""
    if settings.clickhouse_shards_urls:
        urls = settings.clickhouse_shards_urls.split(",")
        yield _checked(tuple(parse_clickhouse_url(url.strip(), None, VARIABLE) for url in urls), f"see {VARIABLE}")
    elif settings.servers == "embedded":
        with embedded_pair() as pair:
            yield pair
    elif settings.servers == "docker":
        yield _checked(docker.shards(settings), START)
    else:
        raise UnavailableError(
            f"set {VARIABLE} to the shards of a cluster that is named {CLUSTER} on its servers, as URLs with commas "
            f"between them; or use SERVERS=embedded, or {START}"
        )


def _checked(servers: tuple[ClickHouseServer, ...], remedy: str) -> tuple[ClickHouseServer, ...]:
    """The servers, when all of them answer and the first knows as many shards of the cluster."""
    try:
        for server in servers:
            ClickHouseTables(server).run("SELECT 1")
        known = int(
            ClickHouseTables(servers[0]).run(f"SELECT uniq(shard_num) FROM system.clusters WHERE cluster = '{CLUSTER}'")
        )
    except ServerError as error:
        raise UnavailableError(f"no shards of ClickHouse: {error}; {remedy}") from error
    if known != len(servers) or known < SHARDS:
        raise UnavailableError(
            f"the first server knows {known} shards of a cluster {CLUSTER}, and {len(servers)} were given; {remedy}"
        )
    return servers


@contextmanager
def embedded_pair() -> Iterator[tuple[ClickHouseServer, ...]]:
    """Two servers of their own in a directory of their own, for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="framehaul-shards-") as name, ExitStack() as stack:
        home = Path(name)
        ports = [(choose_port(None, ""), choose_port(None, "")) for _ in range(SHARDS)]
        password = password_in(home / "password")
        replicas = "".join(
            f"<shard><replica><host>127.0.0.1</host><port>{native}</port><user>{USER}</user>"
            f"<password>{password}</password></replica></shard>"
            for _, native in ports
        )
        cluster = f"\n  <remote_servers><{CLUSTER}>{replicas}</{CLUSTER}></remote_servers>"
        servers = []
        for number, (http, native) in enumerate(ports, 1):
            directory = home / f"shard{number}"
            (directory / "clickhouse").mkdir(mode=0o700, parents=True)
            write_private(directory / "clickhouse" / "password", password)
            shard = EmbeddedClickHouse(directory, http, native, more=cluster)
            stack.callback(shard.stop)
            servers.append(shard.start())
        yield tuple(servers)
