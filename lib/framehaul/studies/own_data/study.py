"""Somebody's own frame along every path: its table, the run, and which path to take, with the code."""

from __future__ import annotations

import hashlib
import html
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
import pyarrow as pa
from IPython.display import HTML, SVG, Code, Markdown, display

from framehaul import servers
from framehaul.bench import statistics, store
from framehaul.bench.environment import server_versions
from framehaul.bench.ratios import ratio_at_same_rows, verdicts
from framehaul.bench.recording import recording
from framehaul.bench.rounds import Rounds, check, interruptible
from framehaul.bench.store import EXACT
from framehaul.data.frames import arrow_stream
from framehaul.data.schema import COMMENT, Table, quote_clickhouse_text
from framehaul.reporting import charts
from framehaul.reporting.shown import Shown, view
from framehaul.reporting.tables import (
    Column,
    Listing,
    bullets,
    missing,
    of_techniques,
    thousands,
    where_and_class,
    words,
)
from framehaul.servers.tables import ClickHouseTables
from framehaul.settings import load_settings
from framehaul.studies.own_data import STUDY, files, modes
from framehaul.studies.own_data.derive import Derived, derive, holds_far_moments
from framehaul.studies.own_data.files import DataError
from framehaul.studies.own_data.racing import Racing
from framehaul.studies.own_data.snippet import snippet
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
        content, notes = example().slice(0, rows or None), ["No file was given: this is an example."]
        name = "example"
    else:
        content, notes = files.read(path, rows)
        name = path.name
    derived = derive(content, name.partition(".")[0], key, sort)
    modes.check_key(derived.table, mode)
    return Frame(name, derived, (*notes, *derived.notes, modes.said(mode)), mode)


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


def run(frame: Frame, *, passes: int, warmup: int, seed: int, race: int = 0, seconds: float = 0) -> Mine:
    """Move the frame along every path and write `results/own_data.csv`.

    In a `race` (1) there is a first answer after about so many `seconds`, printed. Raises DataError where a
    server does not hold the frame, ValueError for a parameter that makes no sense, ServerError when a server cannot be
    had, ResultsError when the file cannot be written.
    """
    content, kept, table = frame.derived.content, None, frame.table
    if frame.mode == modes.UPSERT:
        content, kept = modes.parted(content)
    check(ROWS=(content.num_rows, 1), RACE=(race, 0))
    rounds = Rounds(passes, warmup, seed)
    chosen = {path: modes.competing(techniques(*path), frame.mode) for path in PATHS}
    terms = {
        **vars(rounds),
        "race": race,
        "mode": frame.mode,
        "tables": [table.postgres_ddl, table.clickhouse_ddl],
        "content": _digest(content),
    }
    with (
        recording(STUDY.notebook, STUDY.results, store.Result, "technique", terms) as this_run,
        servers.running(this_run.settings) as both,
    ):
        _check_moments(ClickHouseTables(both.clickhouse), content)
        ClickHouseTables(both.clickhouse).drop_beside(table)

        def work(stop: threading.Event) -> None:
            racing = Racing(this_run, both, table, content, rounds, stop, seconds, frame.mode, kept)
            if race:
                racing.heats(chosen, lambda passes: this_run.say(first_answer(passes)))
            else:
                racing.all(chosen)

        interruptible(work)
        what = f"{content.num_rows:,} rows of {frame.name}, {frame.mode}, {passes} passes"
        this_run.metadata |= {"what": what, "servers": both.mode, "server": server_versions(both)}
    return Mine.load(this_run.settings).with_code(table)


def _check_moments(tables: ClickHouseTables, content: pa.Table) -> None:
    """Raises DataError for moments that this ClickHouse does not have: it would store the nearest ones that it has.

    https://github.com/ClickHouse/ClickHouse/pull/107907
    """
    if holds_far_moments(content) and tables.rows("SELECT toYear(toDateTime64('0001-01-02', 0, 'UTC'))") != [[1]]:
        raise DataError(
            "the frame holds moments before 1900 or after 2299, which this ClickHouse does not have (26.9 has): use a "
            "later one, make the column text, or replace them by NULL"
        )


def _digest(content: pa.Table) -> str:
    digest = hashlib.sha256()
    for part in arrow_stream(content):
        digest.update(part)
    return digest.hexdigest()


@dataclass(frozen=True)
class Choice:
    """The fastest technique for one path, class of writes and kind of frame that is exact, and those behind it."""

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
        """What the file with its code is called."""
        kind = "" if self.best["contract"] in (modes.APPEND, None) else f"_{self.best['contract']}"
        return f"{self.technique.database}_{self.technique.direction}_{self.technique.frame}{kind}.py"


def choices(passes: pl.DataFrame) -> list[Choice]:
    """For each path, class of writes and kind of frame the fastest technique that is exact, where there is one."""
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


def first_answer(passes: pl.DataFrame) -> str:
    """The choices so far, as lines of text."""
    lines = [
        f"  {choice.path}: {choice.best['technique']}, {thousands(choice.best['median_rows_per_s'])} rows/s"
        f" of {choice.best['rows']:,} rows"
        for choice in choices(passes)
    ]
    return "\n".join(["First answer, which further rounds make sure of:", *lines])


