"""The code of techniques, as it stands in the library."""

from __future__ import annotations

from typing import cast

from IPython.display import Code

from framehaul.techniques import techniques
from framehaul.techniques.registry import Database, Direction


def show_source(database: str, direction: str, *names: str) -> Code:
    """The code of these techniques as it stands in the library."""
    known = {
        technique.name: technique for technique in techniques(cast("Database", database), cast("Direction", direction))
    }
    return Code("\n\n\n".join(known[name].source for name in names), language="python")
