"""Export executed notebooks as Markdown, and as HTML pages that share styles and a script and need no network.

The index page has every result, with filters and comparisons, and links to all other pages.
"""

import base64
import gzip
import json
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import nbformat
from jinja2 import Environment, FileSystemLoader
from nbconvert import HTMLExporter, MarkdownExporter
from traitlets.config import Config

from framehaul.bench.store import put
from framehaul.reporting.tables import Row, machines_text

TEMPLATES = Path(__file__).parent
HEADING = re.compile(r'<h([23]) id="([^"]*)">(.*?)<a class="anchor-link" href="#\2">¶</a></h\1>')
"""A heading of the second or third level, as nbconvert writes it."""
OWN_STYLE = re.compile(r"<style>[^<]*</style>(?=\s*<(?:table class=\"framehaul|div class=\"output_html\"))")
"""The style of a table or of code in a notebook; a page has it in its stylesheet."""
BLOCK = re.compile(r"<!-- begin (?P<name>[\w-]+) \(generated\) -->(?P<content>.*?)<!-- end (?P=name) -->", re.DOTALL)
"""A generated block of README.md, named by the tag of the cell that shows it."""


def export(notebook: Path, page: Path) -> None:
    """Convert an executed notebook into an HTML page with folded code, in `reports` or in `reports/failed`.

    The page links the run's figures, and the index with its files.
    """
    content = answer_first(nbformat.read(notebook, as_version=4))
    exporter = HTMLExporter(embed_images=True, **_options("report_template"))
    up = "../" if page.parent.name == "failed" else ""
    body, _ = exporter.from_notebook_node(content, {"metadata": {"name": title_of(content)}, "up": up})
    # A link from a notebook to a notebook becomes a link from page to page.
    body = re.sub(r'(<a [^>]*href="(?!https?:)[^":]*\d\d_\w+)\.ipynb(#[^"]*)?"', r'\1.html\2"', OWN_STYLE.sub("", body))
    put(page, with_contents(body).encode())


def _options(template: str) -> dict[str, Any]:
    """Return the options of both exporters: our template, and only the last state of a progress bar."""
    preprocessor = "nbconvert.preprocessors.coalescestreams.CoalesceStreamsPreprocessor"
    config = Config({"TemplateExporter": {"preprocessors": [preprocessor]}})
    return {"config": config, "template_name": template, "extra_template_basedirs": [str(TEMPLATES)]}


def export_markdown(notebook: Path, page: Path) -> None:
    """Convert an executed notebook into a Markdown page with folded code and linked figures."""
    options = _options("docs_template")
    options["config"].NbConvertBase.display_data_priority = ["text/markdown", "image/svg+xml", "text/plain"]
    content = answer_first(nbformat.read(notebook, as_version=4))
    body, _ = MarkdownExporter(**options).from_notebook_node(content)
    body = re.sub(r"\]\((\d\d_\w+)\.ipynb(#[^)]*)?\)", r"](\1.md\2)", body)
    parts = re.split(r"(^```.*?^```$)", body, flags=re.MULTILINE | re.DOTALL)  # keep blank lines of code
    parts[::2] = [re.sub(r"\n{3,}", "\n\n", text) for text in parts[::2]]
    page.write_text("".join(parts).strip() + "\n", encoding="utf8")


def tidy(notebook: Path) -> None:
    """Remove local paths from an executed notebook, and replace its figures, which may be large, by links."""
    content = nbformat.read(notebook, as_version=4)
    for one in (content, *content.cells):
        one.metadata.pop("papermill", None)
    for output in chain.from_iterable(cell.get("outputs", []) for cell in content.cells):
        about = output.get("metadata", {}).get("image/svg+xml", {})
        if "figure" in about:
            output["data"] = {"text/markdown": f"![{about['alt']}](../figures/{about['figure']})"}
    nbformat.write(content, notebook)


def shown_by(notebook: Path, kind: str) -> dict[str, str]:
    """Return what the cells of an executed notebook show as `text/markdown` or `text/html`, by the tags of cells."""
    shown: dict[str, list[str]] = {}
    for cell in nbformat.read(notebook, as_version=4).cells:
        for tag in cell.metadata.get("tags", []):
            texts = shown.setdefault(tag, [])
            texts += ["".join(one["data"][kind]) for one in cell.get("outputs", []) if kind in one.get("data", {})]
    return {tag: "\n\n".join(texts) for tag, texts in shown.items()}


def refresh_blocks(page: Path, contents: Mapping[str, str]) -> None:
    """Replace the blocks of a page that are in `contents`; write the page only if it changes."""

    def block(match: re.Match[str]) -> str:
        name, content = match["name"], contents.get(match["name"], match["content"]).strip()
        return f"<!-- begin {name} (generated) -->\n\n{content}\n\n<!-- end {name} -->"

    before = page.read_text("utf8")
    if (text := BLOCK.sub(block, before)) != before:
        page.write_text(text, "utf8")


def answer_first(content: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a notebook with the cells tagged `answer` moved behind its first cell, which has the question.

    The cell of default parameters is removed if papermill added a cell with the parameters of the run.
    """
    tags = [cell.metadata.get("tags", []) for cell in content.cells]
    left_out = "parameters" if any("injected-parameters" in one for one in tags) else None
    first, *others = (cell for cell, one in zip(content.cells, tags, strict=True) if left_out not in one)
    answers = [cell for cell in others if "answer" in cell.metadata.get("tags", [])]
    content.cells = [first, *answers, *(cell for cell in others if cell not in answers)]
    return content


def with_contents(page: str) -> str:
    """Return a page with a list of its second and third level headings, which lead to their anchors."""
    lines = [
        f'<li class="h{level}"><a href="#{anchor}">{re.sub("</?a[^>]*>", "", text)}</a></li>'
        for level, anchor, text in HEADING.findall(page)
    ]
    contents = f"<details><summary>On this page</summary><ul>{''.join(lines)}</ul></details>"
    return page.replace("<main>", f'<nav class="contents">{contents}</nav>\n<main>', 1) if lines else page


def title_of(content: nbformat.NotebookNode) -> str:
    """Return a notebook's first heading."""
    # papermill inserts a cell with the error before the first heading of a failed notebook.
    lines = (line for cell in content.cells for line in str(cell.source).strip().splitlines()[:1])
    return next((line.lstrip("# ") for line in lines if line.startswith("#")), "")


def write_index(
    reports: Path, entries: Sequence[Row], metadata: Mapping[str, Any], headline: str, measured: Mapping[str, Any]
) -> None:
    """Write `index.html`, and the stylesheet and the script of all pages.

    An entry has the `title`, `question` and `link` of a notebook, what its run `made`, and the `problem` of one that
    failed. `headline` is HTML; `measured` has the results of `collected.page`.
    """
    (reports / "assets").mkdir(exist_ok=True)
    for name in ("pages.css", "pages.js"):
        put(reports / "assets" / name, (TEMPLATES / "report_template" / name).read_bytes())
    packed = gzip.compress(json.dumps(measured).encode(), mtime=0) if measured.get("rows") else b""
    machine = machines_text(metadata, metadata["runs"].values())
    loader = FileSystemLoader(TEMPLATES / "index_page")
    page = Environment(loader=loader, autoescape=True, trim_blocks=True).get_template("index.html")
    about = {"headline": headline, "machine": machine, "entries": entries}
    put(reports / "index.html", page.render(measured=base64.b64encode(packed).decode(), **about).encode())
