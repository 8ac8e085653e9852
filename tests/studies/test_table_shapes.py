"""Tables of other shapes: what is measured, what is said of it, and what is left behind."""

from __future__ import annotations

import itertools
import socket
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from framehaul.data import generator
from framehaul.data.schema import Table
from framehaul.errors import UnavailableError
from framehaul.harness import measure
from framehaul.harness.meter import Moved
from framehaul.harness.passes import Failed, Ok, Pass, Skipped
from framehaul.harness.rounds import Rounds, in_rounds, nothing
from framehaul.harness.verify import Expected
from framehaul.results import committed, ratios, store
from framehaul.servers import Servers
from framehaul.servers.tables import ClickHouseTables, PostgresTables, tables_of
from framehaul.studies.drivers.shapes import CLICKHOUSE_TABLES
from framehaul.studies.summary.study import Summary
from framehaul.studies.table_shapes import STUDY, address, findings, parts, runs, study
from framehaul.studies.table_shapes.limits import LIMITS, within_limits
from framehaul.studies.table_shapes.passes import Row
from framehaul.studies.table_shapes.shapes import SHAPES, STANDARD, STREAM, WIDE, Shape, narrow, sizes
from framehaul.studies.table_shapes.statements import STATEMENTS
from framehaul.techniques import Technique, techniques
from tests.conftest import call, check_each, mostly_slow, values_of
from tests.second_table import SECOND_TABLE

ROWS = 30
NOT_CARRIED = {
    ("polars_psycopg_unnest", "nested"),
    *((name, "structs") for name in (
        "polars_psycopg_unnest", "polars_psycopg_execute", "polars_psycopg_executemany", "polars_psycopg_pipeline",
        "polars_psycopg_insert_many_values", "polars_asyncpg_executemany", "polars_clickhouse_driver_rows",
    )),
}  # fmt: skip
"""What says that it does not move a shape."""
BY_NAME = {shape.name: shape for shape in (*SHAPES, *WIDE)}


def moved(chosen: list[Technique], servers: Servers, shape: Shape, rows: int, calls: int = 1) -> dict[str, Pass[Moved]]:
    """What came of one pass of each."""
    outcomes: dict[str, Pass[Moved]] = {}
    measure.run(
        chosen, servers.of(chosen[0].database), shape.table, shape.content(shape.table, rows, 7), Rounds(1),
        lambda one, _, outcome: outcomes.update({one.name: outcome}), calls=calls,
    )  # fmt: skip
    return outcomes


def test_no_other_study_has_tables_of_these_names() -> None:
    """A smoke run has several at once, and each drops what is there before it begins."""
    clients = {one.table for one in CLICKHOUSE_TABLES}
    assert clients
    assert not clients & {shape.table.name for shape in SHAPES if shape is not STANDARD}


def test_shapes_are_what_their_names_say() -> None:
    hits = BY_NAME["hits"].table
    assert len(hits.columns) == 105
    assert set(hits.key) <= set(hits.column_names)
    assert len(BY_NAME["narrow"].table.columns) == 500
    assert [len(BY_NAME[name].table.columns) for name in ("wide_1000", "wide_1600", "wide_1601", "wide_bigints")] == [
        1000, 1600, 1601, 1100,
    ]  # fmt: skip
    texts = BY_NAME["texts"].content(BY_NAME["texts"].table, 200, 7)
    lengths = pc.utf8_length(texts["question"]).to_numpy()
    assert 1_000 < lengths.min() < lengths.max() < 3_000
    assert texts["question"].combine_chunks().value_counts().field("counts").to_pylist() == [1] * 200
    nulls = BY_NAME["nulls"].content(BY_NAME["nulls"].table, 1_000, 7)
    shares = [column.null_count / 1_000 for column in nulls.columns]
    assert shares[0] == 0
    assert 0.7 < min(shares[1:]) < max(shares) < 0.9


@pytest.mark.parametrize("shape", (*SHAPES, *WIDE), ids=lambda shape: shape.name)
def test_rows_of_a_shape_are_valid_unique_and_the_same_for_the_same_seed(shape: Shape) -> None:
    rows = 20 if shape in WIDE else 300
    content = shape.content(shape.table, rows, 7)
    content.validate(full=True)
    assert content.schema == shape.table.arrow_schema
    assert content.equals(shape.content(shape.table, rows, 7))
    assert not content.equals(shape.content(shape.table, rows, 8))
    assert content.select(shape.table.key).group_by(shape.table.key).aggregate([]).num_rows == rows
    assert shape.content(shape.table, 0, 7).num_rows == 0


