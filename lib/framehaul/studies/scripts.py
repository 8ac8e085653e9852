"""Scripts: whole Python processes that move one file or table, from their start to the end, imports included."""

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from framehaul.bench import store
from framehaul.bench.recording import Recording, recorded
from framehaul.bench.rounds import Rounds, in_rounds, right
from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.data.schema import Column, ColumnType, Table
from framehaul.errors import UnavailableError
from framehaul.servers import Servers
from framehaul.servers.tables import tables_of
from framehaul.studies.drivers.catalog import output_of
from framehaul.studies.registry import SCRIPTS_STUDY
from framehaul.techniques.registry import DATABASES, Database, Direction

TYPES = {"id": ColumnType.INT64, "day": ColumnType.DATE, "name": ColumnType.TEXT, "value": ColumnType.FLOAT64}
TABLE = Table("framehaul_script", tuple(Column(name, kind) for name, kind in TYPES.items()), ("id",))
"""The table of all scripts, with types that every library carries."""


class Script(NamedTuple):
    """A script as the documentation of its library has it, and its name in tables and charts.

    It gets the path of a Parquet file, and the addresses of the servers in DATABASE_URL and CLICKHOUSE_URL.
    """

    database: Database
    direction: Direction
    name: str
    code: str
    most_rows: int = 10_000_000
    """The most rows that it moves within seconds."""


OWN_WRITE = """\
import os, sys
import framehaul
import polars as pl

framehaul.write(pl.read_parquet(sys.argv[1]), os.environ["{0}"], "framehaul_script")
"""
OWN_READ = """\
import os
import framehaul

frame = framehaul.read(os.environ["{0}"], "SELECT * FROM framehaul_script")
print(len(frame))
"""
SQLALCHEMY = 'sqlalchemy.create_engine(os.environ["DATABASE_URL"].replace("postgresql:", "postgresql+psycopg:"))'
POLARS = "import os, sys\nimport polars as pl\n\n"
READ_URI = POLARS + 'print(len(pl.read_database_uri("SELECT * FROM framehaul_script", os.environ["DATABASE_URL"]{})))\n'
CONNECT = """\
import os, sys
import clickhouse_connect
{}
client = clickhouse_connect.get_client(dsn=os.environ["CLICKHOUSE_URL"])
"""
ATTACH = """\
import glob, os, sys
import duckdb, duckdb_extension_postgres_scanner

connection = duckdb.connect()
for path in duckdb_extension_postgres_scanner.__path__:
    for extension in glob.glob(path + "/extensions/*/postgres_scanner.duckdb_extension"):
        connection.execute(f"LOAD '{extension}'")
connection.execute(f"ATTACH '{os.environ['DATABASE_URL']}' AS pg (TYPE postgres)")
"""
SCRIPTS = (
    Script("postgres", "write", "framehaul.write", OWN_WRITE.format("DATABASE_URL")),
    Script("postgres", "write", "pandas to_sql", f"""\
import os, sys
import pandas as pd
import sqlalchemy

with {SQLALCHEMY}.begin() as connection:
    pd.read_parquet(sys.argv[1]).to_sql("framehaul_script", connection, if_exists="append", index=False)
""", most_rows=100_000),
    Script("postgres", "write", "pandas to_sql, ADBC", """\
import os, sys
import adbc_driver_postgresql.dbapi
import pandas as pd

with adbc_driver_postgresql.dbapi.connect(os.environ["DATABASE_URL"]) as connection:
    frame = pd.read_parquet(sys.argv[1], dtype_backend="pyarrow")
    frame.to_sql("framehaul_script", connection, if_exists="append", index=False)
    connection.commit()
"""),
    Script("postgres", "write", "polars write_database, ADBC", POLARS + """\
pl.read_parquet(sys.argv[1]).write_database(
    "framehaul_script", os.environ["DATABASE_URL"], engine="adbc", if_table_exists="append"
)
"""),
    Script("postgres", "write", "DuckDB", ATTACH + """\
connection.execute(f"INSERT INTO pg.framehaul_script FROM read_parquet('{sys.argv[1]}')")
"""),
    Script("postgres", "read", "framehaul.read", OWN_READ.format("DATABASE_URL")),
    Script("postgres", "read", "pandas read_sql", f"""\
import os
import pandas as pd
import sqlalchemy

with {SQLALCHEMY}.connect() as connection:
    print(len(pd.read_sql(sqlalchemy.text("SELECT * FROM framehaul_script"), connection)))
"""),
    Script("postgres", "read", "polars read_database_uri, ADBC", READ_URI.format(', engine="adbc"')),
    Script("postgres", "read", "polars read_database_uri, ConnectorX", READ_URI.format("")),
    Script("postgres", "read", "DuckDB", ATTACH + 'print(len(connection.execute("FROM pg.framehaul_script").pl()))\n'),
    Script("clickhouse", "write", "framehaul.write", OWN_WRITE.format("CLICKHOUSE_URL")),
    Script("clickhouse", "write", "clickhouse-connect insert_df", CONNECT.format("import pandas as pd\n") +
           'client.insert_df("framehaul_script", pd.read_parquet(sys.argv[1]))\n'),
    Script("clickhouse", "write", "clickhouse-connect insert_arrow", CONNECT.format("import pyarrow.parquet as pq\n") +
           'client.insert_arrow("framehaul_script", pq.read_table(sys.argv[1]))\n'),
    Script("clickhouse", "read", "framehaul.read", OWN_READ.format("CLICKHOUSE_URL")),
    Script("clickhouse", "read", "clickhouse-connect query_df", CONNECT.format("") +
           'print(len(client.query_df("SELECT * FROM framehaul_script")))\n'),
    Script("clickhouse", "read", "clickhouse-connect query_arrow", CONNECT.format("import polars as pl\n") +
           'print(len(pl.DataFrame(client.query_arrow("SELECT * FROM framehaul_script"))))\n'),
)  # fmt: skip

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
class Result(store.Timed):
    """A pass of a script; a missing number is None, never 0."""

    database: str
    direction: str
    script: str
    rows: int
    client_cpu_s: float | None = None
    peak_rss_bytes: int | None = None


