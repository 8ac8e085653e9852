"""The measuring loop: what it records when techniques are right, wrong, raise, or take the server with them."""

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
import pytest
from numba.core.event import trigger_event

from framehaul.bench import measure
from framehaul.bench.measure import PassOptions
from framehaul.bench.meter import Moved, Usage
from framehaul.bench.rounds import Failed, Log, Ok, Pass, Rounds
from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.servers import Servers, running
from framehaul.settings import Settings
from framehaul.techniques import Technique
from framehaul.techniques.registry import named

Recorded = list[tuple[str, int, Pass[Moved]]]
CONTENT = generator.arrow_table(ANALYTICS_METRICS, 200, 1)


def run(chosen: list[Technique], server: Any, rounds: Rounds, cold: Any = ()) -> Recorded:
    recorded: Recorded = []
    log = Log[Technique, Moved](lambda one, number, ended: recorded.append((one.name, number, ended)))
    measure.run(chosen, server, ANALYTICS_METRICS, CONTENT, rounds, log, PassOptions(cold))
    return recorded


COPY = named("postgres", "write", "polars_psycopg_copy_text")


def raising(connection: object, table: Table, frame: object) -> None:
    raise RuntimeError("the source failed at row 7")


def panicking(connection: object, table: Table, frame: object) -> None:
    # As pyo3 makes them: https://docs.rs/pyo3/latest/pyo3/panic/struct.PanicException.html
    raise type("PanicException", (BaseException,), {})("not implemented: _timestamp")


def losing_the_last_row(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    COPY.function(connection, table, frame.head(-1))


def swapping_two_columns(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    COPY.function(connection, table, frame.with_columns(metric_1=pl.col("metric_2"), metric_2=pl.col("metric_1")))


WRONG: dict[Callable[..., Any], str] = {
    raising: "RuntimeError: the source failed at row 7",
    panicking: "PanicError: PanicException: not implemented: _timestamp",
    losing_the_last_row: "199 rows instead of 200",
    swapping_two_columns: "content differs in metric_1, metric_2",
}


def test_a_wrong_technique_is_failed_and_the_others_run_on(servers: Servers) -> None:
    wrong = [replace(COPY, function=function) for function in WRONG]
    right = named("postgres", "write", "polars_asyncpg_copy_text")
    recorded = run([*wrong, right], servers.postgres, Rounds(passes=2, warmup=1, seed=1))
    by_name = {name: [ended for other, _, ended in recorded if other == name] for name, *_ in recorded}
    for function, reason in WRONG.items():
        assert by_name[function.__name__] == [Failed(reason)] * 2
    assert len(by_name[right.name]) == 2  # and the warm-up is not recorded
    for ended in by_name[right.name]:
        assert isinstance(ended, Ok)
        assert ended.values.seconds > 0
        assert ended.values.usage.client_cpu_s >= 0
        assert ended.values.wire_bytes is not None


def test_a_server_that_dies_fails_its_technique_and_the_run_goes_on_when_it_is_back(open_dir: Path) -> None:
    urllib, httpx = (named("clickhouse", "write", f"polars_{name}_parquet") for name in ("urllib", "httpx"))
    killed: list[int] = []

    def killing_the_server(endpoint: object, table: Table, frame: pl.DataFrame) -> None:
        if not killed and servers.clickhouse.process_id:
            killed.append(servers.clickhouse.process_id)
            os.kill(servers.clickhouse.process_id, signal.SIGKILL)
        urllib.function(endpoint, table, frame)

    # Servers of its own: the supervisor starts both anew, under other process ids.
    with running(Settings(state_dir=open_dir / "dying")) as servers:
        recorded = run([replace(urllib, function=killing_the_server), httpx], servers.clickhouse, Rounds(2, seed=1))
    assert killed
    ended = [type(found) for _, _, found in recorded]
    assert len(ended) == 4
    assert ended.count(Failed) == 1
    assert ended[-1] is Ok


def test_what_is_compiled_in_a_pass_is_no_part_of_it(servers: Servers) -> None:
    """Numba compiles in a pass where its cache is empty and there is no warm-up."""
    reader, calls = named("postgres", "read", "polars_psycopg_copy_text"), 0

    def compiling(connection: psycopg.Connection[Any], table: Table) -> pl.DataFrame:
        nonlocal calls
        calls += 1
        if calls == 1:
            with trigger_event("numba:compile"):
                time.sleep(2)
        frame: pl.DataFrame = reader.function(connection, table)
        return frame

    [(_, _, ended)] = run([replace(reader, function=compiling)], servers.postgres, Rounds(1))
    assert calls == 2
    assert isinstance(ended, Ok)
    assert ended.values.seconds < 2


BYTES = 100_000_000
LEFT: list[bytearray] = []


def reading_much(connection: psycopg.Connection[Any], table: Table) -> pl.DataFrame:
    """A reader that fills as much memory as a large frame does, by Arrow's allocator and by the C library's."""
    pa.repeat(1, BYTES // 8).validate()
    chunks = [bytearray(b"x") * 65_536 for _ in range(BYTES // 65_536)]
    # Else the C library gives all of it back by itself, for nothing above it is in use.
    LEFT.append(bytearray(b"x") * 65_536)
    del chunks
    frame: pl.DataFrame = named("postgres", "read", "polars_psycopg_copy_text").function(connection, table)
    return frame


READER = replace(named("postgres", "read", "polars_psycopg_copy_text"), function=reading_much)


def usages(recorded: Recorded) -> list[Usage]:
    assert all(isinstance(ended, Ok) for _, _, ended in recorded), recorded
    return [ended.values.usage for _, _, ended in recorded if isinstance(ended, Ok)]


@pytest.mark.skipif(sys.platform != "linux", reason="faults are counted alike, memory is kept otherwise")
def test_a_pass_finds_the_memory_that_earlier_ones_freed_unless_it_is_to_be_cold(servers: Servers) -> None:
    warm = usages(run([READER], servers.postgres, Rounds(3, 1)))
    cold = usages(run([READER], servers.postgres, Rounds(3, 1), cold={READER.key}))
    faults = [[one.minor_faults or 0 for one in found] for found in (warm, cold)]
    assert min(faults[1]) > 4 * max(faults[0][1:])
    # What it takes is another question, which the warm-up answers either way.
    for one in (*warm, *cold):
        assert one.peak_rss_bytes is not None
        assert one.peak_rss_bytes > BYTES


def test_what_libraries_warn_of_while_drivers_are_quiet_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_, **__: shown.append(str(message)))
    for quiet in (measure.quiet_drivers(), nullcontext()):
        with quiet, warnings.catch_warnings(action="always"):  # as a library in another thread may do
            warnings.warn("where it is", stacklevel=1)
    assert shown == ["where it is"]
