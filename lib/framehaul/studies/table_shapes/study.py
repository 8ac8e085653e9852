"""Measure the leading techniques on tables of other shapes and with fewer rows, and show who wins where."""

from __future__ import annotations

import functools
import math
import threading
from dataclasses import replace
from pathlib import Path

import polars as pl
from matplotlib.figure import Figure

from framehaul import servers
from framehaul.bench import measure, ratios, statistics, store
from framehaul.bench.environment import server_versions
from framehaul.bench.meter import Moved
from framehaul.bench.passes import Pass
from framehaul.bench.recording import Recording, recording
from framehaul.bench.rounds import Rounds, check, interruptible
from framehaul.bench.store import EXACT
from framehaul.reporting import charts
from framehaul.reporting.shown import Shown, chart, view
from framehaul.reporting.tables import UNSTABLE, Column, Listing, milliseconds, thousands, where, words
from framehaul.servers import Servers
from framehaul.studies.registry import POINTS, TABLE_SHAPES
from framehaul.studies.table_shapes.limits import within_limits
from framehaul.studies.table_shapes.passes import Row, of_technique
from framehaul.studies.table_shapes.shapes import SHAPES, STANDARD, Shape, sizes
from framehaul.techniques import Technique, techniques
from framehaul.techniques.registry import DATABASES, Database, Direction

type DatabaseDirection = tuple[Database, Direction]

