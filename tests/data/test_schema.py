import pytest

from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS, Column, ColumnType, Table, enum_types, refuse
from framehaul.servers import Servers
from framehaul.servers.tables import tables_of
from tests.second_table import SECOND_TABLE

HOSTILE = [
    'a"b', "a`b", "a\\b", "a'b", "a\nb", "a%sb", "a;--b", "select", "Mixed", "día", '"', "`", "\\", ":x", "{x}", "$1",
]  # fmt: skip


def test_the_published_table_is_made_as_it_was_published() -> None:
    postgres, clickhouse = ANALYTICS_METRICS.postgres_ddl, ANALYTICS_METRICS.clickhouse_ddl
    assert len(ANALYTICS_METRICS.columns) == 13
    assert 'PRIMARY KEY ("entity_key", "event_date", "source_id", "dimension_a", ' in postgres
    for line in ('"entity_key" uuid NOT NULL,', "\"dimension_a\" text NOT NULL DEFAULT '',"):
        assert f"    {line}\n" in postgres
    assert "ENGINE = MergeTree\nPARTITION BY toYYYYMM(`event_date`)\n" in clickhouse
    assert "ORDER BY (`entity_key`, `event_date`, `source_id`, `dimension_a`, " in clickhouse
    for line in ("`dimension_a` LowCardinality(String) DEFAULT '',", "`dimension_b` String DEFAULT '',"):
        assert f"    {line}" in clickhouse
    assert '"select" text,\n' in SECOND_TABLE.postgres_ddl
    assert "`lc` LowCardinality(Nullable(String)),\n" in SECOND_TABLE.clickhouse_ddl
    assert "PARTITION" not in SECOND_TABLE.clickhouse_ddl


def test_a_wider_type_of_postgres_is_kept_to_what_the_values_are() -> None:
    column = Column("a b", ColumnType.UINT64, nullable=True)
    assert column.postgres_ddl == '"a b" numeric(20, 0) CHECK ("a b" BETWEEN 0 AND 18446744073709551615)'
    colours = Column("{}", ColumnType.ENUM, exactly=enum_types("it's", "{0}"))
    assert colours.postgres_ddl == "\"{}\" text NOT NULL CHECK (\"{}\" IN ('it''s', '{0}'))"
    assert colours.clickhouse_type == "Enum8('it\\'s' = 1, '{0}' = 2)"


def test_a_refusal_names_column_type_and_remedy() -> None:
    table = Table("t", (Column("n", ColumnType.INT32), Column("l", ColumnType.LIST)), ())
    with pytest.raises(ValueError, match=r"column l is bigint\[\], which is too long: cut it"):
        refuse(table, {ColumnType.LIST}, "which is too long: cut it", "postgres")


@pytest.mark.parametrize("database", ["postgres", "clickhouse"])
def test_table_with_hostile_names_is_made_found_and_dropped(servers: Servers, database: str) -> None:
    columns = tuple(Column(name, ColumnType.INT32) for name in HOSTILE)
    table = Table('framehaul "hostile`\\ %s', columns, key=tuple(HOSTILE))
    tables = tables_of(getattr(servers, database))
    for _ in range(2):  # made anew, without its rows
        tables.create(table)
        assert tables.content(table).is_empty()
        tables.load(table, generator.arrow_table(table, 10, 1))
        assert (tables.content(table).columns, len(tables.content(table))) == (HOSTILE, 10)
    for _ in range(2):
        tables.drop(table.name)