def missing_paths(passes: pl.DataFrame) -> Listing | str:
    """What does not carry this frame, or did not run, and why."""
    path = pl.col("database").replace(DATABASES) + " " + pl.col("direction")
    return missing(statistics.summary(passes).with_columns(path.alias("path")), "technique", "path")


class Mine(Shown):
    """The passes of a run, ready to be shown."""

    study = STUDY
    missing = view(missing_paths)

    def with_code(self, table: Table) -> Self:
        """With the code of each choice for this table, in `reports/20_own_data/`, from where an older run's goes."""
        self.choices, self.snippets = choices(self.passes), list[str]()
        directory = self.figures.parent / "reports" / STUDY.notebook
        directory.mkdir(parents=True, exist_ok=True)
        for old in directory.glob("*.py"):
            old.unlink()
        for choice in self.choices:
            registered, _ = modes.as_measured(choice.best)
            made = target(choice.technique, table)
            statement = made.postgres_ddl if choice.technique.database == "postgres" else unmarked(made.clickhouse_ddl)
            replaces = choice.best["contract"] == modes.REPLACE
            self.snippets.append(snippet(registered, table, statement, replaces=replaces))
            (directory / choice.file).write_text(self.snippets[-1], "utf8")
        return self

    def answer(self) -> Markdown:
        """The fastest exact technique for each path and frame."""
        return Markdown(
            bullets(
                f"**{one.path}**: {one.best['label']}, {thousands(one.best['median_rows_per_s'])} rows/s."
                for one in choices(self.passes)
            )
        )

    def recommendation(self) -> Markdown:
        """The technique to take for each path and frame, what it needs, and what the runners-up cost."""
        return Markdown(recommendation_text(self.choices, self.passes))

    def code(self) -> HTML:
        """The code of each recommended technique, folded; also as files beside the page."""
        parts = []
        for choice, script in zip(self.choices, self.snippets, strict=True):
            file = html.escape(f"{STUDY.notebook}/{choice.file}")
            title = html.escape(f"{choice.path}: {choice.best['label']}")
            parts.append(
                f'<details class="choice"><summary>{title} (<a href="{file}">{file}</a>)</summary>'
                f"{Code(script, language='python')._repr_html_()}</details>"
            )
        return HTML("\n".join(parts))

    def chart(self, database: str, direction: str) -> SVG:
        """The bars of one path, also saved as a figure."""
        return self.saved(charts.bars(self._summary(database, direction)), f"{database}_{direction}")

    def table(self, database: str, direction: str) -> Listing:
        """All techniques of one path."""
        return of_techniques(self._summary(database, direction))

    def _summary(self, database: str, direction: str) -> pl.DataFrame:
        return statistics.summary(self.passes.filter(database=database, direction=direction))


def recommendation_text(chosen: list[Choice], passes: pl.DataFrame) -> str:
    """A table of the choices and what each needs, a line on the runners-up of each, and where there is no choice."""
    table = Listing(
        [
            words("path", "path"),
            words("fastest exact technique", lambda row: f"{row['label']}{' ±' if row['unstable'] else ''}"),
            words("needs", "needs"),
            Column("seconds", lambda row: row["rows"] / row["median_rows_per_s"], "{:,.3g}"),
            Column("rows/s", "median_rows_per_s", thousands),
            words("locks", "locks"),
            words("others see, while it runs", "others_see"),
            words("a failure leaves", "after_failure"),
        ],
        [
            choice.best
            | (vars(choice.technique.contract) if choice.technique.contract else {})
            | {"path": choice.path, "needs": needs(choice.best)}
            for choice in chosen
        ],
    )
    behind = [row for choice in chosen for row in choice.behind]
    said = verdicts([(row["ratio"], 1) for row in behind])
    near = [row for row, one in zip(behind, said, strict=True) if one != "holds"]
    lines = [f"**{choice.path}**: {_behind_text(choice, near)}" for choice in chosen]
    tried = {*passes.select("database", "direction", "frame").rows()}
    with_choice = {(choice.technique.database, choice.technique.direction, choice.technique.frame) for choice in chosen}
    lines += [
        f"{DATABASES[database]} {direction}, {frame}: no technique carries this frame exactly; "
        "the table below says what stands in the way."
        for database, direction in PATHS for frame in FRAMES
        if (database, direction, frame) in tried - with_choice
    ]  # fmt: skip
    unstable = any(choice.best["unstable"] for choice in chosen)
    note = "\n\n±: its passes vary by more than 10%, read with care." if unstable else ""
    return f"{table}\n\n{bullets(lines)}{note}"


def _behind_text(choice: Choice, near: list[dict[str, Any]]) -> str:
    if not choice.behind:
        return "the only one that is exact."
    costs = [
        f"{row['label']} takes {row['ratio']} the time"
        + (", which cannot be told from the fastest one's: this run is inconclusive" if row in near else "")
        for row in choice.behind
    ]
    return "; ".join(costs) + "."
