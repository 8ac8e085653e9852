"""Measure the speed of every upsert in shuffled rounds, then a concurrent reader and writer, and failures."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from framehaul.bench import store
from framehaul.bench.recording import Recording, recorded, result
from framehaul.bench.rounds import Pass, Rounds, Skipped, columns_of, in_rounds
from framehaul.bench.trials import chosen_techniques
from framehaul.servers import Server
from framehaul.studies.registry import UPSERT_STUDY
from framehaul.studies.upsert import measure
from framehaul.studies.upsert.measure import Bench, Case, cases
from framehaul.techniques import Technique, upserts
from framehaul.techniques.contract import ALL_OR_NOTHING
from framehaul.techniques.registry import DATABASES

MOST_ROWS = 2_000
"""The maximum of rows of a table that is read as a whole after each trial."""


@dataclass(frozen=True, kw_only=True)
class Row(store.Result):
    """A pass of an upsert; a missing number is None, never 0."""

    part: str
    target_rows: int
    share: int
    read_before_s: float | None = None
    """The seconds of a reader's query over the whole table before the upsert."""
    longest_read_s: float | None = None
    seen: str | None = None
    """The states that the reader saw while the upsert ran, each with its number of reads."""
    errors: str | None = None
    lost_rows: int | None = None
    doubled_rows: int | None = None
    mixed_rows: int | None = None
    """The rows of the writer with fewer rows, among rows with keys of both writers."""
    left: str | None = None
    """The rows of the frame in the table after the client was killed."""
    beside: int | None = None
    """The number of staging tables left after the client was killed."""


class Trial(NamedTuple):
    """A measurement of upserts in a case, and its number of passes."""

    part: str
    case: Case
    upserts: list[Technique]
    passes: int
    measure: Callable[[Bench, Technique, int], dict[str, Any]]

    def run(self, this_run: Recording, server: Server, warmup: int, seed: int) -> bool:
        """Measure the passes that an interrupted run has not finished; return whether there were any."""

        def row(one: Technique, number: int, outcome: Pass[dict[str, Any]]) -> Row:
            case, place = self.case, (this_run.run_id, UPSERT_STUDY.notebook)
            named = vars(result(*place, one, case.rows, number, Skipped(""))) | columns_of(outcome)
            return Row(**named, part=self.part, target_rows=case.target_rows, share=case.share)

        rounds, log = Rounds(self.passes, warmup, seed), this_run.log(row, lambda one: f"{self.part}: {one.name}")
        if not log.left(self.upserts, rounds):
            return False
        with Bench(server, self.case, seed).filled() as bench:
            in_rounds(self.upserts, rounds, partial(self.measure, bench), log)
        return True


@recorded(UPSERT_STUDY, Row)
def run(
    this_run: Recording, *, targets: list[int], incoming: list[int], tried: str, rounds: int, warmup: int, seed: int
) -> None:
    """Measure every upsert in every case, and the upserts that `tried` selects with other clients and failures."""
    both, chosen = this_run.servers(), {database: chosen_techniques(tried, upserts(database)) for database in DATABASES}
    tables = ", ".join(f"{one:,}" for one in sorted(targets))
    this_run.metadata["what"] = f"tables of {tables} rows, {rounds} rounds after {warmup} warm-up"
    every, few = cases(targets, incoming), min(*targets, MOST_ROWS)
    whole, small = Case(min(targets), min(targets)), Case(few, max(1, few // 10))
    trials = {
        database: [
            *(Trial("speed", case, upserts(database), rounds, measure.timed) for case in every),
            Trial("reader", whole, tried_here, 1, measure.watched),  # all rows are upserted
            Trial("writers", small, tried_here, rounds, measure.together),
            Trial("sent twice", small, tried_here, 1, measure.sent_twice),
            Trial("client killed", small, tried_here, 1, measure.killed),
        ]
        for database, tried_here in chosen.items()
    }
    steps = sum(one.passes * len(one.upserts) for of in trials.values() for one in of)
    this_run.expect(steps + warmup * sum(len(upserts(database)) for database in DATABASES))
    for database, of in trials.items():
        cold = warmup  # a resumed run warms up in its first unfinished case
        for one in of:
            if one.run(this_run, both.of(database), cold, seed):
                cold = 0


def placed(directory: Path) -> pl.DataFrame:
    """Return the timed passes of a results directory as passes of techniques, with columns of `statistics.PLACE`."""
    timed = store.read(directory / UPSERT_STUDY.results, Row).filter(part="speed")
    cases = [Case(*row) for row in timed.select("target_rows", "rows", "share").rows()]
    tables = [f"{one.target_rows:,} rows there before, {one.exact_share} of the keys" for one in cases]
    return timed.with_columns(variant=pl.lit(""), table=pl.Series(tables, dtype=pl.String))


def behaviour(passes: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each upsert that was tried with a reader or another writer, sent twice, or killed.

    - `atomic`: its terms promise it, the reader saw the old or the new rows, and the killed client left all or nothing.
    - `concurrent`: two writers neither lost nor doubled a row.
    - `retry_safe`: sent again, after a success and after the kill, it left the expected rows.

    One failed pass makes a verdict false; without passes it is null. `errors` are the errors of two writers in any
    round, which they retried; `lost_rows`, `doubled_rows` and `mixed_rows` are those of the worst round.
    """
    known = {one.name: one for database in DATABASES for one in upserts(database)}
    promised = [name for name, one in known.items() if one.contract in ALL_OR_NOTHING]
    part, failed = pl.col("part"), pl.col("status") == "failed"

    def of(name: str, column: str) -> pl.Expr:
        return pl.col(column).filter(part == name, pl.col("status") == "ok")

    def unless_failed_in(*parts: str, verdict: pl.Expr) -> pl.Expr:
        return pl.when(~(failed & part.is_in(parts)).any()).then(verdict).otherwise(pl.lit(False))

    tried_again = pl.when((part.is_in(["sent twice", "client killed"]) & (pl.col("status") != "skipped")).any())
    lost, doubled = of("writers", "lost_rows").max(), of("writers", "doubled_rows").max()
    seen, left = of("reader", "seen").first(), of("client killed", "left").first()
    saw_a_state = seen.str.contains(r"^(old|new) \d+(; (old|new) \d+)?$")
    kept = saw_a_state & left.is_in(["nothing", "all"]) & pl.col("technique").first().is_in(promised)
    columns = {
        "seen": seen,
        "ratio": of("reader", "longest_read_s").first() / of("reader", "read_before_s").first(),
        "errors": of("writers", "errors").str.extract_all(r"[A-Za-z_.]+").explode().drop_nulls().unique().sort(),
        "lost_rows": lost,
        "doubled_rows": doubled,
        "mixed_rows": of("writers", "mixed_rows").max(),
        "left": left,
        "tables_left": of("client killed", "beside").first(),
        "atomic": unless_failed_in("reader", "client killed", verdict=kept),
        "concurrent": unless_failed_in("writers", verdict=lost + doubled == 0),
        "retry_safe": unless_failed_in("sent twice", "client killed", verdict=tried_again.then(pl.lit(True))),
        "reason": pl.col("reason").drop_nulls().unique(maintain_order=True).str.join("; "),
    }
    tried = passes.filter(part != "speed", pl.col("technique").is_in([*known]))
    found = tried.group_by("database", "technique", "label", maintain_order=True).agg(**columns)
    return found.sort(pl.col("technique").cast(pl.Enum([*known])))
