"""Run pgbench against a service, on data sets in schemas of framehaul, and check its results."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
from psycopg.conninfo import make_conninfo

from framehaul.bench.passes import Pass, attempt, value_of
from framehaul.data.schema import COMMENT
from framehaul.errors import ServerError, UnavailableError, WrongResultError
from framehaul.servers import PostgresServer
from framehaul.servers.local import program
from framehaul.servers.tables import PostgresTables
from framehaul.settings import Settings
from framehaul.studies.pgbench.services import Service
from framehaul.studies.pgbench.workloads import LOG, Test

SCHEMA = "framehaul_pgbench_{scale}"
ACCOUNTS = 100_000
"""Rows per unit of scale."""
ROOM = 1.3
"""The disk space that a data set needs while it is created and changed, divided by its size."""
PERCENTILES = (50, 95, 99)
SUMMARY = re.compile(
    r"^number of transactions actually processed: (?P<transactions>\d+).*"
    r"^number of failed transactions: (?P<failed>\d+).*"
    r"^latency average = (?P<latency>[\d.]+) ms.*^tps = (?P<tps>[\d.]+) \(without initial connection time\)",
    re.MULTILINE | re.DOTALL,
)


class Bench:
    """A service and its data sets until `clean`; without a server, all methods except `clean` raise WrongResultError.

    They also raise it if a run of pgbench does not finish, or its result is wrong.
    """

    def __init__(self, service: Service, settings: Settings, stop: threading.Event) -> None:
        self.service, self._stop = service, stop
        self._program = settings.pgbench or program("pgbench")
        self._schemas: list[str] = []
        self._created: dict[int, Pass[None]] = {}

    @property
    def _server(self) -> PostgresServer:
        if self.service.server is None:
            raise WrongResultError(self.service.trouble or "the service did not start")
        return self.service.server

    @property
    def _tables(self) -> PostgresTables:
        return PostgresTables(self._server)

    def create(self, tests: Iterable[Test]) -> None:
        """Create the data sets of tests; `run` raises the error of a data set that could not be created."""
        of_scale = {test.scale: test for test in tests}
        self._created |= {scale: attempt(partial(self.initialise, test)) for scale, test in of_scale.items()}

    def initialise(self, test: Test) -> None:
        """Create the data set of a test in a schema of framehaul; a data set that a killed run left is replaced."""
        data, needed = self.service.data, ROOM * test.data_bytes
        if data is not None and (free := shutil.disk_usage(data).free) < needed:
            room = f"{needed / 1e9:,.0f} GB of disk, and {free / 1e9:,.0f} GB are free"
            raise UnavailableError(f"scale {test.scale:,} takes {room}")
        schema = SCHEMA.format(scale=test.scale)
        self._drop(schema)
        self._tables.run(f"CREATE SCHEMA {schema}")
        self._schemas.append(schema)
        self._tables.run(f"COMMENT ON SCHEMA {schema} IS '{COMMENT}'")
        # Some connection poolers drop the search path, and pgbench would use tables of another schema.
        with psycopg.connect(self._conninfo(test.scale), password=self._server.password, connect_timeout=10) as session:
            if session.execute("SHOW search_path").fetchone() != (schema,):
                remedy = "give the server's own address"
                raise WrongResultError(f"the service does not keep search_path (a connection pooler?); {remedy}")
        self._pgbench(test.scale, test.initialisation())

    def run(self, test: Test) -> dict[str, Any]:
        """Run a test after its warm-up, check that the history has all transactions, and return the figures."""
        value_of(self._created[test.scale])
        if warm_up := test.warm_up():
            self._pgbench(test.scale, warm_up)
        self._tables.quiesce()
        disk = self.service.disk
        with tempfile.TemporaryDirectory(prefix="framehaul-pgbench-") as name:
            start, operations = time.perf_counter(), disk.operations() if disk else None
            printed = self._pgbench(test.scale, test.options(), Path(name))
            seconds = time.perf_counter() - start
            iops = (disk.operations() - operations) / seconds if disk and operations is not None else None
            figures = _summary_of(printed) | _latencies(Path(name).glob(f"{LOG}.*"))
        # pgbench empties the history before a run.
        [(rows,)] = self._tables.run(f"SELECT count(*) FROM {SCHEMA.format(scale=test.scale)}.pgbench_history")
        if rows != (expected := 0 if test.select_only else figures["transactions"]):
            raise WrongResultError(f"pgbench did {expected:,} transactions, and pgbench_history has {rows:,}")
        return figures | {"seconds": seconds, "disk_iops": iops}

    def check_accounts(self, scale: int) -> None:
        """Raise WrongResultError if the sums of balances of accounts, branches and tellers differ."""
        schema = SCHEMA.format(scale=scale)
        rows, *balances = self._tables.run(
            f"SELECT count(*), sum(abalance)::bigint, (SELECT sum(bbalance)::bigint FROM {schema}.pgbench_branches), "
            f"(SELECT sum(tbalance)::bigint FROM {schema}.pgbench_tellers) FROM {schema}.pgbench_accounts"
        )[0]
        if rows != ACCOUNTS * scale:
            raise WrongResultError(f"pgbench_accounts has {rows:,} rows instead of {ACCOUNTS * scale:,}")
        if len({*balances}) > 1:
            raise WrongResultError("balances differ: {} in accounts, {} in branches, {} in tellers".format(*balances))

    def clean(self) -> None:
        """Drop the data sets; if the server is gone, the next run drops them."""
        for schema in self._schemas:
            with suppress(ServerError):
                self._drop(schema)

    def _drop(self, schema: str) -> None:
        query = f"SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = '{schema}'"
        for (comment,) in self._tables.run(query):
            if comment != COMMENT:
                raise ServerError(f"schema {schema} exists and is not framehaul's; rename or drop it")
            self._tables.run(f"DROP SCHEMA {schema} CASCADE")

    def _conninfo(self, scale: int) -> str:
        """Return the address for pgbench without the password: other accounts can read the arguments of a process."""
        server, path = self._server, f"-c search_path={SCHEMA.format(scale=scale)}"
        options = dict(server.options)
        options["options"] = f"{options.get('options', '')} {path}".strip()
        return make_conninfo(host=server.host, port=server.port, user=server.user, dbname=server.database, **options)

    def _pgbench(self, scale: int, arguments: Sequence[str], directory: Path | None = None) -> str:
        """Run pgbench and return its output; raises KeyboardInterrupt if the study is stopped."""
        command = [str(self._program), *arguments, self._conninfo(scale)]
        environment, pipe = os.environ | {"PGPASSWORD": self._server.password}, subprocess.PIPE
        with subprocess.Popen(
            command, cwd=directory, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        ) as process:
            while True:
                try:
                    printed, complaint = process.communicate(timeout=0.2)
                    break
                except subprocess.TimeoutExpired:
                    if self._stop.is_set():
                        process.kill()
                        raise KeyboardInterrupt from None
        if process.returncode:
            errors = [line for line in complaint.splitlines() if "error" in line or "FATAL" in line]
            first = [*errors, complaint.strip() or f"exit status {process.returncode}"][0]
            raise WrongResultError(f"pgbench: {first.removeprefix('pgbench: ')}")
        return printed


def _summary_of(printed: str) -> dict[str, Any]:
    """Return the figures of pgbench's summary."""
    found = SUMMARY.search(printed)
    if found is None:
        raise WrongResultError(f"pgbench's summary is not understood: {' '.join(printed.split())[:200]}")
    if failed := int(found["failed"]):
        raise WrongResultError(f"{failed:,} transactions failed")
    figures = {"tps": float(found["tps"]), "latency_average_ms": float(found["latency"])}
    return figures | {"transactions": int(found["transactions"])}


def _latencies(logs: Iterable[Path]) -> dict[str, float | None]:
    """Return percentiles of the latency of transactions from pgbench's logs, whose third column is microseconds.

    https://www.postgresql.org/docs/18/pgbench.html#id-1.9.4.11.9.7
    """
    written = [log for log in logs if log.stat().st_size]
    parts = [pl.read_csv(log, separator=" ", has_header=False, columns=[2]).to_series() for log in written]
    if not parts:
        raise WrongResultError("not one transaction is in pgbench's log")
    latency_ms = pl.concat(parts) / 1e3
    return {f"latency_p{per_cent}_ms": latency_ms.quantile(per_cent / 100, "linear") for per_cent in PERCENTILES}
