"""Who is compared: each driver, and the program that drives it - built where it must be, started, asked, ended."""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from framehaul.bench.passes import Ok, Pass, attempt, last_line
from framehaul.data.documents import no_number
from framehaul.errors import UnavailableError, WrongResultError
from framehaul.settings import PROJECT, Settings

SOURCES = PROJECT / "drivers"
PATIENCE_SECONDS = 120
"""How long an answer may take beyond the time that was asked for."""
VERSION_SECONDS = 30
MOST_ANSWER_BYTES = 1 << 30
"""Far more than the latencies of the longest pass; an answer that goes on is no answer."""
READ_BYTES = 1 << 16
ERROR_BYTES = 1 << 16
"""How much of the end of a program's standard error is looked at."""

BUILT_HERE = "# Made by framehaul: make tools"

type Command = Callable[[Settings], list[str]]


@dataclass(frozen=True)
class Contender:
    """One driver in one way of using it: how tables and charts call it, and the program that drives it.

    `origin` is `published` for those that the article compared.
    """

    name: str
    label: str
    language: str
    origin: str
    command: Command
    arrays_as_text: bool = False
    """Whether it leaves arrays as the text that came from the server."""
    packages: tuple[str, ...] = ()
    """Of Python, what it is installed as, and the packages that its work is in beside that."""


class ProgramError(WrongResultError):
    """A program ended, did not answer, or gave an answer that is none."""


class Asked(Protocol):
    """What answers requests."""

    def ask(self, request: dict[str, Any], fields: Mapping[str, type] | None = None) -> dict[str, Any]:
        """The answer, which has these fields."""


class Program:
    """A running program: one request, one answer."""

    def __init__(self, process: subprocess.Popen[bytes], errors: Any) -> None:
        self._process, self._errors = process, errors

    @property
    def process_id(self) -> int:
        """To look at what it takes of the machine."""
        return self._process.pid

    def ask(self, request: dict[str, Any], fields: Mapping[str, type] | None = None) -> dict[str, Any]:
        """The answer, which has these fields; raises ProgramError when there is none, or another one.

        Raises UnavailableError when the driver cannot do this.
        """
        patience = PATIENCE_SECONDS + request.get("seconds", 0) + request.get("warmup_seconds", 0)
        try:
            return parsed(self._exchange(json.dumps(request).encode() + b"\n", patience), fields or {})
        except BrokenPipeError:
            raise self._ended() from None

    def _exchange(self, request: bytes, patience: float) -> bytes:
        """The line that answers the request; a program that says less or more than that is ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        into, out, answer = self._process.stdin.fileno(), self._process.stdout.fileno(), bytearray()
        deadline = time.monotonic() + patience
        while True:
            left = max(0, deadline - time.monotonic())
            readable, writable, _ = select.select([out], [into] if request else [], [], left)
            if readable:
                piece = os.read(out, READ_BYTES)
                if not piece:
                    raise self._ended()
                answer += piece
                if request:
                    raise self._given_up(f"it said something before it was asked: {_quoted(answer)}")
                if b"\n" in piece:
                    break
                if len(answer) > MOST_ANSWER_BYTES:
                    raise self._given_up(f"its answer has more than {MOST_ANSWER_BYTES:,} bytes: {_quoted(answer)}")
            elif writable:
                request = request[os.write(into, request) :]
            else:
                raise self._given_up(f"no answer within {patience:.0f} s")
        line, _, more = answer.partition(b"\n")
        if more:
            raise self._given_up(f"it said more than was asked: {_quoted(more)}")
        return bytes(line)

    def _given_up(self, why: str) -> ProgramError:
        self._process.kill()
        return ProgramError(why)

    def _ended(self) -> ProgramError:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - ERROR_BYTES))
        written = self._errors.read().decode(errors="replace")
        return ProgramError(last_line(written, "the program ended without a word")[:400])


def parsed(line: bytes, fields: Mapping[str, type]) -> dict[str, Any]:
    """The answer on a line; raises ProgramError where it says so, is no JSON object, or has not these fields.

    A `float` is any number, and numbers are finite and at least 0.
    """
    try:
        answer = json.loads(line, parse_constant=no_number)
    except (ValueError, RecursionError):  # also of text that is not UTF-8
        answer = None
    if not isinstance(answer, dict):
        raise ProgramError(f"its answer is no JSON object: {_quoted(line)}")
    if "unavailable" in answer:
        raise UnavailableError(str(answer["unavailable"]))
    if "error" in answer:
        raise ProgramError(str(answer["error"]))
    for name, kind in fields.items():
        value: Any = answer.get(name)
        is_number = kind in (int, float)
        if not (type(value) in (int, kind) and 0 <= value < 2**63 if is_number else type(value) is kind):
            raise ProgramError(f"its answer has no {name} that is {kind.__name__}, but {value!r:.80}")
    return answer


def _quoted(text: bytes | bytearray) -> str:
    return repr(bytes(text[:80]).decode(errors="replace"))


@contextmanager
def started(command: list[str]) -> Iterator[Program]:
    """A program that ends with the block, and with this process: its input ends then.

    Raises ProgramError when it cannot be started.
    """
    with (
        # chDB, for one, keeps files where temporary ones go, and does not remove them when it is killed.
        tempfile.TemporaryDirectory(prefix="framehaul-program-", ignore_cleanup_errors=True) as directory,
        tempfile.TemporaryFile() as errors,
        opened(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0,
            env=os.environ | {"TMPDIR": directory},
        ) as process,
    ):  # fmt: skip
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)  # a program that does not read keeps nobody waiting
        try:
            yield Program(process, errors)
        finally:
            # What it is doing has no use any more.
            process.kill()


def opened(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """A process; raises ProgramError when there can be none."""
    try:
        return subprocess.Popen(command, cwd=PROJECT, **options)
    except OSError as error:
        raise ProgramError(f"{Path(command[0]).name} cannot be started: {error.strerror}") from error


def go(name: str) -> Command:
    """The program of Go's drivers."""
    return lambda settings: [str(go_program(settings)), name]


