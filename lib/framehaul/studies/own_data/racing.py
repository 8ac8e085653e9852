"""Measure a frame with all techniques in full, or in stages of growing size with a first answer on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import polars as pl
import psycopg
import pyarrow as pa

from framehaul.bench import measure
from framehaul.bench.measure import ExistingRows, PassOptions
from framehaul.bench.race import Stage, leaders
from framehaul.bench.recording import Recording
from framehaul.bench.rounds import Rounds
from framehaul.bench.store import EXACT
from framehaul.data.schema import Table
from framehaul.errors import FrameError, ReferenceTableError
from framehaul.servers import Servers
from framehaul.studies.own_data import modes
from framehaul.studies.registry import OWN_DATA
from framehaul.studies.upsert.found import before_upsert
from framehaul.techniques import Technique
from framehaul.techniques.registry import DATABASES, Database, Direction

type Path = tuple[Database, Direction]
SAMPLE_ROWS, PART_ROWS = (1_000, 10_000), (10_000, 100_000)
"""The minimum and maximum of rows in the first two stages, which take a 64th and an 8th of the frame."""

THERE_ROWS = 1_000
"""The maximum of rows that are in the table before a write that replaces them."""


@dataclass
class Racing:
    """A frame that is measured on all paths; both methods record its passes."""

    this_run: Recording
    both: Servers
    table: Table
    content: pa.Table
    rounds: Rounds
    stop: threading.Event
    mode: str
    kept: pa.Table | None
    """Rows that are in the table before an upsert, and that it does not change."""

    def all(self, chosen: Mapping[Path, list[Technique]]) -> None:
        """Measure every technique with the whole frame in every round."""
        for techniques in chosen.values():
            self._measure(techniques, self.content.num_rows, self.rounds)

    def stages(self, chosen: Mapping[Path, list[Technique]], answer: Callable[[pl.DataFrame], None]) -> None:
        """Measure every technique with a sample, the better half with more, and the leaders with the whole frame.

        `answer` gets the passes after the first round of the leaders.
        """
        every, seed, left = self.content.num_rows, self.rounds.seed, dict(chosen)
        sample, part = (
            min(every, max(least, min(most, every // share)))
            for (least, most), share in ((SAMPLE_ROWS, 64), (PART_ROWS, 8))
        )
        first = Stage(sample, Rounds(1, self.rounds.warmup, seed), reach=2, share=1 / 2)
        for stage in (first, Stage(part, Rounds(1, 0, seed), share=1 / 4)):
            for path, techniques in left.items():
                self._measure(techniques, stage.rows, stage.rounds)
                # Techniques that do not give back the dtypes are no answer.
                exact = self.this_run.so_far().filter((pl.col("dtypes") == EXACT) | pl.col("dtypes").is_null())
                left[path] = leaders(techniques, exact, stage)
        for passes in (1, self.rounds.passes):
            for techniques in left.values():
                self._measure(techniques, every, Rounds(passes, 0, seed))
            if passes == 1:
                answer(self.this_run.so_far())

    def _existing(self, database: Database, content: pa.Table) -> ExistingRows | None:
        """Return the rows that are in the table before a write; None for an empty table."""
        if self.kept is not None:
            return before_upsert(content, self.kept, self.table, self.both.of(database))
        # They are rows of the frame: one that is not removed is a row too many, or its key is an error.
        return ExistingRows(content.slice(0, THERE_ROWS)) if self.mode == modes.REPLACE else None

    def _measure(self, techniques: list[Technique], rows: int, rounds: Rounds) -> None:
        """Record the passes of techniques with the first `rows` rows; raise FrameError when a server refuses them."""
        log = self.this_run.technique_log(OWN_DATA.notebook, rows, self.stop)
        left = [one for one in techniques if not all(log.finished(one, at + 1) for at in range(rounds.passes))]
        if not left:
            return
        database, content = left[0].database, self.content.slice(0, rows)
        self.this_run.expect(1 + len(left) * (rounds.warmup + rounds.passes))
        try:
            options = PassOptions(existing=self._existing(database, content))
            measure.run(left, self.both.of(database), self.table, content, rounds, log, options)
        except (psycopg.Error, ReferenceTableError) as error:
            raise FrameError(f"{DATABASES[database]} does not hold this frame: {error}") from error
