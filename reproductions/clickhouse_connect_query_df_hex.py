"""clickhouse-connect's query_df gives hexadecimal digits, as text, for a String whose bytes are not UTF-8.

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
value = client.query_df("SELECT unhex('FFFE41') AS value")["value"][0]
print("expected: an error, or b'\\xff\\xfeA'")
print(f"seen: {value!r}")
raise SystemExit(value == "fffe41")
