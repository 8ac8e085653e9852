"""Every way of an upsert, on tables that are hard for it, and on frames that it has to refuse."""

from collections.abc import Iterator
from contextlib import contextmanager

import polars as pl
import pytest

from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.data.frames import from_polars
from framehaul.data.schema import ANALYTICS_METRICS, Column, Table
from framehaul.data.schema import ColumnType as T
from framehaul.servers import Servers
from framehaul.servers.tables import ClickHouseTables, PostgresTables
from framehaul.studies import table_shapes
from framehaul.studies.upsert.measure import as_read, count_staging_tables
from framehaul.techniques import Technique, upserts
from framehaul.techniques.upsert.rows import check_keys, target
from tests.conftest import call, check_each, table_on
from tests.second_table import SECOND_TABLE

WAYS = [*upserts("postgres"), *upserts("clickhouse")]
BY_NAME = {one.name: one for one in WAYS}
KEY_ALONE = Table("framehaul_keys", (Column("id", T.INT64), Column("label", T.TEXT)), ("label", "id"))
KEY_AND_VALUE = Table("framehaul_value", (Column("id", T.INT64), Column("value", T.INT64)), ("id",))
UNNEST = "polars_psycopg_unnest_on_conflict"
THERE, COME, BOTH = 120, 80, 50
HOSTILE = Table("framehaul", tuple(Column(name, T.INT64) for name in ("{staging}", "{0} %s")), ("{staging}",))
MORE = Column("amount", T.DECIMAL), table_shapes.STRUCTS.columns[3]
NESTED = Table("framehaul_upserted", (*table_shapes.NESTED.columns, *MORE), ("id",))


