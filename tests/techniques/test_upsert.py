"""Every way of an upsert, on tables that are hard for it, and on frames that it has to refuse."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import polars as pl
import psycopg
import pytest

from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.data.frames import from_polars
from framehaul.data.schema import ANALYTICS_METRICS, COMMENT, NESTED_METRICS, Column, Table, quote_postgres
from framehaul.data.schema import ColumnType as T
from framehaul.errors import UnavailableError
from framehaul.servers import Servers
from framehaul.servers.tables import ClickHouseTables
from framehaul.studies.upsert.measure import as_read, count_staging_tables
from framehaul.techniques import Technique, techniques, upserts
from framehaul.techniques.upsert.rows import check_keys, target
from tests.conftest import call, check_each, table_on
from tests.second_table import SECOND_TABLE

WAYS = [*upserts("postgres"), *upserts("clickhouse")]
BY_NAME = {one.name: one for one in WAYS}
KEY_ALONE = Table("framehaul_keys", (Column("id", T.INT64), Column("label", T.TEXT)), ("label", "id"))
KEY_AND_VALUE = Table("framehaul_value", (Column("id", T.INT64), Column("value", T.INT64)), ("id",))
NO_LISTS = {"polars_psycopg_unnest_on_conflict", "polars_duckdb_on_conflict"}
THERE, COME, BOTH = 120, 80, 50
HOSTILE = Table("framehaul", tuple(Column(name, T.INT64) for name in ("{staging}", "{0} %s")), ("{staging}",))
NESTED = NESTED_METRICS.renamed("framehaul_upserted")


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
    taking = [one for one in WAYS if table != NESTED or one.name not in NO_LISTS]
    check_each(taking, lambda way: check_way(way, servers, table, *frames(table, *sizes)))


def refuses(way: Technique, servers: Servers, table: Table, there: pl.DataFrame, come: pl.DataFrame, said: str) -> None:
    """The way raises what is said, and the table has the rows that were there."""
    with pytest.raises((ValueError, UnavailableError), match=said):
        call(way, servers, table, come)
    assert difference(way, servers, table, there) is None


def test_frames_whose_rows_cannot_be_told_apart_or_sent_are_refused_and_change_nothing(servers: Servers) -> None:
    there, come = frames(SECOND_TABLE)

    def check(way: Technique) -> None:
        with filled(way, servers, SECOND_TABLE, there) as table:
            twice = pl.concat([come, come[:1]])
            refuses(way, servers, table, there, twice, "2 rows share their key with another, first")

    check_each(WAYS, check)
    there, come = frames(NESTED)
    for way in (BY_NAME[name] for name in NO_LISTS):
        with filled(way, servers, NESTED, there) as table:
            refuses(way, servers, table, there, come, "numbers is bigint")


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


def postgres(servers: Servers, *statements: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(servers.postgres.dsn(), autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


TRIGGER = (
    "CREATE TRIGGER one BEFORE UPDATE ON {0} FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "triggers or foreign keys", "",
)  # fmt: skip
HAS = [
    ("GRANT SELECT ON {0} TO PUBLIC", "grants", ""),
    ("GRANT SELECT (id) ON {0} TO PUBLIC", "grants", ""),
    ("ALTER TABLE {0} OWNER TO pg_monitor", "another owner", ""),
    ("ALTER TABLE {0} SET UNLOGGED", "no log of its own", ""),
    ("ALTER TABLE {0} REPLICA IDENTITY FULL", "a replica identity", ""),
    ("CREATE RULE none AS ON DELETE TO {0} DO INSTEAD NOTHING", "rules", ""),
    TRIGGER,
    ("ALTER TABLE {0} ENABLE ROW LEVEL SECURITY", "policies", ""),
    ("ALTER TABLE {0} SET (fillfactor = 90)", "settings", ""),
    ("ALTER TABLE {0} ADD COLUMN more int GENERATED ALWAYS AS IDENTITY", "identity or generated columns", ""),
    ("ALTER TABLE {0} ADD COLUMN more int GENERATED ALWAYS AS (1) STORED", "identity or generated", ""),
    ("CREATE PUBLICATION framehaul_some FOR TABLE {0}", "publications", "DROP PUBLICATION framehaul_some"),
    ("CREATE TABLE framehaul_heir () INHERITS ({0})", "inheritance", "DROP TABLE framehaul_heir"),
]
"""What a table has that a new one would lack, how that is named, and what takes it away where DROP TABLE does not."""


def test_a_table_that_would_lose_something_is_not_swapped(servers: Servers) -> None:
    way, (there, come) = BY_NAME["polars_pgpq_table_swap"], frames(KEY_ALONE)
    for statement, said, gone in HAS:
        with filled(way, servers, KEY_ALONE, there) as table:
            postgres(servers, statement.format(table.postgres_name))
            try:
                refuses(way, servers, table, there, come, said)
            finally:
                postgres(servers, gone or "SELECT")


def test_a_swapped_table_keeps_its_schema_comment_and_indexes(servers: Servers) -> None:
    way, (there, come) = BY_NAME["polars_pgpq_table_swap"], frames(KEY_ALONE)
    name, user = KEY_ALONE.postgres_name, quote_postgres(servers.postgres.user)
    with filled(way, servers, KEY_ALONE, there) as table:
        comment = f"COMMENT ON TABLE {name} IS 'loaded from {{staging}} nightly'"
        postgres(servers, f"CREATE SCHEMA {user}", f"CREATE INDEX ON {name} (id)", comment)
        try:
            call(way, servers, table, come)
            assert difference(way, servers, table, merged(there, come, KEY_ALONE)) is None
            indexes = "(SELECT count(*) FROM pg_index WHERE indrelid = pg_class.oid)"
            found = f"SELECT relnamespace::regnamespace::text, obj_description(oid), {indexes} FROM pg_class"
            rows = postgres(servers, f"{found} WHERE relname = '{KEY_ALONE.name}'")
            assert rows == [("public", "loaded from {staging} nightly", 2)]
        finally:
            postgres(servers, f"DROP SCHEMA {user} CASCADE", f"COMMENT ON TABLE {name} IS '{COMMENT}'")


def test_what_a_table_gets_while_a_swap_waits_for_its_lock_is_not_lost(servers: Servers) -> None:
    way, (there, come) = BY_NAME["polars_pgpq_table_swap"], frames(KEY_ALONE)
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    with (
        filled(way, servers, KEY_ALONE, there) as table, psycopg.connect(servers.postgres.dsn()) as other,
        ThreadPoolExecutor(1) as pool,
    ):  # fmt: skip
        other.execute(TRIGGER[0].format(table.postgres_name).encode())
        swap = pool.submit(call, way, servers, table, come)
        while not swap.done() and postgres(servers, waits) == [(0,)]:
            time.sleep(0.01)
        other.commit()
        with pytest.raises(ValueError, match=TRIGGER[1]):
            swap.result()
        assert difference(way, servers, table, there) is None


def by_ids(there: pl.DataFrame, key: str = ", PRIMARY KEY (label, id)", last: str = "DEFAULT") -> Table:
    """`KEY_ALONE` in three partitions by ranges of ids, the last of them this one."""
    ids = there["id"].sort()
    low, high = ids[len(ids) // 3], ids[2 * len(ids) // 3]
    bounds = f"FROM (MINVALUE) TO ({low})", f"FROM ({low}) TO ({high})", last.format(high)
    parts = (
        f"CREATE TABLE ids_{at} PARTITION OF {KEY_ALONE.name} {'FOR VALUES ' * bound.startswith('FROM')}{bound}"
        for at, bound in enumerate(bounds)
    )
    body = f"(id bigint NOT NULL, label text NOT NULL{key}) PARTITION BY RANGE (id)"
    return replace(KEY_ALONE, postgres_body=";".join((body, *parts)))


def test_only_partitions_that_rows_come_into_are_others_and_nothing_else_of_the_table(servers: Servers) -> None:
    way, (there, _) = BY_NAME["polars_pgpq_partition_swap"], frames(KEY_ALONE)
    numbers = f"SELECT relid::regclass::text, relid::int8 FROM pg_partition_tree('{KEY_ALONE.name}') WHERE isleaf"
    for last in ("DEFAULT", "FROM ({}) TO (MAXVALUE)"):
        with filled(way, servers, by_ids(there, last=last), there) as table:
            name = table.postgres_name
            postgres(servers, "COMMENT ON TABLE ids_0 IS 'low, ''in'' \\ all'", f"CREATE INDEX ON {name} (id)")
            before = dict(postgres(servers, numbers))
            come = pl.DataFrame({"id": [there["id"].min(), there["id"].max()], "label": ["new", "new"]})
            for _ in range(2):
                call(way, servers, table, come)
                assert difference(way, servers, table, merged(there, come, KEY_ALONE)) is None
            after = dict(postgres(servers, numbers))
            assert before.keys() == after.keys()
            assert [before[one] == after[one] for one in sorted(before)] == [False, True, False]
            checks = "SELECT count(*) FROM pg_constraint WHERE contype = 'c' AND conrelid = 'ids_0'::regclass"
            of_parent = "pg_index JOIN pg_inherits ON inhrelid = indexrelid WHERE indrelid = 'ids_0'::regclass"
            found = f"SELECT obj_description('ids_0'::regclass), ({checks}), (SELECT count(*) FROM {of_parent})"
            assert postgres(servers, found) == [("low, 'in' \\ all", 0, 2)]


def test_partitions_that_cannot_be_swapped_are_named_and_nothing_is_changed(servers: Servers) -> None:
    way, (there, come) = BY_NAME["polars_pgpq_partition_swap"], frames(KEY_ALONE)
    none = pl.DataFrame({"id": [9223372036854775807, 1], "label": ["beyond", "within"]})
    by_label = replace(by_ids(there, key=""), key=("label",))
    cases = [
        (KEY_ALONE, come, "", "framehaul_keys has no partitions: make it PARTITION BY"),
        (by_ids(there, last="FROM ({}) TO (9223372036854775806)"), none, "", "1 rows belong to no partition of"),
        (by_label, come[:1], "", "rows of one key may be in two partitions of framehaul_keys"),
        *((by_ids(there), come, statement, f"partition public.ids_1 has .*{said}") for statement, said, gone in HAS
          if "ADD COLUMN" not in statement and not gone),  # all partitions have the columns of their table
    ]  # fmt: skip
    for table, frame, statement, said in cases:
        with filled(replace(way, engine=""), servers, table, there) as made:
            postgres(servers, statement.format("ids_1") or "SELECT")
            refuses(way, servers, made, there, frame, said)


def test_other_columns_of_the_table_stay_as_they_are_or_get_their_defaults(servers: Servers) -> None:
    there, come = frames(KEY_ALONE)
    for way in (one for one in upserts("postgres") if "delete" not in one.name and "swap" not in one.name):
        with filled(way, servers, KEY_ALONE, there) as table:
            name = table.postgres_name
            postgres(servers, f"ALTER TABLE {name} ADD COLUMN more int DEFAULT 7", f"UPDATE {name} SET more = 1")
            call(way, servers, table, come)
            default = None if way.driver == "duckdb" else 7
            found = postgres(servers, f"SELECT more, count(*) FROM {name} GROUP BY 1 ORDER BY 1")
            assert found == [(1, THERE), (default, COME - BOTH)]


def test_a_key_in_another_partition_is_refused(servers: Servers) -> None:
    columns = (Column("id", T.INT64), Column("day", T.DATE))
    table = Table("framehaul_moved", columns, ("id",), partition_by_month_of="day")
    way = BY_NAME["polars_http_client_replace_partition"]
    there = pl.DataFrame({"id": [1, 2], "day": ["2026-01-01", "2026-02-01"]}).with_columns(pl.col("day").str.to_date())
    said = "2 keys of the frame are in other partitions of framehaul_moved"
    with filled(way, servers, table, there) as made:
        refuses(way, servers, made, there, there.with_columns(day=pl.lit("2026-03-01").str.to_date()), said)


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


def test_ways_are_no_rivals_of_appends_and_say_their_terms(servers: Servers) -> None:
    assert not {*BY_NAME} & {one.name for one in techniques()}
    assert len({one.label for one in WAYS}) == len(WAYS)
    for one in WAYS:
        assert one.contract is not None and (one.contract.kind, one.requires) == ("upsert", ("key",))
    own = replace(KEY_ALONE, postgres_body="(label text, id bigint, PRIMARY KEY (label, id)) WITH (fillfactor = 90)")
    assert all(target(way, own) == own for way in upserts("postgres")), "somebody's own table stays as it is"
    made = {way.name for way in upserts("postgres") if target(way, KEY_ALONE) != KEY_ALONE}
    assert made == {"polars_pgpq_partition_swap"}
