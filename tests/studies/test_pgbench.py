"""pgbench against real servers: what is asked, what is checked, what is refused, and what is left behind: nothing."""

import os
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from framehaul.data.schema import COMMENT
from framehaul.errors import ServerError, SettingsError, UnavailableError, WrongResultError
from framehaul.servers import Servers
from framehaul.servers.tables import PostgresTables
from framehaul.settings import Settings
from framehaul.studies.pgbench import services, workloads
from framehaul.studies.pgbench import study as pgbench
from framehaul.studies.pgbench.study import Bench

READ = workloads.Test("cpu", "", 1, 2, 2, 1, True)
WRITE = workloads.Test("io_write", "", 1, 2, 2, 1, False)


def test_published_tests_are_asked_as_they_were_published() -> None:
    logged = "-M prepared -P 30 -l --log-prefix=transactions --sampling-rate=0.01"
    assert [line for line in workloads.commands("published").splitlines() if line[0] != "#"] == [
        "pgbench -i -s 136", "pgbench -c 1 -T 60 -S -M prepared", f"pgbench -c 32 -j 16 -T 300 -S {logged}",
        "pgbench -i -s 34247", f"pgbench -c 256 -j 16 -T 600 -S {logged}",
        "pgbench -i -s 34247", f"pgbench -c 256 -j 16 -T 600 {logged}",
    ]  # fmt: skip


def test_examples_are_chosen_by_name_and_services_of_the_settings_are_all_there(servers: Servers) -> None:
    given = Settings(servers="external", pgbench_services=f"mine={servers.postgres.dsn()}")
    for wanted, shared, kept in (
        ("limited_iops default", None, ["default", "limited_iops"]),
        ("", None, ["default", "tuned", "async_commit", "small_buffers", "limited_iops"]),
        ("default", servers.postgres, ["external"]),
    ):
        assert [one.name for one in services.chosen(given, [READ], wanted, shared)] == [*kept, "mine"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("postgresql://u:secret@h/d", "PGBENCH_SERVICES: pair 1 is not name=value"),
        ("a=postgresql://h a=postgresql://u:secret@h/d", "a is the name of another service"),
        ("a=postgresql://u:secret@h:port/d", "that of a is not a libpq connection string"),
        ("default=postgresql://u:secret@h/d", "default is the name of another service"),
        ("", "services: there is no example 'rds'; known: default, tuned"),
    ],
)
def test_malformed_settings_are_named_without_a_secret(given: str, said: str) -> None:
    with pytest.raises((SettingsError, ServerError, ValueError)) as caught:
        services.chosen(Settings(pgbench_services=given), [READ], "" if given else "default rds", None)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.fixture
def made(servers: Servers, settings: Settings) -> Iterator[Bench]:
    yield (made := Bench(servers.postgres, 1, settings, threading.Event()))
    made.drop()
    assert execute(servers, LEFT) == []


@pytest.fixture
def opened(made: Bench) -> Bench:
    return made.create()


LEFT = "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'framehaul%'"


def execute(servers: Servers, statement: str) -> list[Any]:
    return PostgresTables(servers.postgres).run(statement)


def test_a_run_is_counted_by_pgbench_by_its_log_and_by_the_server(opened: Bench) -> None:
    found = opened.run(WRITE)
    assert found["transactions"] > 0
    assert found["transactions"] / found["seconds"] <= found["tps"] <= 1.2 * found["transactions"] / WRITE.seconds
    assert 0 < found["latency_p50_ms"] <= found["latency_p95_ms"] <= found["latency_p99_ms"]
    assert found["latency_p50_ms"] < 3 * found["latency_average_ms"]
    assert found["disk_iops"] is None or found["disk_iops"] >= 0
    opened.check_accounts()


LOSING = (
    "CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
    "CREATE TRIGGER lose BEFORE INSERT ON pgbench_history FOR EACH ROW WHEN (NEW.aid % 2 = 0) EXECUTE FUNCTION lose()"
)
"""A trigger that drops a part of the history stands for a server that loses commits."""


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = 5", "balances differ"),
        ("DELETE FROM pgbench_accounts WHERE aid = 5", "99,999 rows instead of 100,000"),
        (LOSING, "transactions, and pgbench_history has"),
        ("DROP TABLE pgbench_tellers", "pgbench: .*pgbench_tellers"),
    ],
)
def test_a_wrong_balance_or_a_lost_transaction_or_a_break_is_no_result(
    opened: Bench, servers: Servers, harm: str, said: str
) -> None:
    execute(servers, f"SET search_path = {opened.schema}; {harm}")
    with pytest.raises(WrongResultError, match=said):
        opened.check_accounts() if "accounts" in harm else opened.run(WRITE)


