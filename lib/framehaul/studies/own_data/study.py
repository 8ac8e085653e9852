"""Somebody's own frame along every path: its table, the run, and which path to take, with the code."""

from __future__ import annotations

import hashlib
import html
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import polars as pl
from IPython.display import HTML, SVG, Code, Markdown, display

from framehaul import servers
from framehaul.bench import statistics, store
from framehaul.bench.environment import server_versions
from framehaul.bench.ratios import ratio_at_same_rows, verdicts
from framehaul.bench.recording import recording
from framehaul.bench.rounds import Rounds, check, interruptible
from framehaul.bench.store import EXACT
from framehaul.data import generator
from framehaul.data.frames import arrow_stream
from framehaul.data.schema import ANALYTICS_METRICS, COMMENT, Table, quote_clickhouse_text
from framehaul.reporting import charts
from framehaul.reporting.shown import Shown, view
from framehaul.reporting.tables import (
    UNSTABLE,
    Column,
    Listing,
    bullets,
    missing,
    thousands,
    where_and_class,
    words,
)
from framehaul.servers.tables import ClickHouseTables
from framehaul.settings import load_settings
from framehaul.studies.own_data import files, modes
from framehaul.studies.own_data.derive import Derived, derive
from framehaul.studies.own_data.files import DataError
from framehaul.studies.own_data.racing import Racing
from framehaul.studies.own_data.snippet import snippet
from framehaul.studies.registry import OWN_DATA
from framehaul.studies.summary.needs import needs
from framehaul.studies.transfers.findings import classes, raced
from framehaul.techniques import Technique, techniques
from framehaul.techniques.registry import DATABASES, Database, Direction
from framehaul.techniques.upsert.rows import target

PATHS: tuple[tuple[Database, Direction], ...] = (
    ("postgres", "write"), ("postgres", "read"), ("clickhouse", "write"), ("clickhouse", "read"),
)  # fmt: skip
FRAMES = {"polars": "Polars", "pandas": "pandas"}
RUNNERS_UP = 3
EXAMPLE_ROWS = 2_000


@dataclass(frozen=True)
class Frame:
    """Somebody's frame with its table, ready to be shown and measured."""

    name: str
    """The file's name, without its directory."""
    derived: Derived
    notes: tuple[str, ...]
    mode: str = modes.APPEND
    """What becomes of the rows that are there when it comes: one of `modes.MODES`."""

    @property
    def table(self) -> Table:
        """Its table on both servers."""
        return self.derived.table

    def columns(self) -> Markdown:
        """Every column: its Arrow type, what it becomes, and what is to be said of that; then what holds for all."""
        rows = [
            {"column": f"`{mapping.column.name}`", "Arrow": mapping.arrow, "PostgreSQL": mapping.column.types.postgres,
             "ClickHouse": mapping.column.clickhouse_type, "holds": "NULL" if mapping.column.nullable else None,
             "note": "; ".join(mapping.notes)}
            for mapping in self.derived.mappings
        ]  # fmt: skip
        table = Listing([words(title, title) for title in rows[0]], rows)
        size = f"{self.derived.content.num_rows:,} rows"
        return Markdown(f"**{self.name}**: {size}\n\n{table}\n\n{bullets(self.notes)}")

    def statements(self) -> None:
        """Show CREATE TABLE for both servers."""
        for text in (self.table.postgres_ddl, unmarked(self.table.clickhouse_ddl)):
            display(Code(text, language="sql"))


OURS = f"\nCOMMENT {quote_clickhouse_text(COMMENT)}"


def unmarked(statement: str) -> str:
    """A CREATE TABLE to be taken away: without what says that its table is ours, and that the next run may drop it."""
    return statement.replace(OURS, "")


