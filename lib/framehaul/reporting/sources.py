"""The code of techniques, as it stands in the library."""

from __future__ import annotations

from IPython.display import HTML, Code

from framehaul.techniques.source import source


def show_source(database: str, direction: str, *names: str) -> HTML:
    """The functions of these techniques, and their calls."""
    found = source(database, direction, names)
    return HTML(Code(f"{found.code}\n\n\n{found.calls}", language="python")._repr_html_())
