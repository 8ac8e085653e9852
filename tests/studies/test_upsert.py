"""Upserts: the rows afterwards, what others see, and what a failure leaves."""

from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from framehaul.bench import store
from framehaul.bench.children import ended_with_the_block
from framehaul.bench.trials import chosen_techniques
from framehaul.errors import UnavailableError, WrongResultError
from framehaul.servers import Servers
from framehaul.servers.tables import tables_of
from framehaul.studies.registry import UPSERT_STUDY
from framehaul.studies.upsert import behaviour, measure
from framehaul.studies.upsert.measure import KEY, Bench, Case, base, cases, count_staging_tables, incoming, updated
from framehaul.studies.upsert.study import Row
from framehaul.techniques import upserts
from framehaul.techniques.registry import DATABASES
from tests.conftest import WHOLE, values_of

CASE = Case(200, 40, 50)
BY_NAME = {one.name: one for one in (*upserts("postgres"), *upserts("clickhouse"))}
SAFE, FAST = "polars_pgpq_temporary_on_conflict", "polars_pgpq_temporary_merge"
REPLACING, EXCHANGED = "polars_http_client_replacing", "polars_http_client_rebuild_exchange"


def test_the_update_is_the_one_that_a_dictionary_makes() -> None:
    for share in (0, 10, 90, 100):
        case = Case(100, 50, share)
        there = base(100, 1)
        come = incoming(there, case, 2)
        rows = {tuple(row[name] for name in KEY): row for frame in (there, come) for row in frame.to_dicts()}
        found = updated(there, come)
        assert (len(come), len(come.join(there, on=KEY, how="semi"))) == (case.rows, case.existing)
        assert sorted(map(repr, found.to_dicts())) == sorted(map(repr, rows.values()))
        assert found["mark"].sum() == case.rows
        assert come.equals(incoming(there, case, 2)) and not come.equals(incoming(there, case, 3))


def test_cases() -> None:
    assert cases([300], [30]) == [Case(300, 30)]
    found = [(one.target_rows, one.rows) for one in cases([10, 100, 1000], [1, 50])]
    assert found == [(10, 1), (100, 1), (100, 50), (1000, 1), (1000, 50)]
    assert cases([5], [10]) == [Case(5, 10)]
    assert cases([5, 5], [1, 1]) == [Case(5, 1)]
    assert Case(10, 1, 90).label == "1 row into 10, 100% there"
    assert Case(300, 1000, 90).label == "1,000 rows into 300, 30% there"


@WHOLE
def test_a_run_tries_all_and_is_right(out: Path, servers: Servers) -> None:
    passes = store.read(out / "results" / UPSERT_STUDY.results, Row)
    assert passes.filter(pl.col("status") != "ok").select("part", "technique", "reason").rows() == []
    assert {*passes.filter(part="speed")["technique"]} == {*BY_NAME}
    tried = values_of(out, UPSERT_STUDY)["tried"]
    chosen = {one.name for database in DATABASES for one in chosen_techniques(tried, upserts(database))}
    for part in ("reader", "writers", "sent twice", "client killed"):
        assert {*passes.filter(part=part)["technique"]} == chosen, part
    assert [count_staging_tables(tables_of(servers.of(database))) for database in DATABASES] == [0, 0]


def test_an_upsert_that_does_something_else_has_no_speed(servers: Servers) -> None:
    way = BY_NAME[SAFE]
    with ended_with_the_block(), Bench(servers.postgres, CASE, 5).filled() as here:
        for frame in (here.come[1:], here.come.with_columns(amount=pl.col("amount") * -1)):

            @wraps(way.function)
            def other(client: Any, table: Any, _: pl.DataFrame, frame: pl.DataFrame = frame) -> None:
                way.function(client, table, frame)

            for measured in (measure.timed, measure.watched, measure.sent_twice):
                with pytest.raises(WrongResultError):
                    measured(here, replace(way, function=other), 1)


