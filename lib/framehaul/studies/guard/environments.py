"""Two environments that differ in one package: each sees all that ours has, and its own version before it.

What is installed is the package itself. Of what it requires ours is taken where it fits, so that nothing else differs;
where it does not, or is not there, that is installed as well, and said.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from framehaul.errors import SettingsError, UnavailableError
from framehaul.settings import PROJECT

INSTALL_SECONDS = 900
"""How long a package may take to be had, or built."""
IMPORT_SECONDS = 120
TOOLS = PROJECT / ".framehaul" / "tools" / "bin"
"""Where set-up installs uv if there is none."""
NOT_BINARY = re.compile(r"no wheels|no usable wheels|no-build|only-binary|does not have a wheel", re.IGNORECASE)


class CandidateError(SettingsError):
    """A package cannot be had, or used; the message names it and says what to give instead."""


@dataclass(frozen=True)
class Environment:
    """One side: its interpreter, and what is in it beside what ours has."""

    side: str
    """What it was asked for as."""
    python: Path
    package: str
    version: str
    installed: dict[str, str]
    """What was installed, by its name, with its version."""
    modules: tuple[str, ...]
    """What the package is imported as."""
    content: str = ""
    """A digest of its files: two that say that they are of one version need not be the same."""

    @property
    def title(self) -> str:
        """The package with its version."""
        return f"{self.package} {self.version}"


def make(given: str, directory: Path) -> Environment:
    """An environment with the package that is given: a requirement, a wheel, a source tree or a URL.

    Raises CandidateError for what cannot be had or imported, UnavailableError without uv.
    """
    wanted, uv = _requirement(given), find_uv()
    python = directory / "bin" / "python"
    _run([uv, "venv", "--quiet", "--python", sys._base_executable, str(directory)], given)  # type: ignore[attr-defined]
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(directory)}))
    _install(uv, python, wanted, given)
    own = list(distributions(path=[str(site)]))
    if len(own) != 1:
        raise CandidateError(f"{given}: {len(own)} packages came of it; give one")
    package = own[0]
    # What follows it on the path is ours, with whatever that points to.
    ours = sysconfig.get_path("purelib")
    (site / "framehaul_guard.pth").write_text(f"import site; site.addsitedir({ours!r})\n", "utf8")
    while missing := _unmet(site):
        for one in missing:
            _install(uv, python, one, given)
    installed = {str(canonicalize_name(one.metadata["Name"])): one.version for one in distributions(path=[str(site)])}
    modules = _modules(package)
    environment = Environment(
        given, python, canonicalize_name(package.metadata["Name"]), package.version, installed, modules,
        _content(package),
    )  # fmt: skip
    _check_import(environment)
    return environment


def find_uv() -> str:
    """The program uv; raises UnavailableError where there is none."""
    found = shutil.which("uv") or shutil.which("uv", path=str(TOOLS))
    if not found:
        raise UnavailableError("uv is not on the PATH: pip install uv, or https://docs.astral.sh/uv/")
    return found


def _requirement(given: str) -> str:
    """What uv is asked for; raises CandidateError for what is neither there nor a requirement."""
    path = Path(given).expanduser()
    if given.endswith(".whl") or (os.sep in given.partition("@")[0] and "://" not in given):
        if not path.exists():
            raise CandidateError(f"{given}: there is no such file or directory")
        return str(path.resolve())
    if path.is_dir():
        return str(path.resolve())
    if "://" in given:
        return given
    try:
        wanted = Requirement(given)
    except InvalidRequirement as error:
        raise CandidateError(
            f"{given!r} is no requirement: give asyncpg==0.31.0, a wheel, a source tree or a URL such as git+https://..."
        ) from error
    return str(wanted)


def _install(uv: str, python: Path, wanted: str, given: str) -> None:
    command = [uv, "pip", "install", "--quiet", "--no-deps", "--python", str(python), wanted]
    try:
        Requirement(wanted)
        registry = "@" not in wanted
    except InvalidRequirement:
        registry = False
    if registry:  # a version without a wheel is for its maintainers to build, in a tree of their own
        command[5:5] = ["--only-binary", ":all:"]
    _run(command, given)


def _run(command: list[str], given: str) -> None:
    try:
        code, _, errors = _finished(command, INSTALL_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise CandidateError(f"{given}: not installed after {INSTALL_SECONDS} s") from error
    if code:
        said = " ".join(re.sub(r"\x1b\[[0-9;]*m|[×╰─▶│├]", "", errors).split())
        remedy = ""
        if NOT_BINARY.search(said):
            version = ".".join(map(str, sys.version_info[:2]))
            remedy = f"; for want of a wheel for Python {version} give a source tree, or a wheel that you have built"
        raise CandidateError(f"{given}: {said[-600:]}{remedy}")


def _finished(command: list[str], seconds: float) -> tuple[int, str, str]:
    """Exit status, output and errors; whatever ends the wait ends all that it has started, such as compilers."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        errors="replace", start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, errors = process.communicate(timeout=seconds)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, output, errors


