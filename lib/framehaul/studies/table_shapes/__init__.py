"""Tables of other shapes, and of few rows: which techniques stay fast, and from how many rows on."""

from framehaul.studies.table_shapes.shapes import SHAPES
from framehaul.studies.table_shapes.study import COMPARED, run

__all__ = ["COMPARED", "SHAPES", "run"]
