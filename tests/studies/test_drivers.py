"""The studies of drivers: loops and latencies, the check of rows, the programs, and the passes of a run."""

import asyncio
import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from framehaul.bench import store
from framehaul.bench.rounds import attempt, columns_of
from framehaul.errors import UnavailableError
from framehaul.servers import Servers
from framehaul.settings import PROJECT, Settings
from framehaul.studies.drivers import catalog, program
from framehaul.studies.drivers import study as drivers
from framehaul.studies.drivers.shapes import CLICKHOUSE_TABLES, POSTGRES_SHAPES, PUBLISHED_SHAPES, Driver, Shape
from framehaul.studies.drivers.study import LABELS, MEAN, Contender, Measurement, Target, judged, with_means
from framehaul.studies.registry import CLICKHOUSE_CLIENTS, POSTGRES_DRIVERS
from tests.conftest import WHOLE, mostly_slow, values_of

SHAPES = {shape.name: shape for shape in POSTGRES_SHAPES}


# What a run leaves behind


@WHOLE
def test_every_postgres_driver_answered_every_shape_in_every_pass(out: Path) -> None:
    passes = store.read(out / "results" / POSTGRES_DRIVERS.results, Measurement)
    expected = product((one.name for one in drivers.POSTGRES), SHAPES, [1])
    assert sorted(passes.select("driver", "shape", "pass").rows()) == sorted(expected)
    here = pl.col("language").is_in(["Python", *["Go"] * bool(shutil.which("go"))])
    wrong = passes.filter((pl.col("status") == "failed") | ((pl.col("status") == "skipped") & here))
    assert wrong.is_empty(), wrong


