"""Processes that are forked to measure in."""

import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from framehaul.bench.children import ChildError, child, context, ended_with_the_block


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    with ended_with_the_block():
        yield


def doubles(requests: Connection) -> None:
    requests.send((os.getpid(), threading.active_count()))
    while True:
        requests.send(2 * requests.recv())


def kills_itself(requests: Connection) -> None:
    requests.send(None)
    requests.recv()
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_child_answers_until_nobody_asks_and_says_what_it_raised_for_every_request_that_is_left() -> None:
    with child(context(), "one", doubles) as one:
        first, threads = one.receive()
        assert [one.ask(number) for number in (1, 2)] == [2, 4]
    assert one.process.exitcode == 0
    assert threads == 1
    with child(context(), "another", doubles) as another:
        assert len({first, another.receive()[0], os.getpid()}) == 3
    errors = {doubles: "^TypeError: unsupported operand", kills_itself: "^the process of one ended with -9$"}
    for how, said in errors.items():
        with child(context(), "one", how) as one:
            one.receive()
            for request in (None, 3):
                with pytest.raises(ChildError, match=said):
                    one.ask(request)
