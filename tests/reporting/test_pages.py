"""Charts, findings and pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import polars as pl
import pytest

from framehaul.bench import statistics
from framehaul.bench.ratios import LEAST_ROUNDS
from framehaul.errors import ReportError
from framehaul.reporting import charts, index, pages
from framehaul.reporting.tables import dtypes_text, of_techniques, thousands
from framehaul.studies.summary import published
from framehaul.studies.transfers import findings
from framehaul.studies.transfers.study import read_all
from framehaul.techniques import techniques
from framehaul.techniques.registry import named
from tests.bench.test_store import passes, result
from tests.conftest import REFERENCE


def test_a_failed_or_skipped_technique_has_no_bar_but_a_line(tmp_path: Path) -> None:
    frame = passes(
        result("good"),
        result("bad", seconds=None, status="failed", reason="content differs in metric_1"),
        result("absent", seconds=None, status="skipped", reason="no extension"),
        directory=tmp_path,
    )
    summary = statistics.summary(frame)
    svg, again = (charts.save(charts.bars(summary), tmp_path / name) for name in ("x.svg", "y.svg"))
    assert svg == again
    assert "FAILED: content differs in metric_1" in svg
    assert "skipped (the table says why)" in svg
    assert len(charts.bars(summary).axes[0].patches) == 1
    table = of_techniques(summary)._repr_html_()
    for status, reason in (("failed", "content differs in metric_1"), ("skipped", "no extension")):
        assert re.search(rf'<tr class="{status}">.*{status}.*{reason}</td>', table)


def test_at_a_glance_has_a_mark_for_every_technique_with_a_time(tmp_path: Path) -> None:
    write: dict[str, Any] = {"database": "postgres", "direction": "write"}
    frame = passes(
        result("old"), result("new", seconds=0.3, origin="beyond"), result("alone", seconds=0.1, origin="baseline"),
        result("absent", seconds=None, status="skipped", reason="no extension"),
        result("index_last", seconds=0.2, origin="beyond", contract="bulk_load", **write),
        directory=tmp_path,
    )  # fmt: skip
    figure = charts.at_a_glance(statistics.summary(frame))
    assert sum(np.asarray(marks.get_offsets()).shape[0] for marks in figure.axes[0].collections) == 4


def test_published_figures_join_by_label_not_by_position(tmp_path: Path) -> None:
    label = "urllib HTTP SELECT ... FORMAT CSV -> Polars dataframe"
    frame = passes(result("other", label="not published"), result("polars_urllib_csv", label=label), directory=tmp_path)
    joined = published.beside(statistics.summary(frame))
    assert dict(joined.select("technique", "published_rows_per_s").rows()) == {
        "other": None,
        "polars_urllib_csv": 1283592.69,
    }


def test_numbers_and_dtypes_read_as_a_reader_says_them() -> None:
    assert [thousands(value) for value in (950, 42_300, 1_350_000, 2_000_000)] == ["950", "42k", "1.35M", "2M"]
    assert dtypes_text("a:Int64;b:String;c:Int64") == "a, c: Int64; b: String"


def page_of(path: Path, *cells: Any) -> str:
    """What a notebook of these cells is exported as, at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=list(cells)), path.with_suffix(".ipynb"))
    pages.export(path.with_suffix(".ipynb"), path)
    return path.read_text("utf8")


def test_a_page_that_would_load_from_the_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"example\.org"):
        page_of(tmp_path / "x.html", markdown('# x\n<img src="https://example.org/a.png">'))
    assert not (tmp_path / "x.html").exists()


def markdown(text: str) -> Any:
    return nbformat.v4.new_markdown_cell(text)


def printed(text: str) -> Any:
    return nbformat.v4.new_code_cell("run()", outputs=[nbformat.v4.new_output("stream", name="stdout", text=text)])


def entry(name: str, link: str, title: str = "") -> index.Entry:
    return index.Entry(name, title or f"{name}: what it is", f"What is {name}?", link)


def links_of(page: Path) -> dict[str, str]:
    """Where a page says to lead, by `prev`, `next` and the empty name of the index; its head and foot say the same."""
    head, foot = re.findall(r'<nav [^>]*class="pages"[^>]*>(.*?)</nav>', page.read_text("utf8"), re.DOTALL)
    assert head == foot
    return dict(re.findall(r'<a (?:rel="(\w+)" )?href="([^"]+)"', head))


