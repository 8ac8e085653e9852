"""The code of techniques, as it stands in the library, with all that it uses."""

from __future__ import annotations

from typing import cast

from IPython.display import HTML, Code

from framehaul.techniques import techniques, upserts
from framehaul.techniques.registry import Database, Direction
from framehaul.techniques.source import Source, source


def show_source(database: str, direction: str, *names: str) -> HTML:
    """The code of these techniques; what they share stands there once."""
    where = cast("Database", database)
    known = {one.name: one.driver for one in techniques(where, cast("Direction", direction))}
    if direction == "write":
        known |= {one.name: one.driver for one in upserts(where)}
    return HTML(source_html(source(database, direction, {name: known[name] for name in names})))


def source_html(bundle: Source) -> str:
    """The code of techniques and their calls; folded below it, what they use of the library's other rooms."""
    shown, beneath = (
        Code(text, language="python")._repr_html_() for text in (f"{bundle.code}\n\n\n{bundle.calls}", bundle.beneath)
    )
    what = "Imports and conversions" if "\ndef " in bundle.beneath else "Imports"
    return f"{shown}<details><summary>{what}</summary>{beneath}</details>"
