"""Measure your own frame with every technique, and hand out the code of the fastest exact ones."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
import psycopg

from framehaul import servers
from framehaul.api.choice import MODES
from framehaul.api.create import unmarked
from framehaul.api.derive import Derived, derive
from framehaul.bench import measure, recording, statistics, store
from framehaul.bench.environment import server_versions
from framehaul.bench.measure import PassOptions
from framehaul.bench.race import Stage, leaders
from framehaul.bench.recording import Recording
from framehaul.bench.rounds import Rounds, check, interruptible
from framehaul.data import generator
from framehaul.data.frames import arrow_stream
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.errors import FrameError, ReferenceTableError, SettingsError
from framehaul.servers.tables import ClickHouseTables
from framehaul.settings import load_settings
from framehaul.studies.own_data import files, modes
from framehaul.studies.own_data.snippet import callable_by_name, script
from framehaul.studies.registry import OWN_DATA
from framehaul.techniques import Technique, techniques
from framehaul.techniques.registry import DATABASES, Database, Direction
from framehaul.techniques.upsert.rows import check_keys, target

DIRECTIONS: tuple[tuple[Database, Direction], ...] = (
    ("postgres", "write"), ("postgres", "read"), ("clickhouse", "write"), ("clickhouse", "read"),
)  # fmt: skip
PATH = ["database", "direction", "contract", "frame"]
"""The columns within which techniques compete."""
RECOMMENDED = 4
"""The number of techniques that are recommended for each path, the fastest first."""
type MeasureStage = Callable[[Sequence[Technique], int, Rounds], None]
EXAMPLE_ROWS = 2_000
STEM_CHARACTERS = 40
SAMPLE_ROWS, PART_ROWS = (1_000, 10_000), (10_000, 100_000)
"""The minimum and maximum of rows in the first two stages, which take a 64th and an 8th of the frame."""


@dataclass(frozen=True)
class Frame:
    """Your own frame, with the table that was derived from it."""

    name: str
    """The file's name, without its directory."""
    derived: Derived
    notes: tuple[str, ...]
    mode: str = modes.APPEND
    """The fate of rows that are in the table before a write."""

    @property
    def table(self) -> Table:
        """Return its table on both servers."""
        return self.derived.table

    @property
    def statements(self) -> dict[str, str]:
        """Return the CREATE TABLE statement for each database."""
        return {"postgres": self.table.postgres_ddl, "clickhouse": unmarked(self.table.clickhouse_ddl)}

    def columns(self) -> pl.DataFrame:
        """Return each column's Arrow type, its types on both servers, whether it holds NULLs, and notes."""
        return pl.DataFrame(
            {"column": mapping.column.name, "arrow": mapping.arrow, "postgres": mapping.column.types.postgres,
             "clickhouse": mapping.column.clickhouse_type, "holds_null": mapping.column.nullable,
             "note": "; ".join(mapping.notes)}
            for mapping in self.derived.mappings
        )  # fmt: skip


def open_frame(data: str = "", *, key: str = "", sort: str = "", rows: int = 0, mode: str = modes.APPEND) -> Frame:
    """Read the first `rows` rows of a file, or all for 0, and derive a table from them.

    Without `data` it reads the file given to `make mine`, or else makes a small example. `key` and `sort` name columns,
    as `a b`, or as `a, b c` where names hold blanks. Raises FrameError for what cannot be read or carried, ValueError
    for invalid `rows`, and SettingsError for unknown columns, an unknown `mode`, and a key by which an upsert cannot
    find rows.
    """
    check(ROWS=(rows, 0))
    if mode not in MODES:
        raise SettingsError(f"MODE={mode!r}: choose from {', '.join(MODES)}")
    path = Path(data).expanduser() if data else load_settings().data
    if path is None:
        content = generator.arrow_table(ANALYTICS_METRICS, rows or EXAMPLE_ROWS, 1)
        name, notes = "example", ["No file was given: this is an example."]
    else:
        content, notes = files.read(path, rows)
        name = path.name
    keys, order = (columns_named(*one, content.column_names) for one in (("KEY", key), ("SORT", sort)))
    derived = derive(content, table_name(name.partition(".")[0]), keys, order)
    if mode == modes.UPSERT:
        try:
            check_keys(pl.DataFrame(schema=derived.table.polars_schema), derived.table)
        except ValueError as error:
            raise SettingsError(f"KEY={key!r}: {error}") from error
    return Frame(name, derived, (*notes, *derived.notes), mode)


