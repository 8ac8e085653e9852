"""What a column of another type costs a transfer: the same rows with it and without it, in the same rounds."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
from IPython.display import Markdown

from framehaul import servers
from framehaul.bench import store
from framehaul.bench.measure import Passes
from framehaul.bench.meter import Moved
from framehaul.bench.passes import Pass
from framehaul.bench.ratios import Ratio, ratio, verdicts
from framehaul.bench.recording import result
from framehaul.bench.rounds import Rounds, check, in_rounds, interruptible
from framehaul.data import generator
from framehaul.data.schema import NESTED_METRICS, Column, ColumnType, Table
from framehaul.errors import ResultsError
from framehaul.reporting import tables
from framehaul.reporting.tables import Listing, where, words
from framehaul.settings import load_settings
from framehaul.studies.transfers.study import study_of
from framehaul.techniques import Technique
from framehaul.techniques.registry import Database, Direction, named

SCALARS = NESTED_METRICS.columns[:6]
WITHOUT = "scalars alone"
ADDED = {
    WITHOUT: (),
    "an integer more": (Column("added", ColumnType.INT64),),
    **{
        f"{what} more": (NESTED_METRICS.columns[NESTED_METRICS.column_names.index(name)],)
        for what, name in (
            ("a decimal", "amount"), ("an enum", "state"), ("a list of integers", "numbers"), ("a struct", "place"),
            ("a document of JSON", "document"),
        )
    },
}  # fmt: skip
"""What stands in the table beside the scalars."""
CARRIERS: dict[tuple[Database, Direction], tuple[str, ...]] = {
    ("postgres", "read"): ("polars_adbc_fetch", "polars_asyncpg_copy_decoded"),
    ("clickhouse", "read"): ("polars_http_client_arrow_stream", "polars_http_client_native_decoded"),
    ("postgres", "write"): ("polars_pgpq_copy_binary",),
    ("clickhouse", "write"): ("polars_http_client_arrow_stream", "polars_http_client_native_presorted"),
}
"""Who carries all of these, and where there is such, whose compiled loops do not, but are made for the scalars."""


RESULTS = "{}_{}_columns.csv"
"""Of a database and direction."""


@dataclass(frozen=True, kw_only=True)
class Costed(store.Result):
    """A pass of a table that has this beside the scalars."""

    added: str


@dataclass(frozen=True)
class Transfer:
    """A technique, and what stands in the table that it moves beside the scalars."""

    technique: Technique
    added: str


def cost(
    database: Database, direction: Direction = "read", *, rows: int, passes: int, warmup: int, seed: int
) -> Costs:  # fmt: skip
    """Move tables that differ in one column, each once in a round, and write the passes into `RESULTS`.

    Raises ServerError when the server cannot be had, and ResultsError when the file cannot be written.
    """
    check(ROWS=(rows, 1))
    rounds, settings = Rounds(passes, warmup, seed), load_settings()
    path = settings.out / "results" / RESULTS.format(database, direction)
    carrier, *loops = (named(database, direction, name) for name in CARRIERS[database, direction])
    transfers = [*(Transfer(carrier, added) for added in ADDED), *(Transfer(one, WITHOUT) for one in loops)]
    with store.Writer(path, Costed) as writer, servers.running(settings) as both:
        server = both.of(database)

        def record(one: Transfer, number: int, outcome: Pass[Moved]) -> None:
            row = result(writer.run_id, study_of(database, direction).notebook, one.technique, rows, number, outcome)
            writer.write(Costed(**vars(row), added=one.added))

        def work(stop: threading.Event) -> None:
            with ExitStack() as stack, asyncio.Runner() as runner:
                passes_of = {
                    added: stack.enter_context(
                        Passes(server, table, generator.arrow_table(table, rows, seed), [direction], [carrier.frame])
                    )
                    for added, table in ((added, table_with(added)) for added in ADDED)
                }

                def measure(one: Transfer, number: int) -> Moved:
                    return runner.run(passes_of[one.added].one(one.technique, number))

                in_rounds(transfers, rounds, measure, record, stop=stop)

        interruptible(work)
    return load(database, direction, path.parent)


def load(database: Database, direction: Direction, directory: Path) -> Costs:
    """The passes of the last such comparison in a results directory; raises ResultsError when there is none."""
    path = directory / RESULTS.format(database, direction)
    passes = store.read(path, Costed) if path.exists() else pl.DataFrame()
    if passes.is_empty():
        raise ResultsError(f"{path} has no passes: run the notebook again (make all NOTEBOOKS={database}_{direction})")
    return Costs(passes, CARRIERS[database, direction][0], passes["rows"][0], direction)


def columns_table(directory: Path) -> Listing:
    """What each column costs in each direction: rows/s with it over those without it, and the range or interval."""
    found = {path: load(*path, directory) for path in CARRIERS}
    rows: list[dict[str, object]] = [{"added": added} for added in ADDED if added != WITHOUT]
    for path, costs in found.items():
        ratios = costs.ratios()
        for row in rows:
            one = ratios[costs.carrier, str(row["added"])]
            row[" ".join(path)] = str(one) if one.rounds else None
    heads = [
        words(
            f"{where({'database': database, 'direction': direction})}, {costs.rows:,} rows", f"{database} {direction}"
        )
        for (database, direction), costs in found.items()
    ]
    return Listing([words("beside six scalars", "added"), *heads], rows)


def table_with(added: str) -> Table:
    """The table that has this beside the scalars."""
    name = f"{NESTED_METRICS.name}_{'_'.join(added.lower().split())}"
    return replace(NESTED_METRICS, name=name, columns=(*SCALARS, *ADDED[added]))


class Costs:
    """The passes of such a comparison."""

    def __init__(self, passes: pl.DataFrame, carrier: str, rows: int, direction: Direction) -> None:
        self.passes, self.carrier, self.rows, self.direction = passes, carrier, rows, direction

    def ratios(self) -> dict[tuple[str, str], Ratio]:
        """By technique and what was added: how many times the rows/s of the scalars alone it has."""
        scalars = self.passes.filter(technique=self.carrier, added=WITHOUT)
        moved = dict(self.passes.group_by("technique", "added"))
        names = [self.carrier, *(name for name in self.passes["technique"].unique() if name != self.carrier)]
        those = [(name, added) for name in names for added in ADDED if (name, added) in moved]
        return {one: ratio(moved[one], scalars) for one in those if one != (self.carrier, WITHOUT)}

    def table(self) -> Listing:
        """What each column costs; a ratio below 1 is slower than without it."""
        found, labels = self.ratios(), dict(self.passes.select("technique", "label").iter_rows())
        said = verdicts([(one, 1) for one in found.values()], "faster", "slower")
        rows = [
            {"added": added, "label": labels[name], "ratio": one.ratio, "ratio_low": one.low, "ratio_high": one.high,
             "ratio_rounds": one.rounds, "reading": word}
            for ((name, added), one), word in zip(found.items(), said, strict=True) if one.rounds
        ]  # fmt: skip
        columns = [
            words("table", "added"), words("technique", "label"),
            tables.Column(f"rows/s over those of {WITHOUT}, {labels[self.carrier]}", "ratio", "{:.2f}x"),
            tables.Column("its range or interval", tables.interval_text), words("verdict", "reading"),
        ]  # fmt: skip
        return Listing(columns, rows)

    def reading(self) -> Markdown:
        """What a list costs, in words."""
        found = self.ratios()
        of_list, of_integer = (found[self.carrier, f"{what} more"] for what in ("a list of integers", "an integer"))
        if not of_list.rounds or not of_integer.rounds:
            return Markdown("No pass of the table with a list was right: what that costs is not known.")
        said = (
            f"With a list of up to three integers beside six scalars this path {self.direction}s {of_list} the rows/s "
            f"of the scalars alone, {self.rows:,} rows; with one integer in its place {of_integer}."
        )
        others = {name: one for (name, _), one in found.items() if name != self.carrier}
        if not others:
            return Markdown(f"{said} It encodes lists itself: a table that has one needs no other path.")
        measured = [one for one in others.values() if one.rounds]
        at = f", which {self.direction} the scalars alone at {measured[0]} its rows/s," if measured else ""
        code = {"read": "decode", "write": "encode"}[self.direction]
        return Markdown(f"{said} The compiled loops{at} {code} no lists: a table that has one is left to this path.")
