"""A relay that breaks what runs through it, at a byte chosen beforehand, or when it was idle."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Literal

from framehaul.servers.relay import Relay

type Break = Literal["cut", "hold", "swallow"]
"""End the connection; stop forwarding for a while; forward all, but let the server's answer disappear."""

type Forget = Literal["reset", "drop"]
"""What is done with an idle connection: both sides get an RST; or nobody is told, and nothing arrives any more."""

RESETS = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing sends an RST, see socket(7)."""
QUIET_SECONDS = 0.5
"""After so long without another byte, a server has given its answer."""
STUCK_SECONDS = 60
"""After so long without a byte, whoever is still not done will not be."""
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
        self._forgotten: set[socket.socket] = set()
        self._here = threading.local()
        self._last = time.monotonic()
        """When bytes came."""
        self._unheard = False
        """Whether the last that a client has sent is lost."""

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

    def forget(self, kind: Forget, after_seconds: float) -> None:
        """Give up all open connections as soon as nothing has gone through them for so long; later ones are forwarded.

        So do load balancers: https://docs.aws.amazon.com/elasticloadbalancing/latest/network/network-load-balancers.html
        """
        while (left := after_seconds - (time.monotonic() - self._last)) > 0 and not self._over.wait(left):
            pass
        with self._lock:
            idle, self.struck = {*self._open}, True
            self._last, self._unheard = time.monotonic(), False
            self._forgotten |= idle
            for connection in idle if kind == "reset" else ():
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETS)
                    connection.shutdown(socket.SHUT_RD)  # which wakes who forwards and is not sent
        while kind == "reset" and self._are_open(idle):
            time.sleep(POLL_SECONDS)

    def _are_open(self, connections: set[socket.socket]) -> bool:
        with self._lock:
            return not connections.isdisjoint(self._open)

    @contextlib.contextmanager
    def patience(self, seconds: float) -> Iterator[threading.Event]:
        """While the block lasts, whoever is unheard for so long has its connections ended; the event is set then.

        Who is silent otherwise is busy with what it has, and has `STUCK_SECONDS`.
        """
        hung, over = threading.Event(), threading.Event()

        def watch() -> None:
            while not over.wait(POLL_SECONDS):
                if time.monotonic() - self._last > (seconds if self._unheard else STUCK_SECONDS):
                    hung.set()
                    self.end_connections()
                    self._last = time.monotonic()

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        try:
            yield hung
        finally:
            over.set()
            watching.join()

    def mend(self) -> None:
        """Break nothing any more."""
        self._kind = None
        with self._lock:
            if self._quiet is not None:
                self._quiet.cancel()

    def _forward(self, source: socket.socket, sink: socket.socket, *, from_client: bool = False) -> None:
        self._here.source = source
        super()._forward(source, sink, from_client=from_client)

    def _pass_end(self, sink: socket.socket) -> None:
        if sink not in self._forgotten:
            super()._pass_end(sink)

    def _is_lost(self, *, from_client: bool) -> bool:
        """Whether what came in this thread goes nowhere."""
        lost = self._here.source in self._forgotten
        if from_client or not lost:
            self._last, self._unheard = time.monotonic(), lost
        return lost

    def _lets_through(self, count: int, *, from_client: bool) -> bool:
        if self._is_lost(from_client=from_client):
            return False
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
