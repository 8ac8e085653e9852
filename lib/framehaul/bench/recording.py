"""Record the passes of a run while it runs, and its metadata at the end."""

from __future__ import annotations

import datetime as dt
import functools
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import polars as pl
import psutil
from tqdm import tqdm

from framehaul import servers
from framehaul.bench import environment, store
from framehaul.bench.meter import Moved, cores_cpu, settled
from framehaul.bench.passes import Ok, Pass, Skipped, columns_of
from framehaul.bench.rounds import Log, Rounds, in_rounds
from framehaul.servers import Servers
from framehaul.settings import Settings, load_settings
from framehaul.techniques import Technique

if TYPE_CHECKING:
    from pathlib import Path

    from _typeshed import DataclassInstance

    from framehaul.bench.study import Study


def which(technique: Technique) -> dict[str, Any]:
    """Return the columns that identify a technique."""
    names = ("database", "direction", "label", "origin", "family", "frame")
    return {"technique": technique.name} | {name: getattr(technique, name) for name in names}


def result(
    run_id: str, notebook: str, technique: Technique, rows: int, number: int, outcome: Pass[Moved]
) -> store.Result:
    """Return a pass as a row of results; what was not measured is None."""
    ended: Pass[Mapping[str, Any]] = outcome if not isinstance(outcome, Ok) else Ok(_values(outcome.values, rows))
    return store.Result(
        **which(technique),
        run_id=run_id,
        notebook=notebook,
        driver=technique.driver,
        rows=rows,
        pass_=number,
        connections=technique.connections,
        contract=technique.contract.kind if technique.contract else None,
        **columns_of(ended),
    )


def _values(moved: Moved, rows: int) -> dict[str, Any]:
    values = vars(moved) | vars(moved.usage) | {"rows_per_s": rows / moved.seconds}
    return {name: value for name, value in values.items() if name not in ("usage", "latencies_s")}


class Recording:
    """A run in progress: `write` appends a pass to its results, and `metadata` is stored at its end."""

    def __init__(self, settings: Settings, writer: store.Writer, bar: Any) -> None:
        self.settings, self.run_id, self.write = settings, writer.run_id, writer.write
        self.so_far = writer.read
        """Return the passes written so far, with the passes of an interrupted run that this run continues."""
        self.metadata: dict[str, Any] = {}
        self._finished, self._bar = writer.finished, bar

    def expect(self, steps: int) -> None:
        """Add steps to the total of the progress bar."""
        self._bar.total = self._bar.n + steps
        self._bar.refresh()

    def say(self, text: str) -> None:
        """Print lines, above the progress bar."""
        self._bar.write(text, sys.stdout)

    def progress(self, step: str) -> None:
        """Show the name of the step that begins."""
        self._bar.set_postfix_str(step[:48], refresh=False)
        self._bar.update()

    def finished(self, row: DataclassInstance) -> bool:
        """Return whether the pass of this row was recorded, by this run or an interrupted run."""
        return store.identity(row) in self._finished

    def passes[T, V](
        self, row: Callable[[T, int, Pass[V]], DataclassInstance]
    ) -> tuple[Callable[[T, int, Pass[V]], None], Callable[[T, int], bool]]:
        """Return `record` and `finished` of `in_rounds`, for passes that `row` turns into rows."""
        return (
            lambda task, number, outcome: self.write(row(task, number, outcome)),
            lambda task, number: self.finished(row(task, number, Skipped(""))),
        )

    def in_rounds[T: Hashable, V](
        self,
        tasks: Sequence[T],
        rounds: Rounds,
        measure: Callable[[T, int], V],
        row: Callable[[T, int, Pass[V]], DataclassInstance],
        name: Callable[[T], str],
        *,
        stop: threading.Event | None = None,
        home: Path | None = None,
    ) -> None:
        """Measure tasks in rounds and record the row of every pass; the progress bar shows the `name` of the task."""
        record, finished = self.passes(row)

        def progress(task: T, _: int) -> None:
            self.progress(name(task))

        in_rounds(tasks, rounds, measure, record, stop=stop, progress=progress, finished=finished, home=home)

    def log[T, V](self, row: Callable[[T, int, Pass[V]], DataclassInstance], stop: threading.Event) -> Log[T, V]:
        """Return the log of `measure.run`, for passes that `row` turns into rows."""
        return Log(*self.passes(row), self.progress, stop)

    def technique_log(self, notebook: str, rows: int, stop: threading.Event) -> Log[Technique, Moved]:
        """Return the log of `measure.run` for rows of `store.Result`."""
        return self.log(
            lambda technique, number, outcome: result(self.run_id, notebook, technique, rows, number, outcome), stop
        )


