"""The process in which a move is measured; memory that other passes have freed would hide the memory that it uses.

It makes one pass for each request and answers with its cost. A request of `MEMORY` measures memory, in the first pass
of a fresh process; later passes report the same figure.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

from framehaul import servers
from framehaul.bench.meter import Meter
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.settings import load_settings
from framehaul.techniques.clients import CLIENTS
from framehaul.techniques.streaming import MOVES

MEMORY, TIME = "memory", "time"
"""The purposes of a pass."""


def serve(requests: Connection, name: str, file: Path, table: Table = ANALYTICS_METRICS) -> None:
    """Serve one move until the connection is closed, which raises EOFError."""
    move = next(move for move in MOVES if move.name == name)
    with servers.running(load_settings()) as both:
        server = both.of(move.database)
        meter = Meter(server.process_id)
        peak_rss_bytes: int | None = None
        while True:
            request = requests.recv()
            # Each pass has a new connection: ClickHouse closes a connection that is idle during a verification.
            with cast("AbstractContextManager[Any]", CLIENTS[move.client](server)) as client:
                meter.start(memory=request == MEMORY)
                start = time.perf_counter()
                move.function(client, table, file)
                seconds = time.perf_counter() - start
                usage = meter.stop()
            if request == MEMORY:
                peak_rss_bytes = usage.peak_rss_bytes
            requests.send({"seconds": seconds, **asdict(usage), "peak_rss_bytes": peak_rss_bytes})
