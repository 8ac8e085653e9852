"""Appends into tables with rows: their copies, what others see, and what is found to be wrong."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import polars as pl
import pytest

from framehaul.bench.children import ended_with_the_block
from framehaul.errors import ServerError, UnavailableError, WrongResultError
from framehaul.servers import Servers
from framehaul.servers.tables import tables_of
from framehaul.studies import tables_in_use as study
from framehaul.studies.tables_in_use import APPEND, LAYOUTS, TABLES, Case, Copies, InPostgres, Task, one_pass
from framehaul.techniques.registry import DATABASES, Database, named

FASTEST = {"postgres": "polars_pgpq_presorted", "clickhouse": "polars_http_client_native_presorted"}
OURS = {
    "postgres": "SELECT datname FROM pg_database WHERE starts_with(datname, 'framehaul_in_use')",
    "clickhouse": "SELECT name FROM system.tables WHERE startsWith(name, 'framehaul_in_use')",
}


@pytest.mark.parametrize("database", DATABASES)
def test_every_copy_is_as_it_was_kept_and_an_append_adds_what_was_sent(database: Database, servers: Servers) -> None:
    technique = named(database, "write", FASTEST[database])
    cases = [Case(LAYOUTS[database][-1], 400, 80), Case("nine_columns", 0, 80)]
    with Copies(servers.of(database), 5) as copies:
        copies.grow(cases)
        for case in cases:
            for _ in range(2):
                columns, seen = one_pass(copies, Task(technique, case, APPEND))
                assert not seen
                assert columns["rows_per_s"] == case.rows / columns["seconds"]
                assert columns.get("dead_rows", 0) == 0
                assert columns.get("parts") in (None, 24 if case.existing_rows else 12)
        tables = tables_of(copies.at.fresh(cases[0]))
        assert tables.rows_fingerprint(TABLES[cases[0].layout]) == copies._before[cases[0]]
    left = tables_of(servers.of(database)).run(OURS[database])
    assert not left


@pytest.mark.parametrize("database", DATABASES)
def test_rows_that_are_lost_doubled_or_changed_are_found(database: Database, servers: Servers) -> None:
    way, case = named(database, "write", "polars_framehaul_write"), Case("random_uuid", 200, 40)
    changes: dict[str, Callable[[pl.DataFrame], pl.DataFrame]] = {
        "39 rows were added": lambda frame: frame[1:],
        "not those": lambda frame: frame.with_columns(metric_value=pl.col("metric_value") + 1),
    }
    with Copies(servers.of(database), 5) as copies:
        copies.grow([case])
        for message, change in changes.items():

            @wraps(way.function)
            def other(*given: Any, change: Callable[[pl.DataFrame], pl.DataFrame] = change) -> None:
                way.function(*given[:2], change(given[2]))

            with pytest.raises(WrongResultError, match=message):
                one_pass(copies, Task(replace(way, function=other), case, APPEND))


@pytest.mark.parametrize("database", DATABASES)
def test_others_use_the_table_while_rows_are_appended(database: Database, servers: Servers) -> None:
    way, case = named(database, "write", study.BUSY[database][-1]), Case(study.BUSY_LAYOUT[database], 400, 80)

    @wraps(way.function)
    def slow(*given: Any) -> None:
        way.function(*given)
        time.sleep(0.3)

    with ended_with_the_block(), Copies(servers.of(database), 5) as copies:
        copies.grow([case])
        _, seen = one_pass(copies, Task(replace(way, function=slow), case, study.TOGETHER))
    for client in seen.values():
        assert (client["errors"], client["error"]) == (0, None)
        assert client["requests"] > 0
        assert 0 < client["p50_s"] <= client["p95_s"] <= client["longest_s"]
        assert client["before_p50_s"] > 0


def test_a_request_that_waits_makes_the_next_ones_late() -> None:
    class Server:
        calls = 0

        def execute(self, _: bytes) -> None:
            self.calls += 1
            if self.calls == 1:
                time.sleep(0.2)
            if self.calls == 3:
                raise ValueError("no")

    begin = time.perf_counter()
    requests = study.at_rate("lookup", Server(), ["SELECT 1"], [begin + 0.15])
    assert requests[1][1] > 0.15
    assert [error for *_, error in requests[:4]] == [None, None, "ValueError: no", None]
    made = [(1.0, 0.5, None), (3.0, 2.0, None), (3.5, 9, "no"), (4.5, 9, None)]
    columns = study.summary({"lookup": made, "write": []}, 2.0, 4.0)
    lookup = {"requests": 1, "errors": 1, "error": "no", "longest_s": 2.0, "before_p50_s": 0.5, "before_p95_s": 0.5}
    assert columns["lookup"] == {**lookup, "p50_s": 2.0, "p95_s": 2.0}
    assert columns["write"]["p50_s"] is None


def test_what_is_not_ours_stays_and_who_may_not_create_databases_is_told_the_remedy(servers: Servers) -> None:
    tables, copies = tables_of(servers.postgres), InPostgres(servers.postgres)
    tables.run(f"CREATE DATABASE {copies._copy}_theirs")
    try:
        with pytest.raises(ServerError, match="did not make"):
            copies.drop()
    finally:
        tables.run(f"DROP DATABASE {copies._copy}_theirs")
    tables.run("CREATE ROLE framehaul_without LOGIN PASSWORD 'framehaul'")
    try:
        server = replace(servers.postgres, user="framehaul_without", password="framehaul")
        with pytest.raises(UnavailableError, match='ALTER ROLE "framehaul_without" CREATEDB'):
            InPostgres(server).keep(Case("nine_columns", 0, 1))
    finally:
        tables.run("DROP ROLE framehaul_without")


def test_only_the_fewest_rows_go_into_all_tables_and_keys_do_not_collide() -> None:
    few, many, busy = study.groups("postgres", [10, 2_000_000], [0, 10], [*TABLES], 50)
    assert {task.case.layout for task in few} == {*LAYOUTS["postgres"]}
    assert {task.case for task in many} == {Case("nine_columns", 0, 2_000_000)}
    assert len({task.technique for task in few if task.case.layout == "random_uuid"}) == study.IN_ALL_TABLES
    assert "everyday" not in {task.technique.origin for task in many}
    assert {task.case for task in busy} == {Case("one_index", 500, 50)}
    for table in TABLES.values():
        keys = [study.content(table, 100, 5 + at * study.SEED_STEP, at * 100).select(table.key) for at in range(3)]
        assert len(pl.concat(map(pl.DataFrame, keys)).unique()) == 300
