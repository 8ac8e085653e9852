"""A table whose names are all hostile and whose columns are nullable, beside the article's."""

from framehaul.data.schema import Column, ColumnType, Table

SECOND_TABLE = Table(
    name='framehaul second "t" `x` 100%',
    columns=(
        Column("Order", ColumnType.INT64),
        Column("select", ColumnType.TEXT, nullable=True),
        Column("a-b c", ColumnType.INT32, nullable=True),
        Column("día", ColumnType.DATE, nullable=True),
        Column('q"u`o :te', ColumnType.FLOAT64, nullable=True),
        Column("lc", ColumnType.TEXT, nullable=True, low_cardinality=True),
        Column("UUID", ColumnType.UUID, nullable=True),
    ),
    key=("Order",),
)