def frames(table: Table, there: int = THERE, come: int = COME, both: int = BOTH) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows that are there, and rows that come, of which `both` have keys of those."""
    rows = generator.polars_frame(table, there + come - both, 1)
    other = generator.polars_frame(table, come, 2)
    key = list(table.key)
    keys = rows.select(key)[there - both :]
    assert not rows.select(key).is_duplicated().any()
    return rows[:there], other.with_columns(keys.get_columns()).sample(fraction=1, shuffle=True, seed=3)


def merged(there: pl.DataFrame, come: pl.DataFrame, table: Table) -> pl.DataFrame:
    """The rows by their keys, one after another, as a dictionary does it."""
    rows = {tuple(row[name] for name in table.key): row for frame in (there, come) for row in frame.to_dicts()}
    return pl.DataFrame([*rows.values()], schema=there.schema)


@contextmanager
def filled(way: Technique, servers: Servers, table: Table, there: pl.DataFrame) -> Iterator[Table]:
    """The table of a way with these rows, dropped in the end; none may be left beside it."""
    made = target(way, table)
    with table_on(servers.of(way.database), made, from_polars(there, made)) as tables:
        yield made
        assert count_staging_tables(tables, made) == 0


def difference(way: Technique, servers: Servers, table: Table, rows: pl.DataFrame) -> str | None:
    """What differs in the table from these rows, for a reader that reads it as the way says."""
    content = as_read(way, servers.of(way.database)).content(table)
    return Expected(table, from_polars(rows, table)).difference(content)


def check_way(way: Technique, servers: Servers, table: Table, there: pl.DataFrame, come: pl.DataFrame) -> None:
    with filled(way, servers, table, there) as wanted:
        for frame in (come, come, come.clear()):
            call(way, servers, wanted, frame)
            assert difference(way, servers, wanted, merged(there, come, table)) is None, len(frame)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_hostile_names_nulls_and_a_second_time(way: Technique, servers: Servers) -> None:
    for table in (SECOND_TABLE.renamed('framehaul upsert "t" `x` 100% a.b'), HOSTILE):
        check_way(way, servers, table, *frames(table))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "sizes"),
    [(KEY_ALONE, (THERE, COME, BOTH)), (KEY_ALONE, (0, 20, 0)), (KEY_ALONE, (20, 1, 1)),
     (ANALYTICS_METRICS.renamed("framehaul_upserted"), (THERE, COME, BOTH)), (NESTED, (THERE, COME, BOTH))],
    ids=["keys alone", "an empty table", "one row", "analytics", "nested"],
)  # fmt: skip
def test_few_columns_few_rows_and_the_tables_that_techniques_are_measured_with(
    table: Table, sizes: tuple[int, int, int], servers: Servers
) -> None:
    taking = [one for one in WAYS if table != NESTED or one.name != UNNEST]
    check_each(taking, lambda way: check_way(way, servers, table, *frames(table, *sizes)))


def refuses(way: Technique, servers: Servers, table: Table, there: pl.DataFrame, come: pl.DataFrame, said: str) -> None:
    """The way raises what is said, and the table has the rows that were there."""
    with filled(way, servers, table, there) as made:
        with pytest.raises(ValueError, match=said):
            call(way, servers, made, come)
        assert difference(way, servers, made, there) is None


def test_frames_whose_rows_cannot_be_told_apart_or_sent_are_refused_and_change_nothing(servers: Servers) -> None:
    there, come = frames(SECOND_TABLE)
    twice, said = pl.concat([come, come[:1]]), "2 rows share their key with another, first"
    check_each(WAYS, lambda way: refuses(way, servers, SECOND_TABLE, there, twice, said))
    refuses(BY_NAME[UNNEST], servers, NESTED, *frames(NESTED), "numbers is bigint")


def test_keys_that_are_none_and_keys_that_are_written_otherwise() -> None:
    frame = pl.DataFrame({"id": [1, None], "value": [0.5, 1.5]})
    columns = (Column("id", T.INT64), Column("value", T.FLOAT64))
    for key, said in (((), "has no key"), (("value",), "value is a float"), (("id",), "id is part of the key, and 1")):
        with pytest.raises(ValueError, match=said):
            check_keys(frame, Table("t", columns, key))
    check_keys(frame[:1], Table("t", columns, ("id",)))
    check_keys(frame.clear(), Table("t", columns, ("id",)))
    text = "01234567-89ab-cdef-0123-456789abcdef"
    for kind, texts in ((T.UUID, (text, text.upper())), (T.IPV6, ("::1", "0:0::1")), (T.INT128, ("1", "01"))):
        with pytest.raises(ValueError, match="2 rows share their key with another"):
            check_keys(pl.DataFrame({"id": texts}), Table("t", (Column("id", kind),), ("id",)))


def test_other_columns_of_the_table_stay_as_they_are_or_get_their_defaults(servers: Servers) -> None:
    (there, come), run = frames(KEY_ALONE), PostgresTables(servers.postgres).run
    for way in (one for one in upserts("postgres") if "delete" not in one.name):
        with filled(way, servers, KEY_ALONE, there) as table:
            name = table.postgres_name
            run(f"ALTER TABLE {name} ADD COLUMN more int DEFAULT 7; UPDATE {name} SET more = 1")
            call(way, servers, table, come)
            assert run(f"SELECT more, count(*) FROM {name} GROUP BY 1 ORDER BY 1") == [(1, THERE), (7, COME - BOTH)]


def test_a_key_in_another_partition_is_refused(servers: Servers) -> None:
    columns = (Column("id", T.INT64), Column("day", T.DATE))
    table = Table("framehaul_moved", columns, ("id",), partition_by_month_of="day")
    way = BY_NAME["polars_http_client_replace_partition"]
    there = pl.DataFrame({"id": [1, 2], "day": ["2026-01-01", "2026-02-01"]}).with_columns(pl.col("day").str.to_date())
    said = "2 keys of the frame are in other partitions of framehaul_moved"
    refuses(way, servers, table, there, there.with_columns(day=pl.lit("2026-03-01").str.to_date()), said)


def test_rows_that_were_there_before_come_back_where_the_table_deduplicates_inserts(servers: Servers) -> None:
    """A table that drops blocks which it has had, as replicated ones do, must not drop an update back."""
    there, come = frames(KEY_AND_VALUE)
    other = come.with_columns(value=pl.col("value") + 1)

    def check(way: Technique) -> None:
        with filled(way, servers, KEY_AND_VALUE, there) as table:
            window = "MODIFY SETTING non_replicated_deduplication_window = 1000"
            ClickHouseTables(servers.clickhouse).run(f"ALTER TABLE {table.clickhouse_name} {window}")
            for frame in (come, other, come, come):
                call(way, servers, table, frame)
                assert difference(way, servers, table, merged(there, frame, KEY_AND_VALUE)) is None

    check_each(upserts("clickhouse"), check)
