"""The techniques that run: cells of the studies of outcomes, each tried once, and stages of a race.

In a race all techniques move a few rows, the fast ones move more, and the fastest move all.
"""

import datetime as dt
import math
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, wraps
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, get_args

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from framehaul.bench import statistics
from framehaul.bench.ratios import MIN_ROUNDS
from framehaul.bench.recording import Recording
from framehaul.bench.rounds import Rounds
from framehaul.data.schema import Table
from framehaul.techniques import Technique, techniques
from framehaul.techniques.registry import DATABASES, Database, Direction
from framehaul.techniques.streaming import STREAMED, copy_batches, insert_batches

DIRECTIONS: list[tuple[Database, Direction]] = [*product(DATABASES, get_args(Direction))]
FEWEST: dict[Direction, set[tuple[str, str]]] = {
    "write": {("beyond", "pandas"), ("beyond", "polars"), ("streamed", "batches"), ("upsert", "polars")},
    "read": {("beyond", "polars"), ("streamed", "batches")},
}
"""Origins and kinds of frame. Writes are tried with both kinds, because pandas has an index and Polars lazy frames."""
LEAST = 4
"""The minimum number of techniques of a kind of frame that stay in, if they are within reach."""
FIRST_SHARE = 8
"""The divisor of the rows for the first stage, in which a slow technique takes no longer than a likely winner later."""
RACE_ROUNDS = 2
"""The least rounds of the first stage of a race: the first round includes one-time work such as imports."""
LONGEST_PASS_SECONDS = {True: 0.2, False: 0.6}
"""The longest pass of everyday techniques, in a race and without; slower techniques move fewer rows."""
LEAST_ROWS = 40_000
"""The minimum of rows for a stage before the others: no technique takes minutes for fewer."""


@dataclass(frozen=True)
class Tried:
    """A cell; a study adds fields for the trial, without defaults, and for the outcome, with empty defaults."""

    database: str
    direction: str
    technique: str
    label: str
    origin: str
    family: str
    frame: str


@dataclass
class Trials[C: Tried]:
    """A recorder of a run's cells, from any thread, and of the reasons why others were not tried."""

    record: Callable[[C], object]
    finished: Callable[[C], bool] = lambda _: False
    """Return true for a cell that an interrupted run has recorded."""
    unavailable: dict[str, str] = field(default_factory=dict)
    """The reasons why techniques cannot run here, by `database direction name`, or why a server allows no trial."""


def _in_batches(move: Technique) -> Technique:
    """Return a streamed move as a technique: a write takes record batches, a read returns the content of its file."""
    write: Callable[..., None] = copy_batches if move.database == "postgres" else insert_batches

    @wraps(move.function)
    def from_batches(client: object, table: Table, batches: Iterable[pa.RecordBatch], *rows_to_write: int) -> None:
        write(client, table, iter(batches), *rows_to_write)

    @wraps(move.function)
    def to_frame(client: object, table: Table, *batch_bytes: int) -> Any:
        with tempfile.TemporaryDirectory(prefix="framehaul-") as directory:
            file = Path(directory) / "rows.parquet"
            move.function(client, table, file, *batch_bytes)
            return pl.from_arrow(pq.read_table(file))

    function = to_frame if move.direction == "read" else from_batches
    label = move.label if move.direction == "read" else move.label.replace("Parquet file", "record batches")
    return replace(move, function=function, frame="batches", origin="streamed", label=label)


STREAMS = tuple(map(_in_batches, STREAMED))
"""All streamed moves as techniques, which keep the names of the moves."""


@cache
def all_techniques() -> list[Technique]:
    """Return all techniques that move a frame, without baselines, and the streamed moves, in the order of pages."""
    moving = [*(technique for technique in techniques() if technique.origin != "baseline"), *STREAMS]
    return sorted(moving, key=lambda one: DIRECTIONS.index((one.database, one.direction)))


def chosen_techniques(
    tried: str, among: Sequence[Technique] | None = None, today: dt.date | None = None
) -> list[Technique]:
    """Return `all` techniques or a part of them.

    - `directions`: the first of each direction and origin, without everyday calls, which take longest
    - `fewest`: of each direction one of origin `beyond`, for writes one for each kind of frame, and one that streams
    - `tenth`: the fewest and every tenth technique, another tenth each day, so that ten days try all
    """
    every = all_techniques() if among is None else among
    if tried == "tenth":
        fewest, day = chosen_techniques("fewest", every), (today or dt.date.today()).toordinal()
        return [one for at, one in enumerate(every) if one in fewest or not (at + day) % 10]
    kinds: dict[str, Callable[[Technique], str]] = {
        "all": lambda one: one.name,
        "directions": lambda one: "" if one.origin == "everyday" else one.origin,
        "fewest": lambda one: one.frame if (one.origin, one.frame) in FEWEST[one.direction] else "",
    }
    first: dict[tuple[str, ...], Technique] = {}
    for one in every:
        if kind := kinds[tried](one):
            first.setdefault((one.database, one.direction, kind), one)
    return [*first.values()]


