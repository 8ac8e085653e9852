"""Scaling: the same techniques with frames of growing size, and moves in bounded memory."""

from framehaul.studies.scaling.study import run

__all__ = ["run"]
