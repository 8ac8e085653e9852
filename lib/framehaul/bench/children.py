"""Processes of their own, forked from one that has imported what they need: to start one takes milliseconds."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, util
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Any

from framehaul.bench.meter import map_libraries
from framehaul.bench.passes import describe

GRACE_SECONDS = 2
"""How long a child may take to end by itself when nobody asks any more."""

type Work = Callable[..., None]
"""What a child does; its first argument is the connection to who started it."""


class ChildError(RuntimeError):
    """A child ended before its time; the message is what it raised, in one line."""


def context(*imported: str) -> ForkServerContext:
    """Where children come from: a server that has imported these modules, and forks without any thread of ours."""
    wanted = multiprocessing.get_context("forkserver")
    wanted.set_forkserver_preload([__name__, *imported])
    return wanted


@contextmanager
def ended_with_the_block() -> Iterator[None]:
    """The server of children ends with the block, and its directory goes: a notebook's kernel is killed in the end.

    Python does both when it ends by itself, and offers no other way.
    """
    try:
        yield
    finally:
        inner: Any = forkserver, util
        inner[0]._forkserver._stop()
        for one in [*inner[1]._finalizer_registry.values()]:
            if one._callback is inner[1]._remove_temp_dir:
                one()


class Child:
    """A child at work, and the connection to it."""

    def __init__(self, name: str, process: BaseProcess, connection: Connection) -> None:
        self._name, self._process, self._connection = name, process, connection
        self._ended: str | None = None

    def tell(self, request: object) -> None:
        """Send a request, for whose answer nobody waits here."""
        if self._ended is None:
            with suppress(BrokenPipeError):  # what it raised is there to be received
                self._connection.send(request)

    def ask(self, request: object) -> Any:
        """What it answers; raises ChildError."""
        self.tell(request)
        return self.receive()

    @property
    def has_answered(self) -> bool:
        """Whether there is an answer to receive, or it has ended."""
        return self._connection.poll()

    def kill(self) -> None:
        """Kill it: it can tidy up nothing."""
        self._process.kill()
        self._process.join()

    def receive(self) -> Any:
        """What it sends next; raises ChildError, again and again, where it has ended before."""
        if self._ended is None:
            try:
                answer = self._connection.recv()
            except (EOFError, ConnectionResetError):
                self._process.join()
                answer = ChildError(f"the process of {self._name} ended with {self._process.exitcode}")
            if not isinstance(answer, ChildError):
                return answer
            self._ended = str(answer)
        raise ChildError(self._ended)


@contextmanager
def child(where: ForkServerContext, name: str, work: Work, *arguments: object) -> Iterator[Child]:
    """A child that works for as long as the block lasts."""
    ours, theirs = where.Pipe()
    process = where.Process(target=_told, args=(work, theirs, *arguments))
    process.start()
    theirs.close()
    try:
        yield Child(name, process, ours)
    finally:
        ours.close()  # which ends one that waits to be asked
        process.join(GRACE_SECONDS)
        process.kill()
        process.join()


def answer_of(where: ForkServerContext, name: str, work: Work, *arguments: object) -> Any:
    """What a child sends that is started for it alone; raises ChildError."""
    with child(where, name, work, *arguments) as one:
        return one.receive()


def _told(work: Work, connection: Connection, *arguments: object) -> None:
    """Work, and send what it raises in place of an answer."""
    map_libraries()
    try:
        work(connection, *arguments)
    except EOFError:  # nobody asks any more
        return
    except Exception as error:  # noqa: BLE001  raised again by who receives it
        connection.send(ChildError(describe(error)))