_places = cache(lambda: {one.key: at for at, one in enumerate(all_techniques())})


def in_order(row: list[Any]) -> int:
    """Return the place of a row of cells in a complete file, which has them in the order of techniques."""
    return _places()[row[0], row[1], row[2]]


def trials_of(this_run: Recording) -> Trials[Any]:
    """Return the trials of a run."""
    lock = threading.Lock()

    def record(cell: Tried) -> None:
        with lock:
            this_run.write(cell)
            this_run.progress(cell.technique)

    return Trials(record, this_run.finished, this_run.metadata["unavailable"])


@dataclass(frozen=True)
class Stage:
    """A stage: its number of rows, its rounds, and the rule for the techniques that stay in after it."""

    rows: int
    rounds: Rounds
    reach: float = 1.5
    """A technique stays in up to this many times the median time of the faster half of its kind of frame."""
    share: float = 1
    """The maximum share of a kind of frame that stays in, but not fewer than `LEAST`."""


def stages(rows: int, rounds: Rounds, *, race: bool) -> list[Stage]:
    """Return the stages up to `rows`: a race begins with an eighth of them, and ends with rounds beyond a verdict's."""
    if not race or rows < FIRST_SHARE:
        return [Stage(rows, rounds)]
    first = Stage(rows // FIRST_SHARE, Rounds(max(RACE_ROUNDS, rounds.passes // 2), 0, rounds.seed), share=0.3)
    if rounds.passes <= MIN_ROUNDS:
        return [first, Stage(rows, rounds)]
    return [first, Stage(rows, replace(rounds, passes=MIN_ROUNDS)), Stage(rows, replace(rounds, warmup=0))]


def in_time(
    techniques: Sequence[Technique], passes: pl.DataFrame, stage: Stage, rows: int, *, race: bool
) -> list[Technique]:
    """Return the techniques whose fastest pass would move an eighth of `rows` within `LONGEST_PASS_SECONDS`."""
    speeds, limit = _speeds(passes, stage), LONGEST_PASS_SECONDS[race]
    return [one for one in techniques if one.key in speeds and rows // FIRST_SHARE / speeds[one.key] <= limit]


def _speeds(passes: pl.DataFrame, stage: Stage) -> dict[tuple[str, ...], float]:
    """Return the fastest rows/s of each technique in a stage; techniques that ever failed are left out."""
    timed = statistics.medians(passes.filter(rows=stage.rows), statistics.NAMES).drop_nulls("rows_per_s")
    return {tuple(row[:-1]): row[-1] for row in timed.select(*statistics.NAMES, "max_rows_per_s").rows()}


def leaders(techniques: Sequence[Technique], passes: pl.DataFrame, stage: Stage) -> list[Technique]:
    """Return the techniques that stay in after a stage.

    - The fastest of each kind of frame and class of write, within the stage's reach and share, by their fastest pass:
      other work on the machine makes a pass slower, never faster. The reach counts from the median of the faster half,
      because one pass may be fast by chance.
    - The fastest published technique of each, and those within 10% of it: more rounds may change their order.
    - Techniques with several connections up to twice the reach: they start slower and gain with many rows.
    - The same method with the other kind of frame, within reach.
    - Baselines, because the fastest techniques are compared with them.
    """
    speeds = _speeds(passes, stage)
    ranked = sorted((one for one in techniques if one.key in speeds), key=lambda one: -speeds[one.key])
    staying, within_reach = {one for one in ranked if one.origin == "baseline"}, list[Technique]()
    groups: dict[tuple[str, str], list[Technique]] = {}
    for one in [one for one in ranked if one.origin != "baseline"]:
        groups.setdefault((one.frame, one.contract.kind if one.contract else ""), []).append(one)
    for group in groups.values():
        slowest = median(speeds[one.key] for one in group[: (len(group) + 1) // 2]) / stage.reach
        near = [one for one in group if speeds[one.key] >= slowest]
        within_reach += near
        staying |= {*near[: max(LEAST, math.ceil(len(group) * stage.share))]}
        published = [one for one in group if one.origin == "published"]  # fastest first
        staying |= {one for one in published if speeds[one.key] >= 0.9 * speeds[published[0].key]}
        staying |= {one for one in group if one.connections > 1 and speeds[one.key] >= slowest / 2}
    method = {one: one.name.removeprefix(f"{one.frame}_") for one in techniques}
    methods = {method[one] for one in staying}
    staying |= {one for one in within_reach if method[one] in methods}
    return [one for one in techniques if one in staying]
