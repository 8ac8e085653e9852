"""Workers: processes on this machine, or those of the Dask scheduler in the settings."""

from __future__ import annotations

import logging
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from framehaul.errors import SettingsError, UnavailableError
from framehaul.settings import Settings

if TYPE_CHECKING:
    from distributed import Client

CONNECT_SECONDS = 10
START_SECONDS = 60
"""The time in which workers have to start, and in which Dask restarts workers that died."""
SAME_VERSIONS = ("framehaul", "polars", "pyarrow")
"""Packages whose versions are compared in addition to those that Dask compares."""
# One core for each worker, as if it had its own machine; by default Polars and Arrow use all cores.
WORKER_ENVIRONMENT = {"POLARS_MAX_THREADS": "1", "ARROW_NUM_THREADS": "1"}


@dataclass
class Cluster:
    """The workers; when a worker dies during a call, another worker repeats the call."""

    client: Client
    stop: threading.Event = field(default_factory=threading.Event)
    """When set, `map` raises KeyboardInterrupt after the next item."""

    @property
    def addresses(self) -> list[str]:
        """The addresses of the workers; `Client.scheduler_info` may lag behind."""
        return sorted(self.client.nthreads())

    def map[T, R](self, work: Callable[[T], R], items: Sequence[T], name: str, workers: int | None = None) -> list[R]:
        """Call `work` with each item on a number of workers, or on all, and return the results in order.

        `name` is the prefix of the tasks' keys in logs. The first error is raised and cancels the other calls.
        """
        from distributed import as_completed

        here = self.addresses
        chosen = here[:workers] if workers is not None and workers < len(here) else None
        # Other workers take over when all chosen workers have died.
        options: dict[str, Any] = {"workers": chosen, "allow_other_workers": bool(chosen), "pure": False}
        futures = [
            self.client.submit(work, item, key=f"{name}-{number}", **options) for number, item in enumerate(items)
        ]
        try:
            for future in as_completed(futures, loop=self.client.loop):
                future.result()
                if self.stop.is_set():
                    raise KeyboardInterrupt
            return [future.result() for future in futures]
        finally:
            self.client.cancel(futures)


@contextmanager
def opened(settings: Settings, workers: int) -> Iterator[Cluster]:
    """Start workers on this machine, or connect to the scheduler in the settings.

    Raises UnavailableError when dask.distributed is not installed, SettingsError when the scheduler cannot be used.
    """
    try:
        import cryptography  # noqa: F401
        import dask
        import distributed
    except ImportError as error:
        raise UnavailableError(
            "dask.distributed is not installed: uv sync --extra scale-out, or pip install 'framehaul[scale-out]'"
        ) from error
    if settings.scheduler:
        try:
            client = distributed.Client(settings.scheduler, timeout=CONNECT_SECONDS, set_as_default=False)
        except OSError as error:
            raise SettingsError(
                f"SCHEDULER={settings.scheduler} cannot be reached ({error}); start one with `dask scheduler` and "
                "`dask worker`, or unset it for workers on this machine"
            ) from error
        with client:
            check_workers(client)
            yield Cluster(client)
        return
    with (
        tempfile.TemporaryDirectory(prefix="framehaul-workers-") as scratch,
        # No dashboard and no data over HTTP, which any account of this machine could read.
        dask.config.set({
            "distributed.scheduler.no-workers-timeout": f"{START_SECONDS}s",
            "distributed.scheduler.http.routes": [], "distributed.worker.http.routes": [],
            "temporary-directory": scratch,
        }),
        # TLS with new keys, because a scheduler runs any code that it receives and any account could connect.
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, security=True,
            silence_logs=logging.ERROR,  # the study handles workers that die
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"}, local_directory=scratch, env=WORKER_ENVIRONMENT,
        ) as local,
        distributed.Client(local, set_as_default=False) as client,
    ):  # fmt: skip
        # On a busy machine the cluster is ready before all workers have registered.
        client.wait_for_workers(workers, timeout=START_SECONDS)
        yield Cluster(client)


def check_workers(client: Client) -> None:
    """Raise SettingsError without workers, or when the versions of their packages differ from this process."""
    if not client.nthreads():
        raise SettingsError("the scheduler has no workers; start some with `dask worker`")
    with warnings.catch_warnings(record=True) as caught:  # Dask warns of versions that differ
        warnings.simplefilter("always")
        client.get_versions(check=True, packages=SAME_VERSIONS)
    if caught:
        raise SettingsError(f"install the same packages where the workers run. {caught[0].message}")
