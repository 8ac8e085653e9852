"""The workers: processes on this machine, or those of somebody's scheduler."""

from __future__ import annotations

import importlib
import logging
import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil

from framehaul.errors import UnavailableError
from framehaul.servers import Servers
from framehaul.settings import Settings

if TYPE_CHECKING:
    from distributed import Client

CONNECT_SECONDS = 10
START_SECONDS = 60
GONE_SECONDS = 60
"""How long a cluster may be without workers: those that died are started again, where somebody watches over them."""
SAME_VERSIONS = ("framehaul", "polars", "pyarrow")
"""Packages, besides those of Dask's own list, whose objects travel between here and the workers."""
# One core for each worker, as if each were a machine of its own; Polars and Arrow would take all that there are.
WORKER_ENVIRONMENT = {"POLARS_MAX_THREADS": "1", "ARROW_NUM_THREADS": "1"}


class ClusterError(RuntimeError):
    """There are no workers to be had, or none that could do this; the message says why and what to do."""


class Cluster:
    """Open workers; a call is done by one of them, again by another one when it dies meanwhile."""

    def __init__(self, client: Client, *, local: bool) -> None:
        self.client, self.local = client, local
        self.stop = threading.Event()
        """Once set, the next wait ends with KeyboardInterrupt."""
        self.progress: Callable[[], None] = lambda: None
        """Called for every item that is done."""

    @property
    def addresses(self) -> list[str]:
        """Where the workers are, as the scheduler says.

        `scheduler_info` keeps what it was told, and is told of none, between, by a callback of the client's own:
        https://github.com/dask/distributed/blob/2026.8.0/distributed/client.py#L1608
        """
        return sorted(self.client.nthreads())

    def map[T, R](self, work: Callable[[T], R], items: Sequence[T], name: str, workers: int | None = None) -> list[R]:
        """What `work` makes of each item, in their order, on so many of the workers, or on all.

        `name` begins the keys of the tasks, which logs show. After an error, which is raised, what waits is not begun.
        """
        from distributed import as_completed

        here = self.addresses
        chosen = here[:workers] if workers is not None and workers < len(here) else None
        # Others than the chosen take over when all of those have died.
        futures = [
            self.client.submit(work, item, key=f"{name}-{number}", workers=chosen, allow_other_workers=bool(chosen),
                               pure=False)
            for number, item in enumerate(items)
        ]  # fmt: skip
        try:
            for future in as_completed(futures, loop=self.client.loop):
                future.result()
                self.progress()
                if self.stop.is_set():
                    raise KeyboardInterrupt
            return [future.result() for future in futures]
        finally:
            self.client.cancel(futures)

    def cpu_s(self) -> float:
        """CPU seconds of all workers so far."""
        return float(sum(self.client.run(cpu_seconds).values()))


def cpu_seconds() -> float:
    """CPU time of this process so far."""
    times = os.times()
    return times.user + times.system


@contextmanager
def opened(settings: Settings, workers: int) -> Iterator[Cluster]:
    """So many workers on this machine, or those of the scheduler that the settings name.

    Raises UnavailableError when dask.distributed is not installed, ClusterError when the scheduler cannot be used.
    """
    try:
        for name in ("cryptography", "dask.dataframe", "distributed"):
            importlib.import_module(name)
    except ImportError as error:
        raise UnavailableError(
            "dask.distributed is not installed: uv sync --extra scale-out, or pip install 'framehaul[scale-out]'"
        ) from error
    import dask
    import distributed

    if settings.scheduler:
        try:
            client = distributed.Client(settings.scheduler, timeout=CONNECT_SECONDS, set_as_default=False)
        except OSError as error:
            raise ClusterError(
                f"SCHEDULER={settings.scheduler} cannot be reached ({error}); start one with `dask scheduler` and "
                "`dask worker`, or unset it for workers on this machine"
            ) from error
        with client:
            check_workers(client)
            yield Cluster(client, local=False)
        return
    with (
        tempfile.TemporaryDirectory(prefix="framehaul-workers-") as scratch,
        # Neither a dashboard nor its data over HTTP, for any account of this machine could look. And nothing is left.
        dask.config.set({
            "distributed.scheduler.no-workers-timeout": f"{GONE_SECONDS}s",
            "distributed.scheduler.http.routes": [], "distributed.worker.http.routes": [],
            "temporary-directory": scratch,
        }),
        # TLS with keys of its own: what a scheduler is sent it runs, and any account could send it something.
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, security=True,
            silence_logs=logging.ERROR,  # that a worker died is seen in what became of its partition
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"}, local_directory=scratch, env=WORKER_ENVIRONMENT,
        ) as local,
        distributed.Client(local, set_as_default=False) as client,
    ):  # fmt: skip
        try:
            # On a busy machine the scheduler has not heard of all of them when it says that it is ready.
            client.wait_for_workers(workers, timeout=START_SECONDS)
        except TimeoutError as error:
            raise ClusterError(
                f"not all of {workers} workers are there after {START_SECONDS} s; give fewer of them, or run again "
                "when the machine does nothing else"
            ) from error
        yield Cluster(client, local=True)


def check_workers(client: Client) -> None:
    """Raises ClusterError without workers, and where their packages are not those of this process."""
    if not client.nthreads():
        raise ClusterError("the scheduler has no workers; start some with `dask worker`")
    with warnings.catch_warnings(record=True) as told:  # what it finds it warns of
        warnings.simplefilter("always")
        client.get_versions(check=True, packages=SAME_VERSIONS)
    if told:
        raise ClusterError(f"install the same packages where the workers run. {told[0].message}")


def check_reachable(cluster: Cluster, both: Servers, directory: Path) -> None:
    """Raises ClusterError when workers are on other machines, and the servers or the files are on this one alone."""
    if cluster.local:
        return
    addresses = {address.address for of_interface in psutil.net_if_addrs().values() for address in of_interface}
    elsewhere = {str(urlsplit(worker).hostname) for worker in cluster.addresses} - addresses
    listening = {both.postgres.host, both.clickhouse.host}
    if elsewhere and listening & {"127.0.0.1", "::1", "localhost"}:
        raise ClusterError(
            f"workers on {', '.join(sorted(elsewhere))} cannot reach servers that listen on loopback here: give "
            "servers that they reach (SERVERS=external), or workers on this machine"
        )
    if not all(cluster.client.run(os.path.isdir, str(directory)).values()):
        raise ClusterError(
            f"not all workers see the directory {directory.name} of the partitions: set FRAMEHAUL_SHARED_DIR to one "
            "that they see under the same name"
        )
