"""The studies of drivers: loops and latencies, what counts as right, the programs, and what a run leaves behind."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psutil
import psycopg
import pytest

from framehaul.bench import store
from framehaul.bench.passes import columns_of
from framehaul.bench.ratios import verdicts
from framehaul.bench.rounds import Rounds
from framehaul.errors import ServerError, UnavailableError
from framehaul.reporting.study import Study
from framehaul.reporting.tables import missing
from framehaul.servers import Servers
from framehaul.settings import PROJECT, Settings
from framehaul.studies.drivers import CLICKHOUSE, POSTGRES, STUDIES, catalog, program, runner
from framehaul.studies.drivers import study as drivers
from framehaul.studies.drivers.catalog import Contender, Program, ProgramError, started
from framehaul.studies.drivers.driver import Driver
from framehaul.studies.drivers.runner import ClickHouseGround, Load, Measurement, PostgresGround, Task
from framehaul.studies.drivers.shapes import CLICKHOUSE_TABLES, POSTGRES_SHAPES, PUBLISHED_SHAPES, RECORDS, Shape
from tests.conftest import WHOLE, mostly_slow, numbers_of, values_of

SHAPES = {shape.name: shape for shape in POSTGRES_SHAPES}
NOT_OFFERED = {("aiopg", "copy"), ("aiopg_dict", "copy"), ("node_pg_native", "copy")}
TOOLS = {"Go": "go", "Node": "npm"}
DUMMY = Shape("one", "one", "fetch", "SELECT 1")


def measured(out: Path, study: Study) -> pl.DataFrame:
    return store.read(out / "results" / study.results, Measurement)


# What a run leaves behind


@WHOLE
def test_every_postgres_driver_answered_every_shape_in_every_pass(out: Path) -> None:
    passes = measured(out, POSTGRES)
    expected = {(one.name, shape.name, number) for one in catalog.POSTGRES for shape in POSTGRES_SHAPES
                for number in numbers_of(out)}  # fmt: skip
    assert set(passes.select("driver", "shape", "pass").rows()) == expected
    assert len(passes) == len(expected)
    missing_tools = {language for language, tool in TOOLS.items() if shutil.which(tool) is None}
    for row in passes.to_dicts():
        assert (row["status"] == "ok") == (row["reason"] is None) == (row["seconds"] is not None), row
        if row["status"] != "ok":
            assert row["status"] == "skipped", row
            unbuilt = row["driver"] == "node_pg_native" and "pg-native is not built" in row["reason"]
            assert (row["driver"], row["shape"]) in NOT_OFFERED or row["language"] in missing_tools or unbuilt, row


@WHOLE
def test_figures_of_a_pass_fit_together(out: Path) -> None:
    passes = measured(out, POSTGRES).filter(status="ok")
    assert len(passes) > 75 * len(numbers_of(out))
    rows_of = {"integers": 1000, "blobs": 100, "arrays": 100, "copy": 10_000, "insert": 1000, "one": 1}
    for row in passes.to_dicts():
        assert row["queries"] >= 1
        assert row["rows"] == row["queries"] * rows_of.get(row["shape"], row["rows"] // row["queries"])
        assert row["rows_per_s"] == pytest.approx(row["rows"] / row["seconds"])
        assert row["queries_per_s"] == pytest.approx(row["queries"] / row["seconds"])
        percentiles = [row[f"latency_{name}_ms"] for name in
                       ("min", "p25", "p50", "p75", "p90", "p99", "p999", "p9999", "max")]  # fmt: skip
        assert percentiles == sorted(percentiles)
        assert row["latency_min_ms"] <= row["latency_mean_ms"] <= row["latency_max_ms"]
        assert row["client_cpu_s"] >= 0
        assert row["unserved"] == 0


@WHOLE
def test_every_clickhouse_client_fetched_every_table(out: Path) -> None:
    passes = measured(out, CLICKHOUSE)
    assert set(passes["status"]) == {"ok"}, passes.filter(pl.col("status") != "ok")
    shapes = [*(("flat", count) for count in values_of(out, CLICKHOUSE)["concurrency"]), ("texts", 1), ("nested", 1)]
    expected = {
        (one.name, *shape, number) for one in catalog.CLICKHOUSE for shape in shapes for number in numbers_of(out)
    }
    assert set(passes.select("driver", "shape", "connections", "pass").rows()) == expected
    assert passes.filter(pl.col("queries") != pl.col("connections")).is_empty()
    assert passes.filter(pl.col("rows") != pl.col("connections") * (300 // pl.col("connections"))).is_empty()


@WHOLE
def test_tasks_are_interleaved_and_shuffled(out: Path) -> None:
    for study in STUDIES:
        passes = measured(out, study)
        assert passes["pass"].is_sorted()
        first, second = (passes.filter(pl.col("pass") == number).select("driver", "shape").rows() for number in (1, 2))
        assert sorted(first) == sorted(second)
        assert first != second


@WHOLE
def test_the_readers_tables_can_be_made_of_a_run(out: Path) -> None:
    blocks = drivers.writeup_blocks(out / "results")
    for one in catalog.POSTGRES:
        assert f"| {one.label} |" in blocks["drivers"]
    assert blocks["drivers-claims"].count("\n") == 2 + len(drivers.CLAIMS)
    for one in catalog.CLICKHOUSE:
        assert f"| {one.label} |" in blocks["clients"]
    page = (out / "reports" / "10_postgres_drivers.html").read_text()
    assert "psycopg2 cannot COPY over an asynchronous connection" in page
    metadata = json.loads((out / "results" / "environment.json").read_text())["runs"][POSTGRES.notebook]
    passes = len(numbers_of(out))
    assert metadata["what"] == f"2 connections, closed loop, 0.05 s after 0.01 s of warm-up, {passes} passes"
    assert set(metadata["toolchains"]) == {
        name for name, tool in (("Go", "go"), ("Node", "node")) if shutil.which(tool)
    }


# Each program


@pytest.fixture(scope="module")
def ground(servers: Servers) -> Iterator[PostgresGround]:
    with PostgresGround(servers.postgres).with_tables() as ground:
        yield ground


# One of each loop; what is not Python is built first.
@pytest.fixture(
    params=mostly_slow(catalog.POSTGRES, lambda one: one.name in ("asyncpg", "psycopg_binary"), lambda one: one.name)
)
def running(request: pytest.FixtureRequest, settings: Settings) -> Iterator[Program]:
    if request.param.language == "Go":
        request.getfixturevalue("go_drivers")
    try:
        command = request.param.command(settings)
    except UnavailableError as error:
        pytest.skip(str(error))
    with started(command) as found:
        yield found


def measure(
    address: dict[str, Any], shape: Shape, seconds: float, rate: float = 0, connections: int = 2
) -> dict[str, Any]:
    return address | {
        "do": "measure", "shape": dataclasses.asdict(shape), "connections": connections, "warmup_seconds": 0,
        "seconds": seconds, "rate": rate,
    }  # fmt: skip


def test_a_driver_tells_of_an_error_and_goes_on(running: Program, ground: PostgresGround) -> None:
    broken = dataclasses.replace(SHAPES["one"], sql="SELECT no_such_column")
    wrong = {"dsn": ground.address()["dsn"].replace("@", "wrong@", 1)}
    try:
        for request in (
            measure(ground.address(), broken, 0.05),
            ground.address() | {"do": "check", "shape": dataclasses.asdict(broken)},
        ):
            with pytest.raises(ProgramError, match="no_such_column"):
                running.ask(request)
        with pytest.raises(ProgramError) as refused:
            running.ask(measure(wrong, SHAPES["one"], 0.05))
        assert wrong["dsn"] not in str(refused.value)
        assert wrong["dsn"].partition("@")[0].rpartition(":")[2] not in str(refused.value)
        assert running.ask(ground.address() | {"do": "check", "shape": dataclasses.asdict(SHAPES["one"])}) == {
            "rows": [[2]]
        }
    except UnavailableError as error:
        pytest.skip(str(error))


def test_an_open_loop_sends_at_its_rate_and_counts_what_it_could_not_send(
    running: Program, ground: PostgresGround
) -> None:
    try:
        easy = running.ask(measure(ground.address(), SHAPES["one"], 0.3, rate=100))
        # Two connections answer at most 20 of these in a second.
        slow = dataclasses.replace(SHAPES["one"], sql="SELECT pg_sleep(0.1)::text")
        hard = running.ask(measure(ground.address(), slow, 0.5, rate=100))
    except UnavailableError as error:
        pytest.skip(str(error))
    assert easy["queries"] + easy["unserved"] == len(easy["latencies_ns"]) == 30
    assert min(easy["latencies_ns"]) > 0, "sent before it was due"
    assert hard["queries"] + hard["unserved"] == len(hard["latencies_ns"]) == 50
    assert hard["unserved"] > 0
    # What is due while others wait, waits as well: each latency counts from when its query was due.
    assert max(hard["latencies_ns"]) > 0.3e9
    assert sum(latency > 0.15e9 for latency in hard["latencies_ns"]) > 10


# The loop of Python's drivers


class Stalling:
    """A client whose first query stalls."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def fetch(self) -> list[int]:
        time.sleep(self.seconds)
        self.seconds = 0
        return [1]


