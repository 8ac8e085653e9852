"""What the notebooks call: run one database and direction, then show its table, chart and terms."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import cast

import polars as pl

from framehaul import servers
from framehaul.bench import statistics, store
from framehaul.bench.measure import record_passes
from framehaul.bench.race import Heat, beside, climb, heats, in_time, leaders
from framehaul.bench.recording import recording
from framehaul.bench.rounds import Rounds, check, interruptible
from framehaul.bench.study import Study, imported
from framehaul.data import generator
from framehaul.data.schema import TABLES
from framehaul.reporting import charts, tables
from framehaul.reporting.shown import Shown, chart, view
from framehaul.reporting.tables import Listing, words
from framehaul.servers.tables import tables_of
from framehaul.settings import Settings
from framehaul.studies.registry import TRANSFERS
from framehaul.studies.transfers import findings
from framehaul.techniques import Technique, techniques
from framehaul.techniques.contract import Contract
from framehaul.techniques.registry import REQUIREMENTS, Database, Direction, Requirement


def terms(passes: pl.DataFrame) -> Listing:
    """What writes ask of a table and of its other users, and what they leave: techniques on the same terms together."""
    database, direction = passes.select("database", "direction").row(0)
    rows: dict[tuple[Contract, tuple[Requirement, ...]], list[str]] = {}
    for technique in techniques(database, direction):
        if technique.contract is not None and technique.origin != "baseline":
            rows.setdefault((technique.contract, technique.requires), []).append(f"`{technique.name}`")
    most = max(map(len, rows.values()))
    return Listing(
        [
            words("techniques", lambda row: "all others" if len(row["names"]) == most else ", ".join(row["names"])),
            words("kind", "kind"),
            words("locks", "locks"),
            words("others see, while it runs", "others_see"),
            words("a failure leaves", "after_failure"),
            words("requires", lambda row: "; ".join(REQUIREMENTS[one] for one in row["requires"])),
        ],
        [vars(contract) | {"names": names, "requires": wants} for (contract, wants), names in rows.items()],
    )


class Transfers(Shown):
    """The passes of one database and direction."""

    terms = view(terms)

    table = view(lambda passes: tables.of_techniques(statistics.summary(passes)))
    chart = chart(lambda passes: charts.technique_bars(statistics.summary(passes)))

    def answer(self) -> Listing:
        """The fastest of each class, over the best published, and against the bound of these cores."""
        return findings.winners_table(self.summary, self.machine_cores)

    @property
    def summary(self) -> pl.DataFrame:
        """One row per technique, as `statistics.summary` makes it."""
        return statistics.summary(self.passes)


def run(
    database: str, direction: str, *, rows: int, rounds: int, warmup: int, seed: int, race: int = 0,
    profile: int = 0, table: str = "standard",
) -> Transfers:  # fmt: skip
    """Measure every technique of a database and direction, in a `race` if that is 1, and write its results.

    With a `profile`, passes have what ClickHouse counted of them. `table` is in TABLES.

    Raises ValueError for a parameter that makes no sense, ServerError when a server cannot be had, SettingsError and
    ResultsError for what their names say.
    """
    check(ROWS=(rows, 1), RACE=(race, 0))
    if table not in TABLES:
        raise ValueError(f"TABLE={table!r}: choose from {', '.join(TABLES)}")
    moved = TABLES[table]
    schedule, study = Rounds(rounds, warmup, seed), study_of(database, direction)
    chosen = techniques(cast("Database", database), cast("Direction", direction))
    terms = {"rows": rows, "race": race, "profile": profile, **vars(schedule)}
    terms |= {} if table == "standard" else {"table": table}
    with (
        recording(study.notebook, study.results, store.Result, "technique", terms) as this_run,
        servers.running(this_run.settings) as both,
    ):
        server = both.of(database)
        this_run.metadata |= terms | {"servers": both.mode, "server": tables_of(server).metadata()}

        def work(stop: threading.Event) -> None:
            content = generator.arrow_table(moved, rows, seed)

            def measure(some: list[Technique], heat: Heat) -> None:
                this_run.expect(1 + len(some) * (heat.rounds.warmup + heat.rounds.passes))
                record_passes(
                    this_run, study.notebook, some, server, moved, content.slice(0, heat.rows), heat.rounds, stop,
                    profile=bool(profile),
                )  # fmt: skip

            everyday, behind = [one for one in chosen if one.origin == "everyday"], list[Technique]()
            if everyday and (heat := climb(rows, schedule)):
                measure(everyday, heat)
                climbing = in_time(everyday, this_run.so_far(), heat, rows, race=bool(race))
                behind = [one for one in everyday if one not in climbing]
            left = [one for one in chosen if one not in behind]
            *before, last = heats(rows, schedule, race=bool(race))
            for heat in before:
                measure(left, heat)
                left = leaders(left, this_run.so_far(), heat)
            measure(left, last)
            if behind:
                measure([*behind, *left], beside(rows, schedule))

        interruptible(work)
    return load(database, direction, this_run.settings)


def load(database: str, direction: str, settings: Settings | None = None) -> Transfers:
    """The results of a direction's last complete run, without any server."""
    shown: Transfers = imported(study_of(database, direction).shown).load(settings)
    return shown


def _shown(of: Study) -> type[Transfers]:
    class OfDirection(Transfers):
        study = of

    return OfDirection


POSTGRES_WRITE, POSTGRES_READ, CLICKHOUSE_WRITE, CLICKHOUSE_READ = map(_shown, TRANSFERS)


def study_of(database: str, direction: str) -> Study:
    """The study of a direction; raises ValueError when there is none."""
    for study in TRANSFERS:
        if study.name == f"{database}_{direction}":
            return study
    raise ValueError(f"{database} {direction}: there is no such direction")


def read_all(directory: Path) -> pl.DataFrame:
    """The passes of all four directions that were run, from a results directory; studies beside them stay apart."""
    files = (path for study in TRANSFERS if (path := directory / study.results).exists())
    return pl.concat([pl.DataFrame(schema=store.SCHEMA), *map(store.read, files)])
