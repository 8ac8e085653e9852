"""The explorer: its controls set by a program instead of a reader, and its notebook without either."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from framehaul.errors import ResultsError
from framehaul.reporting.tables import ratio_text
from framehaul.results import statistics
from framehaul.settings import PROJECT
from framehaul.studies.explorer.explorer import NONE, Explorer
from framehaul.studies.registry import read_run
from framehaul.techniques import techniques
from framehaul.techniques.source import source
from tests.conftest import run_command
from tests.results.test_compare import STEADY, steady, write_run

MILLION = "machines/epyc-2-cores/2026-11-21"
WRITE_FAST = "pgpq COPY, then the primary key, in one transaction, from Polars"
READ_FAST = "http.client SELECT ... FORMAT Native, decoded by numba"


def text_of(content: str) -> str:
    """What a reader sees of HTML."""
    return re.sub(r"\s+", " ", re.sub(r"<style>.*?</style>|<[^>]*>", " ", content, flags=re.DOTALL))


@pytest.fixture(autouse=True)
def no_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The explorer finds what is committed, whatever this environment is set to."""
    monkeypatch.delenv("FRAMEHAUL_OUT", raising=False)


@pytest.fixture
def explorer() -> Explorer:
    return Explorer(MILLION)


def options(control: Any) -> set[Any]:
    return {option[1] if isinstance(option, tuple) else option for option in control.options}


def test_it_finds_the_committed_runs_and_that_of_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(Explorer().run.options) == ["results", MILLION, "machines/epyc-2-cores/2026-11-23"]
    monkeypatch.setenv("FRAMEHAUL_OUT", str(write_run(tmp_path / "mine", one=STEADY)))
    found = Explorer()
    assert found.run.options[0] == found.run.value == "mine (OUT)"
    assert "ONE" in found.charts.value


def test_every_filter_leaves_what_it_names(explorer: Explorer) -> None:
    assert {name: options(control) for name, control in explorer.filters.items() if name != "family"} == {
        "database": {"postgres", "clickhouse"}, "direction": {"write", "read"}, "frame": {"pandas", "polars", "none"},
        "origin": {"published", "beyond", "baseline"}, "rows": {1_000_000},
    }  # fmt: skip
    assert WRITE_FAST in explorer.charts.value
    assert READ_FAST not in explorer.charts.value
    explorer.filters["database"].value = ["clickhouse"]
    explorer.filters["direction"].value = ["read"]
    assert WRITE_FAST not in explorer.charts.value
    assert READ_FAST in explorer.charts.value
    explorer.filters["origin"].value = ["published"]
    assert READ_FAST not in explorer.charts.value
    explorer.filters["family"].value = ["http_csv"]
    explorer.filters["frame"].value = ["pandas"]
    left = {label for label, _ in explorer.technique.options}
    assert left == {
        technique.label for technique in techniques("clickhouse", "read")
        if (technique.origin, technique.family, technique.frame) == ("published", "http_csv", "pandas")
    }  # fmt: skip
    assert all(html.escape(label) in explorer.charts.value for label in left)


def test_a_chart_for_each_direction_and_size() -> None:
    explorer = Explorer("results")
    assert explorer.filters["rows"].value == (100_000,)
    assert explorer.charts.value.count("<svg") == 1
    explorer.filters["rows"].value = [3_000, 12_500, 100_000]
    assert "PostgreSQL write: 12,500 rows" in explorer.charts.value  # of those that fell behind in the race
    assert "PostgreSQL write: 3,000 rows" in explorer.charts.value  # of the study of sizes
    assert explorer.charts.value.count("<svg") == 3
    explorer.filters["direction"].value = ["write", "read"]
    assert "PostgreSQL read: 3,000 rows" in explorer.charts.value


def test_nothing_that_fits_is_said_with_the_remedy(explorer: Explorer) -> None:
    explorer.filters["family"].value = ["http_csv"]
    assert "Nothing in this run fits (database: PostgreSQL; direction: write; family: CSV over HTTP)" in text_of(
        explorer.message.value
    )
    assert "<svg" not in explorer.charts.value
    for tab in (1, 2):
        explorer.tabs.selected_index = tab
    assert explorer.technique.value is None
    assert "Nothing in this run fits" in explorer.page()
    explorer.filters["family"].value = []
    assert "family: none" in explorer.message.value
    explorer.filters["family"].value = ["copy_binary"]
    assert explorer.message.value == ""
    assert explorer.technique.value is not None


