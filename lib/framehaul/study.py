"""What the notebooks call: run one database and direction, then show its table, chart, findings and code."""

from __future__ import annotations

import datetime as dt
import sys
import threading
from pathlib import Path
from statistics import median
from typing import Any, Self, cast

import polars as pl
from IPython.display import HTML, SVG, Code, Markdown
from tqdm import tqdm

from framehaul import charts, environment, findings, measure, published, results, servers
from framehaul.schema import ANALYTICS_METRICS, Table
from framehaul.settings import Settings, load_settings
from framehaul.tables import tables_of
from framehaul.techniques import Technique, techniques
from framehaul.techniques.registry import Database, Direction


class Study:
    """The results of one notebook, ready to be shown."""

    def __init__(self, notebook: str, passes: pl.DataFrame, facts: dict[str, Any], figures: Path) -> None:
        self.passes = passes
        self.summary = results.summary(passes)
        self._notebook, self._facts, self._figures = notebook, facts, figures

    def table(self) -> HTML:
        """All techniques with the published columns and ours."""
        return HTML(charts.html_table(self.summary))

    def chart(self) -> SVG:
        """The bars, also saved as `figures/<notebook>.svg`."""
        return SVG(charts.save(charts.bars(self.summary), self._figures / f"{self._notebook}.svg"))

    def findings(self) -> Markdown:
        """What stands out."""
        return Markdown(findings.of_direction(self.summary))

    def versions(self) -> Markdown:
        """What this was run with, and the server's settings that matter."""
        return Markdown(versions_text(self._facts, self._notebook))


def run(
    notebook: str, database: str, direction: str, *, rows: int, passes: int, warmup: int, seed: int,
    table: Table = ANALYTICS_METRICS,
) -> Study:  # fmt: skip
    """Measure every technique of a database and direction and write `results/<notebook>.csv`.

    Raises ValueError for a parameter that makes no sense, ServerError when a server cannot be had, SettingsError and
    ResultsError for what their names say.
    """
    parameters = measure.Parameters(rows, passes, warmup, seed)
    settings = load_settings()
    chosen = techniques(cast("Database", database), cast("Direction", direction))
    run_id, started = results.new_run_id(), dt.datetime.now(dt.UTC)
    with (
        servers.running(settings) as both,
        results.Writer(settings.out / "results" / f"{notebook}.csv") as writer,
        # On standard output: a log of the run shows it as it goes.
        tqdm(total=len(chosen) * (warmup + passes), file=sys.stdout, mininterval=1, unit="technique", ncols=100) as bar,
    ):
        server = both.of(database)

        def record(technique: Technique, number: int, outcome: measure.Outcome, wire_bytes: int | None) -> None:
            writer.write(result(run_id, notebook, technique, rows, number, outcome, wire_bytes))

        def progress(step: str) -> None:
            bar.set_postfix_str(step[:48], refresh=False)
            bar.update(1 if ":" in step else 0)

        server_facts = tables_of(server).facts()
        interruptible(lambda stop: measure.run(chosen, server, table, parameters, record, progress, stop))
        bar.set_postfix_str("done")
    facts = keep_facts(settings, notebook, made(run_id, started, parameters, both.mode, server_facts))
    return load(notebook, settings, facts)


def load(notebook: str, settings: Settings | None = None, facts: dict[str, Any] | None = None) -> Study:
    """The results of a notebook's last complete run, without any server."""
    settings = settings or load_settings()
    directory = settings.out / "results"
    passes = results.read(directory / f"{notebook}.csv")
    return Study(notebook, passes, facts or results.read_facts(directory), settings.out / "figures")


def load_all() -> Summary:
    """The results of all notebooks' last complete runs, without any server."""
    settings = load_settings()
    directory = settings.out / "results"
    return Summary.of(directory)


