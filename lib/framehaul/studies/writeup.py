"""The generated blocks of the writeup, README.md and docs/, each made by the study that it is about."""

from __future__ import annotations

import re
from pathlib import Path

from framehaul.reporting.study import imported
from framehaul.results import committed
from framehaul.settings import PROJECT
from framehaul.studies.registry import studies

BLOCK = re.compile(
    r"<!-- begin (?P<name>[\w-]+) \(generated\) -->(?P<content>.*?)<!-- end (?P=name) -->", flags=re.DOTALL
)


def pages() -> list[Path]:
    """The pages of the writeup, the front page first."""
    return [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]


def blocks(directory: Path) -> dict[str, str]:
    """The generated blocks by name, of the run in a results directory; raises ResultsError when it is not whole."""
    contents: dict[str, str] = {}
    for study in studies():
        if study.blocks:
            contents |= imported(study.blocks)(directory)
    return contents


def refreshed(text: str, contents: dict[str, str]) -> str:
    """The text with its generated blocks replaced; a block without data is left as it is."""

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        content = contents.get(name, match["content"].strip())
        return f"<!-- begin {name} (generated) -->\n\n{content.strip()}\n\n<!-- end {name} -->"

    return BLOCK.sub(block, text)


def refresh() -> None:
    """Make the blocks of all pages again from the runs that are committed."""
    contents = blocks(committed.RUN)
    for page in pages():
        page.write_text(refreshed(page.read_text("utf8"), contents), "utf8")