def test_a_technique_is_shown_with_its_bar_its_numbers_and_its_code(explorer: Explorer) -> None:
    explorer.tabs.selected_index = 1
    (chosen,) = [key for label, key in explorer.technique.options if label == f"{WRITE_FAST} (bulk load)"]
    explorer.technique.value = chosen
    code = text_of(explorer.code.value).replace(" ", "")
    (technique,) = [found for found in techniques("postgres", "write") if found.label == WRITE_FAST]
    shown = source("postgres", "write", {technique.name: technique.driver})
    for line in shown.text.splitlines():
        assert line.replace(" ", "") in html.unescape(code), line
    assert "ADD CONSTRAINT" in shown.code
    assert 'class="k">def' in explorer.code.value
    assert technique.function.__module__ in code
    detail = text_of(explorer.detail.value)
    (row,) = statistics.summary(read_run(PROJECT / MILLION).passes).filter(label=WRITE_FAST).to_dicts()
    assert f"median rows/s {row['median_rows_per_s']:,.0f} " in detail
    assert ratio_text(row) in detail
    assert "pgpq COPY, then the primary key" in detail
    # Beside the fastest, the fastest published one, and the fastest baseline.
    assert explorer.detail.value.count("<svg") == 1
    assert "asyncpg COPY FROM STDIN" in detail
    assert "baseline: INSERT ... SELECT" in detail


def test_the_chosen_technique_stays_where_the_filters_leave_it(explorer: Explorer) -> None:
    (chosen,) = [key for label, key in explorer.technique.options if label == f"{WRITE_FAST} (bulk load)"]
    explorer.technique.value = chosen
    explorer.filters["frame"].value = ["polars"]
    assert explorer.technique.value == chosen
    explorer.filters["frame"].value = ["pandas"]
    assert explorer.technique.value != chosen


def test_failed_and_skipped_techniques_and_a_run_without_other_studies(tmp_path: Path) -> None:
    changes = {
        "bad": {"status": "failed", "reason": "content differs <in> x"},
        "absent": {"status": "skipped", "reason": "no extension"},
    }
    nothing = (None, None, None)
    explorer = Explorer(str(write_run(tmp_path / "odd", changes, good=STEADY, bad=nothing, absent=nothing)))
    assert "FAILED: content differs &lt;in&gt; x" in explorer.charts.value
    assert "skipped (the table says why)" in explorer.charts.value
    explorer.tabs.selected_index = 1
    for label, key in explorer.technique.options:
        explorer.technique.value = key
        assert f"This checkout has no technique {label.lower()}" in explorer.code.value
        assert ("content differs &lt;in&gt; x" in explorer.detail.value) == (label == "BAD")
    assert "is not known" in explorer.versions().data
    only = Explorer(str(write_run(tmp_path / "only", {"bad": changes["bad"]}, bad=nothing)))
    assert "FAILED" in only.charts.value
    only.tabs.selected_index = 1
    assert "content differs" in only.detail.value


