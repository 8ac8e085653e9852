"""Tables of other shapes and tables of few rows, with the leading techniques of each direction."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from framehaul.bench import measure, recording, statistics, store
from framehaul.bench.measure import PassOptions
from framehaul.bench.meter import Moved
from framehaul.bench.recording import Recording, recorded
from framehaul.bench.rounds import Failed, Ok, Pass, Rounds, Skipped
from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS, Column, ColumnType, Table, enum_types, list_types, struct_types
from framehaul.servers import Servers
from framehaul.studies.registry import TABLE_SHAPES
from framehaul.techniques import Technique
from framehaul.techniques.registry import Database, Direction, named

type DatabaseDirection = tuple[Database, Direction]


@dataclass(frozen=True)
class Shape:
    """A table and the function that returns a number of its rows for a seed."""

    name: str
    label: str
    table: Table
    content: Callable[[Table, int, int], pa.Table] = generator.arrow_table


T = ColumnType
ID = Column("id", T.INT64)


def _table(name: str, *columns: Column) -> Table:
    # The prefix differs from the tables of the study of clients, which a smoke run measures at the same time.
    return Table(f"framehaul_shape_{name}", columns, (columns[0].name,))


HITS = """
INT64: WatchID; INT16: JavaEnable; TEXT: Title; INT16: GoodEvent; TIMESTAMP: EventTime; DATE: EventDate; INT32:
CounterID ClientIP RegionID; INT64: UserID; INT16: CounterClass OS UserAgent; TEXT: URL Referer; INT16: IsRefresh
RefererCategoryID; INT32: RefererRegionID; INT16: URLCategoryID; INT32: URLRegionID; INT16: ResolutionWidth
ResolutionHeight ResolutionDepth FlashMajor FlashMinor; TEXT: FlashMinor2; INT16: NetMajor NetMinor UserAgentMajor;
TEXT: UserAgentMinor; INT16: CookieEnable JavascriptEnable IsMobile MobilePhone; TEXT: MobilePhoneModel Params;
INT32: IPNetworkID; INT16: TraficSourceID SearchEngineID; TEXT: SearchPhrase; INT16: AdvEngineID IsArtifical
WindowClientWidth WindowClientHeight ClientTimeZone; TIMESTAMP: ClientEventTime; INT16: SilverlightVersion1
SilverlightVersion2; INT32: SilverlightVersion3; INT16: SilverlightVersion4; TEXT: PageCharset; INT32: CodeVersion;
INT16: IsLink IsDownload IsNotBounce; INT64: FUniqID; TEXT: OriginalURL; INT32: HID; INT16: IsOldCounter IsEvent
IsParameter DontCountHits WithHash; TEXT: HitColor; TIMESTAMP: LocalEventTime; INT16: Age Sex Income Interests
Robotness; INT32: RemoteIP WindowName OpenerName; INT16: HistoryLength; TEXT: BrowserLanguage BrowserCountry
SocialNetwork SocialAction; INT16: HTTPError; INT32: SendTiming DNSTiming ConnectTiming ResponseStartTiming
ResponseEndTiming FetchTiming; INT16: SocialSourceNetworkID; TEXT: SocialSourcePage; INT64: ParamPrice; TEXT:
ParamOrderID ParamCurrency; INT16: ParamCurrencyID; TEXT: OpenstatServiceName OpenstatCampaignID OpenstatAdID
OpenstatSourceID UTMSource UTMMedium UTMCampaign UTMContent UTMTerm FromTag; INT16: HasGCLID; INT64: RefererHash
URLHash; INT32: CLID
"""
"""The columns of ClickBench's table `hits` in their order, by type; VARCHAR and CHAR are text here.

https://github.com/ClickHouse/ClickBench/blob/main/postgresql/create.sql
"""
_GROUPS = (group.partition(":") for group in HITS.split(";"))
_HITS = tuple(Column(name, ColumnType[kind.strip()]) for kind, _, names in _GROUPS for name in names.split())

HITS_KEY = ("CounterID", "EventDate", "UserID", "EventTime", "WatchID")
NARROW_KINDS = (T.INT32, T.INT16, T.FLOAT32, T.BOOL, T.FLOAT64)
NARROW = _table("narrow_500", ID, *(Column(f"c{at}", NARROW_KINDS[at % len(NARROW_KINDS)]) for at in range(499)))
LONG_TEXTS = _table("texts", ID, Column("question", T.TEXT), Column("answer", T.TEXT))
CHUNKS, CHUNK_WORDS, LONG_TEXT_CHUNKS = 8192, 11, 16
"""A long text of about 1.6 kB joins 16 of 8,192 chunks, and a chunk joins 11 words."""


def with_long_texts(table: Table, rows: int, seed: int) -> pa.Table:
    """Return the generator's rows with texts of about 1.6 kB, which do not repeat, in the columns of text."""
    content, random = generator.arrow_table(table, rows, seed), np.random.default_rng(seed)
    vocabulary = [generator.WORDS[at % 12] + f"{at:x}" for at in range(4096)]
    chunks = pa.array([" ".join(words) for words in random.choice(vocabulary, (CHUNKS, CHUNK_WORDS))])
    for name in table.columns_of(T.TEXT):
        parts = chunks.take(pa.array(random.integers(CHUNKS, size=rows * LONG_TEXT_CHUNKS)))
        lists = pa.FixedSizeListArray.from_arrays(parts, LONG_TEXT_CHUNKS).cast(pa.list_(pa.string()))
        # The generator's own text comes first: it holds characters that text formats break on.
        text = pc.binary_join_element_wise(content.column(name).combine_chunks(), pc.binary_join(lists, " "), " ")
        content = content.set_column(table.column_names.index(name), table.arrow_schema.field(name), text)
    return content


