"""Register every study once, so that listing studies imports none of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framehaul.bench.study import RACE, ROUNDS, ROWS, SEED, TECHNIQUE_PASSES, TRIED, WARMUP, Parameter, Study
from framehaul.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from framehaul.bench.compare import Run
    from framehaul.settings import Preset

PROFILE = Parameter(
    "profile", 0, "1: store the ProfileEvents that ClickHouse counts during every pass", smoke=1, reference=1
)

TABLE = Parameter(
    "table", "standard",
    "of notebooks 01 to 04: the published table, or nested, which adds a list, a struct, JSON, an enum and a decimal, "
    "and which not every technique supports", choices=("standard", "nested"),
)  # fmt: skip


def _study(number: int, name: str, question: str, rows: int, seconds: tuple[int, int, int]) -> Study:
    """Return the study of a direction; with the preset quick, the fastest take 0.1 to 0.3 s for `rows` on two cores."""
    parameters = [ROWS.at(rows), ROUNDS, WARMUP.at(1, smoke=1), SEED, RACE, TABLE]
    parameters += [PROFILE] if name.startswith("clickhouse") else []
    return Study(
        f"{number:02}_{name}", question, tuple(parameters), TECHNIQUE_PASSES, seconds=seconds,
        holds=(name.partition("_")[0],),
    )  # fmt: skip


TRANSFERS = (
    _study(1, "postgres_write", "What is the fastest way from a dataframe into PostgreSQL?", 50_000, (6, 52, 900)),
    _study(2, "postgres_read", "What is the fastest way from PostgreSQL into a dataframe?", 150_000, (6, 50, 650)),
    _study(3, "clickhouse_write", "What is the fastest way from a dataframe into ClickHouse?", 150_000, (9, 55, 750)),
    _study(4, "clickhouse_read", "What is the fastest way from ClickHouse into a dataframe?", 300_000, (7, 60, 450)),
)

SUMMARY = Study(
    "05_summary",
    "Which technique to use, in which direction, for which frame?",
    headline="readme-answer",
    only_reads=True,
    seconds=(3, 6, 8),
)

SCALING = Study(
    "06_scaling",
    "How does the cost of a path grow with rows?",
    (ROWS.at(30_000, reference=1_000_000), ROUNDS.at(2, reference=1), WARMUP.at(1, smoke=1), SEED),
    TECHNIQUE_PASSES,
    seconds=(10, 28, 300),
)

ABLATIONS = Study(
    "07_ablations", "Which single change gives how much, and what to change first?",
    only_reads=True, seconds=(2, 5, 5),
)  # fmt: skip

FIDELITY = Study(
    "08_fidelity",
    "Which values does a path change?",
    (TRIED,),
    patience="framehaul.studies.fidelity.study:patience",
    untimed=True,
    holds=(),
    seconds=(16, 45, 900),
)

HOLD = Parameter("hold", 3, "seconds of load at the end of the faults study", least=1, smoke=1, reference=20)
FAULTS_STUDY = Study(
    "09_faults", "What is left when something breaks on the way?", (TRIED, HOLD),
    patience="framehaul.studies.faults.study:patience", untimed=True, holds=(), seconds=(19, 60, 900),
)  # fmt: skip

LOAD = (
    Parameter("connections", 4, "concurrent connections", least=1, smoke=2),
    Parameter("duration", 0.08, "seconds of queries for each shape", least=0.001, smoke=0.05, reference=0.3),
    Parameter("warmup_duration", 0.02, "seconds of warm-up before them", smoke=0.01, reference=0.05),
)
CONCURRENCY = Parameter(
    "concurrency", [1, 4], "numbers of concurrent queries; all but the published table use only the first", least=1,
    smoke=[1, 2], reference=[1, 4],
)  # fmt: skip
_ROWS = "framehaul.studies.drivers.study:Measurement"
POSTGRES_DRIVERS = Study(
    "10_postgres_drivers", "Which driver of PostgreSQL, in which language, is fast at which shape of query?",
    (ROUNDS.at(1, reference=3), SEED, *LOAD), _ROWS, "driver",
    patience="framehaul.studies.drivers.study:patience", alone=True, seconds=(40, 45, 300),
)  # fmt: skip
CLICKHOUSE_CLIENTS = Study(
    "11_clickhouse_clients", "Which client fetches rows from ClickHouse fastest, in which language?",
    # No warm-up: the check of values before each pass has fetched the rows already.
    (ROWS.at(10_000, reference=50_000), ROUNDS.at(1, reference=3), WARMUP.at(0), SEED, CONCURRENCY), _ROWS, "driver",
    holds=(), seconds=(30, 40, 350),
)  # fmt: skip

PARALLEL = Parameter("parallel", 4, "concurrent files, connections or loads on the way to a warehouse", least=1)
WAREHOUSE = Study(
    "12_warehouse", "Which route from PostgreSQL to a warehouse is fastest?",
    (ROWS.at(20_000, reference=200_000), ROUNDS.at(2, reference=3), WARMUP, SEED, PARALLEL),
    "framehaul.studies.warehouse.study:Result", "route", holds=("buildings",), seconds=(3, 35, 90),
)  # fmt: skip

PARQUET = Study(
    "13_parquet", "What is inside a Parquet file, and what does a codec cost?",
    (ROWS.at(30_000, reference=300_000), ROUNDS.at(2, reference=3), WARMUP, SEED),
    "framehaul.studies.parquet.study:RoundTrip", "trial",
    holds=("buildings",), seconds=(2, 22, 180),
)  # fmt: skip

JSON_PARQUET = Study(
    "14_json_parquet", "Which converter makes Parquet of JSON lines fastest?",
    (ROWS.at(15_000, reference=200_000), ROUNDS.at(1, reference=3), WARMUP, SEED),
    "framehaul.studies.json_parquet.study:Conversion", "converter",
    holds=(), seconds=(6, 20, 80),
)  # fmt: skip

WORKLOAD = Parameter(
    "workload", "scaled", "tests of pgbench: smallest (do the services answer?), scaled to this machine at a second "
    "each, longer, or as published (hours)", choices=("smallest", "scaled", "longer", "published"), smoke="smallest",
)  # fmt: skip
SERVICES = Parameter(
    "services", "default small_buffers limited_iops", "names of embedded configurations to run under pgbench, in "
    "addition to your services; empty: all", smoke="default limited_iops", reference="",
)  # fmt: skip
PGBENCH = Study(
    "15_pgbench", "Which service of PostgreSQL, or configuration, carries how many transactions?",
    (WORKLOAD, ROUNDS.at(1), SEED, SERVICES), "framehaul.studies.pgbench.study:Result", "service",
    patience="framehaul.studies.pgbench.study:patience", holds=(), seconds=(6, 28, 130),
)  # fmt: skip

NOISE = Study(
    "16_noise",
    "How far can these figures be trusted?",
    (ROWS.at(40_000, reference=300_000), ROUNDS, WARMUP, SEED),
    "framehaul.studies.noise.study:Result",
    "variant",
    seconds=(4, 45, 140),
)

MEGABYTES = Parameter("megabytes", 2.0, "of table shapes: size of the largest frame", smoke=0.05, reference=10.0)
POINTS = Parameter(
    "points", "few", "of table shapes: the number of tables and of sizes: least, few, or sizes for all tables and "
    "powers of ten", choices=("least", "few", "sizes"), smoke="least", reference="sizes",
)  # fmt: skip

TABLE_SHAPES = Study(
    "17_table_shapes",
    "Do the same techniques win on tables of other shapes, and with fewer rows?",
    (ROWS.at(10_000), MEGABYTES, POINTS, ROUNDS.at(3, reference=3), WARMUP, SEED),
    "framehaul.studies.table_shapes.passes:Row",
    measured="framehaul.studies.table_shapes.passes:placed",
    seconds=(5, 38, 240),
)

EVERYDAY_API = Study(
    "18_everyday_api",
    "What does one gain over to_sql, write_database and read_sql, and by which change?",
    (ROWS.at(100_000, reference=1_000_000), ROUNDS.at(1, reference=1), SEED),
    "framehaul.studies.everyday_api.study:BatchedRead",
    "way",
    seconds=(5, 45, 120),
)

TARGETS = Parameter(
    "targets", [20_000], "of upserts: rows of the table", least=1, smoke=[300], reference=[10_000, 1_000_000]
)
INCOMING = Parameter(
    "incoming", [10, 5_000], "of upserts: incoming rows; the smallest number into the largest table alone",
    least=1, smoke=[30], reference=[1, 1_000, 100_000],
)  # fmt: skip
SHARES = Parameter("shares", [90], "of upserts: per cent of the incoming rows whose key exists", smoke=[50])

UPSERT_STUDY = Study(
    "19_upsert",
    "Rows of a dataframe may be in the table already: which upsert is fast, and what does it ask of others?",
    (TARGETS, INCOMING, SHARES, TRIED.at("all"), ROUNDS.at(2, reference=3), WARMUP, SEED),
    "framehaul.studies.upsert.passes:Row",
    measured="framehaul.studies.upsert.passes:placed",
    check="framehaul.studies.upsert.frames:check_sizes",
    patience="framehaul.studies.upsert.study:patience",
    holds=(),
    seconds=(8, 60, 220),
)

OWN_DATA = Study(
    "20_own_data", "Which path is the fastest for a dataframe of your own?",
    (
        Parameter("data", "", "a file: Parquet, CSV, JSON lines or Arrow IPC"),
        Parameter("rows", 0, "how many of its first rows to use; 0: all"),
        Parameter("key", "", "columns of the primary key"),
        Parameter("sort", "", "columns that ClickHouse sorts by, where they differ"),
        Parameter("mode", "append", "how to write: append, replace (all rows) or upsert (by key)",
                  choices=("append", "replace", "upsert")),
        ROUNDS.at(5), WARMUP, SEED, RACE,
    ),
    TECHNIQUE_PASSES, seconds=(30, 180, 600), on_demand=True,
)  # fmt: skip

WORKERS = Parameter(
    "workers", [1, 2], "workers to compare, with the most partitions", least=1, smoke=[2], reference=[1, 2, 4]
)
PARTITIONS = Parameter(
    "partitions", [4], "partitions to compare, with the most workers", least=1, smoke=[2], reference=[2, 4, 8]
)
SCALE_OUT = Study(
    "21_scale_out", "When one machine is not enough: how much do more workers help?",
    (ROWS.at(30_000, reference=100_000), ROUNDS.at(2), WARMUP.at(1, smoke=1), SEED, WORKERS, PARTITIONS),
    "framehaul.studies.scale_out.study:Result", "label",
    seconds=(10, 25, 170),
)  # fmt: skip

NETWORK = Study(
    "23_network",
    "What do distance, bandwidth, encryption and a pooler change?",
    (ROWS.at(8_000, reference=30_000), ROUNDS, WARMUP, SEED),
    "framehaul.studies.network.catalog:Result",
    "task",
    measured="framehaul.studies.network.catalog:placed",
    seconds=(10, 30, 150),
)

SIZES = Parameter(
    "sizes", [1_000], "numbers of rows that whole scripts move", least=1, smoke=[300],
    reference=[1_000, 100_000, 1_000_000],
)  # fmt: skip
SCRIPTS_STUDY = Study(
    "24_scripts",
    "How long does a whole script take, imports included?",
    (SIZES, ROUNDS.at(2, reference=3), WARMUP.at(0, reference=1), SEED),
    "framehaul.studies.scripts.study:Result",
    "script",
    holds=(),
    seconds=(20, 35, 400),
)

EXPLORER = Study(
    "00_explorer", "What did a run measure?", (Parameter("run", "", "a run, as the path of a directory"),),
    only_reads=True, on_demand=True,
)  # fmt: skip


def studies() -> tuple[Study, ...]:
    """Return all studies in the order of their notebooks' numbers."""
    return (
        EXPLORER, *TRANSFERS, SUMMARY, SCALING, ABLATIONS, FIDELITY, FAULTS_STUDY, POSTGRES_DRIVERS,
        CLICKHOUSE_CLIENTS, WAREHOUSE, PARQUET, JSON_PARQUET, PGBENCH, NOISE, TABLE_SHAPES, EVERYDAY_API, UPSERT_STUDY,
        OWN_DATA, SCALE_OUT, NETWORK, SCRIPTS_STUDY,
    )  # fmt: skip