def study[**P](
    notebook: str, kind: type[DataclassInstance] = store.Result, read: Callable[[Path], pl.DataFrame] | None = None
) -> Callable[[Callable[P, None]], Callable[P, pl.DataFrame]]:
    """Turn a function that records passes into one that returns them: one row per pass, as in results/<study>.csv.

    With `FRAMEHAUL_REUSE=1` (`make report`) it measures nothing and returns the stored passes. `read` replaces
    `store.read`: studies of outcomes use `store.read_cells`.
    """
    path = f"results/{notebook.partition('_')[2]}.csv"

    def decorated(measure: Callable[P, None]) -> Callable[P, pl.DataFrame]:
        @functools.wraps(measure)
        def run(*positional: P.args, **named: P.kwargs) -> pl.DataFrame:
            settings = load_settings()
            if not settings.reuse:
                measure(*positional, **named)
                simple = {name: value for name, value in named.items() if isinstance(value, int | float | str | list)}
                store.amend_run(settings.out / "results", notebook, {"parameters": simple})
            stored = settings.out / path
            return read(stored) if read else store.read(stored, kind)

        return run

    return decorated


@contextmanager
def recording(
    notebook: str,
    file: str,
    kind: type[DataclassInstance],
    unit: str,
    terms: Mapping[str, Any],
    order: Callable[[list[str]], int] | None = None,
) -> Iterator[Recording]:
    """Write passes of one kind into `results/<file>`; at the end of the block they are complete, with their metadata.

    A run continues an interrupted run of the same code on the same `terms`. `store.Writer` describes `order`. Raises
    ResultsError when the file cannot be written.
    """
    settings, started = load_settings(), dt.datetime.now(dt.UTC)
    path, metadata = settings.out / "results" / file, environment.metadata(settings)
    # Load and stolen time are not part of the terms: an interrupted run continues under another load.
    load, cores = [round(one, 2) for one in psutil.getloadavg()], cores_cpu()
    of_run = {"settings": vars(settings.of_a_run()), "environment": metadata, "code": store.code_digest()}
    with (
        store.Writer(path, kind, {**terms, **of_run}, order, fresh=settings.fresh) as writer,
        settled(),
        tqdm(total=None, file=sys.stdout, mininterval=1, unit=unit, ncols=100) as bar,
    ):
        passes = len(writer.finished)
        this_run = Recording(settings, writer, bar)
        if passes:
            this_run.say(f"goes on after {passes} passes of an interrupted run; FRESH=1 starts anew")
        yield this_run
        bar.total = bar.n  # skipped tasks take no step
    cores_now = cores_cpu()
    known: dict[str, Any] = {
        "run_id": this_run.run_id,
        "started": f"{started:%Y-%m-%d %H:%M} UTC",
        "unavailable": {},
        "load_average": load,
        "commit": metadata["commit"],
        "made_with": environment.digest(metadata),
        "resumed_after": passes,
        "data_filesystem": metadata["machine"]["state_dir_filesystem"],
        "stolen_s": round(cores_now.stolen_s - cores.stolen_s, 2) if cores and cores_now else None,
    }
    store.write_run(path.parent, metadata, notebook, known | this_run.metadata)


@contextmanager
def with_servers(
    study: Study, kind: type[DataclassInstance], rounds: Rounds, **terms: Any
) -> Iterator[tuple[Recording, Servers]]:
    """Record a study with both servers while the block lasts; its metadata has the terms and the servers' versions.

    Raises ServerError when a server cannot be started or reached, and the errors of `recording`.
    """
    terms |= vars(rounds)
    with (
        recording(study.notebook, study.results, kind, "pass", terms) as this_run,
        servers.running(this_run.settings) as both,
    ):
        this_run.metadata |= {**terms, "servers": both.mode, "server": environment.server_versions(both)}
        yield this_run, both