def go_program(settings: Settings, *, patient: bool = False) -> Path:
    """Where the program of Go's drivers is, which is built where it is not there.

    Where Go has not compiled what they import, that takes a minute and is for the `patient`. Raises UnavailableError.
    """
    find_tool("go", "Go: install it (https://go.dev/dl/)")
    sources, target = SOURCES / "go", settings.tools_dir / "go"
    program, built_from = target / "drivers", target / ".framehaul"
    texts = [path.read_bytes() for path in sorted(sources.iterdir())]
    wanted = f"{hashlib.sha256(b''.join(texts)).hexdigest()} {version_output('go', 'env', 'GOVERSION')}"
    if not program.exists() or not built_from.exists() or built_from.read_text() != wanted:
        if not patient and not _is_compiled(sources):
            raise UnavailableError("Go's drivers are not built. make tools builds them, in about a minute")
        target.mkdir(parents=True, exist_ok=True)
        build(["go", "build", "-o", str(program), "."], sources, "Go's drivers were not built", shown=patient)
        built_from.write_text(wanted)
    return program


def _is_compiled(sources: Path) -> bool:
    """Whether Go's cache holds all that a program imports, looked up without a network."""
    listed = ["go", "list", "-deps", "-f", '{{if and .Stale (ne .Name "main")}}{{.ImportPath}}{{end}}', "."]
    try:
        done = subprocess.run(
            listed, cwd=sources, env=os.environ | {"GOPROXY": "off"}, capture_output=True, check=True,
            timeout=VERSION_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False
    return not done.stdout.strip()


def node(name: str) -> Command:
    """The program of Node's drivers."""
    return lambda settings: ["node", str(node_program(settings)), name]


def node_program(settings: Settings, *, patient: bool = False) -> Path:
    """Where the program of Node's drivers is, a copy with its packages installed beside it, which takes seconds.

    Who is not `patient` does not wait for a registry that does not answer. Raises UnavailableError.
    """
    target = settings.tools_dir / "node"
    for tool in ("node", "npm"):
        find_tool(tool, "Node.js with npm: install it (https://nodejs.org)")
    shutil.copytree(SOURCES / "node", target, dirs_exist_ok=True)
    lock = hashlib.sha256((target / "package-lock.json").read_bytes()).hexdigest()
    installed = target / "node_modules" / ".framehaul"
    if not installed.exists() or installed.read_text() != lock:
        options = [] if patient else ["--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=2000"]
        if not os.access(os.environ.get("HOME", ""), os.W_OK):  # npm 11 does not end where it cannot make its cache
            options.append(f"--cache={target / '.npm'}")
        build(["npm", "ci", "--no-progress", *options], target, "Node's drivers were not installed", shown=patient)
        installed.write_text(lock)
    return target / "main.js"


def adbc_clickhouse(settings: Settings) -> Path:
    """The manifest by which ADBC finds ClickHouse's driver in this environment; the driver is built where it is not.

    One that somebody has installed there (`dbc install clickhouse`) is left as it is. Raises UnavailableError.
    """
    sources, target = SOURCES / "adbc_clickhouse", settings.tools_dir / "adbc_clickhouse"
    library = target / "release" / f"libadbc_driver_clickhouse.{'dylib' if sys.platform == 'darwin' else 'so'}"
    # https://arrow.apache.org/adbc/current/format/driver_manifests.html
    manifest = Path(sys.prefix) / "etc" / "adbc" / "drivers" / "clickhouse.toml"
    text = f"{BUILT_HERE}\nmanifest_version = 1\n[Driver]\nshared = {json.dumps(str(library))}\n"
    if manifest.exists() and BUILT_HERE not in manifest.read_text():
        return manifest
    find_tool("cargo", "Rust: install it (https://rustup.rs)")
    # What is built already takes it no time.
    command = ["cargo", "build", "--release", "--locked", "--target-dir", str(target)]
    build(command, sources, "ClickHouse's ADBC driver was not built", shown=True)
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(text)
    return manifest


def versions() -> dict[str, str]:
    """The toolchains that are there, each with the drivers that are built by it."""
    toolchains = {}
    if shutil.which("go"):
        required = re.findall(r"^\t(\S+ v\S+)$", (SOURCES / "go" / "go.mod").read_text(), flags=re.MULTILINE)
        toolchains["Go"] = f"{version_output('go', 'env', 'GOVERSION').removeprefix('go')} ({', '.join(required)})"
    if shutil.which("node"):
        package = json.loads((SOURCES / "node" / "package.json").read_text())
        packages = map(" ".join, (package["dependencies"] | package["optionalDependencies"]).items())
        toolchains["Node"] = f"{version_output('node', '--version')} ({', '.join(packages)})"
    return toolchains


def version_output(*command: str) -> str:
    """What a toolchain says of itself; `unknown` where it cannot."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=True, timeout=VERSION_SECONDS
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def find_tool(name: str, what: str) -> None:
    """Raises UnavailableError where a program is not on PATH; `what` is what brings it, and from where."""
    if shutil.which(name) is None:
        raise UnavailableError(f"there is no {name} on PATH. It takes {what}, and run again")


def build(command: list[str], directory: Path, failed: str, *, shown: bool = False) -> None:
    """Run what builds or installs a program; raises UnavailableError with what it said, and no path of this machine.

    What is `shown` says it at once instead, on standard error, and takes as long as it takes.
    """
    streams = {"stdout": sys.stderr} if shown else {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(
        command, cwd=directory, text=True, errors="replace", start_new_session=True, **streams
    ) as process:  # fmt: skip
        try:
            out, errors = process.communicate(timeout=None if shown else PATIENCE_SECONDS)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)  # and the compilers that it has started
            if isinstance(error, subprocess.TimeoutExpired):
                raise UnavailableError(f"{failed} within {PATIENCE_SECONDS} s. make tools waits for that") from None
            raise
    if process.returncode:
        output = " ".join((errors or out or "see above").replace(f"{directory}", "").split())[-300:]
        raise UnavailableError(f"{failed}: {' '.join(command[:2])} said: {output}")


class Commands:
    """The command of each contender, or other tool; what has to be built is built once, or found to be impossible."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._commands: dict[str, Pass[list[str]]] = {}

    def of(self, name: str, command: Command) -> list[str]:
        """Raises UnavailableError when it cannot be had here."""
        if name not in self._commands:
            self._commands[name] = attempt(lambda: command(self._settings), failures=())
        known = self._commands[name]
        if isinstance(known, Ok):
            return known.values
        raise UnavailableError(known.reason)


def _python(database: str, name: str, label: str, packages: str, origin: str = "beyond") -> Contender:
    command = [sys.executable, "-m", "framehaul.studies.drivers.program", database, name]
    return Contender(name, label, "Python", origin, lambda _: command, packages=tuple(packages.split()))


_postgres, _clickhouse = partial(_python, "postgres"), partial(_python, "clickhouse")

POSTGRES = (
    _postgres("asyncpg", "asyncpg, asyncio", "asyncpg"),
    _postgres("asyncpg_uvloop", "asyncpg, uvloop", "asyncpg uvloop", "published"),
    _postgres("psycopg", "psycopg 3, threads", "psycopg psycopg-binary"),
    _postgres("psycopg_binary", "psycopg 3 binary, threads", "psycopg psycopg-binary"),
    _postgres("psycopg_async", "psycopg 3, uvloop", "psycopg psycopg-binary uvloop"),
    _postgres("psycopg_async_binary", "psycopg 3 binary, uvloop", "psycopg psycopg-binary uvloop"),
    _postgres("psycopg2", "psycopg2, threads", "psycopg2-binary"),
    _postgres("psycopg2_dict", "psycopg2 DictCursor, threads", "psycopg2-binary"),
    _postgres("aiopg", "aiopg, uvloop", "aiopg psycopg2-binary uvloop", "published"),
    _postgres("aiopg_dict", "aiopg DictCursor, uvloop", "aiopg psycopg2-binary uvloop", "published"),
    _postgres("pg8000", "pg8000, threads", "pg8000"),
    _postgres("adbc", "ADBC to Arrow, threads", "adbc-driver-postgresql adbc-driver-manager pyarrow"),
    Contender("go_pgx", "Go pgx", "Go", "beyond", go("pgx")),
    Contender("go_pq", "Go lib/pq, all decoded", "Go", "beyond", go("pq")),
    Contender("go_pq_undecoded", "Go lib/pq, arrays left as text", "Go", "published", go("pq_undecoded"), True),
    Contender("node_pg", "Node pg", "Node", "published", node("pg")),
    Contender("node_pg_native", "Node pg-native", "Node", "published", node("pg_native")),
)

CLICKHOUSE = (
    _clickhouse("connect_async", "clickhouse-connect async", "clickhouse-connect", "published"),
    _clickhouse(
        "connect_async_rust", "clickhouse-connect async, Rust codec", "clickhouse-connect clickhouse-connect-core"
    ),
    _clickhouse("connect", "clickhouse-connect", "clickhouse-connect"),
    _clickhouse("connect_rust", "clickhouse-connect, Rust codec", "clickhouse-connect clickhouse-connect-core"),
    _clickhouse("aiochlite_rows", "aiochlite (Row)", "aiochlite", "published"),
    _clickhouse("aiochlite_tuples", "aiochlite (tuples)", "aiochlite", "published"),
    _clickhouse("aiochclient", "aiochclient", "aiochclient aiohttp", "published"),
    _clickhouse("asynch", "asynch", "asynch"),
    _clickhouse("clickhouse_driver", "clickhouse-driver", "clickhouse-driver"),
    _clickhouse("httpx_json", "httpx, JSONCompactEachRow", "httpx"),
)
