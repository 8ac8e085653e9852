"""Measure every converter of JSON lines to Parquet with every codec, each conversion in its own process."""

import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from framehaul.bench import store
from framehaul.bench.meter import children_cpu_s
from framehaul.bench.recording import Recording, recorded
from framehaul.bench.rounds import Rounds, describe, in_rounds, right
from framehaul.data.schema import ColumnType
from framehaul.errors import UnavailableError
from framehaul.settings import Settings
from framehaul.studies import buildings
from framehaul.studies.drivers.catalog import Command, build, output_of, version_output
from framehaul.studies.json_parquet import json_lines
from framehaul.studies.registry import JSON_PARQUET

CODECS = ("snappy", "zstd")
JSON2PARQUET_VERSION = "0.26.1"
"""The version of https://crates.io/crates/json2parquet, built with its published dependencies."""
START_SECONDS, SLOWEST_ROWS_PER_S = 120, 1_000
"""The time that a process may take to start, and the minimum speed of its conversion: a slower one is stopped."""
PUBLISHED = {
    "clickhouse": 1.0, "json2parquet": 32.0 / 43.8, "pyarrow": 1 / 1.38, "awkward": 1 / 1.5, "fastparquet": 1 / 3.3,
}  # fmt: skip
"""Published speeds over ClickHouse's, with Snappy: https://tech.marksblogg.com/postgresql-to-bigquery.html

They are of 11M lines on a laptop of 2020; on a virtual machine with 16 cores json2parquet took four times as long.
"""


def json2parquet(settings: Settings) -> list[str]:
    """Return the command of json2parquet with the types of the table; raises UnavailableError if it is not built."""
    program = json2parquet_program(settings)
    types = {ColumnType.INT32: "Int32", ColumnType.DATE: "Date32", ColumnType.TEXT: "Utf8"}
    usual = {"nullable": True, "dict_id": 0, "dict_is_ordered": False, "metadata": {}}
    fields = [{"name": column.name, "data_type": types[column.type], **usual} for column in buildings.TABLE.columns]
    schema = settings.tools_dir / "buildings.json"
    schema.write_text(json.dumps({"fields": fields, "metadata": {}}))  # the format of Rust's Arrow
    return [str(program), "--schema-file", str(schema)]


def json2parquet_program(settings: Settings, *, patient: bool = False) -> Path:
    """Return the path of json2parquet; if it is missing, build it if `patient`, else raise UnavailableError."""
    target, program = settings.tools_dir, settings.tools_dir / "bin" / "json2parquet"
    if version_output(str(program), "--version").split() == ["json2parquet", JSON2PARQUET_VERSION]:
        return program
    if not patient:
        remedy = "make tools builds it, in about 5 minutes, with cargo (https://rustup.rs)"
        raise UnavailableError(f"there is no json2parquet {JSON2PARQUET_VERSION}. {remedy}")
    target.mkdir(parents=True, exist_ok=True)
    install = ["cargo", "install", "json2parquet", "--version", JSON2PARQUET_VERSION, "--locked", "--root", str(target)]
    build(install, target, "json2parquet was not built")
    return program


def _python(name: str) -> Command:
    command = [sys.executable, "-P", json_lines.__file__, name]  # `-m` would import all modules of the study
    return lambda _: command


LABELS = ("ClickHouse", "pyarrow", "Polars", "DuckDB", "fastparquet, pandas", "Awkward Array")
CONVERTERS: dict[str, tuple[str, Command]] = {
    **{name: (label, _python(name)) for name, label in zip(json_lines.CONVERSIONS, LABELS, strict=True)},
    "json2parquet": ("json2parquet, Rust", json2parquet),
}
"""The label of each converter and the command of its process, which gets `--compression CODEC SOURCE TARGET`.

The process prints what the conversion took, as `json_lines` does, or nothing: then the whole process is timed.
"""


