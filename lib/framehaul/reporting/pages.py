"""What a reader opens: notebooks as HTML that needs no network, and an index."""

from __future__ import annotations

import base64
import re
from functools import cache
from importlib.resources import files
from itertools import chain, count
from pathlib import Path

import nbformat
from nbconvert import HTMLExporter, MarkdownExporter
from traitlets.config import Config

from framehaul.errors import ReportError

TEMPLATES = Path(__file__).parent
BUNDLE = files("itables") / "html"

HEADING = re.compile(r'<h([1-6]) id="([^"]*)">(.*?)<a class="anchor-link" href="#\2">¶</a></h\1>')
"""As nbconvert makes it of a line of Markdown."""


PLACE_OF = "framehaul-ready-{}"
PLACE = re.compile(f"<p>{PLACE_OF.format('([0-9]+)')}</p>")


def export(notebook: Path, page: Path) -> None:
    """Convert an executed notebook into one self-contained page with its code folded.

    It leads to no other page before `write_index` knows which there are.

    Raises ReportError when the page would load anything from the network.
    """
    config = Config()
    # A progress bar rewrites its line; only what it ends with belongs into a page.
    config.HTMLExporter.preprocessors = ["nbconvert.preprocessors.coalescestreams.CoalesceStreamsPreprocessor"]
    exporter = HTMLExporter(
        config=config, template_name="report_template", extra_template_basedirs=[str(TEMPLATES)],
        embed_images=True,
    )  # fmt: skip
    content = answer_first(nbformat.read(notebook, as_version=4))
    ready = _taken_out(content)
    body, _ = exporter.from_notebook_node(content, resources={"metadata": {"name": title_of(content)}})
    body = PLACE.sub(lambda place: ready[int(place[1])], body)
    loaded = re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"'](?:https?:)?//[^\"']+", body)
    if loaded:
        raise ReportError(f"{page.name} would load {loaded[0]}")
    # Nobody has a use for a stop of the Tab key at each paragraph; what can be scrolled keeps its own.
    body = body.replace('class="jp-Cell-inputWrapper" tabindex="0"', 'class="jp-Cell-inputWrapper"')
    # Notebooks lead to each other; who reads a page means the other page.
    body = re.sub(r'(<a [^>]*href="(?!https?:)[^":]*\d\d_\w+)\.ipynb(#[^"]*)?"', r'\1.html\2"', body)
    page.write_text(with_sortable_tables(with_contents(body)), encoding="utf8")


def export_markdown(notebook: Path, page: Path) -> None:
    """Convert an executed notebook into a Markdown page: code is folded, figures are linked."""
    config = Config()
    config.MarkdownExporter.preprocessors = ["nbconvert.preprocessors.coalescestreams.CoalesceStreamsPreprocessor"]
    config.NbConvertBase.display_data_priority = ["text/markdown", "image/svg+xml", "text/plain"]
    exporter = MarkdownExporter(
        config=config, template_name="docs_template", extra_template_basedirs=[str(TEMPLATES)],
    )  # fmt: skip
    content = answer_first(nbformat.read(notebook, as_version=4))
    body, _ = exporter.from_notebook_node(content)
    body = re.sub(r"\]\((\d\d_\w+)\.ipynb(#[^)]*)?\)", r"](\1.md\2)", body)
    page.write_text(re.sub(r"\n{3,}", "\n\n", body).strip() + "\n", encoding="utf8")


def shown_by(notebook: Path, tag: str, kind: str) -> str:
    """Return what the cells with a tag show in an executed notebook, as `text/markdown` or `text/html`.

    Empty where there is no such notebook or cell.
    """
    if not notebook.exists():
        return ""
    cells = [cell for cell in nbformat.read(notebook, 4).cells if tag in cell.metadata.get("tags", [])]
    outputs = chain.from_iterable(cell.get("outputs", []) for cell in cells)
    texts = [output["data"][kind] for output in outputs if kind in output.get("data", {})]
    return "\n\n".join("".join(text) for text in texts)


