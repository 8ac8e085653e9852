"""clickhouse-driver's query_arrow raises for a column of Bool that is mostly false, which is sent as a sparse one.

CLICKHOUSE_HOST, CLICKHOUSE_NATIVE_PORT, CLICKHOUSE_USER and CLICKHOUSE_PASSWORD say where.
"""

import os

import clickhouse_driver

client = clickhouse_driver.Client(
    host=os.environ["CLICKHOUSE_HOST"],
    port=int(os.environ["CLICKHOUSE_NATIVE_PORT"]),
    user=os.environ["CLICKHOUSE_USER"],
    password=os.environ["CLICKHOUSE_PASSWORD"],
)
client.execute("CREATE TABLE reproduction_sparse (v Bool, k Int64) ENGINE = MergeTree ORDER BY k")
try:
    client.execute("INSERT INTO reproduction_sparse SELECT false, number FROM numbers(2)")
    try:
        seen = str(client.query_arrow("SELECT v FROM reproduction_sparse").column("v").to_pylist())
    except ValueError as error:
        seen = str(error)
finally:
    client.execute("DROP TABLE reproduction_sparse")
print("expected: [False, False]")
print(f"seen: {seen}")
raise SystemExit(seen != "[False, False]")