STALLING = Driver(Stalling, lambda client, _: client.fetch(), close=lambda _: None)


def drive(rate: float, seconds: float = 0.3, stall: float = 0.2) -> dict[str, Any]:
    return program.answered(STALLING, stall, measure({}, DUMMY, seconds, rate, connections=1))


def test_a_stall_is_felt_by_all_that_it_delays_in_an_open_loop_only() -> None:
    closed, opened = drive(rate=0), drive(rate=100)
    assert sum(latency > 0.05e9 for latency in closed["latencies_ns"]) == 1
    assert closed["queries"] > 1
    # Twenty were due while the first stalled; those of its first 0.15 s waited for more than 0.05 s.
    assert sum(latency > 0.05e9 for latency in opened["latencies_ns"]) >= 15
    assert opened["queries"] + opened["unserved"] == 30


def test_what_was_never_sent_counts_with_the_time_that_it_waited() -> None:
    answer = drive(rate=100, seconds=0.2, stall=0.3)
    assert answer["queries"] == 1
    assert answer["unserved"] == 19
    assert sorted(answer["latencies_ns"])[:3] == [10_000_000, 20_000_000, 30_000_000]
    assert max(answer["latencies_ns"]) >= 0.3e9


def test_a_connection_sends_at_least_one_query() -> None:
    answer = program.answered(STALLING, 0, measure({}, DUMMY, drivers.ONE_QUERY_SECONDS, connections=5))
    assert answer["queries"] == answer["rows"] == 5


