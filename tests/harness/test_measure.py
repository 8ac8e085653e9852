"""The measuring loop: what it records when techniques are right, wrong, raise, or take the server with them."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import psycopg
import pytest
from numba.core.event import trigger_event

from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.harness import measure
from framehaul.harness.measure import Moved
from framehaul.harness.meter import Meter
from framehaul.harness.passes import Failed, Ok, Pass
from framehaul.harness.rounds import Rounds
from framehaul.harness.times import Times
from framehaul.servers import Servers, running
from framehaul.settings import Settings
from framehaul.studies.transfers import study as transfers
from framehaul.techniques import Technique, techniques

Recorded = list[tuple[str, int, Pass[Moved]]]
SMALL = Rounds(passes=2, warmup=1, seed=1)
CONTENT = generator.arrow_table(ANALYTICS_METRICS, 200, 1)


def named(database: Any, direction: Any, name: str, function: Callable[..., Any] | None = None) -> Technique:
    """A technique of the registry, or one that takes its client and record but runs `function`."""
    found = next(found for found in techniques(database, direction) if found.name == name)
    return replace(found, function=function) if function else found


def run(chosen: list[Technique], server: Any, rounds: Rounds = SMALL, **options: Any) -> Recorded:
    recorded: Recorded = []

    def record(technique: Technique, number: int, ended: Pass[Moved]) -> None:
        recorded.append((technique.name, number, ended))

    measure.run(chosen, server, ANALYTICS_METRICS, CONTENT, rounds, record, **options)
    return recorded


def raising(connection: object, table: Table, frame: object) -> None:
    raise RuntimeError("the source failed at row 7")


def losing_the_last_row(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    named("postgres", "write", "polars_psycopg_copy_text").function(connection, table, frame.head(-1))


def swapping_two_columns(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    swapped = frame.with_columns(metric_1=pl.col("metric_2"), metric_2=pl.col("metric_1"))
    named("postgres", "write", "polars_psycopg_copy_text").function(connection, table, swapped)


def returning_a_short_frame(connection: psycopg.Connection[Any], table: Table) -> pd.DataFrame:
    frame: pd.DataFrame = named("postgres", "read", "pandas_psycopg_row_fetch").function(connection, table)
    return frame.head(-1)


def test_every_pass_is_recorded_and_the_warm_up_is_not(servers: Servers) -> None:
    recorded = run([named("postgres", "write", "polars_psycopg_copy_text")], servers.postgres)
    assert [(name, number) for name, number, _ in recorded] == [
        ("polars_psycopg_copy_text", 1),
        ("polars_psycopg_copy_text", 2),
    ]
    for _, _, ended in recorded:
        assert isinstance(ended, Ok)
        assert ended.values.seconds > 0
        assert ended.values.usage.client_cpu_s >= 0
        assert ended.values.wire_bytes is not None


def test_without_warm_up_wire_bytes_stay_unknown(servers: Servers) -> None:
    ((_, _, ended),) = run([named("clickhouse", "write", "polars_urllib_parquet")], servers.clickhouse, Rounds(1))
    assert isinstance(ended, Ok)
    assert ended.values.wire_bytes is None


@pytest.mark.parametrize(
    ("direction", "name", "reasons"),
    [
        ("write", "polars_psycopg_copy_text", {
            raising: "RuntimeError: the source failed at row 7",
            losing_the_last_row: "199 rows instead of 200",
            swapping_two_columns: "content differs in metric_1, metric_2",
        }),
        ("read", "pandas_psycopg_row_fetch", {returning_a_short_frame: "199 rows instead of 200"}),
    ],
)  # fmt: skip
def test_a_wrong_technique_is_failed_and_the_others_run_on(
    direction: str, name: str, reasons: dict[Callable[..., Any], str], servers: Servers
) -> None:
    wrong = [named("postgres", direction, name, function) for function in reasons]
    right = named(
        "postgres", direction, "polars_asyncpg_copy_text" if direction == "write" else "polars_asyncpg_row_fetch"
    )
    recorded = run([*wrong, right], servers.postgres)
    by_name = {name: [ended for other, _, ended in recorded if other == name] for name, *_ in recorded}
    for function, reason in reasons.items():
        assert by_name[function.__name__] == [Failed(reason)] * 2
    assert [type(ended) for ended in by_name[right.name]] == [Ok, Ok]


def test_a_server_that_dies_fails_its_technique_and_the_run_goes_on_when_it_is_back(open_dir: Path) -> None:
    killed: list[int] = []

    def killing_the_server(endpoint: object, table: Table, frame: pl.DataFrame) -> None:
        if not killed and servers.clickhouse.process_id:
            killed.append(servers.clickhouse.process_id)
            os.kill(servers.clickhouse.process_id, signal.SIGKILL)
        named("clickhouse", "write", "polars_urllib_parquet").function(endpoint, table, frame)

    chosen = [
        named("clickhouse", "write", "polars_urllib_parquet", killing_the_server),
        named("clickhouse", "write", "polars_httpx_parquet"),
    ]
    # Servers of its own: the supervisor starts both anew, under other process ids.
    with running(Settings(state_dir=open_dir / "dying")) as servers:
        recorded = run(chosen, servers.clickhouse, Rounds(2, seed=1))
    assert killed
    ended = [type(found) for _, _, found in recorded]
    assert len(ended) == 4
    assert ended.count(Failed) == 1
    assert ended[-1] is Ok


def test_stop_ends_the_run_between_two_passes(servers: Servers) -> None:
    stop = threading.Event()
    seen: Recorded = []

    def record(technique: Technique, number: int, ended: Pass[Moved]) -> None:
        seen.append((technique.name, number, ended))
        stop.set()

    chosen = [named("postgres", "write", "polars_psycopg_copy_text")]
    with pytest.raises(KeyboardInterrupt):
        measure.run(chosen, servers.postgres, ANALYTICS_METRICS, CONTENT, Rounds(5), record, stop=stop)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("values", "message"), [((0, 0, 0), "PASSES=0"), ((1, -1, 0), "WARMUP=-1"), ((1, 0, -1), "SEED=-1")]
)
def test_parameters_that_make_no_sense_are_named(values: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rounds(*values)


def test_rows_that_make_no_sense_are_named() -> None:
    with pytest.raises(ValueError, match="ROWS=0"):
        transfers.run("postgres", "write", rows=0, passes=1, warmup=0, seed=0)


def test_the_meter_sees_cpu_and_memory_of_this_process() -> None:
    meter = Meter(os.getpid())
    meter.start()
    held = bytearray(os.urandom(50_000_000))
    usage = meter.stop()
    assert len(held) == 50_000_000
    assert usage.client_cpu_s > 0
    assert usage.server_cpu_s is not None
    assert usage.peak_rss_bytes is None or usage.peak_rss_bytes > 40_000_000


def test_the_meter_says_nothing_of_a_server_it_cannot_see() -> None:
    meter = Meter(None)
    meter.start()
    assert meter.stop().server_cpu_s is None


def test_what_is_compiled_in_a_pass_is_no_part_of_it(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when numba finds nothing in its cache, and there is no warm-up."""
    reader, calls, times = named("postgres", "read", "polars_psycopg_copy_text"), 0, Times()

    def compiling(connection: psycopg.Connection[Any], table: Table) -> pl.DataFrame:
        nonlocal calls
        calls += 1
        if calls == 1:
            with trigger_event("numba:compile"):
                time.sleep(0.3)
        frame: pl.DataFrame = reader.function(connection, table)
        return frame

    [(_, _, ended)] = run([replace(reader, function=compiling)], servers.postgres, Rounds(1), times=times)
    assert calls == 2
    assert isinstance(ended, Ok)
    assert times.seconds["compilation"] == pytest.approx(0.3, abs=0.1)
    assert ended.values.seconds <= times.seconds["clock"] + 1e-3


def test_garbage_is_collected_again_after_a_run(servers: Servers) -> None:
    run([named("postgres", "write", "polars_psycopg_copy_text")], servers.postgres, Rounds(1))
    assert gc.get_freeze_count() == 0
