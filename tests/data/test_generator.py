import hashlib
import json

import polars as pl
import pytest

from framehaul.data import generator
from framehaul.data.frames import to_pandas
from framehaul.data.schema import ANALYTICS_METRICS, ColumnType, Table
from tests.second_table import SECOND_TABLE

TABLES = pytest.mark.parametrize("table", [ANALYTICS_METRICS, SECOND_TABLE], ids=["standard", "second"])

# The contract "the same frame for the same seed on every machine and version": never change these to make a test pass.
PINNED = {
    ANALYTICS_METRICS.name: "f6883ad1be03db037d4d73134098e2caa1a42f909e8458692f53cfdb52c3fec3",
    SECOND_TABLE.name: "52632ae0d9151e29e76a4def5685715048204cd85dae817c9b5be81a47717d8d",
}


@TABLES
def test_contract_same_seed_gives_the_same_frame_on_every_machine_and_version(table: Table) -> None:
    content, digest = generator.arrow_table(table, 1000, 42), hashlib.sha256()
    for name in content.column_names:  # names and values alone, whatever library, layout or IPC version holds them
        digest.update(json.dumps([name, content.column(name).to_pylist()], default=str).encode("ascii"))
    assert digest.hexdigest() == PINNED[table.name]


@TABLES
@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_frames_have_the_dtypes_and_rows_of_the_table(table: Table, rows: int) -> None:
    arrow = generator.arrow_table(table, rows, 1)
    polars, pandas = generator.polars_frame(table, rows, 1), to_pandas(arrow, table)
    assert arrow.schema.equals(table.arrow_schema)
    assert dict(polars.schema) == table.polars_schema
    assert {name: str(dtype) for name, dtype in pandas.dtypes.items()} == table.pandas_dtypes
    assert (arrow.num_rows, len(polars), len(pandas)) == (rows, rows, rows)


@pytest.mark.parametrize("rows", [8, 100_000])
def test_keys_are_unique_and_an_entity_never_returns_on_the_same_day(rows: int) -> None:
    frame = generator.polars_frame(ANALYTICS_METRICS, rows, 42)
    assert not frame.select("entity_key", "event_date").is_duplicated().any()
    assert frame["entity_key"].n_unique() == rows // generator.ROWS_PER_ENTITY
    assert generator.polars_frame(SECOND_TABLE, rows, 42).select(SECOND_TABLE.key).is_unique().all()


@TABLES
def test_every_edge_case_is_in_every_text_column_and_in_few_rows(table: Table) -> None:
    frame = generator.polars_frame(table, 100_000, 42)
    awkward = pl.col(table.columns_of(ColumnType.TEXT)).is_in(generator.EDGE_CASE_TEXTS)
    for name in table.columns_of(ColumnType.TEXT):
        assert set(generator.EDGE_CASE_TEXTS) <= set(frame[name])
    assert 0.005 < frame.select(pl.any_horizontal(awkward).mean()).item() < 0.02
