"""Define the edge cases: their values, tables and frames."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from typing import Any, Literal

import polars as pl
import pyarrow as pa

from framehaul.data import schema
from framehaul.data.equality import Content, content_of
from framehaul.data.frames import to_pandas
from framehaul.data.schema import Column, ColumnType, Table, list_types, map_types, nested_list_types, struct_types
from framehaul.studies.fidelity import shapes as frame_shapes
from framehaul.studies.fidelity.shapes import NESTED_COLUMNS, SLICED, SURROGATES, Shape, without
from framehaul.techniques.registry import Database, Direction

BOTH: tuple[Database, ...] = ("postgres", "clickhouse")
POSTGRES: tuple[Database, ...] = ("postgres",)
CLICKHOUSE: tuple[Database, ...] = ("clickhouse",)
KEY = Column("id", ColumnType.INT32)
UUID_TEXT, UUID_OF_TEXT = "01234567-89ab-cdef-0123-456789abcdef", "61626364-6566-6768-696a-6b6c6d6e6f70"

About = Literal["values", "frames", "not text", "append"]
"""The kind of a case: values, shapes of frames, bytes that are not UTF-8, or appends to a table with a column that the
server fills."""


@dataclass(frozen=True)
class Filled:
    """A column that the server fills; its place is between the key and the other columns."""

    column: Column
    defined: Column
    """The column with its definition in SQL in place of its types."""
    holds: tuple[object, ...]
    """The expected values, first of the rows before the write, then of the rows that are sent."""
    numbers: bool = False
    """Whether the column numbers rows in the order of their arrival, which need not be that of the key."""


@dataclass(frozen=True, eq=False)
class Case:
    """A set of values, and the table that they are written to and read from."""

    name: str
    columns: tuple[Column, ...]
    sent: tuple[pa.Array, ...]
    held_by: tuple[Database, ...] = BOTH
    """The databases that can hold the values; in the others a write has to raise an error, and nothing is read."""
    about: About = "values"
    directions: tuple[Direction, ...] = ("read", "write")
    hostile: bool = False
    """Whether the case is tried in a hostile session too."""
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    """For each kind of frame, a function that reshapes a frame with the table's dtypes."""
    unfit: str = ""
    """The loss if a frame that does not fit the table raises no error."""
    filled: Filled | None = None
    """The column that the server fills; the table then has rows before the write."""
    databases: tuple[Database, ...] = BOTH
    """The databases that support the table."""

    @property
    def table(self) -> Table:
        """Return the table that techniques get: the key and the case's columns."""
        plain = re.sub(r"\W+", "_", self.name)  # other tests have awkward table names
        table = Table(f"framehaul_fidelity_{plain}"[:60], (KEY, *self.columns), (KEY.name,))
        if self.filled is None:
            return table
        made = _with_second(table, self.filled.defined)
        _, _, postgres_body = made.postgres_ddl.partition(made.postgres_name)
        return replace(table, postgres_body=postgres_body, clickhouse_body=made.clickhouse_definition())

    @property
    def full_table(self) -> Table:
        """Return the table with all of its columns."""
        return _with_second(self.table, self.filled.column) if self.filled else self.table

    @property
    def before(self) -> tuple[Table, pa.Table]:
        """Return the rows before a write, and the table with their columns."""
        rows = ROWS_BEFORE if self.filled else ROWS_BEFORE.slice(0, 0)
        columns = (column for column in self.table.columns if column.name in rows.column_names)
        return replace(self.table, columns=tuple(columns)), rows

    def content(self) -> pa.Table:
        """Return the rows to send, with the key; types may differ from the table's."""
        key = pa.array(range(len(self.sent[0])), pa.int32())
        return pa.Table.from_arrays([key, *self.sent], names=self.table.column_names)

    def stored(self) -> pa.Table:
        """Return the rows in the table's types; bytes that are not UTF-8 remain bytes."""
        content = self.content()
        return content if self.about == "not text" else content.cast(self.table.arrow_schema)

    def frame(self, kind: str) -> Any:
        """Return the rows to send as a frame of this kind, in the case's shape."""
        content = self.content()
        if kind == "batches":
            return self.shapes[kind](content) if self.shapes else frame_shapes.in_batches(content)
        has_the_types = [array.type for array in self.sent] == [column.types.arrow for column in self.columns]
        if kind == "polars":
            frame: Any = pl.from_arrow(content)
            frame = frame.cast(pl.Schema(self.table.polars_schema)) if has_the_types else frame
        elif has_the_types:
            columns = tuple(
                replace(column, nullable=column.nullable or array.null_count > 0)
                for column, array in zip(self.table.columns, content.columns, strict=True)
            )
            frame = to_pandas(content, replace(self.table, columns=columns))
        else:
            frame = content.to_pandas()
        return self.shapes[kind](frame) if self.shapes else frame

    @cached_property
    def expected(self) -> Content:
        """Return the expected content of the table after the write, in the order of the key."""
        content = self.content()
        if self.filled:
            content = pa.concat_tables([ROWS_BEFORE, content.select(ROWS_BEFORE.column_names)])
            content = content.append_column(self.filled.column.name, pa.array(self.filled.holds))
        return content_of(content, self.full_table.columns, nan_is_null=False)


