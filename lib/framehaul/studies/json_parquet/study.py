"""The study of JSON lines and Parquet: every converter with every codec, in rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from framehaul.bench import recording
from framehaul.bench.passes import Pass, columns_of
from framehaul.bench.rounds import Rounds, check, in_rounds, interruptible
from framehaul.bench.store import Status
from framehaul.studies.json_parquet.catalog import CODECS, CONVERTERS, JSON2PARQUET_VERSION, Converter
from framehaul.studies.json_parquet.runner import measured, written
from framehaul.studies.registry import JSON_PARQUET

PUBLISHED = {
    "clickhouse": 1.0, "json2parquet": 32.0 / 43.8, "pyarrow": 1 / 1.38, "awkward": 1 / 1.5, "fastparquet": 1 / 3.3,
}  # fmt: skip
"""Published speeds over ClickHouse's, with Snappy: https://tech.marksblogg.com/postgresql-to-bigquery.html

11M lines on a laptop of 2020; json2parquet from its published seconds, 4x of them on a virtual machine with 16 cores.
"""


@dataclass(frozen=True)
class Conversion:
    """One pass of one converter and codec, a row of the study's results. A missing number is None, never 0.

    `types` and `row_order` are those of `buildings.difference`; `peak_rss_bytes` is missing for a program of its own.
    """

    run_id: str
    converter: str
    label: str
    codec: str
    rows: int
    pass_: int
    seconds: float | None = None
    rows_per_s: float | None = None
    client_cpu_s: float | None = None
    peak_rss_bytes: int | None = None
    output_bytes: int | None = None
    row_groups: int | None = None
    types: str | None = None
    row_order: str | None = None
    status: Status = "ok"
    reason: str | None = None


@recording.study(JSON_PARQUET.notebook, Conversion)
def run(*, rows: int, rounds: int, warmup: int, seed: int, converters: Sequence[Converter] = CONVERTERS) -> None:
    """Measure every converter with every codec.

    Raises ValueError for a parameter that makes no sense, ResultsError if the results cannot be written.
    """
    check(ROWS=(rows, 1))
    schedule = Rounds(rounds, warmup, seed)
    terms = {"rows": rows, **vars(schedule), "converters": [converter.name for converter in converters]}
    tasks = [(converter, codec) for converter in converters for codec in CODECS]
    with (
        written(rows, seed) as files,
        recording.recording(JSON_PARQUET.notebook, JSON_PARQUET.results, Conversion, "task", terms) as this_run,
    ):
        this_run.expect(len(tasks) * (warmup + rounds))

        def row(task: tuple[Converter, str], number: int, ended: Pass[dict[str, Any]]) -> Conversion:
            converter, codec = task
            return Conversion(
                this_run.run_id, converter.name, converter.label, codec, rows, number, **columns_of(ended)
            )

        def convert(task: tuple[Converter, str], _: int) -> dict[str, Any]:
            converter, codec = task
            return measured(converter, codec, converter.command(this_run.settings), files)

        record, finished = this_run.passes(row)
        interruptible(
            lambda stop: in_rounds(
                tasks, schedule, convert, record, finished=finished, stop=stop, home=files.directory,
                progress=lambda task, number: this_run.progress(f"{task[0].name} {task[1]}: pass {number}"),
            )
        )  # fmt: skip
        json_bytes, right = files.lines.stat().st_size, this_run.so_far().filter(status="ok")
        this_run.metadata |= {
            "json_bytes": json_bytes,
            "what": f"{rows:,} rows, {json_bytes / 1e6:,.1f} MB of JSON lines, {rounds} rounds after {warmup} warm-up, "
            f"seed {seed}",
            "toolchains": {"json2parquet": JSON2PARQUET_VERSION} if "json2parquet" in right["converter"] else {},
        }