@pytest.mark.parametrize(
    ("rows", "megabytes", "expected"),
    [(1, 1000, [1]), (9, 1000, [1]), (1_000, 1000, [1, 10, 100, 1_000]), (10**6, 1e-5, [1]), (10**6, 0.4, None)],
)
def test_sizes_are_powers_of_ten_that_a_frame_holds(rows: int, megabytes: float, expected: list[int] | None) -> None:
    for name in ("integers", "texts", "nested"):
        shape = BY_NAME[name]
        found = sizes(shape, rows, megabytes, 7)
        assert found == (expected or [10**at for at in range(len(found))])
        if not expected:
            small, large = (shape.content(shape.table, size, 7).nbytes for size in (found[-1], 10 * found[-1]))
            assert small < 1.3e6 * megabytes
            assert large > 0.7e6 * megabytes


def test_points_are_few_or_all() -> None:
    assert runs.points_of(STANDARD, "few", 100_000, 4, 7) == [1, 100, 10_000]
    for points in ("sizes", "all"):
        assert runs.points_of(STANDARD, points, 1_000, 4, 7) == [1, 10, 100, 1_000]
    assert runs.points_of(BY_NAME["texts"], "few", 100_000, 4, 7) == [1_000]


def test_what_is_chosen_is_there_and_has_a_published_technique() -> None:
    for path in runs.FEW:
        for points in ("least", "few", "all"):
            chosen = runs.chosen(points, path)
            assert len({one.name for one in chosen}) == len(chosen)
            assert {(one.database, one.direction) for one in chosen} == {path}
            assert chosen[0].origin == "published"
        assert set(runs.FEW[path]).isdisjoint(runs.MORE[path])
    everyday = {one.name for path in runs.EVERYDAY for one in runs.chosen("all", path) if one.origin == "everyday"}
    assert set(runs.FEW_STATEMENTS) <= everyday
    assert {one.name for one in STATEMENTS} <= everyday


def test_who_wants_a_table_for_itself_is_given_no_small_batches() -> None:
    [last] = [one for one in techniques("postgres", "write") if one.name == "polars_pgpq_key_last"]
    assert runs._takes(last, STANDARD, 1_000_000, 1, "all")
    assert not runs._takes(last, STANDARD, 100, 50, "all")


def test_statements_go_as_far_as_they_lose_on_the_standard_table_and_try_the_limits_of_wide_ones() -> None:
    look = {one.name: one.of("quick") for one in STUDY.parameters}
    rows, megabytes, one = cast("int", look["rows"]), cast("float", look["megabytes"]), STATEMENTS[0]
    sizes_of_look = runs.points_of(STANDARD, "few", rows, megabytes, 7)
    assert sizes_of_look == [1, 100, 10_000]
    assert all(runs._takes(one, STANDARD, size, 1, "few") for size in sizes_of_look)
    assert not runs._takes(one, STANDARD, 100_000, 1, "few")
    assert runs._takes(one, WIDE[0], runs.WIDE_ROWS, 1, "few")
    assert not runs._takes(one, BY_NAME["texts"], 1_000, 1, "few")
    assert runs._takes(one, BY_NAME["texts"], 1_000, 1, "all")


def test_a_look_has_the_rounds_that_can_tell_anybody_apart() -> None:
    [passes] = [one for one in STUDY.parameters if one.name == "passes"]
    assert cast("int", passes.of("quick")) >= ratios.TOLD_FROM


@pytest.mark.parametrize(
    "shape", mostly_slow(SHAPES, lambda shape: shape.name in ("nulls", "nested"), lambda shape: shape.name)
)
def test_every_statement_moves_every_shape_or_says_why_not(shape: Shape, servers: Servers) -> None:
    for path in runs.EVERYDAY:
        chosen = [one for one in runs.chosen("all", path) if one.origin == "everyday"]
        for name, outcome in moved(chosen, servers, shape, ROWS, calls=3).items():
            if (name, shape.name) in NOT_CARRIED:
                assert isinstance(within_limits(outcome), Skipped), (name, outcome)
            else:
                assert isinstance(outcome, Ok), (name, outcome)
                assert len(outcome.values.latencies_s) == 3
                assert sum(outcome.values.latencies_s) == pytest.approx(outcome.values.seconds, rel=0.01)


