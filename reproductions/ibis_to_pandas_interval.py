"""Ibis takes every `interval` of PostgreSQL for one of whole seconds.

POSTGRES_DSN says where.
"""

import os

import ibis
import psycopg

SECONDS = 1.5

with psycopg.connect(os.environ["POSTGRES_DSN"], autocommit=True) as connection:
    connection.execute("CREATE TEMPORARY TABLE durations AS SELECT interval '1.5 seconds' AS value")
    (value,) = ibis.postgres.from_connection(connection).table("durations").to_pandas()["value"]
print(f"expected: {SECONDS} seconds")
print(f"seen: {value.total_seconds()} seconds")
raise SystemExit(int(value.total_seconds() != SECONDS))
