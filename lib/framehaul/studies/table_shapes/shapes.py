"""The tables that are measured, and the rows that fill them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from framehaul.bench import statistics
from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS, Column, ColumnType, Table, enum_types, list_types, struct_types

type Content = Callable[[Table, int, int], pa.Table]
"""Returns a number of rows of a table for a seed."""


@dataclass(frozen=True)
class Shape:
    """A table and the function that fills it."""

    name: str
    label: str
    table: Table
    content: Content = generator.arrow_table


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
HITS_KEY = ("CounterID", "EventDate", "UserID", "EventTime", "WatchID")
_GROUPS = (group.partition(":") for group in HITS.split(";"))
_HITS = tuple(Column(name, ColumnType[kind.strip()]) for kind, _, names in _GROUPS for name in names.split())

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
            values, null = content.column(at).combine_chunks(), pa.array(random.random(rows) < SHARE_OF_NULL)
            values = pc.if_else(null, pa.scalar(None, values.type), values)
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
"""All shapes."""


def sizes(shape: Shape, rows: int, megabytes: float, seed: int) -> list[int]:
    """Return the powers of ten up to `rows` and up to a frame of `megabytes`, in ascending order, from 1 on."""
    sample = 300
    bytes_of_row = shape.content(shape.table, sample, seed).nbytes / sample
    most = min(rows, megabytes * 1e6 / bytes_of_row)
    return [1, *(10**at for at in range(1, len(str(rows))) if 10**at <= most)]
