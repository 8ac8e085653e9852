"""Upserts: what is there afterwards, what others see, what a failure leaves, and what is said of all that."""

from __future__ import annotations

import collections
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import psycopg
import pytest

from framehaul.bench import store
from framehaul.bench.children import ended_with_the_block
from framehaul.bench.passes import Failed, Ok, Skipped
from framehaul.bench.trials import chosen_techniques
from framehaul.errors import UnavailableError, WrongResultError
from framehaul.servers import Servers
from framehaul.servers.relay import relayed
from framehaul.settings import Settings
from framehaul.studies import registry
from framehaul.studies.faults.breakable import breakable
from framehaul.studies.summary.there_already import best_on_terms
from framehaul.studies.upsert import STUDY, faults, measure, runs, study
from framehaul.studies.upsert.crashes import ORDER, Crashes, crashes
from framehaul.studies.upsert.frames import KEY, TABLE, Case, base, cases, check_sizes, incoming, updated
from framehaul.studies.upsert.passes import BOTH, Row, placed
from framehaul.studies.upsert.places import Bench, place_of
from framehaul.studies.upsert.processes import alone, processes
from framehaul.techniques import Technique, upserts
from framehaul.techniques.registry import Database
from tests.conftest import REFERENCE, WHOLE, values_of

CASE = Case(200, 40, 50)
BY_NAME = {one.name: one for one in (*upserts("postgres"), *upserts("clickhouse"))}


def bench(servers: Servers, database: Database, case: Case = CASE) -> tuple[Bench, pl.DataFrame]:
    return measure.bench_of(place_of(servers.of(database)), case, 5)


def test_the_update_is_the_one_that_a_dictionary_makes() -> None:
    for share in (0, 10, 90, 100):
        case = Case(100, 50, share)
        there = base(case.target, 1)
        come = incoming(there, case, 2)
        rows = {tuple(row[name] for name in KEY): row for frame in (there, come) for row in frame.to_dicts()}
        found = updated(there, come)
        assert len(come) == case.rows
        assert len(come.join(there, on=KEY, how="semi")) == case.existing
        assert not found.select(KEY).is_duplicated().any()
        assert sorted(map(repr, found.to_dicts())) == sorted(map(repr, rows.values()))
        assert found["mark"].sum() == case.rows
        assert come.drop(KEY).row(0) != there.drop(KEY).row(0)


def test_frames_are_the_same_for_the_same_seed_and_others_for_another() -> None:
    there = base(300, 1)
    assert there.equals(base(300, 1))
    assert incoming(there, CASE, 2).equals(incoming(there, CASE, 2))
    assert not incoming(there, CASE, 2).equals(incoming(there, CASE, 3))
    assert there["note"].null_count()


