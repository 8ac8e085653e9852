"""What the studies of outcomes share: whose a cell is, and how a run is shown and kept."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from framehaul.harness.recording import keep_metadata
from framehaul.results import store
from framehaul.settings import Settings
from framehaul.techniques import Technique, techniques


@dataclass(frozen=True)
class Tried:
    """Which technique was tried; a study adds what it was tried with, and what came of it."""

    database: str
    direction: str
    technique: str
    label: str
    origin: str
    family: str
    frame: str

    @property
    def headline(self) -> str:
        """What the progress bar says of it."""
        return self.technique


def of(technique: Technique) -> dict[str, str]:
    """The fields of a `Tried` of this technique."""
    return {
        "database": technique.database, "direction": technique.direction, "technique": technique.name,
        "label": technique.label, "origin": technique.origin, "family": technique.family, "frame": technique.frame,
    }  # fmt: skip


def all_techniques() -> list[Technique]:
    """The techniques that move a frame: all but the limits."""
    return [technique for technique in techniques() if technique.origin != "limit"]


class Run[T: Tried]:
    """The trials of a run, as they come, and the techniques that cannot run here, with the reason."""

    def __init__(self) -> None:
        self.chosen = all_techniques()
        self.unavailable: dict[str, str] = {}
        self._trials: list[T] = []
        self._id, self._started = store.new_run_id(), dt.datetime.now(dt.UTC)

    @contextmanager
    def bar(self, expected: int, unit: str) -> Iterator[None]:
        """A progress bar that ends full: what could not be tried was not expected."""
        with tqdm(total=expected, file=sys.stdout, mininterval=1, unit=unit, ncols=100) as self._bar:
            yield
            self._bar.total = self._bar.n

    def record(self, trial: T) -> None:
        """Take a trial; called from any thread."""
        self._trials.append(trial)
        self._bar.set_postfix_str(trial.headline[:48], refresh=False)
        self._bar.update()

    def skip(self, technique: Technique, reason: str) -> None:
        """Take a technique that cannot run here."""
        self.unavailable[f"{technique.database} {technique.direction} {technique.name}"] = reason

    def keep(self, settings: Settings, notebook: str, file: str, made: dict[str, Any]) -> None:
        """Write the trials in the order of the techniques, and what is known of the run beside them."""
        place: dict[tuple[str, str, str], int] = {
            (found.database, found.direction, found.name): at for at, found in enumerate(self.chosen)
        }
        self._trials.sort(key=lambda trial: place[trial.database, trial.direction, trial.technique])
        store.write_cells(settings.out / "results" / file, self._trials)
        metadata = {
            "run_id": self._id,
            "started": f"{self._started:%Y-%m-%d %H:%M} UTC",
            "unavailable": self.unavailable,
        }
        keep_metadata(settings, notebook, metadata | made)
