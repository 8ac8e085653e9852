"""The explorer: its controls set by a program instead of a reader, and its notebook without either."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest

from framehaul.errors import ResultsError
from framehaul.results import store
from framehaul.settings import PROJECT
from framehaul.studies.explorer.explorer import NONE, Explorer
from tests.conftest import REFERENCE, run_command
from tests.results.test_compare import STEADY, steady, write_run

REFERENCE_RUN = str(REFERENCE.relative_to(PROJECT))
OTHER_MACHINE = "machines/epyc-2-cores/2026-11-25"
WRITE_FAST = "pgpq COPY, then the primary key, in one transaction, from Polars"
READ_FAST = "http.client SELECT ... FORMAT Native, decoded by numba"


@pytest.fixture(autouse=True)
def no_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The explorer finds what is committed, whatever this environment is set to."""
    monkeypatch.delenv("FRAMEHAUL_OUT", raising=False)


@pytest.fixture
def explorer() -> Explorer:
    return Explorer(OTHER_MACHINE)


def test_it_finds_the_committed_runs_and_that_of_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(Explorer().run.options) == ["results", OTHER_MACHINE, REFERENCE_RUN]
    monkeypatch.setenv("FRAMEHAUL_OUT", str(write_run(tmp_path / "mine", one=STEADY)))
    found = Explorer()
    assert found.run.options[0] == found.run.value == "mine (OUT)"
    assert "ONE" in found.charts.value


def test_each_direction_and_size_has_its_chart_and_its_numbers() -> None:
    explorer, sizes = Explorer(REFERENCE_RUN), store.read(REFERENCE / "postgres_write.csv")["rows"].unique()
    most, fewest = sizes.max(), sizes.min()
    assert isinstance(most, int)
    assert isinstance(fewest, int)
    assert explorer.panel.label == f"PostgreSQL write, {most:,} rows, notebook 01"
    assert f"PostgreSQL write: {most:,} rows" in explorer.charts.value
    labels = dict(explorer.panel.options)
    assert f"PostgreSQL write, {fewest:,} rows, notebook 01" in labels  # of the first heat
    for label, key in [*labels.items()][::6]:
        explorer.panel.value = key
        assert label.partition(", notebook")[0].replace(", ", ": ", 1) in explorer.charts.value
        assert explorer.charts.value.count("<svg") == 1
    explorer.panel.value = labels[f"ClickHouse read, {most:,} rows, notebook 04"]
    assert READ_FAST in explorer.charts.value
    # Of another run, the same is looked at where it has it.
    explorer.run.value = OTHER_MACHINE
    assert explorer.panel.label == "ClickHouse read, 1,000,000 rows, notebook 04"
    assert READ_FAST in explorer.charts.value
    # Where it has not, what every run begins with.
    explorer.run.value = REFERENCE_RUN
    explorer.panel.value = labels[f"ClickHouse read, {most // 4:,} rows, notebook 04"]
    explorer.run.value = OTHER_MACHINE
    assert explorer.panel.label == "PostgreSQL write, 1,000,000 rows, notebook 01"
    assert WRITE_FAST in explorer.charts.value


def test_failed_and_skipped_techniques_and_a_run_without_other_studies(tmp_path: Path) -> None:
    changes = {
        "bad": {"status": "failed", "reason": "content differs <in> x"},
        "absent": {"status": "skipped", "reason": "no extension"},
    }
    nothing = (None, None, None)
    explorer = Explorer(str(write_run(tmp_path / "odd", changes, good=STEADY, bad=nothing, absent=nothing)))
    assert "FAILED: content differs &lt;in&gt; x" in explorer.charts.value
    assert "skipped (the table says why)" in explorer.charts.value
    assert "is not known" in explorer.versions().data
    only = Explorer(str(write_run(tmp_path / "only", {"bad": changes["bad"]}, bad=nothing)))
    assert "FAILED" in only.charts.value


def test_two_runs_are_compared(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", **steady(slow=STEADY))
    b = write_run(tmp_path / "b", **steady(slow=(2.0, 2.02, 1.98)))
    explorer = Explorer(str(a), str(b))
    assert "1 regression, 0 improvement, 12 no difference seen" in explorer.compared.value
    assert explorer.compared.value.count("<svg") == 1
    assert "Warning: A has no environment.json" in explorer.compared.value
    explorer.other.value = NONE
    assert "Choose a second run" in explorer.compared.value


def test_runs_that_share_nothing_say_so_and_name_no_path(explorer: Explorer, tmp_path: Path) -> None:
    explorer.path.value = str(write_run(tmp_path / "another", one=STEADY))
    assert (explorer.run.value, explorer.other.value) == ("another", NONE)
    explorer.other.value = OTHER_MACHINE
    assert "share no technique at the same size" in explorer.compared.value
    assert not [path for path in (PROJECT, tmp_path) if str(path) in explorer.compared.value]


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
    explorer.path.value = f"{OTHER_MACHINE}/postgres_write.csv"
    assert explorer.run.value == f"{OTHER_MACHINE}/postgres_write.csv"
    assert WRITE_FAST in explorer.charts.value
    twin = write_run(tmp_path / "other" / "typed", two=STEADY)
    explorer.path.value = str(twin)
    assert explorer.run.value == "typed'"
    assert "TWO" in explorer.charts.value


def test_a_run_that_cannot_be_read_is_said_and_another_one_can_be_chosen(explorer: Explorer, tmp_path: Path) -> None:
    out = write_run(tmp_path / "odd", one=STEADY)
    explorer.add(str(out))
    (out / "results" / "clickhouse_read.csv").write_text("a,b\n1,2\n")
    explorer.run.value = "odd"
    assert "other columns" in explorer.message.value
    assert (explorer.charts.value, "other columns" in explorer.page()) == ("", True)
    explorer.run.value = OTHER_MACHINE
    write_run(tmp_path / "odd", {"one": {"family": "telepathy"}}, one=STEADY)
    explorer.run.value = "odd"
    assert "does not know: telepathy" in explorer.message.value
    explorer.run.value = OTHER_MACHINE
    assert explorer.message.value == ""
    with pytest.raises(ResultsError, match="does not exist"):
        Explorer(str(tmp_path / "nowhere"))


def test_where_no_control_can_be_shown_there_is_the_view_to_start_from(explorer: Explorer) -> None:
    bundle = explorer._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert WRITE_FAST in bundle["text/html"]


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
