"""How somebody's frame is measured: all techniques at once, or in heats with a first answer on the way."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import polars as pl
import psycopg
import pyarrow as pa

from framehaul.bench import statistics
from framehaul.bench.measure import Found, record_passes
from framehaul.bench.race import Heat, leaders
from framehaul.bench.ratios import tied
from framehaul.bench.recording import Recording
from framehaul.bench.rounds import Rounds
from framehaul.bench.store import EXACT
from framehaul.data.schema import Table
from framehaul.errors import ReferenceTableError
from framehaul.servers import Servers
from framehaul.studies.own_data import STUDY, modes
from framehaul.studies.own_data.files import DataError
from framehaul.studies.upsert.found import before_upsert
from framehaul.techniques import Technique
from framehaul.techniques.registry import DATABASES, Database, Direction

type Path = tuple[Database, Direction]
SAMPLE_ROWS, PART_ROWS = (1_000, 10_000), (10_000, 100_000)
"""The least and the most rows of the two first heats, which else take a 64th and an 8th of the frame."""
FIRST_ROUNDS = 3
"""Rounds of the leaders on the whole frame, before only those go on that cannot be told apart."""


@dataclass
class Racing:
    """A frame on its way along all paths; every method measures, and writes its passes."""

    this_run: Recording
    both: Servers
    table: Table
    content: pa.Table
    rounds: Rounds
    stop: threading.Event
    seconds: float
    """After how many of them there is a first answer."""
    mode: str = modes.APPEND
    kept: pa.Table | None = None
    """Rows that an upsert finds in the table, and does not touch."""
    began: float = field(default_factory=time.monotonic)

    def all(self, chosen: Mapping[Path, list[Technique]]) -> None:
        """Everybody moves the whole frame in every round."""
        for techniques in chosen.values():
            self._measure(techniques, self._rows, self.rounds)

    def heats(self, chosen: Mapping[Path, list[Technique]], answer: Callable[[pl.DataFrame], None]) -> None:
        """Everybody moves a sample, the better ones more, the leaders all, until they are told apart or tie.

        `answer` gets the passes when there is a first answer: after a round of the leaders on the whole frame or, where
        that takes too long, before it.
        """
        every = self._rows
        sample, part = (
            min(every, max(least, min(most, every // share)))
            for (least, most), share in ((SAMPLE_ROWS, 64), (PART_ROWS, 8))
        )
        seed, left = self.rounds.seed, dict(chosen)
        first = Heat(sample, Rounds(1, self.rounds.warmup, seed), reach=2, share=1 / 2)
        for heat in (first, Heat(part, Rounds(1, 0, seed), share=1 / 4)):
            for path, techniques in left.items():
                self._measure(techniques, heat.rows, heat.rounds)
                left[path] = leaders(techniques, self._exact(), heat)
        slow = time.monotonic() - self.began + self._expected(left, part) > self.seconds
        if slow:
            answer(self.this_run.so_far())
        for number in range(1, self.rounds.passes + 1):
            for path, techniques in left.items():
                self._measure(techniques, every, Rounds(number, 0, seed))
                if number >= FIRST_ROUNDS:
                    left[path] = self._not_told_apart(techniques)
            if number == 1 and not slow:
                answer(self.this_run.so_far())

    @property
    def _rows(self) -> int:
        return int(self.content.num_rows)

    def _expected(self, left: Mapping[Path, list[Technique]], rows: int) -> float:
        """About how many seconds a round of those that are left takes on the whole frame, all around it included."""
        once = self._exact().filter(rows=rows).group_by(statistics.NAMES).agg(pl.col("seconds").min())
        going = {one.key for techniques in left.values() for one in techniques}
        seconds = math.fsum(row[-1] for row in once.rows() if row[:-1] in going)
        return float(2 * seconds * self._rows / rows)

    def _exact(self) -> pl.DataFrame:
        """The passes so far, but for those of techniques that do not give back the dtypes: they are no answer."""
        return self.this_run.so_far().filter((pl.col("dtypes") == EXACT) | pl.col("dtypes").is_null())

    def _not_told_apart(self, techniques: Iterable[Technique]) -> list[Technique]:
        """Of each kind of frame and class the fastest, and who cannot be told from it; nobody where it is alone."""
        known = {one.key: one for one in techniques}
        timed = statistics.summary(self._exact().filter(rows=self._rows)).drop_nulls("median_rows_per_s")
        rows = [row for row in timed.to_dicts() if tuple(row[name] for name in statistics.NAMES) in known]
        going: list[Technique] = []
        for group in dict.fromkeys((row["frame"], row["contract"]) for row in rows):
            ranked = [row for row in rows if (row["frame"], row["contract"]) == group]
            if rivals := tied(ranked):
                going += [known[row["database"], row["direction"], row["technique"]] for row in (ranked[0], *rivals)]
        return going

    def _found(self, database: Database, content: pa.Table) -> Found | None:
        """What writes of these rows find in the table."""
        if self.kept is not None:
            return before_upsert(content, self.kept, self.table, self.both.of(database))
        return modes.before_replacing(content) if self.mode == modes.REPLACE else None

    def _measure(self, techniques: list[Technique], rows: int, rounds: Rounds) -> None:
        _, finished = self.this_run.techniques(STUDY.notebook, rows)
        left = [one for one in techniques if not all(finished(one, at + 1) for at in range(rounds.passes))]
        if not left:
            return
        database, content = left[0].database, self.content.slice(0, rows)
        self.this_run.expect(1 + len(left) * (rounds.warmup + rounds.passes))
        try:
            record_passes(
                self.this_run, STUDY.notebook, left, self.both.of(database), self.table,
                content, rounds, self.stop, found=self._found(database, content),
            )  # fmt: skip
        except (psycopg.Error, ReferenceTableError) as error:
            raise DataError(f"{DATABASES[database]} does not hold this frame: {error}") from error
