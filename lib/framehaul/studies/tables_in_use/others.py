"""Other clients of a table: two readers and a writer, each at a fixed rate, in a process of their own."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from framehaul.bench.rounds import describe
from framehaul.servers import PostgresServer, Server
from framehaul.studies.tables_in_use.layouts import TABLE
from framehaul.techniques.clients import CLIENTS

RATES = {"lookup": 50, "aggregate": 10, "write": 5}
"""The requests per second of each client."""
WRITTEN_ROWS, WRITER = 100, -1_000_000
"""The rows of a request of the writer, and their `source_id`, which no other row has."""
READ = f"SELECT count(*), sum(metric_value) FROM {TABLE.name} WHERE "
INSERT = f"INSERT INTO {TABLE.name} SELECT {{}}, '2025-06-15', {WRITER}, '', '', '', '', '', '', n, n, n, n FROM {{}}"
WRITES = {
    "psycopg": INSERT.format("gen_random_uuid()", f"generate_series(1, {WRITTEN_ROWS}) AS n"),
    "http_client": INSERT.format("generateUUIDv4()", f"(SELECT number AS n FROM numbers({WRITTEN_ROWS}))"),
}


class Request(NamedTuple):
    """A request of a client: the time when it was due, its latency since then, and its error."""

    client: str
    due: float
    latency_s: float
    error: str | None


def at_rate(client: str, connection: Any, statements: Sequence[str], end: Sequence[float]) -> list[Request]:
    """Send statements in turn at the client's rate, as long as they are due before `end[0]`, and return the requests.

    A latency counts from the due time, also if the request before was late: otherwise a long wait would count once.
    https://www.scylladb.com/2021/04/22/on-coordinated-omission/
    """
    begin, requests = time.perf_counter(), list[Request]()
    for number, statement in enumerate(itertools.cycle(statements)):
        due, error = begin + number / RATES[client], None
        time.sleep(max(0.0, due - time.perf_counter()))
        if due > end[0]:
            break
        try:
            send(connection, statement)
        except Exception as problem:  # noqa: BLE001  any error is a result, and the client goes on
            error = describe(problem)
        requests.append(Request(client, due, time.perf_counter() - due, error))
    return requests


def send(connection: Any, statement: str) -> object:
    """Run a statement on either server."""
    return connection.post(statement).read() if hasattr(connection, "post") else connection.execute(statement.encode())


def use(requests: Connection, server: Server, keys: Sequence[str]) -> None:
    """Send an answer when all clients are connected, use the table until the time of a request, and send all requests.

    Times are those of `time.perf_counter`, which on Linux is the same clock in all processes.
    """
    kind, end = "psycopg" if isinstance(server, PostgresServer) else "http_client", [math.inf]
    lookups, days = ([f"{READ}entity_key = '{key}'" for key in keys], range(1, 29))
    aggregates, writes = [f"{READ}event_date = '2025-06-{day:02}'" for day in days], [WRITES[kind]]
    with ExitStack() as stack, ThreadPoolExecutor(len(RATES)) as pool:
        opened: list[Any] = [CLIENTS[kind](server) for _ in RATES]
        clients = list(zip(RATES, map(stack.enter_context, opened), (lookups, aggregates, writes), strict=True))
        for _, connection, statements in clients[:2]:
            send(connection, statements[0])  # a connection's first query takes longer
        requests.send(None)
        running = [pool.submit(at_rate, *client, end) for client in clients]
        try:
            end[0] = requests.recv()  # raises EOFError when the parent is gone
        finally:
            end[0] = min(end[0], time.perf_counter())
        requests.send([request for one in running for request in one.result()])


def summary(requests: Sequence[Request], begin: float, end: float) -> dict[str, dict[str, Any]]:
    """Return for each client its errors, and the latencies of its other requests before and during an append."""
    columns: dict[str, dict[str, Any]] = {}
    for client in RATES:
        errors = [one.error for one in requests if one.client == client and one.error is not None]
        good = [one for one in requests if one.client == client and one.error is None and one.due <= end]
        before, during = ([one.latency_s for one in good if (one.due < begin) == early] for early in (True, False))
        columns[client] = {"requests": len(during), "errors": len(errors), "error": next(iter(errors), None)}
        columns[client]["longest_s"] = max(during, default=None)
        for name, latencies in (("before_", before), ("", during)):
            ends = np.quantile(latencies, (0.5, 0.95)).tolist() if latencies else (None, None)
            columns[client] |= dict(zip((f"{name}p50_s", f"{name}p95_s"), ends, strict=True))
    return columns
