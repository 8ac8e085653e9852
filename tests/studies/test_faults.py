"""The faults do what they say, and what is said of each path is true."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import psycopg
import pytest

from framehaul.bench import store
from framehaul.bench.trials import STREAMS, Trials, chosen_techniques
from framehaul.errors import ServerError
from framehaul.studies.faults import trial
from framehaul.studies.faults.breakable import BreakableServers, breakable, hold_load
from framehaul.studies.faults.trial import FAULTS, Cell, Fault, run_cells
from framehaul.studies.registry import FAULTS_STUDY
from framehaul.techniques import Technique, techniques
from framehaul.techniques.registry import DATABASES, Database, named
from tests.conftest import WHOLE, lacks, one_for_each_driver, values_of

ROWS = {"postgres": 6_000, "clickhouse": 100_000}
MANY = {"postgres": 200_000, "clickhouse": 200_000}
"""More than any buffer on the way holds, so that much of it has been sent when the last row fails."""
SOME_OR_ALL = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "all"])


@pytest.fixture(scope="module")
def committed_cells(committed: Path) -> pl.DataFrame:
    """All techniques with every fault, as the committed run found them."""
    return store.read_cells(committed / FAULTS_STUDY.results)


@pytest.fixture(scope="module")
def broken() -> Iterator[BreakableServers]:
    with breakable() as found:
        yield found


def faults(*names: str) -> tuple[Fault, ...]:
    return tuple(fault for fault in FAULTS if fault.name in names)


def verdicts(
    broken: BreakableServers, *chosen: Technique, faults: tuple[Fault, ...] = FAULTS, rows: dict[str, int] = ROWS
) -> dict[tuple[str, str], Cell]:
    cells: list[Cell] = []
    trials = Trials(cells.append)
    run_cells(broken, [*chosen], trials, threading.Event(), rows, faults)
    assert {name.split()[-1] for name in trials.unavailable} <= {one.name for one in chosen if lacks(one)}
    return {(cell.technique, cell.fault): cell for cell in cells}


def test_servers_that_do_not_come_back_are_told_of_and_nobody_waits_for_them() -> None:
    def crash() -> None:
        raise ServerError("PostgreSQL did not start")

    subject: Any = SimpleNamespace(held=threading.Event(), server_is_back=threading.Event())
    subject.suffer = lambda *_: (subject.held.set(), subject.server_is_back.wait())
    broken: Any = SimpleNamespace(crash=crash)
    with pytest.raises(ServerError, match="PostgreSQL did not start"):
        trial.strike(broken, [subject], faults("server killed")[0], threading.Event())


@WHOLE
def test_every_technique_met_every_fault_and_lost_nothing_without_a_word(out: Path) -> None:
    cells = store.read_cells(out / "results" / FAULTS_STUDY.results)
    tried = set(cells.select("database", "direction", "technique").unique().rows())
    everything = {one.key for one in chosen_techniques(values_of(out, FAULTS_STUDY)["tried"])}
    assert {name for _, _, name in everything - tried} <= {t.name for t in techniques() if lacks(t)}
    assert set(cells["fault"]) == {fault.name for fault in FAULTS}
    assert len(cells) == len(cells.unique(["database", "direction", "technique", "fault"]))
    check_that_nothing_is_lost_and_postgres_keeps_no_part(cells)


def check_that_nothing_is_lost_and_postgres_keeps_no_part(cells: pl.DataFrame) -> None:
    # Called with Arrow that nobody has validated: bytes that are no text are a ClickHouse String all the same.
    ibis = (pl.col("technique") == "polars_ibis_insert") & (pl.col("fault") == "source fails")
    silent = cells.filter(~ibis, verdict="silent")
    # Published: what is no text becomes NULL when pandas escapes it for TSV, and NULL becomes empty text in ClickHouse.
    known = silent.filter(pl.col("technique").str.contains("^pandas_.*_tsv$"), origin="published", fault="source fails")
    assert silent.rows() == known.rows()
    several = [found.name for found in techniques("postgres", "write") if found.connections > 1]
    beyond = cells.filter(~pl.col("technique").is_in(several), origin="beyond", database="postgres", direction="write")
    left = beyond.filter(~pl.col("verdict").is_in(["safe", "unaffected"]) & ~pl.col("rows").is_in(["none", "all"]))
    assert left.select("technique", "fault", "rows").rows() == []


def test_the_committed_run_lost_nothing_without_a_word_and_left_what_contracts_say(
    committed_cells: pl.DataFrame,
) -> None:
    check_that_nothing_is_lost_and_postgres_keeps_no_part(committed_cells)
    contracts = {(found.database, found.name): found.contract for found in (*techniques(direction="write"), *STREAMS)}
    partial = set(committed_cells.filter(verdict="partial").select("database", "technique").rows())
    assert partial
    assert [key for key in partial if (terms := contracts[key]) is None or terms.after_failure == "nothing"] == []


def test_the_safe_ways_into_clickhouse_are_safe(committed_cells: pl.DataFrame) -> None:
    here = committed_cells.filter(pl.col("fault") != "duplicate key", database="clickhouse", direction="write")
    assert set(here.filter(fault="idle, then reset")["rows"]) <= {"none", "all"}
    exchange = here.filter(pl.col("fault") != "idle, then reset", technique="polars_http_client_arrow_exchange")
    assert set(exchange["verdict"]) == {"safe"}
    lost = dict(here.filter(fault="answer lost, tried again").select("technique", "verdict").iter_rows())
    assert lost["polars_http_client_arrow_deduplicated"] == "safe"
    assert lost["polars_http_client_arrow_stream"] == "doubled"


@pytest.mark.slow
def test_faults_reach_what_they_are_aimed_at(broken: BreakableServers) -> None:
    found = verdicts(
        broken,
        named("postgres", "write", "polars_psycopg_copy_text"),
        named("postgres", "write", "polars_pgpq_copy_binary"),
        named("clickhouse", "write", "polars_http_client_arrow_stream"),
        named("clickhouse", "read", "polars_http_client_arrow_preallocated"),
        named("postgres", "read", "polars_asyncpg_copy_decoded"),
    )
    text, binary, stream = "polars_psycopg_copy_text", "polars_pgpq_copy_binary", "polars_http_client_arrow_stream"
    for name, fault, words in (
        (binary, "value refused", "CheckViolation"),
        (binary, "duplicate key", "UniqueViolation"),
        (binary, "time-out", "statement timeout"),
        (binary, "connection cut", "OperationalError"),
        (binary, "server killed", "OperationalError"),
        # A statement that commits by itself has done so when its answer is lost.
        (text, "answer lost, tried again", "then: UniqueViolation"),
        (binary, "answer lost, tried again", "then: UniqueViolation"),
        (binary, "cut early, tried again", "then: no error"),
        (binary, "cut late, tried again", "then: no error"),
        (stream, "value refused", "VIOLATED_CONSTRAINT"),
        (stream, "time-out", "TIMEOUT_EXCEEDED"),
        (stream, "answer lost, tried again", "then: no error"),
        (stream, "cut late, tried again", "then: no error"),
    ):
        assert words in found[name, fault].detail, found[name, fault]
    assert found[binary, "cut late, tried again"].rows == "all"
    for cell in found.values():
        assert cell.verdict != "silent", cell
        if cell.direction == "read":
            opened_anew = cell.database == "clickhouse" and cell.fault == "idle, then reset"
            assert cell.verdict == ("unaffected" if opened_anew else "safe"), cell
            assert not opened_anew or "1 new connection" in cell.detail


@SOME_OR_ALL
@pytest.mark.parametrize("database", DATABASES)
def test_a_query_that_fails_midway_raises_and_otherwise_gives_all_rows(
    database: Database, broken: BreakableServers, every: bool
) -> None:
    """A short frame would look like a whole one."""
    readers = [one for one in techniques(database, "read") if one.origin != "baseline" and "_two_" not in one.name]
    some = {one for one in readers if one.origin != "everyday" and one_for_each_driver(one)}
    chosen = [one for one in readers if not lacks(one) and (one in some) != every]
    found = verdicts(broken, *chosen, faults=(Fault("", "read", ""), *faults("query fails")), rows=MANY)
    assert {*found} == {(one.name, fault) for one in chosen for fault in ("", "query fails")}
    wrong = [key for key, cell in found.items() if cell.verdict != ("safe" if cell.fault else "unaffected")]
    assert wrong == []


def test_a_path_that_says_nothing_is_found(broken: BreakableServers) -> None:
    honest = named("postgres", "write", "polars_psycopg_copy_binary")

    def deaf(connection: Any, table: Any, frame: Any) -> None:
        try:
            honest.function(connection, table, frame)
        except (psycopg.Error, RuntimeError):
            return

    found = verdicts(broken, replace(honest, function=deaf), faults=faults("value refused", "connection cut"))
    assert [cell.verdict for cell in found.values()] == ["silent", "silent"]


def test_acknowledged_rows_outlive_both_servers(broken: BreakableServers) -> None:
    assert broken.survives_a_crash() == {"postgres": (20_000, 20_000), "clickhouse": (20_000, 20_000)}


@pytest.mark.parametrize("database", DATABASES)
def test_a_held_load_accounts_for_every_row(broken: BreakableServers, database: Database) -> None:
    held = hold_load(broken, database, 2, threading.Event())
    assert held["rows_written"] > 0 < held["frames_read"]
    assert held["rows_lost"] == held["rows_more"] == held["frames_read_wrong"] == 0


def test_streamed_moves_leave_what_their_contract_says(broken: BreakableServers) -> None:
    # As many rows as the study sends: of half as many the server may have finished no block yet.
    three = faults("source fails", "connection cut", "query fails")
    found = verdicts(broken, *STREAMS, faults=three, rows=trial.ROWS)
    contracts = {one.name: one.contract for one in STREAMS}
    assert {name for name, _ in found} == set(contracts)
    for (name, _), cell in found.items():
        part = (contract := contracts[name]) is not None and contract.after_failure != "nothing"
        assert cell.verdict == "safe" or (part and cell.verdict == "partial"), cell
        assert cell.fault != "source fails" or "SourceError" in cell.detail
    # More than one block was on its way: what is kept is to be seen.
    assert found["stream_into_clickhouse", "source fails"].verdict == "partial"


@SOME_OR_ALL
def test_no_error_tells_a_password(broken: BreakableServers, every: bool) -> None:
    # Those that take it in a URL, a connection string or a statement.
    chosen = [found for found in techniques() if found.driver in ("connectorx", "duckdb", "chdb", "adbc", "sqlalchemy")]
    chosen = [found for found in chosen if every or one_for_each_driver(found)]
    cells = verdicts(broken, *chosen, faults=faults("connection cut", "query fails", "value refused")).values()
    assert {cell.technique for cell in cells} >= {"polars_connectorx_read", "polars_duckdb_scan", "polars_chdb_remote"}
    secrets = broken.servers.postgres.password, broken.servers.clickhouse.password
    assert [cell.technique for cell in cells if any(secret in cell.detail for secret in secrets)] == []


def test_other_accounts_can_read_nothing_of_it(broken: BreakableServers) -> None:
    home = broken.postgres_process.state_dir
    assert not [path.name for path in (home, *home.iterdir()) if path.stat().st_mode & 0o066]
