"""Techniques over networks, with TLS and through PgBouncer: what is measured, and that it is verified."""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import polars as pl
import psutil
import pytest

from framehaul.bench import measure, store
from framehaul.bench.rounds import attempt
from framehaul.bench.statistics import in_places
from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS
from framehaul.errors import UnavailableError
from framehaul.servers import Servers
from framehaul.servers.relay import Relay, pooling, relayed
from framehaul.settings import Settings
from framehaul.studies import network
from framehaul.studies.network import LINKS, LOOPBACK, Proxies, Task, placed
from framehaul.techniques import techniques
from framehaul.techniques.registry import Direction

NEAR = LINKS[1]
READ = Task("postgres", "read", "polars_asyncpg_copy_decoded", "none", NEAR.name)
WRITE = Task("clickhouse", "write", "polars_http_client_arrow_stream", "zstd", NEAR.name)
PGBOUNCER = pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="the package pgbouncer is not installed")


@pytest.fixture(scope="module")
def proxies(settings: Settings, servers: Servers) -> Iterator[Proxies]:
    with network.opened(settings, servers) as there:
        yield there


type MakePass = Callable[[Task, int], dict[str, Any]]


@pytest.fixture(scope="module")
def make_pass(proxies: Proxies) -> Iterator[MakePass]:
    with network.measuring(proxies, 300, 1) as there:
        yield there


@pytest.mark.parametrize(
    "task", [READ, WRITE, replace(WRITE, codec="none"), replace(READ, encryption="tls"),
             replace(WRITE, codec="none", encryption="tls"), replace(WRITE, network=LOOPBACK.name, encryption="tls")],
)  # fmt: skip
def test_what_came_is_what_was_sent_over_the_network(make_pass: MakePass, task: Task) -> None:
    values = make_pass(task, 1)
    assert values["dtypes"] == "exact"
    assert values["rows_per_s"] == pytest.approx(300 / values["seconds"])
    assert task.network == LOOPBACK.name or values["seconds"] >= NEAR.rtt_ms / 1e3


@pytest.mark.parametrize("direction", ["write", "read"])
def test_the_codec_compresses(servers: Servers, direction: Direction) -> None:
    table, content = ANALYTICS_METRICS.renamed("framehaul_codec"), generator.arrow_table(ANALYTICS_METRICS, 3000, 1)
    name, sizes = network.WITH_CODEC[direction], []
    chosen = [Task("clickhouse", direction, name, codec, LOOPBACK.name).measured for codec in ("none", network.CODEC)]
    with measure.Passes(servers.clickhouse, table, content, chosen) as passes:
        for technique in chosen:
            with relayed(servers.clickhouse, Relay) as (through, relay):
                asyncio.run(passes.one(technique, 1, through))
            assert relay is not None
            sizes.append(relay.total_bytes)
    assert sizes[1] < 0.8 * sizes[0]


def test_clients_over_tls_trust_the_authority_of_the_run_alone(proxies: Proxies) -> None:
    postgres, clickhouse = (vars(proxies.server(replace(task, encryption="tls"))) for task in (READ, WRITE))
    assert dict(postgres["options"]) == {"sslmode": "verify-full", "sslrootcert": str(proxies.authority)}
    assert clickhouse["secure"]


@PGBOUNCER
def test_what_is_prepared_in_one_transaction_is_not_there_in_the_next(make_pass: MakePass) -> None:
    pooled = Task("postgres", "read", "polars_connectorx_read", "none", LOOPBACK.name, via="pgbouncer")
    with pytest.raises(UnavailableError, match=r"does not work through PgBouncer.*prepared statement"):
        make_pass(pooled, 1)
    for name in ("polars_psycopg_copy_text", "polars_psycopg_copy_decoded"):
        assert make_pass(replace(pooled, technique=name), 1)["rows_per_s"] > 0
    # Without a pool that forgets, some would find a statement of their name, prepared by others.
    for name in ("polars_asyncpg_row_fetch", "polars_psycopg_row_fetch"):
        with pytest.raises(UnavailableError, match=r"works once, but does not .* used again.*prepared statement"):
            make_pass(replace(pooled, technique=name), 1)


@PGBOUNCER
def test_pgbouncer_ends_with_the_block(servers: Servers) -> None:
    before = {*psutil.pids()}
    with pooling(servers.postgres):
        named = [one for one in psutil.process_iter(["name"]) if one.info["name"] == "pgbouncer"]  # or it is gone
        (process,) = [one for one in named if one.pid not in before]
        assert process.uids().real != 0
    assert not process.is_running()


def test_without_pgbouncer_the_passes_that_need_it_say_what_to_install(
    proxies: Proxies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    missing = attempt(lambda: pooling(proxies.both.postgres).__enter__())
    with pytest.raises(UnavailableError, match="install the package pgbouncer"):
        replace(proxies, pooler=missing).server(replace(READ, via="pgbouncer"))


def test_every_task_is_of_a_technique_and_there_is_one_of_each_kind() -> None:
    planned = network.tasks() + network.pooled()
    assert len(planned) == len(set(planned)) == len({task.text for task in planned})
    assert {(task.database, task.direction, task.technique) for task in planned} <= {one.key for one in techniques()}
    ways = {("none", "direct"), ("tls", "direct"), ("none", "pgbouncer")}
    assert {(task.encryption, task.via) for task in planned} == ways
    kinds = {task.measured.contract.kind for task in planned if task.measured.contract}
    assert kinds == {"append"}  # bulk loads do not compare with them, nor can they be called again


def test_on_the_results_page_codecs_are_variants_where_they_were_asked_for() -> None:
    passes = placed(store.RUN)
    compressed = passes.filter(pl.col("variant") != "")
    assert {*compressed["technique"]} == {*network.WITH_CODEC.values()}
    assert {*compressed["variant"]} == {network.CODEC}
    of_both = passes.filter(pl.col("technique").is_in([*network.WITH_CODEC.values()]))
    assert not of_both.filter(pl.col("label").str.contains(network.CODEC)).height
    # The published technique, whose files have a codec of their own, is there to be compared with.
    found = in_places(passes, sizes=True).filter(variant="", status="ok", database="clickhouse", direction="write")
    alone = found.filter(road="loopback")
    assert alone["ratio"].null_count() == 0
    assert alone.filter(origin="published")["ratio"].to_list() == [1.0]
