"""Define the edge cases: their values, tables and frames."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pyarrow as pa

from framehaul.data import schema
from framehaul.data.documents import nested_array
from framehaul.data.equality import Content, content_of
from framehaul.data.frames import to_pandas
from framehaul.data.schema import Column, ColumnType, Table, Types, list_types, map_types, struct_types
from framehaul.studies.fidelity import shapes as of_frames
from framehaul.studies.fidelity.shapes import Shapes, without
from framehaul.techniques.registry import Database, Direction

BOTH: tuple[Database, ...] = ("postgres", "clickhouse")
KEY = Column("id", ColumnType.INT32)

About = Literal["values", "frames", "not text", "append"]
"""The kind of a case: values, shapes of frames, bytes that are not UTF-8, or appends to a table with a column that the
server fills."""


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
    shapes: Shapes = field(default_factory=lambda: of_frames.PLAIN)
    unfit: str = ""
    """The loss if a frame that does not fit the table raises no error."""
    filled: Column | None = None
    """A column that the server fills, with its definition as SQL types; the table then has rows before the write."""
    holds: tuple[object, ...] = ()
    """The expected values of that column, first of the rows before the write."""
    databases: tuple[Database, ...] = BOTH
    """The databases that support the table."""

    @property
    def table(self) -> Table:
        """Return the table that techniques get: the key and the case's columns."""
        plain = re.sub(r"\W+", "_", self.name)  # other tests have awkward table names
        table = Table(f"framehaul_fidelity_{plain}"[:60], (KEY, *self.columns), (KEY.name,))
        if self.filled is None:
            return table
        made = _with_second(table, self.filled)
        _, _, postgres_body = made.postgres_ddl.partition(made.postgres_name)
        return replace(table, postgres_body=postgres_body, clickhouse_body=made.clickhouse_definition())

    @property
    def full_table(self) -> Table:
        """Return the table with all of its columns."""
        return _with_second(self.table, replace(self.filled, exactly=None)) if self.filled else self.table

    def content(self) -> pa.Table:
        """Return the rows to send, with the key; types may differ from the table's."""
        key = pa.array(range(len(self.sent[0])), pa.int32())
        return pa.Table.from_arrays([key, *self.sent], names=self.table.column_names)

    def frame(self, kind: str) -> Any:
        """Return the rows to send as a frame of this kind, in the case's shape."""
        content = self.content()
        has_the_types = [array.type for array in self.sent] == [column.types.arrow for column in self.columns]
        frame: Any = content
        if kind == "polars":
            frame = pl.from_arrow(content)
            frame = frame.cast(pl.Schema(self.table.polars_schema)) if has_the_types else frame
        elif kind == "pandas" and has_the_types:
            columns = zip(self.table.columns, content.columns, strict=True)
            nullable = (replace(one, nullable=one.nullable or array.null_count > 0) for one, array in columns)
            frame = to_pandas(content, replace(self.table, columns=tuple(nullable)))
        elif kind == "pandas":
            frame = content.to_pandas()
        return self.shapes[kind](frame)

    @cached_property
    def expected(self) -> Content:
        """Return the expected content of the table after the write, in the order of the key."""
        content = self.content()
        if self.filled:
            content = pa.concat_tables([ROWS_BEFORE, content.select(ROWS_BEFORE.column_names)])
            content = content.append_column(self.filled.name, pa.array(self.holds))
        return content_of(content, self.full_table.columns, nan_is_null=False)


def _with_second(table: Table, column: Column) -> Table:
    """Return the table with this column behind the first, and without another column of its name."""
    first, *others = (each for each in table.columns if each.name != column.name)
    return replace(table, columns=(first, column, *others))


def _identifiers(name: str, *names: str) -> Case:
    columns = tuple(Column(name, T.INT32) for name in names)
    return Case(name, columns, tuple(pa.array([at], pa.int32()) for at in range(len(names))))