def test_an_answer_is_whole_although_a_signal_interrupts_its_write(ground: PostgresGround, settings: Settings) -> None:
    wide = dataclasses.replace(DUMMY, sql="SELECT repeat('a', 300000)")
    request = ground.address() | {"do": "check", "shape": dataclasses.asdict(wide)}
    command = catalog.POSTGRES[0].command(settings)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONUNBUFFERED": "1"}, bufsize=0
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        select.select([process.stdout], [], [], 60)
        time.sleep(0.2)  # by now the pipe is full, and the program waits
        process.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGCONT)
        process.stdin.close()
        assert json.loads(process.stdout.read()) == {"rows": [["a" * 300_000]]}


def test_a_query_that_fails_stops_the_others() -> None:
    def fetch(client: list[int], _: Shape) -> list[int]:
        client.append(1)
        if len(client) == 3:
            raise ValueError("the third\nfails")
        return [1]

    clients: list[list[int]] = []

    def opened(_: object) -> list[int]:
        clients.append([])
        return clients[-1]

    answer = program.answered(Driver(opened, fetch, close=lambda _: None), None, measure({}, DUMMY, 3600))
    assert answer == {"error": "ValueError: the third fails"}


@pytest.mark.parametrize("loop", ["threads", "asyncio", "uvloop"])
def test_connections_are_closed_also_after_an_error(loop: Any) -> None:
    closed: list[int] = []

    def failing(*_: object) -> list[int]:
        raise ValueError("no")

    async def failing_async(*_: object) -> list[int]:
        return failing()

    async def opened_async(_: object) -> int:
        return 7

    driver = (
        Driver(lambda _: 7, failing, close=closed.append) if loop == "threads"
        else Driver(opened_async, failing_async, loop=loop, close=closed.append)
    )  # fmt: skip
    assert program.answered(driver, None, measure({}, DUMMY, 0.01)) == {"error": "ValueError: no"}
    assert closed == [7, 7]