def table_name(stem: str) -> str:
    """Return `framehaul_` and the characters of a file's name that need no quotes."""
    return f"framehaul_{re.sub(r'[^a-z0-9]+', '_', stem.lower()).strip('_')[:STEM_CHARACTERS] or 'mine'}"


def columns_named(variable: str, text: str, names: list[str]) -> tuple[str, ...]:
    """Return the columns in `a b`, or in `a, b c` where names have blanks; raises SettingsError for unknown ones."""
    parts = [text] if text.strip() in names else text.split("," if "," in text else None)
    columns = [name for name in map(str.strip, parts) if name]
    for name in columns:
        if name not in names:
            raise SettingsError(
                f"{variable}={text!r}: there is no column {name!r} among {', '.join(names)}; "
                "between names with blanks put commas"
            )
    return tuple(dict.fromkeys(columns))


@recording.study(OWN_DATA.notebook)
def run(frame: Frame, *, rounds: int, warmup: int, seed: int, race: int = 0) -> None:
    """Measure every technique with the frame and return one row per pass.

    In a `race` (1), slow techniques move a sample of the frame, and a first answer is printed. Passes are recorded in
    results/own_data.csv. Raises FrameError when a server does not hold the frame, ValueError for an invalid parameter,
    ServerError when a server cannot be started or reached, and ResultsError when results cannot be written.
    """
    check(RACE=(race, 0))
    (content, kept), table = modes.parted(frame.derived.content, frame.mode), frame.table
    rows, schedule = content.num_rows, Rounds(rounds, warmup, seed)
    chosen = [modes.competing(techniques(*path), frame.mode) for path in DIRECTIONS]
    digest = hashlib.sha256()
    for part in arrow_stream(content):
        digest.update(part)
    ddl = [table.postgres_ddl, table.clickhouse_ddl]
    terms = {**vars(schedule), "race": race, "mode": frame.mode, "tables": ddl, "content": digest.hexdigest()}
    with (
        recording.recording(OWN_DATA.notebook, OWN_DATA.results, store.Result, "technique", terms) as this_run,
        servers.running(this_run.settings) as both,
    ):
        ClickHouseTables(both.clickhouse).drop_beside(table)

        def work(stop: threading.Event) -> None:
            def measure_stage(some: Sequence[Technique], size: int, stage: Rounds) -> None:
                log = this_run.technique_log(OWN_DATA.notebook, size, stop)
                left = [one for one in some if not all(log.finished(one, at + 1) for at in range(stage.passes))]
                if not left:
                    return
                server, moved = both.of(left[0].database), content.slice(0, size)
                existing = modes.existing_rows(frame.mode, moved, kept, table, server)
                this_run.expect(len(left) * (stage.warmup + stage.passes))
                try:
                    measure.run(left, server, table, moved, stage, log, PassOptions(existing=existing))
                except (psycopg.Error, ReferenceTableError) as error:
                    raise FrameError(f"{DATABASES[left[0].database]} does not hold this frame: {error}") from error

            if race:
                _race(chosen, measure_stage, this_run, rows, schedule)
            else:
                for some in chosen:
                    measure_stage(some, rows, schedule)

        interruptible(work)
        what = f"{rows:,} rows of {frame.name}, {frame.mode}, {rounds} passes"
        this_run.metadata |= {"what": what, "servers": both.mode, "server": server_versions(both)}


