"""Export executed notebooks as Markdown, and as HTML pages that share styles and a script and need no network.

The index page has every result, with filters and comparisons, and links to all other pages.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections.abc import Mapping, Sequence
from itertools import chain, count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from jinja2 import Environment, FileSystemLoader
from nbconvert import HTMLExporter, MarkdownExporter
from traitlets.config import Config

from framehaul.reporting.tables import machines_text, size_text

TEMPLATES = Path(__file__).parent
HEADING = re.compile(r'<h([1-6]) id="([^"]*)">(.*?)<a class="anchor-link" href="#\2">¶</a></h\1>')
"""A heading, as nbconvert writes it."""
PLACEHOLDER = re.compile("<p>framehaul-output-([0-9]+)</p>")
OWN_STYLE = re.compile(r"<style>[^<]*</style>(?=\s*<(?:table class=\"framehaul|div class=\"output_html\"))")
"""The style of a table or of code in a notebook; a page has it in its stylesheet."""
LINKS = re.compile(rb'(<nav [^>]*class="pages"[^>]*>).*?(</nav>)', re.DOTALL)
"""The element of a page with links to other pages."""
README = "readme-"
"""The prefix of tags of cells whose tables are blocks of README.md."""
BLOCK = re.compile(r"<!-- begin (?P<name>[\w-]+) \(generated\) -->(?P<content>.*?)<!-- end (?P=name) -->", re.DOTALL)
"""A generated block of README.md."""


def export(notebook: Path, page: Path) -> None:
    """Convert an executed notebook into an HTML page with folded code, in `reports` or in `reports/failed`.

    The page links the run's figures and the files of `write_assets`; `write_index` adds links to other pages.
    """
    failed = page.parent.name == "failed"
    content = answer_first(nbformat.read(notebook, as_version=4))
    outputs = _take_html_outputs(content)
    exporter = HTMLExporter(embed_images=True, **_options("report_template"))
    resources = {"metadata": {"name": title_of(content)}, "up": "../" if failed else ""}
    body, _ = exporter.from_notebook_node(content, resources=resources)
    body = PLACEHOLDER.sub(lambda place: outputs[int(place[1])], body)
    # A link from a notebook to a notebook becomes a link from page to page.
    body = re.sub(r'(<a [^>]*href="(?!https?:)[^":]*\d\d_\w+)\.ipynb(#[^"]*)?"', r'\1.html\2"', body)
    write_assets(page.parent.parent if failed else page.parent)
    put(page, with_contents(body).encode())


def _options(template: str) -> dict[str, Any]:
    """Return the options of both exporters: our template, and only the last state of a progress bar."""
    preprocessor = "nbconvert.preprocessors.coalescestreams.CoalesceStreamsPreprocessor"
    config = Config({"TemplateExporter": {"preprocessors": [preprocessor]}})
    return {"config": config, "template_name": template, "extra_template_basedirs": [str(TEMPLATES)]}


def write_assets(reports: Path) -> None:
    """Write the stylesheet and the script of all pages into `reports/assets`."""
    (reports / "assets").mkdir(exist_ok=True)
    for name in ("pages.css", "pages.js"):
        put(reports / "assets" / name, (TEMPLATES / "report_template" / name).read_bytes())


def put(path: Path, content: bytes) -> None:
    """Replace a file atomically, because it may be open in a browser."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.replace(path)


def export_markdown(notebook: Path, page: Path) -> None:
    """Convert an executed notebook into a Markdown page with folded code and linked figures."""
    options = _options("docs_template")
    options["config"].NbConvertBase.display_data_priority = ["text/markdown", "image/svg+xml", "text/plain"]
    exporter = MarkdownExporter(**options)
    content = answer_first(nbformat.read(notebook, as_version=4))
    body, _ = exporter.from_notebook_node(content)
    body = re.sub(r"\]\((\d\d_\w+)\.ipynb(#[^)]*)?\)", r"](\1.md\2)", body)
    parts = re.split(r"(^```.*?^```$)", body, flags=re.MULTILINE | re.DOTALL)  # keep blank lines of code
    parts[::2] = [re.sub(r"\n{3,}", "\n\n", text) for text in parts[::2]]
    page.write_text("".join(parts).strip() + "\n", encoding="utf8")


def link_figures(notebook: Path) -> None:
    """Replace the figures of an executed notebook in `reports`, which may be large, by links to their files."""
    content = nbformat.read(notebook, as_version=4)
    for output in chain.from_iterable(cell.get("outputs", []) for cell in content.cells):
        about = output.get("metadata", {}).get("image/svg+xml", {})
        if "figure" in about:
            output["data"] = {"text/markdown": f"![{about['alt']}](../figures/{about['figure']})"}
    nbformat.write(content, notebook)


