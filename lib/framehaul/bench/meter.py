"""What a pass costs besides time: CPU of client, servers and everybody else, page faults, peak memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa

READINGS = 3
"""How often a server's processes are looked at where some of them end meanwhile."""
RETURN_SECONDS = 1.0
RETAINED_BYTES = 16 << 20
"""Polars' allocator returns what was freed within half a second or so, in the background; more than this is waited for.
https://jemalloc.net/jemalloc.3.html#opt.dirty_decay_ms"""
POPULATE_READ = 22
"""MADV_POPULATE_READ of the kernel: https://github.com/torvalds/linux/blob/master/include/uapi/asm-generic/mman-common.h"""
PROCESS_CLOCK = 2
"""CPUCLOCK_SCHED: what the scheduler has counted, of all threads, in nanoseconds."""


@dataclass(frozen=True)
class Usage:
    """What a pass took, in CPU seconds and bytes of memory; None where this system cannot tell, or nobody asked."""

    client_cpu_s: float
    server_cpu_s: float | None
    peak_rss_bytes: int | None
    client_system_s: float | None = None
    """Of the client's CPU, what the kernel took: copying to and from sockets, finding and zeroing memory."""
    minor_faults: int | None = None
    """How often the client touched a page of memory that the kernel had yet to give it."""
    other_cpu_s: float | None = None
    """CPU that was neither the client's nor its servers', with what the host of a virtual machine kept for itself."""


@dataclass(frozen=True)
class Cores:
    """CPU seconds of the cores that this process may use, since the machine started; they come in ticks of 10 ms."""

    busy_s: float
    """Of user code and of the kernel, `stolen_s` included, but for interrupts: those are of the packets of a pass."""
    stolen_s: float
    """In which a virtual machine wanted to run and its host let others run."""


@dataclass(frozen=True)
class Moved:
    """What one pass of a technique took; `wire_bytes` and peak memory are those of its warm-up, if it had one."""

    seconds: float
    usage: Usage
    dtypes: str | None
    wire_bytes: int | None = None
    profile_events: str | None = None
    latencies_s: tuple[float, ...] = ()
    """Of each of its calls."""


class Meter:
    """Reads the counters before and after a pass, in this process and in those of servers."""

    def __init__(self, *server_process_ids: int | None) -> None:
        self._servers = [_process(one) for one in server_process_ids]
        self._resting_bytes = _rss_bytes()

    def start(self, *, memory: bool = False, cold: bool = False) -> None:
        """Collect garbage and read all counters.

        `memory` gives free memory back and resets the peak before: such a pass pays for memory that it would find free
        in a process that has moved something already, so its time says nothing. `cold` only gives free memory back,
        for a pass whose time is to be that of a process which has moved nothing yet.
        """
        gc.collect()
        if memory or cold:
            give_back_memory()
        if memory:
            self._wait_for_memory()
        self._rss_bytes, self._lazy_bytes = (reset_peak_rss(), lazily_freed_bytes()) if memory else (None, 0)
        self._servers_cpu_s = self._servers_cpu()
        self._cores = cores_cpu()
        self._usage = resource.getrusage(resource.RUSAGE_SELF)
        self._client_cpu_ns = time.process_time_ns()

    def stop(self) -> Usage:
        """What was used since `start`."""
        client = (time.process_time_ns() - self._client_cpu_ns) / 1e9
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cores = cores_cpu()
        peak_growth = peak_rss_growth(self._rss_bytes)
        if peak_growth is not None and self._lazy_bytes:  # it may have taken pages that were free, and counted anyhow
            peak_growth += max(0, self._lazy_bytes - lazily_freed_bytes())
        servers = [
            max(0.0, after - before)
            for before, after in zip(self._servers_cpu_s, self._servers_cpu(), strict=True)
            if before is not None and after is not None
        ]
        other = None
        if cores and self._cores and servers and len(servers) == len(self._servers):
            other = max(0.0, cores.busy_s - self._cores.busy_s - client - sum(servers))
        return Usage(
            client_cpu_s=client, server_cpu_s=sum(servers) if servers else None, peak_rss_bytes=peak_growth,
            client_system_s=usage.ru_stime - self._usage.ru_stime,
            minor_faults=usage.ru_minflt - self._usage.ru_minflt, other_cpu_s=other,
        )  # fmt: skip

    def _wait_for_memory(self) -> None:
        """What an earlier pass has freed and the process still holds would hide what the next one takes."""
        deadline = time.monotonic() + RETURN_SECONDS
        while _rss_bytes() > self._resting_bytes + RETAINED_BYTES and time.monotonic() < deadline:
            time.sleep(0.05)
        self._resting_bytes = _rss_bytes()

    def _servers_cpu(self) -> list[float | None]:
        return [None if server is None else family_cpu_s(server) for server in self._servers]


def family_cpu_s(parent: psutil.Process) -> float | None:
    """CPU seconds of a process and its children, those included that have ended; None where it is gone."""
    for _ in range(READINGS):
        try:
            if not parent.is_running():  # or its number is another process's by now
                return None
            # What ends after the list was made has no clock any more: then all is read again.
            children, times = _descendants(parent), parent.cpu_times()
            known = [times.children_user + times.children_system, cpu_s(parent)]
        except psutil.Error:
            return None
        alive = []
        for child in children:
            with contextlib.suppress(psutil.Error):
                alive.append(cpu_s(psutil.Process(child)))
        if len(alive) == len(children):
            break
    return sum(known) + sum(alive)


