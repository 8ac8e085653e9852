"""Generated blocks of text: what a run says, between two comments, in pages of the writeup and in notebooks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import nbformat

from framehaul.bench.study import Study, imported
from framehaul.reporting.shown import Shown
from framehaul.settings import load_settings

BLOCK = re.compile(
    r"<!-- begin (?P<name>[\w-]+) \(generated\) -->(?P<content>.*?)<!-- end (?P=name) -->", flags=re.DOTALL
)


def refreshed(text: str, contents: Mapping[str, str]) -> str:
    """The text with its generated blocks replaced; a block without data is left as it is."""

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        content = contents.get(name, match["content"].strip())
        return f"<!-- begin {name} (generated) -->\n\n{content.strip()}\n\n<!-- end {name} -->"

    return BLOCK.sub(block, text)


def refreshed_page(page: Path, contents: Mapping[str, str]) -> str:
    """What a page holds, Markdown or a notebook, with the blocks of its text replaced."""
    text = page.read_text("utf8")
    if page.suffix != ".ipynb":
        return refreshed(text, contents)
    notebook = nbformat.reads(text, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = refreshed(cell.source, contents)
    return f"{nbformat.writes(notebook)}\n"


def refresh_page(page: Path, contents: Mapping[str, str]) -> None:
    """Make the blocks of a page again; one that says the same is not written."""
    if (text := refreshed_page(page, contents)) != page.read_text("utf8"):
        page.write_text(text, "utf8")


def answers(study: Study, out: Path) -> dict[str, str]:
    """The block that answers a study's question from its last run under `out`; none where it has no such block.

    Raises ResultsError when there is no run.
    """
    if not study.shown:
        return {}
    kind: type[Shown] = imported(study.shown)
    return {f"answer-{study.name}": kind.load(replace(load_settings(), out=out)).answered()}
