"""pgbench against one service: a data set of our own, runs on it, and what the server says of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psycopg
from psycopg.conninfo import make_conninfo

from framehaul.bench.meter import Meter, children_cpu_s
from framehaul.data.schema import COMMENT
from framehaul.errors import ServerError, UnavailableError
from framehaul.servers import PostgresServer
from framehaul.servers.postgres import program
from framehaul.servers.tables import PostgresTables
from framehaul.settings import Settings
from framehaul.studies.pgbench.services import Service
from framehaul.studies.pgbench.workloads import LOG, Test

SCHEMA = "framehaul_pgbench_{scale}"
TABLES = "'pgbench_accounts', 'pgbench_branches', 'pgbench_tellers', 'pgbench_history'"
ACCOUNTS, TELLERS = 100_000, 10
"""Rows for each unit of scale, of which there is one branch."""
LOCK = 0x6672616D65686C
"""The advisory lock that a run holds on a database."""
GONE_SECONDS = 30
"""How long the server may take to let go of clients that pgbench has closed, whose counters it then has."""
ROOM = 1.3
"""Space that a data set takes while it is made and changed, over its size."""
PERCENTILES = {"latency_p50_ms": 50, "latency_p95_ms": 95, "latency_p99_ms": 99, "latency_p999_ms": 99.9}

# What a server counts. Each is asked for alone: some services have only some of them.
CACHE = "SELECT sum(blks_hit)::bigint, sum(blks_read)::bigint FROM pg_stat_database WHERE datname = current_database()"
IO = "SELECT sum(reads)::bigint, sum(writes)::bigint FROM pg_stat_io"
WAL = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint"


class BenchError(RuntimeError):
    """pgbench did not run to its end, or what it left is not right; the message says why."""


class Bench:
    """One service, with data sets of ours on it until `clean`.

    Raises BenchError when the service did not start, or holds tables of pgbench that are not ours, or is being measured
    by somebody else; ServerError when it cannot be reached.
    """

    def __init__(self, service: Service, settings: Settings, stop: threading.Event) -> None:
        if service.server is None:
            raise BenchError(service.trouble or "the service did not start")
        self._service, self._stop = service, stop
        self._server: PostgresServer = service.server
        self._tables = PostgresTables(service.server)
        self._program = settings.pgbench or program("pgbench")
        self._schemas: list[str] = []
        self._refuse_foreign_tables()
        self._lock = psycopg.connect(self._server.dsn(), autocommit=True, connect_timeout=10)
        if self._lock.execute("SELECT pg_try_advisory_lock(%s)", (LOCK,)).fetchone() != (True,):
            self._lock.close()
            raise BenchError("another run measures this database at this moment; wait for it, or give another database")

    def initialise(self, test: Test) -> None:
        """Make the data set of a test in a schema of ours, and check it; one of a run that was killed is replaced.

        Raises UnavailableError when the disk has no room for it.
        """
        data = self._service.data
        if data is not None and (free := shutil.disk_usage(data).free) < ROOM * test.data_bytes:
            needed = ROOM * test.data_bytes / 1e9
            raise UnavailableError(
                f"scale {test.scale:,} takes {needed:,.0f} GB of disk, and {free / 1e9:,.0f} GB are free"
            )
        schema = SCHEMA.format(scale=test.scale)
        self._drop(schema)
        self._tables.run(f"CREATE SCHEMA {schema}")
        self._schemas.append(schema)
        self._tables.run(f"COMMENT ON SCHEMA {schema} IS '{COMMENT}'")
        self._check_path(test.scale)
        self._pgbench(test.scale, test.initialisation())
        self._check_new(test.scale)

    def run(self, test: Test, clients: int) -> dict[str, Any]:
        """Run a test with so many clients, after its warm-up, and check what it left.

        Raises BenchError when it did not run to its end, or lost a transaction.
        """
        if test.warm_up_length:
            self._pgbench(test.scale, test.warm_up())
        self._tables.quiesce()
        balances = self._balances(test.scale)
        meter, disk = Meter(self._server.process_id), self._service.disk
        counters, operations = self._counters(), disk.operations() if disk else None
        meter.start()
        cpu_s, start = children_cpu_s(), time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="framehaul-pgbench-") as name:
            printed = self._pgbench(test.scale, [*test.options(clients), *test.logging()], Path(name))
            seconds, client_cpu_s = time.perf_counter() - start, children_cpu_s() - cpu_s
            operations_after = disk.operations() if disk else None
            figures: dict[str, Any] = _latencies(Path(name).glob(f"{LOG}.*"))
        counters_after = self._counters()
        server_cpu_s = meter.stop().server_cpu_s  # of clients' processes, too, which have ended by now
        figures |= _summary_of(printed)
        self._check_balances(test, figures["transactions"], balances)
        figures |= _of_server(counters, counters_after, seconds, figures["transactions"])
        if operations and operations_after:
            ways = zip(("disk_reads_per_s", "disk_writes_per_s"), operations, operations_after, strict=True)
            figures |= {name: (after - before) / seconds for name, before, after in ways}
        return figures | {"seconds": seconds, "client_cpu_s": client_cpu_s, "server_cpu_s": server_cpu_s}

    def check_accounts(self, scale: int) -> None:
        """Compare balances of all accounts with those of branches and tellers; raises BenchError where they part."""
        self._clients_gone()  # an interrupted run's may still commit
        schema = SCHEMA.format(scale=scale)
        rows, total = self._tables.run(f"SELECT count(*), sum(abalance)::bigint FROM {schema}.pgbench_accounts")[0]
        branches, tellers = self._balances(scale)
        if rows != ACCOUNTS * scale:
            raise BenchError(f"pgbench_accounts has {rows:,} rows instead of {ACCOUNTS * scale:,}")
        if not total == branches == tellers:
            raise BenchError(f"balances part: {total} in accounts, {branches} in branches, {tellers} in tellers")

    def clean(self) -> str | None:
        """Drop our data sets; what could not be dropped and why, or None."""
        left: list[str] = []
        why = ""
        try:
            for schema in self._schemas:
                try:
                    self._drop(schema)
                except ServerError as error:
                    left, why = [*left, schema], str(error)
        finally:  # not before: whoever comes next would make the same ones
            self._lock.close()
        if not left:
            return None
        return f"schema {', '.join(left)} is left on {self._service.name}, drop it by hand: {why}"

    def _refuse_foreign_tables(self) -> None:
        foreign = self._tables.run(
            "SELECT nspname, relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace "
            f"WHERE relname IN ({TABLES}) AND obj_description(n.oid, 'pg_namespace') IS DISTINCT FROM '{COMMENT}'"
        )
        if foreign:
            raise BenchError(
                f"database {self._server.database} holds tables of pgbench that framehaul did not make "
                f"({'.'.join(foreign[0])}); they are left as they are: give a database without them"
            )

    def _drop(self, schema: str) -> None:
        comments = self._tables.run(
            f"SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = '{schema}'"
        )
        if comments and comments[0][0] != COMMENT:
            raise ServerError(f"schema {schema} exists and is not framehaul's; rename or drop it")
        if comments:
            self._tables.run(f"DROP SCHEMA {schema} CASCADE")

    def _conninfo(self, scale: int) -> str:
        """How pgbench connects; the password, which other accounts could read there, goes by the environment."""
        server, options = self._server, dict(self._server.options)
        path = f"-c search_path={SCHEMA.format(scale=scale)}"
        options["options"] = f"{options.get('options', '')} {path}".strip()
        return make_conninfo(host=server.host, port=server.port, user=server.user, dbname=server.database, **options)

    def _check_path(self, scale: int) -> None:
        """pgbench's tables have no schema in their names: without the search path they would land elsewhere."""
        with psycopg.connect(self._conninfo(scale), password=self._server.password, connect_timeout=10) as connection:
            path = connection.execute("SHOW search_path").fetchone()
        if path != (SCHEMA.format(scale=scale),):
            raise BenchError(
                "the service does not keep search_path (a connection pooler?); give the server's own address"
            )

    def _pgbench(self, scale: int, arguments: Sequence[str], directory: Path | None = None) -> str:
        """What pgbench prints; ended at once, with KeyboardInterrupt, when the study is to stop."""
        command = [str(self._program), *arguments, self._conninfo(scale)]
        environment = os.environ | {"PGPASSWORD": self._server.password}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=directory, env=environment,
            start_new_session=True,
        ) as process:  # fmt: skip
            while True:
                try:
                    printed, complaint = process.communicate(timeout=0.2)
                    break
                except subprocess.TimeoutExpired:
                    if self._stop.is_set():
                        process.kill()
                        raise KeyboardInterrupt from None
        if process.returncode:
            lines = [line for line in complaint.splitlines() if "error" in line or "fatal" in line.lower()]
            first = (lines or complaint.strip().splitlines() or [f"exit status {process.returncode}"])[0]
            raise BenchError(f"pgbench: {first.removeprefix('pgbench: ')}")
        return printed

    def _check_new(self, scale: int) -> None:
        schema = SCHEMA.format(scale=scale)
        for table, rows, balance in (
            ("accounts", ACCOUNTS * scale, "sum(abalance)"), ("tellers", TELLERS * scale, "sum(tbalance)"),
            ("branches", scale, "sum(bbalance)"), ("history", 0, "0"),
        ):  # fmt: skip
            content = self._tables.run(f"SELECT count(*), {balance}::bigint FROM {schema}.pgbench_{table}")[0]
            if content != (rows, 0):
                raise BenchError(
                    f"a new pgbench_{table} has {content[0]} rows, which sum to {content[1]}, instead of {rows}"
                )

    def _balances(self, scale: int) -> tuple[int, int]:
        schema = SCHEMA.format(scale=scale)
        branches, tellers = self._tables.run(
            f"SELECT (SELECT sum(bbalance)::bigint FROM {schema}.pgbench_branches), "
            f"(SELECT sum(tbalance)::bigint FROM {schema}.pgbench_tellers)"
        )[0]
        return branches, tellers

    def _check_balances(self, test: Test, transactions: int, before: tuple[int, int]) -> None:
        """The history, which pgbench empties before a run, must hold each transaction, and balances their sum."""
        rows, total = self._tables.run(
            f"SELECT count(*), coalesce(sum(delta), 0)::bigint FROM {SCHEMA.format(scale=test.scale)}.pgbench_history"
        )[0]
        expected = 0 if test.select_only else transactions
        if rows != expected:
            raise BenchError(f"pgbench did {expected:,} transactions, and pgbench_history has {rows:,}")
        for name, then, now in zip(("branches", "tellers"), before, self._balances(test.scale), strict=True):
            if now - then != total:
                raise BenchError(
                    f"balances of pgbench_{name} changed by {now - then}, those in pgbench_history by {total}"
                )

    def _clients_gone(self) -> bool:
        """Whether the server has let go of all clients of pgbench, for which it gets some time."""
        busy = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'pgbench' AND datname = current_database()"
        deadline = time.monotonic() + GONE_SECONDS
        while self._tables.run(busy):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _counters(self) -> dict[str, int | None]:
        """What the server has counted so far, after all clients of pgbench have gone: they count on their way out."""
        if not self._clients_gone():
            return {}
        counted: dict[str, int | None] = {}
        for names, query in ((("hits", "misses"), CACHE), (("reads", "writes"), IO), (("wal",), WAL)):
            try:
                counted |= zip(names, self._tables.run(query)[0], strict=True)
            except ServerError:
                counted |= dict.fromkeys(names)  # not on this service, or not for this user: the columns stay empty
        return counted


