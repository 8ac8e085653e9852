"""How outcomes of the fidelity matrix are counted."""

from __future__ import annotations

import polars as pl

from framehaul.studies.fidelity import counts


def cell(direction: str, case: str, outcome: str) -> dict[str, str]:
    return {
        "database": "postgres", "direction": direction, "technique": f"{direction}r", "origin": "beyond", "case": case,
        "outcome": outcome, "why": "",
    }  # fmt: skip


def test_what_no_table_holds_is_not_counted_against_a_technique() -> None:
    cells = pl.DataFrame(
        [
            cell("write", "bool", "error"),
            cell("write", "text: NUL byte", "error"),
            cell("write", "not UTF-8: short", "error"),
            cell("read", "bool", "exact"),
            cell("read", "not UTF-8: short", "error"),
        ]
    )
    listing = counts.fidelity_counts(cells)
    assert [(row["direction"], row["error"], row["not_carried"]) for row in listing.rows] == [
        ("write", 3, 1), ("read", 1, 0)
    ]  # fmt: skip
