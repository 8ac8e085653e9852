"""Nested types that a technique is known to refuse, and what to do about each."""

from __future__ import annotations

from framehaul.bench.passes import Failed, Pass, Skipped

LIMITS = {
    "CSV format does not support nested data": "use binary COPY or ADBC (PostgreSQL), Arrow (ClickHouse)",
    "as dtype `bool`": "PostgreSQL writes booleans as t and f: use binary COPY or ADBC",
    "CSV conversion error to bool": "PostgreSQL writes booleans as t and f: use binary COPY or ADBC",
    " is no List(": "text, as it comes: use ADBC (PostgreSQL), Arrow or Parquet (ClickHouse)",
    " is no String": "a dictionary, as it comes: select document::text, or use ADBC",
    "cannot adapt type 'dict'": "wrap it in psycopg.types.json.Jsonb, or use ADBC or pgpq",
    "expected str, got dict": "asyncpg takes jsonb as text: json.dumps it, or use ADBC or pgpq",
    "content differs in counts": "Polars makes a struct of a map's keys, NULL where a row has none: use ADBC",
    "Column place: required argument": "it wants tuples, not the dictionaries of a struct: use Arrow or Parquet",
    "provided `new_columns` does not match": "a struct is several columns of ClickHouse's CSV: use Arrow or Parquet",
    "unexpected value while building Series": "structs come as tuples: use Arrow or Parquet",
    "which the driver takes as dictionaries alone": "",
    "of which the driver makes Python's objects": "",
    "is not encoded here": "",
    "is not decoded here": "",
    "is not parsed from text here": "",
}
"""What the message of a known limit holds, and the remedy, where the message does not say it itself."""


def within_limits[V](outcome: Pass[V]) -> Pass[V]:
    """A pass that a known limit ended was skipped, and says the remedy; one that failed otherwise is a failure."""
    if isinstance(outcome, Failed):
        for text, remedy in LIMITS.items():
            if text in outcome.reason:
                return Skipped("; ".join(filter(None, (outcome.reason, remedy))))
    return outcome
