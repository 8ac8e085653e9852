"""clickhouse-connect's insert stores 0 for a text that an enum does not have, and the column cannot be read any more.

CLICKHOUSE_HOST, CLICKHOUSE_PORT (HTTP), CLICKHOUSE_USER and CLICKHOUSE_PASSWORD say where.
"""

import os

import clickhouse_connect

client = clickhouse_connect.get_client(
    host=os.environ["CLICKHOUSE_HOST"],
    port=int(os.environ["CLICKHOUSE_PORT"]),
    username=os.environ["CLICKHOUSE_USER"],
    password=os.environ["CLICKHOUSE_PASSWORD"],
)
client.command("CREATE TEMPORARY TABLE colours (colour Enum8('red' = 1)) ENGINE = Memory")
try:
    client.insert("colours", [["green"]], column_names=["colour"])
    stored = client.query("SELECT colour::Int8 FROM colours").result_rows
finally:
    client.command("DROP TABLE IF EXISTS colours")
print("expected: an error")
print(f"seen: the number {stored[0][0]}, which the enum does not have")
raise SystemExit(stored == [(0,)])
