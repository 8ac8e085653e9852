"""Two versions of a package: environments, processes, verdicts, and what is said of them."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import polars as pl
import psycopg
import pytest

from framehaul.errors import ServerError, SettingsError, UnavailableError, WrongResultError
from framehaul.results import store
from framehaul.results.ratios import Ratio
from framehaul.servers import Servers
from framehaul.servers.postgres import program
from framehaul.servers.replay import Conversation
from framehaul.servers.tables import tables_of
from framehaul.settings import PROJECT, Settings
from framehaul.studies.fidelity.trial import UNCLOSED
from framehaul.studies.guard import command, pairs, parties, series, study
from framehaul.studies.guard.counted import COUNTERS, Counter, address, find_counter
from framehaul.studies.guard.environments import CandidateError, Environment, make
from framehaul.studies.guard.formats import FORMATS, Found, render
from framehaul.studies.guard.parties import Wanted, both_of
from framehaul.studies.guard.rows import EXACT_RESULTS, Exact, Guarded, Side, table_of
from framehaul.studies.guard.shapes import Shapes, shape_paths, shapes_of
from framehaul.studies.guard.verdicts import (
    KEPT,
    LOOKS,
    TOGETHER_SHARE,
    judged,
    looks_at,
    status,
    suspected,
    together,
    told,
    told_by,
)
from framehaul.techniques.registry import named

NOW, THEN = "driver 2", "driver 1"
FETCH = "asyncpg.prepared_stmt.PreparedStatement.fetch"
CHANGES = {
    "loses": "return (await fetch(*arguments, **named))[:-1]",
    "raises": "raise RuntimeError('not today')",
    "dies": "import os; os._exit(3)",
    "hangs": "import time; time.sleep(1000)",
    "is slower": (
        "import time; begun = time.process_time(); rows = await fetch(*arguments, **named)\n"
        "    until = time.process_time() * 2 - begun\n"
        "    while time.process_time() < until: pass\n"
        "    return rows"
    ),
    "other types": (
        "rows = await fetch(*arguments, **named)\n"
        "    return [[value.decode() if isinstance(value, bytes) else value for value in row] for row in rows]"
    ),
    "asks more": "await arguments[0]._connection.execute('SELECT 1'); return await fetch(*arguments, **named)",
    "works more": "sum(range(100_000)); return await fetch(*arguments, **named)",
    # Mapped, and much: what allocators take and give back around three calls is a megabyte or two, and hid less.
    "keeps": (
        "import mmap; rows = await fetch(*arguments, **named)\n"
        "    kept.append(mmap.mmap(-1, 4_000_000)); kept[-1].write(b'x' * 4_000_000)\n"
        "    return rows"
    ),
}
"""What is done to a driver, as the body of the function that takes the place of its fetch."""


def sample(technique: str, number: int, side: Any, cpu_s: float | None = 0.1, **values: Any) -> Guarded:
    names: dict[str, Any] = {
        "label": technique,
        "origin": "beyond",
        "family": "copy_binary",
        "driver": "asyncpg",
        "frame": "polars",
    }
    return Guarded(
        run_id="r", baseline=THEN, candidate=NOW, slower=0.0, database="postgres", direction="read",
        technique=technique, rows=1000, pass_=number, side=side, cpu_s=cpu_s, **names, **values,
    )  # fmt: skip


def frame(samples: list[Guarded]) -> pl.DataFrame:
    return store.frame_of(Guarded, samples)


def facts(*found: tuple[str, str, str, str]) -> pl.DataFrame:
    rows = [
        Exact(baseline=THEN, candidate=NOW, database="postgres", direction="read", technique="one",
              what=what, before=before, after=after, worse=worse)
        for what, before, after, worse in found
    ]  # fmt: skip
    return store.frame_of(Exact, rows)


def rounds(technique: str, ratio: float, noise: float, number: int = LOOKS[1], seed: int = 1) -> list[Guarded]:
    """Rounds in which side b takes `ratio` times as long."""
    drawn = random.Random(f"{technique}/{seed}")
    found = []
    for at in range(1, number + 1):
        base = 0.1 * drawn.lognormvariate(0, 0.2)  # the machine is another one in each round
        found.append(sample(technique, at, "a", base, seconds=base))
        other = base * ratio * drawn.lognormvariate(0, noise)
        found.append(sample(technique, at, "b", other, seconds=base))
    return found


def wheel(directory: Path, change: str, of: str = "prepared_stmt.PreparedStatement") -> Path:
    """asyncpg as it is installed, one version on, with one function changed."""
    installed = distribution("asyncpg")
    version = f"{installed.version}.post1"
    patched = f"""

kept = []


def _changed():
    from asyncpg.{of.partition(".")[0]} import {of.partition(".")[2]} as changed_class

    fetch = changed_class.fetch

    async def changed(*arguments, **named):
        {change.replace(chr(10), chr(10) + "    ")}

    changed_class.fetch = changed


