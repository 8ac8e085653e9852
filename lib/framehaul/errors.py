"""Define the errors that a user can fix: every message names the value and the remedy."""


class SettingsError(ValueError):
    """A setting cannot be used; the message names it, its value and the remedy."""


class ServerError(RuntimeError):
    """A server cannot be started, reached or used; the message names the reason and the remedy."""


class AnswerError(ServerError):
    """A working server answered a statement with an error, which is in the message."""


class ReferenceTableError(ValueError):
    """A server did not store the reference table that everything is compared with."""


class UnavailableError(RuntimeError):
    """A technique cannot run on this server; the message names the reason and what would make it run."""


class ResultsError(RuntimeError):
    """Results cannot be written or read; the message names the file and the remedy."""


class WrongResultError(Exception):
    """A read or stored result is missing or differs from what was sent; the message describes the difference."""


class FrameError(ValueError):
    """A frame cannot be read or stored; the message names file or column, row where it can, and the remedy."""


class TableError(ValueError):
    """A table or query cannot be used in this way; the message names the reason and the remedy."""
