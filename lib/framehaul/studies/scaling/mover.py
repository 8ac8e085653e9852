"""The process that a streamed move is measured in: memory that another pass has used would hide what this one uses.

`python -m framehaul.studies.scaling.mover MOVE FILE` says in a line that it is ready; then it makes one pass for each
line on its standard input, and answers with its cost as a line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

from framehaul import servers
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.harness.meter import Meter
from framehaul.settings import load_settings
from framehaul.techniques.clients import CLIENTS
from framehaul.techniques.streaming import MOVES


def main(name: str, file: Path, table: Table = ANALYTICS_METRICS) -> None:
    """Serve one move: a pass for each line of standard input."""
    move = next(move for move in MOVES if move.name == name)
    with servers.running(load_settings()) as both:
        server = both.of(move.database)
        meter = Meter(server.process_id)
        opened = CLIENTS[move.client](server)
        assert isinstance(opened, AbstractContextManager)
        with opened as client:
            print("ready", flush=True)
            for _ in sys.stdin:
                meter.start()
                start = time.perf_counter()
                move.function(client, table, file)
                seconds = time.perf_counter() - start
                print(json.dumps({"seconds": seconds, **asdict(meter.stop())}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
