"""Measure your own frame with every technique, and hand out the code of the fastest exact ones."""

import contextlib
import hashlib
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psycopg
import pyarrow as pa

from framehaul.api.choice import MODES, named_techniques
from framehaul.api.create import unmarked
from framehaul.api.derive import Derived, derive
from framehaul.bench import measure, statistics, store
from framehaul.bench.measure import ExistingRows, PassOptions
from framehaul.bench.recording import Recording, recorded
from framehaul.bench.rounds import Rounds
from framehaul.bench.trials import DIRECTIONS, Stage, leaders
from framehaul.data import generator
from framehaul.data.frames import arrow_stream
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.errors import FrameError, ReferenceTableError, SettingsError, UnavailableError
from framehaul.servers import Server
from framehaul.servers.tables import ClickHouseTables
from framehaul.settings import load_settings
from framehaul.studies.own_data import files
from framehaul.studies.registry import OWN_DATA
from framehaul.studies.upsert.measure import as_read
from framehaul.techniques import Technique, techniques, upserts
from framehaul.techniques.registry import DATABASES, named
from framehaul.techniques.replacing import replacing
from framehaul.techniques.upsert.rows import check_keys, target

PATH = ["database", "direction", "contract", "frame"]
"""The columns within which techniques compete."""
RECOMMENDED = 4
"""The number of techniques that are recommended for each path, the fastest first."""
APPEND, REPLACE, UPSERT = MODES
THERE_ROWS = 1_000
"""The maximum of rows that are in the table before a write that replaces them."""
KEPT = 10
"""One in ten rows of a frame is in the table before an upsert and stays unchanged."""
DOES = {APPEND: "fills", REPLACE: "replaces all rows of", UPSERT: "adds rows to or changes, by its key", None: "reads"}
VARIABLES = {"postgres": "DATABASE_URL", "clickhouse": "CLICKHOUSE_URL"}
"""The usual variables with the address of a server."""
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
    mode: str = APPEND
    """The fate of rows that are in the table before a write."""
    csv: str = ""
    """The form of a CSV, as `separator=;`."""

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


def open_frame(
    data: str = "", *, key: str = "", sort: str = "", rows: int = 0, mode: str = APPEND, csv: str = ""
) -> Frame:
    """Read the first `rows` rows of a file, or all for 0, and derive a table from them.

    Without `data` it reads the file given to `make mine`, or else makes a small example. `key` and `sort` name columns,
    as `a b`, or as `a, b c` where names hold blanks. `csv` says how a CSV is written, as `separator=; decimal=,`.
    Raises FrameError for what cannot be read or carried, and SettingsError for invalid `rows`, unknown columns, an
    unknown `mode` or `csv`, and a key by which an upsert cannot find rows.
    """
    OWN_DATA.check({"rows": rows, "mode": mode})
    path = Path(data).expanduser() if data else load_settings().data
    if path is None:
        content = generator.arrow_table(ANALYTICS_METRICS, rows or 2_000, 1)
        name, notes = "example", ["No file was given: this is an example."]
    else:
        content, notes = files.read(path, rows, files.Form.of(csv))
        name = path.name
    keys, order = (columns_named(*one, content.column_names) for one in (("KEY", key), ("SORT", sort)))
    derived = derive(content, table_name(name.partition(".")[0]), keys, order)
    if mode == UPSERT:
        try:
            check_keys(pl.DataFrame(schema=derived.table.polars_schema), derived.table)
        except ValueError as error:
            raise SettingsError(f"KEY={key!r}: {error}") from error
    return Frame(name, derived, (*notes, *derived.notes), mode, csv)


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


def competing(techniques: Iterable[Technique], mode: str) -> list[Technique]:
    """Return the techniques of one direction that compete in a mode; reads compete in every mode."""
    moving = [one for one in techniques if one.origin != "everyday"]
    writing = [one for one in moving if one.contract]
    if mode == APPEND or not writing:
        return [one for one in moving if one.contract is None or one.contract.kind == "append"]
    if mode == UPSERT:
        return upserts(writing[0].database)
    replacements = list[Technique]()
    for one in writing:
        with contextlib.suppress(UnavailableError):  # its write is not one transaction
            replacements += [] if one.origin == "baseline" else [replacing(one)]
    return replacements


def as_measured(row: Mapping[str, Any]) -> Technique:
    """Return the technique of a row of results as it was measured in the mode of the row."""
    technique = named(row["database"], row["direction"], row["technique"])
    return replacing(technique) if row["contract"] == REPLACE else technique


