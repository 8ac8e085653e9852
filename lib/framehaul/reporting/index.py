"""Where a reader starts: one page with every result, to be filtered and compared, and with links to all the others."""

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

from framehaul.reporting.pages import TEMPLATES, data_tables
from framehaul.reporting.versions import machine_text, size_text

HERE = TEMPLATES / "index_page"
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


def write(
    reports: Path, entries: Sequence[Entry], metadata: Mapping[str, Any], headline: str, measured: Mapping[str, Any]
) -> None:
    """Write `index.html`, and into each page where that is and what stands beside it there.

    The index has the headline, all that was `measured` (`studies.collected.page`), an entry for each notebook, and
    where the runs were made. It is one file, and loads nothing.
    """
    style = [TEMPLATES / "report_template" / "pages.css", HERE / "index.css"]
    packed = gzip.compress(json.dumps(measured).encode(), mtime=0) if measured.get("rows") else b""
    page = Environment(loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    content = page.get_template("index.html").render(
        styles=Markup("\n".join(path.read_text("utf8") for path in style)),  # noqa: S704  our own
        script=Markup((HERE / "index.js").read_text("utf8")), library=data_tables(),  # noqa: S704
        headline=Markup(headline), measured=base64.b64encode(packed).decode(),  # noqa: S704  tables, which escape
        entries=entries, whens=[_when(entry, metadata["runs"].get(entry.name)) for entry in entries],
        machine=machine_text(metadata["machine"]) if "machine" in metadata else "",
    )  # fmt: skip
    _put(reports / "index.html", content.encode())
    _link_pages(reports, [entry for entry in entries if entry.link])


def _when(entry: Entry, run: Mapping[str, Any] | None) -> str:
    """Of what size the run of a page was, and when, or when it will be."""
    made = f"{size_text(dict(run))}, {run['started']}" if run and entry.link else ""
    if entry.coming:
        return f"an earlier run's: {made}; {entry.coming}" if made else entry.coming
    return made


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
            _put(page, linked)


def _put(page: Path, content: bytes) -> None:
    """All at once: somebody may be reading it."""
    fresh = page.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.replace(page)


def _link(entry: Entry, up: str, relation: str, form: str) -> str:
    """To another page, by what stands in its title before a colon."""
    text = form.format(html.escape(entry.title.partition(":")[0]))
    return f'<a rel="{relation}" href="{up}{html.escape(entry.link)}">{text}</a>'
