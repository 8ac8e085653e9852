"""Techniques over networks of our own: what is measured, that it is verified, and that nothing of it is left."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import polars as pl
import psutil
import pytest

from framehaul.errors import ServerError, UnavailableError, WrongResultError
from framehaul.results import committed, store
from framehaul.results.measured import in_places
from framehaul.servers import PostgresServer, Servers, pgbouncer
from framehaul.servers.embedded import home_of_a_run
from framehaul.servers.postgres import EmbeddedPostgres
from framehaul.servers.tables import PostgresTables
from framehaul.settings import Settings
from framehaul.studies.network import STUDY, catalog, process, report, study
from framehaul.studies.network.catalog import FEW, LOOPBACK, Task
from framehaul.studies.network.process import Inside
from framehaul.studies.network.queries import CALLS, QUERIES
from framehaul.studies.network.rows import Result, placed
from framehaul.studies.network.wanted import NAMESPACES, RELAY, Wanted
from framehaul.studies.summary.across_networks import best_across
from framehaul.techniques import techniques, upserts
from framehaul.techniques.registry import DATABASES, Direction
from tests.conftest import numbers_of
from tests.servers.test_network import in_namespace, namespace_of

NEAR = FEW[1]
READ = Task("postgres", "read", "polars_asyncpg_copy_decoded", "none", NEAR.name)
WRITE = Task("clickhouse", "write", "polars_http_client_arrow_stream", "zstd", NEAR.name)
WANTED = Wanted(300, 1, NAMESPACES, [LOOPBACK.name, NEAR.name], ["polars"], ["postgres", "clickhouse"])


@pytest.fixture(scope="module")
def state(open_dir: Path) -> Iterator[Path]:
    directory = open_dir / "network"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FRAMEHAUL_STATE_DIR", str(directory))
        yield directory
    assert not list(directory.glob("network-*"))


@pytest.fixture(scope="module")
def inside(state: Path) -> Iterator[Inside]:
    try:
        with process.started(WANTED) as there:
            yield there
    except UnavailableError as error:
        pytest.skip(str(error))


def test_passes_are_measured_over_what_was_asked_for(out: Path) -> None:
    passes = store.read(out / "results" / STUDY.results, Result)
    bad = passes.filter(pl.col("status") != "ok", via="direct")
    assert bad.is_empty() or not bad.filter(status="failed").height, bad["reason"].to_list()
    planned = {task.words for task in catalog.tasks("least", FEW[:2])}
    assert set(passes.select("task", "pass").rows()) == {(words, at) for words in planned for at in numbers_of(out)}
    near = passes.filter(network=NEAR.name, status="ok")
    assert near["rtt_ms"].min() >= NEAR.rtt_ms  # type: ignore[operator]
    assert near["mbit_per_s"].max() < 1.1 * NEAR.mbit_per_s  # type: ignore[operator]
    assert near["round_trips"].min() >= 1  # type: ignore[operator]
    assert near["forwarder_cpu_s"].null_count() == 0
    # No pass is faster than its round trips, one after another over each connection.
    waited = near["round_trips"] / near["connections"] * NEAR.rtt_ms / 1e3
    assert (near["seconds"] >= waited * 0.99).all()
    assert passes.filter(network=LOOPBACK.name)["wire_bytes"].is_null().all()
    assert set(passes["how"]) != {""}


def test_codecs_save_bytes(out: Path) -> None:
    passes = store.read(out / "results" / STUDY.results, Result)
    passes = passes.filter(network=NEAR.name, status="ok", database="clickhouse")
    wire = {(row["direction"], row["codec"]): row["wire_bytes"] for row in passes.filter(encryption="none").to_dicts()}
    for direction in ("read", "write"):
        assert wire[direction, "zstd"] < wire[direction, "none"]


def test_what_came_is_what_was_sent(inside: Inside, state: Path) -> None:
    for task in (READ, WRITE, replace(READ, encryption="tls"), replace(WRITE, network=LOOPBACK.name, encryption="tls")):
        values = inside.measure(task)
        assert values["rows_per_s"] == pytest.approx(300 / values["seconds"])
        assert values["dtypes"] == "exact"
    with pytest.raises(WrongResultError, match="polars_nothing"):  # there is no such technique: a pass that fails
        inside.measure(replace(READ, technique="polars_nothing"))
    assert inside.measure(READ)["round_trips"] >= 1  # and the process goes on
    assert list(state.glob("network-*"))


def test_a_pass_over_the_far_side_is_not_one_of_loopback(inside: Inside) -> None:
    far = inside.measure(replace(READ, technique="polars_connectorx_read"))
    assert far["wire_bytes"] > 300 * 100  # threads of its own, which connect from the client's side as well
    assert "wire_bytes" not in inside.measure(replace(READ, network=LOOPBACK.name))


def test_what_is_prepared_waits_once_more_and_anew_each_time_for_two_messages(inside: Inside) -> None:
    asked = {name: Task("postgres", "read", name, "none", NEAR.name) for name in QUERIES}
    waited = {name: inside.measure(task)["round_trips"] for name, task in asked.items()}
    assert waited["polars_psycopg_simple_query"] == waited["polars_psycopg_extended_query"] == CALLS
    assert waited["polars_psycopg_prepared_query"] == CALLS + 1
    assert waited["polars_asyncpg_prepared_query"] == 3 * CALLS - 1
    again = inside.measure(asked["polars_psycopg_simple_query"])
    assert again["rows_per_s"] == pytest.approx(CALLS / again["seconds"])
    assert again["rows_per_s"] < 1e3 / NEAR.rtt_ms


@pytest.mark.slow
def test_the_relay_stands_in_for_namespaces(state: Path) -> None:
    with process.started(replace(WANTED, road=RELAY)) as inside:
        assert "relay" in inside.found["how"]
        assert inside.found["links"][NEAR.name]["rtt_ms"] >= NEAR.rtt_ms
        for task in (READ, WRITE, replace(READ, encryption="tls"), replace(WRITE, encryption="tls")):
            assert inside.measure(task)["seconds"] >= NEAR.rtt_ms / 1e3
        values = inside.measure(WRITE)
        assert values["round_trips"] == 1
        assert values["forwarder_cpu_s"] is not None


def test_where_no_namespace_is_to_be_had_the_relay_is_taken_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import ExitStack, contextmanager

    asked = []

    @contextmanager
    def started(wanted: Wanted) -> Iterator[Any]:
        asked.append(wanted.road)
        if wanted.road == NAMESPACES:
            raise UnavailableError("this system gives no network namespace")
        yield Inside(None, None, {"links": {}, "how": "a relay"})  # type: ignore[arg-type]

    monkeypatch.setattr(process, "started", started)
    with ExitStack() as stack:
        there, road = study._started(stack, 1, 1, FEW, catalog.tasks("least", FEW))
    assert (asked, road) == ([NAMESPACES, RELAY], RELAY)
    assert "this system gives no network namespace" in study.how_text(there.found)


@pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="the package pgbouncer is not installed")
def test_what_is_prepared_in_one_transaction_is_not_there_in_the_next(inside: Inside) -> None:
    pooled = Task("postgres", "read", "polars_connectorx_read", "none", LOOPBACK.name, via="pgbouncer")
    with pytest.raises(UnavailableError, match=r"does not work through PgBouncer.*prepared statement"):
        inside.measure(pooled)
    assert inside.measure(replace(pooled, technique="polars_psycopg_copy_text"))["rows_per_s"] > 0
    once = replace(pooled, technique="polars_asyncpg_row_fetch")
    with pytest.raises(
        UnavailableError, match=r"works once, but does not .* used again.*statement_cache_size=0, with which it works$"
    ):
        inside.measure(once)


@pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="the package pgbouncer is not installed")
def test_what_others_have_prepared_helps_nobody_through_a_pooler(inside: Inside) -> None:
    # Without a pool that forgets, some orders let the last one find a statement of its name, prepared by others.
    names = {"polars_psycopg_copy_binary": "write", "polars_pgpq_copy_binary": "write",
             "polars_psycopg_copy_decoded": "read", "polars_psycopg_row_fetch": "read"}  # fmt: skip
    tasks = [
        Task("postgres", cast("Direction", direction), name, "none", LOOPBACK.name, via="pgbouncer")
        for name, direction in names.items()
    ]
    for order in (tasks, tasks[::-1], tasks[2:] + tasks[:2]):
        for task in order:
            with pytest.raises(
                UnavailableError,
                match=r"used again: InvalidSqlStatementName.*prepare_threshold=None, with which it works$",
            ):
                inside.measure(task)


@pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="the package pgbouncer is not installed")
def test_temporary_tables_reach_through_a_pooler_within_a_transaction(inside: Inside) -> None:
    upsert = Task("postgres", "write", "polars_pgpq_temporary_on_conflict", "none", LOOPBACK.name, via="pgbouncer")
    assert inside.measure(upsert)["rows_per_s"] > 0
    prepared = replace(upsert, technique="polars_psycopg_unnest_on_conflict")
    with pytest.raises(
        UnavailableError, match=r"works once, but does not .* used again.*prepare_threshold=None, with which it works$"
    ):
        inside.measure(prepared)


def test_what_drivers_advise_is_counted_where_it_was_tried() -> None:
    task = Task("postgres", "read", "polars_psycopg_row_fetch", "none", LOOPBACK.name, via="pgbouncer")
    said = ["prepared statement; connect psycopg with prepare_threshold=None, with which it works",
            "prepared statement; connect asyncpg with statement_cache_size=0 does not help: no", "no"]  # fmt: skip
    names = ("polars_psycopg_row_fetch", "polars_asyncpg_row_fetch", "polars_adbc_fetch")
    passes = pl.concat([
        of((replace(task, technique=name), 1), status="skipped").with_columns(reason=pl.lit(reason))
        for name, reason in zip(names, said, strict=True)
    ])  # fmt: skip
    assert report.advised_text(passes) == "1 of 2 that fail so work as their driver advises."
    assert "not tried" in report.advised_text(of((task, 1)))


def test_without_pgbouncer_it_is_said_what_to_install(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    postgres, server = EmbeddedPostgres(state, 1), PostgresServer("127.0.0.1", 1, "u", "p", "d")
    with (
        pytest.raises(UnavailableError, match="install the package pgbouncer"),
        pgbouncer.pooling(postgres, server, state / "pgbouncer"),
    ):
        pass
    assert not (state / "pgbouncer").exists()


def test_servers_end_with_the_process_even_when_it_is_killed(inside: Inside, state: Path) -> None:
    # The last that uses it.
    there = inside._process
    children = psutil.Process(there.pid).children(recursive=True)
    # A server's own helpers may have ended since they were listed.
    namespaces = {name for one in children if (name := namespace_of(one.pid))}
    assert namespaces
    assert len(children) >= 4  # both servers, the forwarder, the sink
    there.kill()
    there.wait()
    for child in children:
        child.wait()
    assert [in_namespace(name) for name in namespaces] == [[]] * len(namespaces)
    with pytest.raises(ServerError, match="has ended, with status -9"):
        inside.measure(READ)
    with home_of_a_run(state, "network") as home:  # the next one removes what it has left
        assert list(state.glob("network-*")) == [home]


@pytest.mark.parametrize("roads", catalog.ROADS)
def test_every_task_is_of_a_technique_and_there_is_one_of_each_kind(roads: str) -> None:
    planned = catalog.tasks(roads, catalog.chosen_links(roads, "embedded"))
    assert len(planned) == len(set(planned)) == len({task.words for task in planned})
    known = {one.key for one in (*techniques(), *upserts("postgres"))}
    moves = [task for task in planned if task.technique not in QUERIES]
    assert {(task.database, task.direction, task.technique) for task in moves} <= known
    queried = {(task.technique, task.network) for task in planned if task not in moves}
    assert queried == {(name, task.network) for name in QUERIES for task in planned}
    assert {task.encryption for task in planned} == {"none", "tls"}
    assert {task.via for task in planned} == {"direct", "pgbouncer"}
    assert {"none", "lz4", "zstd"} <= {task.codec for task in planned}
    assert all(task.of.name == task.technique for task in planned)
    kinds = {via: {task.of.contract.kind for task in planned if task.via == via and task.of.contract}
             for via in ("direct", "pgbouncer")}  # fmt: skip
    assert kinds["direct"] == {"append"}  # bulk loads do not compare with them
    assert "bulk_load" not in kinds["pgbouncer"]  # nor can they be called again
    for where in ("write", "read"):
        assert {*catalog.chosen_links(roads, "embedded")} == {
            next(one for one in catalog.LINKS if one.name == task.network)
            for task in planned if task.direction == where and task.via == "direct"
        }  # fmt: skip


def test_on_the_results_page_codecs_are_variants_where_they_were_asked_for() -> None:
    passes = placed(committed.RUN)
    compressed = passes.filter(pl.col("variant") != "")
    assert {*compressed["technique"]} == {*catalog.WITH_CODECS.values()}
    assert {*compressed["variant"]} == {*catalog.CODECS}
    assert not passes.filter(pl.col("label").str.contains("zstd|lz4")).height
    # The published technique, whose files have a codec of their own, is there to be compared with.
    found = in_places(passes, sizes=True).filter(variant="", status="ok", database="clickhouse", direction="write")
    alone = found.filter(road="loopback")
    assert alone["ratio"].null_count() == 0
    assert alone.filter(origin="published")["ratio"].to_list() == [1.0]


def test_an_effort_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="ROADS='many': choose from least, few, networks, all"):
        catalog.tasks("many", FEW)


def test_servers_that_others_run_are_measured_as_they_are() -> None:
    links = catalog.chosen_links("few", "external")
    planned = catalog.tasks("few", links)
    assert {(task.network, task.encryption, task.via) for task in planned} == {
        ("as it is", "none", "direct"), ("as it is", "none", "pgbouncer")
    }  # fmt: skip


def test_the_road_to_somebodys_server_is_measured(
    settings: Settings, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, other = servers.postgres, servers.clickhouse
    for name, value in {
        "SERVERS": "external", "STATE_DIR": str(settings.state_dir), "POSTGRES_DSN": server.dsn(),
        "CLICKHOUSE_URL": f"http://{other.user}:{other.password}@127.0.0.1:{other.http_port}/default",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"FRAMEHAUL_{name}", value)
    wanted = replace(WANTED, road="as it is", links=["as it is"], databases=["postgres"])
    with process.started(wanted) as there:
        assert "wire_bytes" not in there.measure(replace(READ, network="as it is"))
        told = report.nearest(there.found)
        query = "SELECT count(*) FROM pg_class WHERE relname LIKE 'framehaul_analytics_metrics%' AND relkind = 'r'"
        assert PostgresTables(server).run(query) == [(3,)]
    assert PostgresTables(server).run(query) == [(0,)]
    assert told is not None
    assert [line for line in DATABASES.values() if f"The road to {line}: RTT " in told] == ["PostgreSQL", "ClickHouse"]
    assert list(there.found["links"]) == ["as it is, PostgreSQL", "as it is, ClickHouse"]
    for measured in there.found["links"].values():
        assert 0 < measured["rtt_ms"] < 1000 < measured["mbit_per_s"] * 1000  # of loopback, on a machine however busy


@pytest.mark.parametrize(
    ("rtt_ms", "mbit_per_s", "name"),
    [
        (0.4, 8000, "10 Gbit/s, 0.3 ms"), (8, 700, "1 Gbit/s, 10 ms"), (90, 20, "100 Mbit/s, 30 ms"),
        (0.02, 30_000, "loopback"),
    ],
)  # fmt: skip
def test_a_road_is_nearest_to_the_network_like_it(rtt_ms: float, mbit_per_s: float, name: str) -> None:
    measured = {"rtt_ms": rtt_ms, "mbit_per_s": mbit_per_s}
    told = report.nearest({"links": {"as it is, ClickHouse": measured}})
    assert str(told).endswith(f"nearest to it is {name}.")
    assert "PostgreSQL" not in str(told)
    assert report.nearest({"links": {"loopback": measured}}) is None


def test_each_figure_stands_beside_the_network_as_it_was_measured() -> None:
    near, far = FEW[1], FEW[2]
    passes = of((arrow("none", near.name), 400), (arrow("zstd", near.name), 200)).with_columns(
        rtt_ms=pl.lit(1.234), mbit_per_s=pl.lit(500.0), wire_bytes=pl.lit(125_000_000)
    )
    for table in (report.fastest_table(passes), report.codecs_table(passes), report.round_trips_table(passes)):
        assert f"| {near.name} | 1.23 ms, 500 Mbit/s |" in str(table)
    assert "1.23 ms" in report.figure(passes).axes[0].get_xticklabels()[0].get_text()
    [row] = report.fastest(passes)
    assert report._of_the_rate(row) == pytest.approx(1e9 / row["seconds"] / 500e6)
    assert report._of_the_rate(row | {"asked_mbit_per_s": None}) is None
    assert report.as_measured(row | {"rtt_ms": None}) == ""
    assert catalog.road_to("postgres", far.name) == far.name


def of(*speeds: tuple[Task, float], status: str = "ok", rounds: int = 3) -> pl.DataFrame:
    """Passes of tasks at these rows/s, a little apart."""
    rows = []
    for task, rows_per_s in speeds:
        one = task.of
        link = next(link for link in catalog.LINKS if link.name == task.network)
        rows += [
            asdict(Result(
                run_id="r", notebook="n", database=task.database, direction=task.direction, technique=task.technique,
                label=one.label, contract=one.contract.kind if one.contract else None,
                origin=one.origin, family=one.family, driver=one.driver, frame=one.frame, connections=one.connections,
                codec=task.codec, network=task.network, encryption=task.encryption, via=task.via, task=task.words,
                how="a network", asked_rtt_ms=link.rtt_ms or None, asked_mbit_per_s=link.mbit_per_s or None,
                rtt_ms=link.rtt_ms, mbit_per_s=link.mbit_per_s, rows=1000, pass_=number, rows_per_s=rows_per_s,
                seconds=1000 / rows_per_s * (1 + number / 1000), client_cpu_s=0.1, server_cpu_s=0.2, wire_bytes=10_000,
                round_trips=2, status=status,  # type: ignore[arg-type]
                reason=None if status == "ok" else "why",
            ))
            for number in range(1, rounds + 1)
        ]  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None).rename({"pass_": "pass"}).cast(store.schema_of(Result))  # type: ignore[arg-type]


def arrow(codec: str, network: str) -> Task:
    return Task("clickhouse", "read", "polars_http_client_arrow_dictionary", codec, network)


def test_a_codec_pays_where_it_is_told_to_and_the_crossing_is_named() -> None:
    near, far = FEW[1].name, FEW[2].name
    speeds = {("none", near): 400, ("zstd", near): 200, ("none", far): 50, ("zstd", far): 90}
    passes = of(*((arrow(*which), speed) for which, speed in speeds.items()))
    assert [(row["network"], row["said"]) for row in report.codecs_of(passes)] == [(near, "slower"), (far, "faster")]
    text = report.findings_text(passes, {})
    assert (
        f"zstd over no compression, ClickHouse read: 0.50x on {near} (slower); 1.80x on {far} (faster); "
        f"faster from somewhere between {near} and {far}."
    ) in text
    again = of(*((arrow(*which), 100.0) for which in speeds))
    assert "somewhere" not in report.findings_text(again, {})
    assert "`polars_http_client_arrow_dictionary` 100 (not told from 1 other)" in report.findings_text(again, {})


def test_tls_and_two_connections_are_compared_with_the_same_without() -> None:
    two = replace(READ, technique="polars_asyncpg_copy_decoded_two_connections")
    passes = of((READ, 100), (replace(READ, encryption="tls"), 50), (two, 200))
    (tls,) = report.encryption_of(passes)
    assert (tls["technique"], tls["ratio"].ratio, tls["said"]) == (READ.technique, pytest.approx(0.5), "slower")
    (second,) = report.connections_of(passes)
    assert (second["ratio"].ratio, second["said"]) == (pytest.approx(2), "faster")
    assert "TLS moves 0.50x the rows/s in the middle of 1 pairs" in report.findings_text(passes, {})
    third = replace(READ, technique="polars_psycopg_copy_text")
    more = of((READ, 100), (replace(READ, encryption="tls"), 50), (third, 100), (replace(third, encryption="tls"), 100))
    (line,) = str(report.encryption_by_network(more)).splitlines()[2:]
    assert "| 2 | 0.75x (0.50 to 1.00) | 1 |" in line


def test_the_fastest_of_each_kind_of_frame_is_named_where_they_are_told_apart() -> None:
    pandas = replace(READ, technique="pandas_asyncpg_copy_decoded")
    passes = of((READ, 200), (pandas, 100))
    assert [row["frame"] for row in report.fastest(passes)] == ["polars"]
    assert [(row["frame"], row["rows_per_s"]) for row in report.fastest(passes, "frame")] == [
        ("polars", pytest.approx(200)), ("pandas", pytest.approx(100)),
    ]  # fmt: skip


def test_queries_of_one_row_are_compared_with_each_other_and_with_no_move() -> None:
    simple, prepared = (Task("postgres", "read", name, "none", NEAR.name) for name in [*QUERIES][::3])
    passes = of((READ, 100), (simple, 1000), (prepared, 500))
    assert [row["technique"] for row in report.fastest(passes)] == [READ.technique]
    first, second = report.queries_of(passes)
    assert (first["technique"], second["ratio"].ratio, second["said"]) == (
        simple.technique, pytest.approx(0.5), "slower"
    )  # fmt: skip
    table = str(report.queries_table(passes.with_columns(rows=pl.lit(CALLS, pl.Int64), round_trips=pl.lit(2 * CALLS))))
    assert "| 2.0 |" in table
    said = f"PostgreSQL: {prepared.of.label} over {simple.of.label}, queries/s: 0.50x on {NEAR.name} (slower)."
    assert said in report.findings_text(passes, {})
    assert report.queries_table(passes.filter(technique=READ.technique)) == (
        "Queries of one row were not measured in this run."
    )


def test_who_is_advised_across_a_network_gave_back_what_was_sent_there() -> None:
    near, far = FEW[1], FEW[2]
    wrong = replace(READ, technique="polars_psycopg_copy_text")
    passes = of((READ, 100), (wrong, 300), (replace(READ, network=LOOPBACK.name), 900), (arrow("zstd", far.name), 50))
    exact = passes.with_columns(
        dtypes=pl.when(technique=wrong.technique).then(pl.lit("x:String")).otherwise(pl.lit("exact"))
    )
    rows = [*best_across(exact)]
    assert [(row["function"], row["case"].split(" (")[0], row["speed"]) for row in rows] == [
        (READ.technique, f"network: {near.name}", "100 rows/s"),
        ("polars_http_client_arrow_dictionary", f"network: {far.name}", "50 rows/s"),
    ]
    assert rows[1]["label"].endswith(", zstd")


def test_a_network_that_was_never_right_has_no_speed() -> None:
    passes = pl.concat([of((READ, 100)), of((replace(READ, network=FEW[2].name), 1), status="failed")])
    assert [row["network"] for row in report.fastest(passes)] == [NEAR.name]
    assert "why" in str(report.missing_table(passes))


def test_what_a_pooler_does_is_a_finding_and_reads_and_writes_of_one_name_are_two() -> None:
    direct = [replace(READ, technique="polars_psycopg_copy_text", direction=which, network=LOOPBACK.name)
              for which in ("read", "write")]  # fmt: skip
    pooled = [replace(one, via="pgbouncer") for one in direct]
    passes = of((direct[0], 100), (direct[1], 100), (pooled[0], 50), (pooled[1], 200))
    written = {row["direction"]: line for row, line in zip(
        report.pooler_table(passes).rows, str(report.pooler_table(passes)).splitlines()[2:], strict=True  # type: ignore[union-attr]
    )}  # fmt: skip
    assert "| 0.50x" in written["read"]
    assert "| 2.00x" in written["write"]
    failing = of((pooled[0], 50), status="skipped")
    assert "not `polars_psycopg_copy_text`" not in report.findings_text(passes, {})
    assert "PgBouncer: why." in report.findings_text(failing, {})


def test_a_figure_has_a_line_for_each_technique_codec_and_encryption() -> None:
    passes = of((arrow("none", NEAR.name), 400), (arrow("zstd", NEAR.name), 200), (READ, 50))
    drawn = report.figure(passes)
    assert [len(axes.lines) for axes in drawn.axes] == [1, 2]
    assert report.figure(of((READ, 1), status="failed")).axes == []


def test_more_rows_and_passes_take_more_patience() -> None:
    few = catalog.patience_seconds({"rows": 100, "passes": 1, "warmup": 0, "roads": "few"})
    assert catalog.patience_seconds({"rows": 300_000, "passes": 6, "warmup": 1, "roads": "all"}) > 10 * few > 0
