"""Serve the embedded ClickHouse; run as `python -m framehaul.servers.clickhouse_process DATA`.

`chdb-core` is clickhouse-local as a Python module. clickhouse-local can open a server's listeners since
https://github.com/ClickHouse/ClickHouse/pull/101143 and serves them until its last statement ends. Here the last
statement reads standard input, so that the server shuts down cleanly when its parent closes the input or dies.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

# HTTP comes last, because the parent waits until it answers.
SERVE = """
SYSTEM START LISTEN TCP;
SYSTEM START LISTEN HTTP;
SELECT count() FROM file('/dev/stdin', 'LineAsString', 'line String') FORMAT Null;
"""


def main(data: str) -> None:
    """Serve the directory `data`; the engine reads config.xml and users.xml from the working directory."""
    package = importlib.util.find_spec("chdb")
    if package is None or package.origin is None:
        raise SystemExit("the package chdb-core is not installed; run `make setup`")
    # Only the extension module is loaded, because importing the package opens a session.
    library = importlib.util.spec_from_file_location("_chdb", Path(package.origin).with_name("_chdb.abi3.so"))
    assert library is not None
    assert library.loader is not None
    chdb = importlib.util.module_from_spec(library)
    library.loader.exec_module(chdb)
    # With any other output format, the HTTP handshake of clickhouse-connect fails.
    chdb.query(SERVE, "TabSeparated", path=data)


if __name__ == "__main__":
    main(sys.argv[1])
