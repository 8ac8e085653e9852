"""Tables of other shapes and tables of few rows, with the leading techniques of each direction."""

from framehaul.studies.table_shapes.shapes import SHAPES
from framehaul.studies.table_shapes.study import run

__all__ = ["SHAPES", "run"]
