"""What is measured: techniques and everyday statements on every shape, and how wide a table may be."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import psycopg

from framehaul import servers
from framehaul.harness import measure
from framehaul.harness.environment import server_versions
from framehaul.harness.meter import Moved
from framehaul.harness.passes import Failed, Pass, describe
from framehaul.harness.recording import Recording, recording
from framehaul.harness.rounds import Rounds, check, interruptible
from framehaul.results import store
from framehaul.servers import Servers
from framehaul.settings import Settings, load_settings
from framehaul.studies.table_shapes import POINTS, STUDY, parts
from framehaul.studies.table_shapes.address import behind_balancer
from framehaul.studies.table_shapes.limits import within_limits
from framehaul.studies.table_shapes.passes import Row, of_technique
from framehaul.studies.table_shapes.shapes import BALANCED, SHAPES, STANDARD, WIDE, Shape, sizes
from framehaul.studies.table_shapes.statements import STATEMENTS
from framehaul.techniques import Technique, techniques
from framehaul.techniques.registry import Database, Direction

type Path = tuple[Database, Direction]

SHAPES_OF = {
    "least": tuple(one for one in SHAPES if one.name in ("standard", "texts", "nested")),
    # Of "narrow" a pass takes twice that of any other; of "structs" it is told by lists, and by the table of types.
    "few": tuple(one for one in SHAPES if one.name not in ("narrow", "structs")),
    "sizes": SHAPES,
    "all": SHAPES,
    "streams": (),
}
"""Shapes that techniques are measured on."""
EVERY_SIZE = ("sizes", "all")
"""Points at which these have all numbers of rows."""
FEW: dict[Path, tuple[str, ...]] = {
    ("postgres", "write"): ("polars_asyncpg_copy_binary", "polars_psycopg_copy_text", "polars_pgpq_presorted"),
    ("postgres", "read"): ("polars_psycopg_copy_text", "polars_adbc_fetch", "polars_psycopg_copy_decoded"),
    ("clickhouse", "write"): (
        "polars_httpx_parquet", "polars_http_client_arrow_stream", "polars_http_client_native_presorted",
    ),
    ("clickhouse", "read"): (
        "polars_urllib_csv", "polars_http_client_arrow_stream", "polars_http_client_native_decoded",
    ),
}  # fmt: skip
"""Of each direction the best published technique, one without codecs of ours, and the best."""
MORE: dict[Path, tuple[str, ...]] = {
    ("postgres", "write"): (
        "polars_pgpq_copy_binary", "polars_psycopg_copy_binary", "polars_adbc_ingest",
        "polars_pgpq_presorted_two_connections", "polars_pgpq_key_last", "polars_duckdb_insert",
        "pandas_pgpq_presorted",
    ),
    ("postgres", "read"): (
        "polars_psycopg_row_fetch", "polars_psycopg_copy_text_typed", "polars_asyncpg_copy_decoded",
        "polars_asyncpg_copy_decoded_two_connections", "polars_connectorx_read", "pandas_sqlalchemy_read_sql_query",
        "pandas_psycopg_copy_decoded",
    ),
    ("clickhouse", "write"): (
        "polars_clickhouse_driver_native_columnar",
        "polars_http_client_parquet_zstd", "polars_http_client_arrow_by_partition",
        "polars_http_client_arrow_two_connections", "polars_clickhouse_connect_insert_arrow",
        "pandas_clickhouse_connect_insert_df", "pandas_http_client_native_presorted",
    ),
    ("clickhouse", "read"): (
        "polars_clickhouse_driver_native_columnar", "polars_httpx_parquet", "polars_urllib_parquet",
        "polars_http_client_arrow_file", "polars_clickhouse_connect_query_arrow",
        "pandas_clickhouse_connect_query_df", "pandas_http_client_native_decoded",
    ),
}  # fmt: skip
"""Measured as well where all points are."""
EVERYDAY: dict[Path, tuple[str, ...]] = {
    ("postgres", "write"): (
        "polars_psycopg_executemany", "polars_psycopg_pipeline", "polars_psycopg_unnest", "polars_asyncpg_executemany",
    ),
    ("clickhouse", "write"): ("polars_clickhouse_driver_rows", "polars_clickhouse_connect_insert"),
}  # fmt: skip
"""What people call without choosing that is among the techniques, beside the statements of this study."""
FEW_STATEMENTS = (
    "polars_psycopg_executemany", "polars_psycopg_pipeline", "polars_psycopg_unnest",
    "polars_psycopg_insert_many_values", "polars_clickhouse_driver_rows",
)  # fmt: skip
MOST_STATEMENT_ROWS = {"least": 100, "few": 10_000, "all": 100_000}
"""What sends rows one at a time moves no more of them: it has lost long before."""
CALLS = {
    "least": {1: 5, 10: 2, 100: 2},
    "few": {1: 10, 10: 5, 100: 3},
    "all": {1: 200, 10: 100, 100: 50, 1_000: 10, 10_000: 3},
}
"""Calls of a pass by rows, one where nothing is said: so many that it lasts some milliseconds, and has a p99."""
READ_CALLS = {"least": 5, "few": 5, "all": 10}
"""At most, of reads: each of their frames is verified whole."""
WIDE_NAMES = {one.name for one in WIDE}
BEHIND_BALANCER = (
    "polars_urllib_parquet",
    "polars_httpx_parquet",
    "polars_http_client_arrow_stream",
    "polars_clickhouse_connect_insert_arrow",
    "pandas_clickhouse_connect_insert_df",
    "polars_clickhouse_driver_native_columnar",
)
"""Every kind of client of ClickHouse: some have the names of all columns in the address of an INSERT.

