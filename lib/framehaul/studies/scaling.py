"""Scaling: the best published technique and the best others at growing sizes, and moves in bounded memory.

Each move runs in its own process: memory that other passes have freed would hide the memory that it uses.
"""

import tempfile
import time
from dataclasses import replace
from functools import partial
from itertools import groupby
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow.parquet as pq

from framehaul.bench import measure, store
from framehaul.bench.children import Child, child, context
from framehaul.bench.meter import Meter, Moved
from framehaul.bench.recording import Recording, recorded
from framehaul.bench.rounds import Rounds, in_rounds, right
from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.data.frames import to_polars
from framehaul.data.schema import ANALYTICS_METRICS as TABLE
from framehaul.data.schema import Table
from framehaul.servers import Server, Servers
from framehaul.servers.tables import Tables, tables_of
from framehaul.studies.registry import SCALING
from framehaul.techniques import Technique
from framehaul.techniques.clients import opened_now
from framehaul.techniques.registry import Database, Direction, named
from framehaul.techniques.streaming import MOVES

SMALLEST_ROWS = 10_000
MOST_MOVED_ROWS = 1_000_000
"""The most rows of a move: each is made twice, streamed and whole, in a process of its own."""

COMPARED: dict[tuple[Database, Direction], tuple[str, ...]] = {
    ("postgres", "write"): ("polars_asyncpg_copy_binary", "polars_pgpq_presorted", "polars_pgpq_key_last"),
    ("postgres", "read"): ("polars_psycopg_copy_text", "polars_psycopg_copy_decoded_two_connections"),
    ("clickhouse", "write"): ("polars_httpx_parquet", "polars_http_client_native_presorted"),
    ("clickhouse", "read"): ("polars_urllib_parquet", "polars_http_client_native_decoded"),
}
"""For each direction, the best published technique and the best others of the reference runs."""


def sizes(largest: int) -> list[int]:
    """Return the numbers of rows up to `largest`, each ten times the one before, from ten thousand or from a tenth."""
    first = min(SMALLEST_ROWS, max(1, largest // 10))
    return [*(size for at in range(len(str(largest))) if (size := first * 10**at) < largest), largest]


@recorded(SCALING)
def run(this_run: Recording, *, rows: int, rounds: int, warmup: int, seed: int) -> None:
    """Measure the compared techniques at each size up to `rows`, and moves of at most a million rows and of a tenth.

    Below ten thousand rows a move's memory is not measurable: where a tenth is less, moves are made at one size. Sizes
    up to a tenth always have a warm-up, which compiles loops and counts wire bytes.
    """
    both = this_run.servers()
    of_size = {size: Rounds(rounds, max(warmup, int(size * 10 <= rows)), seed) for size in sizes(rows)}
    most = min(rows, MOST_MOVED_ROWS)
    ends = [most // 10, most] if most // 10 >= SMALLEST_ROWS else [most]
    per_size = sum(map(len, COMPARED.values())) * sum(rounds + one.warmup for one in of_size.values())
    this_run.expect(per_size + len(ends) * len(MOVES) * (rounds + 1))
    # Comparisons of runs read the version here.
    this_run.metadata["server"] = {"version": "; ".join(this_run.metadata["server"].values())}
    for size, rounds_of_size in of_size.items():
        content = generator.arrow_table(TABLE, size, seed)
        for (database, direction), names in COMPARED.items():
            compared, log = [named(database, direction, name) for name in names], this_run.technique_log(size)
            measure.run(compared, both.of(database), TABLE, content, rounds_of_size, log)
    for size in ends:
        _measure_moves(this_run, both, size, Rounds(rounds, 1, seed))


def _measure_moves(this_run: Recording, both: Servers, size: int, rounds: Rounds) -> None:
    """Measure every move of `size` rows and verify every pass.

    When the process of a move ends early, the remaining passes of the move fail for the same reason.
    """
    content, reference = generator.arrow_table(TABLE, size, rounds.seed), TABLE.renamed(f"{TABLE.name}_sent")
    sent, log = Expected(TABLE, content), this_run.technique_log(size)
    for (database, direction), moves in groupby(MOVES, lambda move: (move.database, move.direction)):
        tables = tables_of(both.of(database))
        with tempfile.TemporaryDirectory(prefix="framehaul-") as directory:
            file = Path(directory) / "rows.parquet"
            try:
                pq.write_table(content, file)
                sent.keep_reference(tables, reference if direction == "write" else TABLE)
                tables.quiesce()
                for move in moves:
                    with child(context(__name__), move.name, serve, both.of(database), move.name, file) as process:
                        in_rounds([move], rounds, partial(_moved, process, tables, sent, file), log)
            finally:
                for ours in (TABLE, reference):
                    tables.drop(ours.name)


def _moved(process: Child, tables: Tables, sent: Expected, file: Path, move: Technique, number: int) -> Moved:
    """Make one pass of a move; raise WrongResultError when other rows arrived. The warm-up measures memory."""
    writes = move.direction == "write"
    if writes:
        tables.make(TABLE, None)
    moved: Moved = process.ask(number < 1)
    wrong = sent.difference_on_server(tables) if writes else sent.difference(to_polars(pq.read_table(file), TABLE))
    return right(moved, wrong)


def serve(requests: Connection, server: Server, name: str, file: Path, table: Table = TABLE) -> None:
    """Make a pass of a move for each request, until the connection is closed, which raises EOFError.

    The request True measures memory, in the first pass of a fresh process; later passes report the same figure.
    """
    move = next(move for move in MOVES if move.name == name)
    meter, peak_rss_bytes = Meter(server.process_id), None
    while True:
        memory = requests.recv()
        # Each pass has a new connection: ClickHouse closes a connection that is idle during a verification.
        with opened_now(move.client, server) as client:
            meter.start(memory=memory)
            start = time.perf_counter()
            move.function(client, table, file)
            seconds, usage = time.perf_counter() - start, meter.stop()
        peak_rss_bytes = usage.peak_rss_bytes if memory else peak_rss_bytes
        requests.send(Moved(seconds, replace(usage, peak_rss_bytes=peak_rss_bytes), store.EXACT))
