"""What a pass costs besides time: CPU of client and server, peak memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa


@dataclass(frozen=True)
class Usage:
    """CPU seconds and bytes of memory that a pass took; None where this system cannot tell."""

    client_cpu_s: float
    server_cpu_s: float | None
    peak_rss_bytes: int | None


def server_cpu_s(usages: Iterable[Usage]) -> float | None:
    """CPU seconds of several servers together; None where none of them can be seen."""
    known = [usage.server_cpu_s for usage in usages if usage.server_cpu_s is not None]
    return sum(known) if known else None


class Meter:
    """Reads the counters before and after a pass, in this process and in the server's processes."""

    def __init__(self, server_process_id: int | None) -> None:
        self._server_process_id = server_process_id

    def start(self) -> None:
        """Give free memory back, reset the peak and read all counters."""
        gc.collect()
        pa.default_memory_pool().release_unused()
        _trim_heap()
        self._server_cpu = self._server_cpu_s()
        self._rss_bytes = reset_peak_rss()
        self._client_cpu = _client_cpu_s()

    def stop(self) -> Usage:
        """What was used since `start`."""
        client = _client_cpu_s() - self._client_cpu
        peak_growth = peak_rss_growth(self._rss_bytes)
        server = self._server_cpu_s()
        return Usage(
            client_cpu_s=client,
            server_cpu_s=server - self._server_cpu if server is not None and self._server_cpu is not None else None,
            peak_rss_bytes=peak_growth,
        )

    def _server_cpu_s(self) -> float | None:
        """CPU of the server and its children, those included that have ended."""
        if self._server_process_id is None:
            return None
        try:
            parent = psutil.Process(self._server_process_id)
            times = parent.cpu_times()
            total = times.user + times.system + times.children_user + times.children_system
            for child in parent.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):  # ended just now: counted with its parent next time
                    times = child.cpu_times()
                    total += times.user + times.system
        except psutil.NoSuchProcess:
            return None
        return float(total)


def settle() -> None:
    """Take all objects that there are out of the garbage collector's sight, until `gc.unfreeze`.

    Walking what a kernel and its libraries hold takes 0.2 s: before every pass, and again on the clock of techniques
    that make many objects. https://docs.python.org/3/library/gc.html#gc.freeze
    """
    gc.collect()
    gc.freeze()


def _client_cpu_s() -> float:
    times = os.times()
    return times.user + times.system


def _trim_heap() -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # not glibc: nothing to trim
            ctypes.CDLL("libc.so.6").malloc_trim(0)


def reset_peak_rss(process_id: int | None = None) -> int | None:
    """Set the kernel's high-water mark to the present size and return it, in bytes; see clear_refs in proc(5).

    Of this process, or of another of ours. None where this system cannot tell: the column stays empty.
    """
    try:
        Path(f"/proc/{process_id or 'self'}/clear_refs").write_text("5")
    except OSError:
        return None  # not Linux, or not allowed
    return peak_rss_bytes(process_id)


def peak_rss_growth(before: int | None, process_id: int | None = None) -> int | None:
    """By how many bytes the high-water mark is above what `reset_peak_rss` gave; None where one is not known."""
    peak = peak_rss_bytes(process_id)
    return None if before is None or peak is None else max(0, peak - before)


def peak_rss_bytes(process_id: int | None = None) -> int | None:
    """The high-water mark since the last reset."""
    try:
        status = Path(f"/proc/{process_id or 'self'}/status").read_text()
    except OSError:
        return None
    # A process that has just ended has no memory, and no such line.
    line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), None)
    return None if line is None else int(line.split()[1]) * 1024
