"""Write dataframes into PostgreSQL or ClickHouse and read them back with a fast technique that keeps every value."""

from __future__ import annotations

import atexit
import gc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framehaul.api.calls import explain, read, read_batches, write

__all__ = ["explain", "read", "read_batches", "write"]

# At exit, garbage collection of the libraries' objects takes half a second in every notebook and worker. Frozen objects
# are not collected: https://docs.python.org/3/library/gc.html#gc.freeze
atexit.register(gc.freeze)


if not TYPE_CHECKING:  # for a type checker, __getattr__ makes every name valid

    def __getattr__(name: str) -> Any:
        """Return a function and import its module on first use, so that importing framehaul loads no driver."""
        if name in __all__:
            from framehaul.api import calls

            return getattr(calls, name)
        raise AttributeError(f"module 'framehaul' has no attribute {name!r}")
