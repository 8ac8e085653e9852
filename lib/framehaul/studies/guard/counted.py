"""Instructions that a call takes the client: of a program that makes so many calls, less those of one that makes fewer.

`python -m framehaul.studies.guard.counted '{"key": [...], "ports": [...], "calls": 3, ...}'` is that program; a
recording answers it. What the interpreter does before the first call is in both, and so in neither's difference.
Counted by the processor through perf where there is such a counter, else by valgrind, which takes some ten times as
long as the program does.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from framehaul.errors import UnavailableError

if TYPE_CHECKING:
    from framehaul.servers import Server

PROBE_SECONDS = 30
PERF = ("perf", "stat", "-x", ",", "-e", "instructions:u")
VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", "--vgdb=no")


@dataclass(frozen=True)
class Counter:
    """What counts the instructions of a program."""

    name: str
    command: tuple[str, ...]
    """What goes before the program's own; `{log}` is the file for what it says."""
    said: re.Pattern[str]
    """How it says the number."""

    @contextmanager
    def started(self, program: list[str], directory: Path | None = None, **options: Any) -> Iterator[Counting]:
        """A program that is being counted, and is killed where the block ends before it does.

        What the counter says goes into a file of the directory for as long.
        """
        with tempfile.NamedTemporaryFile("r", prefix="framehaul-counted-", dir=directory) as log:
            command = [part.format(log=log.name) for part in self.command]
            with subprocess.Popen(
                [*command, *program], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                text=True, **options,
            ) as process:  # fmt: skip
                try:
                    yield Counting(self, process, log)
                finally:
                    process.kill()


@dataclass(frozen=True)
class Counting:
    """A program that is being counted."""

    counter: Counter
    process: subprocess.Popen[str]
    log: IO[str]

    def count(self, seconds: float) -> int:
        """Its instructions, once it has ended; raises UnavailableError where it fails, or takes longer."""
        name = self.counter.name
        try:
            errors = self.process.communicate(timeout=seconds)[1]
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"{name} takes longer than {seconds:.0f} s") from None
        found = self.counter.said.search(self.log.read())
        if self.process.returncode or not found:
            from framehaul.harness.passes import last_line  # not for the program that is counted

            last = last_line(errors, f"exit status {self.process.returncode}")
            raise UnavailableError(f"{name} counts nothing: {last}")
        return int(found[1].replace(",", ""))


COUNTERS = (
    Counter("perf", (*PERF, "-o", "{log}", "--"), re.compile(r"^(\d+),[^,]*,instructions", re.MULTILINE)),
    Counter("valgrind", (*VALGRIND, "--log-file={log}"), re.compile(r"I\s+refs:\s+([\d,]+)")),
)


@cache
def find_counter() -> Counter:
    """What counts here; raises UnavailableError with what each of them says."""
    reasons = []
    for one in COUNTERS:
        if not shutil.which(one.name):
            reasons.append(f"{one.name} is not installed")
            continue
        try:
            with one.started([sys.executable, "-S", "-c", ""]) as counting:
                counting.count(PROBE_SECONDS)
        except UnavailableError as error:
            reasons.append(str(error))
        else:
            return one
    raise UnavailableError("; ".join(reasons))


def main() -> None:
    """Make so many calls."""
    given = json.loads(sys.argv[1])
    # Each way imports no more than it takes: under valgrind an import is most of the time.
    made = (_shape if "shape" in given else _technique)(given)
    for _ in range(given["calls"]):
        made()
    os._exit(0)  # what libraries do at their end is no part of a call


def _shape(given: dict[str, Any]) -> Callable[[], object]:
    from framehaul.studies.drivers.program import loop_factory
    from framehaul.studies.drivers.shapes import Shape
    from framehaul.studies.guard.asking import SEPARATOR, asked, driver_of

    database, _, name = given["key"]
    fields: dict[str, Any] = {
        one: tuple(value) if isinstance(value, list) else value for one, value in given["shape"].items()
    }
    driver, shape, server = driver_of(database, name.partition(SEPARATOR)[0]), Shape(**fields), _server(given)
    runner = asyncio.Runner(loop_factory=loop_factory(driver.loop))
    return lambda: runner.run(asked(driver, shape, server, nullcontext))


def _technique(given: dict[str, Any]) -> Callable[[], object]:
    from framehaul.data import generator
    from framehaul.harness.measure import IN_FRAMES, called, opened
    from framehaul.studies.guard.rows import table_of
    from framehaul.techniques.registry import named

    technique, server = named(*given["key"]), _server(given)
    table = table_of(given["mark"], given["side"], technique.direction)
    moved: list[Any] = []
    if technique.direction == "write":
        moved.append(IN_FRAMES[technique.frame](generator.arrow_table(table, given["rows"], given["seed"]), table))

    async def call() -> None:
        async with opened(technique, server) as client:
            await called(technique, client, table, *moved)

    runner = asyncio.Runner()
    return lambda: runner.run(call())


def _server(given: dict[str, Any]) -> Server:
    from framehaul.servers.address import ClickHouseServer, PostgresServer

    if given["key"][0] == "clickhouse":
        return ClickHouseServer(**given["server"])
    return PostgresServer(**given["server"] | {"options": tuple(map(tuple, given["server"]["options"]))})


def address(server: Server) -> dict[str, Any]:
    """Of a server that a recording stands in for: it asks for no password, so none is shown to the whole machine."""
    return asdict(server) | {"password": "x" * len(server.password), "process_id": None}


if __name__ == "__main__":
    main()