class Summary:
    """The results of all notebooks, ready to be compared."""

    def __init__(
        self,
        passes: pl.DataFrame,
        facts: dict[str, Any],
        figures: Path,
        streams: pl.DataFrame | None = None,
        fidelity: pl.DataFrame | None = None,
    ) -> None:
        self._streams = pl.DataFrame(schema=results.SCHEMA) if streams is None else streams
        self._fidelity = fidelity
        if passes.is_empty():
            raise results.ResultsError("there are no results yet; run the other notebooks first (make all)")
        order = {
            ("postgres", "write"): 0,
            ("postgres", "read"): 1,
            ("clickhouse", "write"): 2,
            ("clickhouse", "read"): 3,
        }
        summary = published.beside(results.summary(passes))
        groups = dict(iter(summary.group_by("database", "direction", maintain_order=True)))
        self.summary = pl.concat([groups[key] for key in sorted(groups, key=lambda key: order[cast("Any", key)])])
        self.facts, self._figures = facts, figures

    @classmethod
    def of(cls, directory: Path, growth: pl.DataFrame | None = None, trials: Path | None = None) -> Self:
        """What a results directory holds, with `growth` in place of its own passes of the scaling study.

        The fidelity matrix is that of `trials`, or its own; the size of a run does not matter to it.
        Raises ResultsError when there is nothing to compare.
        """
        streams = results.read_streams(directory) if growth is None else results.streams_among(growth)
        matrix = (trials or directory) / results.FIDELITY
        fidelity = results.read_cells(matrix) if matrix.exists() else None
        return cls(
            results.read_all(directory), results.read_facts(directory), directory.parent / "figures", streams, fidelity
        )

    def winners(self) -> Markdown:
        """The fastest technique of each database and direction, and what survives it."""
        return Markdown(winners_table(self.summary, self._fidelity))

    def past_published(self) -> Markdown:
        """How far past the published techniques one gets, and how far that is from the server's own limits."""
        return Markdown(past_table(self.summary))

    def choices(self) -> Markdown:
        """Which technique to use for which case."""
        return Markdown(choices_table(self.summary, self._streams))

    def takeaway(self) -> Markdown:
        """The databases against each other."""
        return Markdown(findings.takeaway(self.summary))

    def chart(self) -> SVG:
        """Published against measured, also saved as `figures/05_published_against_measured.svg`."""
        figure = charts.published_against_measured(self.summary)
        return SVG(charts.save(figure, self._figures / "05_published_against_measured.svg"))

    def agreement(self) -> Markdown:
        """Rank agreement with the published matrix, per database and direction."""
        return Markdown(agreement_table(self.summary))

    def ratios(self) -> Markdown:
        """Measured over published rows/s, for every technique."""
        return Markdown(published_table(self.summary))

    def ranking(self) -> Markdown:
        """The practical ranking."""
        return Markdown(findings.ranking(self.summary))

    def versions(self) -> Markdown:
        """What the runs were made with."""
        return Markdown("\n\n".join(versions_text(self.facts, notebook) for notebook in sorted(self.facts["runs"])[:1]))


def winners_table(summary: pl.DataFrame, fidelity: pl.DataFrame | None = None) -> str:
    """Winners as Markdown: median, min to max, bytes, dtypes and, where it was tried, what survives of awkward data."""
    header = ["direction", "fastest technique", "median rows/s", "min to max", "MB on the wire", "dtypes"]
    rows = []
    for row in findings.winners(summary).to_dicts():
        cells = [
            f"{charts.DATABASES[row['database']]} {row['direction']}", row["label"],
            f"{row['median_rows_per_s']:,.0f}{' ±' if row['unstable'] else ''}",
            f"{charts.thousands(row['min_rows_per_s'])} to {charts.thousands(row['max_rows_per_s'])}",
            "" if row["wire_bytes"] is None else f"{row['wire_bytes'] / 1e6:.1f}",
            "" if row["direction"] == "write" else charts.dtypes_text(row["dtypes"]),
        ]  # fmt: skip
        rows.append(cells if fidelity is None else [*cells, findings.survival(fidelity, row)])
    return charts.markdown_table(header if fidelity is None else [*header, "awkward data"], rows, text_columns=2)


