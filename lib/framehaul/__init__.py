"""framehaul: how fast, and how faithfully, a dataframe reaches PostgreSQL or ClickHouse and comes back."""

from __future__ import annotations

import atexit
import gc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framehaul.api.calls import explain, read, read_batches, write

__all__ = ["explain", "read", "read_batches", "write"]

# A process that ends would first walk all that its libraries hold, for half a second, and every notebook and worker
# of ours is waited for: https://docs.python.org/3/library/gc.html#gc.freeze
atexit.register(gc.freeze)


if not TYPE_CHECKING:  # type checkers would take any name for one of them

    def __getattr__(name: str) -> Any:
        """Import the functions when they are used: importing framehaul loads no driver."""
        if name in __all__:
            from framehaul.api import calls

            return getattr(calls, name)
        raise AttributeError(f"module 'framehaul' has no attribute {name!r}")