SHAPES_OF = {
    "least": tuple(one for one in SHAPES if one.name in ("standard", "texts", "nested")),
    # A pass of "narrow" takes twice as long as any other, and "structs" behave as "nested" does.
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
"""Per direction the best published technique, one without codecs of ours, and the fastest of all."""
EVERYDAY: dict[DatabaseDirection, tuple[str, ...]] = {
    ("postgres", "write"): ("polars_psycopg_executemany", "polars_psycopg_pipeline", "polars_psycopg_unnest"),
    ("clickhouse", "write"): ("polars_clickhouse_driver_rows", "polars_clickhouse_connect_insert"),
}  # fmt: skip
"""Everyday calls that may win with few rows; they are measured on the standard table."""
MOST_EVERYDAY_ROWS = 10_000
"""Everyday calls send rows one at a time: with more they have lost long before."""
CALLS = {1: 10, 10: 5, 100: 3}
"""Calls of a pass by rows of a call, one where nothing is said: one call of few rows is too short to be timed."""
READ_CALLS = 5
"""At most, of reads: each of their frames is verified whole."""
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#117733")
LABELS = {one.name: one.label for one in SHAPES}


def run(*, rows: int, megabytes: float, points: str, rounds: int, warmup: int, seed: int) -> TableShapes:
    """Measure every shape at its numbers of rows, and return the passes.

    Raises ValueError, naming the parameter, for one that makes no sense.
    """
    check(ROWS=(rows, 1))
    if not 0 < megabytes < math.inf:
        raise ValueError(f"MEGABYTES={megabytes!r}: give a number above 0")
    if points not in POINTS.choices:
        raise ValueError(f"POINTS={points!r}: choose from {', '.join(POINTS.choices)}")
    schedule = Rounds(rounds, warmup, seed)
    terms = {"rows": rows, "megabytes": megabytes, "points": points, **vars(schedule)}
    with (
        recording(TABLE_SHAPES.notebook, TABLE_SHAPES.results, Row, "pass", terms) as this_run,
        servers.running(this_run.settings) as both,
    ):
        this_run.metadata |= terms | {
            "servers": both.mode, "server": {"version": "; ".join(server_versions(both).values())},
            "what": f"frames of up to {rows:,} rows and {megabytes:g} MB, {rounds} rounds after {warmup} warm-up",
        }  # fmt: skip

        def work(stop: threading.Event) -> None:
            for shape in SHAPES_OF[points]:
                once = replace(shape, content=functools.cache(shape.content))  # made once for all directions
                for size in rows_of(shape, points, rows, megabytes, seed):
                    for path in COMPARED:
                        _measure(this_run, both, once, size, path, schedule, stop)

        interruptible(work)
    return TableShapes.load(this_run.settings)


def rows_of(shape: Shape, points: str, rows: int, megabytes: float, seed: int) -> list[int]:
    """Return the numbers of rows of a shape: all powers of ten, or the largest, and of the standard table more."""
    every = sizes(shape, rows, megabytes, seed)
    if points == "sizes":
        return every
    return sorted({*every[-1::-2], *every[:1]}) if shape is STANDARD else every[-1:]


def measured_on(shape: Shape, path: DatabaseDirection, size: int, calls: int) -> list[Technique]:
    """Return the techniques of a direction that move so many rows of a shape."""
    known = {one.name: one for one in techniques(*path)}
    everyday = EVERYDAY.get(path, ()) if shape.name == STANDARD.name and size <= MOST_EVERYDAY_ROWS else ()
    chosen = [known[name] for name in (*COMPARED[path], *everyday)]
    return [one for one in chosen if calls == 1 or "empty_table" not in one.requires]


def calls_of(direction: Direction, size: int) -> int:
    """Return how many calls a pass makes."""
    return min(CALLS.get(size, 1), READ_CALLS) if direction == "read" else CALLS.get(size, 1)


def _measure(
    this_run: Recording,
    both: Servers,
    shape: Shape,
    size: int,
    path: DatabaseDirection,
    rounds: Rounds,
    stop: threading.Event,
) -> None:
    """Measure one direction of one shape, all techniques in shuffled rounds."""
    database, direction = path
    calls = calls_of(direction, size)
    tried = measured_on(shape, path, size, calls)
    content = shape.content(shape.table, size * (calls if direction == "write" else 1), rounds.seed)
    moved = content.nbytes * (calls if direction == "read" else 1)

    def row(one: Technique, number: int, outcome: Pass[Moved]) -> Row:
        return of_technique(this_run.run_id, one, shape.name, size, calls, moved, number, within_limits(outcome))

    record, finished = this_run.passes(row)
    if all(finished(one, number) for one in tried for number in range(1, rounds.passes + 1)):
        return
    this_run.expect(1 + len(tried) * (rounds.warmup + rounds.passes))
    measure.run(
        tried, both.of(database), shape.table, content, rounds, record,
        stop=stop, progress=this_run.progress, finished=finished, times=this_run.times, calls=calls,
    )  # fmt: skip


def medians(passes: pl.DataFrame) -> pl.DataFrame:
    """Return one row per technique, shape and number of rows."""
    names = [*statistics.NAMES, "label", "origin", "contract", "shape", "rows", "calls"]
    return statistics.medians(passes, names, pl.col("dtypes").drop_nulls().first())


def leaders(passes: pl.DataFrame) -> pl.DataFrame:
    """Return the fastest exact append or read per direction, shape and rows of a call, with those tied with it."""
    appended = pl.col("contract").is_null() | (pl.col("contract") != "bulk_load")
    exact = medians(passes).filter(appended, status="ok", dtypes=EXACT)
    found = []
    for _, group in exact.group_by("database", "direction", "shape", "rows", maintain_order=True):
        ranked = group.sort("rows_per_s", descending=True)
        near = ratios.tied(ranked.to_dicts())
        found.append(ranked.head(1).with_columns(tied=pl.lit("; ".join(one["technique"] for one in near))))
    return pl.concat(found).sort("database", "direction", descending=True, maintain_order=True) if found else exact


def leaders_of_most_rows(passes: pl.DataFrame) -> pl.DataFrame:
    """Return the `leaders` per direction and shape, at the most rows of the shape."""
    return leaders(passes).filter(pl.col("rows") == pl.col("rows").max().over("database", "direction", "shape"))


def fastest_table(passes: pl.DataFrame) -> Listing:
    """Show the fastest technique per direction and shape, at the most rows of the shape."""
    return _table(leaders_of_most_rows(passes))


def rows_table(passes: pl.DataFrame) -> Listing:
    """Show the fastest technique of the standard table by the rows of a call, everyday calls included."""
    return _table(
        leaders(passes)
        .filter(shape=STANDARD.name)
        .sort("database", "direction", "rows", descending=[True, True, False])
    )


def _table(rows: pl.DataFrame) -> Listing:
    return Listing(
        [
            words("direction", where),
            words("table", "shape", LABELS.__getitem__),
            Column("rows of a call", "rows", "{:,}"),
            words("fastest", "technique", "`{}`"),
            words("statistically tied", "tied"),
            Column("rows/s", "rows_per_s", thousands),
            UNSTABLE,
            Column("p50 of a call", "p50_s", milliseconds),
        ],
        rows,
    )


def refused_table(passes: pl.DataFrame) -> Listing:
    """Show which techniques do not carry a shape, with the reason and the remedy."""
    bad = passes.filter(pl.col("status") != "ok").unique(
        ["database", "direction", "technique", "shape"], maintain_order=True
    )
    return Listing(
        [
            words("direction", where),
            words("technique", lambda row: f"`{row['technique']}`"),
            words("table", "shape", LABELS.__getitem__),
            words("reason and remedy", "reason", lambda text: text[:300]),
        ],
        bad.drop("status"),
    )


def answer_text(passes: pl.DataFrame) -> str:
    """Say how often the winner of the standard table also wins or ties on the other shapes."""
    points = []
    for (database, direction), group in leaders_of_most_rows(passes).group_by(
        "database", "direction", maintain_order=True
    ):
        best = group.filter(shape=STANDARD.name)["technique"].to_list()
        if best:
            names = [{row["technique"], *row["tied"].split("; ")} for row in group.to_dicts()]
            wins = sum(best[0] in one for one in names)
            points.append(
                f"- **{DATABASES[str(database)]} {direction}**: `{best[0]}` is the fastest, or tied with it, on "
                f"{wins} of {len(names)} tables."
            )
    return "\n".join(points) or "Nothing was moved."


def small_figure(passes: pl.DataFrame) -> Figure:
    """Draw what a write of few rows takes against its rows, everyday calls dashed."""
    by_point = medians(passes).filter(shape=STANDARD.name, direction="write", status="ok")
    with charts.panels(1, 2, height=5.2, width=11.5) as (figure, drawn):
        for axes, database in zip(drawn, DATABASES, strict=True):
            here = by_point.filter(database=database)
            names = dict(here.select("technique", "label").iter_rows())
            for (name, label), colour in zip(names.items(), LINES, strict=False):
                line = here.filter(technique=name).sort("rows")
                axes.plot(
                    line["rows"].to_list(), (1e3 * line["p50_s"]).to_list(), color=colour, label=label, marker="o",
                    markersize=3.5, linestyle="--" if line["origin"][0] == "everyday" else "-",
                )  # fmt: skip
            for axis in (axes.xaxis, axes.yaxis):
                charts.quantities(axis, logarithmic=True)
            charts.title(axes, f"{DATABASES[database]}: a write of the standard table, ms")
            axes.set_xlabel("rows of a call (p50 of a pass, median of passes; dashed: everyday calls)", fontsize=8)
            axes.grid(which="major", color="#eeeeee")
            if names:
                axes.legend(fontsize=6.5, frameon=False, loc="upper left")
    return figure


class TableShapes(Shown):
    """The passes of a run over shapes."""

    study = TABLE_SHAPES
    answer = view(answer_text)
    fastest = view(fastest_table)
    by_rows = view(rows_table)
    small = chart(small_figure, "small")
    refused = view(refused_table)


def writeup_blocks(directory: Path) -> dict[str, str]:
    """Return the generated blocks of the docs page, made of a results directory."""
    passes = store.read(directory / TABLE_SHAPES.results, Row)
    return {
        "shapes-fastest": str(fastest_table(passes)),
        "shapes-leaders": str(rows_table(passes)),
        "shapes-stopped": str(refused_table(passes)),
    }
