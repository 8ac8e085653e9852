"""clickhouse-driver's query_dataframe gives two columns, `a-b` and `a b`, one name and the values of one.

CLICKHOUSE_HOST, CLICKHOUSE_NATIVE_PORT, CLICKHOUSE_USER and CLICKHOUSE_PASSWORD say where.
"""

import os

import clickhouse_driver

client = clickhouse_driver.Client(
    host=os.environ["CLICKHOUSE_HOST"],
    port=int(os.environ["CLICKHOUSE_NATIVE_PORT"]),
    user=os.environ["CLICKHOUSE_USER"],
    password=os.environ["CLICKHOUSE_PASSWORD"],
    settings={"use_numpy": True},
)
frame = client.query_dataframe("SELECT 1 AS `a-b`, 2 AS `a b`")
print("expected: [1, 2] in columns 'a-b' and 'a b'")
print(f"seen: {frame.iloc[0].tolist()} in columns {list(frame.columns)}")
raise SystemExit(frame.iloc[0].tolist() != [1, 2])
