"""pgbench against real servers: what is asked, what is checked, what is refused, and what is left behind: nothing."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from framehaul.data.schema import COMMENT
from framehaul.errors import ServerError, SettingsError, UnavailableError
from framehaul.servers import Servers
from framehaul.settings import Settings
from framehaul.studies.pgbench import bench, disks, services, workloads
from framehaul.studies.pgbench import study as pgbench
from framehaul.studies.pgbench.bench import Bench, BenchError
from framehaul.studies.pgbench.services import Service
from framehaul.studies.registry import PGBENCH

READ = workloads.Test("cpu", "", 1, 2, 2, 1, True)
WRITE = workloads.Test("io_write", "", 1, 2, 2, 1, False)
GIB = 2**30


def test_published_tests_are_asked_as_they_were_published() -> None:
    cpu, io_read, io_write = workloads.PUBLISHED
    assert " ".join(cpu.initialisation()) == "-i -s 136"
    assert " ".join(cpu.warm_up()) == "-c 1 -T 60 -S -M prepared"
    assert " ".join(io_read.initialisation()) == "-i -s 34247"
    logged = {"-M", "prepared", "-P", "30", "-l", "--log-prefix=transactions", "--sampling-rate=0.01"}
    assert {*cpu.options()} == {"-c", "32", "-j", "16", "-T", "300", "-S"} | logged
    assert {*io_write.options()} == {"-c", "256", "-j", "16", "-T", "600"} | logged
    assert {*io_read.options()} == {*io_write.options(), "-S"}
    assert workloads.commands("published").count("\npgbench -") == 7


def test_examples_are_chosen_by_name_and_services_of_the_settings_are_all_there(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = Settings(state_dir=tmp_path, pgbench_services=f"mine={servers.postgres.dsn()}")
    monkeypatch.setattr(services, "_embedded", lambda _, one, __: nullcontext(Service(one.name, one.label, None)))
    for wanted, kept in (("limited_iops default", 2), ("", 5)):
        with services.opened(given, [READ], wanted) as offered:
            names = [one.name for one in offered]
        assert len(names) == kept + 1
        assert {"default", "limited_iops", "mine"} <= {*names}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pgbench_services": "postgresql://u:secret@h/d"}, "PGBENCH_SERVICES: pair 1 is not name=value"),
        ({"pgbench_services": "a=postgresql://h a=postgresql://u:secret@h/d"}, "a is given twice"),
        ({"pgbench_services": "a=postgresql://u:secret@h:port/d"}, "that of a is not a libpq connection string"),
        ({"pgbench_services": "default=postgresql://u:secret@h/d"}, "default is the name of a built-in service"),
        ({}, "services: there is no example 'rds'; known: default, tuned"),
    ],
)
def test_malformed_settings_are_named_without_a_secret(given: dict[str, str], said: str, tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path, **given)  # type: ignore[arg-type]
    with (
        pytest.raises((SettingsError, ValueError)) as caught,
        services.opened(settings, [READ], "" if given else "default rds"),
    ):
        pass
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def service(servers: Servers) -> Service:
    disk = disks.disk_of(Path(psutil.Process(servers.postgres.process_id).cwd()))
    return Service("shared", "the server of all tests", servers.postgres, disk=disk)


@pytest.fixture
def opened(service: Service, settings: Settings) -> Iterator[Bench]:
    made = Bench(service, settings, threading.Event())
    made.initialise(READ)
    yield made
    assert made.clean() is None
    assert left_on(service) == []


def left_on(service: Service) -> list[Any]:
    return execute(service, "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'framehaul%'")


def execute(service: Service, statement: str) -> list[Any]:
    assert service.server is not None
    with psycopg.connect(service.server.dsn(), autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def test_a_run_is_counted_by_pgbench_by_its_log_and_by_the_server(opened: Bench) -> None:
    found = opened.run(WRITE)
    assert found["transactions"] > 0
    assert found["tps"] == pytest.approx(found["transactions"] / WRITE.seconds, rel=0.2)
    assert 0 < found["latency_p50_ms"] <= found["latency_p95_ms"] <= found["latency_p99_ms"]
    assert found["disk_iops"] is None or found["disk_iops"] >= 0
    opened.check_accounts(1)


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
    opened: Bench, service: Service, harm: str, said: str
) -> None:
    execute(service, f"SET search_path = {bench.SCHEMA.format(scale=1)}; {harm}")
    with pytest.raises(BenchError, match=said):
        opened.check_accounts(1) if "accounts" in harm else opened.run(WRITE)


def test_a_schema_is_replaced_when_a_killed_run_left_it_and_stays_when_it_is_not_ours(
    service: Service, settings: Settings
) -> None:
    schema = bench.SCHEMA.format(scale=1)
    execute(service, f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.pgbench_history (half int)")
    made = Bench(service, settings, threading.Event())
    with pytest.raises(ServerError, match=f"{schema} exists and is not framehaul's"):
        made.initialise(READ)
    assert made.clean() is None
    assert left_on(service) == [(schema,)]
    execute(service, f"COMMENT ON SCHEMA {schema} IS '{COMMENT}'")
    made.initialise(READ)
    made.check_accounts(1)
    assert made.clean() is None
    assert left_on(service) == []


def test_an_interrupt_ends_pgbench_and_leaves_nothing(service: Service, settings: Settings) -> None:
    stop = threading.Event()
    made = Bench(service, settings, stop)
    made.initialise(READ)
    timer = threading.Timer(0.5, stop.set)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        made.run(replace(READ, seconds=3600))
    assert not [child for child in psutil.Process().children() if child.name() == "pgbench"]
    assert made.clean() is None
    assert left_on(service) == []


def test_a_service_that_ignores_the_search_path_is_refused(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler that drops what it does not know."""
    made = Bench(service, settings, threading.Event())
    whole = made._conninfo
    monkeypatch.setattr(made, "_conninfo", lambda scale: re.sub(r"options='.*'", "", whole(scale)))
    with pytest.raises(BenchError, match="does not keep search_path"):
        made.initialise(READ)
    assert made.clean() is None
    assert execute(service, "SELECT relname FROM pg_class WHERE relname LIKE 'pgbench%'") == []


