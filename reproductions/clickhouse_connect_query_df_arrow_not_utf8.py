"""clickhouse-connect's query_df_arrow gives a Polars frame whose strings are not UTF-8; using it panics.

CLICKHOUSE_HOST, CLICKHOUSE_PORT (HTTP), CLICKHOUSE_USER and CLICKHOUSE_PASSWORD say where.
"""

import os

import clickhouse_connect
import polars as pl

client = clickhouse_connect.get_client(
    host=os.environ["CLICKHOUSE_HOST"],
    port=int(os.environ["CLICKHOUSE_PORT"]),
    username=os.environ["CLICKHOUSE_USER"],
    password=os.environ["CLICKHOUSE_PASSWORD"],
)
query = "SELECT unhex('FFFE41') AS value"
frame = client.query_df_arrow(query, use_strings=True, dataframe_library="polars")
bytes_in_it = frame["value"].cast(pl.Binary)[0]  # looked at as bytes: as text it panics
print("expected: an error, or a column of bytes")
print(f"seen: a column of {frame['value'].dtype} that holds {bytes_in_it!r}")
raise SystemExit(frame["value"].dtype == pl.String and bytes_in_it == b"\xff\xfeA")
