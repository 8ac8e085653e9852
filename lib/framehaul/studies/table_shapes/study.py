"""Measure the leading techniques on tables of other shapes and with fewer rows."""

from __future__ import annotations

import functools
from dataclasses import replace
from itertools import product
from threading import Event

import numpy as np

from framehaul.bench import measure, recording
from framehaul.bench.measure import PassOptions
from framehaul.bench.meter import Moved
from framehaul.bench.recording import Recording, result
from framehaul.bench.rounds import Ok, Pass, Rounds, check, interruptible
from framehaul.servers import Servers
from framehaul.studies.registry import MEGABYTES, POINTS, TABLE_SHAPES
from framehaul.studies.table_shapes.passes import Row, within_limits
from framehaul.studies.table_shapes.shapes import SHAPES, STANDARD, Shape, sizes
from framehaul.techniques import Technique
from framehaul.techniques.registry import Database, Direction, named

type DatabaseDirection = tuple[Database, Direction]

SHAPES_OF = {
    "least": tuple(one for one in SHAPES if one.name in ("standard", "texts", "nested")),
    # A pass of "narrow" takes twice as long as any other, and "structs" gives the same winners as "nested".
    "few": tuple(one for one in SHAPES if one.name not in ("narrow", "structs")),
    "sizes": SHAPES,
}
COMPARED: dict[DatabaseDirection, tuple[str, ...]] = {
    ("postgres", "write"): ("polars_asyncpg_copy_binary", "polars_psycopg_copy_text", "polars_pgpq_presorted"),
    ("postgres", "read"): ("polars_psycopg_copy_text", "polars_adbc_fetch", "polars_psycopg_copy_decoded"),
    ("clickhouse", "write"): (
        "polars_httpx_parquet", "polars_http_client_arrow_stream", "polars_http_client_native_presorted",
    ),
    ("clickhouse", "read"): (
        "polars_urllib_csv", "polars_http_client_arrow_stream", "polars_http_client_native_decoded",
    ),
}  # fmt: skip
"""The best published technique of each direction, one without our codecs, and the fastest of all."""
EVERYDAY: dict[DatabaseDirection, tuple[str, ...]] = {
    ("postgres", "write"): ("polars_psycopg_executemany", "polars_psycopg_pipeline", "polars_psycopg_unnest"),
    ("clickhouse", "write"): ("polars_clickhouse_driver_rows", "polars_clickhouse_connect_insert"),
}
"""Everyday calls that may win with few rows, measured on the standard table only."""
MOST_EVERYDAY_ROWS = 10_000
"""The largest table of everyday calls, which send rows one at a time and are far behind with more rows."""
CALLS = {1: 10, 10: 5, 100: 3}
"""The number of calls of a pass by rows of a call, otherwise 1: one call of few rows is too short to be timed."""
READ_CALLS = 5
"""The maximum number of calls of a pass of reads, because each frame is verified whole."""


@recording.study(TABLE_SHAPES.notebook, Row)
def run(*, rows: int, megabytes: float, points: str, rounds: int, warmup: int, seed: int) -> None:
    """Measure every shape at its numbers of rows.

    Raises ValueError for a parameter out of range.
    """
    check(ROWS=(rows, 1))
    for parameter, value in ((MEGABYTES, megabytes), (POINTS, points)):
        parameter.value(str(value))
    schedule, terms = Rounds(rounds, warmup, seed), {"rows": rows, "megabytes": megabytes, "points": points}
    with recording.with_servers(TABLE_SHAPES, Row, schedule, **terms) as (this_run, both):
        what = f"frames of up to {rows:,} rows and {megabytes:g} MB, {rounds} rounds after {warmup} warm-up"
        this_run.metadata["what"] = what

        def work(stop: Event) -> None:
            for shape in SHAPES_OF[points]:
                once = replace(shape, content=functools.cache(shape.content))  # generated once for all directions
                for size, path in product(rows_of(shape, points, rows, megabytes, seed), COMPARED):
                    _measure(this_run, both, once, size, path, schedule, stop)

        interruptible(work)


def rows_of(shape: Shape, points: str, rows: int, megabytes: float, seed: int) -> list[int]:
    """Return the numbers of rows of a shape: all powers of ten, or the largest, and more for the standard table."""
    every = sizes(shape, rows, megabytes, seed)
    if points == "sizes":
        return every
    return sorted({*every[-1::-2], *every[:1]}) if shape is STANDARD else every[-1:]


def measured_on(shape: Shape, path: DatabaseDirection, size: int) -> list[Technique]:
    """Return the techniques of a direction that move `size` rows of a shape, with framehaul's own choice."""
    everyday = EVERYDAY.get(path, ()) if shape.name == STANDARD.name and size <= MOST_EVERYDAY_ROWS else ()
    return [named(*path, name) for name in (*COMPARED[path], f"polars_framehaul_{path[1]}", *everyday)]


def _measure(
    this_run: Recording, both: Servers, shape: Shape, size: int, path: DatabaseDirection, rounds: Rounds, stop: Event
) -> None:
    """Measure one direction of one shape, all techniques in shuffled rounds."""
    (database, direction), calls, tried = path, CALLS.get(size, 1), measured_on(shape, path, size)
    if direction == "read":
        calls = min(calls, READ_CALLS)
    content = shape.content(shape.table, size * calls if direction == "write" else size, rounds.seed)
    moved = content.nbytes if direction == "write" else content.nbytes * calls

    def row(one: Technique, number: int, outcome: Pass[Moved]) -> Row:
        ended = within_limits(outcome)
        whole = vars(result(this_run.run_id, TABLE_SHAPES.notebook, one, size * calls, number, ended)) | {"rows": size}
        if isinstance(outcome, Ok):
            p50_s, p99_s = map(float, np.percentile(outcome.values.latencies_s, (50, 99)))
            whole |= {"bytes_per_s": moved / outcome.values.seconds, "p50_s": p50_s, "p99_s": p99_s}
            if calls > 1:
                whole["peak_rss_bytes"] = None  # the frames of all calls are kept to be verified
        return Row(**whole, shape=shape.name, calls=calls, frame_bytes=moved)

    log = this_run.log(row, stop)
    if all(log.finished(one, number) for one in tried for number in range(1, rounds.passes + 1)):
        return
    this_run.expect(len(tried) * (rounds.warmup + rounds.passes))
    measure.run(tried, both.of(database), shape.table, content, rounds, log, PassOptions(calls=calls))
