"""What notebook 05 calls: the four directions beside each other."""

from __future__ import annotations

import html
from pathlib import Path
from statistics import median
from typing import Any, Self, cast

import polars as pl
from IPython.display import SVG, Markdown

from framehaul.errors import ResultsError
from framehaul.reporting import charts
from framehaul.reporting.tables import dtypes_text, markdown_table, ratio_text, thousands
from framehaul.reporting.versions import versions_text
from framehaul.results import committed, statistics, store
from framehaul.settings import load_settings
from framehaul.studies.fidelity import STUDY as FIDELITY
from framehaul.studies.fidelity import counts
from framehaul.studies.scaling import STUDY as SCALING
from framehaul.studies.scaling.study import read_streams, streams_among
from framehaul.studies.summary import published
from framehaul.studies.transfers import findings
from framehaul.studies.transfers.study import read_all
from framehaul.techniques.registry import DATABASES


def load() -> Summary:
    """The results of all notebooks' last complete runs, without any server."""
    settings = load_settings()
    directory = settings.out / "results"
    return Summary.of(directory)


class Summary:
    """The results of all notebooks, ready to be compared."""

    def __init__(
        self,
        passes: pl.DataFrame,
        metadata: dict[str, Any],
        figures: Path,
        streams: pl.DataFrame | None = None,
        fidelity: pl.DataFrame | None = None,
    ) -> None:
        self._streams = pl.DataFrame(schema=store.SCHEMA) if streams is None else streams
        self._fidelity = fidelity
        if passes.is_empty():
            raise ResultsError("there are no results yet; run the other notebooks first (make all)")
        order = {
            ("postgres", "write"): 0,
            ("postgres", "read"): 1,
            ("clickhouse", "write"): 2,
            ("clickhouse", "read"): 3,
        }
        summary = published.beside(statistics.summary(passes))
        groups = dict(iter(summary.group_by("database", "direction", maintain_order=True)))
        self.summary = pl.concat([groups[key] for key in sorted(groups, key=lambda key: order[cast("Any", key)])])
        self.metadata, self._figures = metadata, figures

    @classmethod
    def of(cls, directory: Path, growth: pl.DataFrame | None = None, trials: Path | None = None) -> Self:
        """What a results directory holds, with `growth` in place of its own passes of the scaling study.

        The fidelity matrix is that of `trials`, or its own; the size of a run does not matter to it.
        Raises ResultsError when there is nothing to compare.
        """
        streams = read_streams(directory) if growth is None else streams_among(growth)
        matrix = (trials or directory) / FIDELITY.results
        fidelity = store.read_cells(matrix) if matrix.exists() else None
        return cls(read_all(directory), store.read_metadata(directory), directory.parent / "figures", streams, fidelity)

    def winners(self) -> Markdown:
        """The fastest technique of each database and direction, and what it changes."""
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
        """Published against measured, also saved as `figures/summary_published_against_measured.svg`."""
        figure = charts.published_against_measured(self.summary)
        return SVG(charts.save(figure, self._figures / "summary_published_against_measured.svg"))

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
        return Markdown(
            "\n\n".join(versions_text(self.metadata, notebook) for notebook in sorted(self.metadata["runs"])[:1])
        )


def winners_table(summary: pl.DataFrame, fidelity: pl.DataFrame | None = None) -> str:
    """Winners as Markdown: median, min to max, bytes, dtypes and, where it was tried, how it does with edge cases."""
    header = ["direction", "fastest technique", "median rows/s", "min to max", "MB on the wire", "dtypes"]
    rows = []
    for row in findings.winners(summary).to_dicts():
        cells = [
            f"{DATABASES[row['database']]} {row['direction']}", row["label"],
            f"{row['median_rows_per_s']:,.0f}{' ±' if row['unstable'] else ''}",
            f"{thousands(row['min_rows_per_s'])} to {thousands(row['max_rows_per_s'])}",
            "" if row["wire_bytes"] is None else f"{row['wire_bytes'] / 1e6:.1f}",
            "" if row["direction"] == "write" else dtypes_text(row["dtypes"]),
        ]  # fmt: skip
        rows.append(cells if fidelity is None else [*cells, counts.survival(fidelity, row)])
    return markdown_table(header if fidelity is None else [*header, "edge cases"], rows, text_columns=2)


def past_table(summary: pl.DataFrame) -> str:
    """Best published against best exact technique beyond, with the server's limits, as Markdown."""
    rows = []
    for past in findings.past_published(summary):
        best, single = past.beyond, past.single_connection
        cores = findings.busy_cores(best)
        rows.append(
            [
                f"{DATABASES[past.database]} {past.direction}",
                f"{past.published['label']}: {thousands(past.published['median_rows_per_s'])}",
                f"{best['label']}: {thousands(best['median_rows_per_s'])}",
                ratio_text(best),
                "" if single is None else ratio_text(single),
                "; ".join(f"{best['median_rows_per_s'] / row['median_rows_per_s']:.0%}" for row in past.limits),
                "" if cores is None else f"{cores:.1f}",
            ]
        )
    header = ["direction", "best published, rows/s", "best beyond with exact dtypes, rows/s", "ratio (95% interval)",
              "over one connection", "share of the server's limits", "cores busy"]  # fmt: skip
    return markdown_table(header, rows, text_columns=3)


