"""Record the passes of a run while it runs, and its metadata at the end."""

from __future__ import annotations

import datetime as dt
import functools
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import polars as pl
import psutil

from framehaul import servers
from framehaul.bench import environment, store
from framehaul.bench.meter import Moved, cores_cpu_s
from framehaul.bench.rounds import Log, Ok, Pass, Rounds, Skipped, columns_of, in_rounds
from framehaul.servers import Servers
from framehaul.settings import Settings, load_settings
from framehaul.techniques import Technique

if TYPE_CHECKING:
    from pathlib import Path

    from _typeshed import DataclassInstance

    from framehaul.bench.study import Study

type MakeRow[T, V] = Callable[[T, int, Pass[V]], DataclassInstance]
"""A function that makes a row of results of a task, the number of a pass and its outcome."""
PARAMETERS = ContextVar[Mapping[str, Any]]("PARAMETERS")
"""The parameters with which `study` last called a function that records, for the metadata of its run."""


def which(technique: Technique) -> dict[str, Any]:
    """Return the columns that identify a technique."""
    names = ("database", "direction", "label", "origin", "family", "frame")
    return {"technique": technique.name} | {name: getattr(technique, name) for name in names}


def result(
    run_id: str, notebook: str, technique: Technique, rows: int, number: int, outcome: Pass[Moved]
) -> store.Result:
    """Return a pass as a row of results; what was not measured is None."""
    values = which(technique) | {"driver": technique.driver, "connections": technique.connections}
    values["contract"] = technique.contract.kind if technique.contract else None
    if isinstance(outcome, Ok):
        moved = vars(outcome.values) | vars(outcome.values.usage) | {"rows_per_s": rows / outcome.values.seconds}
        values |= {name: value for name, value in moved.items() if name in store.SCHEMA}
    else:
        values |= columns_of(outcome)
    return store.Result(**values, run_id=run_id, notebook=notebook, rows=rows, pass_=number)


class Recording:
    """A run in progress: `write`, `finished` (`Writer.has`) and `so_far` (`Writer.read`) are those of its results.

    `metadata` is stored at its end. `say` prints text above the progress bar.
    """

    def __init__(self, settings: Settings, writer: store.Writer, bar: Any) -> None:
        self.settings, self.run_id, self.write, self.finished = settings, writer.run_id, writer.write, writer.has
        self.so_far, self.say, self._bar = writer.read, bar.write, bar
        self.metadata: dict[str, Any] = {}

    def expect(self, steps: int) -> None:
        """Add steps to the total of the progress bar."""
        self._bar.total = self._bar.n + steps
        self._bar.refresh()

    def progress(self, step: str) -> None:
        """Show the name of the step that begins."""
        self._bar.set_postfix_str(step[:48], refresh=False)
        self._bar.update()

    def log[T, V](
        self, row: MakeRow[T, V], stop: threading.Event | None = None, name: Callable[[T], str] = attrgetter("name")
    ) -> Log[T, V]:
        """Return the log of a loop whose passes `row` turns into rows; the progress bar shows the `name` of a task."""
        return Log(
            lambda task, number, outcome: self.write(row(task, number, outcome)),
            lambda task, number: self.finished(row(task, number, Skipped(""))),
            lambda task, number: self.progress(f"{f'pass {number}' if number > 0 else 'warm-up'}: {name(task)}"),
            stop,
        )

    def technique_log(self, notebook: str, rows: int, stop: threading.Event) -> Log[Technique, Moved]:
        """Return the log of `measure.run` for rows of `store.Result`."""
        return self.log(lambda one, number, outcome: result(self.run_id, notebook, one, rows, number, outcome), stop)

    def in_rounds[T: Hashable, V](
        self,
        tasks: Sequence[T],
        rounds: Rounds,
        measure: Callable[[T, int], V],
        row: MakeRow[T, V],
        name: Callable[[T], str],
        *,
        stop: threading.Event | None = None,
        home: Path | None = None,
    ) -> None:
        """Measure tasks in rounds and record the row of every pass; `attempt` describes `home`."""
        in_rounds(tasks, rounds, measure, self.log(row, stop, name), home)


