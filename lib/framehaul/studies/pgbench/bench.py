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

from framehaul.data.schema import COMMENT
from framehaul.errors import ServerError, UnavailableError
from framehaul.servers import PostgresServer
from framehaul.servers.postgres import program
from framehaul.servers.tables import PostgresTables
from framehaul.settings import Settings
from framehaul.studies.pgbench.services import Service
from framehaul.studies.pgbench.workloads import LOG, Test

SCHEMA = "framehaul_pgbench_{scale}"
ACCOUNTS = 100_000
"""Rows for each unit of scale."""
GONE_SECONDS = 30
"""How long clients of an interrupted run may still commit."""
ROOM = 1.3
"""Space that a data set takes while it is made and changed, over its size."""
PERCENTILES = {"latency_p50_ms": 50, "latency_p95_ms": 95, "latency_p99_ms": 99}


class BenchError(RuntimeError):
    """pgbench did not run to its end, or what it left is not right; the message says why."""


class Bench:
    """One service, with data sets of ours on it until `clean`.

    Raises BenchError when the service did not start.
    """

    def __init__(self, service: Service, settings: Settings, stop: threading.Event) -> None:
        if service.server is None:
            raise BenchError(service.trouble or "the service did not start")
        self._service, self._stop = service, stop
        self._server: PostgresServer = service.server
        self._tables = PostgresTables(service.server)
        self._program = settings.pgbench or program("pgbench")
        self._schemas: list[str] = []

    def metadata(self) -> dict[str, Any]:
        """Return the version and settings of the server; raises ServerError when it cannot be used."""
        return self._tables.metadata()

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

    def run(self, test: Test) -> dict[str, Any]:
        """Run a test after its warm-up, and check that the server holds each of its transactions.

        Raises BenchError when it did not run to its end, or lost a transaction.
        """
        if test.warm_up_length:
            self._pgbench(test.scale, test.warm_up())
        self._tables.quiesce()
        disk = self._service.disk
        with tempfile.TemporaryDirectory(prefix="framehaul-pgbench-") as name:
            start, operations = time.perf_counter(), disk.operations() if disk else None
            printed = self._pgbench(test.scale, [*test.options(), *test.logging()], Path(name))
            seconds = time.perf_counter() - start
            iops = (disk.operations() - operations) / seconds if disk and operations is not None else None
            figures = _summary_of(printed) | _latencies(Path(name).glob(f"{LOG}.*"))
        # pgbench empties the history before a run.
        [(rows,)] = self._tables.run(f"SELECT count(*) FROM {SCHEMA.format(scale=test.scale)}.pgbench_history")
        if rows != (expected := 0 if test.select_only else figures["transactions"]):
            raise BenchError(f"pgbench did {expected:,} transactions, and pgbench_history has {rows:,}")
        return figures | {"seconds": seconds, "disk_iops": iops}

    def check_accounts(self, scale: int) -> None:
        """Compare balances of all accounts with those of branches and tellers; raises BenchError where they differ."""
        busy = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'pgbench' AND datname = current_database()"
        deadline = time.monotonic() + GONE_SECONDS
        while self._tables.run(busy) and time.monotonic() < deadline:  # an interrupted run's clients may still commit
            time.sleep(0.02)
        schema = SCHEMA.format(scale=scale)
        rows, *balances = self._tables.run(
            f"SELECT count(*), sum(abalance)::bigint, (SELECT sum(bbalance)::bigint FROM {schema}.pgbench_branches), "
            f"(SELECT sum(tbalance)::bigint FROM {schema}.pgbench_tellers) FROM {schema}.pgbench_accounts"
        )[0]
        if rows != ACCOUNTS * scale:
            raise BenchError(f"pgbench_accounts has {rows:,} rows instead of {ACCOUNTS * scale:,}")
        if len({*balances}) > 1:
            raise BenchError("balances differ: {} in accounts, {} in branches, {} in tellers".format(*balances))

    def clean(self) -> str | None:
        """Drop our data sets; what could not be dropped and why, or None."""
        left: list[str] = []
        why = ""
        for schema in self._schemas:
            try:
                self._drop(schema)
            except ServerError as error:
                left, why = [*left, schema], str(error)
        return f"schema {', '.join(left)} is left on {self._service.name}, drop it by hand: {why}" if left else None

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
    return dict(zip(PERCENTILES, np.percentile(latency_ms, list(PERCENTILES.values())).tolist(), strict=True))
