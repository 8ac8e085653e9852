"""The cost of a pass besides time: CPU of client, servers and other processes, page faults, peak memory."""

import contextlib
import ctypes
import gc
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa

READINGS = 3
RETURN_SECONDS, RETAINED_BYTES = 1.0, 16 << 20
"""Polars' allocator returns freed memory in the background, in about half a second; a pass waits for more than this.
https://jemalloc.net/jemalloc.3.html#opt.dirty_decay_ms"""
POPULATE_READ = 22
"""MADV_POPULATE_READ of the kernel: https://github.com/torvalds/linux/blob/master/include/uapi/asm-generic/mman-common.h"""


@dataclass(frozen=True)
class Usage:
    """CPU seconds and bytes of memory of a pass; None if they were not asked for or are not known.

    - `client_system_s`: the kernel's part of the client's CPU: copying to and from sockets, finding and zeroing memory
    - `minor_faults`: pages of memory that the kernel gave the client on first access
    """

    client_cpu_s: float
    server_cpu_s: float | None
    peak_rss_bytes: int | None
    client_system_s: float | None = None
    minor_faults: int | None = None


@dataclass(frozen=True)
class Moved:
    """The cost of one pass of a technique; `wire_bytes` and peak memory are those of its warm-up, if it had one."""

    seconds: float
    usage: Usage
    dtypes: str | None
    wire_bytes: int | None = None
    latencies_s: tuple[float, ...] = ()


class Meter:
    """The counters of this process and of a server, read before and after a pass."""

    def __init__(self, server_process_id: int | None) -> None:
        self._server: psutil.Process | None = None
        if server_process_id is not None:
            with contextlib.suppress(psutil.Error):  # psutil knows a process from a later one of the same id
                self._server = psutil.Process(server_process_id)
        self._own = psutil.Process()
        self._resting_bytes = self._own.memory_info().rss

    def start(self, *, memory: bool = False, cold: bool = False) -> None:
        """Collect garbage and read all counters.

        `cold` gives free memory back before, so that the pass takes the time of a process that has moved nothing yet.
        `memory` also resets the peak; do not use the time of such a pass.
        """
        gc.collect()
        if memory or cold:
            give_back_memory()
        self._rss_bytes, self._lazy_bytes = None, 0
        if memory:  # reusing freed memory would hide what the pass takes
            deadline = time.monotonic() + RETURN_SECONDS
            while self._own.memory_info().rss > self._resting_bytes + RETAINED_BYTES and time.monotonic() < deadline:
                time.sleep(0.05)
            self._resting_bytes = self._own.memory_info().rss
            self._rss_bytes, self._lazy_bytes = reset_peak_rss(), _own_bytes("smaps_rollup", "LazyFree:") or 0
        self._server_cpu_s = family_cpu_s(self._server)
        self._usage = resource.getrusage(resource.RUSAGE_SELF)
        self._client_cpu_ns = time.process_time_ns()

    def stop(self) -> Usage:
        """Return the usage since `start`."""
        client = (time.process_time_ns() - self._client_cpu_ns) / 1e9
        usage = resource.getrusage(resource.RUSAGE_SELF)
        peak_growth = peak_rss_growth(self._rss_bytes)
        if peak_growth is not None:  # it may have reused pages of MADV_FREE, which are counted until they are taken
            peak_growth += max(0, self._lazy_bytes - (_own_bytes("smaps_rollup", "LazyFree:") or 0))
        before, after = self._server_cpu_s, family_cpu_s(self._server)
        server = None if before is None or after is None else max(0.0, after - before)
        system, faults = usage.ru_stime - self._usage.ru_stime, usage.ru_minflt - self._usage.ru_minflt
        return Usage(client, server, peak_growth, system, faults)


def family_cpu_s(parent: psutil.Process | None) -> float | None:
    """Return the CPU seconds of a process and its descendants, ended ones included; None when the process has ended.

    All is read again when a child begins or ends during the reading, `READINGS` times at most.
    """
    try:
        for _ in range(READINGS):
            if parent is None or not parent.is_running():  # another process may have its id by now
                return None
            children, times, alive = parent.children(recursive=True), parent.cpu_times(), cpu_s(parent)
            for child in children:
                with contextlib.suppress(psutil.Error):
                    alive += cpu_s(child)
            if children == parent.children(recursive=True):
                break
    except psutil.Error:
        return None
    return times.children_user + times.children_system + alive


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU seconds of a process, ended threads included; raise psutil.NoSuchProcess when it has ended.

    Linux has a clock per process, in nanoseconds, with the id of clock_getcpuclockid(3); /proc has ticks of 10 ms.
    https://github.com/torvalds/linux/blob/master/include/linux/posix-timers_types.h
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return time.clock_gettime_ns((~process.pid << 3) | 2) / 1e9  # CPUCLOCK_SCHED: of all threads
    return float(sum(process.cpu_times()[:2]))


def children_cpu_s() -> float:
    """Return the CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def settle() -> None:
    """Exclude all existing objects from garbage collection, until `gc.unfreeze`.

    Traversing the objects of a notebook's kernel takes 0.2 s, before every pass and on the clock of techniques that
    create many objects. https://docs.python.org/3/library/gc.html#gc.freeze
    """
    gc.collect()
    gc.freeze()


def give_back_memory() -> None:
    """Return free memory of Arrow and the C library to the kernel; Polars' allocator does so by itself."""
    pa.default_memory_pool().release_unused()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # not glibc
            ctypes.CDLL("libc.so.6").malloc_trim(0)


def reset_peak_rss() -> int | None:
    """Reset the kernel's high-water mark of memory, by proc(5), and return it; None if that is not possible."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None  # not Linux, or not allowed
    return _own_bytes("status", "VmHWM:")


def peak_rss_growth(before: int | None) -> int | None:
    """Return the growth of the high-water mark since `reset_peak_rss` returned `before`; None if one is unknown."""
    peak = _own_bytes("status", "VmHWM:")
    return None if before is None or peak is None else max(0, peak - before)


def _own_bytes(file: str, name: str) -> int | None:
    """Return a size from a file of /proc/self; None on a system without it."""
    try:
        lines = Path(f"/proc/self/{file}").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)


def map_libraries() -> None:
    """Map every page of this process's libraries, on Linux 5.14 and later.

    A forked process has none of them mapped, and each page it accesses would count as memory that a pass takes.
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