def _summary_of(printed: str) -> dict[str, Any]:
    """The figures in what pgbench prints at its end."""

    def figure(pattern: str) -> float:
        match = re.search(pattern, printed, re.MULTILINE)
        if match is None:
            raise BenchError(f"pgbench's summary is not understood: {' '.join(printed.split())[:200]}")
        return float(match[1])

    if failed := figure(r"^number of failed transactions: (\d+)"):
        raise BenchError(f"{failed:,.0f} transactions failed")
    return {
        "transactions": int(figure(r"^number of transactions actually processed: (\d+)")),
        "tps": figure(r"^tps = ([\d.]+) \(without initial connection time\)"),
        "latency_average_ms": figure(r"^latency average = ([\d.]+) ms"),
        "connect_ms": figure(r"^initial connection time = ([\d.]+) ms"),
    }


def _latencies(logs: Iterable[Path]) -> dict[str, float]:
    """Return percentiles of the latency of transactions, from pgbench's logs.

    Their columns: https://www.postgresql.org/docs/18/pgbench.html#id-1.9.4.11.9.7
    """
    columns = ["client", "transaction", "latency_us", "script", "epoch_s", "epoch_us"]
    parts = [
        pl.read_csv(log, separator=" ", has_header=False, new_columns=columns, columns=[2])
        for log in logs
        if log.stat().st_size
    ]
    if not parts:
        raise BenchError("not one transaction is in pgbench's log")
    latency_ms = pl.concat(parts)["latency_us"].to_numpy() / 1e3
    figures = dict(zip(PERCENTILES, np.percentile(latency_ms, list(PERCENTILES.values())).tolist(), strict=True))
    return figures | {"latency_max_ms": float(latency_ms.max())}


def _of_server(
    before: dict[str, int | None], after: dict[str, int | None], seconds: float, transactions: int
) -> dict[str, float | None]:
    """What a run took of the server, by what it counted before and after."""
    spent = {
        name: now - then for name, now in after.items() if now is not None and (then := before.get(name)) is not None
    }
    touched = spent.get("hits", 0) + spent.get("misses", 0)
    return {
        "cache_hit_ratio": spent["hits"] / touched if touched else None,
        "reads_per_s": spent["reads"] / seconds if "reads" in spent else None,
        "writes_per_s": spent["writes"] / seconds if "writes" in spent else None,
        "wal_bytes_per_transaction": spent["wal"] / transactions if "wal" in spent and transactions else None,
    }
