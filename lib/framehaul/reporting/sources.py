"""Show measured code as it is in the library."""

import inspect
from collections.abc import Callable
from typing import Any

from IPython.display import Code

from framehaul.techniques.source import source


class CodeBlock(Code):
    """Code that is highlighted in a notebook and on a page, and a fenced block in Markdown."""

    def _repr_markdown_(self) -> str:
        return f"```{self.language}\n{self.data.strip()}\n```"


def show_source(database: str, direction: str, *names: str) -> CodeBlock:
    """Show the functions of techniques, and their calls."""
    return CodeBlock(source(database, direction, names), language="python")


def show_code(*shown: Callable[..., Any] | str, language: str = "python") -> CodeBlock:
    """Show the source of functions or classes, or text."""
    texts = (one if isinstance(one, str) else inspect.getsource(one) for one in shown)
    return CodeBlock("\n\n".join(texts), language=language)