def choices_table(summary: pl.DataFrame, streams: pl.DataFrame) -> str:
    """Which technique to use for which case, as Markdown; `streams` are the passes of the streamed moves."""
    rows = []
    for (database, direction), group in summary.group_by("database", "direction", maintain_order=True):
        where = f"{DATABASES[str(database)]} {direction}"
        rows += [
            [f"{where}: {case}", row["label"], f"`{row['technique']}`", figure]
            for case, row, figure in findings.choices(group)
        ]
        streamed = streams.filter(database=database, direction=direction).sort("rows", maintain_order=True)
        if not streamed.is_empty():
            largest = streamed.filter(pl.col("rows") == pl.col("rows").max())
            speed = thousands(float(median(largest["rows_per_s"].to_list())))
            label, name = largest.row(0, named=True)["label"], largest.row(0, named=True)["technique"]
            speed += f" rows/s at {largest['rows'][0]:,} rows"
            rows.append([f"{where}: more than fits in memory", label, f"`streaming.{name}`", speed])
    return markdown_table(["case", "technique", "function", "speed"], rows, text_columns=3)


def agreement_table(summary: pl.DataFrame) -> str:
    """Rank agreement as Markdown."""
    rows = []
    for key, group in summary.group_by("database", "direction", maintain_order=True):
        database, direction = map(str, key)
        agreement = published.rank_agreement(group)
        ratios = sorted(group["measured_over_published"].drop_nulls().to_list())
        rows.append(
            [
                f"{DATABASES[database]} {direction}",
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
    return markdown_table(header, rows)


def published_table(summary: pl.DataFrame) -> str:
    """Every published technique: published and measured means, and their ratio, as Markdown."""
    rows = [
        [
            f"{row['label']}",
            f"{DATABASES[row['database']]} {row['direction']}",
            f"{row['published_rows_per_s']:,.0f}",
            "" if row["mean_rows_per_s"] is None else f"{row['mean_rows_per_s']:,.0f}",
            row["status"] if row["mean_rows_per_s"] is None else f"{row['measured_over_published']:.2f}x",
        ]
        for row in summary.filter(pl.col("published_rows_per_s").is_not_null()).to_dicts()
    ]
    return markdown_table(["technique", "direction", "published rows/s", "measured rows/s", "ratio"], rows)


def headline_html(directory: Path) -> str:
    """The fastest technique of each direction, for the index page; empty when there are no results."""
    passes = read_all(directory)
    if passes.is_empty():
        return ""
    rows = "".join(
        f"<tr><td>{DATABASES[row['database']]} {row['direction']}</td><td>{html.escape(row['label'])}</td>"
        f"<td>{row['median_rows_per_s']:,.0f}</td></tr>"
        for row in findings.winners(statistics.summary(passes)).to_dicts()
    )
    return f"<table><tr><th>direction</th><th>fastest</th><th>rows/s (median)</th></tr>{rows}</table>"


def readme_blocks(directory: Path) -> dict[str, str]:
    """The blocks of the writeup: of a run, and of the larger one that is committed."""
    blocks: dict[str, str] = {}
    for run, suffix in ((directory, ""), (committed.LARGER_RUN, "-large")):
        if suffix and not (run / "environment.json").exists():
            continue  # its blocks stay as they are
        summary = Summary.of(run, store.read(committed.SCALING_RUN / SCALING.results), directory)
        blocks[f"headline{suffix}"] = f"{_made(summary.metadata, summary.summary)}\n\n{summary.winners().data}"
        blocks[f"takeaway{suffix}"] = summary.takeaway().data
        blocks[f"past{suffix}"] = summary.past_published().data
        blocks[f"choices{suffix}"] = summary.choices().data
        blocks[f"agreement{suffix}"] = summary.agreement().data
        blocks[f"matrix{suffix}"] = _matrix(summary.summary)
    return blocks


def _made(metadata: dict[str, Any], summary: pl.DataFrame) -> str:
    """One sentence on where and how a run was made."""
    machine, made = metadata["machine"], metadata["runs"]["01_postgres_write"]
    return (
        f"{summary['rows'][0]:,} rows, {made['passes']} passes, {made['started'].split()[0]}, {machine['cores']} cores "
        f"({machine['cpu']}), {machine['memory_gib']} GiB, client and servers on this one machine; "
        f"{' '.join(metadata['runs']['01_postgres_write']['server']['version'].split()[:2])}, "
        f"ClickHouse {metadata['runs']['03_clickhouse_write']['server']['version']}, "
        f"Python {metadata['python']}, pandas {metadata['libraries']['pandas']}, "
        f"Polars {metadata['libraries']['polars']}."
    )


def _matrix(summary: pl.DataFrame) -> str:
    """All techniques of all directions, with the published figure beside."""
    parts = []
    for key, group in summary.group_by("database", "direction", maintain_order=True):
        database, direction = map(str, key)
        rows = [
            [
                row["label"],
                "" if row["avg_s"] is None else f"{row['avg_s']:.4f}",
                row["status"] if row["mean_rows_per_s"] is None else f"{row['mean_rows_per_s']:,.0f}",
                "" if row["min_rows_per_s"] is None else f"{row['min_rows_per_s']:,.0f}",
                "" if row["max_rows_per_s"] is None else f"{row['max_rows_per_s']:,.0f}",
                ratio_text(row),
                "" if row["published_rows_per_s"] is None else f"{row['published_rows_per_s']:,.0f}",
            ]
            for row in group.to_dicts()
        ]
        header = ["technique", "avg s", "mean rows/s", "min", "max", "ratio to best (95% interval)", "published rows/s"]
        parts.append(f"**{DATABASES[database]} {direction}**\n\n{markdown_table(header, rows)}")
    return "\n\n".join(parts)
