"""Ibis makes a Decimal of PostgreSQL's `numeric` by way of a float, which has some 16 digits.

POSTGRES_DSN says where.
"""

import os

import ibis
import psycopg

with psycopg.connect(os.environ["POSTGRES_DSN"], autocommit=True) as connection:
    connection.execute("CREATE TEMPORARY TABLE numbers AS SELECT 18446744073709551615::numeric(20, 0) AS value")
    (value,) = ibis.postgres.from_connection(connection).table("numbers").to_pandas()["value"]
print("expected: 18446744073709551615")
print(f"seen: {value}")
raise SystemExit(int(value != 18446744073709551615))
