"""Every way of an upsert, on tables that are hard for it, and on frames that it has to refuse."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import polars as pl
import psycopg
import pytest

from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.data.frames import from_polars
from framehaul.data.schema import ANALYTICS_METRICS, COMMENT, NESTED_METRICS, Column, ColumnType, Table, quote_postgres
from framehaul.errors import UnavailableError
from framehaul.servers import Servers
from framehaul.servers.tables import ClickHouseTables, Tables, tables_of
from framehaul.studies.upsert.places import place_of
from framehaul.techniques import Technique, techniques, upserts
from framehaul.techniques.upsert.rows import check_keys, target
from tests.conftest import call, check_each
from tests.second_table import SECOND_TABLE

WAYS = [*upserts("postgres"), *upserts("clickhouse")]
BY_NAME = {one.name: one for one in WAYS}
KEY_ALONE = Table("framehaul_keys", (Column("id", ColumnType.INT64), Column("label", ColumnType.TEXT)), ("label", "id"))
KEY_AND_VALUE = Table("framehaul_value", (Column("id", ColumnType.INT64), Column("value", ColumnType.INT64)), ("id",))
NO_LISTS = {"polars_psycopg_unnest_on_conflict", "polars_duckdb_on_conflict"}
THERE, COME, BOTH = 120, 80, 50


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


def filled(
    way: Technique, servers: Servers, table: Table, there: pl.DataFrame
) -> AbstractContextManager[Table]:  # fmt: skip
    """The table of a way with these rows, dropped in the end."""
    return loaded(tables_of(servers.of(way.database)), target(way, table), there)


@contextmanager
def loaded(tables: Tables, table: Table, there: pl.DataFrame) -> Iterator[Table]:
    """A table that is made with these rows, and dropped in the end."""
    tables.create(table)
    try:
        tables.load(table, from_polars(there, table))
        yield table
    finally:
        tables.drop(table)


def difference(way: Technique, servers: Servers, table: Table, rows: pl.DataFrame) -> str | None:
    """What differs in the table from these rows, for who reads it as the way says."""
    content = place_of(servers.of(way.database)).tables(way).content(table)
    return Expected(table, from_polars(rows, table)).difference(content)


def check_way(way: Technique, servers: Servers, table: Table) -> None:
    there, come = frames(table)
    with filled(way, servers, table, there) as wanted:
        for again in range(2):
            call(way, servers, wanted, come)
            assert difference(way, servers, wanted, merged(there, come, table)) is None, again
        call(way, servers, wanted, come.clear())
        assert difference(way, servers, wanted, merged(there, come, table)) is None, "no rows"


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_hostile_names_nulls_and_a_second_time(way: Technique, servers: Servers) -> None:
    check_way(way, servers, SECOND_TABLE.renamed('framehaul upsert "t" `x` 100% a.b'))
    columns = (Column("{staging}", ColumnType.INT64), Column("{0} %s", ColumnType.INT64))
    check_way(way, servers, Table("framehaul_hostile", columns, ("{staging}",)))


@pytest.mark.slow
def test_a_table_of_keys_alone(servers: Servers) -> None:
    check_each(WAYS, lambda way: check_way(way, servers, KEY_ALONE))


@pytest.mark.slow
@pytest.mark.parametrize("table", [ANALYTICS_METRICS, NESTED_METRICS], ids=lambda table: table.name)
def test_the_tables_that_techniques_are_measured_with(table: Table, servers: Servers) -> None:
    taking = [one for one in WAYS if table is ANALYTICS_METRICS or one.name not in NO_LISTS]
    check_each(taking, lambda way: check_way(way, servers, table.renamed("framehaul_upserted")))


def test_who_does_not_take_lists_says_so(servers: Servers) -> None:
    there, come = frames(NESTED_METRICS)
    for name in NO_LISTS:
        with filled(BY_NAME[name], servers, NESTED_METRICS.renamed("framehaul_upserted"), there) as table:
            with pytest.raises(ValueError, match="numbers is bigint"):
                call(BY_NAME[name], servers, table, come)
            assert difference(BY_NAME[name], servers, table, there) is None


@pytest.mark.slow
def test_into_an_empty_table_and_one_row(servers: Servers) -> None:
    for there, come, both in ((0, 20, 0), (20, 1, 1)):
        before, rows = frames(KEY_ALONE, there, come, both)

        def check(way: Technique, before: pl.DataFrame = before, rows: pl.DataFrame = rows) -> None:
            with filled(way, servers, KEY_ALONE, before) as table:
                call(way, servers, table, rows)
                assert difference(way, servers, table, merged(before, rows, KEY_ALONE)) is None

        check_each(WAYS, check)


def test_frames_whose_rows_cannot_be_told_apart_are_refused_by_all_and_change_nothing(servers: Servers) -> None:
    there, come = frames(SECOND_TABLE)
    twice = pl.concat([come, come[:1]])

    def check(way: Technique) -> None:
        with filled(way, servers, SECOND_TABLE, there) as table:
            with pytest.raises(ValueError, match="2 rows share their key with another, first"):
                call(way, servers, table, twice)
            assert difference(way, servers, table, there) is None
        assert place_of(servers.of(way.database)).beside() == 0

    check_each(WAYS, check)


def test_keys_that_are_none() -> None:
    frame = pl.DataFrame({"id": [1, None], "value": [0.5, 1.5]})
    columns = (Column("id", ColumnType.INT64), Column("value", ColumnType.FLOAT64))
    for key, said in (((), "has no key"), (("value",), "value is a float"), (("id",), "id is part of the key, and 1")):
        with pytest.raises(ValueError, match=said):
            check_keys(frame, Table("t", columns, key))
    check_keys(frame[:1], Table("t", columns, ("id",)))
    check_keys(frame.clear(), Table("t", columns, ("id",)))


def postgres(servers: Servers, *statements: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(servers.postgres.dsn(), autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


HAS = {
    "grants": ("GRANT SELECT ON {0} TO PUBLIC", "grants"),
    "grants on a column": ("GRANT SELECT (id) ON {0} TO PUBLIC", "grants"),
    "owner": ("ALTER TABLE {0} OWNER TO pg_monitor", "another owner"),
    "unlogged": ("ALTER TABLE {0} SET UNLOGGED", "no log of its own"),
    "replica identity": ("ALTER TABLE {0} REPLICA IDENTITY FULL", "a replica identity"),
    "rules": ("CREATE RULE none AS ON DELETE TO {0} DO INSTEAD NOTHING", "rules"),
    "trigger": (
        "CREATE TRIGGER one BEFORE UPDATE ON {0} FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "triggers or foreign keys",
    ),
    "policies": ("ALTER TABLE {0} ENABLE ROW LEVEL SECURITY", "policies"),
    "settings": ("ALTER TABLE {0} SET (fillfactor = 90)", "settings"),
    "identity": ("ALTER TABLE {0} ADD COLUMN more int GENERATED ALWAYS AS IDENTITY", "identity or generated columns"),
    "generated": ("ALTER TABLE {0} ADD COLUMN more int GENERATED ALWAYS AS (1) STORED", "identity or generated"),
}


def test_a_swapped_table_keeps_its_comment_and_indexes_and_loses_nothing_without_a_word(servers: Servers) -> None:
    way, (there, come) = BY_NAME["polars_pgpq_table_swap"], frames(KEY_ALONE)
    for statement, said in HAS.values():
        with filled(way, servers, KEY_ALONE, there) as table:
            postgres(servers, statement.format(table.postgres_name))
            with pytest.raises(ValueError, match=said):
                call(way, servers, table, come)
            assert difference(way, servers, table, there) is None
    with filled(way, servers, KEY_ALONE, there) as table:
        postgres(
            servers, f"CREATE INDEX ON {table.postgres_name} (id)", f"CREATE VIEW seen AS TABLE {table.postgres_name}"
        )
        with pytest.raises(psycopg.errors.DependentObjectsStillExist):
            call(way, servers, table, come)
        postgres(servers, "DROP VIEW seen")
        call(way, servers, table, come)
        (indexes,) = postgres(
            servers, f"SELECT count(*) FROM pg_index WHERE indrelid = '{table.postgres_name}'::regclass"
        )
        assert indexes == (2,)
    assert place_of(servers.postgres).beside() == 0


def test_a_swapped_table_is_where_it_was_and_nobody_loses_it(servers: Servers) -> None:
    way, (there, come) = BY_NAME["polars_pgpq_table_swap"], frames(KEY_ALONE)
    name, user = KEY_ALONE.postgres_name, quote_postgres(servers.postgres.user)
    comment = "'loaded from {staging} nightly'"
    with filled(way, servers, KEY_ALONE, there) as table:
        postgres(servers, f"CREATE SCHEMA {user}", f"COMMENT ON TABLE {name} IS {comment}")
        try:
            call(way, servers, table, come)
            schemas = f"SELECT relnamespace::regnamespace::text FROM pg_class WHERE relname = '{KEY_ALONE.name}'"
            assert postgres(servers, schemas) == [("public",)]
            assert postgres(servers, f"SELECT obj_description('{name}'::regclass)") == [
                ("loaded from {staging} nightly",)
            ]
            assert difference(way, servers, table, merged(there, come, KEY_ALONE)) is None
        finally:
            postgres(servers, f"DROP SCHEMA {user} CASCADE", f"COMMENT ON TABLE {name} IS '{COMMENT}'")
        for made, gone, said in (
            ("CREATE PUBLICATION framehaul_some FOR TABLE {}", "DROP PUBLICATION framehaul_some", "publications"),
            ("CREATE TABLE framehaul_heir () INHERITS ({})", "DROP TABLE framehaul_heir", "inheritance"),
        ):
            postgres(servers, made.format(name))
            try:
                with pytest.raises(ValueError, match=said):
                    call(way, servers, table, come)
            finally:
                postgres(servers, gone)


def test_what_a_table_gets_while_a_swap_waits_for_its_lock_is_not_lost(servers: Servers) -> None:
    way, (there, come) = BY_NAME["polars_pgpq_table_swap"], frames(KEY_ALONE)
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    with (
        filled(way, servers, KEY_ALONE, there) as table, psycopg.connect(servers.postgres.dsn()) as other,
        ThreadPoolExecutor(1) as pool,
    ):  # fmt: skip
        other.execute(HAS["trigger"][0].format(table.postgres_name).encode())
        swap = pool.submit(call, way, servers, table, come)
        while not swap.done() and postgres(servers, waits) == [(0,)]:
            time.sleep(0.01)
        other.commit()
        with pytest.raises(ValueError, match="triggers or foreign keys"):
            swap.result()
        assert difference(way, servers, table, there) is None


@contextmanager
def by_ids(servers: Servers, key: str = "PRIMARY KEY (label, id)", last: str = "DEFAULT") -> Iterator[Table]:
    """`KEY_ALONE` in three partitions by ranges of ids, the last of them this one, with rows that are there."""
    name, (there, _) = KEY_ALONE.postgres_name, frames(KEY_ALONE)
    ids = there["id"].sort()
    low, high = ids[len(ids) // 3], ids[2 * len(ids) // 3]
    bounds = f"FROM (MINVALUE) TO ({low})", f"FROM ({low}) TO ({high})", last.format(high)
    parts = (
        f"CREATE TABLE ids_{at} PARTITION OF {name} {'FOR VALUES ' * bound.startswith('FROM')}{bound}"
        for at, bound in enumerate(bounds)
    )
    columns = KEY_ALONE.postgres_ddl.partition("PRIMARY KEY")[0].rpartition(",")[0].partition("(")[2]
    body = f"({', '.join(filter(None, (columns, key)))}) PARTITION BY RANGE (id)"
    table = replace(KEY_ALONE, postgres_body=";".join((body, *parts)))
    with loaded(tables_of(servers.postgres), table, there) as made:
        yield made


def numbers_of(servers: Servers, parent: str) -> dict[str, int]:
    """The object identifier of each partition of a table."""
    found = postgres(
        servers, f"SELECT relid::regclass::text, relid::int8 FROM pg_partition_tree('{parent}') WHERE isleaf"
    )
    return {str(name): int(number) for name, number in found}


def test_only_partitions_that_rows_come_into_are_others_and_nothing_else_of_the_table(servers: Servers) -> None:
    way, (there, _) = BY_NAME["polars_pgpq_partition_swap"], frames(KEY_ALONE)
    for last in ("DEFAULT", "FROM ({}) TO (MAXVALUE)"):
        with by_ids(servers, last=last) as table:
            name = table.postgres_name
            postgres(servers, "COMMENT ON TABLE ids_0 IS 'low, ''in'' \\ all'", f"CREATE INDEX ON {name} (id)")
            before = numbers_of(servers, table.name)
            come = pl.DataFrame({"id": [there["id"].min(), there["id"].max()], "label": ["new", "new"]})
            for _ in range(2):
                call(way, servers, table, come)
                assert difference(way, servers, table, merged(there, come, KEY_ALONE)) is None
            after = numbers_of(servers, table.name)
            assert before.keys() == after.keys()
            assert [before[one] == after[one] for one in sorted(before)] == [False, True, False]
            assert postgres(servers, "SELECT obj_description('ids_0'::regclass)") == [("low, 'in' \\ all",)]
            checks = "SELECT count(*) FROM pg_constraint WHERE contype = 'c'"
            assert postgres(servers, f"{checks} AND conrelid = 'ids_0'::regclass") == [(0,)]
            indexes = "SELECT count(*) FROM pg_index JOIN pg_inherits ON inhrelid = indexrelid"
            assert postgres(servers, f"{indexes} WHERE indrelid = 'ids_0'::regclass") == [(2,)]


def test_partitions_that_cannot_be_swapped_are_named_and_nothing_is_changed(servers: Servers) -> None:
    way, (there, come) = BY_NAME["polars_pgpq_partition_swap"], frames(KEY_ALONE)
    with (
        filled(replace(way, engine=""), servers, KEY_ALONE, there) as table,
        pytest.raises(UnavailableError, match="framehaul_keys has no partitions: make it PARTITION BY"),
    ):
        call(way, servers, table, come)
    for statement, said in HAS.values():
        if "ADD COLUMN" in statement:  # all partitions have the columns of their table
            continue
        with by_ids(servers) as table:
            postgres(servers, statement.format("ids_1"))
            with pytest.raises(ValueError, match=f"partition public.ids_1 has .*{said}"):
                call(way, servers, table, come)
            assert difference(way, servers, table, there) is None
    with by_ids(servers, last="FROM ({}) TO (9223372036854775806)") as table:
        none = pl.DataFrame({"id": [9223372036854775807, 1], "label": ["beyond", "within"]})
        with pytest.raises(ValueError, match="1 rows belong to no partition of framehaul_keys"):
            call(way, servers, table, none)
        assert difference(way, servers, table, there) is None
    with by_ids(servers, key="") as table:
        by_label = replace(table, key=("label",))
        low, high = there["id"].min(), there["id"].max()
        moved = there.filter(pl.col("id") == high).with_columns(id=pl.lit(low, pl.Int64))
        with pytest.raises(ValueError, match=r"[12] rows of these keys are in other partitions of framehaul_keys"):
            call(way, servers, by_label, moved)
        assert difference(way, servers, table, there) is None


@pytest.mark.parametrize("name", ["polars_pgpq_table_swap", "polars_pgpq_partition_swap"])
def test_a_snapshot_from_before_a_swap_finds_none_of_what_was_swapped(name: str, servers: Servers) -> None:
    """https://www.postgresql.org/docs/18/mvcc-caveats.html: others wait, and then read what is new."""
    way, (there, come) = BY_NAME[name], frames(KEY_ALONE)
    with filled(way, servers, KEY_ALONE, there) as table, psycopg.connect(servers.postgres.dsn()) as before:
        before.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        before.execute("SELECT 1")
        call(way, servers, table, come)
        count = f"SELECT count(*) FROM {table.postgres_name}".encode()
        seen = before.execute(count).fetchone()
        before.rollback()
        assert seen == (0,)
        assert before.execute(count).fetchone() == (THERE + COME - BOTH,)