def past_table(summary: pl.DataFrame) -> str:
    """Best published against best exact technique beyond, with the server's limits, as Markdown."""
    rows = []
    for past in findings.past_published(summary):
        best, single = past.beyond, past.single_connection
        cores = findings.busy_cores(best)
        rows.append(
            [
                f"{charts.DATABASES[past.database]} {past.direction}",
                f"{past.published['label']}: {charts.thousands(past.published['median_rows_per_s'])}",
                f"{best['label']}: {charts.thousands(best['median_rows_per_s'])}",
                charts.ratio_text(best),
                "" if single is None else charts.ratio_text(single),
                "; ".join(f"{best['median_rows_per_s'] / row['median_rows_per_s']:.0%}" for row in past.limits),
                "" if cores is None else f"{cores:.1f}",
            ]
        )
    header = ["direction", "best published, rows/s", "best beyond with exact dtypes, rows/s", "ratio (95% interval)",
              "over one connection", "share of the server's limits", "cores busy"]  # fmt: skip
    return charts.markdown_table(header, rows, text_columns=3)


def choices_table(summary: pl.DataFrame, streams: pl.DataFrame) -> str:
    """Which technique to use for which case, as Markdown; `streams` are the passes of the streamed moves."""
    rows = []
    for (database, direction), group in summary.group_by("database", "direction", maintain_order=True):
        where = f"{charts.DATABASES[str(database)]} {direction}"
        rows += [
            [f"{where}: {case}", row["label"], f"`{row['technique']}`", figure]
            for case, row, figure in findings.choices(group)
        ]
        streamed = streams.filter(database=database, direction=direction).sort("rows", maintain_order=True)
        if not streamed.is_empty():
            largest = streamed.filter(pl.col("rows") == pl.col("rows").max())
            speed = charts.thousands(float(median(largest["rows_per_s"].to_list())))
            label, name = largest.row(0, named=True)["label"], largest.row(0, named=True)["technique"]
            speed += f" rows/s at {largest['rows'][0]:,} rows"
            rows.append([f"{where}: more than fits in memory", label, f"`streaming.{name}`", speed])
    return charts.markdown_table(["case", "technique", "function", "speed"], rows, text_columns=3)


def agreement_table(summary: pl.DataFrame) -> str:
    """Rank agreement as Markdown."""
    rows = []
    for key, group in summary.group_by("database", "direction", maintain_order=True):
        database, direction = map(str, key)
        agreement = published.rank_agreement(group)
        ratios = sorted(group["measured_over_published"].drop_nulls().to_list())
        rows.append(
            [
                f"{charts.DATABASES[database]} {direction}",
                f"{len(ratios)} of {len(group.filter(origin='published'))}",
                "" if agreement is None else f"{agreement:.2f}",
                f"{median(ratios):.2f}x ({ratios[0]:.2f} to {ratios[-1]:.2f})" if ratios else "",
            ]
        )
    header = [
        "direction",
        "techniques compared",
        "rank correlation (Spearman)",
        "measured over published, median (range)",
    ]
    return charts.markdown_table(header, rows)


def published_table(summary: pl.DataFrame) -> str:
    """Every published technique: published and measured means, and their ratio, as Markdown."""
    rows = [
        [
            f"{row['label']}",
            f"{charts.DATABASES[row['database']]} {row['direction']}",
            f"{row['published_rows_per_s']:,.0f}",
            "" if row["mean_rows_per_s"] is None else f"{row['mean_rows_per_s']:,.0f}",
            row["status"] if row["mean_rows_per_s"] is None else f"{row['measured_over_published']:.2f}x",
        ]
        for row in summary.filter(pl.col("published_rows_per_s").is_not_null()).to_dicts()
    ]
    return charts.markdown_table(["technique", "direction", "published rows/s", "measured rows/s", "ratio"], rows)


def versions_text(facts: dict[str, Any], notebook: str) -> str:
    """Machine, versions, run and server settings as Markdown."""
    made = facts["runs"][notebook]
    machine = facts["machine"]
    settings = ", ".join(f"`{name} = {value}`" for name, value in made["server"]["settings"].items())
    libraries = ", ".join(f"{name} {version}" for name, version in facts["libraries"].items())
    return "\n".join(
        [
            f"- Run {made['run_id']}: {made['rows']:,} rows, {made['passes']} passes after {made['warmup']} warm-up, "
            f"seed {made['seed']}, {made['servers']} servers, started {made['started']}, commit {facts['commit']}",
            f"- Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}",
            f"- Server: {made['server']['version']}; {settings}",
            f"- Python {facts['python']}; {libraries}",
        ]
    )