def _written(name: str, content: Mapping[Column, list[Any]], shapes: Shapes, **more: Any) -> Case:
    """Return a case of writes of these columns, with values as in JSON, from frames of these shapes."""
    sent = tuple(nested_array(values, column.types.arrow, texts=True) for column, values in content.items())
    more = {"about": "frames", "directions": ("write",), **more}
    return Case(name, tuple(content), sent, shapes=shapes, **more)


def _appended(name: str, column: Column, defined: tuple[str, str], holds: list[Any], sent: Any = None) -> Case:
    """Return a case of appends to a table with a column that the servers fill, unless the frame has it (`sent`).

    `defined` is the column in the SQL of PostgreSQL and of ClickHouse, empty if ClickHouse does not support it.
    """
    content = {} if sent is None else {column: sent}
    shapes = without(column.name) if "missing" in name else of_frames.SHAPES["as the table is"]
    types = replace(column.types, postgres=defined[0], clickhouse=defined[1], clickhouse_nullable=False)
    databases, filled = BOTH if defined[1] else BOTH[:1], replace(column, exactly=types, nullable=True)
    more = {"databases": databases, "filled": filled, "holds": tuple(holds)}
    return _written(f"append: {name}", content | ADDED, shapes, about="append", **more)


def _not_text(name: str, *values: bytes | None, shapes: Shapes | None = None, **column: Any) -> Case:
    """Return a case of reads of bytes that are not UTF-8, or of writes from frames of these shapes."""
    columns, sent = (Column("value", T.TEXT, **column),), (pa.array(values, pa.binary()),)
    case = Case(f"not UTF-8: {name}", columns, sent, about="not text", directions=("read",))
    return replace(case, directions=("write",), shapes=shapes) if shapes else case


def _not_utf8() -> Iterator[Case]:
    """Yield cases of bytes that are not UTF-8: inside a string view, in its buffer, and longer than a SIMD vector."""
    first, pad = NOT_UTF8["FF FE 41"], b"so many letters "
    for name, raw in NOT_UTF8.items():
        yield _not_text(f"{name}, short", b"text", raw)
        yield _not_text(f"{name}, long", b"text", pad + raw)
    yield _not_text("past 128 bytes", b"text", 9 * pad + first, b"more")
    yield _not_text("LowCardinality", b"text", first, b"text", first, low_cardinality=True)
    yield _not_text("beside NULL", None, b"text", first, None, nullable=True)
    for how, shapes in of_frames.NOT_TEXT.items():
        yield _not_text(f"{how}, short", b"text", first, shapes=shapes)
        yield _not_text(f"{how}, long", b"text", pad + first, shapes=shapes)
    yield _not_text("a lone surrogate", b"text", NOT_UTF8["a surrogate"], shapes=of_frames.SURROGATES)


