"""The pages of docs/how_to: each snippet runs as it stands on its page, against the embedded servers."""

import datetime as dt
import inspect
import re
from pathlib import Path

import polars as pl
import pytest

import framehaul
from framehaul.servers import Servers
from framehaul.servers.tables import ClickHouseTables, PostgresTables, tables_of
from framehaul.settings import PROJECT
from tests.conftest import url_of

POSTGRES = "postgresql://me@localhost/analytics"
CLICKHOUSE = re.compile(r"https?://me:secret@localhost:\d+/analytics")


@pytest.mark.parametrize("page", sorted((PROJECT / "docs" / "how_to").glob("*.md")), ids=lambda page: page.stem)
def test_a_snippet_runs_as_it_stands_on_its_page(
    page: Path, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = page.read_text("utf8")
    assert len(text.splitlines()) <= 45  # a screen
    (statement,) = re.findall("```sql\n(.*?)```", text, re.DOTALL)
    snippets = re.findall("```python\n(.*?)```", text, re.DOTALL)
    assert text.split("\n\n")[1].startswith("```python")  # the snippet comes first
    monkeypatch.chdir(tmp_path)
    rows = pl.DataFrame({"day": [dt.date(2026, 1, 1)], "source": [1], "name": ["a"], "value": [0.5]})
    rows.write_parquet("rows.parquet")
    (table,) = re.findall(r"CREATE TABLE (\w+)", statement)
    tables = tables_of(servers.clickhouse if "ENGINE" in statement else servers.postgres)
    tables.run(statement)
    try:
        names: dict[str, object] = {}
        for snippet in snippets:
            code = CLICKHOUSE.sub(url_of(servers.clickhouse), snippet.replace(POSTGRES, servers.postgres.dsn()))
            exec(compile(code, str(page), "exec"), names)
        if "write(" in snippets[0]:
            assert tables.run(f"SELECT count(*) FROM {table}") not in (b"0\n", [(0,)])
    finally:
        tables.run(f"DROP TABLE {table}")


def test_the_page_of_the_functions_has_their_signatures() -> None:
    page = (PROJECT / "docs" / "api.md").read_text("utf8")
    for name in framehaul.__all__:
        signature = inspect.signature(getattr(framehaul, name))
        bare = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
        text = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
        assert f"framehaul.{name}{text}\n" in page.replace('"', "'").replace("1_000_000", "1000000")


def test_the_first_lines_of_the_readme_run_as_they_stand(servers: Servers, capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = re.findall("```python\n(.*?)```", (PROJECT / "README.md").read_text("utf8"), re.DOTALL)
    assert len(snippet.splitlines()) <= 10
    code = re.sub(r"postgresql://[^\"]*", servers.postgres.dsn(), snippet)
    code = CLICKHOUSE.sub(url_of(servers.clickhouse), code)
    postgres, clickhouse = PostgresTables(servers.postgres), ClickHouseTables(servers.clickhouse)
    postgres.run("CREATE TABLE metrics (day date, value double precision)")
    clickhouse.run("CREATE TABLE metrics (day Date, value Float64) ENGINE = MergeTree ORDER BY day")
    try:
        postgres.run("INSERT INTO metrics VALUES ('2026-11-02', 1.5), ('2026-10-31', 3)")
        exec(compile(code, "README.md", "exec"), {})
        assert postgres.run("SELECT value FROM metrics_doubled") == [(3.0,)]
        assert clickhouse.run("SELECT day, value FROM metrics") == b"2026-11-02\t1.5\n"
    finally:
        postgres.run("DROP TABLE IF EXISTS metrics, metrics_doubled")
        clickhouse.run("DROP TABLE metrics")
    assert "polars_pgpq_copy_binary" in capsys.readouterr().out
