"""The writeup: README.md, docs/, and the answers in notebooks; each of its blocks is made by the study it is about."""

from __future__ import annotations

from pathlib import Path

from framehaul.bench import committed
from framehaul.bench.study import NOTEBOOKS, imported
from framehaul.reporting.blocks import answers, refresh_page
from framehaul.settings import PROJECT
from framehaul.studies.registry import studies


def pages() -> list[Path]:
    """The pages of the writeup, the front page first, and the notebooks."""
    return [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md")), *sorted(NOTEBOOKS.glob("*.ipynb"))]


def blocks(directory: Path) -> dict[str, str]:
    """The generated blocks by name, of the run in a results directory; raises ResultsError when it is not whole."""
    contents: dict[str, str] = {}
    for study in studies():
        if study.blocks:
            contents |= imported(study.blocks)(directory)
        if not study.on_demand:
            contents |= answers(study, directory.parent)
    return contents


def refresh() -> None:
    """Make the blocks of all pages again from the runs that are committed."""
    contents = blocks(committed.RUN)
    for page in pages():
        refresh_page(page, contents)