def study[**P](
    notebook: str, kind: store.RowClass | None = store.Result
) -> Callable[[Callable[P, None]], Callable[P, pl.DataFrame]]:
    """Turn a function that records passes into one that returns them: one row per pass, as in results/<study>.csv.

    With `FRAMEHAUL_REUSE=1` (`make report`) it measures nothing and returns the stored passes. Rows without a `kind`
    are cells of a study of outcomes.
    """

    def decorated(measure: Callable[P, None]) -> Callable[P, pl.DataFrame]:
        @functools.wraps(measure)
        def run(*positional: P.args, **named: P.kwargs) -> pl.DataFrame:
            settings = load_settings()
            if not settings.reuse:
                simple = {name: value for name, value in named.items() if isinstance(value, int | float | str | list)}
                PARAMETERS.set(simple)
                measure(*positional, **named)
            stored = settings.out / "results" / f"{notebook.partition('_')[2]}.csv"
            return store.read(stored, kind) if kind else store.read_cells(stored)

        return run

    return decorated


@contextmanager
def recording(
    notebook: str, file: str, kind: store.RowClass, unit: str, terms: Mapping[str, Any], order: store.Order = None
) -> Iterator[Recording]:
    """Write passes of one kind into `results/<file>`; at the end of the block they are complete, with their metadata.

    A run continues an interrupted run of the same code on the same `terms`. `store.writing` describes `order`. Raises
    ResultsError when the file cannot be written.
    """
    from tqdm import tqdm  # a package of the notebooks, which a script of `make mine` does without

    settings, started = load_settings(), dt.datetime.now(dt.UTC)
    results, metadata = settings.out / "results", environment.metadata(settings)
    # Load and stolen time are not part of the terms: an interrupted run continues under another load.
    load, cores = [round(one, 2) for one in psutil.getloadavg()], cores_cpu_s()
    of_run = {"settings": vars(settings.of_a_run()), "environment": metadata, "code": store.code_digest()}
    with (
        store.writing(results / file, kind, {**terms, **of_run}, order, fresh=settings.fresh) as writer,
        tqdm(total=None, file=sys.stdout, mininterval=1, unit=unit, ncols=100) as bar,
    ):
        this_run, resumed_after = Recording(settings, writer, bar), len(writer.finished)
        if resumed_after:
            this_run.say(f"goes on after {resumed_after} passes of an interrupted run; FRESH=1 starts anew")
        yield this_run
        bar.total = bar.n  # skipped tasks take no step
    cores_now = cores_cpu_s()
    known: dict[str, Any] = {
        "run_id": this_run.run_id,
        "started": f"{started:%Y-%m-%d %H:%M} UTC",
        "parameters": PARAMETERS.get({}),
        "unavailable": {},
        "load_average": load,
        "commit": metadata["commit"],
        "made_with": environment.digest(metadata),
        "resumed_after": resumed_after,
        "data_filesystem": metadata["machine"]["state_dir_filesystem"],
        "stolen_s": round(cores_now[1] - cores[1], 2) if cores and cores_now else None,
    }
    store.write_run(results, metadata, notebook, known | this_run.metadata)


@contextmanager
def with_servers(
    study: Study, kind: store.RowClass, rounds: Rounds, **terms: Any
) -> Iterator[tuple[Recording, Servers]]:
    """Record a study with both servers while the block lasts; its metadata has the terms and the servers' versions.

    Raises ServerError when a server cannot be started or reached, and the errors of `recording`.
    """
    terms |= vars(rounds)
    recorded = recording(study.notebook, study.results, kind, "pass", terms)
    with recorded as this_run, servers.running(this_run.settings) as both:
        this_run.metadata |= {**terms, "servers": both.mode, "server": environment.server_versions(both)}
        yield this_run, both
