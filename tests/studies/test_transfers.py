"""The run of one database and direction."""

import pytest

from framehaul.studies import transfers
from framehaul.studies.everyday_api import changes
from framehaul.techniques.registry import named

CHOSEN = ("polars_psycopg_copy_text", "polars_psycopg_copy_text_typed", "pandas_psycopg_copy_text")


@pytest.mark.usefixtures("servers", "own_out")
def test_without_a_race_nobody_falls_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "techniques", lambda *_: [named("postgres", "read", name) for name in CHOSEN])
    monkeypatch.setattr(transfers, "leaders", lambda *_: [])
    found = transfers.run("postgres", "read", rows=500, rounds=2, warmup=0, seed=1)
    assert sorted(found["technique"]) == sorted(CHOSEN * 2)


@pytest.mark.usefixtures("servers", "own_out")
def test_a_usual_call_moves_few_rows_and_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("pandas_sqlalchemy_read_sql_query", "pandas_adbc_read_sql", "pandas_framehaul_read", CHOSEN[0])
    monkeypatch.setattr(transfers, "techniques", lambda *_: [named("postgres", "read", name) for name in names])
    for name, value in ("LEAST_ROWS", 1), ("in_time", lambda *_, **__: []), ("leaders", lambda left, *_: left[-2:]):
        monkeypatch.setattr(transfers, name, value)
    gains = changes(transfers.run("postgres", "read", rows=500, rounds=4, warmup=0, seed=1, race=1))
    assert gains.select("rows", "gain_rounds", "gain_of_framehaul_rounds").rows() == [(10, 3, 3), (500, 3, 3)]
