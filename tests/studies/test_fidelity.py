"""The matrix has three outcomes and no other, and what it says of itself is true."""

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import polars as pl
import psycopg
import pyarrow as pa
import pytest

from framehaul.bench import store
from framehaul.bench.trials import Trials, all_techniques
from framehaul.bench.verify import invalid
from framehaul.data.schema import Table
from framehaul.servers import Servers
from framehaul.servers.hostile import HOSTILE as ROLE
from framehaul.servers.tables import tables_of
from framehaul.studies.fidelity import TYPES, carried, trial
from framehaul.studies.fidelity.cases import CASES
from framehaul.studies.fidelity.trial import DEFAULT, HOSTILE, LOSSES, UNEXPLAINED, Cell, run_cells, why
from framehaul.studies.registry import FIDELITY
from framehaul.techniques import Technique, techniques
from framehaul.techniques.registry import named
from framehaul.techniques.streaming import STREAMED

# What clickhouse-connect's own frames make of bytes that are not UTF-8 is in `reproductions`. And two connections are
# two transactions: what the server refuses over one of them does not undo the other.
GIVING_NO_TEXT = {
    "pandas_clickhouse_connect_query_df", "pandas_clickhouse_connect_query_df_rust",
    "pandas_clickhouse_connect_query_df_arrow", "polars_clickhouse_connect_query_df_arrow",
}  # fmt: skip
NAMES_OF_THEIR_OWN = ("pandas_clickhouse_driver_query_dataframe", "pandas_clickhouse_sqlalchemy_to_sql")
REFUSED_BEYOND = "NULL where none is allowed|one beyond|date: 0001|date: 2149-06-07"
ORDINARY = ["text: quotes, backslash, comma", "text: emoji, combining characters", "column names that need quotes"]
ORDINARY_FRAMES = ["frame: as the table is", "frame: filtered", "frame: several chunks", "frame: a named index"]
CASE, OUTCOME = pl.col("case"), pl.col("outcome")
READER = named("postgres", "read", "polars_psycopg_row_fetch")
WRITER = named("postgres", "write", "polars_pgpq_copy_binary")


@pytest.fixture(scope="session")
def cells(out: Path) -> pl.DataFrame:
    """The techniques that a run has tried, with every case, as the notebook found them."""
    return store.read_cells(out / "results" / FIDELITY.results)


def told(found: pl.DataFrame) -> list[Any]:
    return found.select("technique", "case", "detail").rows()


def test_an_interrupt_raises_and_leaves_nothing(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "chosen_techniques", lambda _: [READER])
    with pytest.raises(KeyboardInterrupt):
        inspect.unwrap(trial.run)(MagicMock(servers=lambda: servers), tried="")  # a mock's `stop` is set
    assert tables_of(servers.postgres).run("SELECT 1 FROM pg_class WHERE relname LIKE 'framehaul_fidelity_%'") == []


def found_by(servers: Servers, technique: Technique, *names: str, trials: Trials[Cell] | None = None) -> list[Cell]:
    found: list[Cell] = []
    trials = replace(trials or Trials(found.append), record=found.append)
    run_cells(servers, [technique], trials, cases=[case for case in CASES if case.name in names])
    return found


def test_every_loss_is_explained_and_every_error_says_something(cells: pl.DataFrame) -> None:
    assert told(cells.filter(outcome="loss", why=UNEXPLAINED)) == []
    assert told(cells.filter(~pl.col("detail").str.contains(r"\w+: \S"), outcome="error")) == []


def test_the_committed_matrix_has_the_losses_of_the_table_and_no_others(committed: Path) -> None:
    """It tried all techniques, pg_parquet's too; tests try a tenth, another each day."""
    known = {one.key: one for one in all_techniques()}
    lost = store.read_cells(committed / FIDELITY.results).filter(outcome="loss").to_dicts()
    used = set[str]()
    for cell in lost:
        if not (technique := known.get((cell["database"], cell["direction"], cell["technique"]))):
            continue  # it is gone since
        used.add(found := why(technique, cell["case"], cell["session"], cell["detail"]))
        assert found == cell["why"] != UNEXPLAINED, cell
    assert [reason for *_, reason in LOSSES if reason not in used] == []


def test_techniques_beyond_refuse_what_servers_would_change(cells: pl.DataFrame) -> None:
    refused = cells.filter(CASE.str.contains(REFUSED_BEYOND), origin="beyond", direction="write")
    assert len(refused)
    assert told(refused.filter(outcome="loss")) == []