def parted(content: pa.Table, mode: str) -> tuple[pa.Table, pa.Table]:
    """Return the rows that are written, and the rows that an upsert finds and leaves unchanged."""
    sent = content.num_rows - (content.num_rows // KEPT if mode == UPSERT else 0)
    return content.slice(0, sent), content.slice(sent)


def existing_rows(mode: str, sent: pa.Table, kept: pa.Table, table: Table, server: Server) -> ExistingRows | None:
    """Return the rows that are in the table before a write; None for an empty table.

    Before an upsert they have every second key that is sent, with the values of another row, and the `kept` rows.
    """
    if mode == APPEND:
        return None
    if mode == REPLACE:
        # They are rows of the frame: one that is not removed is a row too many, or its key is an error.
        return ExistingRows(sent.slice(0, THERE_ROWS))
    known = sent.filter(pa.array(np.arange(sent.num_rows) % 2 == 0))
    moved = pa.concat_tables([known.slice(1), known.slice(0, 1)])
    changed = [(known if name in table.key else moved).column(name) for name in known.column_names]
    existing = pa.concat_tables([pa.Table.from_arrays(changed, schema=known.schema), kept])
    expected = pa.concat_tables([sent, kept])
    return ExistingRows(existing, expected, target, lambda technique, _: as_read(technique, server))


def terms(frame: Frame, **_: object) -> dict[str, Any]:
    """Return the terms of a run besides its parameters: the frame and its tables."""
    digest = hashlib.sha256()
    for part in arrow_stream(frame.derived.content):
        digest.update(part)
    ddl = [frame.table.postgres_ddl, frame.table.clickhouse_ddl]
    return {"mode": frame.mode, "tables": ddl, "content": digest.hexdigest()}


@recorded(OWN_DATA, terms=terms)
def run(this_run: Recording, frame: Frame, *, rounds: int, warmup: int, seed: int, race: int = 0) -> None:
    """Measure every technique with the frame and return one row per pass.

    In a `race` (1), slow techniques move a sample. Raises FrameError when a server does not hold the frame, and the
    errors of `recorded`.
    """
    (content, kept), table = parted(frame.derived.content, frame.mode), frame.table
    rows, schedule = content.num_rows, Rounds(rounds, warmup, seed)
    chosen = [competing(techniques(*path), frame.mode) for path in DIRECTIONS]
    both = this_run.servers()
    ClickHouseTables(both.clickhouse).drop_beside(table)
    for some, size, stage in _plan(chosen, this_run, rows, schedule, race=bool(race)):
        if not some:
            continue
        log, server, moved = this_run.technique_log(size), both.of(some[0].database), content.slice(0, size)
        existing = existing_rows(frame.mode, moved, kept, table, server)
        try:
            measure.run(some, server, table, moved, stage, log, PassOptions(existing=existing))
        except (psycopg.Error, ReferenceTableError) as error:
            raise FrameError(f"{DATABASES[some[0].database]} does not hold this frame: {error}") from error
    this_run.metadata["what"] = f"{rows:,} rows of {frame.name}, {frame.mode}, {rounds} passes"


def _plan(
    chosen: list[list[Technique]], this_run: Recording, rows: int, schedule: Rounds, *, race: bool
) -> Iterator[tuple[list[Technique], int, Rounds]]:
    """Yield the techniques to measure next, their number of rows, and their rounds.

    In a race, all techniques move a sample, the better half moves more rows, and the leaders move the whole frame.
    """
    if not race:
        for some in chosen:
            yield some, rows, schedule
        return
    sample, part = (
        min(rows, max(least, min(most, rows // share))) for (least, most), share in ((SAMPLE_ROWS, 64), (PART_ROWS, 8))
    )
    once, left = replace(schedule, passes=1, warmup=0), chosen
    for stage in (Stage(sample, replace(schedule, passes=1), reach=2, share=1 / 2), Stage(part, once, share=1 / 4)):
        staying = list[list[Technique]]()
        for some in left:
            yield some, stage.rows, stage.rounds
            # Techniques that do not give back the dtypes are no answer.
            exact = this_run.so_far().filter((pl.col("dtypes") == store.EXACT) | pl.col("dtypes").is_null())
            staying.append(leaders(some, exact, stage))
        left = staying
    for some in left:
        yield some, rows, schedule


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
    contracts = [as_measured(row).contract for row in best.iter_rows(named=True)]
    terms = [(one.others_see, one.after_failure) if one else (None, None) for one in contracts]
    return best.hstack(pl.DataFrame(terms, dict.fromkeys(("others_see", "after_failure"), pl.String), orient="row"))


def callable_by_name(row: Mapping[str, Any]) -> bool:
    """Return whether `framehaul.write` takes the technique of a row by its name; a read's row has no contract."""
    return row["contract"] in MODES and row["technique"] in named_techniques(row["database"], row["contract"])


def script(row: Mapping[str, Any], table: Table, ddl: str, csv: str = "") -> str:
    """Return a script for a recommended technique: a write calls it by name, a read leaves the choice to framehaul.

    Its docstring says what was measured, how to run the script, and which table it needs.
    """
    variable, frame, writes = VARIABLES[row["database"]], row["frame"], row["direction"] == "write"
    address, name = f'os.environ["{variable}"]', getattr(table, f"{row['database']}_name")
    text = (
        f"{row['label']}.\n\n{row['technique']} was measured at {row['rows_per_s']:,.0f} rows/s.\n\n"
        f"    python this_file.py{' data.parquet' * writes}\n\n{variable} is the address of the server. "
        f"The table that it {DOES[row['contract']]}:\n\n{textwrap.indent(ddl, '    ')}"
    )
    heading = f'r"""{text.replace('"""', '" " "')}\n"""\n\nimport os\n'
    if not writes:
        call = f'framehaul.read({address}, {f"SELECT * FROM {name}"!r}, frame="{frame}")'
        return f"{heading}\nimport framehaul\n\nframe = {call}\nprint(frame)\n"
    form = f", csv={csv!r}" * bool(csv)
    by_name = f', technique="{row["technique"]}"' if callable_by_name(row) else ""
    return f"""{heading}import sys

import framehaul
from framehaul.data.frames import to_{frame}
from framehaul.studies.own_data import open_frame

mine = open_frame(sys.argv[1], key={", ".join(table.key)!r}, sort={", ".join(table.sort or ())!r}{form})
frame = to_{frame}(mine.derived.content, mine.table)
framehaul.write(frame, {address}, {name!r}, mode="{row["contract"]}"{by_name})
"""


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
        made = target(as_measured(row), frame.table)
        ddl = made.postgres_ddl if row["database"] == "postgres" else unmarked(made.clickhouse_ddl)
        kind = "" if row["contract"] in (APPEND, None) else f"_{row['contract']}"
        file = f"{row['database']}_{row['direction']}_{row['frame']}{kind}.py"
        scripts[file] = script(row, frame.table, ddl, frame.csv)
        (directory / file).write_text(scripts[file], "utf8")
    return scripts
