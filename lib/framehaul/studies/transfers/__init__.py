"""Transfers: every technique of a database and direction."""

from framehaul.studies.transfers.study import run

__all__ = ["run"]