def test_every_statement_takes_hostile_names_columns_in_any_order_and_no_rows(servers: Servers) -> None:
    content = generator.arrow_table(SECOND_TABLE, ROWS, 7)
    frame = generator.polars_frame(SECOND_TABLE, ROWS, 7)

    def check(one: Technique) -> None:
        tables = tables_of(servers.of(one.database))
        tables.create(SECOND_TABLE)
        try:
            call(one, servers, SECOND_TABLE, frame[:0])
            call(one, servers, SECOND_TABLE, frame[:, ::-1])
            assert tables.content(SECOND_TABLE).sort("Order").equals(pl.DataFrame(content).sort("Order"))
            with pytest.raises(ValueError, match="missing: 'Order'"):
                call(one, servers, SECOND_TABLE, frame.drop("Order"))
        finally:
            tables.drop(SECOND_TABLE)

    check_each(STATEMENTS, check)


def test_what_is_wrong_in_the_middle_leaves_nothing_in_postgres(servers: Servers) -> None:
    frame = generator.polars_frame(STANDARD.table, ROWS, 7)
    twice = pl.concat([frame, frame[:1]])

    def check(one: Technique) -> None:
        tables = PostgresTables(servers.postgres)
        tables.create(STANDARD.table)
        try:
            with pytest.raises(Exception, match="duplicate key"):
                call(one, servers, STANDARD.table, twice)
            assert len(tables.content(STANDARD.table)) == 0
        finally:
            tables.drop(STANDARD.table)

    check_each([one for one in STATEMENTS if one.database == "postgres"], check)


