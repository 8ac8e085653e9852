"""The matrix has three outcomes and no other, and what it says of itself is true."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import psycopg
import pyarrow as pa
import pytest

from framehaul.bench import store
from framehaul.bench.streams import STREAMS
from framehaul.bench.trials import Trials, all_techniques
from framehaul.bench.verify import invalid
from framehaul.data.frames import encode_stream
from framehaul.data.schema import Table
from framehaul.reporting.tables import Listing
from framehaul.servers import PostgresServer, Servers
from framehaul.servers.hostile import HOSTILE as ROLE
from framehaul.servers.tables import ClickHouseTables, PostgresTables, tables_of
from framehaul.settings import PROJECT
from framehaul.studies.fidelity import STUDY as FIDELITY
from framehaul.studies.fidelity import study, trial
from framehaul.studies.fidelity.cases import CASES, DRIFT, KEY, Case
from framehaul.studies.fidelity.losses import LOSSES, UNEXPLAINED, why
from framehaul.studies.fidelity.places import NO_ENCODING, NotAllowedError, hostile_session, without_encoding
from framehaul.studies.fidelity.trial import DEFAULT, FLUSH, HOSTILE, Cell, difference_of, run_cells
from framehaul.techniques import Technique, streaming, techniques
from framehaul.techniques.clients import CLIENTS
from framehaul.techniques.streaming import STREAMED
from tests.conftest import call

# What clickhouse-connect's own frames make of bytes that are not UTF-8 is in `reproductions`. And two connections are
# two transactions: what the server refuses over one of them does not undo the other.
GIVING_NO_TEXT = {
    "pandas_clickhouse_connect_query_df", "pandas_clickhouse_connect_query_df_rust",
    "pandas_clickhouse_connect_query_df_arrow", "polars_clickhouse_connect_query_df_arrow",
}  # fmt: skip
NAMES_OF_THEIR_OWN = ("pandas_clickhouse_driver_query_dataframe", "pandas_clickhouse_sqlalchemy_to_sql")
UNTRIED = "later: "  # what asynchronous inserts lose, for which the embedded server has no queue
REFUSED_BEYOND = ("NULL where none is allowed", "one beyond", "date: 0001", "date: 2149-06-07")


@pytest.fixture(scope="session")
def cells(out: Path) -> list[Cell]:
    """The techniques that a run has tried, with every case, as the notebook found them."""
    return [Cell(**row) for row in store.read_cells(out / "results" / FIDELITY.results).to_dicts()]


def told(cell: dict[str, Any]) -> str:
    return f"{cell['database']} {cell['direction']} {cell['technique']}: {cell['case']}: {cell['detail']}"


def test_every_loss_is_explained(cells: list[Cell]) -> None:
    assert [told(vars(cell)) for cell in cells if cell.outcome == "loss" and cell.why == UNEXPLAINED] == []


def test_the_committed_matrix_has_the_losses_of_the_table_and_no_others() -> None:
    """It tried all techniques, pg_parquet's too; tests try a tenth, another each day."""
    known = {one.key: one for one in all_techniques()}
    lost = store.read_cells(PROJECT / "results" / FIDELITY.results).filter(outcome="loss").to_dicts()
    used = set[str]()
    for cell in lost:
        technique = known[cell["database"], cell["direction"], cell["technique"]]
        used.add(found := why(technique, cell["case"], cell["session"], cell["detail"]))
        assert found == cell["why"] != UNEXPLAINED, told(cell)
    assert [loss.why for loss in LOSSES if loss.why not in used and loss.detail != UNTRIED] == []


def test_what_the_bar_expects_is_what_is_tried(cells: list[Cell]) -> None:
    chosen: dict[tuple[str, str, str], Technique] = {one.key: one for one in all_techniques()}
    by_name = {case.name: case for case in CASES}
    pairs = [(chosen[cell.database, cell.direction, cell.technique], by_name[cell.case]) for cell in cells]
    assert all(trial.asked(technique, case) for technique, case in pairs)
    # A frame that cannot hold a value is not tried with it.
    assert len(cells) <= trial.expected([*dict(pairs)]) < 1.1 * len(cells)


def test_every_error_says_something(cells: list[Cell]) -> None:
    assert all(re.search(r"\w+: \S", cell.detail) for cell in cells if cell.outcome == "error")


