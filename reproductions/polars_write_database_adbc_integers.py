"""Polars' write_database over ADBC stores other numbers when a column of integers goes into one of double precision.

POSTGRES_DSN says where. ADBC appends by COPY in binary, with the frame's types and not the table's: eight bytes are
eight bytes. Nothing is committed.
"""

import os

import adbc_driver_postgresql.dbapi
import polars as pl

with adbc_driver_postgresql.dbapi.connect(os.environ["POSTGRES_DSN"]) as connection, connection.cursor() as cursor:
    cursor.execute("CREATE TABLE reproduced_ratios (value double precision)")
    frame = pl.DataFrame({"value": [1]})
    frame.write_database("reproduced_ratios", connection, if_table_exists="append", engine="adbc")
    cursor.execute("SELECT value FROM reproduced_ratios")
    ((value,),) = cursor.fetchall()
print("expected: an error, or 1.0")
print(f"seen: {value!r}")
raise SystemExit(value != 1.0)