T, TEXT = ColumnType, ColumnType.TEXT.value
FEW_DIGITS = schema.decimal_types(5, 2)
EXACTLY: dict[str, Types] = {
    "in St. John's": schema.timestamp_types("us", "America/St_Johns"),
    "date32": schema.DATE32,
    "few digits": FEW_DIGITS,
    "colours": schema.enum_types("a b", "", "it's", "{é}", "of no row"),
    "200 values": schema.enum_types(*(f"v{at}" for at in range(200))),
    "two moments": schema.fixed_list_types(T.TIMESTAMP.value, 2),
    "structs": schema.nested_list_types(T.STRUCT.value),
    "six levels": reduce(lambda inner, _: schema.nested_list_types(inner), range(5), list_types(TEXT)),
    "of a float": struct_types({"f": T.FLOAT64.value}),
    "of a moment": struct_types({"at": T.TIMESTAMP.value}),
    "of few digits": struct_types({
        "price": FEW_DIGITS, "list": list_types(FEW_DIGITS), "map": map_types(TEXT, FEW_DIGITS),
    }),
    "of nested fields": struct_types({
        "a b": struct_types({"x": T.FLOAT64.value, "y": T.BOOL.value}), "list": list_types(T.INT16.value),
        "map": map_types(TEXT, TEXT), "day": T.DATE.value,
    }),
    "to lists": map_types(T.INT32.value, list_types(TEXT)),
}  # fmt: skip
"""The types with parameters, by the name of the parameters in values.tsv."""
SENT_AS: dict[str, pa.DataType] = {
    "list of int64": pa.list_(pa.int64()),
    "list of large_string": pa.list_(pa.large_string()),
    "struct of a": pa.struct({"a": pa.int64()}),
    "struct of a, b, c": pa.struct({"a": pa.int64(), "b": pa.string(), "c": pa.string()}),
}
"""The nested Arrow types of values that are not sent in the table's type."""
NOT_IN_JSON: dict[str, list[Any]] = {
    "text: U+0001 to U+00FF": [*map(chr, range(1, 256)), "".join(map(chr, range(1, 256)))],
    "text: 128 KiB": ["x" * 131_072, "é\t" * 65_536, "y"],
    "bytes": [bytes(range(256)), b"", b"\\x41", None, b"\xff\xfe"],
    "fixed-size bytes: 8": [bytes(8), bytes(range(248, 256)), b"abc\0\0\0\0\0", None],
    "fixed-size bytes: too few": [b"abc"],
    "list of bytes: of any kind, NULL": [[bytes(range(256)), b"", None], [], [b"\\x41", b'\xff\xfe{,}"', None]],
}
"""The values of cases that values.tsv does not have: bytes, and long texts."""


def _of_values() -> Iterator[Case]:
    """Yield the cases of values.tsv, whose values are JSON, with dates, times and decimals as text.

    The parameters of a type are a name in EXACTLY; those of a list may be another type.
    """
    # Without quoting, because the values contain quotes.
    for line in Path(__file__).with_name("values.tsv").read_text("utf8").splitlines()[1:]:
        name, kind, parameters, held_by, options, sent_as, text = line.split("\t")
        values = json.loads(text) if text else NOT_IN_JSON[name]
        types = (EXACTLY.get(parameters) or T[parameters.upper()].value) if parameters else None
        types = list_types(types) if types and kind == "list" else types
        nullable, dictionary = None in values and "not null" not in options, "low cardinality" in options
        column = Column("value", T[kind.upper()], nullable=nullable, low_cardinality=dictionary, exactly=types)
        if sent_as:
            sent = pa.array(values, SENT_AS.get(sent_as) or pa.type_for_alias(sent_as))
        else:
            sent = nested_array(values, column.types.arrow, texts=True)
        holding = tuple(one for one in BOTH if one in held_by)
        yield Case(name, (column,), (sent,), holding, hostile="hostile" in options)