@WHOLE
def test_every_clickhouse_client_fetched_every_table(out: Path) -> None:
    passes = store.read(out / "results" / CLICKHOUSE_CLIENTS.results, Measurement)
    assert set(passes["status"]) == {"ok"}, passes.filter(pl.col("status") != "ok")
    several = [("flat", count) for count in values_of(out, CLICKHOUSE_CLIENTS)["concurrency"]]
    expected = product(drivers.CLICKHOUSE, [*several, ("texts", 1), ("nested", 1)], [1])
    found = sorted(passes.select("driver", "shape", "connections", "pass").rows())
    assert found == sorted((one.name, *shape, number) for one, shape, number in expected)
    assert passes.filter(pl.col("queries") != pl.col("connections")).is_empty()
    assert passes.filter(pl.col("rows") != pl.col("connections") * (300 // pl.col("connections"))).is_empty()


# Each program


@pytest.fixture(scope="module")
def target(servers: Servers) -> Iterator[Target]:
    with drivers.target_on(servers.postgres) as target:
        yield target


def ended(driver: Contender, shape: Shape, target: Target, settings: Settings, connections: int = 2) -> dict[str, Any]:
    """Return how a pass of a driver ended, as the columns of its row."""
    task, time = (driver, shape, connections), {"seconds": 0.05, "warmup_seconds": 0}
    return columns_of(attempt(partial(drivers.measured, task, target, settings, time)))


# One of each loop; what is not Python is built first.
SOME = mostly_slow(drivers.POSTGRES, lambda one: one.name in ("asyncpg", "psycopg_binary"), lambda one: one.name)


@pytest.mark.parametrize("driver", SOME)
def test_a_driver_says_why_it_failed_and_no_password(
    driver: Contender, target: Target, settings: Settings, request: pytest.FixtureRequest
) -> None:
    if driver.language != "Python":
        request.getfixturevalue("built_drivers")
    good, _ = target
    server = good["server"] | {"password": good["server"]["password"] + "wrong"}
    wrong = {"dsn": good["dsn"].replace("@", "wrong@", 1), "server": server}
    fetched = ended(driver, SHAPES["one"], target, settings)
    if fetched["status"] == "skipped":
        pytest.skip(fetched["reason"])
    assert fetched["rows_per_s"] > 0
    unknown = dataclasses.replace(SHAPES["one"], sql="SELECT no_such_column")
    broken = ended(driver, unknown, (good, lambda _: []), settings)
    assert "no_such_column" in broken["reason"]
    refused = ended(driver, SHAPES["one"], (wrong, lambda _: []), settings)
    assert refused["status"] == "failed"
    assert server["password"] not in refused["reason"]


# The loop of Python's drivers


@pytest.mark.parametrize("loop", ["threads", "asyncio", "uvloop"])
def test_a_query_that_fails_is_raised_and_all_connections_are_closed(loop: Any) -> None:
    closed: list[list[int]] = []

    def fetch(client: list[int], _: Shape) -> list[tuple[int]]:
        client.append(1)
        if len(client) == 3:
            raise ValueError("the third")
        return [(1,)]

    async def fetch_async(client: list[int], shape: Shape) -> list[tuple[int]]:
        await asyncio.sleep(0)
        return fetch(client, shape)

    @contextmanager
    def opened(_: None) -> Iterator[list[int]]:
        client: list[int] = []
        try:
            yield client
        finally:
            closed.append(client)

    driver = Driver("mine", opened, fetch if loop == "threads" else fetch_async, loop=loop)
    request = {"shape": dataclasses.asdict(SHAPES["one"]), "connections": 5, **drivers.ONE_QUERY}
    answer = program.answered(driver, None, request)
    assert answer["queries"] == answer["rows"] == len(answer["latencies_ns"]) == 5  # at least one on each
    assert answer["checked"] == [[1]]
    closed.clear()
    with pytest.raises(ValueError, match="the third"):
        program.answered(driver, None, request | {"seconds": 0.2})
    assert 3 in map(len, closed)
    assert len({*map(id, closed)}) == len(closed) == 6


# What counts as right


@pytest.mark.parametrize(
    ("got", "said"),
    [
        ([[1, "a", [1, 2]]], None), ([[1, "61", [1, 2]]], None),  # the byte of a "char"
        ([["1", "a", [1, 2]]], "row 0: 1 became '1'"), ([[1, "a", [1, 3]]], "[1, 2] became [1, 3]"),
        ([[1, "a", "{1,2}"]], "[1, 2] became '{1,2}'"), ([[True, "a", [1, 2]]], "1 became True"),
        ([[1, None, [1, 2]]], "'a' became NULL"), ([], "0 rows instead of 1"),
    ],
)  # fmt: skip
def test_a_difference_is_found(got: Any, said: str | None) -> None:
    found = drivers.difference(got, [[1, "a", [1, 2]]], arrays_as_text=False)
    assert found is None if said is None else found is not None and said in found
    assert drivers.difference([["{1,2}"]], [[[1, 2]]], arrays_as_text=True) is None
    assert drivers.difference([["{1,3}"]], [[[1, 2]]], arrays_as_text=True)
    assert drivers.difference([[11]], [["11"]], arrays_as_text=False) is None  # an oid, which JSON quotes
    assert drivers.difference([["6162"]], [["\\x6162"]], arrays_as_text=False) is None


FINE: dict[str, Any] = {"checked": [[2]], "queries": 2, "rows": 2, "seconds": 1, "cpu_seconds": 0}
FINE["latencies_ns"] = [1_000_000, 3_000_000]


def fake(name: str, answer: object = None, deed: str = "") -> Contender:
    script = f"import json, sys, time\nsys.stdin.read()\n{deed}\nprint(json.dumps({answer or FINE!r}))"
    return Contender(name, name, "Python", "beyond", lambda _: [sys.executable, "-c", script])


@pytest.mark.parametrize(
    ("driver", "status", "reason"),
    [
        (fake("honest"), "ok", None),
        (fake("lies", FINE | {"checked": [[3]]}), "failed", "row 0: 2 became 3"),
        (fake("loses", FINE | {"rows": 1}), "failed", "1 rows in 2 queries of 1 each"),
        (fake("idle", FINE | {"queries": 0}), "failed", "it ran no query within the time"),
        (fake("mute", deed="sys.exit(0)"), "failed", "JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
        (fake("dies", deed="sys.exit('out of luck')"), "failed", "out of luck"),
        (fake("short", FINE | {"checked": [[]]}), "failed", "ValueError: zip() argument 2 is longer than argument 1"),
        (fake("cannot", deed="print('use another', file=sys.stderr); sys.exit(3)"), "skipped", "use another"),
        (fake("hangs", deed="time.sleep(3600)"), "failed", "it did not end within 0 s"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_driver_that_is_wrong_or_breaks_is_failed(
    driver: Contender, status: str, reason: str, target: Target, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    if driver.name == "hangs":
        monkeypatch.setattr(drivers, "PATIENCE_SECONDS", 0.1)
    found = ended(driver, SHAPES["one"], target, settings)
    assert (found["status"], found["reason"]) == (status, reason)
    if status == "ok":
        assert found["rows_per_s"] == 2
        latencies = [found[f"latency_{name}_ms"] for name in ("mean", "p50", "p90", "p99", "max")]
        assert latencies == pytest.approx([2, 2, 2.8, 2.98, 3])


@pytest.mark.parametrize("table", CLICKHOUSE_TABLES, ids=lambda table: table.name)
def test_a_client_with_other_rows_is_failed(table: Any, servers: Servers, settings: Settings) -> None:
    shape = table.shape(50)
    with drivers.target_on(servers.clickhouse, 50) as target:
        rows = target[1](shape)
        other = fake("other", FINE | {"rows": 100, "checked": [*rows[:-1], [rows[-1][0] + 1, *rows[-1][1:]]]})
        assert ended(other, shape, target, settings)["reason"] == "row 49: 49 became 50"
        assert ended(drivers.CLICKHOUSE[0], shape, target, settings)["status"] == "ok"


# Programs of other languages


def test_a_missing_toolchain_is_named_and_what_is_not_built_is_left_to_make_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, state = tmp_path / "log", Settings(state_dir=tmp_path / "state")
    monkeypatch.setenv("PATH", str(tmp_path))
    built = catalog.driver_program
    for language, remedy in (("Go", "https://go.dev/dl/"), ("Node", "https://nodejs.org")):
        with pytest.raises(UnavailableError, match=rf"drivers are not built\. make tools builds them.*{remedy}"):
            built(language, state)
        with pytest.raises(UnavailableError, match=f"there is no .* on PATH.*{remedy}"):
            built(language, state, make=True)
    assert catalog.versions() == {}
    for name in ("go", "npm"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} $1 >> {log}\ntest ! -e {tmp_path}/broken\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    for language in ("Go", "Node"):
        (tmp_path / "broken").touch()
        with pytest.raises(UnavailableError, match=r"drivers were not built: (go build|npm ci) said: see above"):
            built(language, state, make=True)
        (tmp_path / "broken").unlink()
        for _ in range(2):
            assert built(language, state, make=True) == built(language, state)
    assert log.read_text().splitlines() == ["go build"] * 2 + ["npm ci"] * 2
    (state.tools_dir / "go" / ".framehaul").write_text("other sources")
    with pytest.raises(UnavailableError, match="make tools"):
        built("Go", state)


# Tables


def passes_of(speeds: dict[str, list[float]], shape: str = "pg_type") -> pl.DataFrame:
    """Passes of drivers at these rows/s; one at 0 has failed."""
    rows = [
        {"driver": driver, "label": driver, "shape": shape, "connections": 8, "pass": number, "queries": 1, "rows": 1,
         "rows_per_s": speed, "client_cpu_s": 0.5, "status": "ok" if speed else "failed"}
        for driver, given in speeds.items()
        for number, speed in enumerate(given, 1)
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=store.schema_of(Measurement))


def test_the_geometric_mean_is_over_the_published_shapes_and_only_where_all_are_there_and_right() -> None:
    parts = [
        passes_of({"a": [speed, speed], "c": [1.0, 0 if shape == PUBLISHED_SHAPES[0] else 2.0]}, shape)
        for shape, speed in zip(PUBLISHED_SHAPES, (1.0, 10.0, 100.0, 1000.0), strict=True)
    ]
    everything = pl.concat([*parts, passes_of({"b": [5.0]}), passes_of({"a": [7e6]}, "one")])
    means = with_means(everything).filter(query=MEAN)
    assert means.select("driver", "pass").rows() == [("a", 1), ("a", 2)]
    assert means["rows_per_s"].to_list() == pytest.approx([10**1.5] * 2)
    assert means["cpu_us_per_row"][0] == pytest.approx(0.5e6)


def test_a_claim_is_judged_by_the_interval_of_those_who_ran() -> None:
    drawn = [("left", 3), ("left", 5), ("failed", 3), ("other", 3)]
    rows = [(LABELS["arrays"], left, "right", least) for left, least in drawn]
    claims = pl.DataFrame(rows, ["query", "left", "right", "at_least"], orient="row")
    passes = passes_of({"left": [4.1, 4.2, 4.3], "failed": [0.0], "right": [1.0] * 3}, "arrays")
    found = judged(with_means(passes), claims)
    assert found["today"].to_list() == ["holds", "does not hold", "not measured", "not measured"]
    assert found["ratio"].to_list() == [pytest.approx(4.2, rel=0.01)] * 2 + [None] * 2


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("go") is None, reason="there is no go on PATH")
def test_the_go_program_is_clean() -> None:
    for command in (["gofmt", "-l", "."], ["go", "vet", "./..."]):
        done = subprocess.run(command, cwd=PROJECT / "drivers" / "go", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert command[0] != "gofmt" or not done.stdout