def shown_by(notebook: Path, tag: str, kind: str) -> str:
    """Return the `text/markdown` or `text/html` of the cells with a tag in an executed notebook, if it exists."""
    if not notebook.exists():
        return ""
    cells = [cell for cell in nbformat.read(notebook, 4).cells if tag in cell.metadata.get("tags", [])]
    outputs = chain.from_iterable(cell.get("outputs", []) for cell in cells)
    texts = [output["data"][kind] for output in outputs if kind in output.get("data", {})]
    return "\n\n".join("".join(text) for text in texts)


def readme_blocks(notebook: Path) -> dict[str, str]:
    """Return the blocks of README.md that an executed notebook generates, by name: its cells tagged `readme-<name>`."""
    tags = {tag for cell in nbformat.read(notebook, 4).cells for tag in cell.metadata.get("tags", [])}
    blocks = (tag for tag in tags if tag.startswith(README))
    return {tag.removeprefix(README): shown_by(notebook, tag, "text/markdown") for tag in blocks}


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


def _take_html_outputs(content: nbformat.NotebookNode) -> list[str]:
    """Replace the HTML outputs of a notebook by placeholders, and return them without styles that a page has.

    nbconvert parses and rewrites a whole page. For large tables that takes seconds, while the next notebook measures.
    """
    outputs: list[str] = []
    for output in chain.from_iterable(cell.get("outputs", []) for cell in content.cells):
        data = output.get("data", {})
        if "text/html" in data:
            outputs.append(OWN_STYLE.sub("", "".join(data["text/html"])))
            data["text/html"] = f"<p>framehaul-output-{len(outputs) - 1}</p>"
    return outputs


def with_contents(page: str) -> str:
    """Return a page with a list of its second and third level headings, and a unique anchor for each heading.

    An anchor is the text of its heading; a second heading with the same text gets the anchor `text-2`.
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


def title_of(content: nbformat.NotebookNode) -> str:
    """Return a notebook's first heading."""
    # papermill inserts a cell with the error before the first heading of a failed notebook.
    lines = (line for cell in content.cells for line in str(cell.source).strip().splitlines()[:1])
    return next((line.lstrip("# ") for line in lines if line.startswith("#")), "")


class Entry(NamedTuple):
    """A notebook's entry in the index, with the path of its page from there, and the error of a run that failed."""

    name: str
    title: str
    question: str
    link: str
    problem: str | None = None


def write_index(
    reports: Path, entries: Sequence[Entry], metadata: Mapping[str, Any], headline: str, measured: Mapping[str, Any]
) -> None:
    """Write `index.html`, and add links to the index, the previous and the next page to each page.

    The index has the headline, which is HTML, the results in `measured` (`collected.page`), entries, and machine.
    """
    loader, runs = FileSystemLoader(TEMPLATES / "index_page"), metadata["runs"]
    page = Environment(loader=loader, autoescape=True, trim_blocks=True).get_template("index.html")
    shown = {entry.name: runs[entry.name] for entry in entries if entry.name in runs}
    packed = gzip.compress(json.dumps(measured).encode(), mtime=0) if measured.get("rows") else b""
    content = page.render(
        measured=base64.b64encode(packed).decode(), headline=headline, machine=machines_text(metadata, runs.values()),
        made={name: f"{size_text(run)}, {run['started']}" for name, run in shown.items()}, entries=entries,
    )  # fmt: skip
    write_assets(reports)
    put(reports / "index.html", content.encode())
    _link_pages(reports, entries)


def _link_pages(reports: Path, entries: Sequence[Entry]) -> None:
    """Add links to the index, the previous and the next page to every page, including pages of failed runs."""
    previous = {after.name: before for before, after in pairwise(entries)}
    following = {before.name: after for before, after in pairwise(entries)}
    for page in (*reports.glob("*.html"), *reports.glob("failed/*.html")):
        up = "../" if page.parent != reports else ""
        links = f'<a href="{up}index.html">framehaul: all reports</a>'
        for relation, form, near in (("prev", "← {}", previous), ("next", "{} →", following)):
            if entry := near.get(page.stem):
                text = form.format(html.escape(entry.title.partition(":")[0]))
                links += f'<a rel="{relation}" href="{up}{html.escape(entry.link)}">{text}</a>'
        content = page.read_bytes()  # a page of an interrupted run may end within a character
        linked = LINKS.sub(rb"\1" + links.encode().replace(b"\\", rb"\\") + rb"\2", content)
        if linked != content:
            put(page, linked)
