"""A run as it goes: its passes are written as they end, what is known of it at its end."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from framehaul.harness import environment, measure
from framehaul.results import store
from framehaul.settings import Settings, load_settings
from framehaul.techniques import Technique

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def made(
    run_id: str, started: dt.datetime, parameters: measure.Parameters, servers_mode: str, server: dict[str, Any]
) -> dict[str, Any]:
    """What is recorded of one notebook's run."""
    return {
        "run_id": run_id, "started": f"{started:%Y-%m-%d %H:%M} UTC", **vars(parameters), "servers": servers_mode,
        "server": server,
    }  # fmt: skip


def keep_metadata(settings: Settings, notebook: str, made: dict[str, Any]) -> dict[str, Any]:
    """Record this run beside those of the other notebooks."""
    directory = settings.out / "results"
    metadata = environment.metadata() | {"runs": store.read_metadata(directory)["runs"] | {notebook: made}}
    store.write_environment(directory / "environment.json", metadata)
    return metadata


def result(
    run_id: str, notebook: str, technique: Technique, rows: int, number: int, outcome: measure.Outcome,
    wire_bytes: int | None,
) -> store.Result:  # fmt: skip
    """A pass as a row of results; what was not measured is None."""
    ok, usage = outcome.status == "ok", outcome.usage
    return store.Result(
        run_id=run_id, notebook=notebook, database=technique.database, direction=technique.direction,
        technique=technique.name, label=technique.label, origin=technique.origin, family=technique.family,
        driver=technique.driver, frame=technique.frame, connections=technique.connections,
        contract=technique.contract.kind if technique.contract else None, rows=rows, pass_=number,
        seconds=outcome.seconds, rows_per_s=rows / outcome.seconds if outcome.seconds else None,
        client_cpu_s=usage.client_cpu_s if usage else None, server_cpu_s=usage.server_cpu_s if usage else None,
        peak_rss_bytes=usage.peak_rss_bytes if usage else None, wire_bytes=wire_bytes if ok else None,
        dtypes=outcome.dtypes, status=outcome.status, reason=outcome.reason,
    )  # fmt: skip


class Recording:
    """A run as it goes: its passes are written as they end; `metadata` is what is said of it at its end."""

    def __init__(self, settings: Settings, writer: store.Writer, bar: Any) -> None:
        self.settings, self.run_id, self.write = settings, store.new_run_id(), writer.write
        self.metadata: dict[str, Any] = {}
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
    """Write passes of one kind into `results/<file>`; at the end of the block they are complete, with their metadata.

    Raises ResultsError when the file cannot be written.
    """
    settings, started = load_settings(), dt.datetime.now(dt.UTC)
    with (
        store.Writer(settings.out / "results" / file, kind) as writer,
        # On standard output: a log of the run shows it as it goes.
        tqdm(total=None, file=sys.stdout, mininterval=1, unit=unit, ncols=100) as bar,
    ):
        made = Recording(settings, writer, bar)
        yield made
    told = {"run_id": made.run_id, "started": f"{started:%Y-%m-%d %H:%M} UTC", "unavailable": {}}
    keep_metadata(settings, notebook, told | made.metadata)