https://github.com/ClickHouse/clickhouse-connect/issues/213
"""
WIDE_ROWS = 100
"""Of a thousand columns: more values than a statement has parameters."""


def chosen(points: str, path: Path) -> list[Technique]:
    """The techniques of a direction, everyday statements after them."""
    names = {"least": FEW[path][::2], "few": FEW[path], "all": FEW[path] + MORE[path]}[points]
    few = {"least": FEW_STATEMENTS[-2:], "few": FEW_STATEMENTS}.get(points)
    known = {one.name: one for one in techniques(*path)}
    statements = [known[name] for name in EVERYDAY.get(path, ())]
    statements += [one for one in STATEMENTS if (one.database, one.direction) == path]
    return [known[name] for name in names] + [one for one in statements if few is None or one.name in few]


def points_of(shape: Shape, points: str, rows: int, megabytes: float, seed: int) -> list[int]:
    """The numbers of rows of a shape: all, or the largest, and of the standard table every second beside it."""
    every = sizes(shape, rows, megabytes, seed)
    if points in EVERY_SIZE:
        return every
    return sorted({*every[-1::-2], *every[:1]}) if shape is STANDARD else every[-1:]


def calls_of(direction: Direction, size: int, points: str) -> int:
    """How many calls a pass makes."""
    calls = CALLS[points].get(size, 1)
    return min(calls, READ_CALLS[points]) if direction == "read" else calls


def run(*, rows: int, megabytes: float, points: str, passes: int, warmup: int, seed: int) -> Settings:
    """Measure every shape, limits and streams of small batches, and write the results.

    Raises what `transfers.study.run` raises.
    """
    check(ROWS=(rows, 1))
    if not 0 < megabytes < math.inf:
        raise ValueError(f"MEGABYTES={megabytes!r}: give a number above 0")
    if points not in POINTS.choices:
        raise ValueError(f"POINTS={points!r}: choose from {', '.join(POINTS.choices)}")
    rounds, settings = Rounds(passes, warmup, seed), load_settings()
    terms = {"rows": rows, "megabytes": megabytes, "points": points, **vars(rounds)}
    with (
        recording(STUDY.notebook, STUDY.results, Row, "pass", terms) as this_run,
        # It goes on from what is left exactly when the passes do: they keep their run's id then.
        store.Writer(settings.out / "results" / parts.RESULTS, parts.Sample, {"run_id": this_run.run_id}) as samples,
        servers.running(this_run.settings) as both,
    ):
        this_run.metadata |= terms | {
            "servers": both.mode, "server": {"version": "; ".join(server_versions(both).values())},
            "what": f"frames of up to {rows:,} rows and {megabytes:g} MB, {passes} passes after {warmup} warm-up",
        }  # fmt: skip

        effort = "few" if points == "sizes" else points  # but for shapes and sizes

        def work(stop: threading.Event) -> None:
            for shape in SHAPES_OF[points]:
                for size in points_of(shape, points, rows, megabytes, seed):
                    once = _made_once(shape)
                    for path in FEW:
                        _measure(this_run, both, once, size, effort, path, rounds, stop)
            if SHAPES_OF[points]:
                _try_limits(this_run, both, effort, seed, stop)
            parts.measure(this_run, samples, both.clickhouse, effort, rounds, stop)

        interruptible(work)
    return settings


def _try_limits(this_run: Recording, both: Servers, points: str, seed: int, stop: threading.Event) -> None:
    """Tables of so many columns that techniques stop working."""
    wide = {"least": (), "few": WIDE[:1], "all": WIDE}[points]
    for shape in wide:
        once = _made_once(shape)
        for path in FEW:
            if points == "all" or path[1] == "write":  # reads of all columns ask for no limit
                tried = "least" if points == "few" else points
                _measure(this_run, both, once, WIDE_ROWS, tried, path, Rounds(1, 0, seed), stop)
    if points != "least":
        _behind_balancer(this_run, both, seed, stop)


def _behind_balancer(this_run: Recording, both: Servers, seed: int, stop: threading.Event) -> None:
    """Writes of many columns through a load balancer that takes no long addresses: whether they work."""
    known = {one.name: one for one in techniques("clickhouse", "write")}
    tried = [known[name] for name in BEHIND_BALANCER]
    _passes(
        this_run, both, BALANCED, WIDE_ROWS, tried, Rounds(1, 0, seed), stop,
        way=lambda: behind_balancer(both.clickhouse),
    )  # fmt: skip


def _made_once(shape: Shape) -> Shape:
    """The shape, whose rows are made but once for all directions, and are gone with it."""
    return replace(shape, content=functools.cache(shape.content))


def _measure(
    this_run: Recording, both: Servers, shape: Shape, size: int, points: str, path: Path, rounds: Rounds,
    stop: threading.Event,
) -> None:  # fmt: skip
    """One direction of one shape: all techniques in shuffled rounds. Where the server has no such table, none can."""
    direction = path[1]
    calls = 1 if shape.name in WIDE_NAMES else calls_of(direction, size, points)
    tried = [one for one in chosen(points, path) if _takes(one, shape, size, calls, points)]
    _passes(this_run, both, shape, size, tried, rounds, stop, calls)


def _passes(
    this_run: Recording, both: Servers, shape: Shape, size: int, tried: list[Technique], rounds: Rounds,
    stop: threading.Event, calls: int = 1, way: Callable[[], AbstractContextManager[measure.Way]] | None = None,
) -> None:  # fmt: skip
    """Passes of techniques of one database and direction."""
    database, direction = tried[0].database, tried[0].direction
    content = shape.content(shape.table, size * (calls if direction == "write" else 1), rounds.seed)
    moved = content.nbytes * (calls if direction == "read" else 1)

    def row(one: Technique, number: int, outcome: Pass[Moved]) -> Row:
        return of_technique(this_run.run_id, one, shape.name, size, calls, moved, number, within_limits(outcome))

    record, finished = this_run.passes(row)
    numbers = range(1, rounds.passes + 1)
    if all(finished(one, number) for one in tried for number in numbers):
        return
    this_run.expect(1 + len(tried) * (rounds.warmup + rounds.passes))
    try:
        measure.run(
            tried, both.of(database), shape.table, content, rounds, record,
            stop=stop, progress=this_run.progress, finished=finished, times=this_run.times,
            calls=calls, way=way,
        )  # fmt: skip
    except (psycopg.errors.ProgramLimitExceeded, psycopg.errors.TooManyColumns) as error:
        for one in tried:
            record(one, 1, Failed(describe(error)))


def _takes(one: Technique, shape: Shape, size: int, calls: int, points: str) -> bool:
    """Whether a technique is measured with so many rows: a bulk load is, of a whole table and not of small batches."""
    if one.origin == "everyday":
        # What shapes change of them, beside their limits, is left to all points.
        compared = points == "all" or shape.name == STANDARD.name or shape.name in WIDE_NAMES
        return compared and size <= MOST_STATEMENT_ROWS[points]
    return calls == 1 or "empty_table" not in one.requires