def test_other_columns_of_the_table_stay_as_they_are_or_get_their_defaults(servers: Servers) -> None:
    there, come = frames(KEY_ALONE)
    kept = [one for one in upserts("postgres") if "delete" not in one.name and "swap" not in one.name]
    for way in kept:
        with filled(way, servers, KEY_ALONE, there) as table:
            name = table.postgres_name
            added = f"ALTER TABLE {name} ADD COLUMN more int DEFAULT 7"
            postgres(servers, added, f"UPDATE {name} SET more = 1")
            call(way, servers, table, come)
            default = None if way.driver == "duckdb" else 7
            assert postgres(servers, f"SELECT more, count(*) FROM {name} GROUP BY 1 ORDER BY 1") == [
                (1, THERE), (default, COME - BOTH),
            ]  # fmt: skip


def test_somebody_s_own_table_of_postgresql_stays_as_it_is() -> None:
    own = replace(KEY_ALONE, postgres_body="(label text, id bigint, PRIMARY KEY (label, id)) WITH (fillfactor = 90)")
    assert all(target(way, own) == own for way in upserts("postgres"))
    made = {way.name for way in upserts("postgres") if target(way, KEY_ALONE) != KEY_ALONE}
    assert made == {"polars_pgpq_partition_swap"}


def test_a_key_in_another_partition_is_refused(servers: Servers) -> None:
    columns = (Column("id", ColumnType.INT64), Column("day", ColumnType.DATE))
    table = Table("framehaul_moved", columns, ("id",), partition_by_month_of="day")
    way = BY_NAME["polars_http_client_replace_partition"]
    there = pl.DataFrame({"id": [1, 2], "day": ["2026-01-01", "2026-02-01"]}).with_columns(pl.col("day").str.to_date())
    come = there.with_columns(day=pl.lit("2026-03-01").str.to_date())
    with filled(way, servers, table, there) as wanted:
        with pytest.raises(ValueError, match="2 keys of the frame are in other partitions of framehaul_moved"):
            call(way, servers, wanted, come)
        assert difference(way, servers, wanted, there) is None
    assert place_of(servers.clickhouse).beside() == 0


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


def test_ways_are_no_rivals_of_appends_and_say_their_terms() -> None:
    assert not {one.name for one in WAYS} & {one.name for one in techniques()}
    for one in WAYS:
        assert one.contract is not None and one.contract.kind == "upsert"
        assert one.requires == ("key",)
        assert "https://" in (one.function.__doc__ or "") or one.function.__doc__ == "As before."


def test_an_engine_is_asked_for_with_the_table_s_own_columns(servers: Servers) -> None:
    tables = tables_of(servers.clickhouse)
    for way in upserts("clickhouse"):
        table = target(way, replace(ANALYTICS_METRICS, name="framehaul_upserted"))
        tables.create(table)
        try:
            assert tables.content(table).columns == table.column_names
        finally:
            tables.drop(table)
