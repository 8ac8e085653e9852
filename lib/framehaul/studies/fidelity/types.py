"""Which family of techniques carries which type, as one figure and one table of the outcomes of cases about values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import polars as pl
from matplotlib.figure import Figure

from framehaul.data.schema import ColumnType, Types
from framehaul.reporting import charts
from framehaul.reporting.tables import Listing, where, words
from framehaul.studies.fidelity.cases import CASES, Case
from framehaul.techniques import FAMILIES
from framehaul.techniques.registry import DATABASES

PATH = ["database", "direction", "family", "frame", "origin"]
STATES = {
    "exact": charts.Outcome("#009E73", "", "exact"),
    "converted": charts.Outcome("#8CCBB5", "c", "exact after a stated conversion"),
    "lost": charts.Outcome("#D55E00", "L", "lost silently by one of the family"),
    "refused": charts.Outcome("#BBCCEE", "r", "refused by one of the family"),
}
PARTS = re.compile(r"(?:(?<=Enum8|Tuple)|(?<=Enum))\((?:[^()]|\([^()]*\))*\)")
"""Of a type, where they are those of a case."""
IMPOSSIBLE = "not possible, and nothing is lost: the server, or the frame, has no such value"


CATEGORICAL = "categorical"
OF_CATEGORIES = ("text: LowCardinality", "frame: categories for text")
"""Cases about text that is a dictionary: in ClickHouse, and in a frame."""


def _named(case: Case) -> str:
    """The type of a case about values of one type; empty for the others."""
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


TYPES: dict[str, Types] = {}
"""The types that cases are about, each with the parameters that it has in the first of them."""
for _kind in ColumnType:
    for _case in CASES:
        if _case.columns[-1].type is _kind and _named(_case):
            TYPES.setdefault(_named(_case), _case.columns[-1].types)
TYPES[CATEGORICAL] = replace(
    ColumnType.TEXT.value, polars=pl.Categorical(), postgres_form="text", clickhouse_form="LowCardinality(String)"
)


def _has_form(case: Case, database: str) -> bool:
    """Whether something else stands for the type of a case there."""
    types = TYPES[CATEGORICAL] if _named(case) == CATEGORICAL else case.columns[-1].types
    return bool(types.postgres_form if database == "postgres" else types.clickhouse_form)


TYPE_OF = pl.DataFrame(
    [
        (case.name, _named(case), database, database in case.held_by, _has_form(case, database))
        for case in CASES
        if _named(case) and case.held_by
        for database in DATABASES
    ],
    schema=["case", "type", "database", "holds", "has_form"],
    orient="row",
)  # fmt: skip
"""The type of each case whose values some database holds: whether this one does, and has something else stand for it.

Values that none holds are out of the type, and say nothing of it.
"""


def carried(cells: pl.DataFrame, by: Sequence[str] = PATH) -> pl.DataFrame:
    """For each family of techniques, kind of frame and origin, or whatever else: the worst that becomes of each type.

    A conversion is stated where the schema says what stands for the type on the server, or where what was read says the
    same in another dtype. Of values that only the other server holds an error is the right answer, and says nothing of
    the family; a loss counts as any other.
    """
    here = cells.filter(session="default").join(TYPE_OF, on=["case", "database"], maintain_order="left")
    here = here.filter(pl.col("holds") | (pl.col("outcome") == "loss"))
    outcome, other_dtype = pl.col("outcome"), pl.col("detail").str.starts_with("dtypes")
    state = (
        pl.when((outcome == "loss").any()).then(pl.lit("lost"))
        .when((outcome == "error").any()).then(pl.lit("refused"))
        .when((pl.col("has_form") | other_dtype).any()).then(pl.lit("converted"))
        .otherwise(pl.lit("exact"))
    )  # fmt: skip
    return here.group_by([*by, "type"], maintain_order=True).agg(state.alias("state"))


def _of_families(cells: pl.DataFrame) -> pl.DataFrame:
    """`carried` of families, with a label each."""
    family = pl.col("family").replace_strict(FAMILIES, return_dtype=pl.String)
    frame = pl.col("frame").replace({"polars": "Polars", "batches": "record batches"})
    return carried(cells).with_columns(label=pl.format("{}: {}, {}", frame, family, "origin"))


def tried_types(cells: pl.DataFrame) -> list[str]:
    """The types that a run has tried: an older one knows nothing of those that came later."""
    tried = {*TYPE_OF.filter(pl.col("case").is_in(cells["case"].unique().implode()))["type"]}
    return [name for name in TYPES if name in tried]


def types_figure(cells: pl.DataFrame) -> Figure:
    """All directions as heat maps on one sheet, families of techniques by types."""
    parts = {where(of.row(0, named=True)): of for _, of in
             _of_families(cells).group_by("database", "direction", maintain_order=True)}  # fmt: skip
    return charts.outcome_maps(
        parts, "Which family of techniques carries which type", "type", tried_types(cells), "state", STATES, IMPOSSIBLE
    )


def types_table(cells: pl.DataFrame) -> Listing:
    """For each type what stands for it on each server and in Polars, and of how many families it is carried."""
    found = _of_families(cells)
    directions = found.select("database", "direction").unique(maintain_order=True).to_dicts()

    columns = [
        words("type", "type"), words("in PostgreSQL", "postgres"), words("in ClickHouse", "clickhouse"),
        words("in Polars", "polars", "`{}`"), *(words(where(each), where(each)) for each in directions),
    ]  # fmt: skip
    rows = [
        {
            "type": name, "postgres": types.postgres_form or types.postgres,
            "clickhouse": types.clickhouse_form or PARTS.sub("(...)", types.clickhouse),
            "polars": re.sub(r", time_zone=None|\w+=", "", PARTS.sub("(...)", str(types.polars))),
            **{where(each): _counted(found.filter(**each), name) for each in directions},
        }
        for name, types in ((name, TYPES[name]) for name in tried_types(cells))
    ]  # fmt: skip
    return Listing(columns, rows)


def _counted(states: pl.DataFrame, name: str) -> str:
    """How many families come to each state with a type: `8 exact, 2 refused`; the rest have no such value."""
    counts = Counter(states.filter(type=name)["state"])
    missing = states["label"].n_unique() - counts.total()
    told = [f"{counts[state]} {state}" for state in STATES if counts[state]]
    return ", ".join([*told, *([f"{missing} not possible"] if missing else [])]) if told else "not possible"
