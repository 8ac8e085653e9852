"""Show the code that is measured, as it stands in the library."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from IPython.display import Code

from framehaul.techniques.source import source


@dataclass(frozen=True)
class Listing:
    """Code with highlighted syntax in a notebook and on a page, and as a fenced block in Markdown."""

    text: str
    language: str

    def _repr_html_(self) -> str:
        return str(Code(self.text, language=self.language)._repr_html_())

    def _repr_markdown_(self) -> str:
        return f"```{self.language}\n{self.text.strip()}\n```"


def show_source(database: str, direction: str, *names: str) -> Listing:
    """Show the functions of these techniques, and their calls."""
    return Listing(source(database, direction, names), "python")


def show_code(*shown: Callable[..., Any] | str, language: str = "python") -> Listing:
    """Show functions or classes as they stand in their files, or text."""
    texts = (one if isinstance(one, str) else inspect.getsource(one) for one in shown)
    return Listing("\n\n".join(texts), language)