def test_techniques_beyond_refuse_what_servers_would_change(cells: list[Cell]) -> None:
    lost = [
        (cell.technique, cell.case)
        for cell in cells
        if cell.origin == "beyond" and cell.direction == "write" and cell.outcome == "loss"
        and any(name in cell.case for name in REFUSED_BEYOND)
    ]  # fmt: skip
    assert lost == []


def test_ordinary_cases_are_exact_everywhere(cells: list[Cell]) -> None:
    ordinary = ("text: quotes, backslash, comma", "text: emoji, combining characters", "column names that need quotes")
    wrong = [
        (cell.technique, cell.case, cell.detail)
        for cell in cells
        if cell.case in ordinary and cell.session == DEFAULT and cell.outcome != "exact"
        and cell.technique not in NAMES_OF_THEIR_OWN
    ]  # fmt: skip
    # Ibis writes names into psycopg's placeholders, where one with a percent sign is none.
    ibis = ("pandas_ibis_insert", "polars_ibis_insert")
    assert [one for one in wrong if one[0] not in ibis or "placeholders cannot be mixed" not in one[2]] == []


def test_ordinary_frames_are_taken_by_techniques_beyond(cells: list[Cell]) -> None:
    ordinary = {"frame: as the table is", "frame: filtered", "frame: several chunks", "frame: a named index"}
    found = [cell for cell in cells if cell.origin == "beyond" and cell.case in ordinary]
    assert {cell.case for cell in found} == ordinary
    assert [(cell.technique, cell.case, cell.detail) for cell in found if cell.outcome != "exact"] == []


def one_frame(sent: Any) -> Any:
    """What is sent as one frame: batches, whose types need not be the same, row by row."""
    if not isinstance(sent, list):
        return sent
    # Through a stream: Polars 2.1 does not take a slice of lists of one size in which there is NULL.
    streams = [b"".join(encode_stream(batch.schema, [batch])) for batch in sent if batch.num_rows]
    frames = [pl.DataFrame(pa.ipc.open_stream(stream).read_all()) for stream in streams]
    held = frames or [pl.DataFrame(pa.Table.from_batches(sent[:1]))]
    return pl.concat([frame.select(held[0].columns) for frame in held], how="vertical_relaxed")


def test_streamed_moves_lose_nothing(cells: list[Cell]) -> None:
    streamed = [cell for cell in cells if cell.origin == "streamed"]
    assert {cell.technique for cell in streamed} == {move.name for move in STREAMED}
    assert [(cell.technique, cell.case, cell.detail) for cell in streamed if cell.outcome == "loss"] == []
    ordinary = {case.name for case in CASES if "batches" in case.shapes and case.about == "frames" and not case.unfit}
    tried = [cell for cell in streamed if cell.case in ordinary]
    assert {cell.case for cell in tried} == ordinary
    assert [(cell.technique, cell.case, cell.detail) for cell in tried if cell.outcome != "exact"] == []


