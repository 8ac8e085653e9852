"""What a row of the results of this study is."""

from __future__ import annotations

from dataclasses import dataclass

from framehaul.results import store


@dataclass(frozen=True, kw_only=True)
class Result(store.Result):
    """One pass of a technique over one road; a missing number is None, never 0.

    `server_cpu_s` has that of what ends TLS, or pools connections, before the server; `wire_bytes` has the headers of
    IP and TCP, those of large pieces once.
    """

    codec: str
    network: str
    encryption: str
    via: str
    task: str
    """All of it in words."""
    how: str
    """What the network is made of."""
    asked_rtt_ms: float | None = None
    asked_mbit_per_s: float | None = None
    rtt_ms: float | None = None
    """As ping sees it, the median."""
    mbit_per_s: float | None = None
    """As a bulk transfer of one connection sees it."""
    forwarder_cpu_s: float | None = None
    """Of what is in place of a network, and would not be there with one."""
    packets: int | None = None
    dropped: int | None = None
    round_trips: int | None = None
