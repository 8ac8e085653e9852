"""ADBC's PostgreSQL driver takes text for UTF-8 whatever `client_encoding` the session has.

POSTGRES_DSN says where. A role may have another encoding: ALTER ROLE ... SET client_encoding.
"""

import os

import adbc_driver_postgresql.dbapi
import pyarrow as pa

with adbc_driver_postgresql.dbapi.connect(os.environ["POSTGRES_DSN"]) as connection, connection.cursor() as cursor:
    cursor.execute("SET client_encoding = 'LATIN1'")
    cursor.execute("SELECT chr(233) AS value")
    found = cursor.fetch_arrow_table()
print("expected: é")
try:
    found.validate(full=True)
except pa.ArrowInvalid as error:
    print(f"seen: a column of {found['value'].type}: {error}")
    raise SystemExit(1) from None
print(f"seen: {found['value'][0]}")
