"""The process that carries packets between two TUN devices, late and no faster than it is told to.

`python -m framehaul.servers.forwarder CLIENT SERVER` takes the file descriptors of the devices that packets of the
client and of the server come out of. Each line on its standard input is a network, `DELAY_S BYTES_PER_S`: the delay of
one way, and the rate of each, 0 for none. It answers every line, an empty one too, with what it has carried so far, as
a line of JSON. It ends with its standard input, and the devices with it.

Connections go from end to end: TCP of the kernel sees the delay, the rate and what is dropped, and packets have the
size that they have on Ethernet. What the kernel hands over in one piece, up to 64 KB of a connection, is passed on in
one piece, as a network card takes it: https://docs.kernel.org/networking/segmentation-offloads.html
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, field

LARGEST_PACKET = (1 << 16) + 64
READ_AT_ONCE = 16
"""Packets of one side, before the other side has its turn."""
LEAST_QUEUE_S = 0.01
"""What waits for a rate waits as long as a round trip takes at most, or this; what comes then is dropped."""
DEVICE_HEADER = 10
"""struct virtio_net_hdr, before every packet. https://docs.oasis-open.org/virtio/virtio/v1.2/virtio-v1.2.html"""
TCP, SYN = 6, 2
TIMER_SLACK = 29
"""PR_SET_TIMERSLACK of prctl(2): how much later than asked for the kernel may wake a process, 50 us by default."""


@dataclass
class Carried:
    """What was carried, both ways."""

    packets: int = 0
    wire_bytes: int = 0
    """With the headers of IP and TCP."""
    dropped: int = 0
    round_trips: int = 0
    """How often a connection was opened, or its client sent something after the server had: it had waited for that."""


@dataclass
class Side:
    """One device, and what came out of it and is still on its way."""

    device: int
    on_the_way: deque[tuple[float, bytearray, int]] = field(default_factory=deque)
    """When each packet is due, its buffer, and its length."""
    free_at: float = 0.0
    """When the last packet has left, at the rate."""


class Forwarder:
    """Carries packets between the client's device and the server's, until `control` ends."""

    def __init__(self, client: int, server: int, control: int) -> None:
        self._sides = Side(client), Side(server)
        self._control = control
        self._delay_s, self._bytes_per_s, self._queue_s = 0.0, 0.0, 0.0
        self._carried = Carried()
        self._spare: list[bytearray] = []
        self._server_spoke: dict[bytes, bool] = {}
        """Of each connection, by its ports, whether its last bytes came from the server."""

    def run(self) -> None:
        """Until the control pipe ends."""
        client, server = self._sides
        watched = client.device, server.device, self._control
        while True:
            due = min((side.on_the_way[0][0] for side in self._sides if side.on_the_way), default=None)
            # Not epoll, whose timeouts are whole milliseconds.
            wait = None if due is None else max(0.0, due - time.perf_counter())
            ready, _, _ = select.select(watched, (), (), wait)
            if self._control in ready and not self._obey():
                return
            for side in self._sides:
                if side.device in ready:
                    self._take(side, from_client=side is client)
            for side, other in ((client, server), (server, client)):
                self._deliver(side, other.device)

    def _obey(self) -> bool:
        """Take a line of control, and answer; false at its end."""
        lines = os.read(self._control, 4096).decode().splitlines()
        for line in lines:
            if line:
                self._delay_s, self._bytes_per_s = map(float, line.split())
                self._queue_s = max(2 * self._delay_s, LEAST_QUEUE_S)
            print(json.dumps(asdict(self._carried)), flush=True)
        return bool(lines)

    def _take(self, side: Side, *, from_client: bool) -> None:
        """Read what has come out of a device, and say when each packet is due on the other side."""
        for _ in range(READ_AT_ONCE):
            buffer = self._spare.pop() if self._spare else bytearray(LARGEST_PACKET)
            try:
                length = os.readv(side.device, (buffer,))
            except BlockingIOError:
                self._spare.append(buffer)
                return
            leaves = time.perf_counter()
            if self._bytes_per_s:
                begins = max(leaves, side.free_at)
                if begins - leaves > self._queue_s:
                    self._carried.dropped += 1
                    self._spare.append(buffer)
                    continue
                leaves = side.free_at = begins + (length - DEVICE_HEADER) / self._bytes_per_s
            self._count(buffer, length, from_client=from_client)
            side.on_the_way.append((leaves + self._delay_s, buffer, length))

    def _deliver(self, side: Side, other: int) -> None:
        now = time.perf_counter()
        while side.on_the_way and side.on_the_way[0][0] <= now:
            _, buffer, length = side.on_the_way.popleft()
            os.write(other, memoryview(buffer)[:length])
            self._spare.append(buffer)

    def _count(self, packet: bytearray, length: int, *, from_client: bool) -> None:
        self._carried.packets += 1
        self._carried.wire_bytes += length - DEVICE_HEADER
        if packet[DEVICE_HEADER] >> 4 != 4 or packet[DEVICE_HEADER + 9] != TCP:  # noqa: PLR2004  IPv4
            return
        tcp = DEVICE_HEADER + 4 * (packet[DEVICE_HEADER] & 15)
        ports = bytes(packet[tcp : tcp + 4] if from_client else packet[tcp + 2 : tcp + 4] + packet[tcp : tcp + 2])
        opens = bool(packet[tcp + 13] & SYN)
        if not opens and length <= tcp + 4 * (packet[tcp + 12] >> 4):
            return  # it only acknowledges
        if from_client:
            self._carried.round_trips += opens or self._server_spoke.get(ports, False)
        self._server_spoke[ports] = not from_client


def main(client: str, server: str) -> None:
    """Forward until standard input ends."""
    ctypes.CDLL(None).prctl(TIMER_SLACK, 1)
    Forwarder(int(client), int(server), sys.stdin.fileno()).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