def test_a_data_set_that_the_disk_cannot_hold_is_not_begun(
    service: Service, settings: Settings, tmp_path: Path
) -> None:
    made = Bench(replace(service, data=tmp_path), settings, threading.Event())
    with pytest.raises(UnavailableError, match=r"scale 1,000,000,000 takes .* GB of disk"):
        made.initialise(replace(READ, scale=10**9))
    assert made.clean() is None


def test_a_limit_is_written_as_the_second_version_of_cgroups_wants_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(disks, "CGROUPS", tmp_path)
    (tmp_path / "cgroup.controllers").write_text("cpu io memory")
    assert disks._rules(disks.Disk("vda", "254:0"), 16_000) == (tmp_path, {"io.max": "254:0 riops=16000 wiops=16000"})
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+io"


def test_without_cgroups_a_limit_is_unavailable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disks, "CGROUPS", tmp_path)
    with pytest.raises(UnavailableError, match="takes Linux with cgroups"), disks.limited(1, disks.Disk("a", "1:1"), 5):
        pass
    with pytest.raises(UnavailableError, match="takes data on a disk"), disks.limited(1, None, 5):
        pass


@pytest.mark.slow
def test_a_study_of_one_service_of_each_kind(
    open_dir: Path, tmp_path: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A built-in one with a limit, one that is given, and one that does not answer: each as it should."""
    dsn = servers.postgres.dsn()
    for name, value in {
        "STATE_DIR": str(open_dir / "pgbench"), "OUT": str(tmp_path),
        "PGBENCH_SERVICES": f"given={dsn} away=postgresql://u:hidden@127.0.0.1:1/x",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"FRAMEHAUL_{name}", value)
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
        assert row["disk_iops"] < 6 * workloads.PUBLISHED_IOPS_PER_CORE * (os.cpu_count() or 1)
    metadata = (tmp_path / "results" / "environment.json").read_text()
    assert json.loads(metadata)["runs"][PGBENCH.notebook]["left"] == []
    for text in (metadata, (tmp_path / "results" / "pgbench.csv").read_text()):
        assert "hidden" not in text
        assert servers.postgres.password not in text
    assert left_on(Service("", "", servers.postgres)) == []
    assert not list((open_dir / "pgbench").iterdir())


def test_the_limit_is_in_force_and_is_lifted(service: Service) -> None:
    """Where this machine allows a limit: the server is in the group, and out of it afterwards."""
    assert service.server is not None
    assert service.server.process_id is not None
    before = Path(f"/proc/{service.server.process_id}/cgroup").read_text()
    with ExitStack() as stack:
        try:
            stack.enter_context(disks.limited(service.server.process_id, service.disk, 1_000))
        except UnavailableError as error:
            pytest.skip(str(error))
        for process in psutil.Process(service.server.process_id).children():
            assert "framehaul-" in Path(f"/proc/{process.pid}/cgroup").read_text()
    assert Path(f"/proc/{service.server.process_id}/cgroup").read_text().count("framehaul-") == 0
    assert before.count("framehaul-") == 0


@pytest.mark.parametrize(("memory_gib", "cores"), [(1, 1), (8, 4), (24, 2), (512, 128)])
def test_scaled_tests_follow_memory_and_cores(memory_gib: int, cores: int) -> None:
    cpu, io_read, io_write = workloads.scaled(memory_gib * GIB, cores)
    assert io_read.scale == io_write.scale >= workloads.LEAST_SCALE
    if io_read.scale > workloads.LEAST_SCALE:
        assert io_read.data_bytes == pytest.approx(memory_gib * GIB / 128, rel=0.1)
    assert cpu.scale == io_read.scale // 12
    assert cpu.clients == io_read.clients == min(16 * cores, 256)
    assert all(test.seconds == 1 for test in (cpu, io_read, io_write))
