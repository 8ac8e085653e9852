"""The measuring loop: what it records when techniques are right, wrong, raise, or take the server with them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import psycopg
import pytest

from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.harness import measure
from framehaul.harness.measure import Outcome, Parameters
from framehaul.harness.meter import Meter
from framehaul.servers import Servers, running
from framehaul.settings import Settings
from framehaul.techniques import Technique, techniques

Recorded = list[tuple[str, int, Outcome, int | None]]
SMALL = Parameters(rows=200, passes=2, warmup=1, seed=1)


def named(database: Any, direction: Any, name: str, function: Callable[..., Any] | None = None) -> Technique:
    """A technique of the registry, or one that takes its client and record but runs `function`."""
    found = next(found for found in techniques(database, direction) if found.name == name)
    return replace(found, function=function) if function else found


def run(chosen: list[Technique], server: Any, parameters: Parameters = SMALL, **options: Any) -> Recorded:
    recorded: Recorded = []

    def record(technique: Technique, number: int, outcome: Outcome, wire_bytes: int | None) -> None:
        recorded.append((technique.name, number, outcome, wire_bytes))

    measure.run(chosen, server, ANALYTICS_METRICS, parameters, record, **options)
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
    assert [(name, number) for name, number, _, _ in recorded] == [
        ("polars_psycopg_copy_text", 1),
        ("polars_psycopg_copy_text", 2),
    ]
    for _, _, outcome, wire_bytes in recorded:
        assert outcome.status == "ok"
        assert outcome.seconds is not None
        assert outcome.usage is not None
        assert wire_bytes is not None


def test_without_warm_up_wire_bytes_stay_unknown(servers: Servers) -> None:
    recorded = run(
        [named("clickhouse", "write", "polars_urllib_parquet")], servers.clickhouse, Parameters(200, 1, 0, 1)
    )
    assert [(outcome.status, wire_bytes) for _, _, outcome, wire_bytes in recorded] == [("ok", None)]


@pytest.mark.parametrize(
    ("direction", "name", "function", "reason"),
    [
        ("write", "polars_psycopg_copy_text", raising, "RuntimeError: the source failed at row 7"),
        ("write", "polars_psycopg_copy_text", losing_the_last_row, "199 rows instead of 200"),
        ("write", "polars_psycopg_copy_text", swapping_two_columns, "content differs in metric_1, metric_2"),
        ("read", "pandas_psycopg_row_fetch", returning_a_short_frame, "199 rows instead of 200"),
    ],
)
def test_a_wrong_technique_is_failed_and_the_others_run_on(
    direction: str, name: str, function: Callable[..., Any], reason: str, servers: Servers
) -> None:
    wrong = named("postgres", direction, name, function)
    right = named(
        "postgres", direction, "polars_asyncpg_copy_text" if direction == "write" else "polars_asyncpg_row_fetch"
    )
    recorded = run([wrong, right], servers.postgres)
    by_name = {found: [outcome for other, _, outcome, _ in recorded if other == found] for found, *_ in recorded}
    assert [(outcome.status, outcome.reason) for outcome in by_name[function.__name__]] == [("failed", reason)] * 2
    assert [outcome.status for outcome in by_name[right.name]] == ["ok", "ok"]
    assert all(outcome.seconds is None for outcome in by_name[function.__name__])


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
        recorded = run(chosen, servers.clickhouse, Parameters(200, 2, 0, 1))
    assert killed
    outcomes = [outcome.status for _, _, outcome, _ in recorded]
    assert len(outcomes) == 4
    assert outcomes.count("failed") == 1
    assert outcomes[-1] == "ok"


def test_stop_ends_the_run_between_two_passes(servers: Servers) -> None:
    stop = threading.Event()
    seen: Recorded = []

    def record(technique: Technique, number: int, outcome: Outcome, wire_bytes: int | None) -> None:
        seen.append((technique.name, number, outcome, wire_bytes))
        stop.set()

    chosen = [named("postgres", "write", "polars_psycopg_copy_text")]
    with pytest.raises(KeyboardInterrupt):
        measure.run(chosen, servers.postgres, ANALYTICS_METRICS, Parameters(50, 5, 0, 1), record, stop=stop)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("values", "said"), [((0, 1, 0, 0), "ROWS=0"), ((1, 0, 0, 0), "PASSES=0"), ((1, 1, -1, 0), "WARMUP=-1")]
)
def test_parameters_that_make_no_sense_are_named(values: tuple[int, int, int, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Parameters(*values)


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
