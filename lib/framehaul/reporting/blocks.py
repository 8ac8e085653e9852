"""Refresh the generated blocks of README.md, each between two comments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

BLOCK = re.compile(
    r"<!-- begin (?P<name>[\w-]+) \(generated\) -->(?P<content>.*?)<!-- end (?P=name) -->", flags=re.DOTALL
)


def refresh_page(page: Path, contents: Mapping[str, str]) -> None:
    """Replace the blocks of a page that are in `contents`; write the page only if it changes."""

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        content = contents.get(name, match["content"]).strip()
        return f"<!-- begin {name} (generated) -->\n\n{content}\n\n<!-- end {name} -->"

    before = page.read_text("utf8")
    if (text := BLOCK.sub(block, before)) != before:
        page.write_text(text, "utf8")
