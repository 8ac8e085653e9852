"""Where the reason of a rejection lies: in the server, the format, the driver, or the frame that was given."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import polars as pl

from framehaul.studies.fidelity.cases import CASES

type Cause = Literal["server", "format", "driver", "frame", "unknown"]
CAUSES: dict[Cause, str] = {
    "server": "its table has no such value, or fills the column itself, or the session's settings are in the way",
    "format": "what goes over the wire has no form for the value that both sides take for the same",
    "driver": "the client's code has no way for the value",
    "frame": "it has other columns than the table, or holds what is no text",
}
"""What each means; `unknown` is none of them: a rejection that nobody has understood yet."""


@dataclass(frozen=True)
class Rejection:
    """Known rejections of what the table and the frame hold: patterns of the family, the session and what was said."""

    cause: Cause
    said: str
    family: str = ""
    session: str = ""


TEXT = "copy_text|insert_text|http_csv"
REJECTIONS: tuple[Rejection, ...] = (
    # What is told of a session reaches who reads or writes text in it.
    Rejection("server", r"Cannot (parse|read)|could not parse|invalid input syntax|NotNullViolation|DateStyle|"
              r"Mixed timezones|too large to convert to float|codec can't|invalid utf-8|has no equivalent|"
              r"time data|ConversionSyntax",
              session="hostile"),
    # Delimited text as dataframes write it, and as servers do: nothing nested, no bytes, and NaN looks like NULL.
    Rejection("format", r"CSV|new_columns|could not parse|not parsed from text|malformed array|NotNullViolation|"
              r"invalid input syntax|Cannot (parse|read)|field value out of range|codec can't|invalid utf-8|"
              r"Too large value for FixedString", TEXT),
    Rejection("format", r"(?i)parquet", "http_parquet"),
    Rejection("format", r"Arrow's decimals"),
    Rejection("server", r"^ProgramLimitExceeded"),
    Rejection("driver", r"^ValueError: year -?\d+ is out of range"),
    # Techniques of ours, whose decoders and encoders know fewer types, say so by the column.
    Rejection("driver", r"^ValueError: column \w+ is .*(decoded here|encoded here|use |cast it|read it)"),
    Rejection("driver", r"^ValueError: column \w+ is .*all its NULLs"),
    Rejection("driver", r"^ValueError: columns \['value'\] are bytes"),
    # What clients say in their own words, and what Python, Rust and C++ say for them.
    Rejection("driver", r"^the client does not open|^hangs"),
    Rejection("driver", r"^(Type|Attribute|Overflow|NotImplemented|Runtime|UnknownType|TypeMismatch|Internal|Schema|"
              r"NotSupported|InvalidOperation|UnicodeDecode|Duplicate|Database|Programming|Data|Compute)Error"),
    Rejection("driver", r"^(Arrow\w+|DatabaseException|DatatypeMismatch|IndeterminateDatatype|CannotCoerce|"
              r"BinderException)"),
    Rejection("driver", r"^ValueError: (Field pyarrow|invalid enum member|zip\(\)|Unsigned|cannot concat|Mixed|"
              r"unconverted)"),
    Rejection("driver", r"^InvalidOperation: .*ConversionSyntax"),
    Rejection("driver", r"^ValueError: Unsupported (precision|polars)|^panic: .*(primitive `Int256`|not implemented)"),
    Rejection("driver", r"^InvalidTextRepresentation: invalid input syntax for type json", "insert_rows"),
)  # fmt: skip
"""Every known rejection; the first that fits says where its reason lies."""
NO_FRAME_OF_THE_TABLE = re.compile("one column name twice|the key as index|a lazy frame|missing in the frame")
FILLED_BY_THE_TABLE = re.compile("append: .* column, in the frame")
_CASES = {case.name: case for case in CASES}


def cause(database: str, family: str, case: str, session: str, said: str) -> Cause:
    """Where the reason of an error lies that a technique of this family came to.

    What the frame is, and what the table holds, goes before what was said: it is said in many words.
    """
    known = _CASES.get(case)
    if NO_FRAME_OF_THE_TABLE.search(case) or (known and (known.about == "not text" or known.unfit)):
        return "frame"
    if FILLED_BY_THE_TABLE.search(case) or (known and database not in known.held_by):
        return "server"
    for one in REJECTIONS:
        pairs = ((one.said, said), (one.family, family), (one.session, session))
        if all(re.search(pattern, text) for pattern, text in pairs):
            return one.cause
    return "unknown"


def with_causes(cells: pl.DataFrame) -> pl.DataFrame:
    """The cells with `cause`, which runs did not write until November 2026; empty where nothing was rejected."""
    found = [
        cause(*of) if outcome == "error" else ""
        for outcome, *of in cells.select("outcome", "database", "family", "case", "session", "detail").iter_rows()
    ]
    return cells.with_columns(pl.Series("cause", found, pl.String))
