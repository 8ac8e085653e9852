"""Charts, findings and pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import polars as pl

from framehaul.bench import committed, statistics
from framehaul.bench.ratios import LEAST_ROUNDS
from framehaul.reporting import pages, tables
from framehaul.reporting.tables import SORTABLE_ROWS
from framehaul.studies.transfers.study import read_all
from framehaul.techniques import techniques


def page_of(path: Path, *cells: Any) -> str:
    """What a notebook of these cells is exported as, at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=list(cells)), path.with_suffix(".ipynb"))
    pages.export(path.with_suffix(".ipynb"), path)
    return path.read_text("utf8")


def markdown(text: str) -> Any:
    return nbformat.v4.new_markdown_cell(text)


def entry(name: str, link: str, title: str = "A page", question: str = "?", problem: str = "") -> pages.Entry:
    return pages.Entry(name, title, question, link, problem)


def links_of(page: Path) -> dict[str, str]:
    """Where a page says to lead, by `prev`, `next` and the empty name of the index; its head and foot say the same."""
    head, foot = re.findall(r'<nav [^>]*class="pages"[^>]*>(.*?)</nav>', page.read_text("utf8"), re.DOTALL)
    assert head == foot
    return dict(re.findall(r'<a (?:rel="(\w+)" )?href="([^"]+)"', head))


def test_the_tables_of_tagged_cells_make_the_blocks_of_the_front_page(tmp_path: Path) -> None:
    cell = nbformat.v4.new_code_cell("show", metadata={"tags": ["readme-answer"]})
    cell.outputs = [nbformat.v4.new_output("display_data", {"text/markdown": "| 1 |", "text/html": "<td>1</td>"})]
    nbformat.write(nbformat.v4.new_notebook(cells=[markdown("# x"), cell]), tmp_path / "x.ipynb")
    assert pages.readme_blocks(tmp_path / "x.ipynb") == {"answer": "| 1 |"}
    assert pages.shown_by(tmp_path / "x.ipynb", "readme-answer", "text/html") == "<td>1</td>"
    assert pages.shown_by(tmp_path / "gone.ipynb", "readme-answer", "text/html") == ""


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
        entry("01_a", "01_a.html"), entry("02_b", "failed/02_b.html", r"A \\1 <b>: c", "Is <a> fast?", "too & slow"),
        entry("03_c", "03_c.html"),
    ]  # fmt: skip
    pages.write_index(tmp_path, entries, {"runs": {}}, "", {})
    assert links_of(tmp_path / "01_a.html") == {"": "index.html", "next": "failed/02_b.html"}
    assert r">A \\1 &lt;b&gt; →</a>" in (tmp_path / "01_a.html").read_text("utf8")
    assert "<p>Is &lt;a&gt; fast?</p>" in (tmp_path / "index.html").read_text("utf8")
    assert "too &amp; slow" in (tmp_path / "index.html").read_text("utf8")
    failed = {"": "../index.html", "prev": "../01_a.html", "next": "../03_c.html"}
    assert links_of(tmp_path / "failed" / "02_b.html") == failed
    assert links_of(tmp_path / "03_c.html") == {"": "index.html", "prev": "failed/02_b.html"}
    assert links_of(tmp_path / "99_gone.html") == {"": "index.html"}

    # It runs well now: its page takes another place, and all follow, those of earlier runs too.
    (tmp_path / "failed" / "02_b.html").unlink()
    page_of(tmp_path / "02_b.html", markdown("# 02_b"))
    pages.write_index(tmp_path, [entries[0], entry("02_b", "02_b.html"), entries[2]], {"runs": {}}, "", {})
    every = [*tmp_path.glob("*.html"), *tmp_path.glob("failed/*.html")]
    assert len(every) == 6
    for page in every:
        for link in re.findall(r'href="([^"#]+)"', page.read_text("utf8")):
            assert (page.parent / link).is_file(), (page, link)


def test_pages_and_index_need_no_network_and_fit_small_and_dark_screens(tmp_path: Path) -> None:
    table: Any = tables.show(pl.DataFrame({"name": [str(n) for n in range(SORTABLE_ROWS + 1)]}))
    output = nbformat.v4.new_output("display_data", {"text/html": table._repr_html_()})
    cell = nbformat.v4.new_code_cell("table", outputs=[output])
    page_of(tmp_path / "x.html", markdown("# x\n## y"), cell)
    pages.write_index(tmp_path, [entry("x", "x.html")], {"runs": {}}, "", {})
    for name in ("x.html", "index.html"):
        page = (tmp_path / name).read_text("utf8")
        loaded = re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"([^\"]*)", page)
        assert "assets/pages.css" in loaded
        assert {(tmp_path / one).is_file() for one in loaded} == {True}
        assert page.count('name="viewport"') == 1
    styles = (tmp_path / "assets" / "pages.css").read_text("utf8")
    assert "@media screen and (prefers-color-scheme: dark)" in styles
    assert not re.findall(r"@import|url\(", styles)


def test_a_page_links_the_figures_of_its_run_and_embeds_others(tmp_path: Path) -> None:
    def figure(**metadata: str) -> Any:
        return nbformat.v4.new_output("display_data", {"image/svg+xml": "<svg/>"}, metadata={"image/svg+xml": metadata})

    cell = nbformat.v4.new_code_cell("x", outputs=[figure(figure="a.svg", alt="All"), figure(alt="One <b>")])
    for name, up in (("x", ""), ("failed/x", "../")):
        page = page_of(tmp_path / f"{name}.html", markdown("# x"), cell)
        first, second = re.findall('<img[^>]*? src="([^"]*)"', page)
        assert first == f"{up}../figures/a.svg"
        assert second.startswith("data:image/svg+xml;base64,")
        assert re.findall('<img alt="([^"]*)"', page) == ["All", "One &lt;b&gt;"]
        assert f'href="{up}assets/pages.css"' in page
    assert not (tmp_path / "failed" / "assets").exists()
    pages.link_figures(tmp_path / "x.ipynb")
    linked, embedded = nbformat.read(tmp_path / "x.ipynb", 4).cells[1].outputs
    assert linked.data == {"text/markdown": "![All](../figures/a.svg)"}
    assert "image/svg+xml" in embedded.data


def test_the_reference_run_holds_all_techniques_and_rounds_enough_for_intervals() -> None:
    frame = read_all(committed.RUN)
    assert frame.filter(origin="published").n_unique(["database", "direction", "label"]) == 56
    assert {*frame.filter(pl.col("status") != "ok")["driver"]} == {"adbc"}, "ADBC's driver for ClickHouse was not built"
    frame = frame.filter(status="ok")
    keys = {one.key for one in techniques() if one.client != "adbc_clickhouse"}
    assert keys <= {*frame.select(statistics.NAMES).unique().rows()}  # it holds those that are gone since, too
    chosen = frame.filter(pl.col("origin") != "everyday")
    assert {*chosen.group_by(statistics.NAMES).agg(pl.col("rows").max())["rows"]} == {1_000_000}
    rounds = chosen.filter(rows=1_000_000).group_by(statistics.NAMES).agg(pl.len(), pl.max("rows_per_s"))
    assert {*rounds["len"]} == {2, LEAST_ROUNDS}
    fastest = rounds.group_by("database", "direction").agg(pl.max("rows_per_s").alias("fastest"))
    early = rounds.filter(pl.col("len") < LEAST_ROUNDS).join(fastest, on=["database", "direction"])
    assert (early["rows_per_s"] * 1.5 < early["fastest"]).all()
