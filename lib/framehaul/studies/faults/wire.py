"""Define a relay that breaks a connection after a number of bytes, or while it is idle."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from typing import Literal

from framehaul.servers.relay import Relay

type Break = Literal["cut", "hold", "swallow"]
"""`cut` ends the connection, `hold` stops forwarding for a while, `swallow` drops only the server's answer."""

RESETS = struct.pack("ii", 1, 0)
"""SO_LINGER without a time: closing the socket sends an RST, see socket(7)."""
WORK_SECONDS = 0.5
"""The time in which a server may process what it has received, or answer, before the connection ends."""
POLL_SECONDS = 0.05


class BreakingRelay(Relay):
    """A relay that counts bytes per direction and breaks the connection after a number of bytes of one direction."""

    def __init__(self, *targets: tuple[str, int]) -> None:
        super().__init__(*targets)
        self.from_client_bytes = self.from_server_bytes = 0
        self.struck = False
        """Whether the break has happened."""
        self._held, self._until = threading.Event(), threading.Event()
        self._kind: Break | None = None
        self._after = 0
        self._in_client_bytes = True

    def count(self) -> None:
        """Restart the count of bytes."""
        self.from_client_bytes = self.from_server_bytes = 0

    def strike(self, kind: Break, after: int, *, in_client_bytes: bool) -> None:
        """Restart the count, and break the connection after this number of bytes of that direction."""
        self.count()
        self._after, self._in_client_bytes = after, in_client_bytes
        self._kind = kind

    def hold(self, after: int, *, in_client_bytes: bool, held: threading.Event, until: threading.Event) -> None:
        """Stop forwarding after this number of bytes, set `held`, and end the connection when `until` is set."""
        self._held, self._until = held, until
        self.strike("hold", after, in_client_bytes=in_client_bytes)

    def mend(self) -> None:
        """Break nothing from now on."""
        self._kind = None

    def reset(self) -> None:
        """Reset all open connections on both sides, as load balancers do; later connections are forwarded.

        https://docs.aws.amazon.com/elasticloadbalancing/latest/network/network-load-balancers.html
        """

        async def reset() -> None:
            self.struck = True
            for connection in {*self._open}:
                connection.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETS)
                connection.transport.abort()
            await asyncio.sleep(POLL_SECONDS)  # until both sides notice

        self._run(reset())

    async def _lets_through(self, count: int, *, from_client: bool) -> bool:
        if from_client:
            self.from_client_bytes += count
        else:
            self.from_server_bytes += count
        answered = self._kind == "swallow" and self.struck and not from_client
        if answered or self._has_to_break():
            first, self.struck = not self.struck, True
            if self._kind == "hold":
                self._held.set()
                while not self._until.is_set():  # noqa: ASYNC110  set in another thread
                    await asyncio.sleep(POLL_SECONDS)
            elif first and self._kind == "swallow":  # after this chunk the server sends its answer
                return True
            elif first or answered:  # once: later connections are forwarded
                try:
                    await asyncio.sleep(WORK_SECONDS)
                finally:
                    self._kind = None
                    self._shut(socket.SHUT_RDWR)
            raise ConnectionAbortedError  # drops this chunk
        return True

    def _has_to_break(self) -> bool:
        so_far = self.from_client_bytes if self._in_client_bytes else self.from_server_bytes
        return self._kind is not None and so_far >= self._after and not (self._kind == "swallow" and self.struck)