def _unmet(site: Path) -> list[str]:
    """What the packages of an environment require, and neither it nor ours has in a version that fits."""
    own = {canonicalize_name(one.metadata["Name"]): one for one in distributions(path=[str(site)])}
    found: dict[str, str] = {}
    for one in own.values():
        for requirement in map(Requirement, one.requires or ()):
            name = canonicalize_name(requirement.name)
            there = own.get(name) or _ours(name)
            if _asked_for(requirement, there) and not (
                there and requirement.specifier.contains(there.version, prereleases=True)
            ):
                if name in own:
                    raise CandidateError(f"{one.metadata['Name']} {one.version} requires {requirement}, others do not")
                found[name] = f"{requirement.name}{requirement.specifier}"
    return [*found.values()]


def _asked_for(requirement: Requirement, there: Distribution | None) -> bool:
    """Whether it goes for this machine: what an extra wants only where that is there already, pinned to one version.

    So psycopg brings its compiled half, psycopg-binary, in its own version.
    """
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        return True
    extra = re.findall(r"""extra == ["']([^"']+)""", str(requirement.marker))
    pinned = all(one.operator == "==" for one in requirement.specifier) and len(requirement.specifier) > 0
    return bool(there and pinned and any(requirement.marker.evaluate({"extra": one}) for one in extra))


def _ours(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _modules(package: Distribution) -> tuple[str, ...]:
    """What a package is imported as, from its own list of files."""
    names: set[str] = set()
    for file in package.files or ():
        top = file.parts[0]
        if top.endswith((".dist-info", ".data", ".libs", ".pth")) or top in ("..", "__pycache__"):
            continue
        names.add(top.partition(".")[0])
    return tuple(sorted(name for name in names if name.isidentifier()))


def _content(package: Distribution) -> str:
    """A digest of what is imported of it."""
    files = sorted(str(one) for one in package.files or () if one.suffix != ".pyc" and ".dist-info" not in str(one))
    digest = hashlib.sha256()
    for name in files:
        path = Path(str(package.locate_file(name)))
        digest.update(name.encode() + b"\0" + (path.read_bytes() if path.is_file() else b""))
    return digest.hexdigest()


def _check_import(environment: Environment) -> None:
    """Raises CandidateError where the package does not import, or another one comes in its place."""
    code = (
        "import importlib, json, sys\n"
        f"found = {{name: importlib.import_module(name).__file__ for name in {environment.modules!r}}}\n"
        "print('\\n' + json.dumps(found))"
    )
    try:
        status, output, errors = _finished([str(environment.python), "-c", code], IMPORT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise CandidateError(f"{environment.side}: not imported after {IMPORT_SECONDS} s") from error
    if status:
        last = (errors.strip().splitlines() or [f"exit status {status}"])[-1]
        raise CandidateError(f"{environment.side} installs and does not import: {last}")
    own = str(environment.python.parents[1])
    for name, file in json.loads(output.splitlines()[-1]).items():
        # One without a file is a namespace, which several packages share.
        if file and not str(file).startswith(own):
            raise CandidateError(f"{environment.side}: {name} comes from {file}, not from what was installed")


def differing(a: Environment, b: Environment) -> Iterator[str]:
    """What beside the package differs between two environments, as `numpy 2.1 -> 2.2`."""
    for name in sorted({*a.installed, *b.installed} - {a.package, b.package}):
        one, other = (side.installed.get(name) or _version_of_ours(name) for side in (a, b))
        if one != other:
            yield f"{name} {one} -> {other}"


def _version_of_ours(name: str) -> str:
    there = _ours(name)
    return there.version if there else "none"
