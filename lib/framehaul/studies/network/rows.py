"""What a row of the results of this study is."""

from __future__ import annotations

from dataclasses import dataclass

from framehaul.results.store import Status


@dataclass(frozen=True, kw_only=True)
class Result:
    """One pass of a technique over one road; a missing number is None, never 0."""

    run_id: str
    database: str
    direction: str
    technique: str
    label: str
    origin: str
    family: str
    driver: str
    frame: str
    connections: int
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
    rows: int
    pass_: int
    seconds: float | None = None
    rows_per_s: float | None = None
    client_cpu_s: float | None = None
    server_cpu_s: float | None = None
    """With that of what ends TLS, or pools connections, before the server."""
    forwarder_cpu_s: float | None = None
    """Of what is in place of a network, and would not be there with one."""
    wire_bytes: int | None = None
    """With the headers of IP and TCP, those of large pieces once."""
    packets: int | None = None
    dropped: int | None = None
    round_trips: int | None = None
    dtypes: str | None = None
    status: Status = "ok"
    reason: str | None = None
