"""What a pass costs besides time is seen where it is spent, and nobody else's."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from framehaul.bench.meter import Meter

BURNER = """
import sys, time
print(0, flush=True)
before = time.process_time()
for line in sys.stdin:
    end = time.process_time() + float(line)
    while time.process_time() < end:
        pass
    now = time.process_time()
    print(now - before, flush=True)
    before = now
"""
"""Uses as many CPU seconds as asked for, and answers how many it used."""
COMMAND = [sys.executable, "-c", BURNER]


class Burner:
    def __init__(self, *wrapper: str) -> None:
        self.process = subprocess.Popen([*wrapper, *COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.answer()

    def answer(self) -> float:
        assert self.process.stdout is not None
        return float(self.process.stdout.readline())

    def ask(self, seconds: float) -> float:
        """The CPU seconds that it took by its own clock."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n".encode())
        return self.answer()


@pytest.fixture(params=[()])
def burner(request: pytest.FixtureRequest) -> Iterator[Burner]:
    one = Burner(*request.param)
    with one.process:  # it ends when its input is closed
        yield one


@pytest.mark.skipif(sys.platform != "linux", reason="proc(5) is Linux's")
@pytest.mark.parametrize("burner", [(), ("sh", "-c", '"$0" "$@"; exit $?')], ids=["itself", "child"], indirect=True)
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
    assert (usage.client_system_s or 0) <= usage.client_cpu_s + 0.02  # the share is estimated by ticks
    assert (usage.minor_faults or 0) > 20  # of huge pages
    assert usage.server_cpu_s is not None
    assert usage.peak_rss_bytes is None or usage.peak_rss_bytes > 40_000_000


def test_what_was_not_asked_for_or_cannot_be_seen_is_not_known(burner: Burner) -> None:
    ending = Meter(burner.process.pid)
    ending.start()
    burner.process.kill()
    burner.process.wait()
    usages = [ending.stop()]
    for watch in (ending, Meter(burner.process.pid), Meter(None)):
        watch.start(cold=True)
        usages.append(watch.stop())
    assert {(one.peak_rss_bytes, one.server_cpu_s) for one in usages} == {(None, None)}
