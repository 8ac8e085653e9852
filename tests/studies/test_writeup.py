"""The pages of the writeup: their blocks are those of the committed runs, and what they lead to is there."""

from __future__ import annotations

import collections
import os
import re
import string
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest

from framehaul.bench import committed, statistics
from framehaul.bench.study import NOTEBOOKS, Study
from framehaul.reporting import pages
from framehaul.reporting.blocks import BLOCK, refreshed_page
from framehaul.settings import PROJECT, load_settings
from framehaul.studies import writeup
from framehaul.studies.ablations import study as ablations
from framehaul.studies.registry import studies
from framehaul.studies.summary import front_page
from framehaul.studies.summary.study import Summary
from framehaul.studies.transfers.study import read_all
from tests.conftest import REFERENCE

PAGES = writeup.pages()
EXPORTED = [one for one in studies() if not one.shown and not one.on_demand]
DOCS = [page for page in PAGES[1:] if page.suffix == ".md"]
LONGEST = 200
"""The lines that a front page may have."""
OF_RESULTS = {"summary", "explorer"}
"""Studies without a page of their own: they only show results of others."""
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")

names = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))


def anchors(text: str) -> set[str]:
    """What a link into a page can name: its headings, as GitHub writes them, and names that stand there."""
    kept = string.ascii_lowercase + string.digits + "-_ "
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    named = re.findall(r'^<a id="([^"]+)"></a>$', text, re.MULTILINE)
    return {"".join(one for one in heading.lower() if one in kept).replace(" ", "-") for heading in headings} | {*named}


def texts(page: Path) -> list[str]:
    """What is written on a page; of a notebook the Markdown."""
    if page.suffix != ".ipynb":
        return [page.read_text("utf8")]
    return [cell.source for cell in nbformat.read(page, 4).cells if cell.cell_type == "markdown"]


@pytest.fixture(scope="module")
def blocks() -> dict[str, str]:
    return writeup.blocks(committed.RUN)


def test_no_block_is_stale(blocks: dict[str, str]) -> None:
    stale = [page.name for page in PAGES if refreshed_page(page, blocks) != page.read_text("utf8")]
    assert not stale, "make report makes them again"


def test_every_block_is_on_one_page_and_none_is_empty(blocks: dict[str, str]) -> None:
    found = [match for page in PAGES for text in texts(page) for match in BLOCK.finditer(text)]
    count = collections.Counter(match["name"] for match in found)
    assert set(count) == {*blocks}
    assert set(count.values()) == {1}
    assert all(match["content"].strip() for match in found)
    assert sum(page.read_text("utf8").count("(generated) -->") for page in PAGES) == len(found)