def test_ordinary_cases_are_exact_everywhere_and_ordinary_frames_beyond(cells: pl.DataFrame) -> None:
    wrong = cells.filter(CASE.is_in(ORDINARY), ~pl.col("technique").is_in(NAMES_OF_THEIR_OWN), OUTCOME != "exact")
    # Ibis writes names into psycopg's placeholders, where one with a percent sign is none.
    ibis = pl.col("technique").str.ends_with("_ibis_insert") & pl.col("detail").str.contains("placeholders cannot be")
    assert told(wrong.filter(~ibis, session=DEFAULT)) == []
    frames = cells.filter(CASE.is_in(ORDINARY_FRAMES), origin="beyond")
    assert {*frames["case"]} == {*ORDINARY_FRAMES}
    assert told(frames.filter(OUTCOME != "exact")) == []


def test_streamed_moves_lose_nothing(cells: pl.DataFrame) -> None:
    streamed = cells.filter(origin="streamed")
    assert {*streamed["technique"]} == {move.name for move in STREAMED}
    assert told(streamed.filter(outcome="loss")) == []
    ordinary = {case.name for case in CASES if "batches" in case.shapes and case.about == "frames" and not case.unfit}
    tried = streamed.filter(CASE.is_in(ordinary))
    assert {*tried["case"]} == ordinary
    assert told(tried.filter(OUTCOME != "exact")) == []


def test_techniques_beyond_lose_nothing_more_in_a_hostile_session(cells: pl.DataFrame) -> None:
    assert {*cells.filter(session=HOSTILE)["database"]} == {"postgres", "clickhouse"}
    lost = cells.filter(origin="beyond", outcome="loss")
    known = lost.filter(session=DEFAULT)
    assert told(lost.join(known, on=["technique", "case"], how="anti")) == []
    assert told(lost.filter(CASE.str.starts_with("frame: "))) == []
    assert {*lost.filter(CASE.str.starts_with("not UTF-8: "))["technique"]} <= GIVING_NO_TEXT


def test_techniques_beyond_append_right_or_refuse(cells: pl.DataFrame) -> None:
    """What nobody told them of is filled by the server; what the frame lacks is refused by its name."""
    appending = cells.filter(CASE.str.starts_with("append: "))
    kinds = {one.name: one.contract.kind for one in techniques(direction="write") if one.contract}
    assert {kinds[name] for name in appending["technique"] if name in kinds} == {"append"}
    here = appending.filter(pl.col("origin").is_in(["beyond", "streamed"]))
    not_named = CASE.str.contains("not named")
    assert told(here.filter((OUTCOME == "loss") | (not_named & (OUTCOME != "exact")))) == []
    missing = here.filter(CASE.str.ends_with("missing in the frame"))
    assert len(missing) and missing["detail"].str.contains("missing: 'state'").all()


def test_what_was_made_for_the_run_is_gone(servers: Servers, cells: pl.DataFrame) -> None:
    assert len(cells)
    names = "SELECT rolname FROM pg_roles UNION SELECT datname FROM pg_database UNION SELECT relname FROM pg_class"
    left = {name for (name,) in tables_of(servers.postgres).run(names)}
    assert [name for name in left if name in (ROLE, trial.NO_ENCODING) or name.startswith("framehaul_fidelity_")] == []
    ours = "SELECT name FROM system.tables WHERE name LIKE 'framehaul_fidelity_%'"
    assert tables_of(servers.clickhouse).run(ours) == b""


def test_frames_are_what_their_cases_are_called() -> None:
    def batches(name: str, column: str) -> list[Any]:
        [case] = [case for case in CASES if case.name == f"frame: {name}"]
        return [batch.column(column) for batch in case.frame("batches")]

    texts = batches("a dictionary that differs from batch to batch", "given")
    assert [pa.types.is_dictionary(one.type) for one in texts] == [True, False, True]
    assert len({one.type for one in batches("text laid out otherwise from batch to batch", "given")}) == 3
    assert 0 in map(len, batches("an empty batch first, last and between", "id"))
    *others, last = [one.null_count for one in batches("NULL in the last batch alone", "flag")]
    assert last > 0 == sum(others)
    for case in CASES:
        for sent in map(case.frame, case.shapes):
            if case.unfit:
                columns = [batch.schema.names for batch in sent] if isinstance(sent, list) else [list(sent.columns)]
                assert any(names != case.table.column_names for names in columns)
            if "from a decoder that trusts" in case.name and not isinstance(sent, list):
                assert invalid(sent) == "column value, row 1: text that is no UTF-8"


