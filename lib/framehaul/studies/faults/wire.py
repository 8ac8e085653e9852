"""Define a relay that breaks a connection after a number of bytes, or while it is idle."""

import asyncio
import contextlib
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
        self.struck = False
        """Whether the break has happened."""
        self.held, self.released = threading.Event(), threading.Event()
        """The first is set when `hold` stops forwarding, and the connection ends when the second is set."""
        self.strike(None)

    def strike(self, kind: Break | None, after: int = 0, *, in_client_bytes: bool = True) -> None:
        """Restart the count, and break the connection (None: break nothing) after these bytes of that direction."""
        self._kind, self._after, self._in_client_bytes = kind, after, in_client_bytes
        self.passed = {True: 0, False: 0}
        """The bytes from the client (True) and from the server (False) since then."""
        self.starts: list[int] = []
        """The positions of the client's messages in its bytes."""
        self._answered = True

    def reset(self) -> None:
        """Reset all open connections on both sides, as load balancers do; later connections are forwarded.

        https://docs.aws.amazon.com/elasticloadbalancing/latest/network/network-load-balancers.html
        """

        async def reset() -> None:
            self.struck = True
            for connection in {*self._open}:
                with contextlib.suppress(OSError):  # it has just been closed
                    connection.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETS)
                connection.transport.abort()
            await asyncio.sleep(POLL_SECONDS)  # until both sides notice

        self._run(reset())

    async def _lets_through(self, count: int, *, from_client: bool) -> bool:
        if from_client and self._answered:
            self.starts.append(self.passed[True])
        self._answered = not from_client
        self.passed[from_client] += count
        if self._kind is None or self.passed[self._in_client_bytes] < self._after:
            return True
        first, self.struck = not self.struck, True
        if self._kind == "swallow" and (first or from_client):  # after this chunk the server sends its answer
            return True
        if self._kind == "hold":
            self.held.set()
            while not self.released.is_set():  # noqa: ASYNC110  set in another thread
                await asyncio.sleep(POLL_SECONDS)
        elif first or self._kind == "swallow":  # once: later connections are forwarded
            try:
                await asyncio.sleep(WORK_SECONDS)
            finally:
                self._kind = None
                self._shut(socket.SHUT_RDWR)
        raise ConnectionAbortedError  # drops this chunk
