from __future__ import annotations

import httpx
import psycopg
import pyarrow as pa
import pytest

from framehaul.data.schema import (
    ANALYTICS_METRICS,
    Column,
    ColumnType,
    Table,
    columns_in,
    enum_types,
    list_types,
    quote_clickhouse,
    quote_postgres,
    refuse,
)
from framehaul.servers import Servers
from framehaul.servers.tables import tables_of
from tests.second_table import SECOND_TABLE

KEY = (
    "entity_key", "event_date", "source_id",
    "dimension_a", "dimension_b", "dimension_c", "dimension_d", "dimension_e", "dimension_f",
)  # fmt: skip

HOSTILE = [
    'a"b', "a`b", "a\\b", "a'b", "a\nb", "a%sb", "a;--b", "select", "Mixed", "día", '"', "`", "\\", ":x", "{x}", "$1",
]  # fmt: skip


def test_article_table_has_its_thirteen_columns_in_order() -> None:
    metrics = ["metric_1", "metric_2", "metric_3", "metric_value"]
    assert ANALYTICS_METRICS.column_names == [*KEY, *metrics]


def test_postgres_ddl_of_the_article_table() -> None:
    ddl = ANALYTICS_METRICS.postgres_ddl
    assert f"PRIMARY KEY ({', '.join(f'"{name}"' for name in KEY)})" in ddl
    for line in (
        '"entity_key" uuid NOT NULL,', '"event_date" date NOT NULL,', '"source_id" integer NOT NULL,',
        "\"dimension_a\" text NOT NULL DEFAULT '',", "\"dimension_f\" text NOT NULL DEFAULT '',",
        '"metric_1" integer NOT NULL,', '"metric_value" double precision NOT NULL,',
    ):  # fmt: skip
        assert f"    {line}\n" in ddl


def test_clickhouse_ddl_of_the_article_table() -> None:
    ddl = ANALYTICS_METRICS.clickhouse_ddl
    assert f"ORDER BY ({', '.join(f'`{name}`' for name in KEY)})" in ddl
    assert "ENGINE = MergeTree\nPARTITION BY toYYYYMM(`event_date`)\n" in ddl
    for line in (
        "`entity_key` UUID,", "`event_date` Date,", "`source_id` Int32,",
        "`dimension_a` LowCardinality(String) DEFAULT '',", "`dimension_b` String DEFAULT '',",
        "`metric_1` Int32,", "`metric_value` Float64\n",
    ):  # fmt: skip
        assert f"    {line}" in ddl
    assert ddl.count("LowCardinality") == 1


def test_nullable_columns_are_nullable_on_both_servers() -> None:
    assert '"select" text,\n' in SECOND_TABLE.postgres_ddl
    assert "`lc` LowCardinality(Nullable(String)),\n" in SECOND_TABLE.clickhouse_ddl
    assert "`UUID` Nullable(UUID)\n" in SECOND_TABLE.clickhouse_ddl


def test_a_wider_type_of_postgres_is_kept_to_what_the_values_are() -> None:
    lines = {kind: Column("a b", kind, nullable=True).postgres_ddl for kind in ColumnType}
    assert lines[ColumnType.UINT64] == ('"a b" numeric(20, 0) CHECK ("a b" BETWEEN 0 AND 18446744073709551615)')
    colours = Column("{}", ColumnType.ENUM, exactly=enum_types("it's", "{0}"))
    assert colours.postgres_ddl == "\"{}\" text NOT NULL CHECK (\"{}\" IN ('it''s', '{0}'))"
    assert colours.clickhouse_type == "Enum8('it\\'s' = 1, '{0}' = 2)"


def test_clickhouse_has_no_null_of_a_list() -> None:
    texts = Column("l", ColumnType.LIST, nullable=True, exactly=list_types(ColumnType.TEXT.value))
    assert texts.clickhouse_type == "Array(Nullable(String))"
    assert texts.postgres_ddl == '"l" text[]'
    assert (texts.element.type, texts.element.nullable) == (ColumnType.TEXT, True)
    with pytest.raises(ValueError, match="column n holds no lists"):
        _ = Column("n", ColumnType.INT64).element


def test_an_arrow_schema_has_text_for_text() -> None:
    columns = columns_in(pa.schema([("t", pa.string()), ("u", pa.uint16()), ("l", pa.list_(pa.int64()))]))
    assert [column.type for column in columns] == [ColumnType.TEXT, ColumnType.UINT16, ColumnType.LIST]


def test_a_refusal_names_column_type_and_remedy() -> None:
    table = Table("t", (Column("n", ColumnType.INT32), Column("l", ColumnType.LIST)), ())
    with pytest.raises(ValueError, match=r"column l is bigint\[\], which is too long: cut it"):
        refuse(table, {ColumnType.LIST}, "which is too long: cut it", "postgres")
    refuse(table, {ColumnType.TEXT}, "which is not there", "postgres")


def test_table_without_a_partition_column_is_not_partitioned() -> None:
    assert "PARTITION" not in SECOND_TABLE.clickhouse_ddl


@pytest.mark.parametrize("name", HOSTILE)
def test_quoted_identifiers_come_back_as_they_went_in(servers: Servers, name: str) -> None:
    with psycopg.connect(servers.postgres.dsn()) as connection:
        cursor = connection.execute(f"SELECT 1 AS {quote_postgres(name)}".encode())
        assert [column.name for column in cursor.description or ()] == [name]

    answer = httpx.post(
        servers.clickhouse.url, auth=(servers.clickhouse.user, servers.clickhouse.password), trust_env=False,
        params={"query": f"SELECT 1 AS {quote_clickhouse(name)} FORMAT JSONCompact"},
    )  # fmt: skip
    assert answer.raise_for_status().json()["meta"][0]["name"] == name


@pytest.mark.parametrize("database", ["postgres", "clickhouse"])
def test_table_with_hostile_names_is_made_found_and_dropped(servers: Servers, database: str) -> None:
    columns = tuple(Column(name, ColumnType.INT32) for name in HOSTILE)
    table = Table('framehaul "hostile`\\ %s', columns, key=tuple(HOSTILE))
    tables = tables_of(getattr(servers, database))
    tables.create(table)
    assert tables.content(table).columns == HOSTILE
    tables.create(table)
    tables.drop(table)
    tables.drop(table)


def test_dtypes_follow_the_columns() -> None:
    assert ANALYTICS_METRICS.pandas_dtypes["metric_1"] == "int32"
    assert SECOND_TABLE.pandas_dtypes["a-b c"] == "Int32"
    assert [str(dtype) for dtype in SECOND_TABLE.polars_schema.values()] == [
        "Int64", "String", "Int32", "Date", "Float64", "String", "String",
    ]  # fmt: skip
    assert [field.nullable for field in SECOND_TABLE.arrow_schema] == [False, *[True] * 6]
