"""What the process inside is asked for; nothing here loads anything, for that process must have one thread at first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from framehaul.techniques.registry import Database

NAMESPACES, RELAY, AS_IT_IS = "namespaces", "relay", "as it is"
"""What the road is made of."""


@dataclass(frozen=True)
class Wanted:
    """What is measured: so many rows, made from a seed, of which databases and kinds of frame, over which networks."""

    rows: int
    seed: int
    road: str
    links: list[str]
    frames: list[str]
    databases: list[Database]