def _with_second(table: Table, column: Column) -> Table:
    """Return the table with this column behind the first, and without another column of its name."""
    first, *others = (each for each in table.columns if each.name != column.name)
    return replace(table, columns=(first, column, *others))


def _case(
    name: str, column_type: ColumnType, values: list[Any], *, exactly: schema.Types | None = None,
    nullable: bool | None = None, sent_as: pa.DataType | None = None, held_by: tuple[Database, ...] = BOTH,
) -> Case:  # fmt: skip
    """Return a case of values of one type, in a column that may be NULL if one of them is."""
    nullable = None in values if nullable is None else nullable
    column = Column("value", column_type, nullable, exactly=exactly)
    sent = pa.array(values, sent_as or column.types.arrow)
    return Case(name, (column,), (sent,), held_by, hostile=name in IN_A_HOSTILE_SESSION)


def _lists(name: str, element: schema.Types, values: list[Any], **more: Any) -> Case:
    """Return a case of lists with elements of one type."""
    return _case(name, T.LIST, values, exactly=list_types(element), **more)


def _identifiers(name: str, *names: str) -> Case:
    columns = tuple(Column(name, ColumnType.INT32) for name in names)
    return Case(name, columns, tuple(pa.array([at], pa.int32()) for at in range(len(names))))


def _days(*texts: str) -> list[dt.date]:
    return [dt.date.fromisoformat(text) for text in texts]


def _timestamps(*texts: str) -> list[dt.datetime]:
    return [dt.datetime.fromisoformat(text) for text in texts]


def _utc(*texts: str) -> list[dt.datetime]:
    return [moment.replace(tzinfo=dt.UTC) for moment in _timestamps(*texts)]


def _written(
    name: str, about: About, content: Mapping[Column, list[Any]], shapes: Mapping[str, Shape], **more: Any
) -> Case:
    """Return a case of writes of these columns and values from frames of these shapes."""
    sent = tuple(pa.array(values, column.types.arrow) for column, values in content.items())
    return Case(name, tuple(content), sent, about=about, directions=("write",), shapes=shapes, **more)


def _people(name: str, shapes: Mapping[str, Shape], unfit: str = "") -> Case:
    """Return a case of writes to an ordinary table from frames of these shapes."""
    content: dict[Column, list[Any]] = {
        Column("given", T.TEXT): ["Ana", "Bo", "Ana", "Cy", "Bo"],
        Column("family", T.TEXT): ["Ek", "Lund", "Ruiz", "Ek", "Ito"],
        Column("amount", T.INT64): [10, 20, 30, 40, 50],
        Column("ratio", T.FLOAT64): [1.0, 2.0, 3.0, 4.0, 5.0],
        Column("flag", T.BOOL, nullable=True): [True, None, False, True, None],
        Column("day", T.DATE): _days(*["2026-01-02"] * 3, *["2026-03-29"] * 2),
        Column("moment", T.TIMESTAMP): _timestamps(*["2026-01-02T03:04:05.678901"] * 5),
    }
    return _written(f"frame: {name}", "frames", content, shapes, held_by=() if unfit else BOTH, unfit=unfit)


def _nested_people(name: str, shapes: Mapping[str, Shape]) -> Case:
    """Return a case of writes to a table with nested columns from frames of these shapes."""
    values: tuple[list[Any], ...] = (
        [[1, 2**53 + 1], [], [-(2**63)], [4], [5, 6]],
        [["a", None], ['{"'], [], [""], ["b", "a"]],
        [{"a": at, "b": text} for at, text in enumerate(["x", None, "'", "", "x"])],
        [[("k", 1)], [], [("", None), ("l", 2**63 - 1)], [], [("k", 5)]],
        [[[1], []], [], [[None]], [[7, 8]], [[], []]],
    )
    given = {Column("given", T.TEXT): ["Ana", "Bo", "Ana", "Cy", "Bo"]}
    return _written(f"frame: {name}", "frames", given | dict(zip(NESTED_COLUMNS, values, strict=True)), shapes)