def test_rows_that_are_lost_or_stored_in_spite_of_an_error_are_told_from_those_that_were_there(
    servers: Servers,
) -> None:
    """Writers that replace, that number rows themselves, and that fail behind half of their rows."""

    def replacing(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
        connection.execute(f"TRUNCATE {table.postgres_name} RESTART IDENTITY".encode())
        WRITER.function(connection, table, frame)

    def numbering(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
        WRITER.function(connection, table, frame)
        connection.execute(f"UPDATE {table.postgres_name} SET number = DEFAULT".encode())

    def halting(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
        WRITER.function(connection, table, frame[:1])
        raise ValueError("no more")

    for function, outcome in (
        (WRITER.function, ("exact", "")),
        (replacing, ("loss", "3 rows instead of 5")),
        (numbering, ("loss", "number: 1 became 6")),
        (halting, ("loss", "1 rows are stored in spite of ValueError: no more")),
    ):
        [cell] = found_by(servers, replace(WRITER, function=function), "append: an identity column, not named")
        assert (cell.outcome, cell.detail) == outcome


def test_a_path_that_hangs_is_ended(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(connection: psycopg.Connection[Any], *_: object) -> None:
        connection.execute("SELECT pg_sleep(600)")

    monkeypatch.setattr(trial, "PATIENCE_SECONDS", 0.3)
    [cell, _] = found_by(servers, replace(WRITER, function=late), "bool")
    assert cell.outcome == "error" and cell.detail.startswith(trial.SILENT)


def test_a_path_that_changes_data_is_found(servers: Servers) -> None:
    def lying(connection: object, table: object) -> pl.DataFrame:
        frame: pl.DataFrame = READER.function(connection, table)
        return frame.with_columns(pl.lit("x").alias("value"))

    lied = found_by(servers, replace(READER, function=lying), "text: NULL and empty")
    assert [(cell.session, cell.detail) for cell in lied] == [(DEFAULT, "'' became 'x'"), (HOSTILE, "'' became 'x'")]


def test_what_an_interrupted_run_has_left_is_not_tried_again(servers: Servers) -> None:
    trials = Trials[Cell](print, lambda cell: (cell.case, cell.session) == ("bool", DEFAULT))
    found = found_by(servers, READER, "bool", "bytes", trials=trials)
    assert [(cell.case, cell.session) for cell in found] == [("bytes", DEFAULT), ("bool", HOSTILE), ("bytes", HOSTILE)]


def test_what_was_left_by_a_killed_run_is_made_anew(servers: Servers) -> None:
    for place in (trial.hostile_session, trial.without_encoding):
        with place(servers.postgres), place(servers.postgres) as server:
            tables_of(server).run("SELECT 1")


def test_where_nothing_may_be_made_the_rest_is_tried_and_the_reason_kept(servers: Servers) -> None:
    elsewhere, trials = replace(servers, postgres=replace(servers.postgres, process_id=None)), Trials[Cell](print)
    found = found_by(elsewhere, READER, "bool", "not UTF-8: FF FE 41, short", trials=trials)
    assert [(cell.case, cell.session, cell.outcome) for cell in found] == [("bool", DEFAULT, "exact")]
    assert "embedded servers only" in trials.unavailable["postgres: other sessions"]


LISTS, EMPTY = "list of int64: NULL", "list of int64: empty, with NULL"


def test_the_worst_case_of_a_type_counts() -> None:
    constant = {"direction": "read", "family": "arrow", "frame": "polars", "origin": "beyond", "session": DEFAULT}
    cases: list[tuple[str, list[Any], dict[str, str]]] = [
        ("postgres", [(EMPTY, "exact", ""), (LISTS, "exact", "")], {"list of int64": "exact"}),
        ("postgres", [(EMPTY, "exact", "dtypes value:list[f64]")], {"list of int64": "converted"}),
        ("postgres", [(EMPTY, "exact", ""), (LISTS, "error", "no")], {"list of int64": "refused"}),
        ("postgres", [(EMPTY, "loss", "[] became NULL"), (LISTS, "error", "no")], {"list of int64": "lost"}),
        ("postgres", [("uint8: least and greatest", "exact", "")], {"uint8": "converted"}),
        ("clickhouse", [("uint8: least and greatest", "exact", "")], {"uint8": "exact"}),
        # Values that no table holds say nothing; of those that only the other server holds a loss does.
        ("clickhouse", [("uint8: one beyond", "loss", "256 became 0")], {}),
        ("clickhouse", [(EMPTY, "exact", ""), (LISTS, "error", "no")], {"list of int64": "exact"}),
        ("clickhouse", [(EMPTY, "exact", ""), (LISTS, "loss", "NULL became []")], {"list of int64": "lost"}),
        ("clickhouse", [("text: LowCardinality", "loss", "x")], {"categorical": "lost"}),
    ]
    for database, outcomes, state in cases:
        found = pl.DataFrame(outcomes, ["case", "outcome", "detail"], orient="row").with_columns(
            **{name: pl.lit(value) for name, value in (constant | {"database": database}).items()}
        )
        assert dict(carried(found).select("type", "state").iter_rows()) == state, outcomes
        assert set(state) <= set(TYPES["type"])
