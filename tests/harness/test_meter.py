"""What a pass costs besides time is seen where it is spent, and nobody else's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from framehaul.harness import meter
from framehaul.harness.meter import Cores, Meter, cores_cpu, family_cpu_s

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="proc(5) is Linux's")
BURN = """
import sys, time
def burn(seconds):
    start = time.process_time()
    while time.process_time() < start + seconds:
        pass
    return time.process_time()
"""


def burn(seconds: float) -> None:
    start = time.process_time()
    while time.process_time() < start + seconds:
        pass


class Burner:
    """A process, with a child where it `forks`, that burns so much CPU when it is told, and says how much it was."""

    def __init__(self, code: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", BURN + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self.answer()

    def answer(self) -> float:
        assert self.process.stdout is not None
        return float(self.process.stdout.readline())

    def ask(self, seconds: float) -> float:
        """The CPU seconds that it took by its own clock, and by its child's."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n".encode())
        return self.answer()


ITSELF = """
before = time.process_time()
print(0, flush=True)
for line in sys.stdin:
    after = burn(float(line))
    print(after - before, flush=True)
    before = after
"""
THREAD = """
import threading
before = time.process_time()
print(0, flush=True)
for line in sys.stdin:
    thread = threading.Thread(target=burn, args=(float(line),))
    thread.start()
    thread.join()
    after = time.process_time()
    print(after - before, flush=True)
    before = after
"""
CHILD = """
import os
inner, outer = os.pipe(), os.pipe()
if os.fork() == 0:
    before = time.process_time()
    os.close(inner[1])
    for line in os.fdopen(inner[0]):
        after = burn(float(line))
        os.write(outer[1], b"%f\\n" % (after - before))
        before = after
    os._exit(0)
print(0, flush=True)
answers = os.fdopen(outer[0])
for line in sys.stdin:
    os.write(inner[1], line.encode())
    print(answers.readline().strip(), flush=True)
"""
ENDING_CHILD = """
import os
print(0, flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        burn(float(line))
        os._exit(0)
    used = os.wait4(child, 0)[2]
    print(used.ru_utime + used.ru_stime, flush=True)
"""


@pytest.fixture
def burner(request: pytest.FixtureRequest) -> Iterator[Burner]:
    one = Burner(request.param)
    yield one
    one.process.stdin.close()  # type: ignore[union-attr]
    one.process.stdout.close()  # type: ignore[union-attr]
    one.process.wait()


def used_by(server: Burner, seconds: float) -> tuple[float, float]:
    """CPU of a server as the meter sees it, and as it says itself."""
    watch = Meter(server.process.pid)
    watch.start()
    said = server.ask(seconds)
    seen = watch.stop().server_cpu_s
    assert seen is not None
    return seen, said


@LINUX
@pytest.mark.parametrize("burner", [ITSELF, THREAD, CHILD], ids=["process", "ended thread", "child"], indirect=True)
def test_cpu_of_servers_is_seen_to_the_millisecond(burner: Burner) -> None:
    for seconds in (0.003, 0.05, 0.013):
        seen, said = used_by(burner, seconds)
        # What it takes to read a line and to answer is seen as well.
        assert said >= seconds
        assert seen == pytest.approx(said, abs=0.003)


@LINUX
@pytest.mark.parametrize("burner", [ENDING_CHILD], ids=["ended child"], indirect=True)
def test_cpu_of_children_that_ended_is_seen_in_ticks(burner: Burner) -> None:
    seen, said = used_by(burner, 0.1)
    assert seen == pytest.approx(said, abs=0.025)


@pytest.mark.parametrize("burner", [ITSELF], indirect=True)
def test_where_there_is_no_clock_of_a_process_ticks_are_read(burner: Burner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "elsewhere")
    seen, said = used_by(burner, 0.2)
    assert seen == pytest.approx(said, abs=0.04)


@LINUX
def test_a_clock_that_the_kernel_refuses_is_replaced_by_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: int) -> int:
        raise OSError(22, "Invalid argument")

    burn(0.05)
    exact = meter.cpu_s(psutil.Process())
    clock = SimpleNamespace(clock_gettime_ns=refused)
    monkeypatch.setattr(meter, "time", clock)
    assert meter.cpu_s(psutil.Process()) == pytest.approx(exact, abs=0.1)


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


