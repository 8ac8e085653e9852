"""What a test has done in a network namespace: that takes a process with one thread, in nobody's way.

`python -m tests.servers.network_trial WHAT` prints what it found as a line of JSON, and waits for its input's end.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from framehaul.errors import UnavailableError
from framehaul.servers import network
from framehaul.servers.forwarder import Carried
from framehaul.servers.network import SERVER, Link, Network

LINKS = (Link("unlimited"), Link("near", 2, 200), Link("far", 20, 50))
BULK_BYTES = 2 << 20


def measured(net: Network, port: int) -> list[dict[str, float]]:
    """RTT and rate of each of the links."""
    found = []
    for link in LINKS:
        net.use(link)
        with net.at_client():
            least = min(network.ping(SERVER, 5)) * 1e3
            rate = network.bulk(SERVER, port, BULK_BYTES) * 8 / 1e6
        found.append({"rtt_ms": least, "mbit_per_s": rate})
    return found


def exchanged(net: Network, port: int) -> list[int]:
    """Round trips, packets and bytes of a connection and three questions; a connection of loopback has none."""
    net.use(LINKS[0])
    before = net.carried()
    with net.at_client():
        network.echo(SERVER, port, 3)
    after = net.carried()
    network.echo("127.0.0.1", port, 3)
    assert net.carried().round_trips == after.round_trips
    return [getattr(after, name) - getattr(before, name) for name in ("round_trips", "packets", "wire_bytes")]


def reached() -> list[str]:
    """Which interfaces there are, and whether a way leads out."""
    names = [name for _, name in socket.if_nameindex()]
    try:
        socket.create_connection(("192.0.2.1", 80), timeout=5)
    except OSError as error:
        names.append(type(error).__name__ + str(error.errno))
    return names


def main(what: str) -> None:
    """Do it, and wait."""
    if what == "as nobody":
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    before = str(Path("/proc/self/ns/net").readlink())
    found: Any
    try:
        network.isolate()
        inside = str(Path("/proc/self/ns/net").readlink())
        with network.opened() as net, network.sink() as port:
            found = {
                "apart": before != inside, "links": measured(net, port), "exchanged": exchanged(net, port),
                "reached": reached(), "forwarder": net.process_id, "carried": vars(net.carried()) == vars(Carried()),
                "congestion": network.congestion_control(), "namespace": inside,
            }  # fmt: skip
            print(json.dumps(found), flush=True)
            sys.stdin.read()
    except (UnavailableError, PermissionError) as error:  # an interpreter in root's home is not for everybody
        user = Path("/proc/self/uid_map").read_text().split()
        print(json.dumps({"unavailable": str(error), "user": user}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