def test_anchors_are_unique_and_the_contents_lead_to_each_heading(tmp_path: Path) -> None:
    text = '# Title\n## Results, `a` & "b"\n### Run\n## [Run](https://example.org)\n### Run-2\n#### Detail\n## Run'
    cells = markdown(text), markdown("## Run")
    page = page_of(tmp_path / "x.html", *cells)
    ids = re.findall(r'<h\d id="([^"]+)"', page)
    assert len(set(ids)) == len(ids) == 8
    (contents,) = re.findall(r'<nav class="contents">.*?</nav>', page, re.DOTALL)
    assert re.findall(r'href="#([^"]+)"', contents) == ids[1:5] + ids[6:]
    assert "example.org" not in contents
    assert [one for one in ids if one.startswith("Run")] == ["Run", "Run-2", "Run-2-2", "Run-3", "Run-4"]
    assert set(re.findall(r'class="anchor-link" href="#([^"]+)"', page)) == set(ids)
    assert page_of(tmp_path / "again.html", *cells) == page


def test_pages_lead_to_those_beside_them_and_no_link_dangles(tmp_path: Path) -> None:
    for name in ("01_a", "02_b", "03_c", "failed/02_b", "failed/03_c", "99_gone"):
        page_of(tmp_path / f"{name}.html", markdown(f"# {name}"))
    assert links_of(tmp_path / "01_a.html") == {}
    entries = [
        entry("01_a", "01_a.html"), entry("02_b", "failed/02_b.html", r"A \\1 <b>: c"), entry("03_c", "03_c.html"),
        index.Entry("04_coming", "D: e", "Is <a> fast?", "", "too & slow"),
    ]  # fmt: skip
    index.write(tmp_path, entries, {"runs": {}}, "", {})
    said = (tmp_path / "index.html").read_text("utf8")
    assert "<h3>D: e</h3>\n<p>Is &lt;a&gt; fast?</p>" in said
    assert '<p class="problem">too &amp; slow</p>' in said
    assert links_of(tmp_path / "01_a.html") == {"": "index.html", "next": "failed/02_b.html"}
    assert r">A \\1 &lt;b&gt; →</a>" in (tmp_path / "01_a.html").read_text("utf8")
    failed = {"": "../index.html", "prev": "../01_a.html", "next": "../03_c.html"}
    assert links_of(tmp_path / "failed" / "02_b.html") == failed
    assert links_of(tmp_path / "03_c.html") == {"": "index.html", "prev": "failed/02_b.html"}
    assert links_of(tmp_path / "99_gone.html") == {"": "index.html"}

    # It runs well now: its page takes another place, and all follow, those of earlier runs too.
    (tmp_path / "failed" / "02_b.html").replace(tmp_path / "02_b.html")
    index.write(tmp_path, [entries[0], entry("02_b", "02_b.html"), entries[2]], {"runs": {}}, "", {})
    every = [*tmp_path.glob("*.html"), *tmp_path.glob("failed/*.html")]
    assert len(every) == 6
    for page in every:
        for link in re.findall(r'href="([^"#]+)"', page.read_text("utf8")):
            assert (page.parent / link).is_file(), (page, link)


def test_a_page_that_an_interrupted_run_cut_off_keeps_nobody(tmp_path: Path) -> None:
    cut = tmp_path / "01_a.html"
    cut.write_bytes('<nav class="pages"></nav>é'.encode()[:-1])
    index.write(tmp_path, [entry("01_a", "01_a.html")], {"runs": {}}, "", {})
    assert b'<a href="index.html">' in cut.read_bytes()


def test_a_bar_that_reached_its_end_is_not_shown_and_one_that_did_not_is(tmp_path: Path) -> None:
    page = page_of(
        tmp_path / "x.html", markdown("# x"), printed("\r 50%|##| 1/2\r100%|####| 2/2 [00:09]\n"),
        printed("\r 10%|#| 1/10 [00:02]\r 30%|#| 3/10 [00:05]"), printed("100%|####| 2/2\nnoticed\n"),
    )  # fmt: skip
    assert "2/2 [00:09]" not in page
    assert "3/10 [00:05]" in page
    assert "1/10" not in page
    assert "noticed" in page
    assert page.count('<details class="code">') == 3