BEFORE = KEY, Column("amount", T.INT32), Column("remark", T.TEXT, nullable=True)
ROWS_BEFORE = pa.table([[-2, -1], [1, 2], ["there", None]], pa.schema([(one.name, one.types.arrow) for one in BEFORE]))
"""The columns and rows of a table before an append."""
ADDED: dict[Column, list[Any]] = {BEFORE[1]: [10, 20, 30], BEFORE[2]: ["a", None, "c"]}
STATE, TWICE, NUMBER = Column("state", T.TEXT), Column("twice", T.INT64), Column("number", T.INT64)
DEFAULT_STATE = "text NOT NULL DEFAULT 'new'", "String DEFAULT 'new'"
NULLABLE_STATE = "text DEFAULT 'new'", "Nullable(String) DEFAULT 'new'"
TWICE_AMOUNT = "bigint GENERATED ALWAYS AS (amount * 2) STORED", "Int64 MATERIALIZED amount * 2"
IDENTITY = "bigint GENERATED ALWAYS AS IDENTITY", ""
NOT_UTF8 = {
    "FF FE 41": b"\xff\xfeA",
    "overlong NUL": b"\xc0\x80",
    "overlong slash": b"\xe0\x80\xaf",
    "a surrogate": b"\xed\xa0\x80",
    "past U+10FFFF": b"\xf4\x90\x80\x80",
    "half a character": b"\xe2\x82",
}
"""Byte sequences that are not well-formed: https://www.unicode.org/versions/Unicode16.0.0/core-spec/chapter-3/#G27506"""
GIVEN: dict[Column, list[Any]] = {Column("given", T.TEXT): ["Ana", "Bo", "Ana", "Cy", "Bo"]}
PEOPLE: dict[Column, list[Any]] = GIVEN | {
    Column("family", T.TEXT): ["Ek", "Lund", "Ruiz", "Ek", "Ito"],
    Column("amount", T.INT64): [10, 20, 30, 40, 50],
    Column("ratio", T.FLOAT64): [1.0, 2.0, 3.0, 4.0, 5.0],
    Column("flag", T.BOOL, nullable=True): [True, None, False, True, None],
    Column("day", T.DATE): ["2026-01-02"] * 3 + ["2026-03-29"] * 2,
    Column("moment", T.TIMESTAMP): ["2026-01-02T03:04:05.678901"] * 5,
}
"""The content of an ordinary table."""
TEXTS_OF_ARROW: dict[Column, list[Any]] = {Column("value", T.TEXT, nullable=True): [
    "a text of more than twelve bytes", "short", None, "", "another text that no view holds itself", "short",
]}  # fmt: skip
UUIDS = ["01234567-89ab-cdef-0123-456789abcdef", None, "61626364-6566-6768-696a-6b6c6d6e6f70"]
UUID_LISTS = Column("value", T.LIST, exactly=list_types(T.UUID.value))
FRAMES: list[tuple[dict[Column, list[Any]], dict[str, Shapes]]] = [
    (PEOPLE, of_frames.SHAPES),
    (GIVEN | of_frames.NESTED, of_frames.NESTED_SHAPES),
    (TEXTS_OF_ARROW, of_frames.FROM_ARROW),
    ({Column("value", T.UUID, nullable=True): UUIDS}, of_frames.UUIDS),
    ({UUID_LISTS: [UUIDS[:2], [], UUIDS[2:]]}, of_frames.UUID_LISTS),
]
"""Contents of tables, and the shapes of the frames with which they are written."""
CASES: tuple[Case, ...] = (
    *_of_values(),
    Case("a slice, an index of its own", (Column("text", T.TEXT, nullable=True), Column("flag", T.BOOL, nullable=True)),
         (pa.array(["a", None, "ccc", "", "ee"]), pa.array([True, None, False, True, None])), shapes=of_frames.SLICED),
    _identifiers("column names that need quotes",
                 "select", "MixedCase", "a-b", "a b", 'a"b', "a`b", "a%b", "a:b", "a'b", "a\\b", "día", "{x}"),
    _identifiers("column names that differ in case", "MixedCase", "mixedcase"),
    Case("one column name twice", (Column("value", T.INT32),), (pa.array([1, 2], pa.int32()),), (), about="frames",
         directions=("write",), shapes=of_frames.DOUBLED, unfit="one of the two columns was dropped"),
    *(_written(f"frame: {name}", content, shapes) for content, group in FRAMES for name, shapes in group.items()),
    *(_written(f"frame: {name}", PEOPLE, shapes, held_by=(), unfit=unfit)
      for name, (shapes, unfit) in of_frames.UNFIT.items()),
    _appended("a default, its column not named", STATE, DEFAULT_STATE, ["new"] * 5),
    _appended("a default, its column missing in the frame", STATE, DEFAULT_STATE, ["new"] * 5, ["x", "y", "z"]),
    _appended("a default, NULL in the frame", replace(STATE, nullable=True), NULLABLE_STATE,
              ["new", "new", None, "x", None], [None, "x", None]),
    _appended("a generated column, not named", TWICE, TWICE_AMOUNT, [2, 4, 20, 40, 60]),
    _appended("a generated column, in the frame", TWICE, TWICE_AMOUNT, [2, 4, 7, 8, 9], [7, 8, 9]),
    _appended("an identity column, not named", NUMBER, IDENTITY, [1, 2, 3, 4, 5]),
    _appended("an identity column, in the frame", NUMBER, IDENTITY, [1, 2, 7, 8, 9], [7, 8, 9]),
    *_not_utf8(),
)  # fmt: skip

