"""The generated blocks of the README."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import polars as pl

from framehaul.reporting.tables import markdown_table, ratio_text
from framehaul.results import statistics, store
from framehaul.settings import PROJECT
from framehaul.studies import faults, fidelity
from framehaul.studies.drivers import study as drivers
from framehaul.studies.json_parquet import study as json_parquet
from framehaul.studies.parquet import study as parquet
from framehaul.studies.pgbench import study as pgbench
from framehaul.studies.scale_out import study as scale_out
from framehaul.studies.scaling import study as scaling
from framehaul.studies.summary import study as summaries
from framehaul.studies.transfers import findings
from framehaul.studies.warehouse import study as warehouse
from framehaul.techniques.registry import DATABASES

README = PROJECT / "README.md"


def _headline_html(directory: Path) -> str:
    passes = store.read_all(directory)
    if passes.is_empty():
        return ""
    rows = "".join(
        f"<tr><td>{DATABASES[row['database']]} {row['direction']}</td><td>{html.escape(row['label'])}</td>"
        f"<td>{row['median_rows_per_s']:,.0f}</td></tr>"
        for row in findings.winners(statistics.summary(passes)).to_dicts()
    )
    return f"<table><tr><th>direction</th><th>fastest</th><th>rows/s (median)</th></tr>{rows}</table>"


def readme_blocks(runs: list[Path]) -> dict[str, str]:
    """The generated blocks of the README by name, from the results directories of the committed runs."""
    growth = store.read(SCALING_RUN / f"{store.SCALING}.csv")
    blocks = {
        "streams": scaling.streams_table(scaling.medians(growth)),
        "fidelity": fidelity.readme_text(store.read_cells(runs[0] / store.FIDELITY)),
        "faults": faults.counts_table(store.read_cells(runs[0] / store.FAULTS)),
        **drivers.readme_blocks(runs[0]),
        **warehouse.readme_blocks(runs[0]),
        **parquet.readme_blocks(runs[0]),
        **json_parquet.readme_blocks(runs[0]),
        **pgbench.readme_blocks(runs[0]),
        **scale_out.readme_blocks(runs[0]),
    }
    for directory, suffix in zip(runs, ("", "-large"), strict=False):
        summary = summaries.Summary.of(directory, growth, runs[0])
        blocks[f"headline{suffix}"] = f"{_made(summary.facts, summary.summary)}\n\n{summary.winners().data}"
        blocks[f"takeaway{suffix}"] = summary.takeaway().data
        blocks[f"past{suffix}"] = summary.past_published().data
        blocks[f"choices{suffix}"] = summary.choices().data
        blocks[f"agreement{suffix}"] = summary.agreement().data
        blocks[f"matrix{suffix}"] = _matrix(summary.summary)
    return blocks


SCALING_RUN = PROJECT / "reference" / "10000000" / "results"
"""Of the committed run that shows how cost grows."""


def committed_runs() -> list[Path]:
    """The results directories that the README shows: the default run first, then the larger one."""
    directories = PROJECT / "results", PROJECT / "reference" / "1000000" / "results"
    return [directory for directory in directories if (directory / "environment.json").exists()]


def _made(facts: dict[str, Any], summary: pl.DataFrame) -> str:
    """One sentence on where and how a run was made."""
    machine, made = facts["machine"], facts["runs"]["01_postgres_write"]
    return (
        f"{summary['rows'][0]:,} rows, {made['passes']} passes, {made['started'].split()[0]}, {machine['cores']} cores "
        f"({machine['cpu']}), {machine['memory_gib']} GiB, client and servers on this one machine; "
        f"{' '.join(facts['runs']['01_postgres_write']['server']['version'].split()[:2])}, "
        f"ClickHouse {facts['runs']['03_clickhouse_write']['server']['version']}, "
        f"Python {facts['python']}, pandas {facts['libraries']['pandas']}, Polars {facts['libraries']['polars']}."
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
