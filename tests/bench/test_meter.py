"""What a pass costs besides time is seen where it is spent, and nobody else's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from framehaul.bench import meter
from framehaul.bench.meter import Cores, Meter, cores_cpu

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="proc(5) is Linux's")
BURNER = """
import os, sys, time
def answers(requests, answer):
    before = time.process_time()
    for line in requests:
        end = time.process_time() + float(line)
        while time.process_time() < end:
            pass
        now = time.process_time()
        os.write(answer, b"%f\\n" % (now - before))
        before = now
if "child" in sys.argv:
    inner = os.pipe()
    if os.fork() == 0:
        os.close(inner[1])
        answers(os.fdopen(inner[0]), 1)
        os._exit(0)
    os.write(1, b"0\\n")
    for line in sys.stdin:
        os.write(inner[1], line.encode())
else:
    os.write(1, b"0\\n")
    answers(sys.stdin, 1)
"""
"""Burns as much CPU as it is told, itself or in a child, and answers how much it was."""


def burn(seconds: float) -> None:
    start = time.process_time()
    while time.process_time() < start + seconds:
        pass


class Burner:
    def __init__(self, where: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", BURNER, where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self.answer()

    def answer(self) -> float:
        assert self.process.stdout is not None
        return float(self.process.stdout.readline())

    def ask(self, seconds: float) -> float:
        """The CPU seconds that it took by its own clock."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n".encode())
        return self.answer()


@pytest.fixture
def burner(request: pytest.FixtureRequest) -> Iterator[Burner]:
    one = Burner(request.param)
    yield one
    one.process.stdin.close()  # type: ignore[union-attr]
    one.process.stdout.close()  # type: ignore[union-attr]
    one.process.wait()


@LINUX
@pytest.mark.parametrize("burner", ["itself", "child"], indirect=True)
def test_cpu_of_servers_is_seen_to_the_millisecond(burner: Burner) -> None:
    for seconds in (0.003, 0.05, 0.013):
        watch = Meter(burner.process.pid)
        watch.start()
        said = burner.ask(seconds)
        # What it takes to read a line and to answer is seen as well.
        assert said >= seconds
        assert watch.stop().server_cpu_s == pytest.approx(said, abs=0.003)


def test_the_meter_sees_cpu_faults_and_memory_of_this_process() -> None:
    watch = Meter(os.getpid())
    watch.start(memory=True)
    held = bytearray(os.urandom(50_000_000))
    usage = watch.stop()
    assert len(held) == 50_000_000
    assert usage.client_cpu_s > 0
    assert usage.client_system_s is not None
    assert usage.client_system_s <= usage.client_cpu_s + 0.02  # the share is estimated by ticks
    assert usage.minor_faults is not None
    assert usage.minor_faults * os.sysconf("SC_PAGE_SIZE") > 40_000_000 or usage.minor_faults > 20  # of huge pages
    assert usage.server_cpu_s is not None
    assert usage.peak_rss_bytes is None or usage.peak_rss_bytes > 40_000_000


def test_what_was_not_asked_for_or_cannot_be_seen_is_not_known() -> None:
    watch = Meter(None)
    for how in ({}, {"cold": True}):
        watch.start(**how)
        usage = watch.stop()
        assert (usage.peak_rss_bytes, usage.server_cpu_s, usage.other_cpu_s) == (None, None, None)


@pytest.mark.parametrize("burner", ["itself"], indirect=True)
def test_a_server_that_ends_in_the_pass_is_not_known(burner: Burner) -> None:
    watch = Meter(burner.process.pid)
    watch.start()
    burner.process.kill()
    burner.process.wait()
    usage = watch.stop()
    assert usage.server_cpu_s is None
    assert usage.other_cpu_s is None
    for later in (watch, Meter(burner.process.pid)):
        later.start()
        assert later.stop().server_cpu_s is None


@pytest.mark.parametrize("burner", ["itself"], indirect=True)
def test_others_have_what_neither_client_nor_server_had(burner: Burner, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter((Cores(100.0, 1.0), Cores(100.5, 1.0)))
    monkeypatch.setattr(meter, "cores_cpu", lambda: next(counts))
    watch = Meter(burner.process.pid)
    watch.start()
    burn(0.1)
    burner.ask(0.2)
    usage = watch.stop()
    assert usage.server_cpu_s is not None
    assert usage.other_cpu_s == pytest.approx(0.5 - usage.client_cpu_s - usage.server_cpu_s)


STAT = """cpu  900 0 0 0 0 0 0 0 0 0
cpu0 100 20 30 4000 50 60 70 8 0 0
cpu1 1 2 3 4 5 6 7 10 0 0
cpu10 500 0 0 0 0 0 0 0 0 0
intr 5 0 0
"""


@pytest.mark.parametrize(
    ("text", "cores", "expected"),
    [
        (STAT, {0, 1}, Cores(1.74, 0.18)),  # neither idle nor waiting, nor interrupts; user has its guests already
        (STAT, {1}, Cores(0.16, 0.10)),
        ("cpu0 0 0 0 0 0 0 0 0 0 0\n", {0}, None),  # a sandbox that does not count
        ("cpu0 1 2 3 4 5 6\n", {0}, None), ("", {0}, None),
    ],
)  # fmt: skip
def test_what_cores_did_is_read_from_the_kernels_count(
    text: str, cores: set[int], expected: Cores | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores, raising=False)
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    monkeypatch.setattr(meter, "Path", lambda _: SimpleNamespace(read_text=lambda: text))
    assert cores_cpu() == expected