def _appended(
    name: str, column: Column, postgres: str, clickhouse: str, holds: list[Any], *, sent: list[Any] | None = None,
    numbers: bool = False, missing: bool = False,
) -> Case:  # fmt: skip
    """Return a case of appends to a table with a column that the server fills, unless the frame has it (`sent`).

    `postgres` and `clickhouse` define the column in SQL; a server without a definition does not support it.
    """
    content: dict[Column, list[Any]] = {} if sent is None else {column: sent}
    content |= {Column("amount", T.INT32): [10, 20, 30], Column("remark", T.TEXT, nullable=True): ["a", None, "c"]}
    shapes = without(column.name) if missing else frame_shapes.SHAPES["as the table is"]
    types = replace(column.types, postgres=postgres, clickhouse=clickhouse, clickhouse_nullable=False)
    filled = Filled(column, replace(column, exactly=types, nullable=True), tuple(holds), numbers)
    databases = BOTH if clickhouse else POSTGRES
    return _written(f"append: {name}", "append", content, shapes, databases=databases, filled=filled)


def _not_text(name: str, *values: bytes | None, shapes: Mapping[str, Shape] | None = None, **column: Any) -> Case:
    """Return a case of reads of bytes that are not UTF-8, or of writes from frames of these shapes."""
    return Case(
        f"not UTF-8: {name}", (Column("value", T.TEXT, **column),), (pa.array(values, pa.binary()),),
        about="not text", directions=("write",) if shapes else ("read",), shapes=shapes or {},
    )  # fmt: skip


def _not_utf8() -> Iterator[Case]:
    """Yield cases of bytes that are not UTF-8: inside a string view, in its buffer, and longer than a SIMD vector."""
    first, pad = NOT_UTF8["FF FE 41"], b"so many letters "
    for name, raw in NOT_UTF8.items():
        yield _not_text(f"{name}, short", b"text", raw)
        yield _not_text(f"{name}, long", b"text", pad + raw)
    yield _not_text("past 128 bytes", b"text", 9 * pad + first, b"more")
    yield _not_text("LowCardinality", b"text", first, b"text", first, low_cardinality=True)
    yield _not_text("beside NULL", None, b"text", first, None, nullable=True)
    for how, shapes in frame_shapes.NOT_TEXT.items():
        yield _not_text(f"{how}, short", b"text", first, shapes=shapes)
        yield _not_text(f"{how}, long", b"text", pad + first, shapes=shapes)
    yield _not_text("a lone surrogate", b"text", NOT_UTF8["a surrogate"], shapes=SURROGATES)


def _integers(bits: int, wider: pa.DataType) -> tuple[Case, Case]:
    column_type, least, most = ColumnType[f"INT{bits}"], -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    beyond = [1, most + 1] if wider == pa.uint64() else [1, most + 1, least - 1]
    return (
        _case(f"int{bits}: least and greatest", column_type, [least, -1, 0, most]),
        _case(f"int{bits}: one beyond", column_type, beyond, sent_as=wider, held_by=()),
    )


def _wide(column_type: ColumnType) -> tuple[Case, Case]:
    name, (least, most) = column_type.name.lower(), schema.whole_numbers(column_type.value.clickhouse)
    return (
        _case(f"{name}: least and greatest", column_type, [str(least), "1", "0", "10000", str(most), None]),
        _case(f"{name}: one beyond", column_type, ["1", str(most + 1), str(least - 1)], held_by=()),
    )


