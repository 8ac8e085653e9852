"""The pages of notebooks and their index, and what the committed run holds."""

import re
from pathlib import Path
from typing import Any

import nbformat
import polars as pl

from framehaul.bench import statistics
from framehaul.bench.ratios import LEAST_ROUNDS, MIN_ROUNDS
from framehaul.reporting import pages, tables
from framehaul.reporting.tables import SORTABLE_ROWS
from framehaul.studies.transfers import read_all
from framehaul.techniques import techniques


def page_of(path: Path, *cells: Any) -> str:
    """What a notebook of these cells is exported as, at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=list(cells)), path.with_suffix(".ipynb"))
    pages.export(path.with_suffix(".ipynb"), path)
    return path.read_text("utf8")


def markdown(text: str) -> Any:
    return nbformat.v4.new_markdown_cell(text)


ENTRY = {"title": "A page", "question": "Is <a> fast?", "link": "x.html"}


def test_the_tables_of_tagged_cells_make_the_blocks_of_the_front_page(tmp_path: Path) -> None:
    cell = nbformat.v4.new_code_cell("show", metadata={"tags": ["readme-answer"]})
    cell.outputs = [nbformat.v4.new_output("display_data", {"text/markdown": "| 1 |", "text/html": "<td>1</td>"})]
    nbformat.write(nbformat.v4.new_notebook(cells=[markdown("# x"), cell]), tmp_path / "x.ipynb")
    for kind, shown in (("text/markdown", "| 1 |"), ("text/html", "<td>1</td>")):
        assert pages.shown_by(tmp_path / "x.ipynb", kind) == {"readme-answer": shown}


def test_the_contents_lead_to_each_heading_of_two_levels(tmp_path: Path) -> None:
    text = '# Title\n## Results, `a` & "b"\n### Run\n## [Notes](https://example.org)\n#### Detail\n## Last'
    page = page_of(tmp_path / "x.html", markdown(text), markdown("## Another"))
    ids = re.findall(r'<h\d id="([^"]+)"', page)
    (contents,) = re.findall(r'<nav class="contents">.*?</nav>', page, re.DOTALL)
    assert re.findall(r'href="#([^"]+)"', contents) == ids[1:4] + ids[5:]
    assert "example.org" not in contents


def test_pages_and_index_need_no_network_fit_small_and_dark_screens_and_lead_to_each_other(tmp_path: Path) -> None:
    table: Any = tables.show(pl.DataFrame({"name": [str(n) for n in range(SORTABLE_ROWS + 1)]}))
    output = nbformat.v4.new_output("display_data", {"text/html": table._repr_html_()})
    cell = nbformat.v4.new_code_cell("table", outputs=[output])
    for name in ("x", "failed/x"):
        page_of(tmp_path / f"{name}.html", markdown("# x\n## y"), cell)
    failed = {"title": r"A \\1 <b>: c", "question": "?", "link": "failed/x.html", "problem": "too & slow"}
    pages.write_index(tmp_path, [ENTRY, failed], {"runs": {}}, "", {})
    for name in ("x.html", "failed/x.html", "index.html"):
        page = (tmp_path / name).read_text("utf8")
        linked = re.findall(r"<(?:script|link|img|iframe|a) [^>]*(?:src|href)=\"([^\"#]+)\"", page)
        assert "assets/pages.css" in [one.removeprefix("../") for one in linked]
        assert {((tmp_path / name).parent / one).is_file() for one in linked} == {True}
        assert page.count('name="viewport"') == 1
        assert page.count("<style>") == (name == "index.html"), "tables of pages are styled by their stylesheet"
    for shown in (r">A \\1 &lt;b&gt;: c</a>", "<p>Is &lt;a&gt; fast?</p>", "too &amp; slow"):
        assert shown in page
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
    pages.tidy(tmp_path / "x.ipynb")
    linked, embedded = nbformat.read(tmp_path / "x.ipynb", 4).cells[1].outputs
    assert linked.data == {"text/markdown": "![All](../figures/a.svg)"}
    assert "image/svg+xml" in embedded.data


def test_the_reference_run_holds_all_techniques_and_rounds_enough_for_intervals(committed: Path) -> None:
    frame = read_all(committed)
    assert frame.filter(origin="published").n_unique(["database", "direction", "label"]) == 56
    assert {*frame["status"]} == {"ok"}
    keys = {one.key for one in techniques()}
    assert keys <= {*frame.select(statistics.NAMES).unique().rows()}  # it holds those that are gone since, too
    chosen, speed = frame.filter(pl.col("origin") != "everyday"), pl.max("rows_per_s")
    moved = chosen.group_by(*statistics.NAMES, "rows").agg(pl.len(), speed).sort("rows_per_s")
    last = moved.filter(pl.col("rows") == pl.max("rows").over(statistics.NAMES))
    assert {*last.select("rows", "len").rows()} == {(125_000, 3), (1_000_000, MIN_ROUNDS), (1_000_000, LEAST_ROUNDS)}
    for rows in (125_000, 1_000_000):
        fastest = moved.filter(rows=rows).group_by("database", "direction").last().select(statistics.NAMES)
        assert {*fastest.join(last, on=statistics.NAMES)["len"]} == {LEAST_ROUNDS}
