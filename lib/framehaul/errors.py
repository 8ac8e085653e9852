"""What goes wrong in a way that its reader can mend: every message names the value and the remedy."""

from __future__ import annotations


class SettingsError(ValueError):
    """A setting that cannot be used; the message names it, its value and the remedy."""


class ServerError(RuntimeError):
    """A server cannot be started, reached or used; the message says why and what to do."""


class AnswerError(ServerError):
    """A server that works answered a statement with an error, which the message has."""


class ReferenceTableError(ValueError):
    """A server does not hold what it was given to hold, by the path that everything is compared with."""


class UnavailableError(RuntimeError):
    """A technique cannot run on this server; the message says why and what would make it run."""


class ResultsError(RuntimeError):
    """Results cannot be written or read; the message names the file and the remedy."""


class ReportError(RuntimeError):
    """A report cannot be made; the message says why."""


class WrongResultError(Exception):
    """What came back, or was stored, is not what was sent, or nothing came; the message alone says what is wrong."""


class FrameError(ValueError):
    """A frame holds what its table cannot; the message names column, row where it can, and the remedy."""


class TableError(ValueError):
    """A table, or a query, is not one that can be used so; the message says why and what to do."""
