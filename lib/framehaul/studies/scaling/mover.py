"""The process that a streamed move is measured in: memory that another pass has used would hide what this one uses.

`python -m framehaul.studies.scaling.mover MOVE FILE` says in a line that it is ready; then it makes one pass for each
line on its standard input, and answers with its cost as a line of JSON. Memory is measured in passes that are asked for
as `memory`, the first one of a fresh process, and said of those that follow: what they find used already is no measure.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path

from framehaul import servers
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.harness.meter import Meter
from framehaul.settings import load_settings
from framehaul.techniques.clients import CLIENTS
from framehaul.techniques.streaming import MOVES

MEMORY, TIME = "memory", "time"
"""What a pass is made for."""


def main(name: str, file: Path, table: Table = ANALYTICS_METRICS) -> None:
    """Serve one move: a pass for each line of standard input, which says what it is for."""
    move = next(move for move in MOVES if move.name == name)
    with servers.running(load_settings()) as both:
        server = both.of(move.database)
        meter = Meter(server.process_id)
        print("ready", flush=True)
        peak_rss_bytes: int | None = None
        for request in sys.stdin:
            # A connection for each pass, as everywhere: ClickHouse closes one that has waited for a verification.
            opened = CLIENTS[move.client](server)
            assert isinstance(opened, AbstractContextManager)
            with opened as client:
                memory = request.strip() == MEMORY
                meter.start(memory=memory)
                start = time.perf_counter()
                move.function(client, table, file)
                seconds = time.perf_counter() - start
                usage = meter.stop()
            if memory:
                peak_rss_bytes = usage.peak_rss_bytes
            usage = replace(usage, peak_rss_bytes=peak_rss_bytes)
            print(json.dumps({"seconds": seconds, **asdict(usage)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
