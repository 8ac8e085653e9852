"""The process inside, as it is seen from here: started, asked for passes, and ended."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import IO, Any

from framehaul.errors import ServerError, UnavailableError, WrongResultError
from framehaul.harness.passes import last_line
from framehaul.studies.network.catalog import Task
from framehaul.studies.network.wanted import Wanted


class Inside:
    """A process that makes passes; `found` is what it has found and measured."""

    def __init__(self, process: subprocess.Popen[bytes], errors: IO[bytes], found: dict[str, Any]) -> None:
        self._process, self._errors, self.found = process, errors, found

    def measure(self, task: Task) -> dict[str, Any]:
        """What a pass took; raises what `attempt` takes for how it ended, ServerError where the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{json.dumps(asdict(task))}\n".encode())
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if not answer:
            raise ServerError(_ended(self._process, self._errors))
        values: dict[str, Any] = json.loads(answer)
        status, reason = values.pop("status"), values.pop("reason")
        if status == "skipped":
            raise UnavailableError(reason)
        if status == "failed":
            raise WrongResultError(reason)
        return values


@contextmanager
def started(wanted: Wanted) -> Iterator[Inside]:
    """The process, for as long as the block lasts.

    Raises UnavailableError where there is no such road, ServerError where there are no servers.
    """
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            [sys.executable, "-m", "framehaul.studies.network.inside", json.dumps(asdict(wanted))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0,
            start_new_session=True,  # Ctrl-C reaches this process only, which ends the other in order
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        answer = process.stdout.readline()
        if not answer:
            raise ServerError(_ended(process, errors))
        found = json.loads(answer)
        if reason := found.get("unavailable"):
            raise ServerError(reason) if found["fatal"] else UnavailableError(reason)
        yield Inside(process, errors, found)


def _ended(process: subprocess.Popen[bytes], errors: IO[bytes]) -> str:
    """How it ended, and the last that it said."""
    status = process.wait()
    errors.seek(0)
    said = last_line(errors.read().decode(errors="replace"), "")
    return f"the process of servers and clients has ended, with status {status}{f': {said}' if said else ''}"