def test_a_schema_is_replaced_when_a_killed_run_left_it_and_stays_when_it_is_not_ours(
    made: Bench, servers: Servers
) -> None:
    execute(servers, f"CREATE SCHEMA {made.schema}; CREATE TABLE {made.schema}.pgbench_history (half int)")
    for refused in (made.create, made.drop):
        with pytest.raises(ServerError, match=f"{made.schema} exists and is not framehaul's"):
            refused()
    execute(servers, f"COMMENT ON SCHEMA {made.schema} IS '{COMMENT}'")
    made.create().check_accounts()


def test_an_interrupt_ends_pgbench(opened: Bench) -> None:
    threading.Timer(0.5, opened._stop.set).start()
    with pytest.raises(KeyboardInterrupt):
        opened.run(replace(READ, seconds=3600))
    assert not [child for child in psutil.Process().children() if child.name() == "pgbench"]


def test_a_service_that_ignores_the_search_path_is_refused(
    made: Bench, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = made._conninfo()
    monkeypatch.setattr(made, "_conninfo", lambda: re.sub(r"options='.*'", "", whole))
    with pytest.raises(WrongResultError, match="does not keep search_path"):
        made.create()
    assert execute(servers, "SELECT relname FROM pg_class WHERE relname LIKE 'pgbench%'") == []


def test_a_data_set_that_the_disk_cannot_hold_is_not_begun(servers: Servers, settings: Settings) -> None:
    with pytest.raises(UnavailableError, match=r"scale 1,000,000,000 takes .* GB of disk"):
        Bench(servers.postgres, 10**9, settings, threading.Event()).create()


def test_a_limit_is_written_as_the_second_version_of_cgroups_wants_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(services, "CGROUPS", tmp_path)
    (tmp_path / "dev").write_text("254:0\n")
    for disk, missing in ((tmp_path, "takes Linux with cgroups"), (None, "takes data on a disk")):
        with pytest.raises(UnavailableError, match=missing), services.limited(1, disk, 5):
            pass
    (tmp_path / "cgroup.controllers").write_text("cpu io memory")
    with services.limited(os.getpid(), tmp_path, 16_000):
        assert [path.read_text() for path in tmp_path.glob("*/io.max")] == ["254:0 riops=16000 wiops=16000"]
        assert (tmp_path / "cgroup.subtree_control").read_text() == "+io"


@pytest.mark.slow
def test_a_study_of_one_service_of_each_kind(
    open_dir: Path, tmp_path: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = servers.postgres.dsn()
    monkeypatch.setenv("FRAMEHAUL_STATE_DIR", str(open_dir / "pgbench"))
    monkeypatch.setenv("FRAMEHAUL_OUT", str(tmp_path))
    monkeypatch.setenv("FRAMEHAUL_PGBENCH_SERVICES", f"given={dsn} away=postgresql://u:hidden@127.0.0.1:1/x")
    kept = pgbench.run(workload="smallest", rounds=2, seed=1, services="limited_iops")
    assert set(kept.filter(service="away")["status"]) == {"failed"}
    assert "127.0.0.1:1 cannot be used" in kept.filter(service="away")["reason"][0]
    given = kept.filter(service="given")
    assert set(given["status"]) == {"ok"}, given["reason"].to_list()
    assert len(given) == len(workloads.tests("smallest")) * 2
    limited = kept.filter(service="limited_iops")
    assert set(limited["status"]) <= {"ok", "skipped"}, limited["reason"].to_list()
    for row in limited.filter(test="io_write", status="ok").to_dicts():
        # The limit is the kernel's to keep; one that were not in force would let through many times as many.
        assert row["disk_iops"] < 6 * services.IOPS_PER_CORE * (os.cpu_count() or 1)
    for name in ("environment.json", "pgbench.csv"):
        text = (tmp_path / "results" / name).read_text()
        assert "hidden" not in text
        assert servers.postgres.password not in text
    assert execute(servers, LEFT) == []
    assert not list((open_dir / "pgbench").iterdir())
    assert not [*services.CGROUPS.glob(f"**/framehaul-{os.getpid()}-*")]


@pytest.mark.parametrize(("memory_gib", "cores"), [(1, 1), (24, 2), (512, 128)])
def test_scaled_tests_follow_memory_and_cores(memory_gib: int, cores: int) -> None:
    cpu, *io = workloads.scaled(memory_gib * 2**30, cores)
    expected = max(memory_gib * 2**30 / 128 / workloads.BYTES_PER_SCALE, workloads.LEAST_SCALE)
    assert [test.scale for test in io] == [pytest.approx(expected, rel=0.1)] * 2
    assert cpu.scale == io[0].scale // 12
    assert {(test.clients, test.seconds) for test in (cpu, *io)} == {(min(16 * cores, 256), 1)}
