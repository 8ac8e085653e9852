"""The table of buildings: footprints of houses with their H3 cells, the same for the same seed on every machine."""

from __future__ import annotations

import datetime as dt

import h3
import numpy as np
import pyarrow as pa
import shapely

from framehaul.bench.store import EXACT
from framehaul.data.equality import content_of, difference_in_any_order, first_difference, other_shape
from framehaul.data.schema import DATE32, Column, ColumnType, Table, columns_in

BATCH_ROWS = 16_384
"""Rows of a batch. It depends on its number and the seed alone, so a small table is the beginning of a large one."""

DATES, TEXTS = ("from_date", "to_date"), ("geom", "h3_7", "h3_8", "h3_9")
TABLE = Table(
    "framehaul_buildings",
    (
        Column("revision", ColumnType.INT32, nullable=True),
        *(Column(name, ColumnType.DATE, nullable=True, exactly=DATE32) for name in DATES),
        *(Column(name, ColumnType.TEXT, nullable=True) for name in TEXTS),
    ),
    key=(),
)
"""The table of https://tech.marksblogg.com/postgresql-to-bigquery.html, which has no key and no NOT NULL.

`geom` is a closed line around the building: well-known binary in hexadecimal, the text form of PostGIS.
"""
SCHEMA = TABLE.arrow_schema
DUCKDB_TYPES = {column.name: column.types.postgres for column in TABLE.columns}
"""The types by column; DuckDB has PostgreSQL's names for them."""

# Latitude, longitude and diameter of towns in degrees, and the share of the houses in each.
TOWNS = np.array(
    [(39.05, -94.58, 0.35), (40.71, -74.00, 0.30), (34.05, -118.24, 0.45), (41.88, -87.63, 0.35), (29.76, -95.37, 0.40),
     (47.61, -122.33, 0.25), (25.76, -80.19, 0.20), (39.74, -104.99, 0.30)]
)  # fmt: skip
SHARES = np.array([0.10, 0.20, 0.22, 0.15, 0.13, 0.08, 0.05, 0.07])
METRES_PER_DEGREE = 111_320
FIRST_SURVEY = dt.date(2012, 1, 1)


def table(rows: int, seed: int) -> pa.Table:
    """Return the first rows of the table that a seed makes."""
    batches = (
        _batch(BATCH_ROWS, np.random.default_rng([seed, number])).slice(0, min(BATCH_ROWS, rows - start))
        for number, start in enumerate(range(0, rows, BATCH_ROWS))
    )
    return pa.Table.from_batches(batches, SCHEMA)


def _batch(rows: int, random: np.random.Generator) -> pa.RecordBatch:
    # Houses are dense in the middle of towns.
    *middles, spread = TOWNS[random.choice(len(TOWNS), rows, p=SHARES)].T
    latitudes, longitudes = (middle + random.normal(0, spread / 2, rows) for middle in middles)
    lines = _footprints(latitudes, longitudes, random)
    places = [*zip(latitudes, longitudes, strict=True)]
    cells = ([h3.latlng_to_cell(*place, resolution) for place in places] for resolution in (7, 8, 9))
    # Surveys are rare: few days with many buildings each, and a fifth of the dates is missing.
    days = (FIRST_SURVEY - dt.date(1970, 1, 1)).days + random.integers(0, 120, rows) * 23
    undated, unplaced = random.random(rows) < 0.2, random.random(rows) < 0.001  # noqa: PLR2004
    arrays = [
        pa.array(random.integers(1, 4, rows, dtype=np.int32), mask=random.random(rows) < 0.01),  # noqa: PLR2004
        pa.array(days.astype("datetime64[D]"), pa.date32(), mask=undated),
        pa.array((days + random.integers(0, 90, rows)).astype("datetime64[D]"), pa.date32(), mask=undated),
        pa.array(shapely.to_wkb(lines, hex=True, byte_order=1), pa.string(), mask=unplaced),
        *(pa.array(np.array(one, dtype=object), pa.string(), mask=unplaced) for one in cells),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _footprints(latitudes: np.ndarray, longitudes: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return a closed line around each house: a rotated rectangle or, for every third, an L; six decimals."""
    rows = len(latitudes)
    width, depth = random.uniform(6, 25, rows), random.uniform(6, 18, rows)
    angle, notch = random.uniform(0, np.pi / 2, rows), random.uniform(0.3, 0.7, (2, rows))
    is_l = random.random(rows) < 1 / 3
    corners = np.where(is_l, 6, 4)
    house = np.repeat(np.arange(rows), corners + 1)
    corner = np.arange(len(house)) - np.repeat(np.cumsum(corners + 1) - (corners + 1), corners + 1)
    corner %= corners[house]
    # x and y of the corners in widths and depths; the notch of the L is where x and y are largest.
    shape_x = np.where(is_l, [np.zeros(rows), np.ones(rows), np.ones(rows), notch[0], notch[0], np.zeros(rows)],
                       [[0], [1], [1], [0], [0], [0]])  # fmt: skip
    shape_y = np.where(is_l, [np.zeros(rows), np.zeros(rows), notch[1], notch[1], np.ones(rows), np.ones(rows)],
                       [[0], [0], [1], [1], [0], [0]])  # fmt: skip
    x, y = shape_x[corner, house] * width[house], shape_y[corner, house] * depth[house]
    cosine, sine = np.cos(angle)[house], np.sin(angle)[house]
    east, north = x * cosine - y * sine, x * sine + y * cosine
    longitude = longitudes[house] + east / (METRES_PER_DEGREE * np.cos(np.radians(latitudes[house])))
    latitude = latitudes[house] + north / METRES_PER_DEGREE
    lines: np.ndarray = shapely.linestrings(np.column_stack([longitude, latitude]).round(6), indices=house)
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
    ours, theirs = (content_of(table, columns_in(sent.schema), nan_is_null=False) for table in (sent, received))
    first = first_difference(ours, theirs)
    if first is None:
        return None, drifted or EXACT, "kept"
    wrong = difference_in_any_order(ours, theirs, key=())
    return (f"{wrong}: {first}", "", "") if wrong else (None, drifted or EXACT, "changed")
