"""Why a path loses what it loses. A loss that no line here explains is a finding that nobody has understood yet."""

from __future__ import annotations

import re
from dataclasses import dataclass

from framehaul.techniques import Technique

UNEXPLAINED = "not explained yet"


@dataclass(frozen=True)
class Loss:
    """A known loss: patterns of the technique (`database direction name`), the case and what was lost; and why."""

    technique: str
    case: str
    detail: str
    why: str
    session: str = "default|hostile"


LOSSES: tuple[Loss, ...] = (
    Loss(
        r"clickhouse write .*asynch_native", r"native json", r"became",
        "asynch writes its own form of the types that it finds in a list, and the server takes it for text.",
    ),
    Loss(
        r"clickhouse write .*(driver_(native|rows|numpy)|_sqlalchemy_to_sql)", r"native json: (nested|paths)", "became",
        "clickhouse-driver makes paths and types of documents by itself: a list with text in it is of text, and an "
        "empty key falls away. Send text, as Arrow or over HTTP.",
    ),
    Loss(
        r"clickhouse write", r"native json: nested", r"became",
        "What parses text takes a moment with its zone for one in the session's (`input_format_try_infer_datetimes`).",
    ),
    Loss(
        r"clickhouse write", r"native json", r"became",
        "ClickHouse's `JSON` has no key that is null or an empty object, makes objects of keys with a dot and days or "
        "moments of text, and takes a list as what it has found before under the same key: floats, lists, text. Check "
        "before sending, or keep documents in a `String`.",
    ),
    Loss(
        r" read polars_", r"native json", r"became",
        "Polars makes structs of dictionaries, of all keys that any of them has: one that is not there is NULL, as one "
        "whose value is. Ask for `toString` of the column.",
    ),
    Loss(
        r"clickhouse read pandas_", r"native json: nested", r"became",
        "The driver makes Python's dates of text that ClickHouse's `JSON` has taken for a day. Ask for `toString` of "
        "the column.",
    ),
    Loss(
        r"copy_text|_csv", r"text: NULL", r"'\\\\N' became NULL",
        r"The path marks NULL as `\N`, and the text `\N` looks the same. Leave NULL empty and quote empty text.",
    ),
    Loss(
        r" pandas_", r"int64: (with NULL|least)", r"became (9007199254740992|-33448745904706040|[\d.]+(e\+\d+)?)$",
        "pandas makes floats of integers beside NULL, and a float has 53 bits. Give it a nullable dtype, or go through "
        "Arrow.",
    ),
    Loss(
        r" read pandas_", r"NaN against NULL|float32: with NULL", r"NULL became nan|nan became NULL",
        "A float column of pandas has one mark for NULL and NaN. Polars has two.",
    ),
    Loss(
        r" read pandas_", r"float: NaN", r"nan became 'nan'|nan became 'NaN'",
        "pandas' CSV parser is told which texts are NULL, does not know NaN any more, and leaves the column as text.",
    ),
    Loss(
        r" read pandas_(.*_csv|psycopg_copy_text$)", r"float: -0\.0", r"-0\.0 became 0\.0",
        "Whole floats come without a point. Where all of a column are whole, pandas makes integers, which have no -0.",
    ),
    Loss(
        r" read pandas_(.*_csv|psycopg_copy_text$)", r"float: whole", r"became -?\d+$",
        "Whole floats come without a point, with the digits that tell them from other floats and zeros behind these. "
        "Where all of a column are whole, pandas makes integers of them, which are others from 2^53 on.",
    ),
    Loss(
        r"clickhouse write pandas_", r"float: NaN and inf", r"nan became 0\.0",
        "pandas writes NaN as NULL, and ClickHouse stores the default, 0, where there may be no NULL "
        "(`input_format_null_as_default`).",
    ),
    Loss(
        r" write ", r"wide decimal: a digit more", r"became '0'",
        "Both servers round, or cut off, digits behind the point that the type does not have. Check before sending.",
    ),
    Loss(
        r"clickhouse write", r"u?int(128|256): one beyond", r"became '",
        "ClickHouse's parsers let an integer of 128 or 256 bits that is too large wrap around. Check before sending.",
    ),
    Loss(
        r"clickhouse read .*_parquet", r"int(128|256)", r"became b'",
        "Parquet has no integers of 128 or 256 bits: ClickHouse writes their bytes. Ask for `toString` of the column.",
    ),
    Loss(
        r"clickhouse read polars_", r"uint128", r"became NULL",
        "Polars makes an Int128 of Python's long integers, and NULL of one that is longer.",
    ),
    Loss(
        r"clickhouse read polars_", r"list of unsigned", r"not valid: .*i128",
        "Polars makes Int128 of Python's long integers, which Arrow does not have: nobody else takes such a list.",
    ),
    Loss(
        r" write pandas_.*(_csv|copy_text)", r"frame: columns of two levels", r"level was dropped",
        "Values go by their place, and what the columns of the frame are called is not looked at.",
    ),
    Loss(
        r" read ", r"wide decimal|int(128|256)", r"became '\d",
        "Without a type for the column a number of many digits becomes a float, which has some 16 of them.",
    ),
    Loss(
        r" read pandas_.*_csv", r"struct", r"^id: ",
        "ClickHouse writes each field of a Tuple as a column of CSV: pandas takes the first of them for an index.",
    ),
    Loss(
        r" read .*_csv", r"fixed-size list|nested list|list of structs|struct|map", r"became ",
        "CSV has ClickHouse's own text of what is nested, and each field of a Tuple as a column.",
    ),
    Loss(
        r" read .*_http_read_sql", r"fixed-size list|nested list|list of structs|struct|map", r"became ",
        "The dialect for HTTP leaves what is nested as ClickHouse's own text of it.",
    ),
    Loss(
        r" read .*_http_read_sql", r"bytes|not UTF-8", r"became ",
        "The dialect for HTTP puts U+FFFD in the place of what is no UTF-8. With `unicode_errors=strict` in its "
        "address it says so.",
    ),
    Loss(
        r" read .*copy_text", r"fixed-size list", r"became '",
        "A parser of delimited text leaves arrays as PostgreSQL's text of them.",
    ),
    Loss(
        r"clickhouse read polars_", r"struct", r"became \[",
        "The driver gives a Tuple as a tuple of Python or as a list, of which Polars makes a list: the fields have no "
        "names. Go through Arrow.",
    ),
    Loss(
        r"postgres read polars_|clickhouse read polars_", r"map: (empty|NULL|whole)|and a map", r"became '?[\[{]",
        "Polars makes structs of dictionaries, of all keys that any of them has: one that is not there is NULL, as one "
        "whose value is. Go through Arrow.",
    ),
    Loss(
        r"clickhouse (read|write)", r"map: a key twice", r"became '?\[",
        "A dictionary of Python has each key once, as have maps that Polars reads from Parquet: the last value stays.",
    ),
    Loss(
        r"clickhouse write", r"fixed-size list: NULL|nested list: NULL|map: NULL|structs?: NULL", r"became '?(\[|\{)",
        "ClickHouse has no NULL in place of an Array, a Map or a Tuple, and stores an empty one, or one of NULLs.",
    ),
    Loss(
        r"clickhouse write polars_.*(_parquet|ibis_insert)", r"frame: .*UUIDs of Arrow", r"became (NULL|\[None)",
        "Polars holds Arrow's UUIDs as bytes, and ClickHouse makes NULL of bytes that Parquet or Arrow has for a "
        "UUID. Send their text.",
    ),
    Loss(
        r"clickhouse write .*(_parquet|polars_ibis_insert)", r"no UUID", r"became (NULL|\[None)",
        "Where there may be NULL, in lists above all, ClickHouse makes NULL of what is no UUID in Parquet or Arrow. "
        "Check before sending.",
    ),
    Loss(
        r"clickhouse write .*(_clickhouse_connect_|pandas_ibis)", r"uuid: no UUID", r"became '00000000-",
        "clickhouse-connect takes any hexadecimal digits for a UUID, and fills up with zeros. Check before sending.",
    ),
    Loss(
        r"clickhouse write .*(_connect_insert|pandas_ibis)", r"struct: a field more", r"became '?\{",
        "clickhouse-connect takes from each dictionary what the Tuple has, and passes over the rest.",
    ),
    Loss(
        r"clickhouse write .*(_parquet|polars_ibis_insert)", r"struct: a field more", r"became '?\{",
        "ClickHouse passes over what a struct of a Parquet file, or of Arrow, has beyond the Tuple.",
    ),
    Loss(
        r" read ", r"decimal", r"became Decimal",
        "Without a type for the column a parser takes a decimal for a float, which has some 16 digits.",
    ),
    Loss(
        r" read pandas_.*(_csv|copy_text)", r"uint64", r"became '\d+'$",
        "pandas' CSV parser has no integers of 64 bits without a sign beside NULL, and leaves the column as text.",
    ),
    Loss(
        r" read .*(_csv|copy_text|_http_read_sql)", r"list of|duration", r"became ['\"]",
        "A parser of delimited text has neither lists nor durations, and leaves them as the server's text.",
    ),
    Loss(
        r" read pandas_.*_parquet", r"list|struct|map", r"became ",
        "A list of Parquet is an array of numpy in pandas, which has no NULL: integers beside it become floats, and "
        "among floats it is NaN. Go through Arrow.",
    ),
    Loss(
        r" write pandas_.*(_parquet|adbc_to_sql)", r"list of float|struct: NaN", r"became ('?\{|\[None)",
        "Where Arrow takes objects of pandas it takes NaN for NULL, inside of lists as well.",
    ),
    Loss(
        r"postgres read pandas_", r"json", r"became",
        "psycopg makes Python objects of JSON: null is None then, as NULL is, and a number with a point has some 16 "
        "digits. Ask for the column as `::text`.",
    ),
    Loss(
        r"postgres write", r"json: a key twice", r"became",
        "`jsonb` keeps the last of equal keys. `json` and text keep both.",
    ),
    Loss(
        r"clickhouse read .*_parquet", r"IPv", r"became",
        "Parquet has no type for addresses: ClickHouse writes an IPv4 as its number, an IPv6 as 16 bytes. Ask for "
        "`toString` of the column.",
    ),
    Loss(
        r"clickhouse read", r"fixed-size", r"became b''",
        "clickhouse-driver takes zeros at the end of a FixedString for its padding, and cuts them off.",
    ),
    Loss(
        r"clickhouse write", r"fixed-size bytes: too few", r"became b'abc\\x00",
        "ClickHouse fills a FixedString that is too short with zeros.",
    ),
    Loss(
        r"clickhouse write", r"list of int64: NULL", r"NULL became \[\]",
        "ClickHouse has no NULL of an Array, and stores an empty one.",
    ),
    Loss(
        r"clickhouse write .*_tsv", r"^json", r"became",
        "TabSeparated takes a backslash for the begin of an escape; the path escapes those in text, and in JSON there "
        "are some as well.",
    ),
    Loss(
        r"postgres write .*_asyncpg_(copy_binary|executemany)", r"(date|timestamp|list of moments): ", r"infinity",
        "asyncpg sends Python's first and last date and moment, 0001-01-01 and the end of 9999-12-31, as `-infinity` "
        "and `infinity`.",
    ),
    Loss(
        r"clickhouse write .*(driver_(native|rows)|_sqlalchemy_to_sql|connect_insert)", r"timestamp: 2300",
        r"became 10000-",
        "The driver takes seconds from a float, which rounds the last microsecond of a late year up, and adds the "
        "microseconds.",
    ),
    Loss(
        r"clickhouse read .*_query_dataframe", r"timestamp: (0001|2300)|struct: moments", r"became",
        "clickhouse-driver makes nanoseconds of moments for pandas, which 64 bits hold from 1677 to 2262; of others "
        "they come around.",
    ),
    Loss(
        r"postgres write", r"timestamp: nanoseconds", r"became",
        "PostgreSQL keeps microseconds: text is rounded, what is binary is cut off. Round before, knowingly.",
    ),
    Loss(
        r"clickhouse write", r"NULL where none is allowed", r"NULL became (0|'')",
        "ClickHouse stores the default, 0 or empty text, where there may be no NULL (`input_format_null_as_default`, "
        "on unless set to 0). Check for NULL before sending.",
    ),
    Loss(
        r"clickhouse write", r"one beyond", r"became (-|0$)",
        "ClickHouse's parsers of text, Parquet and Arrow let an integer that is too large wrap around. Cast before, "
        "strictly.",
    ),
    Loss(
        r"clickhouse write .*(_csv|_tsv)", r"date: ", r"became (1970-01-01|2149-06-06)",
        "ClickHouse's `Date` has 1970-01-01 to 2149-06-06; its parsers of text take the nearest. `Date32` has more.",
    ),
    Loss(
        r"clickhouse write .*(native_columnar|driver_rows|to_sql)", r"date: ", r"became 1970-01-01",
        "ClickHouse's `Date` has 1970-01-01 to 2149-06-06; the driver sends 1970-01-01 for others. `Date32` has more.",
    ),
    Loss(
        r"clickhouse write .*(clickhouse_driver_native|driver_rows|to_sql)", r"timestamp: (before 1970|in UTC)",
        r"became 1970-01-01T00:00:00",
        "clickhouse-driver rounds the seconds of a moment before 1970 up, then adds its fraction: a second too late.",
    ),
    Loss(
        r"clickhouse", r"timestamp: nanoseconds", r"became",
        "The driver goes through Python's datetime, which has microseconds.",
    ),
    Loss(
        r"clickhouse read", r"timestamp: microseconds", r"became 2262-04-12T00:00:01",
        "The driver makes a float of the seconds since 1970: the later, the fewer digits are left for their fraction.",
    ),
    Loss(
        r" write polars_.*(copy_text|_csv|_tsv)", r"timestamp: in a zone, whose", r"00:00:08",
        "Polars writes hours and minutes of an offset, and those of long ago have seconds. Convert to UTC before.",
    ),
    Loss(
        r"postgres write", r"IPv4 address: of a network", r"became '192\.0\.2\.1'",
        "An `inet` takes the length of a network along, which the address in a frame does not. Check before sending.",
    ),
    Loss(
        r"clickhouse write", r"IPv6 address: an IPv4 one", r"became '::ffff:",
        "ClickHouse makes an IPv6 address of an IPv4 one: that which stands for it. Check before sending.",
    ),
    Loss(
        r"clickhouse read .*(_csv|_http_read_sql)", r"timestamp: in a zone", r"became",
        "CSV, as tab-separated text, has the clock of the column's zone and does not say which zone. Ask for UTC.",
    ),
    Loss(
        r" write pandas_", r"bytes", r"became b?['\"]b",
        "pandas writes bytes into text as Python shows them: `b'...'`.",
    ),
    Loss(
        r"clickhouse read pandas_.*_parquet", r"bytes|not UTF-8", r"no UTF-8",
        "ClickHouse has one type for text and bytes and calls it text in Parquet "
        "(`output_format_parquet_string_as_string`); nothing checks that it is.",
    ),
    Loss(
        r"clickhouse read .*(query_df(_rust)?|connect_query|connect_sqlalchemy_read_\w+|ibis_to_\w+)$",
        r"not UTF-8|bytes", r"became \[?b?'[0-9a-f]+",
        "clickhouse-connect's `query` and `query_df`, its dialect, and Ibis over it, give bytes that are not UTF-8 as "
        "text of their hexadecimal digits (`reproductions`). Ask for such columns as bytes: `column_formats`.",
    ),
    Loss(
        r"clickhouse read .*query_df_arrow$", r"not UTF-8", r"no UTF-8",
        "`query_df_arrow` takes whatever a String holds for text, and nothing checks that it is (`reproductions`). "
        "`query_arrow` gives an Arrow table that can be validated.",
    ),
    Loss(
        r"clickhouse write .*_parquet", r"frame: .*(missing|key as index|two levels)", r"became",
        "ClickHouse fills a column that a Parquet file does not have with its default "
        "(`input_format_parquet_allow_missing_columns`, on unless set to 0).",
    ),
    Loss(
        r"clickhouse write .*_parquet", r"frame: a column more", r"dropped",
        "ClickHouse passes over what a Parquet file has beyond the table (`input_format_skip_unknown_fields`).",
    ),
    Loss(
        r"write .*(native_columnar|numpy|unnest)", r"frame: a column more", r"dropped",
        "The path asks the frame for the columns of the table, and does not look at what else it has.",
    ),
    Loss(
        r"postgres write .*_asyncpg_copy_binary", r"frame: a column more|one column name twice", r"dropped",
        "asyncpg's `copy_records_to_table` encodes as many values of a record as columns are named, and passes over "
        "those behind them.",
    ),
    Loss(
        r"write .*(_csv|_tsv|copy_text|copy_binary|pg_parquet|executemany|pipeline|execute_values|driver_rows|"
        r"connect_insert)",
        r"frame: two columns in the other order", r"became",
        "The values go by their place in the frame, and the names are the table's: two columns of one type change "
        "places. Select the table's columns by name before.",
    ),
    Loss(
        r"postgres read pandas_sqlalchemy_read_sql_pyarrow", r"float: NaN|list|json|struct|map", r"became",
        "pandas makes Arrow of Python objects that it has fetched: NaN is NULL there, and what it has no type for "
        "becomes its text.",
    ),
    Loss(
        r"postgres read .*(adbc_(uri_)?read|iter_batches|database_uri)", r"decimal|uint64|of unsigned", r"became \[?'",
        "A `numeric` comes as text, for not every path has so many digits, and nothing makes numbers of it again. Cast "
        "it in the query.",
    ),
    Loss(
        r"postgres read .*pg_parquet", r"duration", r"became '",
        "pg_parquet writes as text what Parquet has no type for, an `interval` for example. Ask for its microseconds.",
    ),
    Loss(
        r"postgres read .*adbc_(uri_)?read", r"text: |not UTF-8", r"no UTF-8",
        "ADBC takes what comes for UTF-8, whatever the database or the session has, and nothing checks it "
        "(`reproductions`).",
    ),
    Loss(
        r"postgres write .*adbc", r"text: ", r"became '[ÃÂ]", session="hostile",
        why="ADBC sends UTF-8 and does not say so: the server takes it for the session's `client_encoding`.",
    ),
    Loss(
        r"postgres write .*adbc_(to_sql|write_database)", r"frame: (integers for floats|nullable dtypes)|one beyond",
        r"became",
        "ADBC writes the frame's type into COPY and does not look at the table's: eight bytes of an integer are taken "
        "for a float, and those of a UInt64 for a bigint (`reproductions`). Cast before to what the table has.",
    ),
    Loss(
        r" write .*ibis", r"frame: .*(missing|key as index)", r"became",
        "Ibis names the columns that the frame has, and the server fills the others with their default.",
    ),
    Loss(
        r"postgres write pandas_ibis", r"list of float", r"became \[None",
        "Ibis makes Arrow of a pandas frame, in whose lists NaN becomes NULL. Give it a Polars frame.",
    ),
    Loss(
        r"postgres read pandas_ibis", r"int(64|128|256): least", r"became",
        "Ibis makes Decimals of what psycopg gives for a `numeric` by way of floats, which have some 16 digits "
        "(`reproductions`).",
    ),
    Loss(
        r"postgres read pandas_ibis", r"duration", r"became",
        "Ibis takes every `interval` for one of whole seconds (`reproductions`).",
    ),
    Loss(
        r"clickhouse read pandas_ibis", r"native json", r"became",
        "Ibis has clickhouse-connect make Python's objects of documents, in which a float without a fraction is an "
        "integer. Ask for `toString` of the column.",
    ),
    Loss(
        r"write .*(to_sql|write_database)", r"frame: .*(missing|key as index)", r"became",
        "`to_sql` names the columns that the frame has, and the server fills the others with their default.",
    ),
    Loss(
        r"postgres write .*(to_sql|write_database|executemany|pipeline|unnest|execute_values|core_insert)",
        r"not UTF-8: as bytes", r"became '\\\\x",
        "Bytes are sent as `bytea`, which becomes text as its hexadecimal digits.",
    ),
    Loss(
        r"postgres write .*core_insert", r"frame: .*(missing|more)", r"became|dropped",
        "SQLAlchemy sends the columns that both the first row and the table it is told of have: the server fills the "
        "others with their default, and what the table does not have is left out.",
    ),
    Loss(
        r"postgres write .*psycopg2_", r"float: -0\.0|list of float", r"-0\.0.* became .*(?<!-)0\.0",
        "psycopg2 writes values into the statement, and `-0.0` there is a `numeric`, which has no negative zero.",
    ),
    Loss(
        r"postgres write polars_sqlalchemy_write_database", r"NaN against NULL", r"nan became NULL",
        "Polars makes a pandas frame of it, whose `to_sql` takes NaN for NULL.",
    ),
    Loss(
        r"clickhouse write .*(_clickhouse_connect_(insert|sqlalchemy_to_sql)|pandas_ibis)", r"enum: a value more",
        r"cannot be read back",
        "clickhouse-connect sends 0 for a text that the enum does not have, and the server stores it: whoever reads "
        "the column gets an error (`reproductions`).",
    ),
    Loss(
        r"clickhouse write .*(_clickhouse_connect_insert|pandas_ibis)", r"list of enum: a value", r"became \[.*None",
        "clickhouse-connect makes NULL of a text in a list that the enum does not have. Check before sending.",
    ),
    Loss(
        r"clickhouse write .*_connect_sqlalchemy_to_sql", r"list.* moments", r"became \[",
        "Of a single row the dialect of clickhouse-connect makes a statement, in whose lists moments are whole seconds "
        "and the year 1 is one digit, which the server takes for 2001. Of several rows it makes Native.",
    ),
    Loss(
        r"clickhouse write .*numpy", r"date: ", r"became",
        "ClickHouse's `Date` has 1970-01-01 to 2149-06-06; the driver cuts the number of days to its 16 bits. `Date32` "
        "has more.",
    ),
    Loss(
        r"clickhouse write .*_connect_sqlalchemy_to_sql", r"duration", r"NULL became",
        "clickhouse-connect takes pandas' mark for no duration for the integer beneath it, the least there is.",
    ),
    Loss(
        r"clickhouse read .*query_dataframe", r"column names", r"became",
        "The driver makes names of its own, `a_b` of `a-b` and of `a b`, and gives one of them for both.",
    ),
    Loss(
        r"clickhouse read .*query_dataframe", r"timestamp", r"became -?\d+$",
        "Of moments beside NULL the driver makes integers, of nanoseconds.",
    ),
    Loss(
        r"clickhouse read .*query_dataframe", r"text: NUL", r"became ''",
        "numpy's strings of bytes end before the zeros at their end.",
    ),
    Loss(
        r"postgres read", r"float(32)?: greatest", r"became", session="hostile",
        why="With `extra_float_digits` below 1 the server writes 15 digits of a float as text, 6 of a float32. What is "
        "read in binary has all of them.",
    ),
    Loss(
        r"postgres .*copy_text", r".", r"NULL became '(N|\\\\N)'", session="hostile",
        why=r"With `standard_conforming_strings` off the mark for NULL in the statement, `'\N'`, is the letter N. "
        r"`E'\\N'` says it whatever the session has.",
    ),
    Loss(
        r"postgres read .*copy_text", r"bytes", r"became b'", session="hostile",
        why="With `bytea_output = escape` bytes are written as octal numbers, which nothing takes for bytes again.",
    ),
    Loss(
        r"postgres read .*copy_text", r"date|timestamp", r"became '\d\d/\d\d/\d{4}", session="hostile",
        why="Dates and times are written in the session's `DateStyle` and `TimeZone`; a parser that does not know them "
        "leaves text.",
    ),
    Loss(
        r"postgres write .*psycopg_copy_text", r"text", r"became '[ÃÂ]", session="hostile",
        why="COPY takes the bytes to be in the session's `client_encoding`, and they are UTF-8. `COPY ... (ENCODING "
        "'UTF8')` says what they are.",
    ),
    Loss(
        r"postgres write .*unnest", r"bytes", r"became b'", session="hostile",
        why="psycopg writes bytes of an array as for a statement whose text has escapes, with "
        "`standard_conforming_strings` off, and sends them apart from it.",
    ),
    Loss(
        r"clickhouse read .*_http_read_sql", r"text: |bool", r"became '(NULL|yes)'", session="hostile",
        why="NULL and booleans come as the session writes them: `format_tsv_null_representation`, "
        "`bool_true_representation`.",
    ),
    Loss(
        r"clickhouse read pandas_.*_csv", r".", r"became '0;|257 rows instead", session="hostile",
        why="The values are separated by the session's `format_csv_delimiter`: a parser that looks for commas finds "
        "one column.",
    ),
    Loss(
        r"clickhouse write .*_tsv", r"text: ", r"NULL became ''|'NULL' became NULL", session="hostile",
        why=r"The mark for NULL is the session's `format_tsv_null_representation`: `\N` is none then, and what "
        "is the mark becomes NULL.",
    ),
    Loss(
        r"clickhouse write", r".", r"later: ", session="hostile",
        why="With `async_insert` and without `wait_for_async_insert` rows are acknowledged before they are stored, and "
        "what is wrong with them is told to nobody. Set `async_insert=0`, or wait.",
    ),
)  # fmt: skip
"""Every known loss; the first that fits explains a cell."""


def why(technique: Technique, case: str, session: str, detail: str) -> str:
    """The explanation of a loss, or that there is none."""
    path = f"{technique.database} {technique.direction} {technique.name}"
    for loss in LOSSES:
        pairs = zip((loss.technique, loss.case, loss.session, loss.detail), (path, case, session, detail), strict=True)
        if all(re.search(pattern, text) for pattern, text in pairs):
            return loss.why
    return UNEXPLAINED
