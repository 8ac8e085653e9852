"""Two processes, one in each environment, and what they are asked: what is exact once, then rounds of fresh pairs.

Two processes of the same program differ for as long as they live: by where their memory lies, what was compiled, the
order of a set. So a round is a new pair, within which samples alternate; its ratio is one observation.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import queue
import random
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, cast, get_args

import polars as pl
import psutil

from framehaul.errors import ServerError, UnavailableError
from framehaul.harness.measure import reference_of
from framehaul.harness.passes import last_line
from framehaul.harness.recording import which
from framehaul.results import store
from framehaul.results.store import Status
from framehaul.servers import Server, Servers
from framehaul.servers.replay import Conversation, Counts, Replayer, ReplayError, recorded, replayed
from framehaul.servers.tables import ClickHouseTables, PostgresTables, tables_of
from framehaul.settings import PROJECT
from framehaul.studies.drivers.shapes import CLICKHOUSE_TABLES, POSTGRES_TABLES, PREFIX
from framehaul.studies.fidelity.trial import UNCLOSED
from framehaul.studies.guard.counted import Counter, Counting, address, find_counter
from framehaul.studies.guard.rows import OURS, Exact, Guarded, Side, prefix_of, table_of
from framehaul.studies.guard.shapes import ShapePath
from framehaul.studies.guard.verdicts import KEPT, LOOKS, clear, suspected
from framehaul.techniques import Technique
from framehaul.techniques.registry import Database, Direction

type GuardedPath = Technique | ShapePath
SIDES: tuple[Side, Side] = ("a", "b")
PATIENCE_SECONDS = 60.0
"""How long the baseline may take over its first request."""
LEAST_SECONDS = 20.0
"""How long any further request may take at least; and at most so many times as long as that first one took."""
PATIENCE_TIMES = 50
STARTING_SECONDS = 120.0
ENDING_SECONDS = 5.0
"""How long it may take to drop its tables; what it leaves is dropped at the end."""
EXACT_SECONDS = 120.0
"""For what is exact, edge cases apart; or, of a large budget, so much of it."""
EXACT_SHARE = 0.5
CASES_SHARE = 0.3
"""Of the budget, after which no further technique's edge cases are begun."""
CASES_SECONDS = 30.0
"""How long all edge cases of one technique may take; they take five."""
COUNTED_PROGRAM = "framehaul.studies.guard.counted"
SAMPLES = 2
"""Of each side and technique in a round."""
SAMPLE_SECONDS = 0.06
"""So much CPU time a sample takes at least, if need be by several calls."""
MOST_CALLS = 20
GROWTH_CALLS = 3
"""Over so many calls, twice, it is looked whether a side grows, after all samples: memory is given back for it, and
who has none left is slower for a while."""
LEAKING_CALLS = 20
"""Over so many calls, twice, where that looks like a leak."""
COUNTING_SHARE = 0.3
"""Of the budget that is kept for counting instructions, where they can be counted."""
COUNTED_CALLS = 8
"""So many further calls a counted program makes at least: what a start takes differs by a thousandth from one to the
next."""
LOST_ROUNDS = 3
"""So many rounds may be lost to a side that ends: a candidate that dies each time has failed by then."""
NUMBERS = {"bytes_sent": "bytes sent", "bytes_received": "bytes received", "round_trips": "round trips",
           "statements": "statements"}  # fmt: skip


@dataclass(frozen=True)
class Party:
    """What one side is: an interpreter, servers that it finds in a state directory, and a way of using a driver."""

    title: str
    python: Path
    servers: Servers
    state_dir: Path
    driver: str = ""
    """In whose place it is asked all shapes, if there is one."""

    def variables(self) -> dict[str, str]:
        """The environment of its processes; sets of text are in one order on both sides."""
        known = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return known | {"PYTHONHASHSEED": "0", "FRAMEHAUL_STATE_DIR": str(self.state_dir)}


class GoneError(RuntimeError):
    """A side died, or did not answer; the message says which."""


