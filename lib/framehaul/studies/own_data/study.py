"""Somebody's own frame along every path: its table, the run, and which path to take, with the code."""

from __future__ import annotations

import html
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psycopg
import pyarrow as pa
from IPython.display import HTML, SVG, Code, Markdown, display

from framehaul import servers
from framehaul.data.schema import Table
from framehaul.errors import ReferenceTableError
from framehaul.harness import measure
from framehaul.harness.environment import server_versions
from framehaul.harness.recording import recording, result
from framehaul.harness.rounds import interruptible
from framehaul.reporting import charts
from framehaul.reporting.tables import html_table, markdown_table, missing_table, ratio_text, thousands
from framehaul.reporting.versions import trial_versions_text
from framehaul.results import statistics, store
from framehaul.results.store import EXACT
from framehaul.settings import load_settings
from framehaul.studies.own_data import STUDY, ddl, files
from framehaul.studies.own_data.derive import Derived, derive
from framehaul.studies.own_data.files import DataError
from framehaul.studies.own_data.snippet import Snippet, snippet
from framehaul.studies.transfers.findings import raced
from framehaul.techniques import Technique, techniques
from framehaul.techniques.registry import DATABASES, Database, Direction

PATHS: tuple[tuple[Database, Direction], ...] = (
    ("postgres", "write"), ("postgres", "read"), ("clickhouse", "write"), ("clickhouse", "read"),
)  # fmt: skip
FRAMES = ("polars", "pandas")
RUNNERS_UP = 3
EXAMPLE_ROWS = 2_000


@dataclass(frozen=True)
class Frame:
    """Somebody's frame with its table, ready to be shown and measured."""

    name: str
    """The file's name, without its directory."""
    kind: str
    """`parquet`, `csv` or `arrow`: how the code that is handed out reads such a file."""
    derived: Derived
    notes: tuple[str, ...]

    @property
    def table(self) -> Table:
        """Its table on both servers."""
        return self.derived.table

    def columns(self) -> Markdown:
        """Every column: its Arrow type, what it becomes, and what is to be said of that; then what holds for all."""
        rows = [
            [f"`{mapping.column.name}`", mapping.arrow, mapping.column.types.postgres, mapping.column.clickhouse_type,
             "NULL" if mapping.column.nullable else "", "; ".join(mapping.notes)]
            for mapping in self.derived.mappings
        ]  # fmt: skip
        header = ["column", "Arrow", "PostgreSQL", "ClickHouse", "holds", "note"]
        table = markdown_table(header, rows, text_columns=len(header))
        notes = "\n".join(f"- {note}" for note in self.notes)
        return Markdown(f"**{self.name}**: {self.derived.content.num_rows:,} rows\n\n{table}\n\n{notes}")

    def statements(self) -> None:
        """Show CREATE TABLE for both servers."""
        for parameter, text in (
            ("postgres_ddl", self.table.postgres_ddl), ("clickhouse_ddl", self.table.clickhouse_ddl),
        ):  # fmt: skip
            display(Markdown(f"`{parameter}`"), Code(text, language="sql"))


def open_frame(data: str = "", *, key: str = "", sort: str = "", rows: int = 0) -> Frame:
    """The first `rows` rows of a file, or all for 0, with the table that follows from them.

    Without `data` the file that `make mine` was given is taken, else a small example. `key` and `sort` name columns, as
    `a b`, or as `a, b c` where names hold blanks. Raises DataError for what cannot be read or carried.
    """
    if type(rows) is not int or rows < 0:
        raise DataError(f"ROWS={rows!r}: give a whole number of rows, or 0 for all")
    path = Path(data).expanduser() if data else load_settings().data
    if path is None:
        content, notes, name, kind = (
            example().slice(0, rows or None),
            ["No file was given: this is an example."],
            "example",
            "parquet",
        )
    else:
        content, notes = files.read(path, rows)
        name, kind = path.name, files.kind_of(path)
    derived = derive(content, name.partition(".")[0], key, sort)
    return Frame(name, kind, derived, (*notes, *derived.notes))


