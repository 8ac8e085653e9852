"""The pages of the writeup: exports of notebooks with the committed results, whose links lead somewhere."""

import re
import string
from pathlib import Path

import nbformat
import pytest

from framehaul.bench.study import NOTEBOOKS, Study
from framehaul.reporting import pages
from framehaul.settings import PROJECT
from framehaul.studies import registry
from framehaul.studies.registry import studies
from tests.conftest import run_command

DOCS = sorted((PROJECT / "docs").rglob("*.md"))
PAGES = [PROJECT / "README.md", *DOCS, *sorted(NOTEBOOKS.glob("*.ipynb"))]
EXPORTED = [one for one in studies() if not one.on_demand]
LONGEST = 150
"""The lines that a front page may have."""
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")


def anchors(text: str) -> set[str]:
    """What a link into a page can name: its headings, as GitHub writes them, and names that stand there."""
    kept = string.ascii_lowercase + string.digits + "-_ "
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    named = re.findall(r'^<a id="([^"]+)"></a>$', text, re.MULTILINE)
    return {"".join(one for one in heading.lower() if one in kept).replace(" ", "-") for heading in headings} | {*named}


def text_of(page: Path) -> str:
    """The text of a page, without its code; of a notebook the Markdown."""
    text = page.read_text("utf8")
    if page.suffix == ".ipynb":
        text = "\n".join(one.source for one in nbformat.reads(text, 4).cells if one.cell_type == "markdown")
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_what_a_page_leads_to_is_there(page: Path) -> None:
    for link in (one for one in LINK.findall(text_of(page)) if "://" not in one):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(text_of(target)), link


def test_every_study_has_a_page_and_the_index_leads_to_all() -> None:
    written = {page.stem for page in DOCS}
    assert {study.notebook for study in studies() if study.name != "explorer"} <= written
    index = (PROJECT / "docs" / "README.md").read_text("utf8")
    assert {str(page.relative_to(PROJECT / "docs")) for page in DOCS} - {"README.md"} <= set(LINK.findall(index))


@pytest.mark.parametrize("study", studies(), ids=lambda study: study.name)
def test_a_notebook_begins_with_its_question_and_answer_and_ends_with_what_would_change_it(study: Study) -> None:
    cells = nbformat.read(NOTEBOOKS / f"{study.notebook}.ipynb", 4).cells
    title, question, *_ = filter(None, cells[0].source.splitlines())
    headings = re.findall(r"^#+ .*", text_of(NOTEBOOKS / f"{study.notebook}.ipynb"), re.MULTILINE)
    assert title == headings[0]
    assert len({*headings}) == len(headings), "anchors are unique"
    assert question == f"**Question.** {study.question}"
    if study in EXPORTED:
        assert any("answer" in cell.metadata.get("tags", []) for cell in cells)
    if not study.on_demand:
        assert cells[-1].source.startswith("## What would change the answer\n")


@pytest.mark.parametrize("study", EXPORTED, ids=lambda study: study.name)
def test_a_page_has_all_that_stands_in_its_notebook(study: Study) -> None:
    """A notebook that was changed without `make report` is found here; what it shows is compared where all is run."""
    page = (PROJECT / "docs" / f"{study.notebook}.md").read_text("utf8")
    for cell in nbformat.read(NOTEBOOKS / f"{study.notebook}.ipynb", 4).cells:
        if "parameters" not in cell.metadata.get("tags", []):
            assert re.sub(r"\((\d\d_\w+)\.ipynb", r"(\1.md", cell.source) in page


def blocks_of(page: Path) -> dict[str, str]:
    """Return the generated blocks of a page."""
    return {match["name"]: match["content"].strip() for match in pages.BLOCK.finditer(page.read_text("utf8"))}


def test_the_front_page_is_short_and_has_the_tables_of_the_summary_and_figures_of_the_committed_run() -> None:
    figures = [link for link in LINK.findall(PAGES[0].read_text("utf8")) if link.endswith(".svg")]
    assert figures
    assert all(link.startswith("figures/") for link in figures)
    assert len(PAGES[0].read_text("utf8").splitlines()) < LONGEST
    summary = (PROJECT / "docs" / "05_summary.md").read_text("utf8")
    made = blocks_of(PROJECT / "README.md")
    assert {*made} == {"readme-answer", "readme-which"}
    assert not [name for name, content in made.items() if content not in summary], "make report makes them again"


@pytest.mark.parametrize("notebooks", ["05", pytest.param("", marks=pytest.mark.slow)], ids=["summary", "all"])
def test_pages_are_the_exports_of_notebooks_with_the_committed_results(
    notebooks: str, tmp_path: Path, committed: Path
) -> None:
    (tmp_path / "results").symlink_to(committed)
    arguments = (f"--notebooks={notebooks}", f"--out={tmp_path}")
    done = run_command("run", *arguments, state_dir=tmp_path / "state", FRAMEHAUL_REUSE="1")
    assert done.returncode == 0, done.stderr
    blocks = blocks_of(PROJECT / "README.md")
    for study in registry.chosen(notebooks):
        executed = tmp_path / "reports" / f"{study.notebook}.ipynb"
        pages.export_markdown(executed, tmp_path / "page.md")
        assert (tmp_path / "page.md").read_text("utf8") == (PROJECT / "docs" / f"{study.notebook}.md").read_text("utf8")
        shown = pages.shown_by(executed, "text/markdown")
        assert {name: shown.get(name, content).strip() for name, content in blocks.items()} == blocks
    for figure in (tmp_path / "figures").iterdir():
        assert figure.read_text("utf8") == (PROJECT / "figures" / figure.name).read_text("utf8"), figure.name