def trial_versions_text(facts: dict[str, Any], notebook: str) -> str:
    """Machine, versions, run and what could not be tried, of a study of outcomes instead of times, as Markdown."""
    made, machine = facts["runs"][notebook], facts["machine"]
    libraries = ", ".join(f"{name} {version}" for name, version in facts["libraries"].items())
    servers_text = f", {made['servers']} servers" if "servers" in made else ""
    lines = [
        f"- Run {made['run_id']}: {made['what']}{servers_text}, started {made['started']}, commit {facts['commit']}",
        f"- Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}",
    ]
    if "server" in made:
        lines.append(f"- {made['server']['postgres']}; ClickHouse {made['server']['clickhouse']}")
    lines.append(f"- Python {facts['python']}; {libraries}")
    lines += [f"- {name} {version}" for name, version in made.get("toolchains", {}).items()]
    lines += [f"- Not tried: `{name}`: {reason}" for name, reason in made["unavailable"].items()]
    return "\n".join(lines)


def show_source(database: str, direction: str, *names: str) -> Code:
    """The code of these techniques as it stands in the library."""
    known = {
        technique.name: technique for technique in techniques(cast("Database", database), cast("Direction", direction))
    }
    return Code("\n\n\n".join(known[name].source for name in names), language="python")


def server_versions(both: servers.Servers) -> dict[str, str]:
    """The version of each server, by the database's name."""
    return {name: tables_of(both.of(name)).facts()["version"] for name in charts.DATABASES}


def made(
    run_id: str, started: dt.datetime, parameters: measure.Parameters, servers_mode: str, server: dict[str, Any]
) -> dict[str, Any]:
    """What is recorded of one notebook's run."""
    return {
        "run_id": run_id, "started": f"{started:%Y-%m-%d %H:%M} UTC", **vars(parameters), "servers": servers_mode,
        "server": server,
    }  # fmt: skip


def keep_facts(settings: Settings, notebook: str, made: dict[str, Any]) -> dict[str, Any]:
    """Record this run beside those of the other notebooks."""
    directory = settings.out / "results"
    facts = environment.facts() | {"runs": results.read_facts(directory)["runs"] | {notebook: made}}
    results.write_environment(directory / "environment.json", facts)
    return facts


def result(
    run_id: str, notebook: str, technique: Technique, rows: int, number: int, outcome: measure.Outcome,
    wire_bytes: int | None,
) -> results.Result:  # fmt: skip
    """A pass as a row of results; what was not measured is None."""
    ok, usage = outcome.status == "ok", outcome.usage
    return results.Result(
        run_id=run_id, notebook=notebook, database=technique.database, direction=technique.direction,
        technique=technique.name, label=technique.label, origin=technique.origin, family=technique.family,
        driver=technique.driver, frame=technique.frame, rows=rows, pass_=number,
        seconds=outcome.seconds, rows_per_s=rows / outcome.seconds if outcome.seconds else None,
        client_cpu_s=usage.client_cpu_s if usage else None, server_cpu_s=usage.server_cpu_s if usage else None,
        peak_rss_bytes=usage.peak_rss_bytes if usage else None, wire_bytes=wire_bytes if ok else None,
        dtypes=outcome.dtypes, status=outcome.status, reason=outcome.reason,
    )  # fmt: skip


def interruptible(work: Any) -> None:
    """Run `work(stop)` in a thread of its own: a notebook's main thread already runs an event loop.

    An interrupt (the notebook's stop button, Ctrl-C) ends the work between two passes.
    """
    stop = threading.Event()
    failure: list[BaseException] = []

    def guarded() -> None:
        try:
            work(stop)
        except BaseException as error:  # noqa: BLE001  raised again in the main thread
            failure.append(error)

    thread = threading.Thread(target=guarded, name="framehaul-measure")
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        stop.set()
        thread.join()
        raise
    if failure:
        raise failure[0]
