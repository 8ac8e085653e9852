"""The process that a streamed move is measured in: memory that another pass has used would hide what this one uses.

It makes one pass for each request, and answers with its cost. Memory is measured in passes that are asked for as
`memory`, the first one of a fresh process, and said of those that follow: what they find used already is no measure.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from pathlib import Path

from framehaul import servers
from framehaul.bench.meter import Meter
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.settings import load_settings
from framehaul.techniques.clients import CLIENTS
from framehaul.techniques.streaming import MOVES

MEMORY, TIME = "memory", "time"
"""What a pass is made for."""


def serve(requests: Connection, name: str, file: Path, table: Table = ANALYTICS_METRICS) -> None:
    """Serve one move, until EOFError says that nobody asks any more."""
    move = next(move for move in MOVES if move.name == name)
    with servers.running(load_settings()) as both:
        server = both.of(move.database)
        meter = Meter(server.process_id)
        peak_rss_bytes: int | None = None
        while True:
            request = requests.recv()
            # A connection for each pass, as everywhere: ClickHouse closes one that has waited for a verification.
            opened = CLIENTS[move.client](server)
            assert isinstance(opened, AbstractContextManager)
            with opened as client:
                meter.start(memory=request == MEMORY)
                start = time.perf_counter()
                move.function(client, table, file)
                seconds = time.perf_counter() - start
                usage = meter.stop()
            if request == MEMORY:
                peak_rss_bytes = usage.peak_rss_bytes
            usage = replace(usage, peak_rss_bytes=peak_rss_bytes)
            requests.send({"seconds": seconds, **asdict(usage)})
