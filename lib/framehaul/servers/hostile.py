"""Define sessions with unusual settings, each of which an administrator may have chosen.

A technique that does not set what its format depends on sends or reads wrong values in such a session.
"""

from __future__ import annotations

HOSTILE = "framehaul_hostile"
"""The PostgreSQL role and ClickHouse user whose sessions have these settings."""

# https://www.postgresql.org/docs/18/runtime-config-client.html
POSTGRES_SETTINGS: dict[str, str | int] = {
    "extra_float_digits": 0,
    "DateStyle": "SQL, DMY",
    "TimeZone": "America/St_Johns",
    "IntervalStyle": "sql_standard",
    "bytea_output": "escape",
    "client_encoding": "LATIN1",
    "standard_conforming_strings": "off",
}

# https://clickhouse.com/docs/operations/settings/settings and https://clickhouse.com/docs/operations/settings/formats
CLICKHOUSE_SETTINGS: dict[str, str | int] = {
    "session_timezone": "America/St_Johns",
    "date_time_input_format": "basic",
    "date_time_output_format": "unix_timestamp",
    "format_csv_delimiter": ";",
    "format_csv_null_representation": "NULL",
    "format_tsv_null_representation": "NULL",
    "output_format_csv_crlf_end_of_line": 1,
    "output_format_tsv_crlf_end_of_line": 1,
    "bool_true_representation": "yes",
    "bool_false_representation": "no",
    "input_format_null_as_default": 1,
    "input_format_parquet_local_time_as_utc": 0,
    "low_cardinality_allow_in_native_format": 0,
    "output_format_arrow_string_as_string": 0,
    "output_format_arrow_compression_method": "zstd",
    "output_format_arrow_date_as_uint16": 1,
    "output_format_arrow_low_cardinality_as_dictionary": 1,
    "output_format_parquet_string_as_string": 0,
    "output_format_parquet_date_as_uint16": 1,
    "output_format_parquet_datetime_as_uint32": 1,
    # Inserts are acknowledged ten seconds before they are stored, so that an immediate query does not find them.
    "async_insert": 1,
    "wait_for_async_insert": 0,
    "async_insert_use_adaptive_busy_timeout": 0,
    "async_insert_busy_timeout_min_ms": 10_000,
    "async_insert_busy_timeout_max_ms": 10_000,
}
