"""What becomes of a type in a family of techniques: the worst of its cases, conversions stated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest

from framehaul.studies.fidelity import study, types
from framehaul.studies.fidelity.cases import CASES
from framehaul.studies.fidelity.shapes import FROM_ARROW


def cells(*outcomes: tuple[str, str, str, str], technique: str = "one", database: str = "postgres") -> pl.DataFrame:
    """Cells of a technique by (case, outcome, detail, session)."""
    return pl.DataFrame(
        [
            {
                "database": database, "direction": "read", "technique": technique, "origin": "beyond",
                "family": "arrow", "frame": "polars", "case": case, "session": session, "outcome": outcome,
                "detail": detail,
            }
            for case, outcome, detail, session in outcomes
        ]
    )  # fmt: skip


def states(found: pl.DataFrame) -> dict[str, str]:
    return dict(types.carried(found).select("type", "state").iter_rows())


LISTS, EMPTY = "list of int64: NULL", "list of int64: empty, with NULL"


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        ([(EMPTY, "exact", "", "default"), (LISTS, "exact", "", "default")], "exact"),
        ([(EMPTY, "exact", "dtypes value:list[f64]", "default")], "converted"),
        ([(EMPTY, "exact", "", "default"), (LISTS, "error", "ValueError: no", "default")], "refused"),
        ([(EMPTY, "loss", "[] became NULL", "default"), (LISTS, "error", "ValueError: no", "default")], "lost"),
        ([(EMPTY, "exact", "", "default"), (LISTS, "loss", "[] became NULL", "hostile")], "exact"),
    ],
)
def test_the_worst_case_counts_in_the_usual_session(outcomes: list[tuple[str, str, str, str]], state: str) -> None:
    assert states(cells(*outcomes)) == {"list of int64": state}


def test_the_worst_technique_of_a_family_counts() -> None:
    other = cells((EMPTY, "error", "ValueError: no", "default"), technique="other")
    assert states(pl.concat([cells((EMPTY, "exact", "", "default")), other])) == {"list of int64": "refused"}


def test_what_stands_for_a_type_on_a_server_is_a_conversion_there_alone() -> None:
    outcomes = [
        ("uint8: least and greatest", "exact", "", "default"),
        ("json: nested, NULL, null", "exact", "", "default"),
    ]
    assert states(cells(*outcomes)) == {"uint8": "converted", "json": "converted"}
    assert states(cells(*outcomes, database="clickhouse")) == {"uint8": "exact", "json": "converted"}


def test_values_that_no_table_holds_say_nothing_of_a_type() -> None:
    refused = cells(("uint8: one beyond", "error", "ValueError: no", "default"))
    assert types.carried(refused).is_empty()
    null_list = cells((LISTS, "error", "ValueError: no", "default"), database="clickhouse")
    assert types.carried(null_list).is_empty()
    wrapped = cells(("uint8: one beyond", "loss", "256 became 0", "default"), database="clickhouse")
    assert types.carried(wrapped).is_empty()


def test_values_that_only_the_other_server_holds_are_lost_where_nobody_is_told() -> None:
    emptied = (LISTS, "loss", "NULL became []", "default")
    assert states(cells((EMPTY, "exact", "", "default"), emptied, database="clickhouse")) == {"list of int64": "lost"}
    refused = (LISTS, "error", "ValueError: no", "default")
    assert states(cells((EMPTY, "exact", "", "default"), refused, database="clickhouse")) == {"list of int64": "exact"}
    lost = {"timestamp: nanoseconds": "timestamp ns", "json: a key twice": "json", "struct: -0.0": "struct"}
    for case, name in lost.items():
        assert states(cells((case, "loss", "1 became 2", "default"))) == {name: "lost"}
        assert types.carried(cells((case, "error", "ValueError: no", "default"))).is_empty()


def test_the_table_says_how_many_families_lose_what_others_refuse() -> None:
    case = "timestamp: nanoseconds"
    found = cells((case, "loss", "1 became 0", "default"), (EMPTY, "exact", "", "default"))
    other = cells((case, "error", "ValueError: no", "default"), (EMPTY, "exact", "", "default"), technique="other")
    other = other.with_columns(family=pl.lit("native_columnar"))
    rows = {row[0]: row for row in types.types_table(pl.concat([found, other])).cells()}
    assert rows["timestamp ns"][6:] == ["1 lost, 1 not possible"]
    both = pl.concat([cells((EMPTY, "error", "x", "default")), other.with_columns(outcome=pl.lit("error"))])
    rows = {row[0]: row for row in types.types_table(both).cells()}
    assert rows["list of int64"][6:] == ["2 refused"]


def test_categories_are_a_type_of_their_own() -> None:
    written = cells(("frame: categories for text", "exact", "", "default"))
    assert states(written) == {"categorical": "converted"}
    assert states(cells(("text: LowCardinality", "loss", "x", "default"), database="clickhouse")) == {
        "categorical": "lost"
    }
    assert types.TYPES["categorical"].clickhouse == "LowCardinality(String)"


def test_text_that_came_through_arrow_is_told_of_all_and_of_adbc() -> None:
    name = f"frame: {next(iter(FROM_ARROW))}"
    found = [cells((name, outcome, "x", "default"), technique=one) for outcome, one in
             (("exact", "polars_adbc_ingest"), ("error", "pandas_adbc_ingest"), ("loss", "polars_other"))]  # fmt: skip
    said = study.from_arrow_text(pl.concat([*found, cells((EMPTY, "exact", "", "default"))]))
    assert said == ("Of all writes 1 of 3 exact, 1 rejected, 1 lost; through ADBC 1 of 2 exact, 1 rejected, 0 lost.")


def test_every_case_about_one_value_has_a_type() -> None:
    found = {case.name for case in CASES if types.TYPES.keys() & {types._named(case)}}
    assert {"bool", "list of text: quotes, braces, commas", "uint64: least and greatest"} <= found
    assert not {"frame: filtered", "column names that need quotes", "not UTF-8: FF FE 41, short"} & found


def texts(figure: Any) -> Iterator[str]:
    for axes in figure.axes:
        yield from (label.get_text() for label in (*axes.get_xticklabels(), *axes.get_yticklabels()))


def test_the_figure_and_the_table_have_the_types_and_what_stands_for_them() -> None:
    found = cells((EMPTY, "exact", "", "default"), ("enum: some of its values", "exact", "", "default"))
    shown = [*texts(types.types_figure(found))]
    assert {"list of int64", "enum", "Polars: Arrow, beyond"} <= {*shown}
    rows = {row[0]: row for row in types.types_table(found).cells()}
    assert rows["list of int64"][1:] == [
        "bigint[]", "Array(Nullable(Int64))", "`list<item: int64>`", "`List(Int64)`", "`object`", "1 exact"
    ]  # fmt: skip
    assert rows["enum"][1:] == [
        "text, checked", "Enum8(...)", "`string`", "`Enum(...)`", "`category`", "1 converted"
    ]  # fmt: skip
    assert {*rows} == {"list of int64", "enum"}
    nanoseconds = cells(("timestamp: nanoseconds", "exact", "", "default"), database="clickhouse")
    rows = {row[0]: row for row in types.types_table(pl.concat([found, nanoseconds])).cells()}
    in_frames = ["`timestamp[ns]`", "`Datetime('ns')`", "`datetime64[ns]`"]
    assert rows["timestamp ns"][3:] == [*in_frames, "not possible", "1 exact"]
    integers = cells(("uint64: least and greatest", "exact", "", "default"))
    assert types.types_table(integers).cells()[0][3:6] == ["`uint64`", "`UInt64`", "`uint64 or UInt64`"]