def test_calls_of_a_pass_are_all_verified(servers: Servers) -> None:
    """A read that is wrong but once, and a write that leaves one call out."""
    [good] = [one for one in techniques("postgres", "read") if one.name == "polars_psycopg_row_fetch"]
    count = itertools.count()

    def polars_psycopg_wrong_once(connection: psycopg.Connection[Any], table: Table) -> pl.DataFrame:
        frame = cast("pl.DataFrame", good.function(connection, table))
        return frame.head(3) if next(count) == 1 else frame

    wrong = replace(good, function=polars_psycopg_wrong_once)
    [outcome] = moved([wrong], servers, STANDARD, ROWS, calls=3).values()
    assert isinstance(outcome, Failed)
    assert "3 rows instead of 30" in outcome.reason

    [writes] = [one for one in techniques("postgres", "write") if one.name == "polars_psycopg_copy_text"]
    calls = itertools.count()

    def polars_psycopg_lazy(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
        if next(calls) != 1:
            writes.function(connection, table, frame)

    [outcome] = moved([replace(writes, function=polars_psycopg_lazy)], servers, STANDARD, ROWS, 3).values()
    assert isinstance(outcome, Failed)
    assert "20 rows instead of 30" in outcome.reason


@pytest.mark.parametrize(("rows", "calls"), [(30, 3), (31, 3), (3, 3), (1, 1)])
def test_parts_of_a_frame_are_all_of_it(rows: int, calls: int) -> None:
    frame = generator.polars_frame(STANDARD.table, rows, 7)
    some = measure._in_parts(frame, calls)
    assert len(some) == calls
    assert pl.concat(cast("list[pl.DataFrame]", some)).equals(frame)


def test_a_known_limit_is_skipped_with_its_remedy_and_no_other_failure_is() -> None:
    for text, remedy in LIMITS.items():
        outcome: Pass[int] = within_limits(Failed(f"SomeError: it is said that {text} here"))
        assert isinstance(outcome, Skipped)
        assert text in outcome.reason
        assert outcome.reason.endswith(remedy)
    others: list[Pass[int]] = [Failed("20 rows instead of 30"), Skipped("no such driver"), Ok(1)]
    for other in others:
        assert within_limits(other) is other


def test_more_parameters_than_the_protocol_has_are_a_known_limit(servers: Servers) -> None:
    [one] = [one for one in STATEMENTS if one.name == "polars_psycopg_insert_many_values"]
    [outcome] = moved([one], servers, BY_NAME["integers"], 65_535 // 3 + 1).values()
    assert isinstance(outcome, Failed)
    assert isinstance(within_limits(outcome), Skipped), outcome


def test_an_address_that_is_too_long_is_a_known_limit(servers: Servers) -> None:
    [one] = [one for one in techniques("clickhouse", "write") if one.name == "polars_httpx_parquet"]
    [outcome] = moved([one], servers, BY_NAME["wide_1000"], 2).values()
    assert isinstance(outcome, Failed)
    assert isinstance(within_limits(outcome), Skipped), outcome


class Recorder:
    """Keeps the rows of a run."""

    run_id = "r"
    times = disturbance = None

    def __init__(self) -> None:
        self.written: list[Row] = []

    def expect(self, _: int) -> None: ...

    def progress(self, _: str) -> None: ...

    def passes(self, row: Any) -> Any:
        return lambda *what: self.written.append(row(*what)), lambda *_: False


def test_who_has_the_query_in_the_address_stops_before_a_load_balancer_and_others_do_not(servers: Servers) -> None:
    recorder = Recorder()
    runs._behind_balancer(cast("Any", recorder), servers, 7, threading.Event())
    ended = {row.technique: row for row in recorder.written}
    assert set(ended) == set(runs.BEHIND_BALANCER)
    works = {"pandas_clickhouse_connect_insert_df", "polars_clickhouse_driver_native_columnar"}
    assert {name for name, row in ended.items() if row.status == "ok"} == works
    for name in ended.keys() - works:
        assert ended[name].status == "skipped", ended[name]
        assert "414 Request-URI Too Large" in (ended[name].reason or "")
        assert "send the query in the body" in (ended[name].reason or "")
    assert (
        ClickHouseTables(servers.clickhouse).rows("SELECT name FROM system.tables WHERE name LIKE 'framehaul%'") == []
    )


class Answers(socketserver.StreamRequestHandler):
    """Answers every request that has no body."""

    def handle(self) -> None:
        while line := self.rfile.readline():
            if line == b"\r\n":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


@pytest.mark.parametrize("piece", [100, 1 << 20])
def test_a_load_balancer_takes_addresses_to_its_limit_in_every_request_of_a_connection(piece: int) -> None:
    def ask(connection: socket.socket, length: int) -> bytes:
        start, end = b"GET /?", b" HTTP/1.1\r\n"
        request = start + b"x" * (length - len(start) - len(end)) + end + b"Host: here\r\n\r\n"
        for at in range(0, len(request), piece):
            connection.sendall(request[at : at + piece])
        return connection.recv(1 << 16)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answers) as behind:
        threading.Thread(target=behind.serve_forever, daemon=True).start()
        with address.Balancer(("127.0.0.1", behind.server_address[1])) as balancer:
            with socket.create_connection(("127.0.0.1", balancer.ports[0]), timeout=30) as connection:
                assert b" 200 " in ask(connection, 100)
                assert b" 200 " in ask(connection, address.LINE_BYTES)
                assert ask(connection, address.LINE_BYTES + 1).startswith(b"HTTP/1.1 414 ")
            with socket.create_connection(("127.0.0.1", balancer.ports[0]), timeout=30) as connection:
                connection.sendall(b"GET /")  # and no more: the connection ends, and nobody waits for it
                connection.shutdown(socket.SHUT_WR)
                assert connection.recv(1) == b""
        behind.shutdown()


def test_nobody_reads_addresses_that_are_encrypted(servers: Servers) -> None:
    with (
        pytest.raises(UnavailableError, match="encrypted"),
        address.behind_balancer(replace(servers.clickhouse, secure=True)),
    ):
        pass


@pytest.mark.parametrize(
    ("shape", "said"), [("wide_1601", "at most 1600 columns"), ("wide_bigints", "row is too big")]
)  # fmt: skip
def test_a_table_that_postgres_does_not_have_is_skipped_for_all(
    shape: str, said: str, servers: Servers, tmp_path: Path
) -> None:
    recorder = Recorder()
    runs._measure(
        cast("Any", recorder), servers, BY_NAME[shape], 5, "least", ("postgres", "write"), Rounds(1),
        threading.Event(),
    )  # fmt: skip
    written = recorder.written
    assert {row.technique for row in written} == {one.name for one in runs.chosen("least", ("postgres", "write"))}
    assert {row.status for row in written} == {"skipped"}
    assert all(said in (row.reason or "") and ";" in (row.reason or "") for row in written)
    assert PostgresTables(servers.postgres).run("SELECT relname FROM pg_class WHERE relname LIKE 'framehaul%'") == []


def test_a_long_query_reaches_clickhouse_with_its_data(servers: Servers) -> None:
    shape = Shape("wide", "wide", narrow(3_000))
    tables, content = ClickHouseTables(servers.clickhouse), shape.content(shape.table, 3, 7)
    tables.create(shape.table)
    try:
        tables.load(shape.table, content)
        assert tables.content(shape.table).sort("id").equals(pl.DataFrame(content).sort("id"))
    finally:
        tables.drop(shape.table)


def test_results_are_those_of_the_plan(out: Path) -> None:
    passes = store.read(out / "results" / STUDY.results, Row)
    given = values_of(out, STUDY)
    assert set(passes["status"]) <= {"ok", "skipped"}, passes.filter(status="failed")["reason"].to_list()
    assert set(passes.filter(pl.col("shape") != STREAM)["shape"]) >= {one.name for one in runs.SHAPES_OF["least"]}
    good = passes.filter(status="ok")
    assert good["bytes_per_s"].null_count() == 0
    assert (good["frame_bytes"] > 0).all()
    timed = good.drop_nulls("p50_s")
    assert (timed["p50_s"] <= timed["p99_s"]).all()
    moved_rows = timed.filter(pl.col("rate").is_null())
    speeds = moved_rows["rows"] * moved_rows["calls"] / moved_rows["seconds"]
    assert np.allclose(speeds, moved_rows["rows_per_s"])
    assert moved_rows.filter(pl.col("calls") > 1)["peak_rss_bytes"].null_count() == len(
        moved_rows.filter(pl.col("calls") > 1)
    )
    numbers = set(passes.filter(shape="standard")["pass"])
    assert numbers == set(range(1, given["passes"] + 1))
    samples = store.read(out / "results" / parts.RESULTS, parts.Sample)
    assert set(samples["technique"]) == set(good.filter(shape=STREAM)["technique"])
    blocks = study.writeup_blocks(out / "results")
    assert all(blocks.values())


@pytest.fixture
def stream(servers: Servers) -> Iterator[tuple[ClickHouseTables, pa.Table]]:
    """The server, and rows for a stream; nothing may be left of it."""
    tables = ClickHouseTables(servers.clickhouse)
    yield tables, generator.arrow_table(STANDARD.table, 5 * parts.BATCH_ROWS, 7)
    tables.drop_named(parts.BUFFER)
    tables.drop(STANDARD.table)
    tables.drop(STANDARD.table.renamed(f"{STANDARD.table.name}_sent"))


def streamed(
    name: str, servers: Servers, stream: tuple[ClickHouseTables, pa.Table], sent: pa.Table | None = None
) -> Pass[parts.Streamed]:
    """What comes of a stream of this mode; compared with what is in it, or with other rows."""
    tables, content = stream
    [mode] = [mode for mode in parts.MODES if mode.name == name]
    expected = Expected(STANDARD.table, content if sent is None else sent)
    expected.keep_reference(tables, STANDARD.table.renamed(f"{STANDARD.table.name}_sent"))
    outcomes: list[Pass[parts.Streamed]] = []
    in_rounds(
        [parts.Stream(mode, 50)], Rounds(1),
        lambda one, _: parts._stream(one, servers.clickhouse, tables, expected, content),
        lambda _, __, outcome: outcomes.append(outcome),
    )  # fmt: skip
    return outcomes[0]


@pytest.mark.parametrize("name", [mode.name for mode in parts.MODES])
def test_a_stream_arrives_whole_and_is_looked_at(
    name: str, servers: Servers, stream: tuple[ClickHouseTables, pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_check_queue", nothing)  # without a queue they are inserted at once, which is as right
    outcome = streamed(name, servers, stream)
    assert isinstance(outcome, Ok), outcome
    values = outcome.values.values
    assert values["seconds"] >= 5 / 50
    assert outcome.values.looks[-1][2] == 5 * parts.BATCH_ROWS
    assert outcome.values.looks[-1][1] >= 1
    assert values["p99_s"] >= values["p50_s"] > 0


def test_who_waits_for_flushes_has_connections_for_what_is_due_meanwhile() -> None:
    found = {(mode.name, rate): parts.Stream(mode, rate).senders for mode in parts.MODES for rate in (1, 200)}
    assert found.pop(("insert_async", 200)) == 80
    assert {*found.values()} == {parts.SENDERS}


def test_a_stream_that_lost_rows_is_a_failure(servers: Servers, stream: tuple[ClickHouseTables, pa.Table]) -> None:
    more = generator.arrow_table(STANDARD.table, 6 * parts.BATCH_ROWS, 7)
    outcome = streamed("insert", servers, stream, more)
    assert isinstance(outcome, Failed)
    assert "50 rows instead of 60" in outcome.reason


def test_rows_of_all_months_make_more_parts_than_those_of_one(
    servers: Servers, stream: tuple[ClickHouseTables, pa.Table]
) -> None:
    found = {name: streamed(name, servers, stream) for name in ("insert", "insert_all_months")}
    most = {name: one.values.values["most_parts"] for name, one in found.items() if isinstance(one, Ok)}
    assert most["insert_all_months"] > 2 * most["insert"]


def test_without_a_queue_asynchronous_inserts_are_skipped_with_a_remedy(servers: Servers) -> None:
    with pytest.raises(UnavailableError, match="SERVERS=docker or external"):
        parts._check_queue(ClickHouseTables(servers.clickhouse))


def test_the_summary_recommends_for_tables_like_somebodys() -> None:
    cases = [row["case"] for row in Summary.of(committed.RUN).choices().rows]
    measured = {STANDARD.name, *store.read(committed.RUN / STUDY.results, Row)["shape"]}
    for like, shapes in findings.LIKE.items():
        here = not shapes or not measured.isdisjoint(shapes)  # what was added since the run is not in it
        assert cases.count(f"for tables like these ({like})") == len(runs.FEW) * here


# What is said of passes that are made up.


def of(
    speeds: dict[tuple[str, str, int], list[float]], database: str = "postgres", direction: str = "write"
) -> pl.DataFrame:
    """Passes of techniques at points, in rows/s by round."""
    rows = [
        Row(
            run_id="r", notebook="n", database=database, direction=direction, technique=name, label=name.upper(),
            origin="published" if name == "p" else "everyday" if name.startswith("e") else "beyond", family="arrow",
            driver="adbc", frame="polars", rows=size, pass_=number, seconds=size / speed, rows_per_s=speed,
            bytes_per_s=speed, p50_s=1 / speed, p99_s=2 / speed, dtypes="exact", connections=1,
            contract="append" if direction == "write" else None, shape=shape, calls=1, rate=None,
        )
        for (name, shape, size), every in speeds.items() for number, speed in enumerate(every, 1)
    ]  # fmt: skip
    frame = pl.DataFrame([*map(vars, rows)], infer_schema_length=None).rename({"pass_": "pass"})
    return frame.cast(cast("Any", store.schema_of(Row)))


NOISE = [1.0, 1.01, 0.99]


def noisy(speed: float) -> list[float]:
    return [speed * one for one in NOISE]


def test_who_is_near_everywhere_is_robust_and_who_falls_behind_once_is_not() -> None:
    passes = of(
        {
            ("a", "standard", 1_000): noisy(100), ("b", "standard", 1_000): noisy(95),
            ("p", "standard", 1_000): noisy(90),
            ("a", "texts", 100): noisy(30), ("b", "texts", 100): noisy(100), ("p", "texts", 100): noisy(99),
        }
    )  # fmt: skip
    keeping = {one.technique: one for one in findings.keeping_up(findings.judge(passes))}
    assert {name: one.verdict for name, one in keeping.items()} == {
        "a": "falls behind", "b": "robust", "p": "robust",
    }  # fmt: skip
    assert keeping["a"].behind == [("texts", 100)]
    assert "robust on all tables: B; P" in study.answer_text(passes)
    text = str(study.robust_table(findings.judge(passes)))
    assert "| PostgreSQL write, append | A | falls behind | 0.30x (0.30 to 0.30 in 3 rounds) at 2 long texts" in text


def test_who_does_not_work_somewhere_is_not_robust() -> None:
    passes = of({("a", "standard", 10): noisy(100), ("b", "standard", 10): noisy(99), ("a", "texts", 10): noisy(5),
                 ("b", "texts", 10): noisy(5)})  # fmt: skip
    broken = (pl.col("technique") == "b") & (pl.col("shape") == "texts")
    passes = passes.with_columns(
        pl.when(broken).then(pl.lit("skipped")).otherwise("status").alias("status"),
        pl.when(broken).then(pl.lit("row is too big")).otherwise("reason").alias("reason"),
    )
    keeping = {one.technique: one for one in findings.keeping_up(findings.judge(passes))}
    assert keeping["b"].verdict == "does not work everywhere"
    assert "2 long texts" in str(study.robust_table(findings.judge(passes)))
    assert "| PostgreSQL write | B | 2 long texts | row is too big |" in str(study.stopped_table(passes))


def test_noise_is_inconclusive() -> None:
    passes = of({("a", "standard", 10): [100, 50, 200], ("b", "standard", 10): [90, 120, 60]})
    page = findings.judge(passes)
    assert {one.verdict for one in findings.keeping_up(page) if one.technique == "b"} == {"inconclusive"}
    assert findings.fastest(page)[0]["tied"] == ["B"]
    assert "nobody is told to be within 20% everywhere" in study.answer_text(passes)


def test_from_where_on_a_statement_is_slower_is_told() -> None:
    speeds = {
        ("p", "standard", 1): noisy(10), ("e1", "standard", 1): noisy(10), ("e2", "standard", 1): noisy(5),
        ("p", "standard", 10): noisy(100), ("e1", "standard", 10): noisy(30), ("e2", "standard", 10): noisy(20),
        ("p", "standard", 100): noisy(1_000), ("e1", "standard", 100): noisy(40), ("e2", "standard", 100): noisy(2_000),
    }  # fmt: skip
    page = findings.judge(of(speeds))
    found = {row["technique"]: row["from"] for row in findings.from_rows(page)}
    assert found["e1"].statement["rows"] == 10
    assert found["e2"] is None, "it is faster again with more rows"
    text = str(study.crossings_table(page))
    assert "from 10 rows on, than P" in text
    assert "not with any number of rows" in text
    assert "E1: from 10" in study.answer_text(of(speeds))


def test_recommendations_are_exact_and_near_where_they_are_farthest_behind() -> None:
    speeds = {
        ("a", "hits", 100): noisy(100), ("a", "narrow", 100): noisy(50), ("b", "hits", 100): noisy(90),
        ("b", "narrow", 100): noisy(100), ("p", "hits", 100): noisy(95), ("p", "narrow", 100): noisy(98),
    }  # fmt: skip
    passes = of(speeds)
    [wide] = findings.for_tables_like(findings.judge(passes))
    assert (wide["like"], wide["technique"]) == ("wide", "p")
    drifts = pl.when(technique="p").then(pl.lit("a:str")).otherwise("dtypes").alias("dtypes")
    [wide] = findings.for_tables_like(findings.judge(passes.with_columns(drifts)))
    assert wide["technique"] == "b"
    assert "0.90x of the fastest at 105 mixed columns, 100 rows" in str(study.like_table(findings.judge(passes))) or (
        "0.95x of the fastest at 105 mixed columns, 100 rows" in str(study.like_table(findings.judge(passes)))
    )


def test_an_exact_technique_that_is_far_behind_is_recommended_with_who_is_faster_and_what_that_loses() -> None:
    def recommended(exact: float) -> dict[str, Any]:
        speeds = {("a", "standard", 1): noisy(exact), ("p", "standard", 1): noisy(100)}
        passes = of(speeds, direction="read")
        drifts = pl.when(technique="p").then(pl.lit("key:Object;n:Int64;m:Int64")).otherwise("dtypes").alias("dtypes")
        page = findings.judge(passes.with_columns(drifts))
        [small] = [row for row in findings.for_tables_like(page) if row["like"] == "small batches"]
        said = findings.faster_text(small["faster"])
        assert said in str(study.like_table(page))
        return small | {"said": said}

    far, near = recommended(16), recommended(90)
    assert far["technique"] == near["technique"] == "a"
    assert far["said"] == "P: 1.00x, but key as Object, n as Int64 and 1 more"
    assert near["said"] == "", "within reach"
    speeds = {("a", "standard", 1): [100.0, 10, 300], ("p", "standard", 1): [90.0, 400, 20]}
    [small, *_] = findings.for_tables_like(findings.judge(of(speeds, direction="read")))
    assert findings.faster_text(small["faster"]) == "", "not told apart"


def test_the_standard_order_is_compared_with_that_of_other_tables() -> None:
    names = ("a", "b", "p")
    same = {(name, "standard", 10): noisy(10 * at) for at, name in enumerate(names, 1)}
    turned = {(name, "texts", 10): noisy(10 / at) for at, name in enumerate(names, 1)}
    rows = findings.fastest(findings.judge(of(same | turned)))
    assert {row["point"][0]: row["order"] for row in rows} == {"standard": None, "texts": -1.0}


def test_who_leads_stays_until_it_is_told_to_be_slower() -> None:
    speeds = {
        ("p", "standard", 1): noisy(100), ("b", "standard", 1): noisy(50), ("e", "standard", 1): noisy(900),
        ("p", "standard", 10): [90.0, 400, 20], ("b", "standard", 10): [100.0, 10, 300],
        ("p", "standard", 100): noisy(100), ("b", "standard", 100): noisy(200), ("bulk", "standard", 100): noisy(900),
        ("b", "texts", 10): noisy(7), ("drifted", "texts", 10): noisy(70),
    }  # fmt: skip
    passes = of(speeds).with_columns(
        contract=pl.when(technique=pl.lit("bulk")).then(pl.lit("bulk_load")).otherwise("contract"),
        dtypes=pl.when(technique=pl.lit("drifted")).then(pl.lit("c:Date:String")).otherwise("dtypes"),
    )
    assert [one[1:] for one in study.leaders_table(passes).cells()] == [
        ["the standard 13 columns", "1", "`p`", "100", "", "100"],
        ["the standard 13 columns", "100", "`b`", "200", "", "100"],
        ["2 long texts", "10", "`b`", "7", "", "10"],
    ]


def test_parts_pile_up_where_a_long_stream_has_very_many_or_falls_behind() -> None:
    rates = {1: (20.0, 1.0, 19), 10: (20.0, 9.5, 999), 50: (20.0, 50.0, 1_000), 200: (20.0, 33.0, 60)}
    rates[100] = (0.6, 1.0, 9_999)  # too short to tell
    streams = [
        of({("insert", STREAM, 10): [10.0 * got]}).with_columns(
            rate=pl.lit(rate, pl.Int64), calls=pl.lit(round(rate * seconds), pl.Int64), seconds=pl.lit(seconds),
            most_parts=pl.lit(float(parts)), p99_s=pl.lit(110.25),
        )
        for rate, (seconds, got, parts) in rates.items()
    ]  # fmt: skip
    looks = [{"technique": "insert", "rate": rate, "pass": 1, "rows": 1, "second": 0.1, "parts": 1} for rate in rates]
    assert study.piling_text(pl.concat(streams), pl.DataFrame(looks)) == (
        "- **INSERT**: keeps up with 1/s (19 parts at most), 10/s (999 parts at most); parts pile up at "
        "50/s (1,000 parts at most, 50 batches/s got through, p99 110 s), "
        "200/s (60 parts at most, 33 batches/s got through, p99 110 s)."
    )


def test_a_run_that_moved_nothing_has_pages_and_figures() -> None:
    passes = of({("p", "standard", 1): noisy(10), ("b", "texts", 10): noisy(10)}).with_columns(
        pl.lit("skipped").alias("status"), pl.lit("no such server").alias("reason"),
        pl.lit(None, pl.Float64).alias("rows_per_s"), pl.lit(None, pl.Float64).alias("p50_s"),
    )  # fmt: skip
    page, samples = findings.judge(passes), pl.DataFrame(schema=cast("Any", store.schema_of(parts.Sample)))
    assert "nothing was moved" in study.answer_text(passes)
    for table in (
        study.fastest_table(page), study.like_table(page), study.crossings_table(page), study.latency_table(passes),
        study.stream_table(passes, samples), study.columns_table(passes), study.leaders_table(passes),
    ):  # fmt: skip
        assert table.rows == []
    assert study.rank_figure(page, "postgres", "write").axes
    assert study.small_figure(passes).axes
    assert study.parts_figure(samples).axes


@pytest.mark.parametrize(
    ("given", "said"),
    [({"rows": 0}, "ROWS=0"), ({"megabytes": 0.0}, "MEGABYTES=0.0"), ({"megabytes": float("nan")}, "MEGABYTES=nan"),
     ({"points": "many"}, "POINTS='many'"), ({"passes": 0}, "PASSES=0")],
)  # fmt: skip
def test_bad_parameters_are_named(given: dict[str, Any], said: str) -> None:
    whole: dict[str, Any] = {
        "rows": 10,
        "megabytes": 1.0,
        "points": "least",
        "passes": 1,
        "warmup": 0,
        "seed": 1,
    } | given
    with pytest.raises(ValueError, match=said):
        runs.run(**whole)