def example() -> pa.Table:
    """A small table of orders, with what real ones hold: decimals, moments in a zone, categories, NULLs."""
    number = np.arange(EXAMPLE_ROWS)
    cents = pa.array(number * 7_919 % 1_000_000).cast(pa.decimal128(19, 0))
    timestamps = pa.array(1_760_000_000_000 + number * 61_007).cast(pa.timestamp("ms", "Europe/Berlin"))
    states = pa.array(["new", "paid", "sent", "returned"]).take(pa.array(number % 4))
    return pa.table(
        {
            "order_id": pa.array(number + 1),
            "placed_at": timestamps,
            "due": pa.array((20_400 + number % 90).astype(np.int32)).cast(pa.date32()),
            "state": states.dictionary_encode(),
            "amount": pa.compute.divide(cents, pa.scalar(100, pa.decimal128(3, 0))).cast(
                pa.decimal128(12, 2), safe=False
            ),
            "weight_kg": pa.array(number % 370 / 8, mask=number % 11 == 0),
            "parcels": pa.array((number % 5 + 1).astype(np.uint8)),
            "gift": pa.array(number % 3 == 0),
            "remark": pa.array([None if at % 3 else f"for door {at}, ring twice" for at in number.tolist()]),
        }
    )


def run(frame: Frame, *, passes: int, warmup: int, seed: int, postgres_ddl: str = "", clickhouse_ddl: str = "") -> Mine:
    """Move the frame along every path and write `results/own_data.csv`.

    The statements, where given, make the tables in place of those that follow from the columns. Raises DataError for
    one that is not for this table or does not hold the frame, ValueError for a parameter that makes no sense,
    ServerError when a server cannot be had, ResultsError when the file cannot be written.
    """
    content = frame.derived.content
    parameters = measure.Parameters(content.num_rows, passes, warmup, seed)
    table = ddl.edited(frame.table, postgres_ddl, clickhouse_ddl)
    chosen = {path: techniques(*path) for path in PATHS}
    with (
        recording(STUDY.notebook, STUDY.results, store.Result, "technique") as made,
        servers.running(made.settings) as both,
    ):
        tables = ddl.as_made(table, both)
        made.expect(sum(1 + len(found) * (passes + warmup) for found in chosen.values()))

        def record(technique: Technique, number: int, outcome: measure.Outcome, wire_bytes: int | None) -> None:
            row = result(made.run_id, STUDY.notebook, technique, content.num_rows, number, outcome, wire_bytes)
            made.write(row)

        def work(stop: threading.Event) -> None:
            for (database, _), found in chosen.items():
                server = both.of(database)
                try:
                    measure.run(found, server, tables[database], parameters, record, made.progress, stop, content)
                except (psycopg.Error, ReferenceTableError) as error:
                    raise DataError(f"{DATABASES[database]} does not hold this frame: {error}") from error

        interruptible(work)
        what = f"{content.num_rows:,} rows of {frame.name}, {passes} passes"
        made.metadata |= {"what": what, "servers": both.mode, "server": server_versions(both)}
    directory = made.settings.out
    read = store.read(directory / "results" / STUDY.results)
    return Mine(frame, tables, read, store.read_metadata(directory / "results"), directory)


@dataclass(frozen=True)
class Choice:
    """The fastest technique for one path and kind of frame that is exact in values and dtypes, and those behind it."""

    technique: Technique
    best: dict[str, Any]
    behind: list[dict[str, Any]]
    """The next ones, each with `ratio`, `ratio_low` and `ratio_high`: the best one's rows/s over its own."""


class Mine:
    """The passes of a run, ready to be shown."""

    def __init__(
        self, frame: Frame, tables: dict[str, Table], passes: pl.DataFrame, metadata: dict[str, Any], out: Path
    ) -> None:
        self.passes, self.summary = passes, statistics.summary(passes)
        self._frame, self._tables, self._metadata, self._out = frame, tables, metadata, out
        self.choices = choices(self.summary, passes)
        self.snippets = self._write_snippets()

    def recommendation(self) -> Markdown:
        """The technique to take for each path and frame, what it needs, and what the runners-up cost."""
        return Markdown(recommendation_text(self.choices, self.snippets))

    def code(self) -> HTML:
        """The code of each recommended technique, folded; also as files beside the page."""
        parts = []
        for choice, made in zip(self.choices, self.snippets, strict=True):
            file = f"{STUDY.notebook}/{file_name(choice)}"
            shown = Code(made.code, language="python")._repr_html_()
            title = html.escape(f"{path_text(choice)}: {choice.best['label']}")
            parts.append(
                f'<details class="choice"><summary>{title} (<a href="{file}">{html.escape(file)}</a>)</summary>{shown}'
                "</details>"
            )
        return HTML("\n".join(parts))

    def chart(self, database: str, direction: str) -> SVG:
        """The bars of one path, also saved as a figure."""
        found = self.summary.filter(database=database, direction=direction)
        return SVG(charts.save(charts.bars(found), self._out / "figures" / f"{STUDY.name}_{database}_{direction}.svg"))

    def table(self, database: str, direction: str) -> HTML:
        """All techniques of one path."""
        return HTML(html_table(self.summary.filter(database=database, direction=direction)))

    def missing(self) -> Markdown:
        """What does not carry this frame, or did not run, and why."""
        told = self.summary.with_columns(
            (pl.col("database").replace(DATABASES) + " " + pl.col("direction")).alias("path")
        )
        return Markdown(missing_table(told, "technique", "path"))

    def versions(self) -> Markdown:
        """What this was run with."""
        return Markdown(trial_versions_text(self._metadata, STUDY.notebook))

    def _write_snippets(self) -> list[Snippet]:
        """The code of every choice, written to `reports/20_own_data/`; that of an earlier run is deleted."""
        directory = self._out / "reports" / STUDY.notebook
        directory.mkdir(parents=True, exist_ok=True)
        for old in directory.glob("*.py"):
            old.unlink()
        made = []
        for choice in self.choices:
            table = self._tables[choice.technique.database]
            statement = table.postgres_ddl if choice.technique.database == "postgres" else table.clickhouse_ddl
            # Whoever has the code makes the table; its own statement need not be known to the code.
            plain = replace(table, postgres_body="", clickhouse_body="")
            made.append(snippet(choice.technique, plain, statement, self._frame.kind))
            (directory / file_name(choice)).write_text(made[-1].code, "utf8")
        return made


