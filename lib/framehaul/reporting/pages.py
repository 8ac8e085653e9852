"""What a reader opens: notebooks as HTML that needs no network, and an index."""

from __future__ import annotations

import base64
import datetime as dt
import html
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import nbformat
from nbconvert import HTMLExporter
from traitlets.config import Config

from framehaul.errors import ReportError
from framehaul.reporting.versions import size_text

TEMPLATES = Path(__file__).parent


@dataclass(frozen=True)
class Entry:
    """A notebook's line in the index."""

    name: str
    title: str
    link: str
    """Relative to the index; empty where there is no page yet."""
    problem: str | None = None
    """Why the run did not end well."""
    coming: str = ""
    """When it will run; a page that is there is of an earlier run then."""


def export(notebook: Path, page: Path) -> None:
    """Convert an executed notebook into one self-contained page with its code folded.

    Raises ReportError when the page would load anything from the network.
    """
    config = Config()
    # A progress bar rewrites its line; only what it ends with belongs into a page.
    config.HTMLExporter.preprocessors = ["nbconvert.preprocessors.coalescestreams.CoalesceStreamsPreprocessor"]
    exporter = HTMLExporter(
        config=config, template_name="report_template", extra_template_basedirs=[str(TEMPLATES)],
        embed_images=True, mathjax_url="", require_js_url="", jquery_url="", mermaid_js_url="",
    )  # fmt: skip
    content = nbformat.read(notebook, as_version=4)
    body, _ = exporter.from_notebook_node(content, resources={"metadata": {"name": title_of(content)}})
    loaded = re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"'](?:https?:)?//[^\"']+", body)
    if loaded:
        raise ReportError(f"{page.name} would load {loaded[0]}")
    page.write_text(with_sortable_tables(body), encoding="utf8")


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


def write_index(reports: Path, entries: list[Entry], metadata: dict[str, Any], headline: str) -> None:
    """Write `index.html`, where a reader starts: the headline, one line per notebook, and where the runs were made."""
    lines = []
    for entry in entries:
        run = metadata["runs"].get(entry.name)
        when = f"{size_text(run)}, {run['started']}" if run and entry.link else ""
        if entry.coming:
            when = f"an earlier run's: {when}; {entry.coming}" if when else entry.coming
        title = html.escape(entry.title)
        if entry.link:
            title = f'<a href="{html.escape(entry.link)}">{title}</a>'
        trouble = f' <strong class="problem">{html.escape(entry.problem)}</strong>' if entry.problem else ""
        lines.append(f"<li>{title}{trouble}<br><small>{html.escape(when)}</small></li>")
    machine = metadata.get("machine")
    where = (
        f"<p>Measured on {html.escape(machine['cpu'])}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{html.escape(machine['system'])}.</p>"
        if machine
        else ""
    )
    (reports / "index.html").write_text(
        INDEX.format(lines="\n".join(lines), where=where, headline=headline, year=dt.date.today().year),
        encoding="utf8",
    )


DENSE_CSS = """
div.listing table.dataTable > tbody > tr > td { padding: 3px 8px; }
div.listing div.dt-container { font-size: 12px; }
"""

INDEX = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>framehaul reports</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 16px/1.5 sans-serif; max-width: 980px; margin: 2em auto; padding: 0 1em; color: #222; }}
li {{ margin: .6em 0; }} small {{ color: #666; }} .problem {{ color: #B00020; }}
table {{ border-collapse: collapse; }} th, td {{ padding: 4px 12px; border-bottom: 1px solid #ddd; text-align: left; }}
td:last-child, th:last-child {{ text-align: right; }}
</style></head><body>
<h1>framehaul</h1>
<p>Your data is a pandas or Polars dataframe. What is the fastest trustworthy way to push it into PostgreSQL or
ClickHouse, and to read it back? Start with the summary; each of the other pages measures one direction, or studies one
question.</p>
{headline}
<ul>
{lines}
</ul>
{where}
</body></html>
"""