def _race(
    chosen: list[list[Technique]], measure_stage: MeasureStage, this_run: Recording, rows: int, schedule: Rounds
) -> None:
    """Measure every technique with a sample, the better half with more rows, and the leaders with the whole frame.

    A first answer is printed after the first round of the leaders.
    """
    sample, part = (
        min(rows, max(least, min(most, rows // share))) for (least, most), share in ((SAMPLE_ROWS, 64), (PART_ROWS, 8))
    )
    once = replace(schedule, passes=1, warmup=0)
    left = chosen
    for stage in (Stage(sample, replace(schedule, passes=1), reach=2, share=1 / 2), Stage(part, once, share=1 / 4)):
        staying = list[list[Technique]]()
        for some in left:
            measure_stage(some, stage.rows, stage.rounds)
            # Techniques that do not give back the dtypes are no answer.
            exact = this_run.so_far().filter((pl.col("dtypes") == store.EXACT) | pl.col("dtypes").is_null())
            staying.append(leaders(some, exact, stage))
        left = staying
    for some in left:
        measure_stage(some, rows, once)
    this_run.say(f"First answer:\n\n{first_answer(this_run.so_far())}\n")
    for some in left:
        measure_stage(some, rows, replace(schedule, warmup=0))


def recommended(passes: pl.DataFrame) -> pl.DataFrame:
    """Return the fastest exact techniques of each path that stayed in the race to its end, the fastest first.

    The columns are those of `statistics.ranked`, and the terms of the technique.
    """
    medians = statistics.summary(passes).rename({"median_rows_per_s": "rows_per_s"}).drop(statistics.RATIO)
    exact = medians.drop_nulls("rows_per_s").filter(pl.col("origin") != "baseline", dtypes=store.EXACT)
    whole = exact.filter(pl.col("rows") == pl.col("rows").max().over(PATH))
    whole = whole.filter(pl.col("passes") == pl.col("passes").max().over(PATH))
    best = statistics.ranked(whole, PATH).group_by(PATH, maintain_order=True).head(RECOMMENDED)
    best = best.sort(PATH, descending=[True, True, False, True], maintain_order=True)
    contracts = [modes.as_measured(row).contract for row in best.iter_rows(named=True)]
    return best.with_columns(
        others_see=pl.Series([one and one.others_see for one in contracts], dtype=pl.String),
        after_failure=pl.Series([one and one.after_failure for one in contracts], dtype=pl.String),
    )


def first_answer(passes: pl.DataFrame) -> str:
    """Return the fastest exact technique of each path, a line each."""
    fastest = recommended(passes).group_by(PATH, maintain_order=True).first()
    return "\n".join(
        f"- {DATABASES[row['database']]} {', '.join(filter(None, (row['direction'], row['contract'], row['frame'])))}: "
        f"{row['technique']}, {row['rows_per_s']:,.0f} rows/s"
        for row in fastest.iter_rows(named=True)
    )


def write_code(frame: Frame, recommended: pl.DataFrame) -> dict[str, str]:
    """Write a script for each path into the page's directory, and return the scripts by file name.

    It calls the fastest technique that `framehaul.write` takes by name. Scripts of an older run are removed.
    """
    directory = load_settings().out / "reports" / OWN_DATA.notebook
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("*.py"):
        old.unlink()
    scripts = {}
    for _, path in recommended.group_by(PATH, maintain_order=True):
        rows = path.to_dicts()
        row = next(filter(callable_by_name, rows), rows[0])
        made = target(modes.as_measured(row), frame.table)
        ddl = made.postgres_ddl if row["database"] == "postgres" else unmarked(made.clickhouse_ddl)
        kind = "" if row["contract"] in (modes.APPEND, None) else f"_{row['contract']}"
        file = f"{row['database']}_{row['direction']}_{row['frame']}{kind}.py"
        scripts[file] = script(row, frame.table, ddl)
        (directory / file).write_text(scripts[file], "utf8")
    return scripts