@names
def test_what_a_page_leads_to_is_there(page: Path) -> None:
    text = "\n".join(texts(page))
    for link in LINK.findall(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors("\n".join(texts(target))), link


def test_a_link_to_a_heading_is_found_as_it_is_written_on_github() -> None:
    assert anchors("# A `b_c`: d, e\n```sh\n# no heading\n```\n## pg_parquet\n") == {"a-b_c-d-e", "pg_parquet"}


def test_the_front_page_is_short() -> None:
    assert len(PAGES[0].read_text("utf8").splitlines()) < LONGEST


def test_every_study_has_a_page_and_the_index_leads_to_all() -> None:
    written = {page.stem for page in DOCS}
    assert {study.notebook for study in studies() if study.name not in OF_RESULTS} <= written
    index = (PROJECT / "docs" / "README.md").read_text("utf8")
    assert {page.name for page in DOCS} - {"README.md"} <= set(LINK.findall(index))


@pytest.mark.parametrize("study", studies(), ids=lambda study: study.name)
def test_a_notebook_begins_with_its_question_and_answer_and_ends_with_what_would_change_it(study: Study) -> None:
    cells = nbformat.read(NOTEBOOKS / f"{study.notebook}.ipynb", 4).cells
    title, question, *_ = filter(None, cells[0].source.splitlines())
    assert title.startswith("# ")
    assert question == f"**Question.** {study.question}"
    if study.shown:
        assert [match["name"] for match in BLOCK.finditer(cells[1].source)] == [f"answer-{study.name}"]
    if study in EXPORTED:
        assert any("answer" in cell.metadata.get("tags", []) for cell in cells)
    if not study.on_demand:
        assert cells[-1].source.startswith("## What would change the answer\n")


@names
def test_a_page_of_a_study_leads_to_its_notebook(page: Path) -> None:
    for study in studies():
        if page.parent.name == "docs" and page.stem == study.notebook and study not in EXPORTED:
            assert f"(../notebooks/{study.notebook}.ipynb)" in page.read_text("utf8")


@pytest.mark.parametrize("study", EXPORTED, ids=lambda study: study.name)
def test_a_page_has_all_that_stands_in_its_notebook(study: Study) -> None:
    """A notebook that was changed without `make report` is found here; what it shows is compared where all is run."""
    page = (PROJECT / "docs" / f"{study.notebook}.md").read_text("utf8")
    for cell in nbformat.read(NOTEBOOKS / f"{study.notebook}.ipynb", 4).cells:
        if "parameters" not in cell.metadata.get("tags", []):
            assert re.sub(r"\((\d\d_\w+)\.ipynb", r"(\1.md", cell.source) in page


@pytest.mark.slow
@pytest.mark.parametrize("study", EXPORTED, ids=lambda study: study.name)
def test_a_page_is_the_export_of_its_notebook_with_the_committed_results(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "results").symlink_to(committed.RUN)
    command = [sys.executable, "-m", "framehaul", "run", f"--notebooks={study.number}", f"--out={tmp_path}"]
    done = subprocess.run(
        command, env={**os.environ, "FRAMEHAUL_REUSE": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    pages.export_markdown(tmp_path / "reports" / f"{study.notebook}.ipynb", tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text("utf8") == (PROJECT / "docs" / f"{study.notebook}.md").read_text("utf8")
    for figure in (tmp_path / "figures").iterdir():
        assert figure.read_text("utf8") == (PROJECT / "figures" / figure.name).read_text("utf8"), figure.name


def test_the_front_page_takes_its_figures_from_the_committed_run() -> None:
    text = PAGES[0].read_text("utf8")
    assert {match["name"] for match in BLOCK.finditer(text)} == {"answer", "which"}
    figures = [link for link in LINK.findall(text) if link.endswith(".svg")]
    assert figures
    assert all(link.startswith("figures/") for link in figures)


def test_who_is_recommended_keeps_the_terms_that_were_asked_for() -> None:
    table = front_page.which_table(statistics.summary(read_all(REFERENCE)))
    rows = {row["case"]: front_page.terms_of(row) for row in table.rows}
    assert len(rows) == len(front_page.CASES)
    assert rows["PostgreSQL write: append, all rows at once or none"]["after_failure"] == "nothing"
    again = rows["ClickHouse write: append, safe to send again after a failure"]
    assert "each of them once" in again["after_failure"]
    assert all("bulk load" in case or "replace" in case for case, terms in rows.items()
               if terms.get("kind") == "bulk_load")  # fmt: skip


def test_committed_figures_of_techniques_are_those_of_their_run(tmp_path: Path) -> None:
    out, tmp_path = tmp_path / "out", tmp_path / "figures"
    for directory in (out, tmp_path):
        directory.mkdir()
    (out / "results").symlink_to(committed.RUN)
    settings = replace(load_settings(), out=out)
    summary, compared = Summary.of(committed.RUN), ablations.load(settings)
    summary.figures = compared.figures = tmp_path
    summary.at_a_glance()
    summary.chart()
    compared.chart()
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    stale = [name for name, text in drawn.items() if (PROJECT / "figures" / name).read_text() != text]
    assert len(drawn) == 3
    assert not stale, "their handles draw them again, from committed results"
