"""The existing rows of a table before the upsert of any frame, made from the frame itself."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from framehaul.bench.measure import ExistingRows
from framehaul.data.schema import Table
from framehaul.servers import ClickHouseServer, PostgresServer
from framehaul.studies.upsert.places import as_read
from framehaul.techniques.upsert.rows import target

KEPT = 10
"""One in ten rows of a frame is in the table already and stays unchanged."""


def before_upsert(
    sent: pa.Table, kept: pa.Table, table: Table, server: PostgresServer | ClickHouseServer
) -> ExistingRows:
    """Return rows with every second key that is sent and the values of another row, and the rows that stay."""
    known = sent.filter(pa.array(np.arange(sent.num_rows) % 2 == 0))
    moved = pa.concat_tables([known.slice(1), known.slice(0, 1)])
    changed = [(known if name in table.key else moved).column(name) for name in known.column_names]
    existing = pa.concat_tables([pa.Table.from_arrays(changed, schema=known.schema), kept])
    return ExistingRows(
        existing, pa.concat_tables([sent, kept]), target, lambda technique, _: as_read(technique, server)
    )
