"""Write the index page, which has every result, with filters and comparisons, and links to all other pages."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from framehaul.reporting.pages import TEMPLATES, put, write_assets
from framehaul.reporting.tables import machines_text, size_text

HERE = TEMPLATES / "index_page"
LINKS = re.compile(rb'(<nav [^>]*class="pages"[^>]*>).*?(</nav>)', re.DOTALL)
"""The element of a page with links to other pages."""


@dataclass(frozen=True)
class Entry:
    """A notebook's entry in the index."""

    name: str
    title: str
    question: str
    link: str
    """The path of its page, relative to the index."""
    problem: str | None = None
    """The error of a run that failed."""


def write(
    reports: Path, entries: Sequence[Entry], metadata: Mapping[str, Any], headline: str, measured: Mapping[str, Any]
) -> None:
    """Write `index.html`, and add links to the index, the previous and the next page to each page.

    The index has the headline, which is HTML, the results in `measured` (`collected.page`), entries, and machine.
    """
    runs, page = metadata["runs"], Environment(loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True)
    shown = {entry.name: runs[entry.name] for entry in entries if entry.name in runs}
    packed = gzip.compress(json.dumps(measured).encode(), mtime=0) if measured.get("rows") else b""
    content = page.get_template("index.html").render(
        measured=base64.b64encode(packed).decode(), headline=headline, machine=machines_text(metadata, runs.values()),
        made={name: f"{size_text(run)}, {run['started']}" for name, run in shown.items()}, entries=entries,
    )  # fmt: skip
    write_assets(reports)
    put(reports / "index.html", content.encode())
    _link_pages(reports, entries)


def _link_pages(reports: Path, entries: Sequence[Entry]) -> None:
    """Add links to the index, the previous and the next page to every page, including pages of failed runs."""
    names = [entry.name for entry in entries]
    for page in (*reports.glob("*.html"), *reports.glob("failed/*.html")):
        up = "../" if page.parent != reports else ""
        links = f'<a href="{up}index.html">framehaul: all reports</a>'
        if page.stem in names:
            at = names.index(page.stem)
            links += "".join(_link(entry, up, "prev", "← {}") for entry in entries[max(at - 1, 0) : at])
            links += "".join(_link(entry, up, "next", "{} →") for entry in entries[at + 1 : at + 2])
        content = page.read_bytes()  # a page of an interrupted run may end within a character
        linked = LINKS.sub(rb"\1" + links.encode().replace(b"\\", rb"\\") + rb"\2", content)
        if linked != content:
            put(page, linked)


def _link(entry: Entry, up: str, relation: str, form: str) -> str:
    """Return a link to a page with its title up to a colon."""
    text = form.format(html.escape(entry.title.partition(":")[0]))
    return f'<a rel="{relation}" href="{up}{html.escape(entry.link)}">{text}</a>'