def chosen(numbers: str) -> list[Study]:
    """Return the studies with these numbers or names (`01 scaling`), or without any all but those on demand.

    They run in the order of their numbers: a study that only reads has a higher number than the studies it reads.
    Raises SettingsError for an unknown number or name.
    """
    known = {key: study for study in studies() for key in (study.number, study.name)}
    wanted = numbers.replace(",", " ").split()
    for one in wanted:
        if one not in known:
            every = ", ".join(f"{study.number} {study.name}" for study in studies())
            raise SettingsError(f"NOTEBOOKS: there is no notebook {one!r}; choose from {every}")
    named = [known[one].notebook for one in wanted]
    selected = [one for one in studies() if one.notebook in named or not (named or one.on_demand)]
    # A summary comes as soon as its first studies have ended, and again at the end.
    return [*selected, *(one for one in selected[:-1] if one.headline)]


@cache
def parameters() -> dict[str, tuple[Parameter, ...]]:
    """Return the parameters of all studies that are not on demand, by name, each as its studies have it.

    Raises ValueError when one name has two meanings.
    """
    by_name: dict[str, tuple[Parameter, ...]] = {}
    for study in studies():
        for one in () if study.on_demand else study.parameters:
            others = by_name.get(one.name, ())
            if others and others[0].meaning != one.meaning:
                raise ValueError(f"{study.notebook}: {one.name} has another meaning in another study")
            by_name[one.name] = (*others, one)
    return by_name


def values(of: Study, preset: Preset, given: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the values of a study's parameters: as given, else those of the preset.

    Raises SettingsError for an invalid value.
    """
    return {
        one.name: one.of(preset) if (text := given.get(one.name)) is None else one.value(text) for one in of.parameters
    }


def read_run(path: Path) -> Run:
    """Return the passes of a run's techniques, as `compare.read_run` reads them."""
    from framehaul.bench import compare  # it imports dataframe libraries, which the registry does not need

    return compare.read_run(path, [study.results for study in studies() if study.measures_techniques])