def open_frame(data: str = "", *, key: str = "", sort: str = "", rows: int = 0, mode: str = modes.APPEND) -> Frame:
    """The first `rows` rows of a file, or all for 0, with the table that follows from them.

    Without `data` the file that `make mine` was given is taken, else a small example. `key` and `sort` name columns, as
    `a b`, or as `a, b c` where names hold blanks. Raises DataError for what cannot be read or carried, and for a `mode`
    that there is not, or that wants a key.
    """
    modes.check_mode(mode, key)
    if type(rows) is not int or rows < 0:
        raise DataError(f"ROWS={rows!r}: give a whole number of rows, or 0 for all")
    path = Path(data).expanduser() if data else load_settings().data
    if path is None:
        content = generator.arrow_table(ANALYTICS_METRICS, rows or EXAMPLE_ROWS, 1)
        name, notes = "example", ["No file was given: this is an example."]
    else:
        content, notes = files.read(path, rows)
        name = path.name
    derived = derive(content, name.partition(".")[0], key, sort)
    modes.check_key(derived.table, mode)
    return Frame(name, derived, (*notes, *derived.notes), mode)


def run(frame: Frame, *, rounds: int, warmup: int, seed: int, race: int = 0) -> Mine:
    """Move the frame along every path and write `results/own_data.csv`.

    In a `race` (1) techniques that fall behind on a sample do not move the whole frame, and a first answer is printed.
    Raises DataError where a server does not hold the frame, ValueError for a parameter that makes no sense, ServerError
    when a server cannot be had, ResultsError when the file cannot be written.
    """
    content, kept, table = frame.derived.content, None, frame.table
    if frame.mode == modes.UPSERT:
        content, kept = modes.parted(content)
    check(ROWS=(content.num_rows, 1), RACE=(race, 0))
    schedule = Rounds(rounds, warmup, seed)
    chosen = {path: modes.competing(techniques(*path), frame.mode) for path in PATHS}
    digest = hashlib.sha256()
    for part in arrow_stream(content):
        digest.update(part)
    ddl = [table.postgres_ddl, table.clickhouse_ddl]
    terms = {**vars(schedule), "race": race, "mode": frame.mode, "tables": ddl, "content": digest.hexdigest()}
    with (
        recording(OWN_DATA.notebook, OWN_DATA.results, store.Result, "technique", terms) as this_run,
        servers.running(this_run.settings) as both,
    ):
        ClickHouseTables(both.clickhouse).drop_beside(table)

        def work(stop: threading.Event) -> None:
            racing = Racing(this_run, both, table, content, schedule, stop, frame.mode, kept)
            if race:
                racing.heats(chosen, lambda rounds: this_run.say(f"First answer:\n\n{fastest(rounds)}\n"))
            else:
                racing.all(chosen)

        interruptible(work)
        what = f"{content.num_rows:,} rows of {frame.name}, {frame.mode}, {rounds} passes"
        this_run.metadata |= {"what": what, "servers": both.mode, "server": server_versions(both)}
    return Mine.load(this_run.settings).with_code(table)


@dataclass(frozen=True)
class Choice:
    """The fastest exact technique for one path, class of writes and kind of frame, and those behind it."""

    technique: Technique
    best: dict[str, Any]
    behind: list[dict[str, Any]]
    """The next ones, each with `ratio`: the best one's rows/s over its own."""

    @property
    def path(self) -> str:
        """`PostgreSQL write, append, Polars`."""
        return f"{where_and_class(self.best)}, {FRAMES[self.technique.frame]}"

    @property
    def file(self) -> str:
        """The name of the file with its code."""
        kind = "" if self.best["contract"] in (modes.APPEND, None) else f"_{self.best['contract']}"
        return f"{self.technique.database}_{self.technique.direction}_{self.technique.frame}{kind}.py"

    def code(self, table: Table) -> str:
        """Return the script that is handed out, with the statement that makes the table which the technique needs."""
        registered, _ = modes.as_measured(self.best)
        made = target(self.technique, table)
        ddl = made.postgres_ddl if self.technique.database == "postgres" else unmarked(made.clickhouse_ddl)
        return snippet(registered, table, ddl, replaces=self.best["contract"] == modes.REPLACE)


