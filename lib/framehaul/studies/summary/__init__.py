"""Summary: which technique to use, and how far the published comparison holds, from stored results."""

from framehaul.studies.summary.published import matrix
from framehaul.studies.summary.study import load, which, with_shapes

__all__ = ["load", "matrix", "which", "with_shapes"]
