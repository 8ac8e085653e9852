"""What is compared: two versions of a package, two servers or their settings, or two ways of using a driver."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.metadata import distribution
from pathlib import Path
from typing import Literal, cast

from framehaul import servers
from framehaul.errors import SettingsError
from framehaul.harness.environment import server_versions
from framehaul.servers import Servers, embedded
from framehaul.servers.embedded import Variant, home_of_a_run, moved
from framehaul.settings import Settings, nearest
from framehaul.studies.guard.environments import CandidateError, Environment, differing, make
from framehaul.studies.guard.pairs import SIDES, Party
from framehaul.studies.guard.rows import Side
from framehaul.studies.guard.shapes import CONTENDERS
from framehaul.techniques.registry import DATABASES, Database

SERVER = re.compile(r"(postgres|clickhouse)(?:=(?!=)(\S+))?((?:\s+\S.*)?)", re.DOTALL)
VERSION = re.compile(r"\d+(?:\.\d+)+")
DRIVER = re.compile(r"driver=(\S+)")
STATE = "guard_servers"
"""What directories of servers are called that are compared."""
DIGITS = 8
"""Of what two of the same version are told apart by."""
SETTINGS = "give settings as name=value, with blanks between them"

type Kind = Literal["package", "server", "driver"]


@dataclass(frozen=True)
class Wanted:
    """A side as it was asked for; raises SettingsError for what is none."""

    given: str
    kind: Kind
    database: Database | None = None
    source: str = ""
    """A package; of PostgreSQL the directory of an installation, of ClickHouse a package; of a driver its name."""
    settings: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, given: str) -> Wanted:
        """What the words say."""
        if match := DRIVER.fullmatch(given.strip()):
            known = {one.name: database for database, every in CONTENDERS.items() for one in every if one.packages}
            if match[1] not in known:
                raise SettingsError(f"{given!r}: there is no such driver; {nearest(match[1], known)}")
            return cls(given, "driver", known[match[1]], match[1])
        if match := SERVER.fullmatch(given.strip()):
            database, source, words = cast("Database", match[1]), match[2] or "", shlex.split(match[3])
            settings = tuple((name, value) for name, _, value in (word.partition("=") for word in words))
            for (name, _), word in zip(settings, words, strict=True):
                if "=" not in word or not re.fullmatch(r"\w+(\.\w+)?", name):
                    raise SettingsError(f"{given!r}: {word!r} is no setting; {SETTINGS}")
            return cls(given, "server", database, source, settings)
        return cls(given, "package", source=given)


@dataclass(frozen=True)
class Compared:
    """Both sides, ready to be asked."""

    kind: Kind
    parties: dict[Side, Party]
    packages: tuple[Environment, ...]
    """Of packages, both environments."""
    database: Database | None
    """Of servers and drivers."""
    drivers: tuple[str, ...]
    notes: tuple[str, ...]


def both_of(baseline: str, candidate: str) -> tuple[Wanted, Wanted]:
    """Both as they were asked for; raises SettingsError where they cannot be compared with each other."""
    a, b = Wanted.of(baseline), Wanted.of(candidate)
    if (a.kind, a.database) != (b.kind, b.database):
        raise SettingsError(
            f"BASELINE={baseline!r} is a {_what(a)} and CANDIDATE={candidate!r} a {_what(b)}: give two of a kind"
        )
    return a, b


def _what(one: Wanted) -> str:
    return " ".join(filter(None, (one.kind, "of" if one.database else "", DATABASES.get(one.database or "", ""))))


@contextmanager
def prepared(
    a: Wanted, b: Wanted, settings: Settings, directory: Path, say: Callable[[str], object]
) -> Iterator[Compared]:
    """Both sides, with the servers that they need, for as long as the block lasts.

    Raises SettingsError for what cannot be had, ServerError when a server cannot be.
    """
    kinds = {"package": _packages, "server": _servers, "driver": _drivers}
    with kinds[a.kind]((a, b), settings, directory, say) as found:
        yield found


@contextmanager
def _one_pair(settings: Settings) -> Iterator[tuple[Servers, Path]]:
    """Servers for both sides, and where they are found: those that run, or some that no other guard ends, or uses."""
    if settings.servers != "embedded" or embedded.is_kept(settings.state_dir):
        with servers.running(settings) as running:
            yield running, settings.state_dir
        return
    with servers.running_apart(settings, STATE) as found:
        yield found


@contextmanager
def _packages(
    both: tuple[Wanted, Wanted], settings: Settings, directory: Path, say: Callable[[str], object]
) -> Iterator[Compared]:
    say(f"making an environment with {both[0].given}, and one with {both[1].given}")
    a, b = (make(one.source, directory / side) for one, side in zip(both, SIDES, strict=True))
    if a.package != b.package:
        raise SettingsError(f"BASELINE is {a.package} and CANDIDATE {b.package}: give two versions of one package")
    titles = (a.title, b.title) if a.side == b.side else _apart((a.title, b.title), (a.content, b.content))
    with _one_pair(settings) as (running, state_dir):
        parties: dict[Side, Party] = {
            side: Party(title, one.python, running, state_dir)
            for side, title, one in zip(SIDES, titles, (a, b), strict=True)
        }
        notes = tuple(f"differs as well: {one}" for one in differing(a, b))
        yield Compared("package", parties, (a, b), None, (), notes)


@contextmanager
def _drivers(
    both: tuple[Wanted, Wanted], settings: Settings, _: Path, __: Callable[[str], object]
) -> Iterator[Compared]:
    with _one_pair(settings) as (running, state_dir):
        parties: dict[Side, Party] = {
            side: Party(_driver_title(one), Path(sys.executable), running, state_dir, one.source)
            for side, one in zip(SIDES, both, strict=True)
        }
        yield Compared("driver", parties, (), both[0].database, tuple(one.source for one in both), ())


def _driver_title(one: Wanted) -> str:
    assert one.database is not None
    contender = next(each for each in CONTENDERS[one.database] if each.name == one.source)
    return f"{contender.label} ({contender.packages[0]} {distribution(contender.packages[0]).version})"


@contextmanager
def _servers(
    both: tuple[Wanted, Wanted], settings: Settings, directory: Path, say: Callable[[str], object]
) -> Iterator[Compared]:
    if settings.servers != "embedded":
        raise SettingsError(f"SERVERS={settings.servers}: servers that are compared are started here, SERVERS=embedded")
    with ExitStack() as stack:
        parties: dict[Side, Party] = {}
        titles, contents = [], []
        for side, one in zip(SIDES, both, strict=True):
            say(f"starting {one.given}")
            home = stack.enter_context(home_of_a_run(settings.state_dir, STATE))
            variant, content = _variant(one, directory / side)
            own = replace(moved(settings, home), postgres_extensions=None)
            running = stack.enter_context(embedded.running(own, variant))
            assert one.database is not None
            version = VERSION.search(server_versions(running)[one.database])
            name = f"{DATABASES[one.database]} {version[0] if version else 'of no version'}"
            titles.append(" ".join([name, *map("=".join, one.settings)]))
            contents.append(content)
            parties[side] = Party("", Path(sys.executable), running, home)
        for side, title in zip(SIDES, _apart((titles[0], titles[1]), (contents[0], contents[1])), strict=True):
            parties[side] = replace(parties[side], title=title)
        yield Compared("server", parties, (), both[0].database, (), ())


def _variant(one: Wanted, directory: Path) -> tuple[Variant, str]:
    """The servers that are wanted, and what of them is the same only where they are.

    Raises CandidateError for what is no server.
    """
    settings = dict(one.settings)
    if one.database == "postgres":
        if not one.source:
            return Variant(postgres=settings), ""
        installation = Path(one.source).expanduser().resolve()
        programs = [installation / "bin" / name for name in ("postgres", "initdb", "pg_isready")]
        if missing := [str(one) for one in programs if not one.is_file()]:
            raise CandidateError(f"{one.given}: there is no {missing[0]}; give the directory that PostgreSQL is in")
        return Variant(installation=installation, postgres=settings), sha256(programs[0].read_bytes()).hexdigest()
    if not one.source:
        return Variant(clickhouse=settings), ""
    environment = make(one.source, directory)
    if environment.package != "chdb-core":
        raise CandidateError(f"{one.given}: it is {environment.package}; give a wheel, or a version, of chdb-core")
    return Variant(str(environment.python), clickhouse=settings), environment.content


def _apart(titles: tuple[str, str], contents: tuple[str, str]) -> tuple[str, str]:
    """Two titles, which tell apart what says that it is of the same version, and is not the same."""
    if titles[0] != titles[1] or contents[0] == contents[1]:
        return titles
    return f"{titles[0]} ({contents[0][:DIGITS] or 'ours'})", f"{titles[1]} ({contents[1][:DIGITS] or 'ours'})"
