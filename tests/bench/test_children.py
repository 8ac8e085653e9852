"""Processes that are forked to measure in."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from framehaul.bench.children import ChildError, answer_of, child, context, ended_with_the_block


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    with ended_with_the_block():
        yield


def doubles(requests: Connection) -> None:
    while True:
        requests.send(2 * requests.recv())


def kills_itself(requests: Connection) -> None:
    requests.recv()
    os.kill(os.getpid(), signal.SIGKILL)


def counts_threads(requests: Connection) -> None:
    requests.send((os.getpid(), threading.active_count()))


def test_a_child_answers_until_nobody_asks_any_more() -> None:
    with child(context(), "one", doubles) as one:
        assert [one.ask(number) for number in (1, 2)] == [2, 4]
    assert one._process.exitcode == 0


def test_what_a_child_raises_is_told_for_every_request_that_is_left() -> None:
    with child(context(), "one", doubles) as one:
        for request in (None, 3):
            with pytest.raises(ChildError, match=r"^TypeError: unsupported operand"):
                one.ask(request)


def test_one_that_is_killed_is_named() -> None:
    with child(context(), "a move", kills_itself) as one:
        for _ in range(2):
            with pytest.raises(ChildError, match=r"^the process of a move ended with -9$"):
                one.ask(1)


def test_each_is_a_process_of_its_own_without_threads_of_others() -> None:
    (first, threads), (second, _) = (answer_of(context(), "one", counts_threads) for _ in range(2))
    assert len({first, second, os.getpid()}) == 3
    assert threads == 1