def test_latencies_are_exact() -> None:
    times = list(np.random.default_rng(1).integers(1, 10**9, 5000))
    found = runner.latencies([int(value) for value in times])
    assert found["latency_p50_ms"] == pytest.approx(np.median(times) / 1e6)
    assert found["latency_p999_ms"] == pytest.approx(np.percentile(times, 99.9) / 1e6)
    assert found["latency_max_ms"] == max(times) / 1e6
    assert found["latency_std_ms"] == pytest.approx(np.std(times) / 1e6)
    assert set(found) <= {field.name for field in dataclasses.fields(Measurement)}


# What counts as right


@pytest.mark.parametrize(
    ("got", "said"),
    [
        ([[1, "a", [1, 2]]], None),
        ([[1, "61", [1, 2]]], None),
        ([["1", "a", [1, 2]]], "row 0: 1 became '1'"),
        ([[1, "a", [1, 3]]], "[1, 2] became [1, 3]"),
        ([[1, "a", "{1,2}"]], "[1, 2] became '{1,2}'"),
        ([[1, "a"]], "row 0 has 2 values instead of 3"),
        ([[True, "a", [1, 2]]], "1 became True"),
        ([[1, None, [1, 2]]], "'a' became NULL"),
        ([], "0 rows instead of 1"),
    ],
)
def test_a_difference_is_found(got: list[list[Any]], said: str | None) -> None:
    found = runner.difference(got, [[1, "a", [1, 2]]], arrays_as_text=False)
    assert found is None if said is None else found is not None and said in found


def test_arrays_may_stay_text_where_that_is_what_is_compared() -> None:
    assert runner.difference([["{1,2}"]], [[[1, 2]]], arrays_as_text=True) is None
    assert runner.difference([["{1,3}"]], [[[1, 2]]], arrays_as_text=True)
    assert runner.difference([[11]], [["11"]], arrays_as_text=False) is None  # an oid, which JSON quotes
    assert runner.difference([["6162"]], [["\\x6162"]], arrays_as_text=False) is None


FAKE = """
import json, os, sys, time
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "check" and {honest}:
        print(json.dumps({check}), flush=True)
        continue
    {deed}
"""
MEASURED = {
    "queries": 2,
    "rows": 2,
    "all_rows": 2,
    "seconds": 1,
    "cpu_seconds": 0,
    "unserved": 0,
    "latencies_ns": [1, 2],
}


def fake(name: str, deed: str, check: object = None, *, honest: bool = True) -> Contender:
    script = FAKE.format(deed=deed, check=check or {"rows": [[2]]}, honest=honest)
    return Contender(name, name, "Python", "beyond", lambda _: [sys.executable, "-c", script])


def answering(answer: object) -> str:
    return f"print(json.dumps({answer!r}), flush=True)"


def outcomes(tasks: list[Task], ground: runner.Ground, settings: Settings, passes: int = 2) -> dict[str, Any]:
    """How each pass of each driver ended, as the columns of its row."""
    found: dict[str, Any] = {}
    runner.run(
        tasks, ground, settings, Rounds(passes, seed=1),
        lambda task, _, one: found.setdefault(task.contender.name, []).append(columns_of(one)),
    )  # fmt: skip
    return found


