"""What a row of the results of this study is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from framehaul.results import store
from framehaul.studies.network import STUDY
from framehaul.studies.network.queries import QUERIES


@dataclass(frozen=True, kw_only=True)
class Result(store.Result):
    """One pass of a technique over one road; a missing number is None, never 0.

    `server_cpu_s` has that of what ends TLS, or pools connections, before the server; `wire_bytes` has the headers of
    IP and TCP, those of large pieces once.
    """

    codec: str
    network: str
    encryption: str
    via: str
    task: str
    """All of it in words."""
    how: str
    """What the network is made of."""
    asked_rtt_ms: float | None = None
    asked_mbit_per_s: float | None = None
    rtt_ms: float | None = None
    """As ping sees it, the median."""
    mbit_per_s: float | None = None
    """As a bulk transfer of one connection sees it."""
    forwarder_cpu_s: float | None = None
    """Of what is in place of a network, and would not be there with one."""
    packets: int | None = None
    dropped: int | None = None
    round_trips: int | None = None


def placed(directory: Path) -> pl.DataFrame:
    """The passes of a results directory, with the road and the codec of each as `results.measured.PLACE` has them.

    Queries of one row are not among them, for they are no techniques, nor upserts, which find rows in their table.
    A codec that a technique has of its own is no variant of it: its label names none.
    """
    tls = pl.when(encryption="tls").then(pl.lit(", TLS")).otherwise(pl.lit(""))
    pooled = pl.when(via="pgbouncer").then(pl.lit(", PgBouncer")).otherwise(pl.lit(""))
    named = pl.concat_str(pl.lit(", "), "codec")
    passes = store.read(directory / STUDY.results, Result)
    passes = passes.filter(~pl.col("technique").is_in([*QUERIES]), pl.col("origin") != "upsert")
    return passes.with_columns(
        road=pl.concat_str("network", tls, pooled), label=pl.col("label").str.strip_suffix(named),
        variant=pl.when(pl.col("label").str.ends_with(named)).then("codec").otherwise(pl.lit("")),
    )  # fmt: skip
