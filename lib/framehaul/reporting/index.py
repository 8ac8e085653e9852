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
from markupsafe import Markup

from framehaul.reporting.pages import TEMPLATES, put, write_assets
from framehaul.reporting.versions import machines_text, size_text

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
    """The path of its page, relative to the index; empty before there is a page."""
    problem: str | None = None
    """The error of a run that failed."""
    coming: str = ""
    """When it will run. Until then, its page is that of an earlier run."""


def write(
    reports: Path, entries: Sequence[Entry], metadata: Mapping[str, Any], headline: str, measured: Mapping[str, Any]
) -> None:
    """Write `index.html`, and add links to the index, the previous and the next page to each page.

    The index has the headline, which is HTML, the results in `measured` (`collected.page`), the entries, and the
    machine.
    """
    packed = gzip.compress(json.dumps(measured).encode(), mtime=0) if measured.get("rows") else b""
    page = Environment(loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    content = page.get_template("index.html").render(
        style=_own("index.css"), script=_own("index.js"), measured=base64.b64encode(packed).decode(),
        headline=Markup(headline), entries=entries,  # noqa: S704  tables that escaped their cells
        whens=[_when(entry, metadata["runs"].get(entry.name)) for entry in entries],
        machine=machines_text(metadata, metadata["runs"].values()),
    )  # fmt: skip
    write_assets(reports)
    put(reports / "index.html", content.encode())
    _link_pages(reports, [entry for entry in entries if entry.link])


def _own(name: str) -> Markup:
    """Return a file of this package without escapes."""
    return Markup((HERE / name).read_text("utf8"))  # noqa: S704


def _when(entry: Entry, run: Mapping[str, Any] | None) -> str:
    """Return the size and the time of a page's run, and when it will run again."""
    made = f"{size_text(run)}, {run['started']}" if run and entry.link else ""
    return f"an earlier run's: {made}; {entry.coming}" if made and entry.coming else made or entry.coming


def _link_pages(reports: Path, entries: Sequence[Entry]) -> None:
    """Add links to the index, the previous and the next page to every page, including pages of failed runs."""
    names = [entry.name for entry in entries]
    for page in (*reports.glob("*.html"), *reports.glob("failed/*.html")):
        up = "../" if page.parent != reports else ""
        links = [f'<a href="{up}index.html">framehaul: all reports</a>']
        if page.stem in names:
            at = names.index(page.stem)
            links += [_link(entry, up, "prev", "← {}") for entry in entries[max(at - 1, 0) : at]]
            links += [_link(entry, up, "next", "{} →") for entry in entries[at + 1 : at + 2]]
        # A page of an interrupted run may end within a character: read bytes.
        content = page.read_bytes()
        linked = LINKS.sub(rb"\1" + "".join(links).encode().replace(b"\\", rb"\\") + rb"\2", content)
        if linked != content:
            put(page, linked)


def _link(entry: Entry, up: str, relation: str, form: str) -> str:
    """Return a link to a page with its title up to a colon."""
    text = form.format(html.escape(entry.title.partition(":")[0]))
    return f'<a rel="{relation}" href="{up}{html.escape(entry.link)}">{text}</a>'