def test_drivers_that_are_wrong_or_break_are_failed_and_the_others_go_on(
    ground: PostgresGround, settings: Settings
) -> None:
    def unavailable(_: Settings) -> list[str]:
        raise UnavailableError("install it")

    one, load = SHAPES["one"], Load(2, 0.01, 0, 0)
    found = outcomes(
        [
            Task(fake("honest", answering(MEASURED)), one, load),
            Task(fake("lies", answering(MEASURED), {"rows": [[3]]}), one, load),
            Task(fake("loses", answering(MEASURED | {"rows": 1})), one, load),
            Task(fake("dies", "sys.exit('out of luck')"), one, load),
            Task(fake("raises", answering({"error": "no such thing"})), one, load),
            Task(fake("cannot", answering({"unavailable": "use another"})), one, load),
            Task(Contender("missing", "missing", "Go", "beyond", unavailable), one, load),
            Task(catalog.POSTGRES[0], one, load),
        ],
        ground, settings,
    )  # fmt: skip
    said = {name: [(outcome["status"], outcome["reason"]) for outcome in both] for name, both in found.items()}
    assert said == {
        "honest": [("ok", None)] * 2,
        "lies": [("failed", "row 0: 2 became 3")] * 2,
        "loses": [("failed", "1 rows in 2 queries of 1 each")] * 2,
        "dies": [("failed", "out of luck")] * 2,
        "raises": [("failed", "no such thing")] * 2,
        "cannot": [("skipped", "use another")] * 2,
        "missing": [("skipped", "install it")] * 2,
        catalog.POSTGRES[0].name: [("ok", None)] * 2,
    }
    assert found["honest"][0]["rows_per_s"] == 2
    assert found["honest"][0]["latency_max_ms"] == 2e-6


def test_a_driver_that_never_answers_is_ended(
    ground: PostgresGround, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "PATIENCE_SECONDS", 1)
    task = Task(fake("hangs", "time.sleep(3600)", honest=False), SHAPES["one"], Load(2, 0.01, 0, 0))
    assert outcomes([task], ground, settings) == {"hangs": [{"status": "failed", "reason": "no answer within 1 s"}] * 2}


