"""Clients in processes of their own: one that reads while another works, and one that can be killed."""

from __future__ import annotations

import collections
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.synchronize import Event
from statistics import median

import polars as pl

from framehaul.bench.children import context
from framehaul.data.schema import Table
from framehaul.errors import ServerError
from framehaul.servers import Server
from framehaul.studies.upsert.passes import BOTH
from framehaul.studies.upsert.places import Read, opened, place_of
from framehaul.techniques.registry import Database, named

LOOKS = 3
"""How often a query over the whole table is made to know how long it takes."""
POLL_SECONDS = 0.05


def processes() -> ForkServerContext:
    """Where processes come from."""
    return context(__name__, *(f"framehaul.techniques.upsert.{one}_write" for one in BOTH))


def alone() -> bool:
    """Whether the process that wanted this one is gone."""
    parent = multiprocessing.parent_process()
    return parent is None or not parent.is_alive()


def writes(
    database: Database, name: str, server: Server, table: Table, come: pl.DataFrame, ready: Event, go: Event
) -> None:
    """A client that says when it is connected, and begins its upsert when it is told to."""
    technique = named(database, "write", name)
    with opened(technique, server) as client:
        ready.set()
        while not go.wait(1):
            if alone():
                return
        technique.function(client, table, come)


@dataclass
class Looks:
    """What a reader found."""

    before_s: float
    """A read, before anybody else works."""
    longest_s: float = 0.0
    found: collections.Counter[tuple[int, int]] = field(default_factory=collections.Counter)
    """How often it counted so many rows, and such a sum of their marks."""


def read_seconds(read: Read) -> float:
    """What a read takes when nobody else works."""
    ends = [time.perf_counter()]
    for _ in range(LOOKS):
        read()
        ends.append(time.perf_counter())
    return median(end - begin for begin, end in pairwise(ends))


def reads(server: Server, table: Table, results: Connection, ended: Event, *, final: bool) -> None:
    """A client that reads again and again until it is `ended`; sends nothing when it begins, `Looks` in the end."""
    with place_of(server).reader(table, final=final) as read:
        looks = Looks(read_seconds(read))
        results.send(None)
        while not ended.is_set() and not alone():
            begin = time.perf_counter()
            looks.found[read()] += 1
            looks.longest_s = max(looks.longest_s, time.perf_counter() - begin)
    results.send(looks)


@contextmanager
def reading(server: Server, table: Table, *, final: bool) -> Iterator[list[Looks]]:
    """Somebody else reads while the block lasts; what they found is in the list afterwards. Raises ServerError."""
    context = processes()
    ours, theirs = context.Pipe()
    ended = context.Event()
    process = context.Process(target=reads, args=(server, table, theirs, ended), kwargs={"final": final})
    process.start()
    theirs.close()
    found: list[Looks] = []
    try:
        try:
            ours.recv()
            yield found
            ended.set()
            found.append(ours.recv())
        except EOFError:
            raise ServerError("the process of a reader ended before its time: its error is above") from None
    finally:
        process.kill()
        process.join()
        ours.close()