class Worker:
    """One side's process; ended with whatever it started when the block ends."""

    def __init__(self, side: Side, party: Party, given: dict[str, Any], log: Path) -> None:
        self._log = log.open("w+", encoding="utf8")
        self._process = subprocess.Popen(
            [str(party.python), "-m", "framehaul.studies.guard.worker", json.dumps(given | {"side": side})],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=party.variables(),
            cwd=PROJECT, start_new_session=True,
        )  # fmt: skip
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def ready(self) -> None:
        """Wait until it has started; raises GoneError where it does not."""
        self._answer(STARTING_SECONDS, "start")

    def ask(self, do: str, patience: float = PATIENCE_SECONDS, **given: Any) -> dict[str, Any]:
        """What it answers, with its status; raises GoneError where it does not."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **given}) + "\n")
            self._process.stdin.flush()
        except OSError:  # it is gone; what it said last tells why
            pass
        return self._answer(patience, do)

    def _answer(self, patience: float, do: str) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=patience)
        except queue.Empty:
            self.end()
            raise GoneError(f"hangs: no answer to {do!r} within {patience:.0f} s") from None
        if not line:
            code = self._process.wait()
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
            self._log.seek(0)
            raise GoneError(f"dies, with {how}: {last_line(self._log.read(), 'it wrote nothing')}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """End it, kindly at first: it drops its tables."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING_SECONDS)
        with contextlib.suppress(ProcessLookupError):  # nothing of it is left, nor of what a driver has started
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        for each in (self._process.stdout, self._log):
            assert each is not None
            each.close()


@dataclass
class Kept:
    """What is known of one path after it was tried once on both sides."""

    path: GuardedPath
    conversations: dict[Side, list[Conversation]] = field(default_factory=dict)
    calls: int = 1
    patience: float = field(default_factory=lambda: PATIENCE_SECONDS)
    broken: dict[Side, tuple[Status, str]] = field(default_factory=dict)
    """Why a side cannot go on: status and reason."""
    no_replay: str = ""


