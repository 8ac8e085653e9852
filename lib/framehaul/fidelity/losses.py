"""Why a path loses what it loses. A loss that no line here explains is a finding that nobody has understood yet."""

from __future__ import annotations

import re
from dataclasses import dataclass

from framehaul.techniques import Technique

UNEXPLAINED = "not explained yet"


@dataclass(frozen=True)
class Loss:
    """A known loss: patterns of the technique (`database direction name`), the case and what was lost; and why."""

    technique: str
    case: str
    detail: str
    why: str


LOSSES: tuple[Loss, ...] = (
    Loss(
        r"copy_text|_csv", r"text: NULL", r"'\\\\N' became NULL",
        r"The path marks NULL as `\N`, and the text `\N` looks the same. Leave NULL empty and quote empty text.",
    ),
    Loss(
        r" pandas_", r"int64: with NULL", r"became 9007199254740992$",
        "pandas makes floats of integers beside NULL, and a float has 53 bits. Give it a nullable dtype, or go through "
        "Arrow.",
    ),
    Loss(
        r" read pandas_", r"NaN against NULL", r"NULL became nan|nan became NULL",
        "A float column of pandas has one mark for NULL and NaN. Polars has two.",
    ),
    Loss(
        r" read pandas_", r"float: NaN", r"nan became 'nan'|nan became 'NaN'",
        "pandas' CSV parser is told which texts are NULL, does not know NaN any more, and leaves the column as text.",
    ),
    Loss(
        r" read pandas_(.*_csv|psycopg_copy_text$)", r"float: -0\.0", r"-0\.0 became 0\.0",
        "Whole floats come without a point. Where all of a column are whole, pandas makes integers, which have no -0.",
    ),
    Loss(
        r"clickhouse write pandas_", r"float: NaN and inf", r"nan became 0\.0",
        "pandas writes NaN as NULL, and ClickHouse stores the default, 0, where there may be no NULL "
        "(`input_format_null_as_default`).",
    ),
    Loss(
        r" read ", r"decimal", r"became Decimal",
        "Without a type for the column a parser takes a decimal for a float, which has some 16 digits.",
    ),
    Loss(
        r"postgres write .*_asyncpg_copy_binary", r"date: ", r"infinity",
        "asyncpg sends Python's first and last date, 0001-01-01 and 9999-12-31, as `-infinity` and `infinity`.",
    ),
    Loss(
        r"postgres write", r"timestamp: nanoseconds", r"became",
        "PostgreSQL keeps microseconds: text is rounded, what is binary is cut off. Round before, knowingly.",
    ),
    Loss(
        r"clickhouse write", r"NULL where none is allowed", r"NULL became (0|'')",
        "ClickHouse stores the default, 0 or empty text, where there may be no NULL (`input_format_null_as_default`, "
        "on unless set to 0). Check for NULL before sending.",
    ),
    Loss(
        r"clickhouse write", r"one beyond", r"became -",
        "ClickHouse's parsers of text and Parquet let an integer that is too large wrap around. Cast before, strictly.",
    ),
    Loss(
        r"clickhouse write .*(_csv|_tsv)", r"date: ", r"became (1970-01-01|2149-06-06)",
        "ClickHouse's `Date` has 1970-01-01 to 2149-06-06; its parsers of text take the nearest. `Date32` has more.",
    ),
    Loss(
        r"clickhouse write .*native_columnar", r"date: ", r"became 1970-01-01",
        "ClickHouse's `Date` has 1970-01-01 to 2149-06-06; the driver sends 1970-01-01 for others. `Date32` has more.",
    ),
    Loss(
        r"clickhouse write .*clickhouse_driver_native", r"timestamp: (before 1970|in UTC)",
        r"became 1970-01-01T00:00:00",
        "clickhouse-driver rounds the seconds of a moment before 1970 up, then adds its fraction: a second too late.",
    ),
    Loss(
        r"clickhouse", r"timestamp: nanoseconds", r"became",
        "The driver goes through Python's datetime, which has microseconds.",
    ),
    Loss(
        r"clickhouse read", r"timestamp: microseconds", r"became 2262-04-12T00:00:01",
        "The driver makes a float of the seconds since 1970: the later, the fewer digits are left for their fraction.",
    ),
    Loss(
        r"clickhouse read .*_csv", r"timestamp: in a zone", r"became",
        "CSV has the clock of the column's zone and does not say which zone. Ask for UTC.",
    ),
    Loss(
        r"clickhouse write pandas_", r"bytes", r"became b['\"]b",
        "pandas writes bytes into text as Python shows them: `b'...'`.",
    ),
    Loss(
        r"clickhouse read pandas_.*_parquet", r"bytes", r"no UTF-8",
        "ClickHouse has one type for text and bytes and calls it text in Parquet "
        "(`output_format_parquet_string_as_string`); nothing checks that it is.",
    ),
)  # fmt: skip
"""Every known loss; the first that fits explains a cell."""


def why(technique: Technique, case: str, detail: str) -> str:
    """The explanation of a loss, or that there is none."""
    path = f"{technique.database} {technique.direction} {technique.name}"
    for loss in LOSSES:
        if re.search(loss.technique, path) and re.search(loss.case, case) and re.search(loss.detail, detail):
            return loss.why
    return UNEXPLAINED
