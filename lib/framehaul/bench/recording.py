"""A run as it goes: its passes are written as they end, what is known of it at its end."""

from __future__ import annotations

import datetime as dt
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import polars as pl
from tqdm import tqdm

from framehaul.bench import environment, store
from framehaul.bench.meter import cores_cpu, settled
from framehaul.bench.passes import Ok, Pass, Skipped, columns_of
from framehaul.bench.times import Times
from framehaul.settings import Settings, load_settings
from framehaul.techniques import Technique

if TYPE_CHECKING:
    from pathlib import Path

    from _typeshed import DataclassInstance

    from framehaul.bench.meter import Moved


def which(technique: Technique) -> dict[str, Any]:
    """The columns that say which technique a row is about."""
    return {
        "database": technique.database, "direction": technique.direction, "technique": technique.name,
        "label": technique.label, "origin": technique.origin, "family": technique.family, "frame": technique.frame,
    }  # fmt: skip


def result(
    run_id: str, notebook: str, technique: Technique, rows: int, number: int, outcome: Pass[Moved]
) -> store.Result:
    """A pass as a row of results; what was not measured is None."""
    values: dict[str, Any] = {}
    if isinstance(outcome, Ok):
        moved = outcome.values
        values = vars(moved) | vars(moved.usage) | {"rows_per_s": rows / moved.seconds}
        del values["usage"], values["latencies_s"]
    ended = columns_of(Ok(values) if isinstance(outcome, Ok) else outcome)
    return store.Result(
        **which(technique), run_id=run_id, notebook=notebook, driver=technique.driver, rows=rows, pass_=number,
        connections=technique.connections, contract=technique.contract.kind if technique.contract else None, **ended,
    )  # fmt: skip


class Recording:
    """A run as it goes: its passes are written as they end; `metadata` is what is said of it at its end."""

    def __init__(self, settings: Settings, writer: store.Writer, bar: Any) -> None:
        self.settings, self.run_id, self.write = settings, writer.run_id, writer.write
        self.so_far = writer.read
        """Gives the passes that are written, those of an interrupted run that this one goes on from among them."""
        self.metadata: dict[str, Any] = {}
        self.times = Times()
        self._finished, self._bar = writer.finished, bar

    def expect(self, steps: int) -> None:
        """How many steps there will be, from here on."""
        self._bar.total = self._bar.n + steps
        self._bar.refresh()

    def say(self, text: str) -> None:
        """Print lines, above the progress bar."""
        self._bar.write(text, sys.stdout)

    def progress(self, step: str) -> None:
        """The next step has begun."""
        self._bar.set_postfix_str(step[:48], refresh=False)
        self._bar.update()

    def finished(self, row: DataclassInstance) -> bool:
        """Whether the pass that this row is about is there, of this run or of an interrupted one."""
        return store.identity(row) in self._finished

    def passes[T, V](
        self, row: Callable[[T, int, Pass[V]], DataclassInstance]
    ) -> tuple[Callable[[T, int, Pass[V]], None], Callable[[T, int], bool]]:
        """`record` and `finished` of `in_rounds`, for passes of which `row` makes rows."""
        return (
            lambda task, number, outcome: self.write(row(task, number, outcome)),
            lambda task, number: self.finished(row(task, number, NOTHING)),
        )

    def techniques(
        self, notebook: str, rows: int
    ) -> tuple[Callable[[Technique, int, Pass[Moved]], None], Callable[[Technique, int], bool]]:
        """`record` and `finished` of `measure.run`, for a table of so many rows."""
        return self.passes(
            lambda technique, number, outcome: result(self.run_id, notebook, technique, rows, number, outcome)
        )


NOTHING = Skipped("")


def study[**P](
    notebook: str, kind: type[DataclassInstance] = store.Result, read: Callable[[Path], pl.DataFrame] | None = None
) -> Callable[[Callable[P, None]], Callable[P, pl.DataFrame]]:
    """Turn a function that records passes into one that returns them: one row per pass, as in results/<study>.csv.

    With `FRAMEHAUL_REUSE=1` (`make report`) it measures nothing and returns the passes that are stored. `read` reads
    the file in place of `store.read`, as `store.read_cells` does for studies of outcomes.
    """
    path = f"results/{notebook.partition('_')[2]}.csv"

    def decorated(measure: Callable[P, None]) -> Callable[P, pl.DataFrame]:
        @functools.wraps(measure)
        def run(*positional: P.args, **named: P.kwargs) -> pl.DataFrame:
            settings = load_settings()
            if not settings.reuse:
                measure(*positional, **named)
                given = inspect.signature(measure).bind(*positional, **named).arguments
                simple = {name: value for name, value in given.items() if isinstance(value, int | float | str | list)}
                store.amend_run(settings.out / "results", notebook, {"parameters": simple})
            stored = settings.out / path
            return read(stored) if read else store.read(stored, kind)

        return run

    return decorated


@contextmanager
def recording(
    notebook: str, file: str, kind: type[DataclassInstance], unit: str, terms: Mapping[str, Any] | None = None,
    order: Callable[[list[str]], int] | None = None,
) -> Iterator[Recording]:  # fmt: skip
    """Write passes of one kind into `results/<file>`; at the end of the block they are complete, with their metadata.

    Where an interrupted run of the same code on the same `terms` has left passes, it goes on from them. `order` is that
    of `store.Writer`. Raises ResultsError when the file cannot be written.
    """
    settings, started = load_settings(), dt.datetime.now(dt.UTC)
    path, metadata = settings.out / "results" / file, environment.metadata(settings)
    # Of no two runs the same: an interrupted one goes on under another load.
    load, cores = environment.load(), cores_cpu()
    if terms is not None:
        of_run = vars(settings.of_a_run())
        terms = {**terms, "code": store.code_digest(), "settings": of_run, "environment": metadata}
    with (
        store.Writer(path, kind, terms, order, fresh=settings.fresh) as writer,
        settled(),
        # On standard output: a log of the run shows it as it goes.
        tqdm(total=None, file=sys.stdout, mininterval=1, unit=unit, ncols=100) as bar,
    ):
        passes = len(writer.finished)
        if passes:
            bar.write(
                f"goes on after {passes} passes that an interrupted run has left; FRESH=1 starts anew", sys.stdout
            )
        this_run = Recording(settings, writer, bar)
        yield this_run
        bar.total = bar.n  # what could not run was not expected
    if this_run.times.seconds:
        this_run.metadata["seconds"] = {part: round(seconds, 3) for part, seconds in this_run.times.seconds.items()}
    cores_now = cores_cpu()
    known = {
        "run_id": this_run.run_id, "started": f"{started:%Y-%m-%d %H:%M} UTC", "unavailable": {}, **load,
        "commit": metadata["commit"], "made_with": environment.digest(metadata), "resumed_after": passes,
        "data_filesystem": metadata["machine"]["state_dir_filesystem"],
        "stolen_s": round(cores_now.stolen_s - cores.stolen_s, 2) if cores and cores_now else None,
    }  # fmt: skip
    store.write_run(path.parent, metadata, notebook, known | this_run.metadata)