def test_a_reader_tells_apart_what_it_saw_and_sees_a_gap_between_two_statements(servers: Servers) -> None:
    old, new = (10, 0), (12, 5)
    seen = [measure.what_was_seen(found, old, new) for found in ((10, 0), (12, 5), (9, 0), (11, 3), (15, 5))]
    assert seen == ["old", "new", "rows missing", "a part of the new", "rows twice"]
    way = BY_NAME[REPLACING]

    @wraps(way.function)
    def halves(client: Any, table: Any, frame: pl.DataFrame) -> None:
        for part in (frame[: len(frame) // 2], frame[len(frame) // 2 :]):
            way.function(client, table, part)
            for _ in range(20):
                client.post("SELECT sleep(0.01)").read()

    with ended_with_the_block(), Bench(servers.clickhouse, CASE, 5).filled() as here:
        assert "a part of the new" in measure.watched(here, replace(way, function=halves), 1)["seen"]


def test_what_two_writers_left_is_counted() -> None:
    there = base(300, 1)
    first, second = measure.two_frames(there, Case(300, 60, 50), 4)
    both = first.select(KEY).join(second.select(KEY), on=KEY)
    assert (len(first), len(second), len(both), {*second["mark"]}) == (60, 60, 40, {2})
    right = updated(updated(there, first), second)
    nothing = {"lost_rows": 0, "doubled_rows": 0, "mixed_rows": 0}
    torn = right.with_columns(pl.when(pl.col("mark") == 2).then(0.25).otherwise("amount").alias("amount"))
    for found, counted in (
        (right, {}),
        (updated(updated(there, second), first), {}),
        (updated(there, second), {"lost_rows": 20}),
        (torn, {"lost_rows": 60}),
        (pl.concat([right, first.join(both, on=KEY, how="semi")]), {"doubled_rows": 40, "mixed_rows": 40}),
        (updated(right, first.join(both[:10], on=KEY, how="semi")), {"mixed_rows": 10}),
    ):
        assert measure.outcome(found, there, (first, second)) == nothing | counted


def test_two_writers_on_the_same_keys_lose_nothing_and_never_wait_in_a_circle(servers: Servers) -> None:
    with Bench(servers.postgres, Case(200, 60, 50), 5).filled() as here:
        for name in (SAFE, "polars_psycopg_executemany_on_conflict"):
            found = measure.together(here, BY_NAME[name], 1)
            assert (found["lost_rows"], found["doubled_rows"], found["errors"]) == (0, 0, ""), name

        def refuse(*_: object) -> None:
            raise OSError("no")

        with pytest.raises(OSError, match="no"):
            measure.together(here, replace(BY_NAME[SAFE], function=refuse), 1)


@pytest.mark.parametrize(
    ("name", "left", "beside"),
    [("polars_pgpq_temporary_delete_insert", "nothing", 0), (EXCHANGED, "nothing", 1), (REPLACING, "nothing", 0),
     ("polars_http_client_patch_delete_insert", "rows missing", 1)],
)  # fmt: skip
def test_a_killed_client_leaves_what_its_terms_say_and_sent_again_it_is_right(
    name: str, left: str, beside: int, servers: Servers
) -> None:
    way = BY_NAME[name]
    with ended_with_the_block(), Bench(servers.of(way.database), CASE, 5).filled() as here:
        assert measure.killed(here, way, 1) == {"left": left, "beside": beside}
        assert count_staging_tables(here.tables) == 0


def test_an_encrypted_connection_is_skipped_where_its_client_would_be_killed(servers: Servers) -> None:
    here = Bench(replace(servers.postgres, options=(("sslmode", "require"),)), CASE, 5)
    with pytest.raises(UnavailableError, match="connect plainly"):
        measure.killed(here, BY_NAME[SAFE], 1)


def test_states_after_a_failure() -> None:
    there = base(CASE.target_rows, 5)
    come = incoming(there, CASE, 5)
    expected = updated(there, come)
    for found, state in (
        (there.reverse(), "nothing"), (expected.reverse(), "all"), (there[1:], "rows missing"),
        (pl.concat([there, there[:1]]), "rows twice"), (updated(there, come[:5]), "a part"),
    ):  # fmt: skip
        assert measure.state_of(found, there, expected) == state


GOOD: dict[str, dict[str, Any]] = {
    "reader": {"seen": "old 5; new 1", "longest_read_s": 0.03, "read_before_s": 0.01},
    "writers": {"errors": "", "lost_rows": 0, "doubled_rows": 0, "mixed_rows": 0},
    "sent twice": {},
    "client killed": {"left": "nothing", "beside": 0},
}
"""The values of an atomic upsert in each part."""
FAILED = {"client killed": (0, 1, 0), "reader": (0, 1, 1), "writers": (1, 0, 1), "sent twice": (1, 1, 0)}
"""The verdicts (1: true) if one pass of a part failed."""


def row(part: str, technique: str, **values: Any) -> dict[str, Any]:
    way = BY_NAME[technique]
    named = {"part": part, "database": way.database, "technique": technique, "label": way.label}
    return named | {"status": "ok"} | values


def good(technique: str = FAST, **changed: Any) -> list[dict[str, Any]]:
    """Return all rows of an atomic upsert, with some values `changed` where a part has them."""
    return [
        row(part, technique, **(values | {name: changed[name] for name in values.keys() & changed}))
        for part, values in GOOD.items()
    ]


def verdicts(*rows: dict[str, Any]) -> pl.DataFrame:
    return behaviour(pl.DataFrame([*rows], store.schema_of(Row)))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (good(), (True, True, True, "")),
        (good(seen="old 1; rows missing 2"), (False, True, True, "")),
        (good(left="a part"), (False, True, True, "")),
        (good(lost_rows=1), (True, False, True, "")),
        (good(doubled_rows=2), (True, False, True, "")),
        # A block of each partition is visible as soon as it is written, even when a few reads miss it.
        (good(REPLACING), (False, True, True, "")),
        (good(EXCHANGED), (True, True, True, "")),
        ([one | {"status": "skipped", "reason": "no"} for one in good(seen=None, left=None, lost_rows=None)],
         (None, None, None, "no")),
        *(([*others, row(part, FAST, status="failed", reason="no")], (*expected, "no"))
          for part, expected in FAILED.items() for others in (good(), [one for one in good() if one["part"] != part])),
    ],
)  # fmt: skip
def test_verdicts_follow_from_the_terms_and_from_what_was_seen_and_left(
    rows: list[dict[str, Any]], expected: tuple[Any, ...]
) -> None:
    found = verdicts(*rows, row("speed", SAFE))
    assert found.select("atomic", "concurrent", "retry_safe", "reason").rows() == [expected]


def test_errors_of_all_rounds_and_rows_of_the_worst_are_those_of_two_writers() -> None:
    bad = {"lost_rows": 3, "errors": "psycopg.DeadlockDetected 1, psycopg.UniqueViolation 2"}
    found = verdicts(*good(errors="psycopg.UniqueViolation 1"), row("writers", FAST, **bad))
    assert found.select("errors", "lost_rows").row(0) == (["psycopg.DeadlockDetected", "psycopg.UniqueViolation"], 3)
