"""The faults do what they say, and what is said of each path is true."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from framehaul.bench import committed, store
from framehaul.bench.streams import STREAMS
from framehaul.bench.trials import Trials, chosen_techniques
from framehaul.errors import ServerError
from framehaul.servers.tables import tables_of
from framehaul.studies.faults import STUDY as FAULTS_STUDY
from framehaul.studies.faults.breakable import BLOCK_ROWS, TABLE, BreakableServers, breakable
from framehaul.studies.faults.held import hold_load, survives_a_crash
from framehaul.studies.faults.trial import (
    BATCH_ROWS,
    FAULTS,
    NO_FAULT,
    Cell,
    Fault,
    Frames,
    SourceError,
    kill_under,
    run_cells,
    verdict_of,
)
from framehaul.techniques import Technique, techniques
from framehaul.techniques.clients import CLIENTS
from framehaul.techniques.registry import Database
from framehaul.techniques.streaming import copy_batches, insert_batches
from tests.conftest import WHOLE, lacks, one_for_each_driver, values_of

ROWS = {"postgres": 6_000, "clickhouse": 100_000}


@pytest.fixture(scope="module")
def cells(out: Path) -> pl.DataFrame:
    """The techniques that a run has tried, with every fault, as the notebook found them."""
    return store.read_cells(out / "results" / FAULTS_STUDY.results)


@pytest.fixture(scope="module")
def committed_cells() -> pl.DataFrame:
    """All techniques with every fault, as the committed run found them."""
    return store.read_cells(committed.RUN / FAULTS_STUDY.results)


@pytest.fixture(scope="module")
def broken() -> Iterator[BreakableServers]:
    with breakable() as found:
        yield found


def test_servers_that_do_not_come_back_are_told_of_and_nobody_waits_for_them() -> None:
    class Path:
        held, server_is_back = threading.Event(), threading.Event()

        def meet(self, _: Fault) -> None:
            self.held.set()
            self.server_is_back.wait()

    class Broken:
        def kill(self, *_: str) -> None:
            pass

        def start(self, *_: str) -> None:
            raise ServerError("PostgreSQL did not start")

    with pytest.raises(ServerError, match="PostgreSQL did not start"):
        kill_under(Broken(), [Path()], FAULTS[0])  # type: ignore[arg-type, list-item]


def named(database: Database, direction: str, name: str) -> Technique:
    return next(found for found in techniques(database) if found.direction == direction and found.name == name)


def verdicts(
    broken: BreakableServers, *chosen: Technique, faults: tuple[Fault, ...] = FAULTS
) -> dict[tuple[str, str], Cell]:
    return {(cell.technique, cell.fault): cell for cell in cells_of(broken, [*chosen], faults)}


def cells_of(broken: BreakableServers, chosen: list[Technique], faults: tuple[Fault, ...] = FAULTS) -> list[Cell]:
    cells: list[Cell] = []
    trials = Trials(cells.append)
    run_cells(broken, chosen, trials, threading.Event(), ROWS, faults)
    lacking = {f"{found.database} {found.direction} {found.name}" for found in chosen if lacks(found)}
    assert not trials.unavailable.keys() - {"disk full"} - lacking
    return cells


@WHOLE
def test_every_technique_met_every_fault(cells: pl.DataFrame, out: Path) -> None:
    tried = set(cells.select("database", "direction", "technique").unique().rows())
    asked = chosen_techniques(values_of(out, FAULTS_STUDY)["tried"])
    everything = {one.key for one in asked}
    assert {name for _, _, name in everything - tried} <= {t.name for t in techniques() if lacks(t)}
    faults = {fault.name for fault in FAULTS}
    assert set(cells["fault"]) >= faults - {"disk full"}
    assert len(cells) == len(cells.unique(["database", "direction", "technique", "fault"]))


def check_that_nothing_is_lost_without_a_word(cells: pl.DataFrame) -> None:
    silent = cells.filter(verdict="silent").select("origin", "fault", "technique").rows()
    # Called with Arrow that nobody has validated: bytes that are no text are a ClickHouse String all the same.
    silent = [one for one in silent if one != ("everyday", "source fails", "polars_ibis_insert")]
    # Published: what is no text becomes NULL when pandas escapes it for TSV, and NULL becomes empty text in ClickHouse.
    assert {(origin, fault) for origin, fault, _ in silent} <= {("published", "source fails")}
    assert all(name.startswith("pandas_") and name.endswith("_tsv") for _, _, name in silent)


def check_that_postgres_keeps_no_part_of_a_statement(cells: pl.DataFrame) -> None:
    beyond = cells.filter(pl.col("origin") == "beyond", database="postgres", direction="write")
    left = beyond.filter(~pl.col("verdict").is_in(["safe", "unaffected"]) & ~pl.col("rows").is_in(["none", "all"]))
    several = [found.name for found in techniques("postgres", "write") if found.connections > 1]
    assert left.filter(~pl.col("technique").is_in(several)).select("technique", "fault", "rows").rows() == []


def test_the_committed_run_lost_no_rows_without_a_word_and_kept_no_part(committed_cells: pl.DataFrame) -> None:
    check_that_nothing_is_lost_without_a_word(committed_cells)
    check_that_postgres_keeps_no_part_of_a_statement(committed_cells)


@WHOLE
def test_no_path_loses_rows_without_a_word_or_keeps_a_part(cells: pl.DataFrame) -> None:
    check_that_nothing_is_lost_without_a_word(cells)
    check_that_postgres_keeps_no_part_of_a_statement(cells)


def test_a_failure_leaves_no_more_than_the_contract_says(committed_cells: pl.DataFrame) -> None:
    cells = committed_cells
    partial = {(row["database"], row["technique"]) for row in cells.filter(verdict="partial").to_dicts()}
    contracts = {(found.database, found.name): found.contract for found in (*techniques(direction="write"), *STREAMS)}
    assert partial
    for key in partial:
        contract = contracts[key]
        assert contract is not None
        assert contract.after_failure != "nothing", key


def test_the_safe_ways_into_clickhouse_are_safe(committed_cells: pl.DataFrame) -> None:
    cells = committed_cells
    here = cells.filter(database="clickhouse", direction="write").filter(pl.col("fault") != "duplicate key")
    idle = here.filter(pl.col("fault").is_in([fault.name for fault in FAULTS if fault.idles]))
    assert set(idle["rows"]) <= {"none", "all"}
    here = here.join(idle, on=["technique", "fault"], how="anti")
    exchange = here.filter(technique="polars_http_client_arrow_exchange")
    assert set(exchange["verdict"]) == {"safe"}
    lost = here.filter(fault="answer lost, tried again")
    assert lost.filter(technique="polars_http_client_arrow_deduplicated")["verdict"].to_list() == ["safe"]
    assert lost.filter(technique="polars_http_client_arrow_stream")["verdict"].to_list() == ["doubled"]


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
    said = {
        ("polars_pgpq_copy_binary", "value refused"): "CheckViolation",
        ("polars_pgpq_copy_binary", "duplicate key"): "UniqueViolation",
        ("polars_pgpq_copy_binary", "time-out"): "statement timeout",
        ("polars_pgpq_copy_binary", "connection cut"): "OperationalError",
        ("polars_pgpq_copy_binary", "server killed"): "OperationalError",
        # A statement that commits by itself; of a transaction the COMMIT, which comes after that answer, was not sent.
        ("polars_psycopg_copy_text", "answer lost, tried again"): "then: UniqueViolation",
        ("polars_pgpq_copy_binary", "answer lost, tried again"): "then: no error",
        ("polars_http_client_arrow_stream", "value refused"): "VIOLATED_CONSTRAINT",
        ("polars_http_client_arrow_stream", "time-out"): "TIMEOUT_EXCEEDED",
        ("polars_http_client_arrow_stream", "answer lost, tried again"): "then: no error",
    }
    if broken.small_disk is not None:
        said["polars_pgpq_copy_binary", "disk full"] = "DiskFull"
        said["polars_http_client_arrow_stream", "disk full"] = "NOT_ENOUGH_SPACE"
    for key, words in said.items():
        assert words in found[key].detail, found[key]
    for cell in found.values():
        assert cell.verdict != "silent", cell
        if cell.direction == "read" and cell.fault != "idle, then dropped":
            opened_anew = cell.database == "clickhouse" and cell.fault == "idle, then reset"
            assert cell.verdict == ("unaffected" if opened_anew else "safe"), cell


def test_what_a_client_does_with_a_connection_that_was_given_up_is_told(broken: BreakableServers) -> None:
    idle = tuple(fault for fault in FAULTS if fault.idles and fault.direction == "read")
    every = verdicts(
        broken, named("postgres", "read", "polars_psycopg_copy_text"),
        named("clickhouse", "read", "polars_clickhouse_driver_native_columnar"),
        named("clickhouse", "read", "polars_urllib_csv"),
        named("clickhouse", "read", "polars_http_client_arrow_stream"), faults=idle,
    )  # fmt: skip
    assert {key: (cell.verdict, cell.usable) for key, cell in every.items()} == {
        ("polars_psycopg_copy_text", "idle, then reset"): ("safe", "no"),
        ("polars_psycopg_copy_text", "idle, then dropped"): ("hangs", "no"),
        ("polars_clickhouse_driver_native_columnar", "idle, then reset"): ("unaffected", ""),
        ("polars_clickhouse_driver_native_columnar", "idle, then dropped"): ("hangs", ""),
        ("polars_urllib_csv", "idle, then reset"): ("unaffected", ""),
        ("polars_urllib_csv", "idle, then dropped"): ("unaffected", ""),
        ("polars_http_client_arrow_stream", "idle, then reset"): ("unaffected", ""),
        ("polars_http_client_arrow_stream", "idle, then dropped"): ("hangs", "yes"),
    }
    assert all("1 new connection" in cell.detail for cell in every.values() if cell.rows == "all")


def test_a_client_that_forgets_rows_after_idling_is_found() -> None:
    [idle, *_] = [fault for fault in FAULTS if fault.idles]
    assert verdict_of(idle, "part", reported=False, hung=True) == "silent"
    assert verdict_of(idle, "none", reported=False) == "silent"
    assert verdict_of(idle, "doubled", reported=True, hung=True) == "doubled"
    assert verdict_of(idle, "none", reported=True, hung=True) == "hangs"
    assert verdict_of(idle, "none", reported=True) == "safe"
    assert verdict_of(idle, "all", reported=False) == "unaffected"


def test_a_path_that_says_nothing_is_found(broken: BreakableServers) -> None:
    honest = named("postgres", "write", "polars_psycopg_copy_binary")

    def deaf(connection: Any, table: Any, frame: Any) -> None:
        try:
            honest.function(connection, table, frame)
        except (psycopg.Error, RuntimeError):
            return

    reaching = tuple(fault for fault in FAULTS if fault.name in ("value refused", "connection cut"))
    found = verdicts(broken, replace(honest, function=deaf), faults=reaching)
    assert {fault: cell.verdict for (_, fault), cell in found.items()} == dict.fromkeys(
        ("value refused", "connection cut"), "silent"
    )


def test_acknowledged_rows_outlive_both_servers(broken: BreakableServers) -> None:
    assert survives_a_crash(broken) == {"postgres": (20_000, 20_000), "clickhouse": (20_000, 20_000)}


@pytest.mark.parametrize("database", ["postgres", "clickhouse"])
def test_a_held_load_accounts_for_every_row(broken: BreakableServers, database: Database) -> None:
    held = hold_load(broken, database, 2, threading.Event())
    assert held.rows_found == held.ids_found == held.rows_written > 0
    assert held.sum_found_is_sum_sent
    assert held.frames_read > 0
    assert held.frames_read_wrong == 0


def test_batches_that_are_sent_change_from_one_to_the_next() -> None:
    frames = Frames(6_000)
    sent = frames.good("batches")
    assert isinstance(sent, list)
    assert [batch.num_rows for batch in sent[:3]] == [BATCH_ROWS, 0, BATCH_ROWS]
    assert len({batch.schema.field("label").type for batch in sent}) >= 4
    assert len({batch.schema.field("note").type for batch in sent}) >= 4
    dictionaries = [batch.column("label").dictionary for batch in sent if batch.num_rows
                    and pa.types.is_dictionary(batch.schema.field("label").type)]  # fmt: skip
    assert len({str(one[0]) for one in dictionaries}) == len(dictionaries) > 1
    assert [batch.column("note").null_count for batch in sent] == [0] * 6 + [BATCH_ROWS]


@pytest.mark.parametrize("database", ["postgres", pytest.param("clickhouse", marks=pytest.mark.slow)])
def test_null_that_is_lost_in_the_last_batch_is_found(broken: BreakableServers, database: Database) -> None:
    honest = next(one for one in STREAMS if (one.database, one.direction) == (database, "write"))

    def filling(client: Any, table: Any, batches: Any, *rest: Any) -> None:
        notes = [pc.fill_null(batch.column("note").cast(pa.string()), "") for batch in batches]
        filled = [batch.set_column(3, "note", note) for batch, note in zip(batches, notes, strict=True)]
        honest.function(client, table, filled, *rest)

    found = [cells_of(broken, [one], (NO_FAULT,))[0] for one in (honest, replace(honest, function=filling))]
    assert [(cell.rows, cell.verdict) for cell in found] == [("all", "unaffected"), ("changed", "silent")]


def test_streamed_moves_leave_what_their_contract_says(broken: BreakableServers) -> None:
    faults = tuple(fault for fault in FAULTS if fault.name in ("source fails", "connection cut", "query fails"))
    found = verdicts(broken, *STREAMS, faults=faults)
    contracts = {one.name: one.contract for one in STREAMS}
    assert {name for name, _ in found} == set(contracts)
    for (name, _), cell in found.items():
        contract = contracts[name]
        part = contract is not None and contract.after_failure != "nothing"
        assert cell.verdict in (("safe", "partial") if part else ("safe",)), cell
    # More than one block was on its way: what is kept is to be seen.
    assert found["stream_into_clickhouse", "source fails"].verdict == "partial"


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "all"])
def test_no_error_tells_a_password(broken: BreakableServers, every: bool) -> None:
    # Those that take it in a URL, a connection string or a statement.
    chosen = [found for found in techniques() if found.driver in ("connectorx", "duckdb", "chdb", "adbc", "sqlalchemy")]
    chosen = [found for found in chosen if every or one_for_each_driver(found)]
    cut = tuple(fault for fault in FAULTS if fault.name in ("connection cut", "query fails", "value refused"))
    told = cells_of(broken, chosen, cut)
    both = broken.servers
    assert {cell.technique for cell in told} >= {"polars_connectorx_read", "polars_duckdb_scan", "polars_chdb_remote"}
    for password in (both.postgres.password, both.clickhouse.password):
        assert [cell.technique for cell in told if password in cell.detail] == []


def failing_batches(rows: int) -> Iterator[pa.RecordBatch]:
    """All batches but the last."""
    content = Frames(rows).content
    yield from content.slice(0, rows * 9 // 10).to_batches(max_chunksize=BLOCK_ROWS)
    raise SourceError("the source of the data failed")


def test_a_stream_whose_source_fails_raises_its_error(broken: BreakableServers) -> None:
    table = TABLE.renamed("framehaul_stream")
    for database, client in (("postgres", "psycopg"), ("clickhouse", "http_client")):
        server = broken.servers.of(database)
        insert: Any = {"postgres": copy_batches, "clickhouse": insert_batches}[database]
        tables = tables_of(server)
        tables.create(table)
        opening: Any = CLIENTS[client](server)
        with opening as connection, pytest.raises(SourceError):
            insert(connection, table, failing_batches(ROWS[database]))
        stored = len(tables.content(table))
        # ClickHouse keeps the blocks that it had finished.
        assert stored == 0 if database == "postgres" else stored < ROWS[database]


def test_other_accounts_can_read_nothing_of_it(broken: BreakableServers) -> None:
    home = broken.postgres_process.state_dir
    assert not [path.name for path in (home, *home.iterdir()) if path.stat().st_mode & 0o066]
