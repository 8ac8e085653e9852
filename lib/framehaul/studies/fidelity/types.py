"""Derive from the outcomes of cases which family of techniques preserves which type."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from framehaul.data.schema import ColumnType, Types
from framehaul.studies.fidelity.cases import CASES, Case
from framehaul.techniques.registry import DATABASES

PATH = ["database", "direction", "family", "frame", "origin"]
PARTS = re.compile(r"(?:(?<=Enum8|Tuple)|(?<=Enum))\((?:[^()]|\([^()]*\))*\)")
"""The parameters in a type's name, which depend on the case."""
OF_CATEGORIES = ("text: LowCardinality", "frame: categories for text")
"""The cases of text that is a dictionary in ClickHouse or in a frame."""
CATEGORICAL = replace(
    ColumnType.TEXT.value, polars=pl.Categorical(), postgres_form="text", clickhouse_form="LowCardinality(String)"
)


def _tested(case: Case) -> tuple[str, Types]:
    """Return the name of the type that a case tests, empty if it does not test a single type, and the type."""
    column = case.columns[-1]
    if case.name in OF_CATEGORIES:
        return "categorical", CATEGORICAL
    if case.about != "values" or [each.name for each in case.columns] != ["value"]:
        return "", column.types
    name = column.type.name
    if column.type is ColumnType.LIST:
        name = f"list of {column.element.type.name}"
    elif column.type is ColumnType.NESTED_LIST and column.element.type is ColumnType.STRUCT:
        name = "list of structs"
    return name.lower().replace("_", " "), column.types


_KINDS = [*ColumnType]
_TESTED = [(case, *_tested(case)) for case in sorted(CASES, key=lambda case: _KINDS.index(case.columns[-1].type))]
TYPES = pl.DataFrame(
    [
        (
            name, types.postgres_form or types.postgres, types.clickhouse_form or PARTS.sub("(...)", types.clickhouse),
            re.sub(r", time_zone=None|\w+=", "", PARTS.sub("(...)", str(types.polars))),
        )
        for _, name, types in _TESTED if name
    ],
    schema=["type", "postgres", "clickhouse", "polars"],
    orient="row",
).unique("type", keep="first", maintain_order=True)  # fmt: skip
"""The name of each type on each server and in Polars, with the parameters of its first case."""
_TYPE_OF = pl.DataFrame(
    [
        (case.name, name, database, database in case.held_by, bool(getattr(types, f"{database}_form")))
        for case, name, types in _TESTED if name and case.held_by
        for database in DATABASES
    ],
    schema=["case", "type", "database", "holds", "has_form"],
    orient="row",
)  # fmt: skip
"""The type of each case, and whether a database holds the values and stores another type instead; without cases of
values that no database can hold."""


def carried(cells: pl.DataFrame, by: Sequence[str] = PATH) -> pl.DataFrame:
    """Return the worst outcome of each type for each group of techniques, by default a family, frame and origin.

    `state` is `exact`, `converted`, `refused` or `lost`. A value is converted if the server stores another type, or if
    a read returns an equivalent dtype. If only the other server can hold a value, an error is right and does not count,
    but a loss counts.
    """
    here = cells.filter(session="default").join(_TYPE_OF, on=["case", "database"], maintain_order="left")
    here = here.filter(pl.col("holds") | (pl.col("outcome") == "loss"))
    outcome, other_dtype = pl.col("outcome"), pl.col("detail").str.starts_with("dtypes")
    state = (
        pl.when((outcome == "loss").any()).then(pl.lit("lost"))
        .when((outcome == "error").any()).then(pl.lit("refused"))
        .when((pl.col("has_form") | other_dtype).any()).then(pl.lit("converted"))
        .otherwise(pl.lit("exact"))
    )  # fmt: skip
    return here.group_by([*by, "type"], maintain_order=True).agg(state.alias("state"))
