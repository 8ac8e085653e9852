"""The pages of docs/how_to: each snippet runs as it stands on its page, against the embedded servers."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path

import polars as pl
import psycopg
import pytest

from framehaul.servers import Servers
from framehaul.settings import PROJECT
from framehaul.techniques.clients import open_http_client

PAGES = sorted((PROJECT / "docs" / "how_to").glob("*.md"))
LONGEST = 45
"""The lines of a page: a screen."""
POSTGRES = "postgresql://me@localhost/analytics"
CLICKHOUSE = re.compile(r"https?://me:secret@localhost:\d+/analytics")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_snippet_runs_as_it_stands_on_its_page(
    page: Path, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = page.read_text("utf8")
    assert len(text.splitlines()) <= LONGEST
    (statement,) = re.findall("```sql\n(.*?)```", text, re.DOTALL)
    snippets = re.findall("```python\n(.*?)```", text, re.DOTALL)
    assert text.split("\n\n")[1].startswith("```python")  # the snippet comes first
    monkeypatch.chdir(tmp_path)
    pl.DataFrame({"day": [dt.date(2026, 1, 1)], "source": [1], "name": ["a"], "value": [0.5]}).write_parquet(
        "rows.parquet"
    )
    table = re.search(r"CREATE TABLE (\w+)", statement)
    assert table
    server = servers.clickhouse
    address = f"http://{server.user}:{server.password}@{server.host}:{server.http_port}/{server.database}"
    with (
        psycopg.connect(servers.postgres.dsn(), autocommit=True) as postgres,
        open_http_client(server) as clickhouse,
    ):

        def run(query: str) -> object:
            if "ENGINE" in statement:
                return int(clickhouse.post(query).read() or 0)
            return postgres.execute(query.encode())

        run(statement)
        try:
            names: dict[str, object] = {}
            for snippet in snippets:
                code = CLICKHOUSE.sub(address, snippet.replace(POSTGRES, servers.postgres.dsn()))
                exec(compile(code, str(page), "exec"), names)
            if "write(" in snippets[0]:
                counted = f"SELECT count(*) FROM {table[1]}"
                found = (
                    clickhouse.post(counted).read()
                    if "ENGINE" in statement
                    else postgres.execute(counted.encode()).fetchone()
                )
                assert found not in (b"0\n", (0,))
        finally:
            run(f"DROP TABLE {table[1]}")


def test_the_first_lines_of_the_readme_run_as_they_stand(servers: Servers, capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = re.findall("```python\n(.*?)```", (PROJECT / "README.md").read_text("utf8"), re.DOTALL)
    assert len(snippet.splitlines()) <= 10
    server = servers.clickhouse
    address = f"http://{server.user}:{server.password}@{server.host}:{server.http_port}/{server.database}"
    code = CLICKHOUSE.sub(address, re.sub(r"postgresql://[^\"]*", servers.postgres.dsn(), snippet))
    columns = "day date, value double precision"
    with (
        psycopg.connect(servers.postgres.dsn(), autocommit=True) as postgres,
        open_http_client(server) as clickhouse,
    ):
        postgres.execute(f"CREATE TABLE metrics ({columns})".encode())
        clickhouse.post("CREATE TABLE metrics (day Date, value Float64) ENGINE = MergeTree ORDER BY day").read()
        try:
            postgres.execute("INSERT INTO metrics VALUES ('2026-11-02', 1.5), ('2026-10-31', 3)")
            exec(compile(code, "README.md", "exec"), {})
            assert postgres.execute("SELECT value FROM metrics_doubled").fetchall() == [(3.0,)]
            assert clickhouse.post("SELECT day, value FROM metrics").read() == b"2026-11-02\t1.5\n"
        finally:
            postgres.execute("DROP TABLE IF EXISTS metrics, metrics_doubled")
            clickhouse.post("DROP TABLE metrics").read()
    assert "polars_pgpq_copy_binary" in capsys.readouterr().out
