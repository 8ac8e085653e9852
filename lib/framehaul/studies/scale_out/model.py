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
TERMS = ("alone", "contention", "coherency")


@dataclass(frozen=True)
class Law:
    """rows/s of `n` workers, `alone` * n / (1 + `contention` * (n - 1) + `coherency` * n * (n - 1)).

    Gunther's universal scalability law: contention is for what only one may use at a time, coherency what it costs
    that all agree. Without coherency it is Amdahl's. http://www.perfdynamics.com/Manifesto/USLscalability.html
    """

    alone_rows_per_s: float
    contention: float
    coherency: float

    def rows_per_s(self, workers: Floats) -> Floats:
        """Throughput of so many workers each."""
        others = workers - 1
        return self.alone_rows_per_s * workers / (1 + self.contention * others + self.coherency * workers * others)


@dataclass(frozen=True)
class Fit:
    """A law, the numbers of workers that it was fitted to, and the laws of resampled rounds."""

    law: Law
    measured: tuple[int, ...]
    resampled: tuple[Law, ...]
    kind: str

    def at(self, workers: int) -> tuple[float, float, float]:
        """Predicted rows/s, and between which 95% of the laws of resampled rounds are: of few rounds no interval."""
        where = np.array([float(workers)])
        spread = [float(law.rows_per_s(where)[0]) for law in self.resampled]
        low, high = np.quantile(spread, [0.025, 0.975])
        return float(self.law.rows_per_s(where)[0]), float(low), float(high)

    @property
    def best_workers(self) -> float | None:
        """From how many workers on more of them make it slower; None when that is never so."""
        law = self.law
        return float(np.sqrt(max(0.0, 1 - law.contention) / law.coherency)) if law.coherency > 0 else None


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
    fits: list[tuple[float, list[float]]] = []
    for subset in chain.from_iterable(combinations(range(1, terms), size) for size in range(terms)):
        kept = [0, *subset]
        fit = np.zeros(len(TERMS))
        fit[kept] = np.linalg.lstsq(relative[:, kept], np.ones(len(workers)), rcond=None)[0]
        if (fit >= 0).all():  # the first term alone is never below zero
            fits.append((float(((relative @ fit[:terms] - 1) ** 2).sum()), fit.tolist()))
    alone, contention, coherency = min(fits)[1]
    return Law(1 / alone, contention / alone, coherency / alone)


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
        shares = {
            "cores": cpu / self.seconds / self.cores,
            "workers": self.workers_cpu_s / self.seconds / self.workers,
            "end": self.finishing_s / self.seconds,
        }
        if self.wire_bytes is not None and self.wire_bytes_per_s:
            shares["network"] = self.wire_bytes / self.seconds / self.wire_bytes_per_s
        return shares

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
            return "server CPU" if (self.server_cpu_s or 0) > self.workers_cpu_s else "client CPU"
        if shares["workers"] >= BUSY:
            return "client CPU"
        if shares["end"] >= HALF:
            return "the common end"
        return "nothing"
