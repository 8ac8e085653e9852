"""A relay that breaks what runs through it, at a byte chosen beforehand."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Literal

from framehaul.servers.relay import Relay

type Break = Literal["cut", "hold", "swallow"]
"""End the connection; stop forwarding for a while; forward all, but let the server's answer disappear."""

QUIET_SECONDS = 0.5
"""After so long without another byte, a server has given its answer."""
POLL_SECONDS = 0.05
"""How often a connection that is held looks whether the relay is over."""


class BreakingRelay(Relay):
    """Counts the bytes of either direction, and breaks the connection after as many of one as it was told."""

    work_seconds = QUIET_SECONDS
    """How long a server gets to work with what it has, before its connection is cut."""

    def __init__(self, *targets: tuple[str, int]) -> None:
        super().__init__(*targets)
        self.from_client_bytes = self.from_server_bytes = 0
        self.struck = False
        """Whether what was to break has broken."""
        self._held, self._until = threading.Event(), threading.Event()
        self._kind: Break | None = None
        self._after = 0
        self._in_client_bytes = True
        self._quiet: threading.Timer | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self.mend()
        if self._quiet is not None:
            self._quiet.join()

    def count(self) -> None:
        """Count from here."""
        with self._lock:
            self.from_client_bytes = self.from_server_bytes = 0

    def strike(self, kind: Break, after: int, *, in_client_bytes: bool) -> None:
        """Count from here, and break when so many bytes of that direction have come."""
        self.count()
        self._after, self._in_client_bytes = after, in_client_bytes
        self._kind = kind

    def hold(self, after: int, *, in_client_bytes: bool, held: threading.Event, until: threading.Event) -> None:
        """As `strike`, to stop forwarding; sets `held` then, and ends the connection when `until` is set."""
        self._held, self._until = held, until
        self.strike("hold", after, in_client_bytes=in_client_bytes)

    def mend(self) -> None:
        """Break nothing any more."""
        self._kind = None
        with self._lock:
            if self._quiet is not None:
                self._quiet.cancel()

    def _lets_through(self, count: int, *, from_client: bool) -> bool:
        with self._lock:
            if from_client:
                self.from_client_bytes += count
            else:
                self.from_server_bytes += count
        if self._kind is None:
            return True
        if self._kind == "swallow" and self.struck and not from_client:
            self._end_when_quiet()
            return False
        if (self.from_client_bytes if self._in_client_bytes else self.from_server_bytes) < self._after:
            return True
        with self._lock:
            first, self.struck = not self.struck, True
        match self._kind:
            case "cut":
                if first:  # and only once: the next connections are left alone
                    self._over.wait(self.work_seconds)  # the server gets to work with what it has
                    self._kind = None
                    self.end_connections()
                raise ConnectionAbortedError
            case "hold":
                self._held.set()
                while not self._until.wait(POLL_SECONDS) and not self._over.is_set():
                    pass
                raise ConnectionAbortedError  # nothing that was under way arrives
        return True

    def _end_when_quiet(self) -> None:
        with self._lock:
            if self._quiet is not None:
                self._quiet.cancel()
            self._quiet = threading.Timer(QUIET_SECONDS, self._end_swallowed)
            self._quiet.daemon = True
            self._quiet.start()

    def _end_swallowed(self) -> None:
        self._kind = None
        self.end_connections()
