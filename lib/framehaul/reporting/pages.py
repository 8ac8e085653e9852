"""Export executed notebooks: as HTML pages that share styles and a script and need no network, and as Markdown."""

from __future__ import annotations

import re
from itertools import chain, count
from pathlib import Path

import nbformat
from nbconvert import HTMLExporter, MarkdownExporter
from traitlets.config import Config

from framehaul.errors import ReportError

TEMPLATES = Path(__file__).parent
SHARED = TEMPLATES / "report_template"
HEADING = re.compile(r'<h([1-6]) id="([^"]*)">(.*?)<a class="anchor-link" href="#\2">¶</a></h\1>')
"""A heading of Markdown, as nbconvert writes it."""
PLACEHOLDER = re.compile("<p>framehaul-output-([0-9]+)</p>")
OWN_STYLE = re.compile(r"<style>[^<]*</style>(?=\s*<(?:table class=\"framehaul|div class=\"output_html\"))")
"""The style of a table or of code, which a notebook needs and a page has in its stylesheet."""


def export(notebook: Path, page: Path) -> None:
    """Convert an executed notebook into a page with folded code, in `reports` or in `reports/failed`.

    It links the run's figures and what `write_assets` writes; `index.write` adds the links to other pages.

    Raises ReportError when the page would load anything from the network.
    """
    failed = page.parent.name == "failed"
    content = answer_first(nbformat.read(notebook, as_version=4))
    outputs = _take_html_outputs(content)
    config = Config()
    # A progress bar rewrites its line; only its last state belongs into a page.
    config.HTMLExporter.preprocessors = ["nbconvert.preprocessors.coalescestreams.CoalesceStreamsPreprocessor"]
    exporter = HTMLExporter(
        config=config, template_name="report_template", extra_template_basedirs=[str(TEMPLATES)],
        embed_images=True,
    )  # fmt: skip
    resources = {"metadata": {"name": title_of(content)}, "up": "../" if failed else ""}
    body, _ = exporter.from_notebook_node(content, resources=resources)
    body = PLACEHOLDER.sub(lambda place: outputs[int(place[1])], body)
    loaded = re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"'](?:https?:)?//[^\"']+", body)
    if loaded:
        raise ReportError(f"{page.name} would load {loaded[0]}")
    # A link from a notebook to a notebook becomes a link from page to page.
    body = re.sub(r'(<a [^>]*href="(?!https?:)[^":]*\d\d_\w+)\.ipynb(#[^"]*)?"', r'\1.html\2"', body)
    write_assets(page.parent.parent if failed else page.parent)
    put(page, with_contents(body).encode())


def write_assets(reports: Path) -> None:
    """Write the stylesheet and the script that all pages share into `reports/assets`."""
    (reports / "assets").mkdir(exist_ok=True)
    for name in ("pages.css", "pages.js"):
        content, path = (SHARED / name).read_bytes(), reports / "assets" / name
        if not path.exists() or path.read_bytes() != content:
            put(path, content)


def put(path: Path, content: bytes) -> None:
    """Replace a file at once: somebody may be reading it."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.replace(path)


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
    parts = re.split(r"(^```.*?^```$)", body, flags=re.MULTILINE | re.DOTALL)  # code keeps its blank lines
    parts[::2] = [re.sub(r"\n{3,}", "\n\n", text) for text in parts[::2]]
    page.write_text("".join(parts).strip() + "\n", encoding="utf8")


def link_figures(notebook: Path) -> None:
    """Replace the figures in an executed notebook of `reports` by links to their files, which may be large."""
    content = nbformat.read(notebook, as_version=4)
    for output in chain.from_iterable(cell.get("outputs", []) for cell in content.cells):
        about = output.get("metadata", {}).get("image/svg+xml", {})
        if "figure" in about:
            output["data"] = {"text/markdown": f"![{about['alt']}](../figures/{about['figure']})"}
    nbformat.write(content, notebook)


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
    """Return a notebook with the cells tagged `answer` moved behind its first cell, which asks the question.

    The cell with the default parameters is left out where papermill has added one with the parameters of the run.
    """
    tags = [cell.metadata.get("tags", []) for cell in content.cells]
    left_out = "parameters" if any("injected-parameters" in one for one in tags) else None
    first, *others = (cell for cell, one in zip(content.cells, tags, strict=True) if left_out not in one)
    answers = [cell for cell in others if "answer" in cell.metadata.get("tags", [])]
    content.cells = [first, *answers, *(cell for cell in others if cell not in answers)]
    return content


def _take_html_outputs(content: nbformat.NotebookNode) -> list[str]:
    """Replace the HTML outputs of a notebook by placeholders, and return them without styles that the page has.

    nbconvert parses and rewrites a whole page; for large tables that takes seconds while the next notebook measures.
    """
    outputs: list[str] = []
    for output in chain.from_iterable(cell.get("outputs", []) for cell in content.cells):
        data = output.get("data", {})
        if "text/html" in data:
            outputs.append(OWN_STYLE.sub("", "".join(data["text/html"])))
            data["text/html"] = f"<p>framehaul-output-{len(outputs) - 1}</p>"
    return outputs


def with_contents(page: str) -> str:
    """Return a page with a unique anchor for each heading, and a list of its headings of the second and third level.

    An anchor is the text of its heading; a second heading of the same text gets the anchor `text-2`.
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
    # papermill puts a cell with the error before the first heading of a notebook that failed.
    lines = (line for cell in content.cells for line in str(cell.source).strip().splitlines()[:1])
    return next((line.lstrip("# ") for line in lines if line.startswith("#")), "")
