"""Measure whole scripts, each in a fresh process: from its start to rows committed, or to a frame that was read."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from framehaul.bench import recording
from framehaul.bench.passes import Pass, columns_of, right
from framehaul.bench.rounds import Rounds, interruptible
from framehaul.bench.store import Status
from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.errors import UnavailableError
from framehaul.servers import Servers
from framehaul.servers.tables import tables_of
from framehaul.studies.drivers.catalog import output_of
from framehaul.studies.registry import SCRIPTS_STUDY
from framehaul.studies.scripts.catalog import SCRIPTS, TABLE, Script

PATIENCE_SECONDS = 600
LAUNCHER = """
import json, os, sys, time
start = time.perf_counter()
process = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(process, 0)
seconds = time.perf_counter() - start
print(json.dumps([seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss]))
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""Starts a script and waits for it: the peak memory of a process includes that of the process which started it."""

type Task = tuple[int, Script]
"""A number of rows, and the script that moves them."""


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


@recording.study(SCRIPTS_STUDY.notebook, Result)
def run(*, sizes: list[int], rounds: int, warmup: int, seed: int) -> None:
    """Measure every script with each number of rows and return one row per pass.

    Writes fill an empty table, and what they stored is verified; of reads the number of rows is.
    """
    schedule, tasks = Rounds(rounds, warmup, seed), [*product(sizes, SCRIPTS)]
    with (
        tempfile.TemporaryDirectory(prefix="framehaul-scripts-") as name,
        recording.with_servers(SCRIPTS_STUDY, Result, schedule, sizes=sizes) as (this_run, both),
    ):
        home, contents = Path(name).resolve(), dict[int, pa.Table]()
        for rows in sizes:
            generated = generator.arrow_table(TABLE, rows, seed)
            numbered = generated.set_column(0, "id", pa.array(range(rows), pa.int64()))
            contents[rows] = numbered.cast(TABLE.arrow_schema)
            pq.write_table(contents[rows], home / f"{rows}.parquet")
        this_run.expect(len(tasks) * (warmup + rounds))

        def row(task: Task, number: int, outcome: Pass[dict[str, Any]]) -> Result:
            rows, script = task
            labels = script.database, script.direction, script.name
            return Result(this_run.run_id, *labels, rows, number, **columns_of(outcome))

        def measure(task: Task, _: int) -> dict[str, Any]:
            return measured(task[1], contents[task[0]], home, both)

        def name_of(task: Task) -> str:
            return task[1].name

        interruptible(lambda stop: this_run.in_rounds(tasks, schedule, measure, row, name_of, stop=stop, home=home))
        for database in ("postgres", "clickhouse"):
            tables_of(both.of(database)).drop(TABLE)
        sizes_text = ", ".join(f"{rows:,}" for rows in sizes)
        this_run.metadata["what"] = f"{sizes_text} rows, {rounds} rounds after {warmup} warm-up, seed {seed}"


def measured(script: Script, content: pa.Table, home: Path, both: Servers) -> dict[str, Any]:
    """Run a script in a new process and return the figures of the pass.

    Raises WrongResultError when it fails or moves other rows, and UnavailableError when it would take minutes.
    """
    rows, tables = content.num_rows, tables_of(both.of(script.database))
    if rows > script.most_rows:
        limit = f"it sends rows one at a time, and runs to {script.most_rows:,} rows"
        raise UnavailableError(f"it would take minutes: {limit}")
    tables.create(TABLE)
    if script.direction == "read":
        tables.load(TABLE, content)
    (home / "script.py").write_text(script.code, "utf8")
    at = both.clickhouse
    address = f"http://{quote(at.user, '')}:{quote(at.password, '')}@{at.host}:{at.http_port}/{at.database}"
    environment = os.environ | {"DATABASE_URL": both.postgres.dsn(), "CLICKHOUSE_URL": address}
    command = [sys.executable, "-c", LAUNCHER, sys.executable, "script.py", str(home / f"{rows}.parquet")]
    printed = output_of(command, PATIENCE_SECONDS, cwd=home, env=environment)
    written, _, taken = printed.strip().rpartition("\n")
    seconds, cpu_s, peak_rss = json.loads(taken)
    if script.direction == "write":
        wrong = Expected(TABLE, content).difference(tables.content(TABLE))
    else:
        wrong = None if written == str(rows) else f"{written} rows instead of {rows}"
    memory = {"peak_rss_bytes": peak_rss * (1 if sys.platform == "darwin" else 1024)}
    return right({"seconds": seconds, "rows_per_s": rows / seconds, "client_cpu_s": cpu_s} | memory, wrong)