@pytest.mark.parametrize(
    ("sizes", "waits"),
    [
        ([100, 110, 110], 0),  # nothing much is held
        ([100, 200, 180, 110, 108], 2),
        ([100, *[500] * 99], 20),  # it never comes back: it is in use
    ],
)
def test_memory_that_is_given_back_late_is_waited_for(
    sizes: list[int], waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, slept = iter(sizes), list[float]()
    monkeypatch.setattr(meter, "_rss_bytes", lambda: next(left) << 20)
    clock = SimpleNamespace(
        sleep=slept.append, monotonic=lambda: sum(slept), process_time_ns=time.process_time_ns,
        clock_gettime_ns=getattr(time, "clock_gettime_ns", None),
    )  # fmt: skip
    monkeypatch.setattr(meter, "time", clock)
    watch = Meter(None)
    watch.start(memory=True)
    assert len(slept) == pytest.approx(waits, abs=1 if waits > 5 else 0)
    slept.clear()
    watch.start()
    watch.start(cold=True)
    assert not slept


def test_pages_that_were_free_and_still_counted_are_part_of_what_a_pass_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    grown, lazy = iter([7_000, 7_000, None]), iter([5_000, 2_000, 5_000, 9_000, 5_000, 0])
    monkeypatch.setattr(meter, "peak_rss_growth", lambda _: next(grown))
    monkeypatch.setattr(meter, "lazily_freed_bytes", lambda: next(lazy))
    watch = Meter(None)
    for expected in (10_000, 7_000, None):
        watch.start(memory=True)
        assert watch.stop().peak_rss_bytes == expected


def test_memory_that_nobody_asked_for_is_not_said() -> None:
    watch = Meter(None)
    watch.start()
    assert watch.stop().peak_rss_bytes is None
    watch.start(cold=True)
    assert watch.stop().peak_rss_bytes is None


def test_the_meter_says_nothing_of_a_server_it_cannot_see() -> None:
    for servers in ((), (None,), (None, None)):
        watch = Meter(*servers)
        watch.start()
        usage = watch.stop()
        assert usage.server_cpu_s is None
        assert usage.other_cpu_s is None


def test_of_several_servers_those_that_can_be_seen_count_and_others_are_not_told_from_the_rest() -> None:
    watch = Meter(os.getpid(), None)
    watch.start()
    burn(0.02)
    usage = watch.stop()
    assert usage.server_cpu_s is not None
    assert usage.server_cpu_s >= 0.02
    assert usage.other_cpu_s is None


@pytest.mark.parametrize("burner", [ITSELF], indirect=True)
def test_a_server_that_ends_in_the_pass_is_not_known(burner: Burner) -> None:
    watch = Meter(burner.process.pid)
    watch.start()
    burner.process.kill()
    burner.process.wait()
    usage = watch.stop()
    assert usage.server_cpu_s is None
    assert usage.other_cpu_s is None
    watch.start()
    assert watch.stop().server_cpu_s is None
    again = Meter(burner.process.pid)
    again.start()
    assert again.stop().server_cpu_s is None


@pytest.mark.parametrize("burner", [ITSELF], indirect=True)
def test_another_process_of_the_same_number_is_not_taken_for_the_server(
    burner: Burner, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Meter(burner.process.pid)
    watch.start()
    # As psutil sees it: a process is its number and when it began.
    began = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "_get_ident", lambda self: (self.pid, began(self) + 1))
    assert watch.stop().server_cpu_s is None


@pytest.mark.parametrize("burner", [ENDING_CHILD], indirect=True)
def test_a_child_that_ends_while_it_is_looked_at_counts_once(burner: Burner, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the list, and has no clock any more: it is counted with its parent, when that is read again."""
    listed = iter([[ended_process().pid], []])
    monkeypatch.setattr(meter, "_descendants", lambda _: next(listed))
    assert family_cpu_s(psutil.Process(burner.process.pid)) is not None
    assert next(listed, None) is None


def test_children_that_end_all_the_time_do_not_keep_the_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "_descendants", lambda _: [ended_process().pid])
    assert family_cpu_s(psutil.Process()) is not None


NESTED = """
import subprocess, sys
inner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(inner.pid, flush=True)
input()
inner.stdin.close()
inner.wait()
"""


@pytest.mark.parametrize("lists", ["of the kernel", "of psutil"])
def test_all_descendants_are_found_whatever_thread_has_started_them(
    lists: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lists == "of psutil":

        def no_such_file(process_id: int) -> list[int]:
            raise FileNotFoundError(process_id)

        monkeypatch.setattr(meter, "_listed", no_such_file)
    before = meter._descendants(psutil.Process())
    with ThreadPoolExecutor(1) as pool:  # as a kernel runs its cells

        def started() -> subprocess.Popen[str]:
            return subprocess.Popen(
                [sys.executable, "-c", NESTED], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )

        with pool.submit(started).result() as child:
            assert child.stdout is not None
            assert child.stdin is not None
            inner = int(child.stdout.readline())
            assert {*meter._descendants(psutil.Process())} - {*before} == {child.pid, inner}
            child.stdin.write("\n")
    assert not {child.pid, inner} & {*meter._descendants(psutil.Process())}


def ended_process() -> psutil.Process:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        return psutil.Process(process.pid)


def counting(monkeypatch: pytest.MonkeyPatch, *counts: Cores | None) -> None:
    left = iter(counts)
    monkeypatch.setattr(meter, "cores_cpu", lambda: next(left))


@pytest.mark.parametrize("burner", [ITSELF], indirect=True)
def test_others_have_what_neither_client_nor_server_had(burner: Burner, monkeypatch: pytest.MonkeyPatch) -> None:
    counting(monkeypatch, Cores(100.0, 1.0), Cores(100.5, 1.0))
    watch = Meter(burner.process.pid)
    watch.start()
    burn(0.1)
    burner.ask(0.2)
    usage = watch.stop()
    assert usage.server_cpu_s is not None
    assert usage.other_cpu_s == pytest.approx(0.5 - usage.client_cpu_s - usage.server_cpu_s)


@pytest.mark.parametrize(
    ("before", "after", "other"),
    [
        (Cores(100.0, 0.0), Cores(100.0, 0.0), 0.0),  # ticks that have not come yet
        (Cores(100.0, 0.0), Cores(90.0, 0.0), 0.0),  # a core was taken offline
        (None, Cores(1.0, 0.0), None), (Cores(1.0, 0.0), None, None), (None, None, None),
    ],
)  # fmt: skip
def test_others_never_have_less_than_nothing_or_what_nobody_knows(
    before: Cores | None, after: Cores | None, other: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting(monkeypatch, before, after)
    watch = Meter(os.getpid())
    watch.start()
    burn(0.01)
    assert watch.stop().other_cpu_s == other


@LINUX
@pytest.mark.parametrize("burner", [ITSELF], indirect=True)
def test_a_process_that_is_neither_is_among_the_others(burner: Burner) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as server:
        watch = Meter(server.pid)
        watch.start()
        said = burner.ask(0.3)
        other = watch.stop().other_cpu_s
    assert other is not None
    assert other >= said - 0.04


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
        (STAT, {5}, None),
        ("cpu0 0 0 0 0 0 0 0 0 0 0\n", {0}, None),  # a sandbox that does not count
        ("cpu0 1 2 3 4 5 6\n", {0}, None), ("cpu0 a b c d\n", {0}, None), ("", {0}, None),
    ],
)  # fmt: skip
def test_what_cores_did_is_read_from_the_kernels_count(
    text: str, cores: set[int], expected: Cores | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores, raising=False)
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    monkeypatch.setattr(meter, "Path", lambda _: SimpleNamespace(read_text=lambda: text))
    assert cores_cpu() == expected


def raising(error: Exception) -> Callable[..., Any]:
    def read(*_: object) -> Any:
        raise error

    return read


def test_where_proc_cannot_be_read_nothing_is_said_of_others_and_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (FileNotFoundError(), PermissionError()):
        monkeypatch.setattr(Path, "read_text", raising(error))
        monkeypatch.setattr(Path, "write_text", raising(error))
        watch = Meter(os.getpid())
        watch.start(memory=True)
        usage = watch.stop()
        assert (usage.peak_rss_bytes, usage.other_cpu_s) == (None, None)
        assert usage.client_cpu_s > 0


@pytest.mark.parametrize("error", [psutil.AccessDenied(), psutil.NoSuchProcess(1), psutil.ZombieProcess(1)])
def test_a_server_that_may_not_be_looked_at_is_not_known(error: psutil.Error, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil.Process, "cpu_times", raising(error))
    watch = Meter(os.getpid())
    watch.start()
    usage = watch.stop()
    assert (usage.server_cpu_s, usage.other_cpu_s) == (None, None)
