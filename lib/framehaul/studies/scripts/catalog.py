"""The scripts that are compared, as their libraries' documentation has them.

Each gets the path of a Parquet file, and the addresses of the servers in DATABASE_URL and CLICKHOUSE_URL.
"""

from __future__ import annotations

from dataclasses import dataclass

from framehaul.data.schema import Column, ColumnType, Table
from framehaul.techniques.registry import Database, Direction

TYPES = {"id": ColumnType.INT64, "day": ColumnType.DATE, "name": ColumnType.TEXT, "value": ColumnType.FLOAT64}
TABLE = Table("framehaul_script", tuple(Column(name, kind) for name, kind in TYPES.items()), ("id",))
"""The table of all scripts, with types that every library carries."""


@dataclass(frozen=True)
class Script:
    """A script and its name in tables and charts."""

    name: str
    database: Database
    direction: Direction
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
CONNECT = """\
import os, sys
from urllib.parse import urlsplit
import clickhouse_connect
{0}
at = urlsplit(os.environ["CLICKHOUSE_URL"])
client = clickhouse_connect.get_client(host=at.hostname, port=at.port, username=at.username, password=at.password)
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
    Script("framehaul.write", "postgres", "write", OWN_WRITE.format("DATABASE_URL")),
    Script("pandas to_sql", "postgres", "write", f"""\
import os, sys
import pandas as pd
import sqlalchemy

with {SQLALCHEMY}.begin() as connection:
    pd.read_parquet(sys.argv[1]).to_sql("framehaul_script", connection, if_exists="append", index=False)
""", most_rows=100_000),
    Script("pandas to_sql, ADBC", "postgres", "write", """\
import os, sys
import adbc_driver_postgresql.dbapi
import pandas as pd

with adbc_driver_postgresql.dbapi.connect(os.environ["DATABASE_URL"]) as connection:
    frame = pd.read_parquet(sys.argv[1], dtype_backend="pyarrow")
    frame.to_sql("framehaul_script", connection, if_exists="append", index=False)
    connection.commit()
"""),
    Script("polars write_database, ADBC", "postgres", "write", """\
import os, sys
import polars as pl

pl.read_parquet(sys.argv[1]).write_database(
    "framehaul_script", os.environ["DATABASE_URL"], engine="adbc", if_table_exists="append"
)
"""),
    Script("DuckDB", "postgres", "write", ATTACH + """\
connection.execute(f"INSERT INTO pg.framehaul_script FROM read_parquet('{sys.argv[1]}')")
"""),
    Script("framehaul.read", "postgres", "read", OWN_READ.format("DATABASE_URL")),
    Script("pandas read_sql", "postgres", "read", f"""\
import os
import pandas as pd
import sqlalchemy

with {SQLALCHEMY}.connect() as connection:
    print(len(pd.read_sql(sqlalchemy.text("SELECT * FROM framehaul_script"), connection)))
"""),
    Script("polars read_database_uri, ADBC", "postgres", "read", """\
import os
import polars as pl

print(len(pl.read_database_uri("SELECT * FROM framehaul_script", os.environ["DATABASE_URL"], engine="adbc")))
"""),
    Script("polars read_database_uri, ConnectorX", "postgres", "read", """\
import os
import polars as pl

print(len(pl.read_database_uri("SELECT * FROM framehaul_script", os.environ["DATABASE_URL"])))
"""),
    Script("DuckDB", "postgres", "read", ATTACH + """\
print(len(connection.execute("FROM pg.framehaul_script").pl()))
"""),
    Script("framehaul.write", "clickhouse", "write", OWN_WRITE.format("CLICKHOUSE_URL")),
    Script("clickhouse-connect insert_df", "clickhouse", "write", CONNECT.format("import pandas as pd\n") + """\
client.insert_df("framehaul_script", pd.read_parquet(sys.argv[1]))
"""),
    Script("clickhouse-connect insert_arrow", "clickhouse", "write", CONNECT.format(
        "import pyarrow.parquet as pq\n"
    ) + """\
client.insert_arrow("framehaul_script", pq.read_table(sys.argv[1]))
"""),
    Script("framehaul.read", "clickhouse", "read", OWN_READ.format("CLICKHOUSE_URL")),
    Script("clickhouse-connect query_df", "clickhouse", "read", CONNECT.format("") + """\
print(len(client.query_df("SELECT * FROM framehaul_script")))
"""),
    Script("clickhouse-connect query_arrow", "clickhouse", "read", CONNECT.format("import polars as pl\n") + """\
print(len(pl.DataFrame(client.query_arrow("SELECT * FROM framehaul_script"))))
"""),
)  # fmt: skip
"""All scripts, by database and direction."""
