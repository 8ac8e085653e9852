"""Register every study once, so that listing studies imports none of them."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framehaul.bench.study import RACE, ROUNDS, ROWS, SEED, TRIED, WARMUP, Parameter, Study
from framehaul.errors import SettingsError
from framehaul.settings import Preset

if TYPE_CHECKING:
    from framehaul.bench.compare import Run

_TABLE = Path(__file__).with_name("studies.tsv").read_text(encoding="utf8").splitlines()
LINES = {line["notebook"]: line for line in csv.DictReader(_TABLE, delimiter="\t")}
"""The studies in the order of their notebooks' numbers, with the fields of `Study` that are text or numbers."""
_STUDIES: dict[str, Study] = {}


def _study(notebook: str, *parameters: Parameter, **further: Any) -> Study:
    """Register and return the study of a line of studies.tsv, with its parameters and `further` fields."""
    fields: dict[str, Any] = LINES[notebook] | further
    smoke, quick, reference, *raced = map(int, fields["seconds"].split())
    fields |= {"seconds": (smoke, quick, reference), "raced_seconds": next(iter(raced), None), "parameters": parameters}
    _STUDIES[notebook] = Study(**fields)
    return _STUDIES[notebook]


RUN = Parameter("run", "", "a run, as the path of a directory")
EXPLORER = _study("00_explorer", RUN, only_reads=True, on_demand=True)
OF_DIRECTIONS = ROUNDS, WARMUP.at(1, smoke=1), SEED, RACE
# With the preset quick, the fastest techniques take 0.02 to 0.1 s for these rows on two cores.
TRANSFERS = (
    _study("01_postgres_write", ROWS.at(40_000), *OF_DIRECTIONS),
    _study("02_postgres_read", ROWS.at(100_000), *OF_DIRECTIONS),
    _study("03_clickhouse_write", ROWS.at(100_000), *OF_DIRECTIONS),
    _study("04_clickhouse_read", ROWS.at(150_000), *OF_DIRECTIONS),
)

SUMMARY = _study("05_summary", headline="readme-answer", only_reads=True)
OF_SCALING = ROWS.at(30_000, reference=1_000_000), ROUNDS.at(2, reference=1), WARMUP.at(1, smoke=1), SEED
SCALING = _study("06_scaling", *OF_SCALING)
ABLATIONS = _study("07_ablations", only_reads=True)
FIDELITY = _study("08_fidelity", TRIED)
HOLD = Parameter("hold", 3, "seconds of load at the end of the faults study", least=1, smoke=1, reference=20)
FAULTS_STUDY = _study("09_faults", TRIED, HOLD)

LOAD = (
    Parameter("connections", 4, "concurrent connections", least=1, smoke=2),
    Parameter("duration", 0.05, "seconds of queries for each shape", least=0.001, smoke=0.05, reference=0.3),
    Parameter("warmup_duration", 0.01, "seconds of warm-up before them", reference=0.05),
)
POSTGRES_DRIVERS = _study("10_postgres_drivers", ROUNDS.at(1, reference=3), SEED, *LOAD)
CONCURRENCY = Parameter(
    "concurrency", [1, 4], "numbers of concurrent queries; all but the published table use only the first", least=1,
    smoke=[1, 2], reference=[1, 4],
)  # fmt: skip
# No warm-up: the check of values before each pass has fetched the rows already.
OF_CLIENTS = ROWS.at(5_000, reference=50_000), ROUNDS.at(1, reference=3), WARMUP.at(0), SEED, CONCURRENCY
CLICKHOUSE_CLIENTS = _study("11_clickhouse_clients", *OF_CLIENTS)

OF_FILES = ROUNDS.at(2, reference=3), WARMUP, SEED
PARALLEL = Parameter("parallel", 4, "concurrent files, connections or loads on the way to a warehouse", least=1)
WAREHOUSE = _study("12_warehouse", ROWS.at(20_000, reference=200_000), *OF_FILES, PARALLEL)
PARQUET = _study("13_parquet", ROWS.at(30_000, reference=300_000), *OF_FILES)
JSON_PARQUET = _study("14_json_parquet", ROWS.at(15_000, reference=200_000), ROUNDS.at(1, reference=3), WARMUP, SEED)

WORKLOAD = Parameter(
    "workload", "scaled", "tests of pgbench: smallest (do the services answer?), scaled to this machine at a second "
    "each, or as published (hours)", choices=("smallest", "scaled", "published"), smoke="smallest",
)  # fmt: skip
SERVICES = Parameter(
    "services", "default limited_iops", "names of embedded configurations to run under pgbench, in "
    "addition to your services; empty: all", reference="",
)  # fmt: skip
PGBENCH = _study("15_pgbench", WORKLOAD, ROUNDS.at(1), SEED, SERVICES)
NOISE = _study("16_noise", ROWS.at(25_000, reference=300_000), ROUNDS, WARMUP, SEED)
MEGABYTES = Parameter("megabytes", 1.0, "of table shapes: size of the largest frame", smoke=0.05, reference=5.0)
POINTS = Parameter(
    "points", "few", "of table shapes: the number of tables and of sizes: least, few, or sizes for all tables and "
    "powers of ten", choices=("least", "few", "sizes"), smoke="least", reference="sizes",
)  # fmt: skip
TABLE_SHAPES = _study("17_table_shapes", ROWS.at(10_000), MEGABYTES, POINTS, ROUNDS.at(1, reference=3), WARMUP, SEED)
EVERYDAY_API = _study("18_everyday_api", ROWS.at(60_000, reference=1_000_000), ROUNDS.at(1, reference=1), SEED)

