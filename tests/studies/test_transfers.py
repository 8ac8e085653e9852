"""A direction's run, and what a column of another type costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from framehaul.reporting.versions import size_text
from framehaul.servers import Servers
from framehaul.servers.tables import ClickHouseTables, PostgresTables
from framehaul.settings import Settings, load_settings
from framehaul.studies.transfers import columns, study
from framehaul.techniques import techniques
from framehaul.techniques.registry import Database, Direction

CHOSEN = ("polars_psycopg_copy_text", "polars_psycopg_copy_text_typed", "pandas_psycopg_copy_text")


@pytest.fixture
def few(settings: Settings, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Servers:
    """A run of few techniques, on the tests' servers, that leaves its results elsewhere."""
    known = {one.name: one for one in techniques("postgres", "read")}
    monkeypatch.setattr(study, "techniques", lambda *_: [known[name] for name in CHOSEN])
    monkeypatch.setenv("FRAMEHAUL_STATE_DIR", str(settings.state_dir))
    monkeypatch.setenv("FRAMEHAUL_OUT", str(tmp_path))
    return servers


def rounds_of(found: study.Transfers) -> dict[str, int]:
    return dict(found.passes.group_by("technique").len().rows())


def test_without_a_race_nobody_falls_behind(few: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    assert few
    monkeypatch.setattr(study, "leaders", lambda *_: [])
    found = study.run("postgres", "read", rows=500, passes=2, warmup=0, seed=1)
    assert rounds_of(found) == dict.fromkeys(CHOSEN, 2)


@pytest.mark.parametrize(
    ("database", "direction"),
    [
        ("clickhouse", "write"),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (("postgres", "read"), ("postgres", "write"), ("clickhouse", "read"))
        ),
    ],
)  # fmt: skip
def test_what_a_column_costs_is_told_of_transfers_that_are_right(
    few: Servers, database: Database, direction: Direction
) -> None:
    found = columns.cost(database, direction, rows=40, passes=2, warmup=0, seed=3)
    assert set(found.passes["status"]) == {"ok"}
    assert set(found.passes["added"]) == {*columns.ADDED}
    transfers = len(columns.ADDED) - 1 + len(columns.CARRIERS[database, direction])
    assert len(found.passes) == 2 * transfers
    said = found.reading().data
    assert str(found.ratios()[found.carrier, "a list of integers more"]) in said
    assert f"this path {direction}s" in said
    assert ("compiled loops" in said) == (len(columns.CARRIERS[database, direction]) > 1)
    assert len(found.table().cells()) == transfers - 1
    kept = columns.load(database, direction, load_settings().out / "results")
    assert kept.passes.equals(found.passes)
    assert kept.rows == 40
    assert not [name for name in tables_in(few, database) if name.startswith("framehaul_nested")]


def tables_in(servers: Servers, database: Database) -> list[str]:
    if database == "postgres":
        return [row[0] for row in PostgresTables(servers.postgres).run("SELECT tablename FROM pg_tables")]
    return [row[0] for row in ClickHouseTables(servers.clickhouse).rows("SELECT name FROM system.tables")]


def test_another_table_is_another_run(few: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {one.name: one for one in techniques("postgres", "read")}
    chosen = [known["polars_adbc_fetch"], known["polars_psycopg_copy_text_typed"]]
    monkeypatch.setattr(study, "techniques", lambda *_: chosen)
    assert few
    found = study.run("postgres", "read", rows=30, passes=1, warmup=0, seed=1, table="nested")
    outcomes = dict(found.passes.select("technique", "status").iter_rows())
    assert outcomes == {"polars_adbc_fetch": "ok", "polars_psycopg_copy_text_typed": "failed"}
    assert "numbers is bigint[], which is not parsed" in " ".join(found.passes["reason"].drop_nulls())
    assert found.run_metadata["table"] == "nested"
    assert "of the table 'nested'" in size_text(found.run_metadata)
    with pytest.raises(ValueError, match="TABLE='other': choose from standard, nested"):
        study.run("postgres", "read", rows=30, passes=1, warmup=0, seed=1, table="other")