@pytest.mark.parametrize("database", ["postgres", "clickhouse"])
def test_streamed_reads_come_in_several_batches(
    database: Any, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[list[int]] = []
    write = streaming.write_batches

    def counted(batches: Iterable[pa.RecordBatch], table: Table, file: Path) -> None:
        held = list(batches)
        rows.append([batch.num_rows for batch in held])
        write(iter(held), table, file)

    monkeypatch.setattr(streaming, "write_batches", counted)
    reader = next(one for one in STREAMS if one.database == database and one.direction == "read")
    names = ("text: LowCardinality", "list of int64: empty, with NULL")
    found: list[Cell] = []
    run_cells(servers, [reader], Trials(found.append), cases=tuple(case for case in CASES if case.name in names))
    assert {cell.outcome for cell in found} == {"exact"}
    assert all(len(of) > 1 for of in rows), rows


def test_batches_change_from_one_to_the_next() -> None:
    """What their cases are called is what they are."""
    shaped = {case.name: case.frame("batches") for case in CASES if "batches" in case.shapes}
    types = [
        batch.schema.field("given").type for batch in shaped["frame: a dictionary that differs from batch to batch"]
    ]
    assert [pa.types.is_dictionary(one) for one in types] == [True, False, True]
    laid_out = shaped["frame: text laid out otherwise from batch to batch"]
    assert len({batch.schema.field("given").type for batch in laid_out}) == 3
    empty = [batch.num_rows for batch in shaped["frame: an empty batch first, last and between"]]
    assert (empty[0], empty[2], empty[-1]) == (0, 0, 0)
    assert {batch.num_rows for batch in shaped["frame: batches of one row"]} == {1}
    nulls = [batch.column("flag").null_count for batch in shaped["frame: NULL in the last batch alone"]]
    assert nulls[-1]
    assert not any(nulls[:-1])
    assert shaped["frame: NULL without a type in the first batch"][0].schema.field("flag").type == pa.null()
    values = next(case for case in CASES if case.name == "text: NULL and empty").frame("batches")
    assert [batch.column("value").to_pylist() for batch in values] == [[""], [], [None], ["x"]]


def lost_beyond(cells: list[Cell], case: str = "", session: str = "") -> list[tuple[str, str, str]]:
    """Technique, case and detail of what techniques beyond the published ones lose."""
    return [
        (cell.technique, cell.case, cell.detail)
        for cell in cells
        if cell.origin == "beyond" and cell.outcome == "loss" and cell.case.startswith(case) and session in cell.session
    ]  # fmt: skip


def test_techniques_beyond_lose_nothing_more_in_a_hostile_session(cells: list[Cell]) -> None:
    assert any(cell.session == HOSTILE for cell in cells if cell.database == "postgres")
    assert any(cell.session == HOSTILE for cell in cells if cell.database == "clickhouse")
    known = {(technique, case) for technique, case, _ in lost_beyond(cells, session=DEFAULT)}
    assert [found for found in lost_beyond(cells, session=HOSTILE) if found[:2] not in known] == []


def test_techniques_beyond_lose_nothing_of_frames_as_users_have_them(cells: list[Cell]) -> None:
    assert lost_beyond(cells, "frame: ") == []


def test_techniques_beyond_give_no_text_that_is_none(cells: list[Cell]) -> None:
    assert {technique for technique, _, _ in lost_beyond(cells, "not UTF-8: ")} <= GIVING_NO_TEXT


def test_a_lazy_frame_is_refused(cells: list[Cell]) -> None:
    lazy = [cell for cell in cells if cell.case == "frame: a lazy frame"]
    assert lazy
    # Ibis makes a table in memory of a lazy frame as well, which it collects.
    taken = {(cell.database, cell.technique) for cell in lazy if cell.outcome == "exact"}
    assert taken <= {("postgres", "polars_ibis_insert")}
    assert {cell.outcome for cell in lazy if (cell.database, cell.technique) not in taken} == {"error"}
    assert [cell.technique for cell in lazy if cell.origin == "beyond" and "lazy" not in cell.detail] == []


def test_what_was_made_for_the_run_is_gone(servers: Servers, cells: list[Cell]) -> None:
    assert cells
    with psycopg.connect(servers.postgres.dsn()) as connection:
        for listing in ("SELECT rolname FROM pg_roles", "SELECT datname FROM pg_database"):
            assert {name for (name,) in connection.execute(listing.encode())} & {ROLE, NO_ENCODING} == set()


def test_tables_are_gone_afterwards(servers: Servers, cells: list[Cell]) -> None:
    assert cells
    for database in ("postgres", "clickhouse"):
        tables = tables_of(servers.of(database))
        for case in CASES:
            with pytest.raises(Exception, match=r"(?i)not exist|unknown"):
                tables.content(case.table)


@pytest.mark.parametrize("kind", ["polars", "pandas", "batches"])
@pytest.mark.parametrize("case", [case for case in CASES if not case.shapes], ids=lambda case: case.name)
def test_frames_hold_what_is_sent(case: Case, kind: str) -> None:
    difference = difference_of(case, one_frame(case.frame(kind)))
    pandas_cannot = kind == "pandas" and case.name == "float: NaN against NULL"
    assert (difference is not None) == pandas_cannot, difference


@pytest.mark.parametrize(
    ("case", "kind"),
    [(case, kind) for case in CASES for kind in case.shapes if case.about == "frames" and not case.unfit],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_frames_in_other_shapes_hold_the_same(case: Case, kind: str) -> None:
    frame = one_frame(case.frame(kind))
    if isinstance(frame, pl.LazyFrame):
        frame = frame.collect()
    if isinstance(frame, pd.DataFrame) and frame.index.name == KEY.name:
        frame = frame.reset_index()
    assert difference_of(case, frame[case.table.column_names]) is None


@pytest.mark.parametrize("case", [case for case in CASES if case.unfit], ids=lambda case: case.name)
def test_frames_that_do_not_fit_have_other_columns(case: Case) -> None:
    for kind in case.shapes:
        sent = case.frame(kind)
        columns = [batch.schema.names for batch in sent] if isinstance(sent, list) else [list(sent.columns)]
        assert any(names != case.table.column_names for names in columns)


FILLED = [case for case in CASES if case.filled]


@pytest.mark.parametrize("database", ["postgres", "clickhouse"])
def test_tables_fill_what_no_technique_was_told_of(database: Any, servers: Servers) -> None:
    """The rows that an append finds there, and the column between key and others, are what a case says."""
    tables = tables_of(servers.of(database))
    cases = [case for case in FILLED if database in case.databases]
    assert len(cases) >= 5
    for case in cases:
        assert case.filled is not None
        column, before = case.filled.column.name, case.there[1].num_rows
        assert case.made.column_names[1] == column
        tables.create(case.table)
        try:
            tables.load(*case.there)
            content = tables.content(case.made).sort(KEY.name)
            assert content[column].to_list() == list(case.filled.holds[:before]), case.name
        finally:
            tables.drop(case.table)


def test_rows_that_are_lost_or_stored_in_spite_of_an_error_are_told_from_those_that_were_there(
    servers: Servers,
) -> None:
    """Writers that replace, that number rows themselves, and that fail behind half of their rows."""

    def replacing(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
        connection.execute(f"TRUNCATE {table.postgres_name} RESTART IDENTITY".encode())
        honest.function(connection, table, frame)

    def numbering(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
        honest.function(connection, table, frame)
        connection.execute(f"UPDATE {table.postgres_name} SET number = DEFAULT".encode())

    def halting(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
        honest.function(connection, table, frame[:1])
        raise ValueError("no more")

    honest = next(t for t in techniques("postgres", "write") if t.name == "polars_pgpq_copy_binary")
    case = next(case for case in FILLED if case.name == "append: an identity column, not named")
    said = {}
    for function in (honest.function, replacing, numbering, halting):
        found: list[Cell] = []
        run_cells(servers, [replace(honest, function=function)], Trials(found.append), cases=(case,))
        said[function.__name__] = found[0].outcome, found[0].detail
    assert said == {
        honest.name: ("exact", ""),
        "replacing": ("loss", "3 rows instead of 5"),
        "numbering": ("loss", "number: 1 became 6"),
        "halting": ("loss", "1 rows are stored in spite of ValueError: no more"),
    }


def test_a_server_that_is_busy_for_seconds_is_no_path_that_hangs(servers: Servers) -> None:
    def late(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
        connection.execute("SELECT pg_sleep(3)")
        honest.function(connection, table, frame)

    honest = next(t for t in techniques("postgres", "write") if t.name == "polars_pgpq_copy_binary")
    found: list[Cell] = []
    case = next(case for case in CASES if "postgres" in case.databases and "write" in case.directions)
    run_cells(servers, [replace(honest, function=late)], Trials(found.append), cases=(case,))
    assert {(cell.outcome, cell.detail) for cell in found} == {("exact", "")}


def test_who_wants_an_empty_table_does_not_append(cells: list[Cell]) -> None:
    appending = {cell.technique for cell in cells if cell.case.startswith("append: ")}
    kinds = {one.name: one.contract.kind for one in techniques(direction="write") if one.contract}
    assert appending
    assert {kinds[name] for name in appending & kinds.keys()} == {"append"}


def test_techniques_beyond_append_right_or_refuse(cells: list[Cell]) -> None:
    """What nobody told them of is filled by the server; what the frame lacks is refused by its name."""
    here = [cell for cell in cells if cell.case.startswith("append: ") and cell.origin in ("beyond", "streamed")]
    wrong = {(cell.technique, cell.case, cell.detail) for cell in here if cell.outcome == "loss"}
    named = [cell for cell in here if "not named" in cell.case]
    assert named
    assert not wrong | {(cell.technique, cell.case, cell.detail) for cell in named if cell.outcome != "exact"}
    assert all("missing: 'state'" in cell.detail for cell in here if cell.case.endswith("missing in the frame"))


def test_numbers_that_a_frame_brings_do_not_move_the_servers_own(servers: Servers) -> None:
    """As `docs/fidelity.md` says: the next row that the server numbers gets a number that is there already."""
    case = next(case for case in FILLED if case.name == "append: an identity column, in the frame")
    writer = next(t for t in techniques("postgres", "write") if t.name == "polars_pgpq_copy_binary")
    frame = case.frame("polars").with_columns(number=pl.Series([3, 4, 5]))
    tables = PostgresTables(servers.postgres)
    tables.create(case.table)
    try:
        tables.load(*case.there)
        call(writer, servers, case.table, frame)
        tables.run(f"INSERT INTO {case.table.postgres_name} (id, amount) VALUES (7, 70)")
        numbers = sorted(number for (number,) in tables.run(f"SELECT number FROM {case.table.postgres_name}"))
    finally:
        tables.drop(case.table)
    assert numbers == [1, 2, 3, 3, 4, 5]


def test_what_drifts_has_a_row_for_each_database_that_has_it(cells: list[Cell]) -> None:
    listing = study.drift_table(pl.DataFrame([*map(vars, cells)]))
    assert isinstance(listing, Listing)
    shown = [(row["tried"], row["database"]) for row in listing.rows]
    assert shown == [
        (case.name, database)
        for name in DRIFT for case in CASES if case.name == name for database in case.databases
    ]  # fmt: skip
    for row in listing.rows:
        here = [one for one in cells if (one.case, one.session) == (row["tried"], DEFAULT)
                and (one.database, one.direction) == (row["database"], "write")]  # fmt: skip
        assert [sum(one.outcome == outcome for one in here) for outcome in study.OUTCOMES] == [
            row[outcome] for outcome in study.OUTCOMES
        ]
        assert (row["changed"] is not None) == (row["loss"] > 0)
    nothing = pl.DataFrame([vars(cell) for cell in cells if cell.direction == "read"])
    assert study.drift_table(nothing) == "No append was tried."


def test_frames_hold_text_that_is_none() -> None:
    found = {
        (case.name, kind): invalid(one_frame(case.frame(kind)))
        for case in CASES
        for kind in case.shapes
        if "from a decoder that trusts" in case.name
    }
    assert len(found) == 6
    assert set(found.values()) == {"column value, row 1: text that is no UTF-8"}


def test_what_was_left_by_a_killed_run_is_made_anew(servers: Servers) -> None:
    for place in (hostile_session, without_encoding):
        with place(servers.postgres), place(servers.postgres) as server:
            assert isinstance(server, PostgresServer)
            with psycopg.connect(server.dsn()) as connection:
                assert connection.execute("SELECT 1").fetchone() is not None


@pytest.mark.parametrize(
    ("there", "makes", "drop"),
    [(ROLE, "CREATE ROLE {}", "DROP ROLE {}"), (NO_ENCODING, "CREATE DATABASE {}", "DROP DATABASE {}")],
)
def test_what_is_not_ours_stays_and_is_a_reason(servers: Servers, there: str, makes: str, drop: str) -> None:
    kind = makes.split()[1]
    with psycopg.connect(servers.postgres.dsn(), autocommit=True) as connection:
        connection.execute(makes.format(there).encode())
        connection.execute(f"COMMENT ON {kind} {there} IS 'precious'".encode())
        try:
            place = hostile_session if there == ROLE else without_encoding
            with pytest.raises(NotAllowedError, match="did not make"), place(servers.postgres):
                pass
        finally:
            connection.execute(drop.format(there).encode())


def test_where_nothing_may_be_made_the_rest_is_tried_and_the_reason_kept(servers: Servers) -> None:
    poor = "framehaul_poor"
    with psycopg.connect(servers.postgres.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {poor} LOGIN PASSWORD 'poor'".encode())
        connection.execute(f"GRANT CREATE ON SCHEMA public TO {poor}".encode())
        found = list[Cell]()
        trials = Trials(found.append)
        try:
            reader = next(t for t in techniques("postgres", "read") if t.name == "polars_psycopg_row_fetch")
            as_poor = replace(servers, postgres=replace(servers.postgres, user=poor, password="poor"))
            cases = tuple(c for c in CASES if c.name in ("bool", "not UTF-8: FF FE 41, short"))
            run_cells(as_poor, [reader], trials, cases=cases)
        finally:
            connection.execute(f"DROP OWNED BY {poor}".encode())
            connection.execute(f"DROP ROLE {poor}".encode())
    assert [(cell.case, cell.session, cell.outcome) for cell in found] == [("bool", DEFAULT, "exact")]
    assert set(trials.left_out) == {"postgres: hostile session", "postgres: database without encoding"}
    assert all("permission denied" in reason for reason in trials.left_out.values())


class QueueingTables(ClickHouseTables):
    """A server that stores what was written only when its queue is flushed."""

    flushed = True

    def create(self, table: Table) -> None:
        super().create(table)
        self.flushed = False

    def content(self, table: Table) -> pl.DataFrame:
        found = super().content(table)
        return found if self.flushed else found.clear()

    def run(self, query: str, body: bytes = b"", **settings: str | int) -> bytes:
        if query == FLUSH:
            self.flushed = True
            return b""
        return super().run(query, body, **settings)


def test_rows_that_come_later_than_their_acknowledgement_are_a_loss(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "tables_of", QueueingTables)
    found: list[Cell] = []
    writer = next(t for t in techniques("clickhouse", "write") if t.name == "polars_http_client_arrow_stream")
    case = replace(next(case for case in CASES if case.name == "bool"), directions=("write",))
    run_cells(servers, [writer], Trials(found.append), cases=(case,))
    last = found[-1]
    assert (last.session, last.outcome, last.detail) == (HOSTILE, "loss", "0 rows instead of 3; later: exact")
    assert "async_insert" in last.why


def test_a_path_that_changes_data_is_found(servers: Servers) -> None:
    honest = next(t for t in techniques("postgres", "read") if t.name == "polars_psycopg_row_fetch")

    def lying(connection: object, table: object) -> pl.DataFrame:
        frame: pl.DataFrame = honest.function(connection, table)
        return frame.with_columns(pl.lit("x").alias("value"))

    liar = Technique(
        lying, honest.database, honest.direction, honest.frame, honest.driver, honest.client, honest.family,
        honest.label, honest.origin,
    )  # fmt: skip
    found: list[Cell] = []
    case = next(case for case in CASES if case.name == "text: NULL and empty")
    run_cells(servers, [liar], Trials(found.append), cases=(case,))
    lied = [(DEFAULT, "loss", "'' became 'x'"), (HOSTILE, "loss", "'' became 'x'")]
    assert [(cell.session, cell.outcome, cell.detail) for cell in found] == lied


def test_a_client_that_does_not_close_after_an_error_is_told_and_left_behind(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = next(t for t in techniques("postgres", "read") if t.name == "polars_psycopg_row_fetch")

    @asynccontextmanager
    async def stuck(_: PostgresServer) -> AsyncIterator[str]:
        yield "client"
        await asyncio.Event().wait()

    def failing(*_: object) -> pl.DataFrame:
        raise ValueError("no")

    monkeypatch.setitem(CLIENTS, "stuck", stuck)
    monkeypatch.setattr(trial, "CLOSING_SECONDS", 0.1)
    found: list[Cell] = []
    cases = tuple(case for case in CASES if case.name in ("bool", "bytes"))
    run_cells(servers, [replace(honest, function=failing, client="stuck")], Trials(found.append), cases=cases)
    assert [cell.detail for cell in found] == ["ValueError: no; then its client does not close"] * 4
    assert {cell.outcome for cell in found} == {"error"}


def test_what_an_interrupted_run_has_left_is_not_tried_again(servers: Servers) -> None:
    reader = next(t for t in techniques("postgres", "read") if t.name == "polars_psycopg_row_fetch")
    found: list[Cell] = []
    cases = tuple(case for case in CASES if case.name in ("bool", "bytes"))
    trials = Trials(found.append, lambda cell: (cell.case, cell.session) == ("bool", DEFAULT))
    run_cells(servers, [reader], trials, cases=cases)
    assert [(cell.case, cell.session) for cell in found] == [("bytes", DEFAULT), ("bool", HOSTILE), ("bytes", HOSTILE)]
