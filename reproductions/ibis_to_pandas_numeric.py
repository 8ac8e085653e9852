"""Ibis makes a Decimal of PostgreSQL's `numeric` by way of a float, which has some 16 digits.

POSTGRES_DSN says where.
"""

import os

import ibis
import psycopg

GREATEST = 18446744073709551615

with psycopg.connect(os.environ["POSTGRES_DSN"], autocommit=True) as connection:
    connection.execute(f"CREATE TEMPORARY TABLE numbers AS SELECT {GREATEST}::numeric(20, 0) AS value")
    (value,) = ibis.postgres.from_connection(connection).table("numbers").to_pandas()["value"]
print(f"expected: {GREATEST}")
print(f"seen: {value}")
raise SystemExit(int(value != GREATEST))
