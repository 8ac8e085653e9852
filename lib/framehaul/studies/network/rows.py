"""What a row of the results of this study is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from framehaul.bench import store
from framehaul.studies.network import STUDY


@dataclass(frozen=True, kw_only=True)
class Result(store.Result):
    """One pass of a technique over one network; a missing number is None, never 0."""

    codec: str
    network: str
    encryption: str
    via: str
    task: str
    """The whole task in words."""


def placed(directory: Path) -> pl.DataFrame:
    """The passes of a results directory, with the road and the codec of each as `bench.measured.PLACE` has them."""
    tls = pl.when(encryption="tls").then(pl.lit(", TLS")).otherwise(pl.lit(""))
    pooled = pl.when(via="pgbouncer").then(pl.lit(", PgBouncer")).otherwise(pl.lit(""))
    return store.read(directory / STUDY.results, Result).with_columns(
        road=pl.concat_str("network", tls, pooled), variant=pl.col("codec").replace("none", ""),
        label=pl.col("label").str.strip_suffix(pl.concat_str(pl.lit(", "), "codec")),
    )  # fmt: skip
