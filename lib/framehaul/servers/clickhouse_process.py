"""Serve the embedded ClickHouse; run as `python -m framehaul.servers.clickhouse_process DATA`.

`chdb-core` is clickhouse-local as a Python module. Since https://github.com/ClickHouse/ClickHouse/pull/101143
clickhouse-local can open a server's listeners; it serves them until its last statement ends. Here that statement
reads standard input, so that the server shuts down cleanly when its parent closes the input or dies.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

# HTTP comes last, because the parent polls it to see whether the server is ready.
SERVE = """
SYSTEM START LISTEN TCP;
SYSTEM START LISTEN HTTP;
SELECT count() FROM file('/dev/stdin', 'LineAsString', 'line String') FORMAT Null;
"""


def main(data: str) -> None:
    """Serve the data directory `data`; config.xml and users.xml are read from the working directory."""
    package = importlib.util.find_spec("chdb")
    if package is None or package.origin is None:
        raise SystemExit("the package chdb-core is not installed; run `make setup`")
    # The extension module alone: importing the package would open a session of its own first.
    library = importlib.util.spec_from_file_location("_chdb", Path(package.origin).parent / "_chdb.abi3.so")
    if library is None or library.loader is None:
        raise SystemExit("chdb-core does not hold the library _chdb.abi3.so; reinstall it with `make setup`")
    chdb = importlib.util.module_from_spec(library)
    library.loader.exec_module(chdb)
    # Any other output format makes the HTTP handshake of clickhouse-connect fail.
    chdb.query(SERVE, "TabSeparated", path=data)


if __name__ == "__main__":
    main(sys.argv[1])