SHARE_OF_NULL = 0.75
"""The share of a nullable column's values that become NULL, in addition to the generator's own NULLs."""
NULLS = _table(
    "nulls", ID, *(replace(one, nullable=True, low_cardinality=False) for one in ANALYTICS_METRICS.columns[1:])
)


def with_many_nulls(table: Table, rows: int, seed: int) -> pa.Table:
    """Return the generator's rows with NULL in about four of five values of the nullable columns."""
    content, random = generator.arrow_table(table, rows, seed), np.random.default_rng(seed)
    for at, column in enumerate(table.columns):
        if column.nullable:
            values = pc.if_else(random.random(rows) < SHARE_OF_NULL, None, content.column(at))
            content = content.set_column(at, table.arrow_schema.field(column.name), values)
    return content


NESTED = _table(
    "nested", ID, Column("at", T.TIMESTAMP), Column("kind", T.ENUM, exactly=enum_types("view", "click", "buy")),
    Column("numbers", T.LIST), Column("words", T.LIST, exactly=list_types(T.TEXT.value)), Column("document", T.JSON),
)  # fmt: skip
STRUCTS = _table(
    "structs", ID, Column("at", T.TIMESTAMP), Column("kind", T.TEXT), Column("place", T.STRUCT, exactly=struct_types(
        {"name": T.TEXT.value, "latitude": T.FLOAT64.value, "code": T.INT32.value}
    )), Column("counts", T.MAP), Column("items", T.NESTED_LIST),
)  # fmt: skip

STANDARD = Shape("standard", statistics.STANDARD, ANALYTICS_METRICS)
SHAPES = (
    Shape("integers", "3 integers", _table("integers", ID, Column("a", T.INT32), Column("b", T.INT32))),
    STANDARD,
    Shape("hits", "105 mixed columns", Table("framehaul_shape_hits", _HITS, HITS_KEY)),
    Shape("narrow", "500 narrow columns", NARROW),
    Shape("texts", "2 long texts", LONG_TEXTS, with_long_texts),
    Shape("nulls", "mostly NULL", NULLS, with_many_nulls),
    Shape("nested", "lists and JSON", NESTED),
    Shape("structs", "structs, maps, nested lists", STRUCTS),
)
SHAPES_OF = {
    "least": tuple(one for one in SHAPES if one.name in ("standard", "texts", "nested")),
    # A pass of "narrow" takes twice as long as any other, and "structs" gives the same winners as "nested".
    "few": tuple(one for one in SHAPES if one.name not in ("narrow", "structs")),
    "sizes": SHAPES,
}
COMPARED: dict[DatabaseDirection, tuple[str, ...]] = {
    ("postgres", "write"): ("asyncpg_copy_binary", "psycopg_copy_text", "pgpq_presorted"),
    ("postgres", "read"): ("psycopg_copy_text", "adbc_fetch", "psycopg_copy_decoded"),
    ("clickhouse", "write"): ("httpx_parquet", "http_client_arrow_stream", "http_client_native_presorted"),
    ("clickhouse", "read"): ("urllib_csv", "http_client_arrow_stream", "http_client_native_decoded"),
}
"""The best published technique of Polars of each direction, one without our codecs, and the fastest of all."""
EVERYDAY: dict[DatabaseDirection, tuple[str, ...]] = {
    ("postgres", "write"): ("psycopg_executemany", "psycopg_pipeline", "psycopg_unnest"),
    ("clickhouse", "write"): ("clickhouse_driver_rows", "clickhouse_connect_insert"),
}
"""Everyday calls that may win with few rows, measured on the standard table only."""
MOST_EVERYDAY_ROWS = 10_000
"""The largest table of everyday calls, which send rows one at a time and are far behind with more rows."""
CALLS = {1: 10, 10: 5, 100: 3}
"""The number of calls of a pass by rows of a call, otherwise 1: one call of few rows is too short to be timed."""
READ_CALLS = 5
"""The maximum number of calls of a pass of reads, because each frame is verified whole."""
LIMITS = dict(pl.read_csv(Path(__file__).with_suffix(".tsv"), separator="\t", empty_string_is_null=False).rows())
"""Parts of the messages of known limits, each with its remedy; the remedy is empty where the message names it."""


