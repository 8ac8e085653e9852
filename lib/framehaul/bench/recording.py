"""Record the passes of a run while it runs, and its metadata at the end."""

from __future__ import annotations

import datetime as dt
import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Concatenate

import polars as pl
import psutil

from framehaul import servers
from framehaul.bench import environment, store
from framehaul.bench.children import ended_with_the_block
from framehaul.bench.meter import Moved
from framehaul.bench.rounds import Log, Ok, Pass, Skipped, columns_of, interruptible
from framehaul.servers import Servers
from framehaul.settings import Settings, load_settings
from framehaul.techniques import Technique

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from framehaul.bench.study import Study

type MakeRow[T, V] = Callable[[T, int, Pass[V]], DataclassInstance]
"""A function that makes a row of results of a task, the number of a pass and its outcome."""


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

    `entered` enters a context that lasts until the run ends, and `metadata` is stored then. `stop` is set when the user
    interrupts the run.
    """

    def __init__(
        self, study: Study, settings: Settings, writer: store.Writer, bar: Any, stop: threading.Event, stack: ExitStack
    ) -> None:
        self.settings, self.run_id, self.write, self.finished = settings, writer.run_id, writer.write, writer.has
        self.so_far, self.stop, self._study, self._bar = writer.read, stop, study, bar
        self.entered = stack.enter_context
        self.metadata: dict[str, Any] = {"unavailable": {}}

    def servers(self) -> Servers:
        """Return both servers, which run until the run ends; raise ServerError when one cannot be reached."""
        both = self.entered(servers.running(self.settings))
        self.metadata |= {"servers": both.mode, "server": environment.server_versions(both)}
        return both

    def expect(self, steps: int) -> None:
        """Add steps to the total of the progress bar, unless it has as many left."""
        self._bar.total = max(self._bar.total or 0, self._bar.n + steps)
        self._bar.refresh()

    def progress(self, step: str) -> None:
        """Show the name of the step that begins."""
        self._bar.set_postfix_str(step[:48], refresh=False)
        self._bar.update()

    def log[T, V](self, row: MakeRow[T, V], name: Callable[[Any], str] = attrgetter("name")) -> Log[T, V]:
        """Return the log of a loop whose passes `row` turns into rows; the progress bar shows the `name` of a task."""
        return Log(
            lambda task, number, outcome: self.write(row(task, number, outcome)),
            lambda task, number: self.finished(row(task, number, Skipped(""))),
            lambda task, number: self.progress(f"{f'pass {number}' if number > 0 else 'warm-up'}: {name(task)}"),
            self.expect,
            self.stop,
        )

    def rows(self, kind: Callable[..., store.Row], labels: Callable[[Any], Iterable[object]]) -> MakeRow[Any, Any]:
        """Return a maker of rows of a kind, which begin with the `labels` of a task; passes give figures by column."""
        return lambda task, number, outcome: kind(self.run_id, number, *labels(task), **columns_of(outcome))

    def technique_log(self, rows: int) -> Log[Technique, Moved]:
        """Return the log of `measure.run` for rows of `store.Result`."""
        return self.log(lambda one, *passed: result(self.run_id, self._study.notebook, one, rows, *passed))


@contextmanager
def _recording(
    study: Study,
    kind: store.RowClass,
    parameters: dict[str, Any],
    terms: Any,
    stop: threading.Event,
    order: store.Order,
) -> Iterator[Recording]:
    """Write passes into the study's results; at the end of the block they are complete, with their metadata."""
    from tqdm import tqdm  # a package of the notebooks, which a script of `make mine` does without

    settings, started = load_settings(), dt.datetime.now(dt.UTC)
    results, metadata = settings.out / "results", environment.metadata(settings)
    # The load is not part of the terms: an interrupted run continues under another load.
    load = [round(one, 2) for one in psutil.getloadavg()]
    of_run = {"settings": vars(settings.of_a_run()), "environment": metadata, "code": store.code_digest()}
    with (
        store.writing(
            results / study.results, kind, [parameters, terms, of_run], order, fresh=settings.fresh
        ) as writer,
        tqdm(total=None, file=sys.stdout, mininterval=1, unit="pass", ncols=100) as bar,
        ended_with_the_block(),
        ExitStack() as stack,
    ):
        this_run, resumed_after = Recording(study, settings, writer, bar, stop, stack), len(writer.finished)
        if resumed_after:
            bar.write(f"goes on after {resumed_after} passes of an interrupted run; FRESH=1 starts anew")
        yield this_run
        bar.total = bar.n  # skipped tasks take no step
    known: dict[str, Any] = {
        "run_id": this_run.run_id,
        "started": f"{started:%Y-%m-%d %H:%M} UTC",
        "parameters": parameters,
        "passes": parameters.get("rounds"),
        "warmup": 0,
        "load_average": load,
        "commit": metadata["commit"],
        "made_with": environment.digest(metadata),
        "resumed_after": resumed_after,
        "data_filesystem": metadata["machine"]["state_dir_filesystem"],
    }
    store.write_run(results, metadata, study.notebook, known | parameters | this_run.metadata)


def recorded[**P](
    of: Study,
    kind: store.RowClass = store.Result,
    order: store.Order = None,
    terms: Callable[..., dict[str, Any]] = lambda *_, **__: {},
) -> Callable[[Callable[Concatenate[Recording, P], None]], Callable[P, pl.DataFrame]]:
    """Turn a function that records passes into one that returns them: one row per pass, as in results/<study>.csv.

    With `FRAMEHAUL_REUSE=1` (`make report`) it measures nothing and returns the stored passes. A run continues an
    interrupted run of the same code with the same parameters and `terms`, which get the arguments. `store.writing`
    describes `order`; with one, the rows are cells of a study of outcomes.

    The function runs in another thread: an interrupt ends it between two passes. Raises SettingsError for an invalid
    parameter, ResultsError when the file cannot be written, and the errors of the function.
    """

    def decorated(measure: Callable[Concatenate[Recording, P], None]) -> Callable[P, pl.DataFrame]:
        @functools.wraps(measure)
        def run(*positional: P.args, **named: P.kwargs) -> pl.DataFrame:
            parameters = {name: value for name, value in named.items() if isinstance(value, int | float | str | list)}

            def work(stop: threading.Event) -> None:
                with _recording(of, kind, parameters, terms(*positional, **named), stop, order) as this_run:
                    measure(this_run, *positional, **named)

            settings = load_settings()
            if not settings.reuse:
                of.check(parameters)
                interruptible(work)
            stored = settings.out / "results" / of.results
            return store.read_cells(stored) if order else store.read(stored, kind)

        return run

    return decorated
