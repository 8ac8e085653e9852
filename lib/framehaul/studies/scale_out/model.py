"""What more workers would give: a law fitted to measured throughput, and a bound from what a pass costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np
import numpy.typing as npt

type Floats = npt.NDArray[np.float64]

RESAMPLES = 1_000
BUSY = 0.8
"""From this share on something counts as saturated."""
HALF = 0.5
"""From this share of a pass on its end, which is done once and by one, is what it waits for."""
TERMS = ("alone", "waiting", "talking")


@dataclass(frozen=True)
class Law:
    """rows/s of `n` workers, `alone` * n / (1 + `waiting` * (n - 1) + `talking` * n * (n - 1)).

    Gunther's universal scalability law: waiting for what only one may use at a time, and talking to one another.
    Without the last term it is Amdahl's. http://www.perfdynamics.com/Manifesto/USLscalability.html
    """

    alone_rows_per_s: float
    waiting: float
    talking: float

    def rows_per_s(self, workers: Floats) -> Floats:
        """Throughput of so many workers each."""
        others = workers - 1
        return self.alone_rows_per_s * workers / (1 + self.waiting * others + self.talking * workers * others)


@dataclass(frozen=True)
class Fit:
    """A law, the numbers of workers that it was fitted to, and the laws of resampled rounds."""

    law: Law
    measured: tuple[int, ...]
    resampled: tuple[Law, ...]
    kind: str

    def at(self, workers: int) -> tuple[float, float, float]:
        """Predicted rows/s with a bootstrap 95% interval over rounds."""
        where = np.array([float(workers)])
        spread = [float(law.rows_per_s(where)[0]) for law in self.resampled]
        low, high = np.quantile(spread, [0.025, 0.975])
        return float(self.law.rows_per_s(where)[0]), float(low), float(high)

    @property
    def best_workers(self) -> float | None:
        """From how many workers on more of them make it slower; None when that is never so."""
        law = self.law
        if law.talking <= 0:
            return None
        return float(np.sqrt(max(0.0, 1 - law.waiting) / law.talking))


def fitted(workers: Sequence[int], rounds: Sequence[int], rows_per_s: Sequence[float]) -> Fit | str:
    """The law for measured passes; or, where they are too few, a sentence that says so.

    With n different numbers of workers, no more than n - 1 terms are fitted, so that something is left to fit to.
    """
    n, y, at = np.array(workers, float), np.array(rows_per_s, float), np.array(rounds)
    measured = tuple(sorted({int(count) for count in workers}))
    terms = min(len(measured) - 1, len(TERMS))
    least = 2
    if terms < least:
        return f"{len(measured)} different numbers of workers were measured, and a law takes at least {least + 1}"
    random = np.random.default_rng(0)
    known = np.unique(at)
    resampled = []
    for _ in range(RESAMPLES):
        drawn = np.concatenate([np.flatnonzero(at == one) for one in random.choice(known, len(known))])
        resampled.append(_least_squares(n[drawn], y[drawn], terms))
    kind = "the universal scalability law" if terms == len(TERMS) else "Amdahl's law"
    return Fit(_least_squares(n, y, terms), measured, tuple(resampled), kind)


def _least_squares(workers: Floats, rows_per_s: Floats, terms: int) -> Law:
    """Least squares of n / throughput, in which the law is linear, each relative to its own size; no term below zero.

    A best fit with terms below zero is replaced by the best among the fits without some of them: with three terms all
    can be tried.
    """
    columns = np.stack([np.ones_like(workers), workers - 1, workers * (workers - 1)], axis=1)[:, :terms]
    # y = n / throughput; divided by y, all residuals are relative.
    relative = columns * (rows_per_s / workers)[:, None]
    best: tuple[float, Floats] | None = None
    subsets = chain.from_iterable(combinations(range(1, terms), size) for size in range(terms))
    for subset in subsets:
        kept = [0, *subset]
        found = np.zeros(len(TERMS))
        found[kept] = np.linalg.lstsq(relative[:, kept], np.ones(len(workers)), rcond=None)[0]
        error = float(((relative @ found[:terms] - 1) ** 2).sum())
        if (found >= 0).all() and (best is None or error < best[0]):
            best = error, found
    assert best is not None, "the first term alone is never below zero"
    alone, waiting, talking = best[1]
    return Law(1 / alone, waiting / alone, talking / alone)


@dataclass(frozen=True)
class Cost:
    """What a pass takes of each of the things that it may wait for; None where that is not known."""

    rows: int
    seconds: float
    finishing_s: float
    workers: int
    cores: int
    workers_cpu_s: float
    coordinator_cpu_s: float
    server_cpu_s: float | None
    wire_bytes: float | None
    wire_bytes_per_s: float | None

    @property
    def shares(self) -> dict[str, float]:
        """How much of each was in use, as shares of all there is of it."""
        cpu = self.workers_cpu_s + self.coordinator_cpu_s + (self.server_cpu_s or 0)
        found = {
            "cores": cpu / self.seconds / self.cores,
            "workers": self.workers_cpu_s / self.seconds / self.workers,
            "end": self.finishing_s / self.seconds,
        }
        if self.wire_bytes is not None and self.wire_bytes_per_s:
            found["network"] = self.wire_bytes / self.seconds / self.wire_bytes_per_s
        return found

    def bound_rows_per_s(self, workers: int) -> float:
        """What so many machines, each with a core for its worker and nothing in common, could give at most.

        Their CPU is divided among them, that of the server among as many cores as this machine has, all bytes go over a
        network as fast as the one measured here; the slowest of these, and the end, which comes after all and is done
        once, make the time.
        """
        slowest = max(
            self.workers_cpu_s / workers,
            (self.server_cpu_s or 0) / self.cores,
            self.wire_bytes / self.wire_bytes_per_s if self.wire_bytes and self.wire_bytes_per_s else 0.0,
        )
        return self.rows / (slowest + self.finishing_s)

    @property
    def verdict(self) -> str:
        """What a pass waits for, by rule: the first of network, cores, workers and the end that is busy."""
        shares = self.shares
        if shares.get("network", 0) >= BUSY:
            return "network"
        if shares["cores"] >= BUSY:
            server = self.server_cpu_s or 0
            return "server CPU" if server > self.workers_cpu_s else "client CPU"
        if shares["workers"] >= BUSY:
            return "client CPU"
        if shares["end"] >= HALF:
            return "the common end"
        return "nothing"