def choices(summary: pl.DataFrame, passes: pl.DataFrame) -> list[Choice]:
    """For each path and kind of frame the fastest technique that is exact, where there is one."""
    found = []
    for database, direction in PATHS:
        here = {technique.name: technique for technique in techniques(database, direction)}
        for frame in FRAMES:
            exact = raced(summary).filter(database=database, direction=direction, frame=frame, dtypes=EXACT).to_dicts()
            if not exact:
                continue
            measured = passes.filter(database=database, direction=direction, status="ok")
            best = measured.filter(technique=exact[0]["technique"])
            behind = []
            for row in exact[1 : 1 + RUNNERS_UP]:
                ratio = statistics.ratio_with_interval(best, measured.filter(technique=row["technique"]))
                behind.append(row | dict(zip(("ratio", "ratio_low", "ratio_high"), ratio, strict=True)))
            found.append(Choice(here[exact[0]["technique"]], exact[0], behind))
    return found


def path_text(choice: Choice) -> str:
    """`PostgreSQL write, Polars`."""
    frame = {"polars": "Polars", "pandas": "pandas"}[choice.technique.frame]
    return f"{DATABASES[choice.technique.database]} {choice.technique.direction}, {frame}"


def file_name(choice: Choice) -> str:
    """What the file with a choice's code is called."""
    found = choice.technique
    return f"{found.database}_{found.direction}_{found.frame}.py"


def recommendation_text(found: list[Choice], snippets: list[Snippet]) -> str:
    """A table of the choices and what each needs, a line on the runners-up of each, and where there is no choice."""
    rows = [
        [
            path_text(choice),
            f"{choice.best['label']}{' ±' if choice.best['unstable'] else ''}",
            ", ".join(f"`{name}`" for name in made.requirements),
            f"{choice.best['rows'] / choice.best['median_rows_per_s']:,.3g}",
            thousands(choice.best["median_rows_per_s"]),
        ]
        for choice, made in zip(found, snippets, strict=True)
    ]
    header = ["path", "fastest exact technique", "needs", "seconds", "rows/s"]
    lines = [markdown_table(header, rows, text_columns=3), ""]
    lines += [f"- **{path_text(choice)}**: {_behind_text(choice)}" for choice in found]
    there = {(choice.technique.database, choice.technique.direction, choice.technique.frame) for choice in found}
    for database, direction in PATHS:
        for frame in FRAMES:
            if (database, direction, frame) not in there:
                lines.append(
                    f"- {DATABASES[database]} {direction}, {frame}: no technique carries this frame exactly; "
                    "the table below says what stands in the way."
                )
    if any(choice.best["unstable"] for choice in found):
        lines.append("\n±: its passes vary by more than 10%, read with care.")
    return "\n".join(lines)


def _behind_text(choice: Choice) -> str:
    if not choice.behind:
        return "the only one that is exact."
    told = [
        f"{row['label']} takes {ratio_text(row)} the time"
        + (", its passes overlap with the fastest one's: this run is inconclusive"
           if row["max_rows_per_s"] >= choice.best["min_rows_per_s"] else "")
        for row in choice.behind
    ]  # fmt: skip
    return "; ".join(told) + "."
