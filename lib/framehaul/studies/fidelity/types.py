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
CATEGORICAL = "categorical"
OF_CATEGORIES = ("text: LowCardinality", "frame: categories for text")
"""The cases of text that is a dictionary in ClickHouse or in a frame."""


def _named(case: Case) -> str:
    """Return the name of the type that a case tests, or nothing if it does not test a single type."""
    if case.name in OF_CATEGORIES:
        return CATEGORICAL
    column = case.columns[-1]
    if case.about != "values" or [each.name for each in case.columns] != ["value"]:
        return ""
    if column.type is ColumnType.LIST:
        return f"list of {column.element.type.name.lower().replace('_', ' ')}"
    if column.type is ColumnType.NESTED_LIST and column.element.type is ColumnType.STRUCT:
        return "list of structs"
    return column.type.name.lower().replace("_", " ")


_TYPES: dict[str, Types] = {}
"""The types that cases test, with the parameters of the first case, in the order of `ColumnType`."""
for _kind in ColumnType:
    for _case in CASES:
        if _case.columns[-1].type is _kind and _named(_case):
            _TYPES.setdefault(_named(_case), _case.columns[-1].types)
_TYPES[CATEGORICAL] = replace(
    ColumnType.TEXT.value, polars=pl.Categorical(), postgres_form="text", clickhouse_form="LowCardinality(String)"
)
TYPES = pl.DataFrame(
    [
        (
            name, each.postgres_form or each.postgres, each.clickhouse_form or PARTS.sub("(...)", each.clickhouse),
            re.sub(r", time_zone=None|\w+=", "", PARTS.sub("(...)", str(each.polars))),
        )
        for name, each in _TYPES.items()
    ],
    schema=["type", "postgres", "clickhouse", "polars"],
    orient="row",
)  # fmt: skip
"""The name of each type on each server and in Polars."""


def _has_form(case: Case, database: str) -> bool:
    """Return whether a database stores the case's type as another type."""
    types = _TYPES[CATEGORICAL] if _named(case) == CATEGORICAL else case.columns[-1].types
    return bool(types.postgres_form if database == "postgres" else types.clickhouse_form)


_TYPE_OF = pl.DataFrame(
    [
        (case.name, _named(case), database, database in case.held_by, _has_form(case, database))
        for case in CASES
        if _named(case) and case.held_by
        for database in DATABASES
    ],
    schema=["case", "type", "database", "holds", "has_form"],
    orient="row",
)  # fmt: skip
"""The type of each case, without cases of values that no database can hold."""


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
