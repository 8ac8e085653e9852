"""Cost against rows: the best published and the best other technique of each direction, and streaming moves."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import polars as pl
import pyarrow.parquet as pq

from framehaul import servers
from framehaul.bench import measure, recording, statistics, store
from framehaul.bench.children import Child, child, context, ended_with_the_block
from framehaul.bench.environment import server_versions
from framehaul.bench.meter import Moved, Usage
from framehaul.bench.passes import right
from framehaul.bench.recording import Recording
from framehaul.bench.rounds import Rounds, check, in_rounds, interruptible
from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.data.frames import to_polars
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.servers import Servers
from framehaul.servers.tables import Tables, tables_of
from framehaul.studies.registry import SCALING
from framehaul.studies.scaling.mover import MEMORY, TIME, serve
from framehaul.techniques import Technique, techniques
from framehaul.techniques.registry import Database, Direction
from framehaul.techniques.streaming import MOVES, STREAMED

SMALLEST_ROWS = 10_000
STEPS = (1, 3)
"""Sizes within a power of ten."""

COMPARED = {
    ("postgres", "write"): ("polars_asyncpg_copy_binary", "polars_pgpq_key_last"),
    ("postgres", "read"): ("polars_psycopg_copy_text", "polars_asyncpg_copy_decoded_two_connections"),
    ("clickhouse", "write"): ("polars_httpx_parquet", "polars_http_client_arrow_two_connections"),
    ("clickhouse", "read"): ("polars_urllib_csv", "polars_http_client_native_decoded"),
}
"""For each direction, the best published technique and the best other one of the reference runs."""


def sizes(largest: int) -> list[int]:
    """Numbers of rows up to `largest`, from ten thousand, or from a tenth of it when that is less, in half decades."""
    size = min(SMALLEST_ROWS, max(1, largest // 10))
    smaller = []
    while size < largest:
        smaller += [size * step for step in STEPS if size * step < largest]
        size *= 10
    return [*smaller, largest]


@recording.study(SCALING.notebook)
def run(*, rows: int, rounds: int, warmup: int, seed: int, table: Table = ANALYTICS_METRICS) -> None:
    """Measure the compared techniques at each size up to `rows`, and streamed moves at a tenth of it and at all of it.

    Below ten thousand rows a move's memory is not measurable: where a tenth is less, moves are made at one size. Sizes
    up to a tenth have a warm-up even where none is asked for, because loops are compiled and wire bytes counted in it.

    Raises what `transfers.study.run` raises.
    """
    check(ROWS=(rows, 1))
    schedule = Rounds(rounds, warmup, seed)
    terms = {"rows": rows, **vars(schedule)}
    with (
        recording.recording(SCALING.notebook, SCALING.results, store.Result, "pass", terms) as this_run,
        servers.running(this_run.settings) as both,
        ended_with_the_block(),
    ):
        of_size = {size: Rounds(rounds, max(warmup, int(size * 10 <= rows)), seed) for size in sizes(rows)}
        ends = [rows // 10, rows] if rows // 10 >= SMALLEST_ROWS else [rows]
        per_size = sum(
            1 + len(names) * (rounds + one.warmup) for one in of_size.values() for names in COMPARED.values()
        )
        this_run.expect(per_size + len(ends) * len(MOVES) * (rounds + 1))
        versions = "; ".join(server_versions(both).values())
        this_run.metadata |= terms | {"servers": both.mode, "server": {"version": versions}}

        def work(stop: threading.Event) -> None:
            for size, rounds_of_size in of_size.items():
                content = generator.arrow_table(table, size, seed)
                for (database, direction), names in COMPARED.items():
                    known = techniques(cast("Database", database), cast("Direction", direction))
                    compared = [one for one in known if one.name in names]
                    log = this_run.technique_log(SCALING.notebook, size, stop)
                    measure.run(compared, both.of(database), table, content, rounds_of_size, log)
            for size in ends:
                _measure_moves(this_run, both, table, size, schedule, stop)

        interruptible(work)


def _measure_moves(
    this_run: Recording, both: Servers, table: Table, size: int, rounds: Rounds, stop: threading.Event
) -> None:
    """Every move of so many rows, one after another: the passes of each are made in a process of its own, and verified.

    When that process ends before its time, all passes of the move that are left fail for the same reason.
    """
    content, reference = generator.arrow_table(table, size, rounds.seed), table.renamed(f"{table.name}_sent")
    sent = Expected(table, content)
    log = this_run.technique_log(SCALING.notebook, size, stop)
    for (database, direction), moves in groupby(MOVES, lambda move: (move.database, move.direction)):
        tables = tables_of(both.of(database))
        with tempfile.TemporaryDirectory(prefix="framehaul-") as directory:
            file = Path(directory) / "rows.parquet"
            try:
                if direction == "write":
                    pq.write_table(content, file)
                    sent.keep_reference(tables, reference)
                else:
                    tables.create(table)
                    tables.load(table, content)
                    tables.quiesce()
                for move in moves:
                    with mover(move.name, file) as process:
                        in_rounds(
                            [move], Rounds(rounds.passes, warmup=1),
                            partial(_moved, process.ask, tables, table, sent, file), log.record,
                            stop=stop, progress=lambda move, _: this_run.progress(move.name), finished=log.finished,
                        )  # fmt: skip
            finally:
                for ours in (table, reference):
                    tables.drop(ours)


def _moved(
    make_pass: Callable[[str], dict[str, Any]], tables: Tables, table: Table, sent: Expected, file: Path,
    move: Technique, number: int,
) -> Moved:  # fmt: skip
    """One pass of a move between the table and the file; raises WrongResultError when other rows arrived.

    The warm-up measures memory, which is what moves are about: they have one even where none is asked for.
    """
    purpose = TIME if number > 0 else MEMORY
    if move.direction == "write":
        tables.create(table)
        tables.quiesce()
        cost = make_pass(purpose)
        wrong = sent.difference_on_server(tables)
    else:
        cost = make_pass(purpose)
        wrong = sent.difference(to_polars(pq.read_table(file), table))
    return right(Moved(cost.pop("seconds"), Usage(**cost), store.EXACT), wrong)


def mover(name: str, file: Path) -> AbstractContextManager[Child]:
    """A process for one move, which ends with the block; asked for `TIME` or `MEMORY`, it gives the cost of a pass."""
    return child(context(serve.__module__), name, serve, name, file)


def read_streams(directory: Path) -> pl.DataFrame:
    """The passes of the streamed moves of the scaling study; no rows when it was not run."""
    path = directory / SCALING.results
    growth = store.read(path) if path.exists() else pl.DataFrame(schema=store.SCHEMA)
    streamed = growth.filter(pl.col("technique").is_in([move.name for move in STREAMED]))
    return statistics.never_wrong(streamed, ["technique", "rows"])
