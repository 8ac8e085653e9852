"""Compile loops ahead of the first call that needs them."""

import io
from dataclasses import replace

import pgpq

from framehaul.codecs.copy_binary import CopyDecoder
from framehaul.codecs.native_format import native_blocks, read_native
from framehaul.data import generator
from framehaul.data.frames import to_polars
from framehaul.data.schema import ANALYTICS_METRICS
from framehaul.techniques.beyond.postgres_write import picked, presorted
from framehaul.techniques.prepare import prepare

ROWS = 20_000
"""More rows than are moved without compiled loops."""


def compile_loops() -> None:
    """Compile and cache the loops that `framehaul.write` and `framehaul.read` use, which takes some seconds once."""
    columns = ANALYTICS_METRICS.columns
    nullable = tuple(replace(one, nullable=one.name not in ANALYTICS_METRICS.key) for one in columns)
    for table in (ANALYTICS_METRICS, replace(ANALYTICS_METRICS, columns=nullable)):
        # Rows are encoded for both servers and decoded again, in memory.
        frame = to_polars(generator.arrow_table(table, ROWS, 1), table)
        content, order = presorted(frame, table)
        encoder = pgpq.ArrowToPostgresBinaryEncoder(content.schema)
        header = encoder.write_header()
        data = b"".join([header, *map(encoder.write_batch, picked(content, order)), encoder.finish()])
        blocks = b"".join(part for block in native_blocks(prepare(frame, table, "clickhouse"), table) for part in block)
        for schema in (None, table.arrow_large_schema):
            decoder = CopyDecoder(table, schema)
            decoder.feed(data)
            decoder.finish()
            read_native(io.BytesIO(blocks), table, schema)