def test_the_reference_run_holds_all_techniques_and_rounds_enough_for_intervals() -> None:
    frame = read_all(REFERENCE)
    assert frame.filter(origin="published").n_unique(["database", "direction", "label"]) == 56
    assert set(frame["status"]) == {"ok"}
    assert {named(*one) for one in frame.select(statistics.NAMES).unique().rows()} == {*techniques()}
    chosen = frame.filter(pl.col("origin") != "everyday")
    assert {*chosen.group_by(statistics.NAMES).agg(pl.col("rows").max())["rows"]} == {1_000_000}
    rounds = frame.group_by(*statistics.NAMES, "rows").agg(pl.col("pass").n_unique())
    assert set(rounds["pass"]) == {LEAST_ROUNDS}


def test_only_exact_techniques_are_past_the_published_ones_and_a_baseline_never_wins(tmp_path: Path) -> None:
    summary = statistics.summary(
        passes(
            *(result("old", n, 1.0) for n in (1, 2, 3)),
            *(result("drifting", n, 0.2, origin="beyond", dtypes="a:str") for n in (1, 2, 3)),
            *(result("new_two_connections", n, 0.25, origin="beyond", connections=2) for n in (1, 2, 3)),
            *(result("new", n, 0.5, origin="beyond") for n in (1, 2, 3)),
            *(result("alone", n, 0.1, origin="baseline", dtypes=None) for n in (1, 2, 3)),
            directory=tmp_path,
        )
    )
    (past,) = findings.past_published(summary)
    assert (past.published["technique"], past.beyond["technique"]) == ("old", "new_two_connections")
    assert past.beyond["ratio"] == pytest.approx(4)
    assert past.single_connection is not None
    assert past.single_connection["technique"] == "new"
    assert [row["technique"] for row in past.baselines] == ["alone"]
    assert findings.winners(summary)["technique"].to_list() == ["drifting"]
    bars = charts.bars(summary).axes[0]
    assert bars.get_yticklabels()[0].get_text() == "ALONE"
    assert [bool(patch.get_hatch()) for patch in bars.patches] == [True, False, False, False, False]


def test_who_loads_in_bulk_is_no_answer_for_who_appends(tmp_path: Path) -> None:
    write: dict[str, Any] = {"database": "postgres", "direction": "write", "contract": "append"}
    last, new = write | {"contract": "bulk_load"}, {"origin": "beyond"}
    summary = statistics.summary(
        passes(
            *(result("old", n, 1 + n / 100, server_cpu_s=0.5, client_cpu_s=0.4, **write) for n in (1, 2, 3)),
            *(result("new", n, 0.5 + n / 100, server_cpu_s=0.6, client_cpu_s=0.2, **new, **write) for n in (1, 2, 3)),
            *(result("last", n, 0.2 + n / 200, server_cpu_s=0.3, client_cpu_s=0.3, **new, **last) for n in (1, 2, 3)),
            directory=tmp_path,
        )
    )
    assert dict(findings.winners(summary).select("contract", "technique").rows()) == {
        "append": "new", "bulk_load": "last"
    }  # fmt: skip
    append, bulk = findings.past_published(summary)
    assert (append.beyond["technique"], bulk.beyond["technique"]) == ("new", "last")
    assert append.published["technique"] == bulk.published["technique"] == "old"
    bound = findings.bound(summary, 2)  # the least of either side's time, on all cores
    assert bound is not None
    assert (bound.server, bound.client, bound.both) == pytest.approx((2 * 1000 / 0.3, 2 * 1000 / 0.2, 2 * 1000 / 0.5))


def test_overlapping_passes_are_a_tie_and_who_moved_fewer_rows_is_past_nobody(tmp_path: Path) -> None:
    frame = passes(
        *(result("first", n, s) for n, s in ((1, 0.50), (2, 0.60))),
        *(result("second", n, s) for n, s in ((1, 0.55), (2, 0.62))),
        directory=tmp_path / "tied",
    )
    assert findings.winners(statistics.summary(frame))["tied"].to_list() == [["SECOND"]]
    summary = statistics.summary(
        passes(
            *(result("old", n, 1, rows=4000) for n in range(1, 10)),
            *(result("new", n, 0.1, origin="beyond", rows=1000) for n in (1, 2)),
            directory=tmp_path,
        )
    )
    assert findings.past_published(summary) == []