class Guarding:
    """Both sides, and what comes of the paths.

    Of `servers` that are compared it is their CPU time that counts, of all else the client's.
    """

    def __init__(
        self, sides: dict[Side, Party], directory: Path, *, rows: int, seed: int, slower: float = 0,
        servers: bool = False, say: Callable[[str], object] = print,
    ) -> None:  # fmt: skip
        self._sides, self._directory, self._of_servers = sides, directory, servers
        self._rows, self._seed, self._slower, self._say = rows, seed, slower, say
        self._run_id, self._mark = store.new_run_id(), f"{os.getpid()}x{secrets.token_hex(3)}"
        self.titles: dict[str, Any] = {"baseline": sides["a"].title, "candidate": sides["b"].title}
        self.passes: list[Guarded] = []
        self.exact: list[Exact] = []
        self.notes: list[str] = []
        """What is to be said of the guard as a whole."""
        self._differ = sides["a"].title != sides["b"].title
        self._lost = 0

    def run(self, paths: Sequence[GuardedPath], deadline: float) -> None:
        """What is exact of all of them; then rounds until all verdicts are clear, or until the deadline."""
        places = list(itertools.product(SIDES, {one.database for one in paths}))
        for side, database in places:
            self._drop_left(self._sides[side].servers, database)
        try:
            self._run([Kept(one) for one in paths], deadline)
        finally:
            for side, database in places:
                self._drop(side, database)

    def _drop_left(self, both: Servers, database: Database) -> None:
        """What guards have left that were killed with both of their sides; told by their processes, on this machine."""
        if both.mode != "embedded":
            return
        tables = PostgresTables(both.postgres) if database == "postgres" else ClickHouseTables(both.clickhouse)
        names: Iterable[Sequence[str]]
        if isinstance(tables, PostgresTables):
            names = tables.run(f"SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE '{OURS}%'")
        else:
            names = tables.rows(f"SELECT name FROM system.tables WHERE name LIKE '{OURS}%'")
        for (name,) in names:
            number = name.removeprefix(OURS).partition("x")[0]
            if number.isdecimal() and not psutil.pid_exists(int(number)):
                tables.drop_named(name)

    def _drop(self, side: Side, database: Database) -> None:
        """What a side has left that was killed; who ended by itself has dropped its own."""
        moved = [table_of(self._mark, side, direction) for direction in get_args(Direction)]
        asked = POSTGRES_TABLES if database == "postgres" else [one.table for one in CLICKHOUSE_TABLES]
        names = [one.name for table in moved for one in (table, reference_of(table))]
        names += [name.replace(PREFIX, prefix_of(self._mark, side)) for name in asked]
        tables = tables_of(self._server(side, database))
        with contextlib.suppress(ServerError):  # the server is gone: the reason is being told already
            for name in names:
                tables.drop(moved[0].renamed(name))

    def _server(self, side: Side, database: Database) -> Server:
        return self._sides[side].servers.of(database)

    def _key(self, path: GuardedPath, side: Side) -> tuple[str, str, str]:
        """What a side knows a path by."""
        if isinstance(path, ShapePath) and (driver := self._sides[side].driver):
            return path.of(driver).key
        return path.key

    def _run(self, kept: list[Kept], deadline: float) -> None:
        begun = time.monotonic()
        until = begun + max(EXACT_SECONDS, (deadline - begun) * EXACT_SHARE)
        self._exactly(kept, until, begun + (deadline - begun) * CASES_SHARE)
        counter = self._counter(kept)
        # Of equals it is to be known how often rounds tell them apart: they have all the time.
        reserved = (deadline - begun) * COUNTING_SHARE if counter and self._differ else 0
        left = self._rounds([one for one in kept if not one.broken], deadline - reserved)
        self._look_for_leaks(kept)
        if counter:
            self._count(counter, [one for one in left if not one.no_replay], deadline)

    def _rounds(self, left: list[Kept], deadline: float) -> list[Kept]:
        """Rounds until all is clear, or until the deadline; those that are not clear then."""
        took = 0.0
        for number in range(1, LOOKS[-1] + 1):
            if not left or time.monotonic() + took > deadline:
                break
            begun = time.monotonic()
            self._say(f"round {number} of at most {LOOKS[-1]}: {len(left)} paths")
            self._round(left, number)
            took = max(took, time.monotonic() - begun)
            left = [one for one in left if not one.broken]
            # Of equals it takes all rounds to know how often they are told apart.
            if number in LOOKS and self._differ:
                done = clear(self.frame()[0])
                left = [one for one in left if one.path.key not in done]
        return left

    def _look_for_leaks(self, every: Sequence[Kept]) -> None:
        """What many more calls leave, of those that look as if each left something."""
        seem = suspected(self.frame()[0])
        for kept in every:
            if kept.path.key not in seem or kept.broken or kept.no_replay:
                continue
            self._say(f"what {2 * LEAKING_CALLS} calls of {kept.path.name} leave")
            try:
                with ExitStack() as stack:
                    answers = self._asked_replays(kept, self._pair(stack, [kept]), "growth", [SIDES], LEAKING_CALLS)
            except GoneError as error:
                self.notes.append(f"what many calls of {kept.path.name} leave is not known: {error}")
                continue
            if answers:
                a, b = ({KEPT: answers[side][0]["growth_bytes"]} for side in SIDES)
                self._compared(kept.path, a, b)

    def _counter(self, every: list[Kept]) -> Counter | None:
        """What counts instructions here, if anything does, and there is anything that it can count."""
        if not COUNTING_SHARE or all(one.broken or one.no_replay for one in every):
            return None
        try:
            return find_counter()
        except UnavailableError as error:
            self.notes.append(f"no instructions are counted: {error}")
            return None

    def _count(self, counter: Counter, left: list[Kept], deadline: float) -> None:
        """The instructions of what rounds did not tell, while there is time; shapes first, which take the least."""
        took: dict[type, float] = {}
        counted = 0
        for kept in sorted(left, key=lambda one: not isinstance(one.path, ShapePath)):
            begun = time.monotonic()
            if begun + took.get(type(kept.path), 0) > deadline:
                continue
            self._say(f"instructions of {kept.path.name}, by {counter.name}")
            try:
                a, b = self._instructions(counter, kept, deadline - begun)
            except (UnavailableError, ReplayError) as error:
                self.notes.append(f"instructions of {kept.path.name} are not counted: {error}")
            else:
                counted += 1
                self._compared(kept.path, {"instructions": a}, {"instructions": b})
            took[type(kept.path)] = time.monotonic() - begun
        if left:
            self.notes.append(
                f"instructions of {counted} of {len(left)} paths without a verdict are counted, by {counter.name}"
            )

    def _instructions(self, counter: Counter, kept: Kept, seconds: float) -> tuple[int, int]:
        """What one call takes each side: two programs of each, all at once, for they do not disturb each other."""
        calls = (1, 1 + max(COUNTED_CALLS, kept.calls))
        with ExitStack() as stack:
            running: dict[tuple[Side, int], Counting] = {}
            for side, many in itertools.product(SIDES, calls):
                replayer = stack.enter_context(self._replayed(kept, side))
                server = cast("Any", self._server(side, kept.path.database)).through(*replayer.ports)
                given: dict[str, Any] = {"key": self._key(kept.path, side), "calls": many, "server": address(server)}
                if isinstance(kept.path, ShapePath):
                    given["shape"] = asdict(kept.path.shape.among(prefix_of(self._mark, side)))
                else:
                    given |= {"mark": self._mark, "side": side, "rows": self._rows, "seed": self._seed}
                party = self._sides[side]
                program = [str(party.python), "-m", COUNTED_PROGRAM, json.dumps(given)]
                started = counter.started(program, self._directory, env=party.variables(), cwd=PROJECT)
                running[side, many] = stack.enter_context(started)
            until = time.monotonic() + seconds
            found = {which: one.count(max(0, until - time.monotonic())) for which, one in running.items()}
        a, b = (round((found[side, calls[1]] - found[side, calls[0]]) / (calls[1] - calls[0])) for side in SIDES)
        return a, b

    def frame(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The passes, and what is exact, so far."""
        return store.frame_of(Guarded, self.passes), store.frame_of(Exact, self.exact)

    def _exactly(self, every: Sequence[Kept], until: float, cases_until: float) -> None:
        """Values, dtypes, bytes, statements, allocations, edge cases: what is the same each time.

        One side after the other, each in one process, and in another one after it has died. Edge cases come last, both
        sides of a technique together, while there is time.
        """
        facts: dict[Side, dict[int, dict[str, Any]]] = {"a": {}, "b": {}}
        for side in SIDES:
            with ExitStack() as stack:
                worker: Worker | None = None
                lost = ""
                for at, kept in enumerate(every):
                    if kept.broken:
                        continue
                    of = kept.path
                    if time.monotonic() > until:
                        self._break(kept, "a", "skipped", "time was over before it was tried: give a larger BUDGET")
                        continue
                    self._say(f"exact, {self._sides[side].title}: {of.database} {of.direction} {of.name}")
                    if worker is None and not lost:
                        try:
                            worker = self._prepared(self._started(stack, side), every)
                        except GoneError as error:  # and does so of all others, at the same length
                            lost = str(error)
                    if worker is None:
                        kept.broken[side] = "failed", lost
                    else:
                        try:
                            facts[side][at] = self._facts(worker, side, kept)
                        except GoneError as error:
                            worker = None
                            kept.broken[side] = "failed", str(error)
                    state, reason = kept.broken.get(side, ("ok", None))
                    self._keep(of, 0, side, status=state, reason=reason)
        self._edge_cases(every, facts, cases_until)
        for at in facts["b"]:
            self._compared(every[at].path, facts["a"][at], facts["b"][at])

    def _edge_cases(self, every: Sequence[Kept], facts: dict[Side, dict[int, dict[str, Any]]], until: float) -> None:
        """Add to the facts what each side does with every edge case, technique by technique, while there is time."""
        with ExitStack() as stack:
            workers: dict[Side, Worker] = {}
            for at in facts["b"]:
                if every[at].broken or isinstance(every[at].path, ShapePath) or time.monotonic() > until:
                    continue
                self._say(f"edge cases of {every[at].path.name}")
                for side in SIDES:
                    try:
                        if side not in workers:
                            workers[side] = self._prepared(self._started(stack, side), every)
                        facts[side][at] |= self._cases(workers[side], every[at])
                    except GoneError as error:  # one of them; the rows that are measured have passed
                        workers.pop(side, None)
                        facts[side][at]["edge cases"] = str(error)

    def _compared(self, path: GuardedPath, a: dict[str, Any], b: dict[str, Any]) -> None:
        for what in dict.fromkeys([*a, *b]):
            before, after = a.get(what), b.get(what)
            same = before is None or after is None or before == after
            worse = "" if same else _worse(what, str(before), str(after))
            self.exact.append(
                Exact(
                    **self.titles, database=path.database, direction=path.direction, technique=path.name,
                    what=what, before="" if before is None else str(before),
                    after="" if after is None else str(after), worse=worse,
                )
            )  # fmt: skip

    def _started(self, stack: ExitStack, side: Side) -> Worker:
        """A process that begins to start."""
        given = {
            "rows": self._rows,
            "seed": self._seed,
            "mark": self._mark,
            "slower": self._slower if side == "b" else 0.0,
        }
        worker = Worker(side, self._sides[side], given, self._directory / f"{side}.log")
        stack.callback(worker.end)
        return worker

    def _pair(self, stack: ExitStack, kept: Sequence[Kept]) -> dict[Side, Worker]:
        """A fresh process of each side, ready; they start at once."""
        workers = {side: self._started(stack, side) for side in SIDES}
        for worker in workers.values():
            self._prepared(worker, kept)
        return workers

    def _prepared(self, worker: Worker, kept: Sequence[Kept]) -> Worker:
        """It has started, and its tables are there; raises GoneError where it does not."""
        worker.ready()
        needs: dict[tuple[str, str], set[str]] = {}
        for one in kept:
            if not isinstance(one.path, ShapePath):
                needs.setdefault((one.path.database, one.path.direction), set()).add(one.path.frame)
        asked = [
            ("open", {"database": database, "direction": direction, "frames": sorted(frames)})
            for (database, direction), frames in needs.items()
        ] + [
            ("open_shapes", {"database": database})
            for database in dict.fromkeys(one.path.database for one in kept if isinstance(one.path, ShapePath))
        ]
        for do, given in asked:
            answer = worker.ask(do, STARTING_SECONDS, **given)
            if answer["status"] != "ok":
                raise GoneError(f"{' '.join(map(str, given.values()))} cannot be prepared: {answer['reason']}")
        return worker

    def _facts(self, worker: Worker, side: Side, kept: Kept) -> dict[str, Any]:
        """What one side does with a technique; what was not the same twice is None."""
        key, server = self._key(kept.path, side), self._server(side, kept.path.database)
        counted: list[Counts] = []
        begun = time.monotonic()
        answer = worker.ask("one", kept.patience, key=key)  # whatever is done once is done then
        if answer["status"] != "ok":
            kept.broken[side] = answer["status"], answer["reason"]
            return {"values": "wrong" if answer.get("wrong") else answer["status"]}
        if side == "a":
            kept.patience = max(LEAST_SECONDS, PATIENCE_TIMES * (time.monotonic() - begun))
        for _ in range(2):
            try:
                with recorded(server) as recorder:
                    answer = worker.ask("one", kept.patience, key=key, ports=recorder.ports)
                counted.append(recorder.counts(server))
                kept.conversations[side] = recorder.conversations(server)
            except ReplayError as error:
                kept.no_replay = str(error)
                answer = worker.ask("one", kept.patience, key=key)
            if answer["status"] != "ok":
                kept.broken[side] = answer["status"], answer["reason"]
                return {"values": "wrong" if answer.get("wrong") else answer["status"]}
        types = "types" if isinstance(kept.path, ShapePath) else "dtypes"
        found: dict[str, Any] = {"values": "exact", types: answer["dtypes"]}
        for name, text in NUMBERS.items():
            values = {getattr(one, name) for one in counted}
            found[text] = values.pop() if len(values) == 1 else None
        if self._of_servers:
            kept.no_replay = kept.no_replay or "servers are compared: what they do is not in it"
        if not kept.no_replay:
            found |= self._from_memory(worker, side, kept)
        return found

    def _cases(self, worker: Worker, kept: Kept) -> dict[str, Any]:
        """What one side does with every edge case."""
        cells = worker.ask("cells", CASES_SECONDS, key=kept.path.key)
        found: dict[str, Any] = {"edge cases": cells["reason"] or "tried"}
        if cells["status"] == "ok":
            found |= {f"case {name}": _told_of_case(*said) for name, said in cells["cells"].items()}
        return found

    def _from_memory(self, worker: Worker, side: Side, kept: Kept) -> dict[str, Any]:
        """What it allocates while a recording answers, and how many calls make a sample."""
        try:
            with self._replayed(kept, side) as replayer:
                asked: dict[str, Any] = {
                    "patience": kept.patience,
                    "key": self._key(kept.path, side),
                    "ports": replayer.ports,
                }
                answers = [_had(worker.ask("allocations", **asked)) for _ in range(3)]
                sampled = _had(worker.ask("replay", **asked, calls=2))
        except ReplayError as error:
            kept.no_replay = str(error)
            return {}
        if side == "a":
            each = sampled["client_cpu_s"] / 2
            kept.calls = max(1, min(MOST_CALLS, math.ceil(SAMPLE_SECONDS / max(each, 1e-6))))
        peaks = {one["python_bytes"] for one in answers[1:]}
        return {"Python bytes": peaks.pop() if len(peaks) == 1 else None}

    def _round(self, left: list[Kept], number: int) -> None:
        """One observation of each technique, made by a fresh pair of processes."""
        order = random.Random(f"{self._seed}/{number}")
        try:
            with ExitStack() as stack:
                workers = self._pair(stack, left)
                for kept in order.sample(left, len(left)):
                    self._observed(kept, workers, number, order)
        except GoneError as error:  # a side that does not even start says nothing about one technique
            self._say(f"round {number}: {error}")
            self._lost += 1
            if self._lost > LOST_ROUNDS:
                raise

    def _observed(self, kept: Kept, workers: dict[Side, Worker], number: int, order: random.Random) -> None:
        """One round of a technique: samples of both sides in turn, a call of each on the server, then growth."""
        replays = {} if kept.no_replay else self._replays(kept, workers, order)
        clocks: dict[Side, dict[str, Any]] = {}
        clocked = ("seconds", "dtypes", *(["server_cpu_s"] if self._of_servers else []))
        for _ in range(2):
            for side in order.sample(SIDES, len(SIDES)):
                try:
                    answer = workers[side].ask("one", kept.patience, key=self._key(kept.path, side))
                except GoneError as error:
                    self._break(kept, side, "failed", str(error))
                    raise
                if answer["status"] != "ok":
                    self._break(kept, side, answer["status"], answer["reason"])
                    return
                clocks[side] = answer  # the second's: what is done once has been done
        grown = {} if kept.no_replay else self._grown(kept, workers, order)
        for side in SIDES:
            told = {name: clocks[side][name] for name in clocked} | replays.get(side, {}) | grown.get(side, {})
            self._keep(kept.path, number, side, **told)

    def _replays(self, kept: Kept, workers: dict[Side, Worker], order: random.Random) -> dict[Side, dict[str, Any]]:
        """What calls that a recording answers took of each side; nothing where they cannot be had again."""
        # The first finds nothing imported, and nothing in a cache.
        turns = [order.sample(SIDES, len(SIDES)) for _ in range(SAMPLES + 1)]
        samples = self._asked_replays(kept, workers, "replay", turns, kept.calls)
        return {
            side: {"cpu_s": median(one["client_cpu_s"] for one in counted) / kept.calls}
            for side, (_, *counted) in samples.items()
        }

    def _grown(self, kept: Kept, workers: dict[Side, Worker], order: random.Random) -> dict[Side, dict[str, Any]]:
        """By how much each side grows with a call that a recording answers; nothing where it cannot be had again."""
        answers = self._asked_replays(kept, workers, "growth", [order.sample(SIDES, len(SIDES))], GROWTH_CALLS)
        return {side: {"growth_bytes": answer["growth_bytes"]} for side, (answer,) in answers.items()}

    def _asked_replays(
        self, kept: Kept, workers: dict[Side, Worker], do: str, turns: Sequence[Sequence[Side]], calls: int
    ) -> dict[Side, list[dict[str, Any]]]:
        """What each side answers, turn by turn; nothing of either where a recording cannot be had again.

        That is no fault of a side: a client may take its connections in another order each time.
        """
        answers: dict[Side, list[dict[str, Any]]] = {side: [] for side in SIDES}
        patience = kept.patience * (1 + calls / MOST_CALLS)
        with ExitStack() as stack:
            try:
                ports = {side: stack.enter_context(self._replayed(kept, side)).ports for side in SIDES}
                for side in itertools.chain.from_iterable(turns):
                    asked = {"key": self._key(kept.path, side), "ports": ports[side], "calls": calls}
                    answers[side].append(_had(workers[side].ask(do, patience, **asked)))
            except (ReplayError, GoneError) as error:
                kept.no_replay = str(error)
                if isinstance(error, GoneError):
                    raise
                return {}
        return answers

    def _replayed(self, kept: Kept, side: Side) -> AbstractContextManager[Replayer]:
        """A side's own conversations, had again."""
        return replayed(self._server(side, kept.path.database), kept.conversations.get(side, []))

    def _break(self, kept: Kept, side: Side, status: Status, reason: str) -> None:
        kept.broken[side] = status, reason
        self._keep(kept.path, 0, side, status=status, reason=reason)

    def _keep(self, path: GuardedPath, number: int, side: Side, **values: Any) -> None:
        self.passes.append(
            Guarded(
                run_id=self._run_id, **self.titles, slower=self._slower, **which(cast("Technique", path)),
                driver=path.driver, rows=None if isinstance(path, ShapePath) else self._rows, pass_=number,
                side=side, **values,
            )
        )  # fmt: skip


def _had(answer: dict[str, Any]) -> dict[str, Any]:
    """What came of a replay; raises ReplayError where nothing did."""
    if answer["status"] != "ok":
        raise ReplayError(f"what was recorded cannot be had again: {answer['reason']}")
    return answer


def _told_of_case(outcome: str, detail: str) -> str:
    """What came of an edge case, but the words of an error, which may be others each time."""
    if outcome == "error":
        return f"{outcome}{UNCLOSED * detail.endswith(UNCLOSED)}"
    return f"{outcome} {detail}".strip()


def _worse(what: str, before: str, after: str) -> str:
    """What a change of something exact comes to."""
    if what == "values":
        return "wrong" if after == "wrong" else "fails"
    if what == "types":
        return "dtypes changed"
    if what == "dtypes":
        return "dtypes changed" if before == "exact" else "changed"
    if what.startswith("bytes"):
        return "bytes changed"
    if what.startswith("case "):
        order = ("exact", "error", f"error{UNCLOSED}", "loss")
        ranks = [order.index(one if one in order else one.split()[0]) for one in (before, after)]
        return "changed" if ranks[1] <= ranks[0] else "wrong" if ranks[1] == order.index("loss") else "fails"
    return "changed"
