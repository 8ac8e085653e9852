"""What the studies of passes share, beside those of techniques: rounds, a file of passes, medians, what is missing."""

from __future__ import annotations

import datetime as dt
import random
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from tqdm import tqdm

from framehaul import charts, measure, results, study
from framehaul.clients import UnavailableError
from framehaul.settings import Settings, load_settings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def check(**given: tuple[int, int]) -> None:
    """Raises ValueError, naming it, for a value that is no whole number or below the least that makes sense."""
    for name, (value, least) in given.items():
        if type(value) is not int or value < least:
            raise ValueError(f"{name}={value!r}: give a whole number of at least {least}")


def in_rounds[T](
    tasks: Sequence[T], *, warmup: int, passes: int, seed: int, stop: threading.Event
) -> Iterator[tuple[int, T]]:
    """Every task once in each round, in a shuffled order, with the number of its pass; below 1 it is a warm-up.

    Raises KeyboardInterrupt after `stop` was set, between two tasks.
    """
    for number in range(1 - warmup, passes + 1):
        for task in random.Random(f"{seed}/{number}").sample(tasks, len(tasks)):
            if stop.is_set():
                raise KeyboardInterrupt
            yield number, task


def outcome_of(error: Exception, directory: Path | None = None) -> dict[str, Any]:
    """The status and the reason of a pass that ended with an error: whatever it raises is its result.

    The reason says which file of `directory` it was, and not where on this machine.
    """
    if isinstance(error, UnavailableError):
        return {"status": "skipped", "reason": str(error)}
    reason = measure.describe(error)
    return {"status": "failed", "reason": reason if directory is None else reason.replace(f"{directory}/", "")}


class Recording:
    """A run as it goes: its passes are written as they end; `facts` are what is said of it at its end."""

    def __init__(self, settings: Settings, writer: results.Writer, bar: Any) -> None:
        self.settings, self.run_id, self.write = settings, results.new_run_id(), writer.write
        self.facts: dict[str, Any] = {}
        self._bar = bar

    def expect(self, steps: int) -> None:
        """How many steps there will be."""
        self._bar.reset(total=steps)

    def progress(self, step: str) -> None:
        """The next step has begun."""
        self._bar.set_postfix_str(step[:48], refresh=False)
        self._bar.update()


@contextmanager
def recording(notebook: str, file: str, kind: type[DataclassInstance], unit: str) -> Iterator[Recording]:
    """Write passes of one kind into `results/<file>`; at the end of the block they are complete, with their facts.

    Raises ResultsError when the file cannot be written.
    """
    settings, started = load_settings(), dt.datetime.now(dt.UTC)
    with (
        results.Writer(settings.out / "results" / file, kind) as writer,
        # On standard output: a log of the run shows it as it goes.
        tqdm(total=None, file=sys.stdout, mininterval=1, unit=unit, ncols=100) as bar,
    ):
        made = Recording(settings, writer, bar)
        yield made
    told = {"run_id": made.run_id, "started": f"{started:%Y-%m-%d %H:%M} UTC", "unavailable": {}}
    study.keep_facts(settings, notebook, told | made.facts)


def medians(passes: pl.DataFrame, keys: list[str], *also: pl.Expr, speed: str = "rows_per_s") -> pl.DataFrame:
    """One row for each combination of keys, in order of appearance: medians over passes, `unstable`, and `also`.

    The column `speed` has a `min_` and a `max_` as well, and tells who was unstable. Who ever failed or was skipped has
    no figures there, and its reason.
    """
    figures = [name for name, kind in passes.schema.items() if kind.is_numeric() and name not in (*keys, "pass")]
    told = pl.col(speed)
    good = (pl.col("status") == "ok").all()
    return passes.group_by(keys, maintain_order=True).agg(
        *(pl.when(good).then(pl.col(name).median()).alias(name) for name in figures),
        pl.when(good).then(told.min()).alias(f"min_{speed}"),
        pl.when(good).then(told.max()).alias(f"max_{speed}"),
        (told.std() / told.mean() > results.UNSTABLE_VARIATION).fill_null(False).alias("unstable"),
        pl.col("status").filter(pl.col("status") != "ok").first().fill_null("ok"),
        pl.col("reason").drop_nulls().first(),
        *also,
    )


def ratio(left: pl.DataFrame, right: pl.DataFrame, speed: str = "rows_per_s") -> dict[str, float]:
    """The ratio of median rows/s of two sets of passes, with its bootstrap 95% interval; NaN where one is empty.

    `speed` is another column to compare.
    """
    one, other = (side.filter(status="ok").select("pass", pl.col(speed).alias("rows_per_s")) for side in (left, right))
    found = results.ratio_with_interval(one, other)
    return dict(zip(("ratio", "ratio_low", "ratio_high"), found, strict=True))


def missing_table(found: pl.DataFrame, who: str, of: str) -> str:
    """What was skipped or failed among medians, by label, as Markdown; a sentence when there is nothing.

    `who` is what a label names, `of` the column that tells what it was asked for.
    """
    bad = found.filter(pl.col("status") != "ok")
    if bad.is_empty():
        return "Everything ran."
    rows = [
        [str(label), str(status), ", ".join(group[of].unique(maintain_order=True)), str(reason or "")]
        for (label, status, reason), group in bad.group_by("label", "status", "reason", maintain_order=True)
    ]
    return charts.markdown_table([who, "", f"{of}s", "reason"], rows, text_columns=4)