def readme_blocks(notebook: Path) -> dict[str, str]:
    """Return the generated blocks of README.md that an executed notebook makes: the cells tagged `readme-<block>`."""
    tags = {tag for cell in nbformat.read(notebook, 4).cells for tag in cell.metadata.get("tags", [])}
    made = sorted(tag for tag in tags if tag.startswith(README))
    return {tag.removeprefix(README): shown_by(notebook, tag, "text/markdown") for tag in made}


README = "readme-"


def answer_first(content: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a notebook with the cells tagged `answer` behind its question, which is its first cell.

    Where papermill has written parameters, the cell with their defaults is left out.
    """
    tags = [cell.metadata.get("tags", []) for cell in content.cells]
    left_out = "parameters" if any("injected-parameters" in one for one in tags) else None
    first, *others = (cell for cell, one in zip(content.cells, tags, strict=True) if left_out not in one)
    answers = [cell for cell in others if "answer" in cell.metadata.get("tags", [])]
    content.cells = [first, *answers, *(cell for cell in others if cell not in answers)]
    return content


def _taken_out(content: nbformat.NotebookNode) -> list[str]:
    """Take the outputs of a notebook that are HTML already out of it, and leave a place for each.

    nbconvert parses a page and writes it anew, for some of its attributes: of large tables that takes seconds, in which
    the next notebook may be measuring.
    """
    ready: list[str] = []
    for output in chain.from_iterable(cell.get("outputs", []) for cell in content.cells):
        data = output.get("data", {})
        if "text/html" in data:
            ready.append("".join(data["text/html"]))
            data["text/html"] = f"<p>{PLACE_OF.format(len(ready) - 1)}</p>"
    return ready


def with_contents(page: str) -> str:
    """The page with an anchor of its own for each heading, and a list of those of the second and third level.

    An anchor is its heading's text; of headings with the same text, the second has `-2` behind it.
    """
    taken: set[str] = set()
    lines: list[str] = []

    def anchored(heading: re.Match[str]) -> str:
        level, name, text = heading.groups()
        anchor = next(one for one in chain([name], (f"{name}-{n}" for n in count(2))) if one not in taken)
        taken.add(anchor)
        if level in "23":
            lines.append(f'<li class="h{level}"><a href="#{anchor}">{re.sub("</?a[^>]*>", "", text)}</a></li>')
        return f'<h{level} id="{anchor}">{text}<a class="anchor-link" href="#{anchor}">¶</a></h{level}>'

    page = HEADING.sub(anchored, page)
    contents = f"<details><summary>On this page</summary><ul>{''.join(lines)}</ul></details>"
    return page.replace("<main>", f'<nav class="contents">{contents}</nav>\n<main>', 1) if lines else page


def with_sortable_tables(page: str) -> str:
    """The page with what lets its reader sort and search the tables of class `sortable`, where it has one.

    That is DataTables, a module, which a page without network imports from a data URL.
    """
    if 'class="framehaul sortable"' not in page:
        return page
    style = (BUNDLE / "dt_bundle.css").read_text("utf8")
    return page.replace(
        "</body>",
        f"<style>{style}\n{DENSE_CSS}</style>\n"
        f'<script type="module">import DataTable from "data:text/javascript;base64,{data_tables()}";\n'
        'for (const table of document.querySelectorAll("table.sortable"))\n'
        "  new DataTable(table, {paging: false, info: false, order: [], autoWidth: false});</script>\n</body>",
    )


@cache
def data_tables() -> str:
    """DataTables (https://datatables.net), as itables brings it, in Base64."""
    return base64.b64encode((BUNDLE / "dt_bundle.js").read_bytes()).decode()


def title_of(content: nbformat.NotebookNode) -> str:
    """A notebook's first heading."""
    # Of one that failed, papermill puts what happened before it.
    lines = (line for cell in content.cells for line in str(cell.source).strip().splitlines()[:1])
    return next((line.lstrip("# ") for line in lines if line.startswith("#")), "")


DENSE_CSS = """
div.listing table.dataTable > tbody > tr > td { padding: 3px 8px; }
div.listing div.dt-container { font-size: 12px; }
"""
