"""Child processes, forked from one that has imported their modules: starting one takes milliseconds."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, util
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Any

from framehaul.bench.meter import map_libraries
from framehaul.bench.rounds import describe


class ChildError(RuntimeError):
    """An error: a child ended early. The message is the child's error, in one line."""


def context(*imported: str) -> ForkServerContext:
    """Return a context whose children have imported these modules; they inherit none of this process's threads."""
    wanted = multiprocessing.get_context("forkserver")
    wanted.set_forkserver_preload([__name__, *imported])
    return wanted


@contextmanager
def ended_with_the_block() -> Iterator[None]:
    """End the fork server, and remove its directory, at the end of the block.

    Python does that when it exits, but a notebook's kernel is killed. There is no public function for it.
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
    """A running child process and the connection to it."""

    def __init__(self, name: str, process: BaseProcess, connection: Connection) -> None:
        self._name, self.process, self.connection = name, process, connection
        self._error: str | None = None

    def tell(self, request: object) -> None:
        """Send a request without waiting for an answer."""
        with suppress(OSError):  # `receive` raises the child's error
            self.connection.send(request)

    def ask(self, request: object) -> Any:
        """Send a request and return the answer; raise ChildError."""
        self.tell(request)
        return self.receive()

    def receive(self) -> Any:
        """Return the next answer; raise ChildError, every time, when the child has ended early."""
        if self._error is None:
            try:
                answer = self.connection.recv()
            except (EOFError, ConnectionResetError):
                self.process.join()
                answer = ChildError(f"the process of {self._name} ended with {self.process.exitcode}")
            if not isinstance(answer, ChildError):
                return answer
            self._error = str(answer)
        raise ChildError(self._error)


@contextmanager
def child(where: ForkServerContext, name: str, work: Callable[..., None], *arguments: object) -> Iterator[Child]:
    """Run `work(connection, *arguments)` in a child, and end it at the end of the block."""
    ours, theirs = where.Pipe()
    process = where.Process(target=_work, args=(work, theirs, *arguments))
    process.start()
    theirs.close()
    try:
        yield Child(name, process, ours)
    finally:
        ours.close()  # a child that waits for a request ends
        process.join(10)  # seconds to drop its tables after its connection is closed
        process.kill()
        process.join()


def _work(work: Callable[..., None], connection: Connection, *arguments: object) -> None:
    """Call `work` and send its error, if any, as an answer."""
    map_libraries()
    try:
        work(connection, *arguments)
    except EOFError:  # the parent has closed the connection
        return
    except Exception as error:  # noqa: BLE001  `receive` raises it
        with suppress(OSError):  # the parent has closed the connection
            connection.send(ChildError(describe(error)))