INTO = (
    Parameter("targets", [20_000], "of upserts: rows of the table", 1, smoke=[300], reference=[10_000, 1_000_000]),
    Parameter("incoming", [10, 5_000], "of upserts: incoming rows; the smallest number into the largest table alone",
              least=1, smoke=[30], reference=[1, 1_000, 100_000]),
)  # fmt: skip
UPSERT_STUDY = _study("19_upsert", *INTO, TRIED.at("all"), ROUNDS.at(1, reference=3), WARMUP, SEED)

OWN_DATA = _study(
    "20_own_data",
    Parameter("data", "", "a file: Parquet, CSV or Arrow IPC"),
    Parameter("rows", 0, "how many of its first rows to use; 0: all"),
    Parameter("key", "", "columns of the primary key"),
    Parameter("sort", "", "columns that ClickHouse sorts by, where they differ"),
    Parameter("mode", "append", "how to write: append, replace (all rows) or upsert (by key)",
              choices=("append", "replace", "upsert")),
    Parameter("csv", "", "how a CSV is written, any of: separator=; decimal=, encoding=latin-1 skip=1"),
    ROUNDS.at(5), WARMUP, SEED, RACE, on_demand=True,
)  # fmt: skip

WORKERS = (
    Parameter("workers", [1, 2], "workers to compare, with the most partitions", 1, smoke=[2], reference=[1, 2, 4]),
    Parameter("partitions", [4], "partitions to compare, with the most workers", 1, smoke=[2], reference=[2, 4, 8]),
)
SCALE_OUT = _study(
    "21_scale_out", ROWS.at(30_000, reference=100_000), ROUNDS.at(2), WARMUP.at(1, smoke=1), SEED, *WORKERS
)
NETWORK = _study("23_network", ROWS.at(8_000, reference=30_000), ROUNDS.at(1), WARMUP, SEED)
SIZES = Parameter(
    "sizes", [1_000], "rows that whole scripts move", least=1, smoke=[300], reference=[1_000, 100_000, 1_000_000]
)
SCRIPTS_STUDY = _study("24_scripts", SIZES, ROUNDS.at(2, reference=3), WARMUP.at(0, reference=1), SEED)

TABLES_IN_USE = _study(
    "25_tables_in_use",
    Parameter("appended", [10_000], "numbers of rows to append", 1, smoke=[300], reference=[10_000, 200_000]),
    Parameter("times", [0, 10], "rows of a table before an append, as multiples of its rows", reference=[0, 10, 50]),
    Parameter("layouts", "nine_columns", "tables to append to; empty: all", reference=""),
    Parameter("busy_rows", 20_000, "rows of an append while others use the table", 1, smoke=300, reference=100_000),
    ROUNDS.at(1, reference=3), SEED,
)  # fmt: skip


def studies() -> tuple[Study, ...]:
    """Return all studies in the order of their notebooks' numbers."""
    return tuple(_STUDIES[notebook] for notebook in LINES)


def chosen(numbers: str) -> list[Study]:
    """Return the studies with these numbers or names (`01 scaling`), or without any all but those on demand.

    They run in the order of their numbers: a study that only reads has a higher number than the studies it reads.
    Raises SettingsError for an unknown number or name.
    """
    known = {key: study for study in studies() for key in (study.number, study.name)}
    wanted = numbers.replace(",", " ").split()
    if unknown := [one for one in wanted if one not in known]:
        every = ", ".join(f"{study.number} {study.name}" for study in studies())
        raise SettingsError(f"NOTEBOOKS: there is no notebook {unknown[0]!r}; choose from {every}")
    named = [known[one].notebook for one in wanted]
    selected = [one for one in studies() if one.notebook in named or not (named or one.on_demand)]
    # A summary comes as soon as its first studies have ended, and again at the end.
    return [*selected, *(one for one in selected[:-1] if one.headline)]


@cache
def parameters() -> dict[str, list[Parameter]]:
    """Return the parameters of all studies that are not on demand, by name, each as its studies have it."""
    by_name: dict[str, list[Parameter]] = {}
    for one in (each for study in studies() if not study.on_demand for each in study.parameters):
        by_name.setdefault(one.name, []).append(one)
    return by_name


def values(of: Study, preset: Preset, given: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the values of a study's parameters, as given or of the preset; raise SettingsError for an invalid one."""
    return {
        one.name: one.of(preset) if (text := given.get(one.name)) is None else one.value(text) for one in of.parameters
    }


def read_run(path: Path) -> Run:
    """Return the passes of a run's techniques, as `compare.read_run` reads them."""
    from framehaul.bench import compare  # it imports dataframe libraries, which the registry does not need

    return compare.read_run(path, [study.results for study in studies() if study.measures_techniques])