def test_what_is_no_fault_of_a_driver_ends_the_run(
    ground: PostgresGround, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(*_: object) -> None:
        raise ServerError("it is gone")

    monkeypatch.setattr(ground, "check", check)
    with pytest.raises(ServerError, match="it is gone"):
        outcomes([Task(fake("honest", answering(MEASURED)), SHAPES["one"], Load(2, 0.01, 0, 0))], ground, settings)


def test_passes_that_an_interrupted_run_has_left_are_not_measured_again(
    ground: PostgresGround, settings: Settings
) -> None:
    task, numbers = Task(fake("honest", answering(MEASURED)), SHAPES["one"], Load(2, 0.01, 0, 0)), []
    runner.run(
        [task], ground, settings, Rounds(3), lambda _, number, one: numbers.append(number),
        finished=lambda _, number: number < 3,
    )  # fmt: skip
    assert numbers == [3]


def test_rows_that_were_not_stored_are_missed(ground: PostgresGround, settings: Settings, servers: Servers) -> None:
    task = Task(fake("boasts", answering(MEASURED), {"rows": 1000}), SHAPES["insert"], Load(2, 0.01, 0, 0))
    assert outcomes([task], ground, settings, 1)["boasts"] == [
        {"status": "failed", "reason": "0 rows are stored instead of 1000, 0 of them wrong"}
    ]
    with psycopg.connect(servers.postgres.dsn(), autocommit=True) as connection:
        connection.execute(f"INSERT INTO {RECORDS} VALUES (10, 11, 10, 'TESTTESTTEST', 10.333, 12341234, 'other')")
    assert ground.check_moved(SHAPES["copy"], {"all_rows": 1}) == "1 rows are stored instead of 1, 1 of them wrong"
    # What somebody left is no fault of the next.
    with psycopg.connect(servers.postgres.dsn(), autocommit=True) as connection:
        connection.execute(f"INSERT INTO {RECORDS} VALUES (1)")
    found = outcomes([Task(catalog.POSTGRES[0], SHAPES["copy"], Load(2, 0.01, 0, 0))], ground, settings, 1)
    assert found["asyncpg"][0]["status"] == "ok"


def test_a_client_with_other_rows_is_failed(servers: Servers, settings: Settings) -> None:
    shape, load = CLICKHOUSE_TABLES[0].shape(50), Load(1, 0.01, 0, 0)
    rows = [program.json_row(CLICKHOUSE_TABLES[0].row(at)) for at in range(50)]
    right = {"rows": 50, "digest": program.digest(rows)}
    rows[-1][1] = "2024-12-14T07:20:50+00:00"
    with ClickHouseGround(servers.clickhouse, 50).with_tables() as ground:
        found = outcomes(
            [
                Task(fake("honest", answering(MEASURED | {"rows": 100}), right), shape, load),
                Task(fake("other", answering(MEASURED), right | {"digest": program.digest(rows)}), shape, load),
                Task(fake("fewer", answering(MEASURED), right | {"rows": 49}), shape, load),
                Task(fake("loses", answering(MEASURED | {"rows": 99}), right), shape, load),
            ],
            ground, settings, 1,
        )  # fmt: skip
    assert {name: one[0]["reason"] for name, one in found.items()} == {
        "honest": None, "other": "other values than the server made", "fewer": "49 rows of 50",
        "loses": "99 rows in 2 queries of 50 each",
    }  # fmt: skip


def test_a_table_of_our_name_that_is_not_ours_is_refused_and_stays(servers: Servers) -> None:
    with psycopg.connect(servers.postgres.dsn(), autocommit=True) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {RECORDS}")
        connection.execute(f"CREATE TABLE {RECORDS} (precious int)")
        try:
            with (
                pytest.raises(ServerError, match=f"holds a table {RECORDS}"),
                PostgresGround(servers.postgres).with_tables(),
            ):
                pass
            assert connection.execute(f"SELECT precious FROM {RECORDS}").fetchall() == []
        finally:
            connection.execute(f"DROP TABLE {RECORDS}")


# Programs of other languages


@pytest.mark.parametrize(("language", "remedy"), [("Go", "https://go.dev/dl/"), ("Node", "https://nodejs.org")])
def test_a_missing_toolchain_is_named_with_what_it_takes(
    language: str, remedy: str, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for one in catalog.POSTGRES:
        if one.language == language:
            with pytest.raises(UnavailableError, match=remedy):
                one.command(settings)
    assert catalog.versions() == {}


@pytest.mark.slow
@pytest.mark.parametrize(("language", "said"), [("Go", "were not built"), ("Node", "were not installed")])
def test_a_build_that_fails_says_why(
    language: str, said: str, open_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if shutil.which(TOOLS[language]) is None:
        pytest.skip(f"there is no {TOOLS[language]}")
    (tmp_path / "go").mkdir()
    (tmp_path / "go" / "go.mod").write_text("module broken\n")
    (tmp_path / "go" / "main.go").write_text("package main\nfunc main() { nonsense }\n")
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "package-lock.json").write_text("{}")
    monkeypatch.setattr(catalog, "SOURCES", tmp_path)
    one = next(one for one in catalog.POSTGRES if one.language == language)
    with pytest.raises(UnavailableError, match=said) as raised:
        one.command(Settings(state_dir=tmp_path / "state"))
    assert str(tmp_path) not in str(raised.value)


def test_a_run_does_not_wait_for_a_build_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "PATIENCE_SECONDS", 0.1)
    with pytest.raises(UnavailableError, match=r"^it was not built within 0\.1 s\. make tools waits for that$"):
        catalog.build(["sh", "-c", "sleep 98761 | sleep 98761"], tmp_path, "it was not built")
    assert not [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", "98761"]]


GO = """#!{python}
import sys
from pathlib import Path
with open({log!r}, "a") as log:
    log.write(sys.argv[1] + " ")
if sys.argv[1] == "build":
    Path(sys.argv[3]).touch()
else:
    print(Path({log!r}).with_name(sys.argv[1]).read_text())
"""


CARGO = """#!{python}
import pathlib, sys
target = pathlib.Path(sys.argv[sys.argv.index("--target-dir") + 1])
with open({log!r}, "a") as log:
    print(*sys.argv[1:4], pathlib.Path.cwd().name, file=log)
"""


def test_the_adbc_driver_of_clickhouse_is_built_where_driver_managers_look_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, environment = tmp_path / "log", tmp_path / "environment"
    monkeypatch.setattr(sys, "prefix", str(environment))
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = Settings(state_dir=tmp_path / "state")
    with pytest.raises(UnavailableError, match="there is no cargo on PATH"):
        catalog.adbc_clickhouse(settings)
    (tmp_path / "cargo").write_text(CARGO.format(python=sys.executable, log=str(log)))
    (tmp_path / "cargo").chmod(0o755)
    for _ in range(2):  # cargo knows what is up to date
        manifest = catalog.adbc_clickhouse(settings)
    assert log.read_text().splitlines() == ["build --release --locked adbc_clickhouse"] * 2
    assert manifest == environment / "etc" / "adbc" / "drivers" / "clickhouse.toml"
    shared = Path(tomllib.loads(manifest.read_text())["Driver"]["shared"])
    # make clean leaves it
    assert shared.is_relative_to(settings.state_dir / "tools")
    manifest.write_text("manifest_version = 1\n[Driver]\nshared = '/installed/by/dbc.so'\n")
    assert "dbc.so" in catalog.adbc_clickhouse(settings).read_text()
    assert len(log.read_text().splitlines()) == 2


def test_the_adbc_driver_of_clickhouse_is_of_the_version_that_is_said() -> None:
    sources = catalog.SOURCES / "adbc_clickhouse"
    wanted = tomllib.loads((sources / "Cargo.toml").read_text())
    locked = {one["name"]: one["version"] for one in tomllib.loads((sources / "Cargo.lock").read_text())["package"]}
    assert f"={locked['adbc_clickhouse']}" == wanted["dependencies"]["adbc_clickhouse"]["version"]
    assert locked[wanted["package"]["name"]] == wanted["package"]["version"] == locked["adbc_clickhouse"]


def test_what_go_has_yet_to_compile_is_left_to_make_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, wanted = tmp_path / "log", Settings(state_dir=tmp_path / "state")
    (tmp_path / "go").write_text(GO.format(python=sys.executable, log=str(log)))
    (tmp_path / "go").chmod(0o755)
    (tmp_path / "env").write_text("go1.99")
    (tmp_path / "list").write_text("runtime\ncrypto/tls")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match=r"Go's drivers are not built\. make tools builds them"):
        catalog.go_program(wanted)
    assert log.read_text().split() == ["env", "list"]
    for patient in (True, True, False):
        program = catalog.go_program(wanted, patient=patient)
    assert program.exists()
    assert log.read_text().split()[2:] == ["env", "build", "env", "env"]
    (tmp_path / "env").write_text("go2.0")
    with pytest.raises(UnavailableError, match="make tools"):
        catalog.go_program(wanted)
    (tmp_path / "list").write_text("")
    catalog.go_program(wanted)
    assert log.read_text().split()[-3:] == ["env", "list", "build"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("go") is None, reason="there is no go on PATH")
def test_the_go_program_is_clean_and_its_tests_pass(settings: Settings) -> None:
    for command in (["gofmt", "-l", "."], ["go", "vet", "./..."], ["go", "test", "./..."]):
        done = subprocess.run(command, cwd=PROJECT / "drivers" / "go", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert command[0] != "gofmt" or not done.stdout


@pytest.mark.slow
def test_an_unknown_driver_ends_a_program_with_a_usage(settings: Settings, go_drivers: None) -> None:
    for one in catalog.POSTGRES:
        if one.name not in ("go_pgx", "node_pg") or shutil.which(TOOLS[one.language]) is None:
            continue
        command = [*one.command(settings)[:-1], "unknown"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "pgx" in done.stderr or "pg_native" in done.stderr


# Tables


def passes_of(speeds: dict[str, list[float]], shape: str = "pg_type") -> pl.DataFrame:
    """Passes of drivers at these rows/s; one at 0 has failed."""
    schema = store.schema_of(Measurement)
    figures = dict.fromkeys((name for name in schema if "latency" in name), 1.0)
    figures |= {"queries": 1, "rows": 1, "seconds": 1.0, "client_cpu_s": 0.5, "unserved": 0}
    rows = [
        {"driver": driver, "label": driver, "language": "Python", "origin": "beyond", "shape": shape, "connections": 8,
         "pass": number, "rows_per_s": speed, "queries_per_s": speed, "status": "ok" if speed else "failed",
         "reason": None if speed else "broken", **figures}
        for driver, given in speeds.items()
        for number, speed in enumerate(given, 1)
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=schema)


def test_a_driver_that_was_wrong_once_has_no_figure() -> None:
    found = drivers.summary(passes_of({"a": [10.0, 20.0, 30.0], "b": [10.0, 0, 30.0]}))
    assert found.filter(driver="a").select("rows_per_s", "min_rows_per_s", "max_rows_per_s").row(0) == (20, 10, 30)
    assert found.filter(driver="b").select("rows_per_s", "status", "reason").row(0) == (None, "failed", "broken")


def test_the_geometric_mean_is_over_the_published_shapes_and_only_where_all_are_there() -> None:
    parts = [
        passes_of({"a": [speed]}, shape)
        for shape, speed in zip(PUBLISHED_SHAPES, (1.0, 10.0, 100.0, 1000.0), strict=True)
    ]
    everything = drivers.with_overall(pl.concat([*parts, passes_of({"b": [5.0]}), passes_of({"a": [7e6]}, "one")]))
    overall = everything.filter(shape=drivers.OVERALL)
    assert overall["driver"].to_list() == ["a"]
    assert overall["rows_per_s"][0] == pytest.approx(10**1.5)
    assert overall["client_cores"][0] == pytest.approx(0.5)


def test_a_driver_that_was_wrong_in_one_pass_of_one_shape_has_no_mean() -> None:
    parts = [
        passes_of({"a": [1.0, 2.0], "b": [1.0, 0 if shape == PUBLISHED_SHAPES[0] else 2.0]}, shape)
        for shape in PUBLISHED_SHAPES
    ]
    everything = drivers.with_overall(pl.concat(parts))
    assert set(everything.filter(shape=drivers.OVERALL)["driver"]) == {"a"}
    assert math.isnan(drivers.ratio(everything, PUBLISHED_SHAPES[0], "a", "b").ratio)


@pytest.mark.parametrize(
    ("left", "verdict"),
    [
        ([4.1, 4.2, 4.3], "holds"), ([2.0, 2.1, 2.2], "does not hold"), ([2.5, 3.1, 3.6], "inconclusive"),
        ([3.1, 3.2, 3.3], "inconclusive"), ([], "not measured"),
    ],
)  # fmt: skip
def test_a_claim_is_judged_by_the_interval(left: list[float], verdict: str) -> None:
    passes = passes_of({"left": left, "right": [1.0] * 3})
    assert verdicts([(drivers.ratio(passes, "pg_type", "left", "right"), 3)]) == [verdict]


def test_what_did_not_run_is_listed_with_its_reason() -> None:
    some, none = (drivers.summary(passes_of(speeds)) for speeds in ({"a": [1.0], "b": [0.0]}, {"a": [1.0]}))
    assert "| b | failed | pg_type | broken |" in str(missing(some, "driver", "shape"))
    assert missing(none, "driver", "shape") == "Everything ran."
