"""ClickHouse writes other dates than it holds with output_format_arrow_date_as_uint16 and the Arrow library's writer.

CLICKHOUSE_HOST, CLICKHOUSE_PORT (HTTP), CLICKHOUSE_USER and CLICKHOUSE_PASSWORD say where.
"""

import os
import urllib.request

import pyarrow as pa

query = (
    "SELECT toDate(arrayJoin(['1970-01-01', '2000-02-29', '2149-06-06'])) AS day FORMAT ArrowStream "
    "SETTINGS output_format_arrow_date_as_uint16 = 1, output_format_arrow_use_native_writer = 0"
)
request = urllib.request.Request(
    f"http://{os.environ['CLICKHOUSE_HOST']}:{os.environ['CLICKHOUSE_PORT']}/",
    query.encode(),
    {"X-ClickHouse-User": os.environ["CLICKHOUSE_USER"], "X-ClickHouse-Key": os.environ["CLICKHOUSE_PASSWORD"]},
)
with urllib.request.urlopen(request) as answer:  # noqa: S310  whose address is yours
    days = pa.ipc.open_stream(answer.read()).read_all()["day"].to_pylist()
print("expected: [0, 11016, 65535], the days since 1970-01-01")
print(f"seen: {days}")
raise SystemExit(days != [0, 11016, 65535])