def _descendants(parent: psutil.Process) -> list[int]:
    """The numbers of all that a process has started and of what those have; raises psutil.NoSuchProcess without it.

    The kernel's own lists, where it keeps them, are read until two readings agree, a few times at most: in one a child
    may be missing while another ends. psutil looks at every process of the machine, before and after each pass.
    https://man7.org/linux/man-pages/man5/proc_pid_task_tid_children.5.html
    """
    try:
        found = _listed(parent.pid)
        for _ in range(READINGS):
            before, found = found, _listed(parent.pid)
            if found == before:
                break
    except OSError:  # not Linux, a kernel without these lists, or a process that has ended
        return [one.pid for one in parent.children(recursive=True)]
    return found


def _listed(process_id: int) -> list[int]:
    found = []
    for thread in Path(f"/proc/{process_id}/task").iterdir():
        for child in (thread / "children").read_text().split():
            found += [int(child), *_listed(int(child))]
    return found


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds of a process, of the threads too that it no longer has; raises psutil.NoSuchProcess when it is gone.

    Linux has a clock of it, in nanoseconds, as clock_getcpuclockid(3) gives its number; /proc has ticks of 10 ms.
    https://github.com/torvalds/linux/blob/master/include/linux/posix-timers_types.h
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return time.clock_gettime_ns((~process.pid << 3) | PROCESS_CLOCK) / 1e9
    times = process.cpu_times()
    return float(times.user + times.system)


def children_cpu_s() -> float:
    """Return the CPU seconds of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cores_cpu() -> Cores | None:
    """What the cores that this process may use have done so far, by proc_stat(5); None where there is no such count.

    Interrupts are left out: on loopback they are the packets of client and server. Where the kernel does not count
    them apart, they are in the clocks of whom they interrupted.
    """
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        ours = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        per_second = os.sysconf("SC_CLK_TCK")
        counts = [[int(word) for word in line.split()[1:9]] for line in lines if line.partition(" ")[0] in ours]
        stolen = sum(count[7] for count in counts)
        busy = sum(user + nice + system for user, nice, system, *_ in counts) + stolen
    except (OSError, AttributeError, ValueError, IndexError):  # not Linux, or a container that shows something else
        return None
    return Cores(busy / per_second, stolen / per_second) if busy else None


def settle() -> None:
    """Take all objects that there are out of the garbage collector's sight, until `gc.unfreeze`.

    Walking what a kernel and its libraries hold takes 0.2 s: before every pass, and again on the clock of techniques
    that make many objects. https://docs.python.org/3/library/gc.html#gc.freeze
    """
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """`settle`, until the end of the block, or of the one around it."""
    within = gc.get_freeze_count() > 0
    settle()
    try:
        yield
    finally:
        if not within:
            gc.unfreeze()


def give_back_memory() -> None:
    """Return what Arrow and the C library hold for later to the kernel; Polars' own allocator does so by itself."""
    pa.default_memory_pool().release_unused()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # not glibc: nothing to trim
            ctypes.CDLL("libc.so.6").malloc_trim(0)


def reset_peak_rss() -> int | None:
    """Set the kernel's high-water mark to the present size and return it, in bytes; see clear_refs in proc(5).

    None where this system cannot tell: the column stays empty.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None  # not Linux, or not allowed
    return peak_rss_bytes()


def peak_rss_growth(before: int | None) -> int | None:
    """By how many bytes the high-water mark is above what `reset_peak_rss` gave; None where one is not known."""
    if before is None or (peak := peak_rss_bytes()) is None:
        return None
    return max(0, peak - before)


def peak_rss_bytes() -> int | None:
    """The high-water mark since the last reset."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), None)
    return None if line is None else int(line.split()[1]) * 1024


def map_libraries() -> None:
    """Map every page of the libraries that this process has, as far as the kernel lets it (Linux 5.14 and later).

    A process that was forked has none of them mapped, and each that it touches would count as memory it takes.
    https://man7.org/linux/man-pages/man2/madvise.2.html
    """
    if sys.platform != "linux":
        return
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, allowed, _, _, _, *name = line.split(maxsplit=5)
        if name and name[0].startswith("/") and allowed.startswith("r"):
            start, end = (int(one, 16) for one in place.split("-"))
            advise(start, end - start, POPULATE_READ)


def lazily_freed_bytes() -> int:
    """How much of this process's memory the kernel may take and still counts, by MADV_FREE of madvise(2)."""
    try:
        rollup = Path("/proc/self/smaps_rollup").read_text()
    except OSError:
        return 0  # not Linux, or one from before 4.14
    return sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("LazyFree:"))


def _rss_bytes() -> int:
    try:
        return int(psutil.Process().memory_info().rss)
    except psutil.Error:
        return 0


def _process(process_id: int | None) -> psutil.Process | None:
    """The process as it is now: another that gets its number later is not taken for it."""
    if process_id is None:
        return None
    try:
        return psutil.Process(process_id)
    except psutil.Error:
        return None
