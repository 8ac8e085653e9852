"""Run pgbench on every service: data sets in schemas of framehaul, rounds of every test, and checks of the results."""

import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Self

import polars as pl
import psycopg
from psycopg.conninfo import make_conninfo

from framehaul import servers
from framehaul.bench import store
from framehaul.bench.recording import Recording, recorded
from framehaul.bench.rounds import Ok, Pass, Rounds, attempt, in_rounds, value_of
from framehaul.data.schema import COMMENT
from framehaul.errors import ServerError, UnavailableError, WrongResultError
from framehaul.servers import PostgresServer
from framehaul.servers.embedded import home_of_a_run
from framehaul.servers.local import program
from framehaul.servers.tables import PostgresTables
from framehaul.settings import Settings
from framehaul.studies.pgbench import workloads
from framehaul.studies.pgbench.services import Service, chosen, data_of, disk_of, limited, operations, started
from framehaul.studies.pgbench.workloads import BYTES_PER_SCALE, Test
from framehaul.studies.registry import PGBENCH

# Published ratios of transactions per second: PostgreSQL 17, 2 cores (cpu) and 16 cores (the other tests).
# https://clickhouse.com/docs/cloud/managed-postgres/benchmarks
PUBLISHED_RATIOS = (
    ("cpu", "ClickHouse's NVMe over RDS gp3", 1.12),
    ("io_read", "ClickHouse's NVMe over RDS with 16,000 IOPS", 9.0),
    ("io_write", "ClickHouse's NVMe over RDS with 16,000 IOPS", 4.3),
    ("io_write", "ClickHouse's NVMe over Aurora I/O optimised", 4.5),
)
SUMMARY = re.compile(
    r"^number of transactions actually processed: (?P<transactions>\d+).*"
    r"^number of failed transactions: (?P<failed>\d+).*"
    r"^latency average = (?P<latency>[\d.]+) ms.*^tps = (?P<tps>[\d.]+) \(without initial connection time\)",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Result(store.Row):
    """A run of a test on a service; a missing number is None, never 0.

    `disk_iops` counts reads and writes of the disk by all processes. Pass 0 is a failed check of accounts at the end.
    """

    service: str
    label: str
    test: str
    scale: int
    clients: int
    tps: float | None = None
    transactions: int | None = None
    seconds: float | None = None
    latency_average_ms: float | None = None
    latency_p50_ms: float | None = None
    latency_p95_ms: float | None = None
    latency_p99_ms: float | None = None
    disk_iops: float | None = None


class Bench:
    """A data set of pgbench in a schema of framehaul; runs that fail or are wrong raise WrongResultError."""

    def __init__(self, server: PostgresServer, scale: int, settings: Settings, stop: threading.Event) -> None:
        self._server, self._tables, self._stop = server, PostgresTables(server), stop
        self._program = settings.pgbench or program("pgbench")
        self.scale, self.schema = scale, f"framehaul_pgbench_{scale}"
        self._data, self._disk = data_of(server), disk_of(server)

    def create(self) -> Self:
        """Create the data set; a data set that a killed run left is replaced."""
        needed = 1.3 * BYTES_PER_SCALE * self.scale  # to create and to change it
        if self._data and (free := shutil.disk_usage(self._data).free) < needed:
            room = f"{needed / 1e9:,.0f} GB of disk, and {free / 1e9:,.0f} GB are free"
            raise UnavailableError(f"scale {self.scale:,} takes {room}")
        self.drop()
        self._tables.run(f"CREATE SCHEMA {self.schema}; COMMENT ON SCHEMA {self.schema} IS '{COMMENT}'")
        # Some connection poolers drop the search path, and pgbench would use tables of another schema.
        with psycopg.connect(self._conninfo(), password=self._server.password, connect_timeout=10) as session:
            if session.execute("SHOW search_path").fetchone() != (self.schema,):
                remedy = "give the server's own address"
                raise WrongResultError(f"the service does not keep search_path (a connection pooler?); {remedy}")
        self._pgbench(f"-i -s {self.scale}")
        return self

    def run(self, test: Test) -> dict[str, Any]:
        """Run a test after its warm-up, check that the history has all transactions, and return the figures."""
        if test.warm_up:
            self._pgbench(test.warm_up)
        self._tables.quiesce()
        with tempfile.TemporaryDirectory(prefix="framehaul-pgbench-") as directory:
            start, before = time.perf_counter(), operations(self._disk)
            printed = self._pgbench(test.options, directory)
            seconds = time.perf_counter() - start
            iops = (operations(self._disk) - before) / seconds if self._disk else None
            # The third column is the latency in microseconds: https://www.postgresql.org/docs/18/pgbench.html
            logs = [log for log in Path(directory).glob("transactions.*") if log.stat().st_size]
            latency_us = pl.concat(pl.read_csv(log, separator=" ", has_header=False, columns=[2]) for log in logs)
        found = SUMMARY.search(printed)
        if found is None or int(found["failed"]):
            raise WrongResultError(f"transactions failed, or another summary was expected: {' '.join(printed.split())}")
        # pgbench empties the history before a run.
        [(rows,)] = self._tables.run(f"SELECT count(*) FROM {self.schema}.pgbench_history")
        transactions = int(found["transactions"])
        if rows != (expected := 0 if test.select_only else transactions):
            raise WrongResultError(f"pgbench did {expected:,} transactions, and pgbench_history has {rows:,}")
        latency_ms = latency_us.to_series() / 1e3
        latencies = {f"latency_p{at}_ms": latency_ms.quantile(at / 100, "linear") for at in (50, 95, 99)}
        figures = {"tps": float(found["tps"]), "latency_average_ms": float(found["latency"]), "disk_iops": iops}
        return {"transactions": transactions, "seconds": seconds} | figures | latencies

    def check_accounts(self) -> None:
        """Raise WrongResultError if accounts are missing, or if the sums of balances differ between the tables."""
        schema, expected = self.schema, 100_000 * self.scale
        rows, *balances = self._tables.run(
            f"SELECT count(*), sum(abalance)::bigint, (SELECT sum(bbalance)::bigint FROM {schema}.pgbench_branches), "
            f"(SELECT sum(tbalance)::bigint FROM {schema}.pgbench_tellers) FROM {schema}.pgbench_accounts"
        )[0]
        if rows != expected:
            raise WrongResultError(f"pgbench_accounts has {rows:,} rows instead of {expected:,}")
        if len({*balances}) > 1:
            raise WrongResultError("balances differ: {} in accounts, {} in branches, {} in tellers".format(*balances))

    def drop(self) -> None:
        """Drop the data set if it exists; raises ServerError if its schema is not framehaul's."""
        query = f"SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = '{self.schema}'"
        for (comment,) in self._tables.run(query):
            if comment != COMMENT:
                raise ServerError(f"schema {self.schema} exists and is not framehaul's; rename or drop it")
            self._tables.run(f"DROP SCHEMA {self.schema} CASCADE")

    def _conninfo(self) -> str:
        """Return the address for pgbench without the password: other accounts can read the arguments of a process."""
        server, options = self._server, dict(self._server.options)
        options["options"] = f"{options.get('options', '')} -c search_path={self.schema}".strip()
        return make_conninfo(host=server.host, port=server.port, user=server.user, dbname=server.database, **options)

    def _pgbench(self, arguments: str, directory: str | None = None) -> str:
        """Run pgbench and return its output; raises KeyboardInterrupt if the study is stopped."""
        command = [str(self._program), *arguments.split(), self._conninfo()]
        how: dict[str, Any] = {"cwd": directory, "env": os.environ | {"PGPASSWORD": self._server.password}}
        how |= dict.fromkeys(("stdout", "stderr"), subprocess.PIPE) | {"text": True, "start_new_session": True}
        with subprocess.Popen(command, **how) as process:
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
            raise WrongResultError(f"pgbench ended with status {process.returncode}: {(errors or [complaint])[0]}")
        return str(printed)


type Task = tuple[Service, Test]


@recorded(PGBENCH, Result)
def run(this_run: Recording, *, workload: str, rounds: int, seed: int, services: str = "") -> None:
    """Run the tests of a workload on every service; `services` names the examples to run, by default all.

    With SERVERS=docker or external, that server replaces the examples. Raises what `services.chosen` raises.
    """
    tests, settings = workloads.tests(workload), this_run.settings
    shared = None if settings.servers == "embedded" else this_run.entered(servers.running(settings)).postgres
    offered = chosen(settings, tests, services, shared)
    limits = this_run.entered(ExitStack())  # they end after the servers
    home = this_run.entered(home_of_a_run(settings.state_dir, "pgbench"))
    opened = this_run.entered(ExitStack())
    tasks, written = [*product(offered, tests)], set[Task]()
    benches: dict[Service, Pass[dict[int, Pass[Bench]]]] = {}

    def prepared(service: Service) -> dict[int, Pass[Bench]]:
        """Start a service, create its data sets, and limit its disk; return the data sets by scale."""
        server, created = opened.enter_context(started(service, home)), dict[int, Pass[Bench]]()
        for scale in {test.scale for test in tests}:
            bench = Bench(server, scale, settings, this_run.stop)
            opened.callback(attempt, bench.drop)  # if the server is gone, the next run drops it
            created[scale] = attempt(bench.create)
        limits.enter_context(limited(server.process_id, disk_of(server), service.iops))
        return created

    def bench_of(task: Task) -> Bench:
        return value_of(value_of(benches[task[0]])[task[1].scale])

    def measure(task: Task, _: int) -> dict[str, Any]:
        bench = bench_of(task)
        written.update([] if task[1].select_only else [task])
        return bench.run(task[1])

    row = this_run.rows(Result, lambda of: (of[0].name, of[0].label, of[1].name, of[1].scale, of[1].clients))
    for service in offered:
        this_run.progress(f"{service.name}: creating data")
        benches[service] = attempt(partial(prepared, service), home)
    in_rounds(tasks, Rounds(rounds, seed=seed), measure, this_run.log(row, "{0[0].name} {0[1].name}".format))
    for task in written:  # only once, because the check of a large data set takes longer than a run
        checked = attempt(bench_of(task).check_accounts)
        if not isinstance(checked, Ok):
            this_run.write(row(task, 0, checked))
    this_run.metadata["what"] = f"workload {workload}, {len(offered)} services, {rounds} passes"
    this_run.metadata["servers"] = settings.servers