T = ColumnType
ROWS_BEFORE = pa.table({
    "id": pa.array([-2, -1], pa.int32()), "amount": pa.array([1, 2], pa.int32()), "remark": ["there", None],
})  # fmt: skip
"""The rows of a table before an append."""
STATE = Column("state", T.TEXT)
TWICE = Column("twice", T.INT64)
NUMBER = Column("number", T.INT64)
DEFAULT_STATE = "text NOT NULL DEFAULT 'new'", "String DEFAULT 'new'"
TWICE_AMOUNT = "bigint GENERATED ALWAYS AS (amount * 2) STORED", "Int64 MATERIALIZED amount * 2"
IDENTITY = "bigint GENERATED ALWAYS AS IDENTITY", ""
HARD_TEXTS = ('"', "'", "{}", "a,b", "\\", "[1]", "", "NULL", " x ", "a\tb\nc", "é👩‍👩‍👧", ":", '\\"', None)
"""Texts that a text format of nested values might mistake for syntax."""
SIX_DEEP = nested_list_types(
    nested_list_types(nested_list_types(nested_list_types(nested_list_types(list_types(T.TEXT.value)))))
)
OF_FLOATS = struct_types({"f": T.FLOAT64.value})
MONEY = schema.decimal_types(5, 2)
LONG_AGO_AND_LATE = "0001-01-01", "1899-12-31T23:59:59.999999", "9999-12-31T23:59:59.999999"
NAN, INF = float("nan"), float("inf")
DIGITS_38 = "9" * 28 + "." + "9" * 10
COLOURS = schema.enum_types("a b", "", "it's", "{é}", "of no row")
NOT_UTF8 = {
    "FF FE 41": b"\xff\xfeA",
    "overlong NUL": b"\xc0\x80",
    "overlong slash": b"\xe0\x80\xaf",
    "a surrogate": b"\xed\xa0\x80",
    "past U+10FFFF": b"\xf4\x90\x80\x80",
    "half a character": b"\xe2\x82",
}
"""Byte sequences that are not well-formed: https://www.unicode.org/versions/Unicode16.0.0/core-spec/chapter-3/#G27506"""
IN_A_HOSTILE_SESSION = {
    "text: NULL and empty", r"text: NULL, 'NULL' and '\N'", "text: U+0001 to U+00FF",
    "text: emoji, combining characters",
    "NULL where none is allowed: int32", "float: greatest, subnormal, full precision",
    "float32: greatest, subnormal, full precision", "float: NaN and infinities",
    "decimal: limits of precision and scale", "bool", "bytes", "date: 1970-01-01 to 2149-06-06",
    "timestamp: microseconds", "timestamp: in UTC", "timestamp: in a zone",
}  # fmt: skip
"""The cases whose values depend on settings of a session."""
CASES: tuple[Case, ...] = (
    _case("text: NULL and empty", T.TEXT, ["", None, "x"]),
    _case(r"text: NULL, 'NULL' and '\N'", T.TEXT, ["NULL", r"\N", None, "null", "NaN", "None"]),
    _case("text: like numbers and dates", T.TEXT, ["007", "1e5", "true", "2026-01-01", "-0", "1.10", "0x1f", "inf"]),
    _case("text: tab and line ends", T.TEXT, ["a\tb", "a\nb", "a\r\nb", "\r", "\n", "\t", " a", "a ", " "]),
    _case("text: quotes, backslash, comma", T.TEXT,
          ['"', "'", '""', 'a"b', "\\", "\\t", "\\\\N", "a,b", "`", ";", "%s"]),
    _case("text: U+0001 to U+00FF", T.TEXT, [*map(chr, range(1, 256)), "".join(map(chr, range(1, 256)))]),
    _case("text: emoji, combining characters", T.TEXT,
          ["é", "e\u0301", "👩‍👩‍👧", "\U0010ffff", "\ufeffx", "\u2028", "ﬁ", "א\u200fב"]),
    Case("text: LowCardinality", (Column("value", T.TEXT, nullable=True, low_cardinality=True),),
         (pa.array(["a", None, "", "é", "a"]),), hostile=True),
    _case("text: NUL byte", T.TEXT, ["a\0b", "\0"], held_by=CLICKHOUSE),
    _case("text: 128 KiB", T.TEXT, ["x" * 131_072, "é\t" * 65_536, "y"]),
    _case("NULL where none is allowed: text", T.TEXT, ["a", None], nullable=False, held_by=()),
    _case("NULL where none is allowed: int32", T.INT32, [1, None], nullable=False, held_by=()),
    *_integers(16, pa.int32()), *_integers(32, pa.int64()), *_integers(64, pa.uint64()),
    _case("int64: with NULL, past 2^53", T.INT64, [2**53 + 1, None, -(2**63)]),
    _case("int64: with NULL, small and past 2^53", T.INT64, [1, None, -33_448_745_904_706_042]),
    _case("float: greatest, subnormal, full precision", T.FLOAT64,
          [1.7976931348623157e308, -1.7976931348623157e308, 5e-324, 2.2250738585072014e-308, 0.1 + 0.2, 1 / 3]),
    _case("float32: greatest, subnormal, full precision", T.FLOAT32,
          [3.4028234663852886e38, 1e-45, 0.10000000149011612, -1.5, 0.0]),
    _case("float: -0.0", T.FLOAT64, [-0.0, 0.0]),
    _case("float: whole, past 2^53", T.FLOAT64, [4.54588716815959e16, -9007199254740994.0]),
    _case("float: NaN and infinities", T.FLOAT64, [NAN, INF, -INF]),
    _case("float: NaN against NULL", T.FLOAT64, [NAN, None, 1.5]),
    _case("decimal: limits of precision and scale", T.DECIMAL,
          [*map(Decimal, (DIGITS_38, f"-{DIGITS_38}", "0.0000000001", "1.1", "0")), None]),
    _case("bool", T.BOOL, [True, False, None]),
    _case("bool: all of them false", T.BOOL, [False, False, False]),
    _case("bytes", T.BYTES, [bytes(range(256)), b"", b"\\x41", None, b"\xff\xfe"]),
    _case("uuid", T.UUID,
          ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", UUID_TEXT, None]),
    _case("date: 1970-01-01 to 2149-06-06", T.DATE, _days("1970-01-01", "2000-02-29", "2149-06-06")),
    _case("date: 0001-01-01 to 1969-12-31", T.DATE, _days("0001-01-01", "1582-10-15", "1899-12-31", "1969-12-31"),
          held_by=POSTGRES),
    _case("date: 2149-06-07 to 9999-12-31", T.DATE, _days("2149-06-07", "9999-12-31"), held_by=POSTGRES),
    _case("timestamp: microseconds", T.TIMESTAMP,
          [*_timestamps("1970-01-01", "2026-03-29T02:30:00.000001", "2262-04-12T00:00:00.999999"), None]),
    _case("timestamp: before 1970", T.TIMESTAMP,
          _timestamps("1969-12-31T23:59:59.999999", "1900-01-01T00:00:00.000001")),
    _case("timestamp: 0001 to 1899", T.TIMESTAMP,
          _timestamps("0001-01-01", "1677-09-21", "1899-12-31T23:59:59.999999")),
    _case("timestamp: 2300 to 9999", T.TIMESTAMP, _timestamps("2300-01-01", "9999-12-31T23:59:59.999999")),
    _case("timestamp: nanoseconds", T.TIMESTAMP_NS, [1_790_000_000_123_456_789, -1], held_by=CLICKHOUSE),
    _case("timestamp: in UTC", T.TIMESTAMP_UTC,
          [*_utc("1970-01-01", "2026-03-29T01:30:00.000001", "1969-12-31T23:59:59.999999"), None]),
    # Both sides of the hour that is repeated in October.
    _case("timestamp: in a zone", T.TIMESTAMP_BERLIN,
          _utc("2026-01-01T00:00:00", "2026-07-01T12:00:00.000001", "2026-10-25T00:30:00", "2026-10-25T01:30:00")),
    _case("timestamp: in a zone, whose offset had seconds", T.TIMESTAMP_BERLIN,
          _utc("1901-01-01T00:00:00", "2026-10-25T00:30:00.000001"),
          exactly=schema.timestamp_types("us", "America/St_Johns")),
    _case("list of int64: empty, with NULL", T.LIST, [[1, None, -(2**63)], [], [2**63 - 1], [None]]),
    _case("list of int64: NULL", T.LIST, [[1], None, []], held_by=POSTGRES),
    _lists("list of float64: NaN, -0.0, NULL", T.FLOAT64.value, [[NAN, -0.0, None], [0.1 + 0.2, -INF], []]),
    _lists("list of text: quotes, braces, commas", T.TEXT.value,
          [['"', "'", "{}", "a,b", "\\", "[1]"], ["", None, "NULL", " x ", "a\tb\nc", "é👩‍👩‍👧"], []]),
    *(_case(f"uint{bits}: least and greatest", ColumnType[f"UINT{bits}"], [0, 1, 2**bits - 1, None])
      for bits in (8, 16, 32, 64)),
    _case("uint8: one beyond", T.UINT8, [1, 256, -1], sent_as=pa.int16(), held_by=()),
    _case("time of day: midnight to 23:59:59.999999", T.TIME,
          [dt.time(0), dt.time(12, 30), dt.time(1, 2, 3, 4), dt.time(23, 59, 59, 999_999), None]),
    _case("json: nested, NULL, null", T.JSON,
          ['{"a": [1, true, null, {"b": "x, {y}"}]}', "[]", "null", '"a\\"b"', "7", None]),
    _case("json: order of keys, white space", T.JSON, ['{"b": 1,  "a": 2}', '{"aa":1,"b":[ ]}']),
    _case("json: numbers past 2^53, 30 digits", T.JSON,
          ["[9007199254740993, -9223372036854775809]", '{"a": 0.123456789012345678901234567891, "b": 1e400}']),
    _case("json: a key twice", T.JSON, ['{"a": 1, "a": 2}'], held_by=CLICKHOUSE),
    _case(r"json: \u0000", T.JSON, [r'{"a": "x\u0000y"}'], held_by=CLICKHOUSE),
    _case("json: no JSON", T.JSON, ["{"], held_by=()),
    _case("enum: some of its values", T.ENUM, ["a b", "", None, "it's", "{é}"], exactly=COLOURS),
    _case("enum: a value more", T.ENUM, ["a b", "grey"], exactly=COLOURS, sent_as=pa.large_string(), held_by=()),
    _case("fixed-size bytes: 8", T.FIXED_BYTES, [bytes(8), bytes(range(248, 256)), b"abc\0\0\0\0\0", None]),
    _case("fixed-size bytes: too few", T.FIXED_BYTES, [b"abc"], sent_as=pa.binary(), held_by=()),
    _case("IPv4 address", T.IPV4, ["0.0.0.1", "255.255.255.255", "192.0.2.1", None]),
    _case("IPv4 address: of a network", T.IPV4, ["192.0.2.1/24"], held_by=()),
    _case("IPv6 address: an IPv4 one", T.IPV6, ["::1", "192.0.2.1"], held_by=()),
    _case("IPv6 address", T.IPV6, ["::", "2001:db8::1", "ffff:" * 7 + "ffff", None]),
    _case("duration: microseconds, negative, years", T.DURATION,
          [dt.timedelta(microseconds=1), dt.timedelta(days=-1, microseconds=-1), dt.timedelta(days=40_000), None]),
    _lists("list of unsigned: least, greatest, NULL", T.UINT64.value, [[0, 2**64 - 1, None], [], [None]]),
    _lists("list of decimals: limits, NULL", T.DECIMAL.value,
          [[Decimal(DIGITS_38), None], [], [Decimal("-0.0000000001"), Decimal("-" + "9" * 28)]]),
    _lists("list of decimals: of few digits", MONEY, [[Decimal("999.99"), None, Decimal("-0.01")], [], [Decimal(0)]]),
    _case("int16: with NULL", T.INT16, [1, None, -(2**15)]),
    _case("float32: with NULL", T.FLOAT32, [1.5, None, 0.10000000149011612]),
    _case("date: 1900 to 2299, with NULL", T.DATE, [*_days("1900-01-01", "1969-12-31", "2299-12-31"), None],
          exactly=schema.DATE32),
    _case("timestamp: in a zone, with NULL", T.TIMESTAMP_BERLIN,
          [*_utc("2026-10-25T00:30:00", "2026-10-25T01:30:00.000001"), None]),
    _case("enum: 200 values, the last, with NULL", T.ENUM, ["v199", None, "v0"],
          exactly=schema.enum_types(*(f"v{at}" for at in range(200)))),
    _case("uuid: no UUID", T.UUID, ["0123", None, UUID_TEXT], held_by=()),
    _lists("list of UUIDs: no UUID", T.UUID.value, [["a text of 16 byt", None], [UUID_TEXT]], held_by=()),
    _case("list of structs: NULL inside", T.NESTED_LIST, [[{"a": 1, "b": "x"}, None], [None]],
          exactly=nested_list_types(T.STRUCT.value), held_by=POSTGRES),
    _lists("list of bytes: of any kind, NULL", T.BYTES.value,
          [[bytes(range(256)), b"", None], [], [b"\\x41", b'\xff\xfe{,}"', None]]),
    _lists("list of booleans: NULL", T.BOOL.value, [[True, None, False], [], [None]]),
    _lists("list of dates: 1900 to 2299, NULL", schema.DATE32,
          [[*_days("1900-01-01", "2299-12-31"), None], [], [None]]),
    _lists("list of moments: microseconds, NULL", T.TIMESTAMP.value,
          [[*_timestamps("1970-01-01", "2026-03-29T02:30:00.000001", "2199-12-31T23:59:59.5"), None], [], [None]]),
    _lists("list of moments: in a zone, NULL", T.TIMESTAMP_BERLIN.value,
          [[*_utc("1970-01-01", "2026-10-25T00:30:00.000001", "2026-10-25T01:30:00"), None], [], [None]]),
    _lists("list of moments: 0001 to 9999", T.TIMESTAMP.value, [_timestamps(*LONG_AGO_AND_LATE)]),
    _lists("list of times of day: midnight to 23:59:59.999999", T.TIME.value,
          [[dt.time(0), dt.time(1, 2, 3, 4), dt.time(23, 59, 59, 999_999), None], [], [None]]),
    _lists("list of UUIDs: NULL", T.UUID.value,
          [["00000000-0000-0000-0000-000000000000", UUID_TEXT, None], [], [None]]),
    _lists("list of enum: some of its values, NULL", COLOURS, [["a b", "", None, "it's", "{é}"], [], [None]]),
    _lists("list of enum: a value more", COLOURS, [["a b", "grey"]], sent_as=pa.list_(pa.large_string()), held_by=()),
    _case("fixed-size list: of two moments", T.FIXED_LIST, [_timestamps("1970-01-01", "2026-03-29T02:30:00.000001")],
          exactly=schema.fixed_list_types(T.TIMESTAMP.value, 2)),
    _case("fixed-size list: of two, with NULL", T.FIXED_LIST, [[1, None], [-(2**63), 2**63 - 1], [0, 0]]),
    _case("fixed-size list: NULL", T.FIXED_LIST, [[1, 2], None], held_by=POSTGRES),
    _case("fixed-size list: one too many", T.FIXED_LIST, [[1, 2, 3]], sent_as=pa.list_(pa.int64()), held_by=()),
    _case("nested list: empty, with NULL", T.NESTED_LIST, [[[1, None], []], [], [[-(2**63)], [2**63 - 1, 7, 8]]]),
    _case("nested list: NULL inside", T.NESTED_LIST, [[[1], None], [None]], held_by=POSTGRES),
    _case("nested list: six levels deep", T.NESTED_LIST, [[[[[[["a", None, "[]"]]], []]]], [[[[[[]]]]]], []],
          exactly=SIX_DEEP),
    _case("list of structs: empty, text with quotes", T.NESTED_LIST,
          [[{"a": 1, "b": text} for text in HARD_TEXTS], [], [{"a": None, "b": None}]],
          exactly=nested_list_types(T.STRUCT.value)),
    _case("struct: text with quotes, braces, NULL fields", T.STRUCT,
          [*({"a": at, "b": text} for at, text in enumerate(HARD_TEXTS)), {"a": None, "b": None}]),
    _case("struct: NULL", T.STRUCT, [{"a": 1, "b": "x"}, None, {"a": None, "b": None}], held_by=POSTGRES),
    _case("struct: a field missing", T.STRUCT, [{"a": 1}, {"a": 0}, {"a": 2**63 - 1}],
          sent_as=pa.struct({"a": pa.int64()}.items())),
    _case("struct: a field more", T.STRUCT, [{"a": 1, "b": "x", "c": "more"}],
          sent_as=pa.struct({"a": pa.int64(), "b": pa.string(), "c": pa.string()}.items()), held_by=()),
    _case("struct: of lists, structs and maps", T.STRUCT,
          [{"a b": {"x": 0.1 + 0.2, "y": None}, "list": [1, None], "map": [("k", "v"), ("", None)], "day": day}
           for day in (dt.date(2026, 1, 2), None)],
          exactly=struct_types({"a b": struct_types({"x": T.FLOAT64.value, "y": T.BOOL.value}),
                                "list": list_types(T.INT16.value), "map": map_types(T.TEXT.value, T.TEXT.value),
                                "day": T.DATE.value})),
    _case("struct: decimals of few digits, in a list and a map", T.STRUCT,
          [{"price": Decimal("1.05"), "list": [Decimal("-0.01"), None], "map": [("k", Decimal("999.99")), ("", None)]},
           {"price": None, "list": [], "map": []}],
          exactly=struct_types({"price": MONEY, "list": list_types(MONEY), "map": map_types(T.TEXT.value, MONEY)})),
    _case("struct: moments of 0001 to 9999", T.STRUCT, [{"at": at} for at in _timestamps(*LONG_AGO_AND_LATE)],
          exactly=struct_types({"at": T.TIMESTAMP.value})),
    _case("struct: NaN, infinity", T.STRUCT, [{"f": NAN}, {"f": -INF}], exactly=OF_FLOATS, held_by=CLICKHOUSE),
    _case("struct: -0.0", T.STRUCT, [{"f": -0.0}, {"f": 0.0}], exactly=OF_FLOATS, held_by=CLICKHOUSE),
    _case("struct: NUL in text", T.STRUCT, [{"a": 1, "b": "x\0y"}], held_by=CLICKHOUSE),
    _case("map: empty, NULL values, keys with quotes", T.MAP,
          [[], [("", None), ("a", 2**63 - 1)], [(text, at) for at, text in enumerate(HARD_TEXTS[:-1])]]),
    _case("map: NULL", T.MAP, [[("a", 1)], None, []], held_by=POSTGRES),
    _case("map: a key twice", T.MAP, [[("a", 1), ("b", 2), ("a", 3)]], held_by=CLICKHOUSE),
    _case("map: whole numbers to lists of text", T.MAP, [[(7, ["a", None]), (-1, [])], []],
          exactly=map_types(T.INT32.value, list_types(T.TEXT.value))),
    *(case for kind in schema.LONG_NUMBERS[:-1] for case in _wide(kind)),
    _case("wide decimal: 76 digits, negative, NULL", T.WIDE_DECIMAL,
          ["9" * 56 + "." + "9" * 20, "-" + "9" * 56 + "." + "9" * 20, "0.00000000000000000001", "-1.5", "0", None]),
    _case("wide decimal: a digit more", T.WIDE_DECIMAL, ["0." + "0" * 20 + "1"], held_by=()),
    _case("all NULL: int32", T.INT32, [None, None]),
    _case("all NULL: text", T.TEXT, [None, None]),
    _case("zero rows", T.TEXT, []),
    Case("a slice, an index of its own", (Column("text", T.TEXT, nullable=True), Column("flag", T.BOOL, nullable=True)),
         (pa.array(["a", None, "ccc", "", "ee"]), pa.array([True, None, False, True, None])), shapes=SLICED),
    _identifiers("column names that need quotes",
                 "select", "MixedCase", "a-b", "a b", 'a"b', "a`b", "a%b", "a:b", "a'b", "a\\b", "día", "{x}"),
    _identifiers("column names that differ in case", "MixedCase", "mixedcase"),
    Case("one column name twice", (Column("value", T.INT32),), (pa.array([1, 2], pa.int32()),), (), about="frames",
         directions=("write",), shapes=frame_shapes.DOUBLED, unfit="one of the two columns was dropped"),
    *(_people(name, shapes) for name, shapes in frame_shapes.SHAPES.items()),
    *(_nested_people(name, shapes) for name, shapes in frame_shapes.NESTED_SHAPES.items()),
    *(_written(f"frame: {name}", "frames", {Column("value", T.TEXT, nullable=True): [
        "a text of more than twelve bytes", "short", None, "", "another text that no view holds itself", "short",
      ]}, shapes)
      for name, shapes in frame_shapes.FROM_ARROW.items()),
    _written("frame: UUIDs of Arrow", "frames",
             {Column("value", T.UUID, nullable=True): [UUID_TEXT, None, UUID_OF_TEXT]}, frame_shapes.UUIDS),
    _written("frame: lists of UUIDs of Arrow", "frames",
             {Column("value", T.LIST, exactly=list_types(T.UUID.value)): [[UUID_TEXT, None], [], [UUID_OF_TEXT]]},
             frame_shapes.UUID_LISTS),
    *(_people(name, shapes, unfit) for name, (shapes, unfit) in frame_shapes.UNFIT.items()),
    _appended("a default, its column not named", STATE, *DEFAULT_STATE, ["new"] * 5),
    _appended("a default, its column missing in the frame", STATE, *DEFAULT_STATE, ["new"] * 5, sent=["x", "y", "z"],
              missing=True),
    _appended("a default, NULL in the frame", replace(STATE, nullable=True), "text DEFAULT 'new'",
              "Nullable(String) DEFAULT 'new'", ["new", "new", None, "x", None], sent=[None, "x", None]),
    _appended("a generated column, not named", TWICE, *TWICE_AMOUNT, [2, 4, 20, 40, 60]),
    _appended("a generated column, in the frame", TWICE, *TWICE_AMOUNT, [2, 4, 7, 8, 9], sent=[7, 8, 9]),
    _appended("an identity column, not named", NUMBER, *IDENTITY, [1, 2, 3, 4, 5], numbers=True),
    _appended("an identity column, in the frame", NUMBER, *IDENTITY, [1, 2, 7, 8, 9], sent=[7, 8, 9]),
    *_not_utf8(),
)  # fmt: skip
