"""Measure whole scripts, each in a fresh process: from its start to rows committed, or to a frame that was read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from framehaul.bench import recording
from framehaul.bench.passes import Pass, columns_of, last_line, right
from framehaul.bench.rounds import Rounds, check, interruptible
from framehaul.bench.store import Status
from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.errors import UnavailableError, WrongResultError
from framehaul.servers import Servers
from framehaul.servers.tables import tables_of
from framehaul.studies.registry import SCRIPTS_STUDY
from framehaul.studies.scripts.catalog import SCRIPTS, TABLE, Script

PATIENCE_SECONDS = 600
LAUNCHER = """
import json, os, sys, time
start = time.perf_counter()
process = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(process, 0)
seconds = time.perf_counter() - start
print(json.dumps([seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss, os.waitstatus_to_exitcode(status)]))
"""
"""Starts a script and waits for it: the peak memory of a process includes that of the process which started it."""


@dataclass(frozen=True)
class Result:
    """A pass of a script; a missing number is None, never 0."""

    run_id: str
    database: str
    direction: str
    script: str
    rows: int
    pass_: int
    seconds: float | None = None
    rows_per_s: float | None = None
    client_cpu_s: float | None = None
    peak_rss_bytes: int | None = None
    status: Status = "ok"
    reason: str | None = None


class Task(NamedTuple):
    """A script and the rows that it moves."""

    script: Script
    rows: int


@recording.study(SCRIPTS_STUDY.notebook, Result)
def run(*, sizes: list[int], rounds: int, warmup: int, seed: int) -> None:
    """Measure every script with each number of rows.

    Writes fill an empty table, and what they stored is verified; of reads the number of rows is. Raises ValueError for
    a parameter out of range, and the errors of `recording.with_servers`.
    """
    for rows in sizes:
        check(SIZES=(rows, 1))
    schedule = Rounds(rounds, warmup, seed)
    tasks = [Task(script, rows) for rows in sizes for script in SCRIPTS]
    with (
        tempfile.TemporaryDirectory(prefix="framehaul-scripts-") as name,
        recording.with_servers(SCRIPTS_STUDY, Result, schedule, sizes=sizes) as (this_run, both),
    ):
        home = Path(name).resolve()
        contents = {rows: generator.arrow_table(TABLE, rows, seed) for rows in sizes}
        for rows, content in contents.items():
            numbered = content.set_column(0, "id", pa.array(range(rows), pa.int64()))
            contents[rows] = numbered.cast(TABLE.arrow_schema)
            pq.write_table(contents[rows], home / f"{rows}.parquet")
        this_run.expect(len(tasks) * (warmup + rounds))

        def row(task: Task, number: int, outcome: Pass[dict[str, Any]]) -> Result:
            script = task.script
            names = script.database, script.direction, script.name
            return Result(this_run.run_id, *names, task.rows, number, **columns_of(outcome))

        def measure(task: Task, _: int) -> dict[str, Any]:
            return measured(task, contents[task.rows], home, both)

        def work(stop: threading.Event) -> None:
            this_run.in_rounds(tasks, schedule, measure, row, lambda task: task.script.name, stop=stop, home=home)

        interruptible(work)
        for database in ("postgres", "clickhouse"):
            tables_of(both.of(database)).drop(TABLE)
        sizes_text = ", ".join(f"{rows:,}" for rows in sizes)
        this_run.metadata["what"] = f"{sizes_text} rows, {rounds} rounds after {warmup} warm-up, seed {seed}"


def measured(task: Task, content: pa.Table, home: Path, both: Servers) -> dict[str, Any]:
    """Run a script in a new process and return the figures of the pass.

    Raises WrongResultError when it fails or moves other rows, and UnavailableError when it would take minutes.
    """
    script, tables = task.script, tables_of(both.of(task.script.database))
    if task.rows > script.most_rows:
        raise UnavailableError(
            f"it would take minutes: it sends rows one at a time, and runs to {script.most_rows:,} rows"
        )
    tables.create(TABLE)
    if script.direction == "read":
        tables.load(TABLE, content)
    (home / "script.py").write_text(script.code, "utf8")
    at = both.clickhouse
    address = f"http://{quote(at.user, '')}:{quote(at.password, '')}@{at.host}:{at.http_port}/{at.database}"
    addresses = {"DATABASE_URL": both.postgres.dsn(), "CLICKHOUSE_URL": address}
    command = [sys.executable, "script.py", str(home / f"{task.rows}.parquet")]
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER, *command], cwd=home, capture_output=True, text=True, check=False,
        env=os.environ | addresses, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    written, _, taken = done.stdout.strip().rpartition("\n")
    seconds, cpu_s, peak_rss, status = json.loads(taken)
    if status:
        raise WrongResultError(last_line(done.stderr, f"it ended with status {status} without a word")[:400])
    if script.direction == "write":
        wrong = Expected(TABLE, content).difference(tables.content(TABLE))
    else:
        wrong = None if written == str(task.rows) else f"{written} rows instead of {task.rows}"
    peak_rss_bytes = peak_rss * (1 if sys.platform == "darwin" else 1024)
    values = {"seconds": seconds, "rows_per_s": task.rows / seconds}
    return right(values | {"client_cpu_s": cpu_s, "peak_rss_bytes": peak_rss_bytes}, wrong)
