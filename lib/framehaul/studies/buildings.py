"""The table of buildings: footprints of houses with their H3 cells, the same for the same seed on every machine."""

import h3
import numpy as np
import pyarrow as pa
import shapely

from framehaul.bench.store import EXACT
from framehaul.data.equality import content_of, difference_in_any_order, first_difference, other_shape
from framehaul.data.schema import DATE32, Column, ColumnType, Table

BATCH_ROWS = 16_384
"""Rows of a batch. It depends on its number and the seed alone, so a small table is the beginning of a large one."""

_COLUMNS = [Column("revision", ColumnType.INT32, nullable=True)]
_COLUMNS += [Column(name, ColumnType.DATE, nullable=True, exactly=DATE32) for name in ("from_date", "to_date")]
_COLUMNS += [Column(name, ColumnType.TEXT, nullable=True) for name in ("geom", "h3_7", "h3_8", "h3_9")]
TABLE = Table("framehaul_buildings", tuple(_COLUMNS), key=())
"""The table of https://tech.marksblogg.com/postgresql-to-bigquery.html, which has no key and no NOT NULL.

`geom` is a closed line around the building: well-known binary in hexadecimal, the text form of PostGIS.
"""
SCHEMA = TABLE.arrow_schema
DUCKDB_TYPES = {column.name: column.types.postgres for column in TABLE.columns}
"""The types by column; DuckDB has PostgreSQL's names for them."""

# Latitude, longitude and diameter of towns in degrees, and the share of the houses in each.
TOWNS = np.array(
    [(39.05, -94.58, 0.35, 0.10), (40.71, -74.00, 0.30, 0.20), (34.05, -118.24, 0.45, 0.22),
     (41.88, -87.63, 0.35, 0.15), (29.76, -95.37, 0.40, 0.13), (47.61, -122.33, 0.25, 0.08),
     (25.76, -80.19, 0.20, 0.05), (39.74, -104.99, 0.30, 0.07)]
)  # fmt: skip
METRES_PER_DEGREE = 111_320
CELL = np.vectorize(h3.latlng_to_cell, otypes=[object])


def table(rows: int, seed: int) -> pa.Table:
    """Return the first rows of the table that a seed makes."""
    batches = (_batch(BATCH_ROWS, np.random.default_rng([seed, at])) for at in range(-(-rows // BATCH_ROWS)))
    return pa.Table.from_batches(batches, SCHEMA).slice(0, rows)


def _batch(rows: int, random: np.random.Generator) -> pa.RecordBatch:
    # Houses are dense in the middle of towns.
    *middles, spread, _ = TOWNS[random.choice(len(TOWNS), rows, p=TOWNS[:, 3])].T
    latitudes, longitudes = (middle + random.normal(0, spread / 2, rows) for middle in middles)
    lines = _footprints(latitudes, longitudes, random)
    cells = (CELL(latitudes, longitudes, resolution) for resolution in (7, 8, 9))
    # Surveys are rare: few days with many buildings each, and a fifth of the dates is missing.
    days = np.datetime64("2012-01-01") + random.integers(0, 120, rows) * 23
    undated, unplaced = random.random(rows) < 0.2, random.random(rows) < 0.001  # noqa: PLR2004
    arrays = [
        pa.array(random.integers(1, 4, rows, dtype=np.int32), mask=random.random(rows) < 0.01),  # noqa: PLR2004
        pa.array(days, pa.date32(), mask=undated),
        pa.array(days + random.integers(0, 90, rows), pa.date32(), mask=undated),
        pa.array(shapely.to_wkb(lines, hex=True, byte_order=1), pa.string(), mask=unplaced),
        *(pa.array(one, pa.string(), mask=unplaced) for one in cells),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _footprints(latitudes: np.ndarray, longitudes: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return a closed line around each house: a rotated rectangle or, for every third, an L; six decimals."""
    rows = len(latitudes)
    width, depth = random.uniform(6, 25, rows), random.uniform(6, 18, rows)
    angle, notch = random.uniform(0, np.pi / 2, rows), random.uniform(0.3, 0.7, (2, rows))
    is_l, zero, one = random.random(rows) < 1 / 3, np.zeros(rows), np.ones(rows)
    # Corners of an L in widths and depths. A rectangle has no notch, and none of the two corners behind it.
    x = np.stack([zero, one, one, notch[0], notch[0], zero, zero]) * width
    y = np.stack([zero, zero, np.where(is_l, notch[1], 1), notch[1], one, one, zero]) * depth
    east, north = x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle)
    longitude = longitudes + east / (METRES_PER_DEGREE * np.cos(np.radians(latitudes)))
    corners = np.stack([longitude, latitudes + north / METRES_PER_DEGREE]).T.round(6)
    lines: np.ndarray = shapely.linestrings(corners)
    lines[~is_l] = shapely.linestrings(corners[~is_l][:, [0, 1, 2, 5, 6]])
    return lines


def difference(received: pa.Table, sent: pa.Table) -> tuple[str | None, str, str]:
    """Return the error in a table that was read back (None without one), its types, and its order of rows.

    Types are `exact`, or the columns with another type, such as `from_date:string;to_date:string`. The order is `kept`
    or `changed`. Values are compared in the types that were sent: a date that became a timestamp must be midnight.
    """
    if wrong := other_shape(received.column_names, received.num_rows, sent.column_names, sent.num_rows):
        return wrong, "", ""
    # Arrow's three types of text are one type in a file.
    texts = (pa.large_string(), pa.string_view())
    types = {field.name: pa.string() if field.type in texts else field.type for field in received.schema}
    drifted = ";".join(f"{field.name}:{types[field.name]}" for field in sent.schema if types[field.name] != field.type)
    ours, theirs = (content_of(table, TABLE.columns, nan_is_null=False) for table in (sent, received))
    first = first_difference(ours, theirs)
    if first and (wrong := difference_in_any_order(ours, theirs, key=())):
        return f"{wrong}: {first}", "", ""
    return None, drifted or EXACT, "changed" if first else "kept"
