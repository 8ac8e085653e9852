"""A load balancer before ClickHouse that refuses long addresses, which techniques fill with the names of columns."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from framehaul.errors import UnavailableError
from framehaul.harness.measure import Way
from framehaul.harness.meter import Meter
from framehaul.servers import ClickHouseServer
from framehaul.servers.relay import CHUNK_BYTES, Relay

LINE_BYTES = 16 << 10
"""Of the line that a request begins with, at most: what an Application Load Balancer of AWS takes; nginx takes half.

https://docs.aws.amazon.com/elasticloadbalancing/latest/application/load-balancer-limits.html
https://nginx.org/en/docs/http/ngx_http_core_module.html#large_client_header_buffers
"""
REQUEST = re.compile(rb"(GET|POST) /")
PHRASE = "414 Request-URI Too Large"
ANSWER = f"HTTP/1.1 {PHRASE}\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: {{}}\r\n\r\n{PHRASE}\n"
DRAIN_SECONDS = 5
"""How long a client may take to see that it is answered, while it is still sending."""


class Balancer(Relay):
    """Forwards requests over HTTP, but for those with a long address, which it answers itself."""

    def _receive(self, source: socket.socket, buffer: memoryview, *, from_client: bool) -> int:
        count = super()._receive(source, buffer, from_client=from_client)
        # A client waits for its answer before its next request, which so begins what comes then.
        if not from_client or not REQUEST.match(buffer[:count]):
            return count
        while count < LINE_BYTES and b"\n" not in bytes(buffer[:count]):
            if not (more := source.recv_into(buffer[count:])):
                break
            count += more
        if count >= LINE_BYTES and b"\n" not in bytes(buffer[:LINE_BYTES]):
            _refuse(source)
            return 0
        return count


def _refuse(client: socket.socket) -> None:
    """Answer, and take what it is still sending: closing at once would take the answer from it, too."""
    client.sendall(ANSWER.format(len(PHRASE) + 1).encode())
    client.shutdown(socket.SHUT_WR)
    client.settimeout(DRAIN_SECONDS)
    while client.recv(CHUNK_BYTES):
        pass


@contextmanager
def behind_balancer(server: ClickHouseServer) -> Iterator[Way]:
    """The way to the server through a load balancer; raises UnavailableError where none can read the requests."""
    if server.secure:
        raise UnavailableError("the connection is encrypted up to the server: nothing between can read addresses")
    with Balancer((server.host, server.http_port), (server.host, server.native_port)) as balancer:
        there = server.through(*balancer.ports)
        assert isinstance(there, ClickHouseServer)
        yield Way(there, Meter(server.process_id))
