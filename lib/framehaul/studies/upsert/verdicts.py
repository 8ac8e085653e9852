"""Whether each upsert is atomic, safe with concurrent writers, and safe to retry, by its passes."""

from __future__ import annotations

import polars as pl

from framehaul.studies.upsert.frames import BOTH
from framehaul.techniques import upserts
from framehaul.techniques.contract import ALL_OR_NOTHING

ATOMIC_VIEWS = r"^(old|new) \d+(; (old|new) \d+)?$"
"""The texts of what a reader may see of an atomic upsert."""
CLEAN = ["nothing", "all"]
"""The states that a killed client may leave of an atomic upsert."""


def behaviour(passes: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each upsert that was tried with a reader or another writer, sent twice, or killed.

    - `atomic`: its terms promise it, the reader saw the old or the new rows, and the killed client left all or nothing.
    - `concurrent`: two writers neither lost nor doubled a row.
    - `retry_safe`: sent again, after a success and after the kill, it left the expected rows.

    One failed pass makes a verdict false; without passes it is null. `errors` are the errors of two writers in any
    round, which they retried; `lost_rows`, `doubled_rows` and `mixed_rows` are those of the worst round.
    """
    known = {one.name: one for database in BOTH for one in upserts(database)}
    promised = [name for name, one in known.items() if one.contract in ALL_OR_NOTHING]
    part, failed = pl.col("part"), pl.col("status") == "failed"

    def of(name: str, column: str) -> pl.Expr:
        return pl.col(column).filter(part == name, pl.col("status") == "ok")

    def failed_in(*parts: str) -> pl.Expr:
        return (failed & part.is_in(parts)).any()

    again = part.is_in(["sent twice", "client killed"]) & (pl.col("status") != "skipped")
    lost, doubled = of("writers", "lost_rows").max(), of("writers", "doubled_rows").max()
    seen, left = of("reader", "seen").first(), of("client killed", "left").first()
    kept = seen.str.contains(ATOMIC_VIEWS) & left.is_in(CLEAN) & pl.col("technique").first().is_in(promised)
    return (
        passes.filter(part != "speed", pl.col("technique").is_in([*known]))
        .group_by("database", "technique", "label", maintain_order=True)
        .agg(
            seen=seen,
            ratio=of("reader", "longest_read_s").first() / of("reader", "read_before_s").first(),
            errors=of("writers", "errors").str.extract_all(r"[A-Za-z_.]+").explode().drop_nulls().unique().sort(),
            lost_rows=lost,
            doubled_rows=doubled,
            mixed_rows=of("writers", "mixed_rows").max(),
            left=left,
            tables_left=of("client killed", "beside").first(),
            atomic=pl.when(~failed_in("reader", "client killed")).then(kept).otherwise(pl.lit(False)),
            concurrent=pl.when(~failed_in("writers")).then(lost + doubled == 0).otherwise(pl.lit(False)),
            retry_safe=pl.when(again.any()).then(~failed_in("sent twice", "client killed")),
            reason=pl.col("reason").drop_nulls().unique(maintain_order=True).str.join("; "),
        )
        .sort(pl.col("technique").cast(pl.Enum([*known])))
    )