_changed()
"""
    path = directory / f"asyncpg-{version}-py3-none-any.whl"
    info = f"asyncpg-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        for one in installed.files or ():
            if one.suffix in (".pyc", "") or ".dist-info" in str(one) or one.parts[0] == "..":
                continue
            content = Path(str(one.locate())).read_bytes()
            file.writestr(str(one), content + patched.encode() * (str(one) == "asyncpg/__init__.py"))
        text = f"Metadata-Version: 2.1\nName: asyncpg\nVersion: {version}\n"
        file.writestr(f"{info}/METADATA", text)
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        names = [*file.namelist(), f"{info}/RECORD"]
        file.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in names))
    return path


def ran(settings: Settings, tmp_path: Path, capsys: Any, **given: Any) -> tuple[int, dict[str, Any]]:
    """Exit status and JSON of a guard."""
    terms = {"budget": "1s", "rows": "500", "format": "json", **given}
    code = command.run(command.asked(terms), replace(settings, out=tmp_path / "out"))
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert not [*settings.state_dir.glob("guard*")]
    return code, found


def guarded(
    settings: Settings, tmp_path: Path, change: str, capsys: Any, of: str = "prepared_stmt.PreparedStatement",
    **given: Any,
) -> tuple[int, dict[str, Any]]:  # fmt: skip
    """Exit status and what is said of the first path, of a guard of the installed asyncpg and a changed one."""
    terms = {
        "baseline": f"asyncpg=={distribution('asyncpg').version}",
        "candidate": str(wheel(tmp_path, CHANGES[change], of)), "techniques": "polars_asyncpg_prepared_fetch", **given,
    }  # fmt: skip
    code, found = ran(settings, tmp_path, capsys, **terms)
    return code, found["techniques"][0]


@pytest.mark.parametrize(
    ("samples", "exact", "verdict", "code"),
    [
        (rounds("one", 1.2, 0.02), facts(), "slower", 1),
        (rounds("one", 0.8, 0.02), facts(), "faster", 0),
        (
            [replace(one, seconds=(one.seconds or 0) * (1.5 if one.side == "b" else 1))
             for one in rounds("one", 0.9, 0.01)],
            facts(), "slower", 1,
        ),
        ([replace(one, cpu_s=None if one.pass_ > 3 else one.cpu_s) for one in rounds("one", 1.0, 0.005, LOOKS[0])],
         facts(), "no difference", 0),
        (rounds("one", 1.0, 0.005, LOOKS[0]), facts(), "no difference", 0),
        (rounds("one", 1.0, 0.6), facts(), "unstable", 2),
        (rounds("one", 1.2, 0.001, 2), facts(), "not compared", 2),
        (rounds("one", 1.0, 0.005), facts(("bytes sent", "1", "2", "bytes changed")), "bytes changed", 0),
        (rounds("one", 1.0, 0.005), facts(("instructions", "1000000", "1004000", "changed")), "no difference", 0),
        (rounds("one", 1.0, 0.005), facts(("instructions", "1000000", "994000", "changed")), "changed", 0),
        (rounds("one", 1.0, 0.005), facts(("Python bytes", "670835", "637795", "changed")), "no difference", 0),
        (rounds("one", 1.0, 0.005), facts(("bytes received", "475474", "475475", "bytes changed")), "no difference", 0),
        (rounds("one", 1.0, 0.005), facts(("bytes received", "2000", "2001", "bytes changed")), "bytes changed", 0),
        (rounds("one", 1.0, 0.005), facts(("Python bytes", "1000", "1200", "changed")), "changed", 0),
        (rounds("one", 1.0, 0.6), facts(("instructions", "10", "12", "changed")), "changed", 0),
        (rounds("one", 1.0, 0.005), facts(("round trips", "1000", "1001", "changed")), "changed", 0),
        (rounds("one", 1.0, 0.005), facts(("dtypes", "exact", "a:str", "dtypes changed")), "dtypes changed", 1),
        (rounds("one", 1.0, 0.005), facts(("case NaN", "exact", "loss NaN -> 0", "wrong")), "wrong", 1),
        (rounds("one", 1.0, 0.005), facts(("case NaN", "exact", "error", "fails")), "fails", 1),
        ([sample("one", 0, "b", status="failed", reason="dies")], facts(), "fails", 1),
        (
            [sample("one", 0, "b", status="failed", reason="lost")], facts(("values", "exact", "wrong", "wrong")),
            "wrong", 1,
        ),
        ([sample("one", 0, "a", status="failed", reason="dies")], facts(), "not compared", 2),
        ([sample("one", 0, "a", status="skipped", reason="no pg_parquet")], facts(), "not compared", 2),
        (
            [*rounds("one", 1.0, 0.005), sample("one", 0, "a", status="failed", reason="dies")],
            facts(), "not compared", 2,
        ),
        (rounds("one", 1.0, 0.005, 2), facts(("bytes sent", "1", "2", "bytes changed")), "bytes changed", 2),
        (
            [replace(one, growth_bytes=1 << 20 if one.side == "b" else 0) for one in rounds("one", 1.0, 0.005)],
            facts(), "leaks", 1,
        ),
        (
            [replace(one, growth_bytes=1 << 20) for one in rounds("one", 1.0, 0.005)],
            facts(), "no difference", 0,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_verdict_follows_from_what_was_found(
    samples: list[Guarded], exact: pl.DataFrame, verdict: str, code: int
) -> None:
    (found,) = judged(frame(samples), exact)
    assert found.verdict == verdict
    assert status([found]) == code


def test_a_leak_is_told_beside_what_is_worse() -> None:
    leaking = [replace(one, growth_bytes=1 << 20 if one.side == "b" else 0) for one in rounds("one", 1.4, 0.01)]
    (found,) = judged(frame(leaking), facts())
    assert found.verdict == "slower"
    assert [one.partition(" ")[0] for one in found.findings] == ["CPU", "each"]


@pytest.mark.parametrize(
    ("left", "verdict"), [((0, 300_000), "leaks"), ((0, 1_000), "no difference"), ((400_000, 500_000), "no difference")]
)
def test_what_looks_like_a_leak_is_one_where_many_calls_leave_something(left: tuple[int, int], verdict: str) -> None:
    leaking = [replace(one, growth_bytes=1 << 20 if one.side == "b" else 0) for one in rounds("one", 1.0, 0.005)]
    assert suspected(frame(leaking)) == {("postgres", "read", "one")}
    (found,) = judged(frame(leaking), facts((KEPT, str(left[0]), str(left[1]), "")))
    assert found.verdict == verdict


def test_a_difference_that_is_left_is_told() -> None:
    (found,) = judged(frame(rounds("one", 1.0, 0.01)), facts())
    assert found.text.startswith("no difference larger than ")
    assert 0 < found.bound < 0.05


def test_the_worst_stands_first() -> None:
    samples = [*rounds("fast", 0.7, 0.01), *rounds("same", 1.0, 0.005), *rounds("slow", 1.4, 0.01)]
    assert [one.key[2] for one in judged(frame(samples), facts())] == ["together", "slow", "fast", "same"]


def test_of_guards_of_equals_one_in_twenty_at_most_marks_anything() -> None:
    drawn, marked = random.Random(1), 0
    for _ in range(400):
        page = [Ratio(tuple(drawn.gauss(0, noise) for _ in range(LOOKS[-1]))) for noise in (0.02, 0.05, 0.05, 0.2)]
        marked += any(told_by(page, LOOKS[-1])) or any(told_by([together(page)], LOOKS[-1], TOGETHER_SHARE))
    assert marked <= 400 / 20


def test_what_is_slower_in_all_paths_is_told_of_all_together_where_no_path_tells() -> None:
    samples = [one for at in range(12) for one in rounds(f"path {at}", 1.1, 0.12, 7, at)]
    first, *paths = judged(frame(samples), facts())
    assert (first.label, first.verdict, status([first])) == ("all paths together", "slower", 1)
    assert first.cpu.high < 1
    assert {one.verdict for one in paths} <= {"unstable", "no difference"}


def test_one_path_that_is_slower_is_not_all_of_them() -> None:
    samples = [*rounds("slow", 1.4, 0.01), *(one for at in range(19) for one in rounds(f"{at}", 1.0, 0.01, seed=at))]
    first, second, *_ = judged(frame(samples), facts())
    assert (first.is_together, first.verdict) == (True, "no difference")
    assert (second.key[2], second.verdict) == ("slow", "slower")


def test_a_path_alone_has_no_line_for_all() -> None:
    lost = sample("lost", 0, "b", status="failed", reason="dies")
    assert [one.key[2] for one in judged(frame([*rounds("one", 1.0, 0.01), lost]), facts())] == ["lost", "one"]


def test_what_is_told_once_stays_told() -> None:
    drawn = random.Random(2)
    slow = Ratio(tuple(drawn.gauss(-0.2, 0.02) for _ in range(LOOKS[0])))
    loud = Ratio(tuple(drawn.gauss(0, 1.0) for _ in range(LOOKS[2])))
    assert told([slow, slow, slow]) == [-1, -1, -1]
    assert told_by([slow, slow, slow, loud], LOOKS[2], share=1)[:3] == [-1, -1, -1]


@pytest.mark.parametrize(
    ("rounds", "looks"), [(2, []), (4, [4]), (6, [6]), (8, [6, 8]), (20, [6, 9, 13, 19, 20]), (28, [*LOOKS])]
)
def test_looks_are_few(rounds: int, looks: list[int]) -> None:
    assert looks_at(rounds) == looks


def test_a_slow_down_of_a_fifth_is_found() -> None:
    told = sum(
        judged(frame(rounds("one", 1.2, 0.05, LOOKS[0], seed)), facts())[0].verdict == "slower" for seed in range(20)
    )
    assert told >= 18


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_says_what_became_worse(form: str) -> None:
    lost = [sample("lost\x1b", 0, "b", status="failed", reason="rows <lost> & \x00 gone")]
    found = judged(frame([*rounds("slow", 1.4, 0.01), *rounds("same", 1.0, 0.005), *lost]), facts())
    text = render(Found(THEN, NOW, found, ["differs as well: numpy 1 -> 2"]), form)
    if form == "junit":
        suite = ElementTree.fromstring(text)
        assert suite.get("failures") == "3" and suite.get("tests") == "4"
        failed = [one.get("name") for one in suite if one.find("failure") is not None]
        assert failed == ["together", "lost\ufffd", "slow"]
    elif form == "json":
        of = {one["technique"]: one for one in json.loads(text)["techniques"]}
        assert of["slow"]["regression"] and not of["same"]["regression"]
        assert of["slow"]["cpu"]["high"] < 1
    elif form == "asv":
        results = json.loads(text)
        assert results["version"] == 2
        columns = dict(zip(results["result_columns"], results["results"]["framehaul.postgres.read.slow"], strict=False))
        assert columns["result"][0] > 0.1
    elif form == "bencher":
        measures = json.loads(text)["postgres read slow"]
        assert measures["speed-over-baseline"]["lower_value"] <= measures["speed-over-baseline"]["value"]
    else:
        assert "slower" in text and "rows <lost>" in text and "numpy 1 -> 2" in text


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "BASELINE is missing"),
        ({"baseline": "asyncpg==1"}, "CANDIDATE is missing"),
        ({"baseline": "a", "candidate": "b", "budget": "soon"}, "BUDGET='soon'"),
        ({"baseline": "a", "candidate": "b", "format": "xml"}, "FORMAT='xml'"),
        ({"baseline": "a", "candidate": "b", "rows": "0"}, "ROWS='0'"),
        ({"baseline": "a", "candidate": "b", "rows": "many"}, "ROWS='many'"),
        ({"baseline": "a", "candidate": "b", "slower": "-1"}, "SLOWER='-1'"),
        ({"baseline": "a", "candidate": "b", "slower": "nan"}, "SLOWER='nan'"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(given: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        command.asked(given)


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        ("exact", "loss 1 became 2", "wrong"),
        ("exact dtypes id:Int64", "error", "fails"),
        ("error", pairs._told_of_case("error", f"ValueError: no{UNCLOSED}"), "fails"),
        (pairs._told_of_case("error", f"ValueError: no{UNCLOSED}"), "error", "changed"),
        ("loss 1 became 2", "exact", "changed"),
    ],
)
def test_what_becomes_of_an_edge_case_is_worse_or_another(before: str, after: str, worse: str) -> None:
    assert pairs._worse("case x", before, after) == worse


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200)])
def test_a_budget_has_a_unit(text: str, seconds: float) -> None:
    assert command.asked({"baseline": "a", "candidate": "b", "budget": text}).budget_seconds == seconds


@pytest.mark.parametrize(
    ("budget", "rows"), [("1s", command.LEAST_ROWS), ("2.5m", command.ROWS // 2), ("1h", command.ROWS)]
)
def test_a_small_budget_has_fewer_rows(budget: str, rows: int) -> None:
    assert command.asked({"baseline": "a", "candidate": "b", "budget": budget}).rows == rows
    assert command.asked({"baseline": "a", "candidate": "b", "budget": budget, "rows": "7"}).rows == 7


@pytest.mark.parametrize(
    ("given", "kind", "database", "source", "given_settings"),
    [
        ("asyncpg==0.31.0", "package", None, "asyncpg==0.31.0", ()),
        ("postgres==1.0", "package", None, "postgres==1.0", ()),
        ("../asyncpg", "package", None, "../asyncpg", ()),
        ("postgres", "server", "postgres", "", ()),
        ("postgres=/opt/pg17", "server", "postgres", "/opt/pg17", ()),
        ("postgres jit=on work_mem='64 MB'", "server", "postgres", "", (("jit", "on"), ("work_mem", "64 MB"))),
        ("postgres=/opt/pg17 auto_explain.x=1", "server", "postgres", "/opt/pg17", (("auto_explain.x", "1"),)),
        ("clickhouse=chdb-core==26.5.0", "server", "clickhouse", "chdb-core==26.5.0", ()),
        ("clickhouse max_threads=1", "server", "clickhouse", "", (("max_threads", "1"),)),
        ("driver=connect_rust", "driver", "clickhouse", "connect_rust", ()),
    ],
)  # fmt: skip
def test_what_is_compared_is_said_in_words(
    given: str, kind: str, database: str | None, source: str, given_settings: tuple[tuple[str, str], ...]
) -> None:
    assert Wanted.of(given) == Wanted(given, kind, database, source, given_settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("baseline", "candidate", "said"),
    [
        ("postgres", "clickhouse", "give two of a kind"),
        ("asyncpg==0.31.0", "postgres", "give two of a kind"),
        ("driver=asyncpg", "driver=connect", "give two of a kind"),
        ("driver=asyncpq", "driver=asyncpg", "did you mean asyncpg"),
        ("driver=go_pgx", "driver=asyncpg", "there is no such driver"),
        ("postgres", "postgres jit", "'jit' is no setting"),
        ("postgres", "postgres j\nfsync=off it=1", "is no setting"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused(baseline: str, candidate: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        both_of(baseline, candidate)


def test_a_directory_without_a_server_is_named(settings: Settings, tmp_path: Path) -> None:
    both = both_of("postgres", f"postgres={tmp_path}")
    with (
        pytest.raises(CandidateError, match="there is no "),
        parties.prepared(*both, settings, tmp_path, lambda _: None),
    ):
        pass
    assert not [*settings.state_dir.glob("guard*")]


def test_what_says_that_it_is_of_one_version_is_told_apart() -> None:
    assert parties._apart(("one 1", "one 2"), ("a", "b")) == ("one 1", "one 2")
    assert parties._apart(("one 1", "one 1"), ("a", "a")) == ("one 1", "one 1")
    assert parties._apart(("one 1", "one 1"), ("a", "")) == ("one 1 (a)", "one 1 (ours)")


def chosen(package: str, wanted: str = "") -> tuple[list[str], list[str]]:
    side = Environment("", Path(), package, "1", {}, (package,))
    paths, notes = command._chosen(parties.Compared("package", {}, (side, side), None, (), ()), wanted)
    return [one.name for one in paths], notes


def test_paths_are_those_that_a_package_is_in() -> None:
    names, notes = chosen("asyncpg")
    assert {"asyncpg/one", "asyncpg/copy", "asyncpg_uvloop/one", "polars_asyncpg_copy_binary"} <= {*names}
    assert not [one for one in names if "psycopg" in one]
    assert "further paths with asyncpg were left out" in notes[0]
    assert "adbc/one" in chosen("pyarrow")[0]
    assert chosen("asyncpg", "asyncpg_uvloop/")[0] == [f"asyncpg_uvloop/{one.name}" for one in shapes_of("postgres")]
    with pytest.raises(SettingsError, match="no path has"):
        chosen("nobody_uses_this")


def test_every_driver_of_python_says_which_packages_it_is() -> None:
    for one in shape_paths():
        for package in one.contender.packages:
            assert distribution(package).version


def test_of_a_server_all_paths_of_its_database_are_chosen() -> None:
    of = parties.Compared("server", {}, (), "clickhouse", (), ())
    paths, _ = command._chosen(of, "")
    assert {one.database for one in paths} == {"clickhouse"}
    assert any(one.origin == "baseline" for one in paths)
    drivers = replace(of, kind="driver", drivers=("connect", "connect_rust"))
    assert [one.name for one in command._chosen(drivers, "")[0]] == ["connect/flat", "connect/texts", "connect/nested"]


@pytest.mark.parametrize(("database", "name"), [("postgres", "psycopg/pg_type"), ("clickhouse", "connect/nested")])
def test_a_row_that_a_shape_lacks_is_missed(servers: Servers, database: Any, name: str) -> None:
    with ExitStack() as stack:
        shapes = Shapes(servers, stack, database, "test", "a")
        rows = shapes.sent(name, servers.of(database), nullcontext)
        shapes.verified(name, rows, stored=True)
        shapes.verified(name, rows, stored=True)
        with pytest.raises(WrongResultError):
            shapes.verified(name, rows[:-1], stored=True)
        with pytest.raises(WrongResultError):
            shapes.verified(name, [rows[0], *rows[:-1]], stored=True)


def test_a_row_that_a_shape_did_not_store_is_missed(servers: Servers) -> None:
    with ExitStack() as stack:
        shapes = Shapes(servers, stack, "postgres", "test", "a")
        sent = shapes.sent("psycopg/insert", servers.postgres, nullcontext)
        shapes.verified("psycopg/insert", sent, stored=True)
        with pytest.raises(WrongResultError, match="0 rows are stored"):  # they were counted, and removed
            shapes.verified("psycopg/insert", sent, stored=True)


def counted(script: str, of: Counter = COUNTERS[0], seconds: float = 60) -> int:
    counter = replace(of, command=("/bin/sh", "-c", script.replace("LOG", "{log}")))
    with counter.started([]) as counting:
        return counting.count(seconds)


def test_instructions_are_read_as_perf_and_valgrind_say_them() -> None:
    assert counted("echo '1234,,instructions:u,500,100.00,,' > LOG") == 1234
    assert counted("echo '==7== I   refs:      1,348,852' > LOG", COUNTERS[1]) == 1_348_852


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo '<not supported>,,instructions:u,0,100.00,,' > LOG", "counts nothing"),
        ("echo no permission >&2; exit 255", "no permission"),
        ("exec sleep 60", "takes longer than 1 s"),
    ],
)
def test_who_counts_no_instructions_says_why(script: str, said: str) -> None:
    with pytest.raises(UnavailableError, match=said):
        counted(script, seconds=1)


def test_without_a_counter_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    find_counter.cache_clear()
    with pytest.raises(UnavailableError, match="perf is not installed; valgrind is not installed"):
        find_counter()


def test_a_recording_is_asked_with_no_password(servers: Servers) -> None:
    for server in (servers.postgres, servers.clickhouse):
        shown = address(server)
        assert len(shown["password"]) == len(server.password)
        assert server.password not in json.dumps(shown)


def test_a_series_goes_on_where_it_was_ended(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    at, made = replace(settings, out=tmp_path), []
    (tmp_path / "results").mkdir()

    def run(of: command.Asked, _: Settings) -> int:
        made.append((of.baseline, of.slower))
        if len(made) == 2:
            raise KeyboardInterrupt
        if of.baseline == "gone":
            raise SettingsError("no such version")
        return 1

    monkeypatch.setattr(series, "run", run)
    guards = (series.Guard("a", "b"), series.Guard("b", "b", 0.5), series.Guard("gone", "b"))
    terms = series.asked({"budget": "1s"})
    with pytest.raises(KeyboardInterrupt):
        series.run_series(terms, at, guards)
    assert series.run_series(terms, at, guards) == 2
    assert made == [("a", 0), ("b", 0.5), ("b", 0.5), ("gone", 0)]
    assert "gone -> b: no such version" in capsys.readouterr().err
    assert series.run_series(terms, at, guards) == 2 and made[4:] == [("gone", 0)]
    assert series.run_series(series.asked({"budget": "2s"}), at, guards[:1]) == 0  # other terms: all anew
    assert len(made) == 6 and not [*(tmp_path / "results").iterdir()]


def test_a_series_has_guards_of_its_own() -> None:
    with pytest.raises(SettingsError, match="guards takes no CANDIDATE"):
        series.asked({"candidate": "asyncpg==0.31.0"})
    assert len({*series.SERIES}) == len(series.SERIES)
    for one in series.SERIES:
        both_of(one.baseline, one.candidate)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("no such thing", "is no requirement"), ("/nowhere/driver.whl", "no such file"), ("./nowhere", "no such file"),
    ],
)  # fmt: skip
def test_a_package_that_cannot_be_had_is_named(given: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(CandidateError, match=said):
        make(given, tmp_path / "a")


def test_an_environment_has_its_own_version_and_ours_of_all_else(tmp_path: Path) -> None:
    found = make(str(wheel(tmp_path, CHANGES["raises"])), tmp_path / "a")
    assert found.title == f"asyncpg {distribution('asyncpg').version}.post1"
    assert found.installed.keys() == {"asyncpg"}
    assert found.modules == ("asyncpg",)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["tree", "git"])
def test_an_environment_is_made_of_a_source_tree_and_of_a_checkout(form: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "tiny_driver").mkdir(parents=True)
    (tree / "tiny_driver" / "__init__.py").write_text("")
    (tree / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "tiny-driver"\nversion = "7"\n[tool.setuptools]\npackages = ["tiny_driver"]\n'
    )
    given = str(tree)
    if form == "git":
        who = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
        for command in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "first"]):
            subprocess.run(["git", "-C", tree, *command], check=True)
        given = f"git+file://{tree}"
    found = make(given, tmp_path / "a")
    assert (found.title, found.modules) == ("tiny-driver 7", ("tiny_driver",))


def test_a_package_that_does_not_import_is_refused_with_its_reason(tmp_path: Path) -> None:
    path = wheel(tmp_path, "pass\n    1 / 0\n    async def more():\n        pass")
    broken = tmp_path / "broken" / path.name
    broken.parent.mkdir()
    with zipfile.ZipFile(path) as file, zipfile.ZipFile(broken, "w") as copy:
        for name in file.namelist():
            copy.writestr(name, b"import no_such_module" if name == "asyncpg/__init__.py" else file.read(name))
    with pytest.raises(CandidateError, match="does not import: ModuleNotFoundError: No module named 'no_such_module'"):
        make(str(broken), tmp_path / "a")


@pytest.mark.parametrize(
    ("change", "verdict", "said"),
    [
        ("loses", "wrong", "rows"),
        pytest.param("raises", "fails", "RuntimeError: not today", marks=pytest.mark.slow),
        pytest.param("dies", "fails", "dies, with exit status 3", marks=pytest.mark.slow),
        pytest.param("hangs", "fails", "hangs: no answer to 'one' within", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_candidate_that_breaks_is_told_and_nothing_is_left(
    change: str, verdict: str, said: str, servers: Servers, settings: Settings, tmp_path: Path, capsys: Any,
    monkeypatch: Any,
) -> None:  # fmt: skip
    monkeypatch.setattr(pairs, "LEAST_SECONDS", 5.0)
    monkeypatch.setattr(pairs, "PATIENCE_TIMES", 2)
    code, found = guarded(settings, tmp_path, change, capsys)
    assert code == 1
    assert found["verdict"] == verdict, found["findings"]
    assert any(said in text for text in found["findings"])
    with psycopg.connect(servers.postgres.dsn()) as connection:
        left = connection.execute("SELECT relname FROM pg_class WHERE relname LIKE 'framehaul_guard%'").fetchall()
    assert not left


def test_a_replay_that_cannot_be_had_is_no_fault_of_the_candidate(servers: Servers, tmp_path: Path) -> None:
    class Says:
        def ask(self, do: str, *_: object, **__: object) -> dict[str, Any]:
            ok = {"status": "ok", "reason": None, "seconds": 0.1, "dtypes": "exact"}
            return {"status": "failed", "reason": "other connections"} if do == "replay" else ok

    sides: dict[Side, pairs.Party] = {
        side: pairs.Party(f"driver {side}", tmp_path, servers, tmp_path) for side in pairs.SIDES
    }
    guarding = pairs.Guarding(sides, tmp_path, rows=10, seed=1)
    kept = pairs.Kept(named("postgres", "read", "polars_asyncpg_prepared_fetch"))
    kept.conversations = {"a": [Conversation(0)], "b": [Conversation(0)]}
    for number in range(1, LOOKS[0] + 1):
        guarding._observed(kept, dict.fromkeys(pairs.SIDES, Says()), number, random.Random(1))  # type: ignore[arg-type]
    (found,) = judged(*guarding.frame())
    assert "other connections" in kept.no_replay and not kept.broken
    assert (found.verdict, found.cpu.logs, found.wall.rounds) == ("no difference", (), LOOKS[0])
    assert found.text == "no difference larger than 0%"


@pytest.mark.slow
def test_a_technique_without_rounds_is_told_with_what_is_exact(
    servers: Servers, settings: Settings, tmp_path: Path, capsys: Any
) -> None:
    code, found = guarded(settings, tmp_path, "keeps", capsys, budget="0")
    assert (code, found["verdict"]) == (2, "not compared")
    assert found["findings"] == [f"0 rounds, which takes {LOOKS[0]}: give a larger BUDGET"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "verdict", "said"),
    [
        ("loses", "wrong", "rows"),
        ("dies", "fails", "dies, with exit status 3"),
        ("keeps", "not compared", "0 rounds"),
        ("other types", "dtypes changed", "types: "),
    ],
)
def test_a_shape_that_breaks_is_told(
    change: str, verdict: str, said: str, servers: Servers, settings: Settings, tmp_path: Path, capsys: Any
) -> None:
    # Of the types of pg_type, "char" comes as a byte.
    asked = "asyncpg/pg_type" if change == "other types" else "asyncpg/integers"
    given = {"of": "connection.Connection", "techniques": asked, "budget": "0"}
    _, found = guarded(settings, tmp_path, change, capsys, **given)
    assert found["verdict"] == verdict, found["findings"]
    assert any(said in text for text in found["findings"])


@pytest.mark.slow
def test_what_a_candidate_asks_beyond_is_counted(
    servers: Servers, settings: Settings, tmp_path: Path, capsys: Any
) -> None:
    _, found = guarded(settings, tmp_path, "asks more", capsys, budget="0")
    said = " ".join(found["findings"])
    assert "statements: " in said and "bytes sent: " in said and "round trips: " in said


@pytest.mark.slow
def test_more_instructions_are_told_whatever_the_machine_does(
    servers: Servers, settings: Settings, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        find_counter()
    except UnavailableError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(pairs, "LOOKS", (1,))
    given = {"of": "connection.Connection", "techniques": "asyncpg_uvloop/arrays", "budget": "5m"}
    _, found = guarded(settings, tmp_path, "works more", capsys, **given)
    assert any(text.startswith("instructions: ") and "(+" in text for text in found["findings"]), found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("baseline", "candidate", "techniques", "title"),
    [
        ("postgres", "postgres work_mem=64MB", "polars_asyncpg_copy_text", " work_mem=64MB"),
        ("clickhouse", "clickhouse max_threads=1", "polars_urllib3_arrow_stream", " max_threads=1"),
        ("driver=connect", "driver=connect_rust", "flat", "Rust codec"),
    ],
)
def test_servers_and_drivers_are_compared(
    baseline: str, candidate: str, techniques: str, title: str, servers: Servers, settings: Settings, tmp_path: Path,
    capsys: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(pairs, "LOOKS", (1,))
    monkeypatch.setattr(pairs, "COUNTING_SHARE", 0)
    code, found = ran(
        settings, tmp_path, capsys, baseline=baseline, candidate=candidate, techniques=techniques, budget="90s"
    )
    assert title in found["candidate"] and title not in found["baseline"]
    assert code in (0, 1, 2) and not [one for one in found["techniques"] if one["verdict"] in ("fails", "wrong")]
    passes = store.read(tmp_path / "out" / "results" / "guard.csv", Guarded).filter(pl.col("pass") > 0)
    of_servers = baseline in ("postgres", "clickhouse")
    assert len(passes)
    assert passes["server_cpu_s"].null_count() == (0 if of_servers else len(passes))
    assert passes["cpu_s"].null_count() == (len(passes) if of_servers else 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("baseline", "candidate", "techniques"),
    [
        ("postgres", f"postgres={program('postgres').parents[1]}", "polars_asyncpg_copy_text"),
        ("clickhouse", f"clickhouse=chdb-core=={distribution('chdb-core').version}", "polars_urllib3_arrow_stream"),
    ],
)
def test_a_server_of_a_directory_or_of_a_wheel_is_compared(
    baseline: str, candidate: str, techniques: str, settings: Settings, tmp_path: Path, capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(pairs, "LOOKS", (1,))
    terms = {"baseline": baseline, "candidate": candidate, "techniques": techniques, "budget": "60s"}
    _, found = ran(settings, tmp_path, capsys, **terms)
    assert found["baseline"].endswith("(ours)") and found["candidate"] != found["baseline"]
    assert not [one for one in found["techniques"] if one["verdict"] in ("fails", "wrong")]


@pytest.mark.slow
def test_a_setting_that_a_server_does_not_know_is_named(settings: Settings, tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(ServerError, match='unrecognized configuration parameter "no_such"'):
        ran(settings, tmp_path, capsys, baseline="postgres", candidate="postgres no_such=1")
    assert not [*settings.state_dir.glob("guard*")]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_guard_that_is_ended_leaves_nothing(
    number: int, servers: Servers, settings: Settings, tmp_path: Path
) -> None:
    version = distribution("asyncpg").version
    given = ["--rows=500", "--techniques=asyncpg/one", f"--baseline=asyncpg=={version}", f"--out={tmp_path}"]
    with subprocess.Popen(
        [sys.executable, "-m", "framehaul", "guard", *given, f"--candidate={wheel(tmp_path, CHANGES['asks more'])}"],
        cwd=PROJECT, env=os.environ | {"FRAMEHAUL_STATE_DIR": str(settings.state_dir)}, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        assert any("exact," in line for line in process.stderr)
        process.send_signal(number)
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)  # as who cancels a workflow does
        assert "nothing of this guard is kept" in process.stderr.read()
    assert process.returncode in (130, -signal.SIGTERM)  # told again when all was over
    assert not [*settings.state_dir.glob("guard*")] and not (tmp_path / "results").exists()
    with psycopg.connect(servers.postgres.dsn()) as connection:
        left = connection.execute("SELECT relname FROM pg_class WHERE relname LIKE 'framehaul_guard%'").fetchall()
    assert not left


@pytest.mark.slow
def test_two_guards_at_once_do_not_end_each_others_servers(settings: Settings, tmp_path: Path) -> None:
    state = settings.state_dir.with_name("of-two-guards")  # beside the servers of the tests, which guards would use
    version = distribution("asyncpg").version
    given = ["--rows=500", "--budget=1s", "--techniques=asyncpg/one", f"--baseline=asyncpg=={version}"]
    candidates = [str(wheel(tmp_path, CHANGES["asks more"])), f"asyncpg=={version}"]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "framehaul", "guard", *given, f"--candidate={one}", f"--out={tmp_path}"],
            cwd=PROJECT, env=os.environ | {"FRAMEHAUL_STATE_DIR": str(state)}, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True,
        )
        for one in candidates
    ]  # fmt: skip
    errors = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started] == [2, 2], errors  # they have no time for rounds
    passes = store.read(tmp_path / "results" / "guard.csv", Guarded)
    assert {*passes["status"]} == {"ok"} and len({*passes["candidate"]}) == len(candidates)
    assert not [*state.glob("guard*")]
    shutil.rmtree(state)


def test_what_a_killed_guard_has_left_goes_with_the_next(servers: Servers, tmp_path: Path) -> None:
    sides: dict[Side, pairs.Party] = {side: pairs.Party(side, tmp_path, servers, tmp_path) for side in pairs.SIDES}
    guarding = pairs.Guarding(sides, tmp_path, rows=10, seed=1)
    with subprocess.Popen(["/bin/true"]) as dead:
        pass
    left, living = (table_of(f"{number}xabc", "a", "read") for number in (dead.pid, os.getpid()))
    both: tuple[tuple[Any, Any], ...] = (("postgres", servers.postgres), ("clickhouse", servers.clickhouse))
    for database, server in both:
        tables = tables_of(server)
        for table in (left, living):
            tables.create(table)
        guarding._drop_left(servers, database)
        tables.content(living)
        with pytest.raises((ServerError, psycopg.Error)):
            tables.content(left)
        tables.drop(living)


@pytest.mark.slow
def test_a_slower_candidate_is_found(servers: Servers, settings: Settings, tmp_path: Path, capsys: Any) -> None:
    code, found = guarded(settings, tmp_path, "is slower", capsys, budget="5m", rows="2000")
    assert (code, found["verdict"]) == (1, "slower"), found
    passes = store.read(tmp_path / "out" / "results" / "guard.csv", Guarded)
    exact = store.read(tmp_path / "out" / "results" / EXACT_RESULTS, Exact)
    assert len(passes["pass"].unique()) >= LOOKS[0]
    assert {"values", "dtypes", "bytes sent", "round trips", "statements"} <= {*exact["what"]}
    assert exact.filter(pl.col("what").str.starts_with("case "), pl.col("worse") != "").is_empty()


@pytest.mark.slow
def test_a_candidate_that_keeps_memory_is_found(
    servers: Servers, settings: Settings, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(pairs, "LOOKS", (3,))
    monkeypatch.setattr(pairs, "CASES_SHARE", 0)
    monkeypatch.setattr(pairs, "COUNTING_SHARE", 0)
    code, found = guarded(settings, tmp_path, "keeps", capsys, budget="30m", rows="10000")
    grown = store.read(tmp_path / "out" / "results" / "guard.csv", Guarded)["growth_bytes"].to_list()
    # A busy machine may find it slower as well, which comes first.
    assert code == 1 and found["verdict"] in ("leaks", "slower"), (found["findings"], grown)
    assert any("each call leaves" in one for one in found["findings"]), (found["findings"], grown)


@pytest.mark.slow
def test_a_version_that_there_is_not_is_named(tmp_path: Path) -> None:
    with pytest.raises(CandidateError, match="no version of asyncpg==999"):
        make("asyncpg==999", tmp_path / "a")


def test_results_of_other_versions_stay(settings: Settings, tmp_path: Path) -> None:
    at = replace(settings, out=tmp_path)
    run = {"started": "2026-11-23 00:00 UTC", "passes": 2, "rows": 1000, "seed": 1, "warmup": 1}
    for samples in (rounds("one", 1.3, 0.01), rounds("two", 1.0, 0.01)):
        command._keep(at, frame(samples), facts(), run)  # the same versions: the second takes the first's place
    other = [replace(one, candidate="driver 3") for one in rounds("one", 0.7, 0.01)]
    command._keep(at, frame(other), facts(), run)
    again = [
        replace(one, candidate=THEN, slower=slower) for slower in (0.0, 0.5) for one in rounds("one", 1 + slower, 0.02)
    ]
    command._keep(at, frame(again), facts(), run)
    shown = study.Guard.load(at)
    assert [*shown.pairs] == [(THEN, NOW), (THEN, "driver 3")]
    assert [one.key[2] for one in shown.pairs[THEN, NOW]] == ["two"]
    assert [one["slower"] for one in shown.trials] == [0.0, 0.5]
    assert [one["told"] for one in shown.trials] == [0, 1]
    assert [(one["guards"], one["paths"], one["marked"]) for one in shown.trials] == [(1, 1, 0), (1, 1, 1)]
    assert "driver 3" in shown.answer().data and "no difference" in shown.tables().data
    assert "<svg" in shown.chart().data
    assert (tmp_path / "figures" / "guard.svg").exists()
    assert study.writeup_blocks(tmp_path / "results").keys() == {"guard", "guard-power", "guard-rule"}