@recorded(SCRIPTS_STUDY, Result)
def run(this_run: Recording, *, sizes: list[int], rounds: int, warmup: int, seed: int) -> None:
    """Measure every script with each number of rows; rows that are written are verified, of reads their number is."""
    both, contents = this_run.servers(), dict[int, pa.Table]()
    home = Path(this_run.entered(tempfile.TemporaryDirectory(prefix="framehaul-scripts-"))).resolve()
    for rows in sizes:
        generated, ids = generator.arrow_table(TABLE, rows, seed), pa.array(range(rows), pa.int64())
        contents[rows] = generated.set_column(0, "id", ids).cast(TABLE.arrow_schema)
        pq.write_table(contents[rows], home / f"{rows}.parquet")
    row = this_run.rows(Result, lambda task: (*task[1][:3], task[0]))

    def measure(task: Task, _: int) -> dict[str, Any]:
        return measured(task[1], contents[task[0]], home, both)

    schedule, name_of = Rounds(rounds, warmup, seed), "{0[1].name}".format
    in_rounds([*product(sizes, SCRIPTS)], schedule, measure, this_run.log(row, name_of), home)
    for database in DATABASES:
        tables_of(both.of(database)).drop(TABLE.name)
    rows_text = ", ".join(f"{rows:,}" for rows in sizes)
    this_run.metadata["what"] = f"{rows_text} rows, {rounds} rounds after {warmup} warm-up, seed {seed}"


def measured(script: Script, content: pa.Table, home: Path, both: Servers) -> dict[str, Any]:
    """Run a script in a new process and return the figures of the pass.

    Raises WrongResultError when it fails or moves other rows, and UnavailableError when it would take minutes.
    """
    rows, tables, most = content.num_rows, tables_of(both.of(script.database)), script.most_rows
    if rows > most:
        raise UnavailableError(f"it would take minutes: it sends rows one at a time, and runs to {most:,} rows")
    tables.make(TABLE, content if script.direction == "read" else None)
    (home / "script.py").write_text(script.code, "utf8")
    at = both.clickhouse
    address = at.url.replace("://", f"://{quote(at.user, '')}:{quote(at.password, '')}@") + at.database
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
