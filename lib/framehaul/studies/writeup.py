"""The generated blocks of the README, each made by the study that it is about."""

from __future__ import annotations

import re
from pathlib import Path

from framehaul.reporting.study import imported
from framehaul.results import committed
from framehaul.settings import PROJECT
from framehaul.studies.registry import studies

README = PROJECT / "README.md"


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

    return re.sub(
        r"<!-- begin (?P<name>[\w-]+) \(generated\) -->(?P<content>.*?)<!-- end (?P=name) -->",
        block,
        text,
        flags=re.DOTALL,
    )


def refresh() -> None:
    """Make the README's blocks again from the runs that are committed."""
    README.write_text(refreshed(README.read_text("utf8"), blocks(committed.RUN)), "utf8")