def test_two_runs_are_compared_under_the_same_filters(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", **steady(slow=STEADY))
    b = write_run(tmp_path / "b", {"slow": {"frame": "pandas"}}, **steady(slow=(2.0, 2.02, 1.98)))
    write_run(tmp_path / "a", {"slow": {"frame": "pandas"}}, **steady(slow=STEADY))
    explorer = Explorer(str(a), str(b))
    explorer.tabs.selected_index = 2
    assert "1 regression, 0 improvement, 12 no difference seen" in explorer.compared.value
    assert explorer.compared.value.count("<svg") == 1
    assert "Warning: A has no environment.json" in explorer.compared.value
    explorer.by.value = "relative"
    assert "ratios are relative to it" in explorer.compared.value
    explorer.filters["frame"].value = ["polars"]
    assert "12 in all: 0 regression" in explorer.compared.value
    assert "one in twenty at most marks any" in explorer.page()
    explorer.other.value = NONE
    assert "Choose a second run" in explorer.compared.value


def test_runs_that_share_nothing_say_so_and_name_no_path(explorer: Explorer) -> None:
    explorer.tabs.selected_index = 2
    explorer.other.value = "results"
    assert "share no technique at the same size" in explorer.compared.value
    assert str(PROJECT) not in explorer.compared.value


def test_a_path_that_is_typed_in_is_added_and_shown_by_its_name(explorer: Explorer, tmp_path: Path) -> None:
    out = write_run(tmp_path / "typed", one=STEADY)
    explorer.path.value = str(out)
    assert explorer.run.value == "typed"
    assert "typed" in explorer.other.options
    assert "ONE" in explorer.charts.value
    assert str(tmp_path) not in explorer.page()
    explorer.path.value = str(tmp_path / "nowhere")
    assert "nowhere does not exist" in explorer.message.value
    assert explorer.run.value == "typed"
    explorer.path.value = "machines/epyc-2-cores/2026-11-21/postgres_write.csv"
    assert explorer.run.value == "machines/epyc-2-cores/2026-11-21/postgres_write.csv"
    assert WRITE_FAST in explorer.charts.value
    twin = write_run(tmp_path / "other" / "typed", two=STEADY)
    explorer.path.value = str(twin)
    assert explorer.run.value == "typed'"
    assert "TWO" in explorer.charts.value


def test_what_was_all_of_a_run_is_all_of_the_next(explorer: Explorer, tmp_path: Path) -> None:
    explorer.path.value = str(write_run(tmp_path / "small", one=STEADY))
    assert explorer.filters["family"].value == ("http_csv",)
    explorer.run.value = MILLION
    assert len(explorer.filters["family"].value) == len(explorer.filters["family"].options) > 5
    explorer.filters["origin"].value = ["beyond"]
    explorer.run.value = "results"
    assert explorer.filters["origin"].value == ("beyond",)


def test_a_run_that_cannot_be_read_is_said_and_another_one_can_be_chosen(explorer: Explorer, tmp_path: Path) -> None:
    out = write_run(tmp_path / "odd", one=STEADY)
    explorer.add(str(out))
    (out / "results" / "clickhouse_read.csv").write_text("a,b\n1,2\n")
    explorer.run.value = "odd"
    assert "other columns" in explorer.message.value
    assert (explorer.charts.value, "other columns" in explorer.page()) == ("", True)
    explorer.run.value = MILLION
    write_run(tmp_path / "odd", {"one": {"family": "telepathy"}}, one=STEADY)
    explorer.run.value = "odd"
    assert "does not know: telepathy" in explorer.message.value
    explorer.filters["origin"].value = ["beyond"]
    explorer.tabs.selected_index = 2
    explorer.run.value = MILLION
    assert explorer.message.value == ""
    with pytest.raises(ResultsError, match="does not exist"):
        Explorer(str(tmp_path / "nowhere"))


def test_changing_a_filter_back_draws_nothing_again(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    first = explorer.charts.value
    explorer.filters["direction"].value = ["read"]

    def never(_: object) -> None:
        raise AssertionError("drawn again")

    monkeypatch.setattr("framehaul.reporting.charts.bars", never)
    explorer.filters["direction"].value = ["write"]
    assert explorer.charts.value == first


def test_where_no_control_can_be_shown_there_is_the_view_to_start_from(explorer: Explorer) -> None:
    bundle = explorer._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert WRITE_FAST in bundle["text/html"]
    assert 'class="k">def' in bundle["text/html"]


def test_the_notebook_runs_on_demand_without_a_server(tmp_path: Path) -> None:
    out = write_run(tmp_path / "out", **steady())
    done = run_command("run", "--notebooks=00", f"--out={out}", state_dir=tmp_path / "state")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "state").exists()
    page, notebook = ((out / "reports" / f"00_explorer.{kind}").read_text() for kind in ("html", "ipynb"))
    for content in (page, notebook):
        assert "STEADY_11" in content
        assert "widget-view+json" not in content
        assert str(tmp_path) not in content
        assert str(PROJECT) not in content
    assert "Run: out (OUT)" in page
    assert 'href="00_explorer.html"' in (out / "reports" / "index.html").read_text()
    assert "widgets" not in json.loads(notebook)["metadata"]
    nbformat.validate(nbformat.read(out / "reports" / "00_explorer.ipynb", as_version=4))
