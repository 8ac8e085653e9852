"""What a row of the results of this study is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from framehaul.bench import store
from framehaul.studies.network import STUDY


@dataclass(frozen=True, kw_only=True)
class Result(store.Result):
    """One pass of a technique over one network; a missing number is None, never 0.

    `server_cpu_s` has that of what ends TLS, or pools connections, before the server.
    """

    codec: str
    network: str
    encryption: str
    via: str
    task: str
    """All of it in words."""
    asked_rtt_ms: float | None = None
    asked_mbit_per_s: float | None = None
    rtt_ms: float | None = None
    """The median of a query that returns at once."""
    mbit_per_s: float | None = None
    """Of one large answer over one connection."""


def placed(directory: Path) -> pl.DataFrame:
    """The passes of a results directory, with the road and the codec of each as `bench.measured.PLACE` has them.

    A codec that a technique has of its own is no variant of it: its label names none.
    """
    tls = pl.when(encryption="tls").then(pl.lit(", TLS")).otherwise(pl.lit(""))
    pooled = pl.when(via="pgbouncer").then(pl.lit(", PgBouncer")).otherwise(pl.lit(""))
    named = pl.concat_str(pl.lit(", "), "codec")
    return store.read(directory / STUDY.results, Result).with_columns(
        road=pl.concat_str("network", tls, pooled), label=pl.col("label").str.strip_suffix(named),
        variant=pl.when(pl.col("label").str.ends_with(named)).then("codec").otherwise(pl.lit("")),
    )  # fmt: skip