def test_cases() -> None:
    assert cases([300], [30], [50]) == [Case(300, 30, 50)]
    assert cases([100, 10], [1, 5], [90, 0]) == [Case(10, 5, 0), Case(10, 5, 90), Case(100, 1, 90)]
    largest = cases([10, 100, 1000], [1, 50], [0, 90])
    assert largest == [
        Case(10, 1, 0), Case(10, 1, 90), Case(100, 1, 90), Case(100, 50, 0), Case(100, 50, 90), Case(1000, 1, 90)
    ]  # fmt: skip
    assert cases([100], [1, 50], [0, 90]) == [Case(100, 1, 90), Case(100, 50, 0), Case(100, 50, 90)]
    assert cases([5], [10], [50]) == [Case(5, 10, 50)]
    assert cases([5], [1], [0, 10, 60, 90]) == [Case(5, 1, 10), Case(5, 1, 90)]
    assert [Case(10, rows, 0).label for rows in (1, 2)] == ["1 row into 10, 0% there", "2 rows into 10, 0% there"]
    assert Case(10, 1, 90).label == "1 row into 10, 100% there"
    assert Case(300, 1000, 90).label == "1,000 rows into 300, 30% there"
    for wrong, said in (
        ({"shares": [101]}, "SHARES=101"), ({"targets": [5, 5]}, "TARGETS=5 5"),
        ({"incoming": [3, 3]}, "INCOMING=3 3"), ({"shares": [9, 0, 9]}, "SHARES=9 0 9"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            check_sizes({"targets": [5], "incoming": [2], "shares": [1]} | wrong)


@pytest.mark.parametrize(
    "given", [{"targets": [0]}, {"incoming": [0]}, {"shares": [-1]}, {"tried": "some"}, {"passes": 0}]
)
def test_parameters_that_make_no_sense_are_named(given: dict[str, Any]) -> None:
    usual: dict[str, Any] = {
        "targets": [5], "incoming": [5], "shares": [5], "tried": "all", "passes": 1, "warmup": 0, "seed": 1,
    }  # fmt: skip
    with pytest.raises(ValueError, match=next(iter(given)).upper()):
        runs.run(**(usual | given))


@WHOLE
def test_a_run_tries_all_and_is_right(out: Path) -> None:
    passes = store.read(out / "results" / STUDY.results, Row)
    assert passes.filter(pl.col("status") != "ok").select("part", "technique", "reason").rows() == []
    assert set(passes.filter(part="speed")["technique"]) == set(BY_NAME)
    tried = {
        one.name for database in BOTH for one in chosen_techniques(values_of(out, STUDY)["tried"], upserts(database))
    }
    for part in ("reader", "writers", *runs.FAULTS, runs.KILLED):
        assert set(passes.filter(part=part)["technique"]) == tried
    timed = passes.filter(part="speed")
    assert timed.filter(database="postgres")["parts"].null_count() == len(timed.filter(database="postgres"))
    for column in ("seconds", "written_bytes", "grown_bytes", "dead_rows", "read_s", "read_before_s"):
        assert not timed[column].null_count(), column


COUNTED: dict[Database, tuple[str, ...]] = {
    "postgres": ("polars_pgpq_temporary_on_conflict", "polars_pgpq_table_swap"),
    "clickhouse": ("polars_http_client_replacing", "polars_http_client_rebuild_exchange"),
}


def test_what_is_counted_is_what_was_done(servers: Servers) -> None:
    found: dict[str, dict[str, Any]] = {}
    for database, names in COUNTED.items():
        here, come = bench(servers, database)
        with here:
            found |= {name: measure.timed(here, BY_NAME[name], come) for name in names}
    assert found["polars_pgpq_temporary_on_conflict"]["dead_rows"] == CASE.existing
    assert found["polars_pgpq_table_swap"]["dead_rows"] == 0
    assert found["polars_http_client_replacing"]["surplus_rows"] == CASE.existing
    assert found["polars_http_client_rebuild_exchange"]["surplus_rows"] == 0
    assert all(one["written_bytes"] > 0 for one in found.values())


def broken_way(way: Technique, **changed: Any) -> Technique:
    """The same with another function."""
    return replace(way, **changed)


def test_an_upsert_that_does_something_else_has_no_speed(servers: Servers) -> None:
    way = BY_NAME["polars_pgpq_temporary_on_conflict"]
    here, come = bench(servers, "postgres")
    with here:
        for frame in (come[1:], come.with_columns(amount=pl.col("amount") * -1)):

            def other(client: Any, table: Any, _: pl.DataFrame, frame: pl.DataFrame = frame) -> None:
                way.function(client, table, frame)

            wrong = broken_way(way, function=other)
            for part in (measure.timed, measure.watched):
                with pytest.raises(WrongResultError):
                    part(here, wrong, come)
            with relayed(here.place.server, faults.TurnsRelay) as road, pytest.raises(WrongResultError):
                faults.sent_twice(here, wrong, come, road)


def test_states_that_a_reader_tells_apart() -> None:
    old, new = (10, 0), (12, 5)
    seen = {found: measure._state(found, old, new) for found in ((10, 0), (12, 5), (9, 0), (11, 3), (15, 5))}
    assert [*seen.values()] == ["old", "new", "rows missing", "a part of the new", "rows twice"]


def test_a_gap_between_two_statements_is_seen(servers: Servers) -> None:
    way = BY_NAME["polars_http_client_replacing"]
    here, come = bench(servers, "clickhouse")

    def halves(client: Any, table: Any, frame: pl.DataFrame) -> None:
        for part in (frame[: len(frame) // 2], frame[len(frame) // 2 :]):
            way.function(client, table, part)
            for _ in range(20):
                client.post("SELECT sleep(0.01)").read()

    with here:
        seen = measure.watched(here, broken_way(way, function=halves), come)["seen"]
    assert "a part of the new" in seen


def test_two_frames_share_keys_and_have_their_own() -> None:
    there = base(300, 1)
    for share in (0, 50, 90, 100):
        first, second = measure.two_frames(there, Case(300, 60, share), 4)
        both = first.select(KEY).join(second.select(KEY), on=KEY)
        assert len(both) == 40
        assert (len(first), len(second)) == (60, 60)
        for frame in (first, second):
            assert not frame.select(KEY).is_duplicated().any()
        assert set(second["mark"]) == {2}


def test_what_two_writers_left_is_counted() -> None:
    there = base(300, 1)
    first, second = measure.two_frames(there, Case(300, 60, 50), 4)
    both = first.select(KEY).join(second.select(KEY), on=KEY)
    right = updated(updated(there, first), second)
    nothing = {"lost_rows": 0, "doubled_rows": 0, "mixed_rows": 0}
    assert measure.outcome(right, there, (first, second)) == nothing
    assert measure.outcome(updated(updated(there, second), first), there, (first, second)) == nothing
    assert measure.outcome(updated(there, second), there, (first, second))["lost_rows"] == 20
    assert measure.outcome(pl.concat([right, first.join(both, on=KEY, how="semi")]), there, (first, second)) == {
        "lost_rows": 0, "doubled_rows": 40, "mixed_rows": 40,
    }  # fmt: skip
    torn = right.with_columns(pl.when(pl.col("mark") == 2).then(0.25).otherwise("amount").alias("amount"))
    assert measure.outcome(torn, there, (first, second))["lost_rows"] == 60
    half = updated(right, first.join(both[:10], on=KEY, how="semi"))
    assert measure.outcome(half, there, (first, second))["mixed_rows"] == 10


def test_two_writers_on_the_same_keys_lose_nothing_and_never_wait_in_a_circle(servers: Servers) -> None:
    case = Case(200, 60, 50)
    lost = {}
    for name in (
        "polars_pgpq_temporary_on_conflict",
        "polars_pgpq_table_swap",
        "polars_psycopg_executemany_on_conflict",
    ):
        here, _ = bench(servers, "postgres", case)
        with here:
            found = measure.together(here, BY_NAME[name], measure.two_frames(here.there, case, 4))
        lost[name] = found["lost_rows"], found["doubled_rows"], found["retries"]
    assert set(lost.values()) == {(0, 0, 0)}


def test_in_the_frames_own_order_two_writers_do_wait_in_a_circle(servers: Servers) -> None:
    """What the order of the keys is for: without it PostgreSQL ends one of them."""
    statement = "INSERT INTO framehaul_circle VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET mark = EXCLUDED.mark"
    half_way, told = threading.Barrier(2, timeout=60), list[type[Exception]]()

    def write(mark: int, keys: tuple[int, int]) -> None:
        with psycopg.connect(servers.postgres.dsn()) as connection:
            connection.execute(statement, (keys[0], mark))
            half_way.wait()
            try:
                connection.execute(statement, (keys[1], mark))
            except psycopg.Error as error:
                told.append(type(error))

    with psycopg.connect(servers.postgres.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE framehaul_circle (id int PRIMARY KEY, mark int)")
        try:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(write, (1, 2), ((1, 2), (2, 1))))
        finally:
            connection.execute("DROP TABLE framehaul_circle")
    assert told == [psycopg.errors.DeadlockDetected]


def test_a_writer_that_never_succeeds_is_a_failure(servers: Servers) -> None:
    way = BY_NAME["polars_pgpq_temporary_on_conflict"]
    here, _ = bench(servers, "postgres")

    def refuse(*_: object) -> None:
        raise OSError("no")

    with here, pytest.raises(OSError, match="no"):
        measure.together(here, broken_way(way, function=refuse), measure.two_frames(here.there, CASE, 4))


def test_a_cut_connection_leaves_a_gap_where_there_is_one_and_a_killed_client_its_table(servers: Servers) -> None:
    here, come = bench(servers, "clickhouse")
    way = BY_NAME["polars_http_client_patch_delete_insert"]
    with here, relayed(here.place.server, faults.TurnsRelay) as road:
        cut, killed = faults.cut(here, way, come, road), faults.killed(here, way, come, road)
        assert "rows missing 1" in cut["left"] and "nothing" in cut["left"]
        assert (killed["left"], killed["beside"], killed["again"]) == ("rows missing 1", 1, "right")
        assert here.place.beside() == 0


def test_what_breaks_in_postgresql_leaves_nothing(servers: Servers) -> None:
    here, come = bench(servers, "postgres")
    way = BY_NAME["polars_pgpq_temporary_delete_insert"]
    with here, relayed(here.place.server, faults.TurnsRelay) as road:
        found = faults.cut(here, way, come, road)
    assert found == {"left": f"nothing {faults.LAST_TURNS + 1}", "beside": 0, "again": "right"}


@pytest.mark.slow
def test_a_killed_server_leaves_what_a_way_says_and_sent_again_it_is_right() -> None:
    ways = [*BY_NAME.values()]
    there = base(CASE.target, 5)
    left: dict[str, set[str]] = collections.defaultdict(set)
    beside: dict[str, int] = collections.Counter()
    with breakable() as own:
        broken = crashes(own, ways, there, incoming(there, CASE, 5))
        for number in range(1, len(ORDER) + 1):
            for way in ways:
                found = broken.aftermath(way, number)
                assert found["again"] == "right"
                left[way.name].add(found["left"].rpartition(" ")[0])
                beside[way.name] = max(beside[way.name], found["beside"])
    safe = {one.name for one in upserts("postgres")} - {"polars_duckdb_on_conflict"}
    assert all(left[name] == {"nothing"} and not beside[name] for name in safe)
    assert left["polars_duckdb_on_conflict"] <= {"nothing", "all"}
    assert left["polars_http_client_rebuild_exchange"] == {"nothing", "all"}
    assert left["polars_http_client_replace_partition"] == {"nothing", "a part", "all"}
    for name in ("delete_insert", "patch_delete_insert", "collapsing"):
        assert left[f"polars_http_client_{name}"] == {"nothing", "rows missing", "all"}
        assert beside[f"polars_http_client_{name}"] == 1


@pytest.mark.parametrize(
    ("known", "kind", "said"),
    [(Ok([1]), RuntimeError, "on_conflict was over before the server could be killed"),
     (Failed("it raised"), RuntimeError, "it raised"), (Skipped("no driver"), UnavailableError, "no driver")],
    ids=repr,
)  # fmt: skip
def test_an_upsert_that_no_killed_server_can_meet_says_why(known: Any, kind: type[Exception], said: str) -> None:
    way = BY_NAME["polars_pgpq_temporary_on_conflict"]
    broken = Crashes(None, [way], base(5, 1), base(5, 1), {way: known}, set(), 3)  # type: ignore[arg-type]
    with pytest.raises(kind, match=said):
        broken.aftermath(way, 3)


@pytest.mark.slow
def test_an_upsert_that_raises_keeps_no_other_from_meeting_a_killed_server() -> None:
    way = BY_NAME["polars_psycopg_unnest_on_conflict"]

    def refuse(*_: object) -> None:
        raise OSError("no")

    bad = broken_way(BY_NAME["polars_pgpq_table_swap"], function=refuse)
    there = base(CASE.target, 5)
    with breakable() as own:
        broken = crashes(own, [bad, way], there, incoming(there, CASE, 5))
        with pytest.raises(RuntimeError, match="OSError: no"):
            broken.aftermath(bad, 1)
        assert broken.aftermath(way, 1) == {"left": "nothing 1", "beside": 0, "again": "right"}


def test_states_after_a_failure(servers: Servers) -> None:
    here, come = bench(servers, "postgres")
    there = here.there
    expected = updated(there, come)
    for found, state in (
        (there.reverse(), "nothing"), (expected.reverse(), "all"), (there[1:], "rows missing"),
        (pl.concat([there, there[:1]]), "rows twice"), (updated(there, come[:5]), "a part"),
    ):  # fmt: skip
        assert faults.state_of(found, there, expected) == state


def test_an_address_that_nothing_can_be_put_before_is_skipped(servers: Servers) -> None:
    here, come = bench(servers, "postgres")
    with here, pytest.raises(UnavailableError, match="connect plainly"):
        faults.cut(here, BY_NAME["polars_pgpq_table_swap"], come, (servers.postgres, None))


def test_the_results_page_says_how_many_rows_were_there_as_this_study_does() -> None:
    found = {*placed(REFERENCE)["table"]}
    assert "1,000,000 rows there before, 90% of the keys" in found
    assert "10,000,000 rows there before, 100% of the keys" in found  # of one row, whatever the share


def row(part: str, technique: str, **values: Any) -> dict[str, Any]:
    way = BY_NAME[technique]
    usual = {"target_rows": 1000, "rows": 100, "share": 90, "pass_": 1}
    return asdict(Row("run", part, way.database, technique, way.label, **(usual | values)))


def passes_of(*rows: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame([*rows], schema_overrides=store.schema_of(Row), infer_schema_length=None).rename(
        {"pass_": "pass"}
    )


def good(technique: str, seconds: float, **changed: Any) -> list[dict[str, Any]]:
    """All rows of a way that is all or nothing, but for what is `changed`."""
    found = [
        row("speed", technique, pass_=number, seconds=seconds, rows_per_s=100 / seconds, written_bytes=1000,
            grown_bytes=0, dead_rows=0, read_before_s=0.01, read_s=0.02)
        for number in (1, 2, 3)
    ]  # fmt: skip
    others: dict[str, dict[str, Any]] = {
        "reader": {"seen": "old 5; new 1", "longest_read_s": 0.03, "read_before_s": 0.01, "reads": 6},
        "writers": {"retries": 0, "errors": "", "lost_rows": 0, "doubled_rows": 0, "mixed_rows": 0},
        "sent twice": {"again": "right"},
        "connection cut": {"left": "nothing 5; all 1", "beside": 0, "again": "right"},
        "client killed": {"left": "nothing 1", "beside": 0, "again": "right"},
        "server killed": {"left": "nothing 1", "beside": 0, "again": "right"},
    }
    for part, values in others.items():
        given = {name: value for name, value in changed.items() if name in values}
        found.append(row(part, technique, **(values | given)))
    return found


SAFE, FAST = "polars_pgpq_temporary_on_conflict", "polars_pgpq_temporary_merge"


@pytest.mark.parametrize(
    "wrong",
    [{"seen": "old 1; rows missing 2"}, {"lost_rows": 1}, {"doubled_rows": 2}, {"left": "a part 1"}, {}],
    ids=str,
)
def test_what_is_recommended_is_all_or_nothing(wrong: dict[str, Any]) -> None:
    passes = passes_of(*good(SAFE, 0.2), *good(FAST, 0.1, **wrong))
    every = study.advice(passes)
    assert {one.situation for one in every} == {"few rows into a large table", "many rows, most of them there"}
    for one in every:
        assert one.database == "postgres"
        assert one.every[0]["technique"] == FAST
        rude = {"whole": {"seen", "left"} & {*wrong}, "shared": {"lost_rows", "doubled_rows"} & {*wrong}}
        for of, why in rude.items():
            assert getattr(one, of)[0]["technique"] == (SAFE if why else FAST), of
    text = study.answer_text(passes)
    assert ("; all or nothing: " in text) == bool({"seen", "left"} & {*wrong})
    assert ("; for several writers: " in text) == bool({"lost_rows", "doubled_rows"} & {*wrong})


@pytest.mark.parametrize(
    ("wrong", "kept"),
    [({}, ("all at once or none", "several may write")), ({"lost_rows": 1}, ("all at once or none",)),
     ({"left": "a part 1"}, ("several may write",)), ({"seen": "rows twice 1"}, ("several may write",))],
    ids=str,
)  # fmt: skip
def test_an_upsert_stands_beside_other_writes_where_it_kept_its_terms(
    wrong: dict[str, Any], kept: tuple[str, ...]
) -> None:
    slow, exchanged = "polars_http_client_replacing", "polars_http_client_rebuild_exchange"
    passes = passes_of(*good(SAFE, 0.2), *good(FAST, 0.1), *good(slow, 0.2, **wrong), *good(exchanged, 0.1, **wrong))
    rows = {row["case"].partition(", ")[2].partition(" (")[0]: row for row in best_on_terms(passes)}
    assert rows.pop("all at once or none, and several may write")["technique"] == SAFE  # the other is on other terms
    assert rows.keys() == {*kept}
    for row in rows.values():
        assert row["terms"]["kind"] == "upsert"
        assert row["case"].endswith("(100 rows into 1,000, 90% there)")
        assert row["technique"] == (exchanged if "once" in row["case"] else slow)


def test_what_nobody_saw_in_a_few_reads_is_not_all_or_nothing_against_its_terms() -> None:
    """A block of each partition is there as soon as it is written, whatever three reads have found."""
    parts, exchanged = "polars_http_client_replacing", "polars_http_client_rebuild_exchange"
    passes = passes_of(*good(parts, 0.1), *good(exchanged, 0.2))
    assert {one.technique: (one.whole, one.shared) for one in study.manners(passes)} == {
        parts: (False, True), exchanged: (True, True),
    }  # fmt: skip
    for one in study.advice(passes):
        assert (one.every[0]["technique"], one.whole[0]["technique"]) == (parts, exchanged)


def test_what_was_not_tried_or_failed_is_recommended_by_nobody() -> None:
    passes = passes_of(*[one for one in good(FAST, 0.1) if one["part"] == "speed"])
    assert all(not one.whole and not one.shared for one in study.advice(passes))
    assert "none was told to be all or nothing" in study.answer_text(passes)
    wrong = {"status": "failed", "reason": "no", "seen": None}
    failed = [row | wrong if row["part"] == "reader" else row for row in good(FAST, 0.1)]
    (found,) = study.manners(passes_of(*failed))
    assert (found.whole, found.reasons) == (False, "no")
    none = {"status": "skipped", "reason": "no driver", "seconds": None, "rows_per_s": None}
    skipped = pl.DataFrame([row | none for row in passes.to_dicts()], schema=passes.schema)
    listing = str(study.speed_table(skipped, "postgres"))
    assert "skipped" in listing and "no driver" in listing
    assert "skipped" in str(study.takes_table(skipped, "postgres"))


@pytest.mark.parametrize(
    ("part", "said"),
    [("connection cut", (False, True, "no")), ("server killed", (False, True, "no")), ("reader", (False, True, "yes")),
     ("writers", (True, False, "yes")), ("sent twice", (True, True, "no"))],
)  # fmt: skip
def test_one_failure_among_rounds_that_went_well_is_not_passed_over(
    part: str, said: tuple[bool, bool, str]
) -> None:  # fmt: skip
    empty = {"left": None, "again": None, "seen": None, "lost_rows": None, "retries": None, "seconds": None}
    wrong = empty | {"status": "failed", "reason": "no", "pass_": 2}
    every = [one | {"seconds": 0.1} if one["part"] == "writers" else one for one in good(FAST, 0.1)]
    (one,) = study.manners(passes_of(*every, *(row | wrong for row in every if row["part"] == part)))
    assert (one.whole, one.shared, one.again) == said


def test_a_run_that_goes_on_warms_up_again(
    servers: Servers, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Whose first case is done, and so was its warm-up, in another process."""
    warm: list[tuple[Case, int]] = []
    finished = Case(100, 5, 90)

    def speed(_: Any, __: Any, database: Database, case: Case, rounds: Any, ___: Any) -> bool:
        if database == "postgres":
            warm.append((case, rounds.warmup))
        return case != finished

    monkeypatch.setenv("FRAMEHAUL_STATE_DIR", str(settings.state_dir))
    monkeypatch.setenv("FRAMEHAUL_OUT", str(tmp_path))
    monkeypatch.setattr(runs, "_speed", speed)
    for name in ("_safety", "_crashes"):
        monkeypatch.setattr(runs, name, lambda *_: None)
    runs.run(targets=[100, 200, 300], incoming=[5], shares=[90], tried="fewest", passes=1, warmup=1, seed=1)
    assert warm == [(finished, 1), (Case(200, 5, 90), 1), (Case(300, 5, 90), 0)]


def test_two_writers_are_shown_by_how_many_of_their_keys_are_there() -> None:
    few = {"share": 0, "lost_rows": 3, "retries": 1, "errors": "psycopg.UniqueViolation 1"}
    every = [one | {"seconds": 0.1} if one["part"] == "writers" else one for one in good(FAST, 0.1)]
    passes = passes_of(*every, *(one | few for one in every if one["part"] == "writers"))
    listing = study.together_table(passes)
    shown = [dict(zip((one.title for one in listing.columns), row, strict=True)) for row in listing.cells()]
    assert [(row["rows lost"], row["rows twice"], row["errors"]) for row in shown] == [
        ("3 / 0", "", "psycopg.UniqueViolation 1 / ")
    ]
    assert "0% / 90%" in listing.note
    (one,) = study.manners(passes)
    assert (one.shared, one.lost_rows) == (False, 3)


def test_what_ways_take_stands_case_by_case() -> None:
    more = {"target_rows": 2_000}
    none = {"status": "skipped", "reason": "no driver", "seconds": None, "rows_per_s": None}
    slow = [one for one in good(SAFE, 0.2) if one["part"] == "speed"]
    passes = passes_of(*good(FAST, 0.1), *slow, *(one | more | none for one in slow))
    listing = study.takes_table(passes, "postgres")
    titles = [one.title for one in listing.columns]
    assert titles == ["upsert", "100 rows into 1,000, 90% there", "100 rows into 2,000, 90% there"]
    assert {tuple(row[1:]) for row in listing.cells()} == {("**100.0 ms**", ""), ("200.0 ms", "skipped")}


def test_of_a_table_that_was_measured_once_nothing_is_advised() -> None:
    speed = [one for one in good(FAST, 0.1) if one["part"] == "speed"]
    once = [one | {"target_rows": 9_000} for one in speed][:1]
    assert len(speed) > 1
    assert {one.case.target for one in study.advice(passes_of(*good(FAST, 0.1), *once))} == {1_000}
    assert {one.case.target for one in study.advice(passes_of(*speed[:1], *once))} == {9_000}


def test_a_table_that_takes_long_to_make_is_measured_once() -> None:
    most = runs.MOST_REPEATED_ROWS
    assert [runs.passes_of(Case(rows, 1, 0), 6) for rows in (most, most + 1)] == [6, 1]


def test_larger_tables_and_more_passes_take_more_patience() -> None:
    quick, reference = (registry.values(STUDY, preset, {}) for preset in ("quick", "reference"))
    assert 0 < 20 * runs.patience(quick) < runs.patience(reference)
    # A pass of a million rows took up to ten seconds where it was slowest.
    assert runs.patience(reference) > 10 * 7 * 5 * len([one for database in BOTH for one in upserts(database)])


def test_situations_are_of_the_cases_that_were_measured() -> None:
    found = study.situations([Case(10, 5, 0), Case(10, 5, 90), Case(100, 1, 90)])
    assert [*found.values()] == [Case(100, 1, 90), Case(10, 5, 90), Case(10, 5, 0)]
    for shares, other in (((90,), study.MOSTLY_NEW), ((0, 10), study.MOSTLY_THERE)):
        known = [Case(10, 5, share) for share in shares]
        assert study.situations([*known, Case(100, 1, 90)]).keys() == found.keys() - {other}
    assert study.situations([]) == {}


def test_nothing_is_left_on_the_servers(out: Path, servers: Servers) -> None:
    assert [place_of(servers.of(database)).beside() for database in BOTH] == [0, 0]


def test_no_two_outcomes_share_a_name() -> None:
    counted = collections.Counter(one.label for one in BY_NAME.values())
    assert max(counted.values()) == 1
    assert TABLE.name.startswith("framehaul_")


def test_processes_leave_no_server_and_no_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    with ended_with_the_block():  # what tests before have started
        pass
    with tempfile.TemporaryDirectory(prefix="framehaul-") as directory:  # of a name that is short enough for sockets
        monkeypatch.setattr(tempfile, "tempdir", directory)
        for _ in range(2):  # and again in the same process, as in a notebook
            with ended_with_the_block():
                process = processes().Process(target=alone)
                process.start()
                process.join()
                assert process.exitcode == 0
                assert [*Path(directory).iterdir()]
            assert [*Path(directory).iterdir()] == []
            assert not [one for one in psutil.Process().children() if "forkserver" in " ".join(one.cmdline())]