def choices(passes: pl.DataFrame) -> list[Choice]:
    """Return the fastest exact technique for each path, class of writes and kind of frame that has one."""
    chosen = []
    exact = raced(statistics.summary(passes)).filter(dtypes=EXACT)
    for database, direction in PATHS:
        measured = passes.filter(database=database, direction=direction).partition_by("technique", as_dict=True)
        of_path = exact.filter(database=database, direction=direction)
        for group in (group for frame in FRAMES for group in classes(of_path.filter(frame=frame))):
            best, *others = group.to_dicts()
            behind = [
                row | {"ratio": ratio_at_same_rows(measured[best["technique"],], measured[row["technique"],])}
                for row in others[:RUNNERS_UP]
            ]
            chosen.append(Choice(modes.as_measured(best)[1], best, behind))
    return chosen


def fastest(passes: pl.DataFrame) -> str:
    """The fastest exact technique for each path and kind of frame."""
    return bullets(
        f"**{one.path}**: {one.best['label']}, {thousands(one.best['median_rows_per_s'])} rows/s."
        for one in choices(passes)
    )


def missing_paths(passes: pl.DataFrame) -> Listing | str:
    """What does not carry this frame, or did not run, and why."""
    path = pl.col("database").replace(DATABASES) + " " + pl.col("direction")
    return missing(statistics.summary(passes).with_columns(path.alias("path")), "technique", "path")


def recommended(passes: pl.DataFrame) -> Listing:
    """The technique to take for each path and kind of frame, its runners-up, what each needs, and its terms."""
    chosen, rows = choices(passes), list[dict[str, Any]]()
    said = iter(verdicts([(row["ratio"], 1) for choice in chosen for row in choice.behind], "slower", "faster"))
    for choice in chosen:
        for row in (choice.best, *choice.behind):
            technique = modes.as_measured(row)[1]
            terms = vars(technique.contract) if technique.contract else {}
            is_best = row is choice.best
            behind = {"path": choice.path} if is_best else {"time": f"{row['ratio']}, {next(said)}"}
            rows.append(row | terms | behind | {"needs": needs(row)})
    without = {*passes.select("database", "direction", "frame").filter(pl.col("frame") != "none").rows()} - {
        (one.technique.database, one.technique.direction, one.technique.frame) for one in chosen
    }
    notes = [
        f"{DATABASES[database]} {direction}, {FRAMES[frame]}: no technique carries this frame exactly."
        for database, direction, frame in sorted(without)
    ]
    columns = [
        words("path", "path"), words("technique", "label"), Column("rows/s", "median_rows_per_s", thousands), UNSTABLE,
        words("its time over the fastest's", "time"), words("needs", "needs"),
        words("visible while it runs", "others_see"), words("left after a failure", "after_failure"),
    ]  # fmt: skip
    return Listing(columns, rows, " ".join([*notes, "±: its passes vary by more than 10%."]))


class Mine(Shown):
    """The passes of a run, ready to be shown."""

    study = OWN_DATA
    answer = view(fastest)
    recommendation = view(recommended)
    missing = view(missing_paths)

    def with_code(self, table: Table) -> Self:
        """Write the code of each choice for this table into `reports/20_own_data/`, in place of an older run's."""
        directory = self.figures.parent / "reports" / OWN_DATA.notebook
        directory.mkdir(parents=True, exist_ok=True)
        for old in directory.glob("*.py"):
            old.unlink()
        self.choices = choices(self.passes)
        self.snippets = [choice.code(table) for choice in self.choices]
        for choice, script in zip(self.choices, self.snippets, strict=True):
            (directory / choice.file).write_text(script, "utf8")
        return self

    def code(self) -> HTML:
        """The code of each recommended technique, folded; also as files beside the page."""
        parts = []
        for choice, script in zip(self.choices, self.snippets, strict=True):
            file = html.escape(f"{OWN_DATA.notebook}/{choice.file}")
            title = html.escape(f"{choice.path}: {choice.best['label']}")
            parts.append(
                f'<details class="choice"><summary>{title} (<a href="{file}">{file}</a>)</summary>'
                f"{Code(script, language='python')._repr_html_()}</details>"
            )
        return HTML("\n".join(parts))

    def chart(self, database: str, direction: str) -> SVG:
        """The bars of one path, also saved as a figure."""
        summary = statistics.summary(self.passes.filter(database=database, direction=direction))
        return self.saved(charts.technique_bars(summary), f"{database}_{direction}")
