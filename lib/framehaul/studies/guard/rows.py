"""What a guard keeps: every sample of both sides, and what is exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.harness.trials import Tried
from framehaul.results.store import Status

type Side = Literal["a", "b"]
EXACT_RESULTS = "guard_exact.csv"
OURS = "framehaul_guard_"
"""What the names of all tables of guards begin with."""


def table_of(mark: str, side: str, direction: str) -> Table:
    """Where a side moves its rows; the names of both sides are of one length, for they are on the wire."""
    return ANALYTICS_METRICS.renamed(f"{prefix_of(mark, side)}{direction}")


def prefix_of(mark: str, side: str) -> str:
    """What the names of a side's tables begin with."""
    return f"{OURS}{mark}_{side}_"


@dataclass(frozen=True, kw_only=True)
class Guarded(Tried):
    """What one side of a pair of processes measured of one technique in one round; a missing number is None."""

    run_id: str
    baseline: str
    """The package and version of side a."""
    candidate: str
    """Of side b."""
    slower: float
    """By what share of its CPU time side b was slowed down on purpose; 0 unless a guard is tried out."""
    driver: str
    rows: int | None
    """None of a shape of queries, which has its own."""
    pass_: int
    side: Side
    cpu_s: float | None = None
    """Of the client, for one call that a recording answers: the median of a few samples; of servers that are compared
    there is none."""
    seconds: float | None = None
    """Of one call on the server."""
    growth_bytes: int | None = None
    """By which the process grew with each call that a recording answers, without what it holds for later."""
    dtypes: str | None = None
    status: Status = "ok"
    reason: str | None = None
    server_cpu_s: float | None = None
    """Of the server, for one call on it."""


@dataclass(frozen=True, kw_only=True)
class Exact:
    """One thing about a technique that is the same each time, on both sides."""

    baseline: str
    candidate: str
    database: str
    direction: str
    technique: str
    what: str
    """`values`, `dtypes`, `bytes sent`, a case of fidelity ..."""
    before: str
    after: str
    worse: str
    """`fails`, `wrong`, `dtypes changed`, `bytes changed`, or `changed`; empty where both are the same."""
