"""Every technique of a database and direction."""

from __future__ import annotations

from framehaul.reporting.study import PASSES, RACE, ROWS, SEED, TECHNIQUE_PASSES, WARMUP, Parameter, Study

PROFILE = Parameter(
    "profile", 0, "1: keep with every pass what ClickHouse counted of it, its ProfileEvents", smoke=1, reference=1
)

TABLE = Parameter(
    "table", "standard",
    "of notebooks 01 to 04: the published table, or one of types (a list, a struct, a document, an enum, "
    "a decimal beside scalars), which not every technique carries", choices=("standard", "nested"),
)  # fmt: skip


def _study(number: int, name: str, question: str, rows: int, seconds: tuple[int, int, int]) -> Study:
    """`rows` are so many that the fastest take 0.1 to 0.3 s on two cores, where a look is to be quick."""
    parameters = [ROWS.at(rows), PASSES, WARMUP.at(1, smoke=1), SEED, RACE, TABLE]
    parameters += [PROFILE] if name.startswith("clickhouse") else []
    shown = f"framehaul.studies.transfers.study:{name.upper()}"
    return Study(
        f"{number:02}_{name}", question, tuple(parameters), TECHNIQUE_PASSES, shown=shown, seconds=seconds,
        holds=(name.partition("_")[0],),
    )  # fmt: skip


STUDIES = (
    _study(1, "postgres_write", "What is the fastest way from a dataframe into PostgreSQL?", 50_000, (6, 52, 1000)),
    _study(2, "postgres_read", "What is the fastest way from PostgreSQL into a dataframe?", 150_000, (6, 50, 750)),
    _study(3, "clickhouse_write", "What is the fastest way from a dataframe into ClickHouse?", 150_000, (9, 55, 900)),
    _study(4, "clickhouse_read", "What is the fastest way from ClickHouse into a dataframe?", 300_000, (7, 60, 550)),
)
