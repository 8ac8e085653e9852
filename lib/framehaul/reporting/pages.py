"""What a reader opens: notebooks as HTML that needs no network, and an index."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain, count
from pathlib import Path
from typing import Any

import nbformat
from nbconvert import HTMLExporter
from traitlets.config import Config

from framehaul.errors import ReportError
from framehaul.reporting.versions import size_text

TEMPLATES = Path(__file__).parent

HEADING = re.compile(r'<h([1-6]) id="([^"]*)">(.*?)<a class="anchor-link" href="#\2">¶</a></h\1>')
"""As nbconvert makes it of a line of Markdown."""
LINKS = re.compile(rb'(<nav [^>]*class="pages"[^>]*>).*?(</nav>)', re.DOTALL)
"""Where a page leads to others."""


@dataclass(frozen=True)
class Entry:
    """A notebook's line in the index."""

    name: str
    title: str
    question: str
    link: str
    """Relative to the index; empty where there is no page yet."""
    problem: str | None = None
    """Why the run did not end well."""
    coming: str = ""
    """When it will run; a page that is there is of an earlier run then."""


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
    content = nbformat.read(notebook, as_version=4)
    body, _ = exporter.from_notebook_node(content, resources={"metadata": {"name": title_of(content)}})
    loaded = re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"'](?:https?:)?//[^\"']+", body)
    if loaded:
        raise ReportError(f"{page.name} would load {loaded[0]}")
    # Nobody has a use for a stop of the Tab key at each paragraph; what can be scrolled keeps its own.
    body = body.replace('class="jp-Cell-inputWrapper" tabindex="0"', 'class="jp-Cell-inputWrapper"')
    page.write_text(with_sortable_tables(with_contents(body)), encoding="utf8")


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

    That is DataTables (https://datatables.net) as itables brings it: a module, which a page without network imports
    from a data URL.
    """
    if 'class="framehaul sortable"' not in page:
        return page
    bundle = files("itables") / "html"
    script = base64.b64encode((bundle / "dt_bundle.js").read_bytes()).decode()
    return page.replace(
        "</body>",
        f"<style>{(bundle / 'dt_bundle.css').read_text('utf8')}\n{DENSE_CSS}</style>\n"
        f'<script type="module">import DataTable from "data:text/javascript;base64,{script}";\n'
        'for (const table of document.querySelectorAll("table.sortable"))\n'
        "  new DataTable(table, {paging: false, info: false, order: [], autoWidth: false});</script>\n</body>",
    )


def title_of(content: nbformat.NotebookNode) -> str:
    """A notebook's first heading."""
    # Of one that failed, papermill puts what happened before it.
    lines = (line for cell in content.cells for line in str(cell.source).strip().splitlines()[:1])
    return next((line.lstrip("# ") for line in lines if line.startswith("#")), "")


def write_index(reports: Path, entries: Sequence[Entry], metadata: dict[str, Any], headline: str) -> None:
    """Write `index.html`, where a reader starts, and into each page where the index is and what stands beside it there.

    The index has the headline, an entry for each notebook, and where the runs were made.
    """
    lines = []
    for entry in entries:
        run = metadata["runs"].get(entry.name)
        when = f"{size_text(run)}, {run['started']}" if run and entry.link else ""
        if entry.coming:
            when = f"an earlier run's: {when}; {entry.coming}" if when else entry.coming
        title = html.escape(entry.title)
        if entry.link:
            title = f'<a href="{html.escape(entry.link)}">{title}</a>'
        below = [entry.question, *filter(None, [when])]
        trouble = f'<p class="problem">{html.escape(entry.problem)}</p>' if entry.problem else ""
        lines.append(f"<li><h2>{title}</h2>{''.join(f'<p>{html.escape(text)}</p>' for text in below)}{trouble}</li>")
    machine = metadata.get("machine")
    where = (
        f"<p>Measured on {html.escape(machine['cpu'])}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{html.escape(machine['system'])}.</p>"
        if machine
        else ""
    )
    style = (TEMPLATES / "report_template" / "pages.css").read_text("utf8")
    (reports / "index.html").write_text(
        INDEX.format(style=style, lines="\n".join(lines), where=where, headline=headline), encoding="utf8"
    )
    _link_pages(reports, [entry for entry in entries if entry.link])


def _link_pages(reports: Path, entries: Sequence[Entry]) -> None:
    """Tell every page, those of failed runs too, where the index is and which pages stand before and after it there."""
    names = [entry.name for entry in entries]
    for page in (*reports.glob("*.html"), *reports.glob("failed/*.html")):
        up = "../" if page.parent != reports else ""
        links = [f'<a href="{up}index.html">framehaul: all reports</a>']
        if page.stem in names:
            at = names.index(page.stem)
            links += [_link(entry, up, "prev", "← {}") for entry in entries[max(at - 1, 0) : at]]
            links += [_link(entry, up, "next", "{} →") for entry in entries[at + 1 : at + 2]]
        # As bytes: one that an interrupted run left may end within a character.
        content = page.read_bytes()
        linked = LINKS.sub(rb"\1" + "".join(links).encode().replace(b"\\", rb"\\") + rb"\2", content)
        if linked != content:
            fresh = page.with_suffix(".new")
            fresh.write_bytes(linked)
            fresh.replace(page)


def _link(entry: Entry, up: str, relation: str, form: str) -> str:
    """To another page, by what stands in its title before a colon."""
    text = form.format(html.escape(entry.title.partition(":")[0]))
    return f'<a rel="{relation}" href="{up}{html.escape(entry.link)}">{text}</a>'


DENSE_CSS = """
div.listing table.dataTable > tbody > tr > td { padding: 3px 8px; }
div.listing div.dt-container { font-size: 12px; }
"""

INDEX = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>framehaul reports</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
{style}
body {{ max-width: 980px; padding-top: 16px; padding-bottom: 32px; }}
ul {{ list-style: none; padding: 0; }}
li {{ margin: 20px 0; break-inside: avoid; }}
h2 {{ font-size: 17px; margin: 0; }}
li p {{ margin: 2px 0; }}
h2 ~ p ~ p, small, footer {{ color: var(--faint); font-size: 14px; }}
li p.problem {{ color: var(--failed); font-weight: bold; overflow-wrap: anywhere; }}
.headline {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: 16px 0; }}
th, td {{ padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }}
td:last-child, th:last-child {{ text-align: right; padding-right: 0; }}
@media (max-width: 600px) {{ table {{ font-size: 14px; }} }}
</style></head><body>
<h1>framehaul</h1>
<p>Your data is a pandas or Polars dataframe. What is the fastest trustworthy way to push it into PostgreSQL or
ClickHouse, and to read it back? Start with the summary; each of the other pages measures one direction, or studies one
question.</p>
<div class="headline">{headline}</div>
<ul>
{lines}
</ul>
<footer>{where}</footer>
</body></html>
"""