@dataclass(frozen=True)
class Conversion(store.Timed):
    """A pass of a converter with a codec; a missing number is None, never 0.

    `types` and `row_order` are those of `buildings.difference`; programs have no `peak_rss_bytes`.
    """

    converter: str
    label: str
    codec: str
    rows: int
    client_cpu_s: float | None = None
    peak_rss_bytes: int | None = None
    output_bytes: int | None = None
    row_groups: int | None = None
    types: str | None = None
    row_order: str | None = None


@recorded(JSON_PARQUET, Conversion)
def run(this_run: Recording, *, rows: int, rounds: int, warmup: int, seed: int) -> None:
    """Measure every converter with every codec and return one row per pass."""
    content, temporary = buildings.table(rows, seed), tempfile.TemporaryDirectory
    home = Path(this_run.entered(temporary(prefix="framehaul-json-", ignore_cleanup_errors=True)))
    pl.DataFrame(content).write_ndjson(lines := home / "lines.jsonl")
    row = this_run.rows(Conversion, lambda task: (task[0], CONVERTERS[task[0]][0], task[1], rows))

    def convert(task: tuple[str, str], _: int) -> dict[str, Any]:
        return measured(CONVERTERS[task[0]][1](this_run.settings), task[1], lines, content)

    tasks, schedule = [*product(CONVERTERS, CODECS)], Rounds(rounds, warmup, seed)
    in_rounds(tasks, schedule, convert, this_run.log(row, " ".join), home)
    megabytes, ran = lines.stat().st_size / 1e6, this_run.so_far().filter(status="ok")["converter"]
    what = f"{rows:,} rows, {megabytes:,.1f} MB of JSON lines, {rounds} rounds after {warmup} warm-up, seed {seed}"
    toolchains = {"json2parquet": JSON2PARQUET_VERSION} if "json2parquet" in ran else {}
    this_run.metadata |= {"what": what, "toolchains": toolchains}


def measured(command: list[str], codec: str, lines: Path, expected: pa.Table) -> dict[str, Any]:
    """Convert all lines in a new process, compare the result, and return the figures of the pass.

    Raises WrongResultError if the converter fails, takes too long or writes a wrong file.
    """
    target, rows = lines.with_name("out.parquet"), expected.num_rows
    command = [*command, "--compression", codec, str(lines), str(target)]
    environment = os.environ | {"TMPDIR": str(lines.parent)}  # chDB writes temporary files
    before, start = children_cpu_s(), time.perf_counter()
    try:
        printed = output_of(command, START_SECONDS + rows / SLOWEST_ROWS_PER_S, env=environment)
        taken: dict[str, Any] = {"seconds": time.perf_counter() - start, "client_cpu_s": children_cpu_s() - before}
        if printed:
            taken = json.loads(printed.splitlines()[-1])
        wrong, types, row_order = difference(target, expected, codec)
        right(taken, wrong)
        taken |= {"rows_per_s": rows / taken["seconds"], "types": types, "row_order": row_order}
        return taken | {"output_bytes": target.stat().st_size, "row_groups": pq.read_metadata(target).num_row_groups}
    finally:
        target.unlink(missing_ok=True)


def difference(path: Path, expected: pa.Table, codec: str) -> tuple[str | None, str, str]:
    """Return the error in a Parquet file or None, its types and its order of rows, as `buildings.difference` does.

    Another type with the same values is no error, such as a date as text or a wider integer.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            metadata, received = file.metadata, file.read()
            received.validate(full=True)
    except Exception as error:  # noqa: BLE001  damaged bytes also raise UnicodeDecodeError, MemoryError, KeyError
        return f"the file cannot be read: {describe(error)}", "", ""
    chunks = product(range(metadata.num_row_groups), range(metadata.num_columns))
    codecs = {metadata.row_group(group).column(at).compression for group, at in chunks}
    if codecs != {codec.upper()}:
        return f"compressed with {', '.join(sorted(codecs))} instead of {codec.upper()}", "", ""
    return buildings.difference(received, expected)