@dataclass(frozen=True, kw_only=True)
class Row(store.Result):
    """One pass of a technique on a shape; a missing number is None, never 0.

    `rows` are the rows of one call; `seconds` and the resources used are those of the whole pass.
    """

    shape: str
    calls: int
    frame_bytes: int | None = None
    """The size of all rows of a pass as Arrow."""
    bytes_per_s: float | None = None
    p50_s: float | None = None
    """The median seconds of the calls of the pass."""
    p99_s: float | None = None


def within_limits[V](outcome: Pass[V]) -> Pass[V]:
    """Turn a failure by a known limit into a skipped pass that names the remedy; return other outcomes unchanged."""
    if isinstance(outcome, Failed):
        for text, remedy in LIMITS.items():
            if text in outcome.reason:
                return Skipped("; ".join(filter(None, (outcome.reason, remedy))))
    return outcome


def placed(directory: Path) -> pl.DataFrame:
    """Return the passes in a results directory, with their tables as `statistics.PLACE` has them."""
    labels = pl.col("shape").replace({one.name: one.label for one in SHAPES})
    return store.read(directory / TABLE_SHAPES.results, Row).with_columns(table=labels)


@recorded(TABLE_SHAPES, Row)
def run(this_run: Recording, *, rows: int, megabytes: float, points: str, rounds: int, warmup: int, seed: int) -> None:
    """Measure every shape at its numbers of rows."""
    both, schedule = this_run.servers(), Rounds(rounds, warmup, seed)
    size_text = f"{rows:,} rows and {megabytes:g} MB"
    this_run.metadata["what"] = f"frames of up to {size_text}, {rounds} rounds after {warmup} warm-up"
    for shape in SHAPES_OF[points]:
        once = replace(shape, content=functools.cache(shape.content))  # generated once for all directions
        for size, path in product(rows_of(shape, points, rows, megabytes, seed), COMPARED):
            _measure(this_run, both, once, size, path, schedule)


def rows_of(shape: Shape, points: str, rows: int, megabytes: float, seed: int) -> list[int]:
    """Return the numbers of rows of a shape: powers of ten up to `rows` and up to a frame of `megabytes`, from 1 on.

    With other `points` than `sizes`, they are the largest one alone, and of the standard table every second one.
    """
    most = min(rows, megabytes * 1e6 / (shape.content(shape.table, 300, seed).nbytes / 300))
    every = [1, *(10**at for at in range(1, len(str(rows))) if 10**at <= most)]
    if points == "sizes":
        return every
    return sorted({*every[-1::-2], *every[:1]}) if shape is STANDARD else every[-1:]


def measured_on(shape: Shape, path: DatabaseDirection, size: int) -> list[Technique]:
    """Return the techniques of a direction that move `size` rows of a shape, with framehaul's own choice."""
    everyday = EVERYDAY.get(path, ()) if shape.name == STANDARD.name and size <= MOST_EVERYDAY_ROWS else ()
    return [named(*path, f"polars_{name}") for name in (*COMPARED[path], f"framehaul_{path[1]}", *everyday)]


def _measure(
    this_run: Recording, both: Servers, shape: Shape, size: int, path: DatabaseDirection, rounds: Rounds
) -> None:
    """Measure one direction of one shape, all techniques in shuffled rounds."""
    (database, direction), calls, tried = path, CALLS.get(size, 1), measured_on(shape, path, size)
    if direction == "read":
        calls = min(calls, READ_CALLS)
    content = shape.content(shape.table, size * calls if direction == "write" else size, rounds.seed)
    moved = content.nbytes * (1 if direction == "write" else calls)

    def row(one: Technique, number: int, outcome: Pass[Moved]) -> Row:
        identity = this_run.run_id, TABLE_SHAPES.notebook, one, size * calls, number
        whole = vars(recording.result(*identity, within_limits(outcome))) | {"rows": size}
        if isinstance(outcome, Ok):
            p50_s, p99_s = map(float, np.percentile(outcome.values.latencies_s, (50, 99)))
            whole |= {"bytes_per_s": moved / outcome.values.seconds, "p50_s": p50_s, "p99_s": p99_s}
            if calls > 1:
                whole["peak_rss_bytes"] = None  # the frames of all calls are kept to be verified
        return Row(**whole, shape=shape.name, calls=calls, frame_bytes=moved)

    options = PassOptions(calls=calls)
    measure.run(tried, both.of(database), shape.table, content, rounds, this_run.log(row), options)
