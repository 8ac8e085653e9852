"""What notebook 05 calls: the four directions beside each other."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any, Self, cast

import polars as pl
from IPython.display import SVG, Markdown

from framehaul.errors import ResultsError
from framehaul.reporting import charts
from framehaul.reporting.tables import dtypes_text, markdown_table, ratio_text, thousands
from framehaul.reporting.versions import versions_text
from framehaul.results import statistics, store
from framehaul.settings import load_settings
from framehaul.studies.fidelity import counts
from framehaul.studies.summary import published
from framehaul.studies.transfers import findings
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
        facts: dict[str, Any],
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
        self.facts, self._figures = facts, figures

    @classmethod
    def of(cls, directory: Path, growth: pl.DataFrame | None = None, trials: Path | None = None) -> Self:
        """What a results directory holds, with `growth` in place of its own passes of the scaling study.

        The fidelity matrix is that of `trials`, or its own; the size of a run does not matter to it.
        Raises ResultsError when there is nothing to compare.
        """
        streams = store.read_streams(directory) if growth is None else store.streams_among(growth)
        matrix = (trials or directory) / store.FIDELITY
        fidelity = store.read_cells(matrix) if matrix.exists() else None
        return cls(
            store.read_all(directory), store.read_facts(directory), directory.parent / "figures", streams, fidelity
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
            f"{DATABASES[row['database']]} {row['direction']}", row["label"],
            f"{row['median_rows_per_s']:,.0f}{' ±' if row['unstable'] else ''}",
            f"{thousands(row['min_rows_per_s'])} to {thousands(row['max_rows_per_s'])}",
            "" if row["wire_bytes"] is None else f"{row['wire_bytes'] / 1e6:.1f}",
            "" if row["direction"] == "write" else dtypes_text(row["dtypes"]),
        ]  # fmt: skip
        rows.append(cells if fidelity is None else [*cells, counts.survival(fidelity, row)])
    return markdown_table(header if fidelity is None else [*header, "awkward data"], rows, text_columns=2)


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