PATH = ["database", "direction", "family", "frame", "origin"]
PARTS = re.compile(r"(?:(?<=Enum8|Tuple)|(?<=Enum))\((?:[^()]|\([^()]*\))*\)")
"""The parameters in a type's name, which depend on the case."""
OF_CATEGORIES = ("text: LowCardinality", "frame: categories for text")
"""The cases of text that is a dictionary in ClickHouse or in a frame."""
CATEGORICAL = replace(TEXT, polars=pl.Categorical(), postgres_form="text", clickhouse_form="LowCardinality(String)")


def _tested(case: Case) -> tuple[str, Types]:
    """Return the name of the type that a case tests, empty if it does not test a single type, and the type."""
    column = case.columns[-1]
    if case.name in OF_CATEGORIES:
        return "categorical", CATEGORICAL
    if case.about != "values" or [each.name for each in case.columns] != ["value"]:
        return "", column.types
    name = column.type.name
    if column.type is T.LIST:
        name = f"list of {column.element.type.name}"
    elif column.type is T.NESTED_LIST and column.element.type is T.STRUCT:
        name = "list of structs"
    return name.lower().replace("_", " "), column.types


_TESTED = pl.DataFrame(
    [
        {
            "case": case.name,
            "type": name,
            "held_by": case.held_by,
            "has_form": [one for one in BOTH if getattr(types, f"{one}_form")],
            "postgres": types.postgres_form or types.postgres,
            "clickhouse": types.clickhouse_form or PARTS.sub("(...)", types.clickhouse),
            "polars": re.sub(r", time_zone=None|\w+=", "", PARTS.sub("(...)", str(types.polars))),
        }
        for case in sorted(CASES, key=lambda case: [*T].index(case.columns[-1].type))
        for name, types in [_tested(case)]
        if name and case.held_by
    ]
)
"""For each case of a type that a database can hold: the databases that can, and those that store another type instead;
the name of the type on each server and in Polars."""
TYPES = _TESTED["type", "postgres", "clickhouse", "polars"].unique("type", keep="first", maintain_order=True)
"""The name of each type on each server and in Polars, with the parameters of its first case."""


def carried(cells: pl.DataFrame, by: Sequence[str] = PATH) -> pl.DataFrame:
    """Return the worst outcome of each type for each group of techniques, by default a family, frame and origin.

    `state` is `exact`, `converted`, `refused` or `lost`. A value is converted if the server stores another type, or if
    a read returns an equivalent dtype. If only the other server can hold a value, an error is right and does not count,
    but a loss counts.
    """
    here = cells.filter(session="default").join(_TESTED, on="case", maintain_order="left")
    outcome, database = pl.col("outcome"), pl.col("database")
    here = here.filter(database.is_in("held_by") | (outcome == "loss"))
    other = database.is_in("has_form") | pl.col("detail").str.starts_with("dtypes")
    worse = pl.when((outcome == "loss").any()).then(pl.lit("lost")).when((outcome == "error").any())
    state = worse.then(pl.lit("refused")).when(other.any()).then(pl.lit("converted")).otherwise(pl.lit("exact"))
    return here.group_by([*by, "type"], maintain_order=True).agg(state.alias("state"))
