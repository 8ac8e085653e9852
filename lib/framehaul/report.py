"""What a reader opens: notebooks as HTML that needs no network, an index, and the generated blocks of the README."""

from __future__ import annotations

import datetime as dt
import html
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import polars as pl
from nbconvert import HTMLExporter
from traitlets.config import Config

from framehaul import charts, faults, fidelity, findings, results, scaling, study
from framehaul.drivers import report as drivers
from framehaul.pgbench import report as pgbench
from framehaul.scale_out import study as scale_out
from framehaul.settings import PROJECT
from framehaul.warehouse import anatomy, json_study, transfer

TEMPLATES = Path(__file__).parent
README = PROJECT / "README.md"


class ReportError(RuntimeError):
    """A report cannot be made; the message says why."""


@dataclass(frozen=True)
class Entry:
    """A notebook's line in the index; `link` is relative to it, `problem` is set when the run did not end well."""

    name: str
    title: str
    link: str
    problem: str | None = None


def export(notebook: Path, page: Path) -> None:
    """Convert an executed notebook into one self-contained page with its code folded.

    Raises ReportError when the page would load anything from the network.
    """
    config = Config()
    # A progress bar rewrites its line; only what it ends with belongs into a page.
    config.HTMLExporter.preprocessors = ["nbconvert.preprocessors.coalescestreams.CoalesceStreamsPreprocessor"]
    exporter = HTMLExporter(
        config=config, template_name="report_template", extra_template_basedirs=[str(TEMPLATES)],
        embed_images=True, mathjax_url="", require_js_url="", jquery_url="", mermaid_js_url="",
    )  # fmt: skip
    content = nbformat.read(notebook, as_version=4)
    body, _ = exporter.from_notebook_node(content, resources={"metadata": {"name": title_of(content)}})
    loaded = re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"'](?:https?:)?//[^\"']+", body)
    if loaded:
        raise ReportError(f"{page.name} would load {loaded[0]}")
    page.write_text(body, encoding="utf8")


def title_of(content: nbformat.NotebookNode) -> str:
    """A notebook's first heading."""
    first = str(content.cells[0].source).strip().splitlines()[0]
    return first.lstrip("# ")


def write_index(reports: Path, entries: list[Entry], facts: dict[str, Any]) -> None:
    """Write `index.html`, where a reader starts: one line per notebook, and where the runs were made."""
    lines = []
    for entry in entries:
        made = facts["runs"].get(entry.name)
        when = f"{made.get('what') or _size(made)}, {made['started']}" if made else ""
        trouble = f' <strong class="problem">{html.escape(entry.problem)}</strong>' if entry.problem else ""
        lines.append(
            f'<li><a href="{html.escape(entry.link)}">{html.escape(entry.title)}</a>{trouble}'
            f"<br><small>{html.escape(when)}</small></li>"
        )
    machine = facts.get("machine")
    where = (
        f"<p>Measured on {html.escape(machine['cpu'])}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{html.escape(machine['system'])}.</p>"
        if machine
        else ""
    )
    summary = reports.parent / "results"
    (reports / "index.html").write_text(
        INDEX.format(lines="\n".join(lines), where=where, headline=_headline_html(summary), year=dt.date.today().year),
        encoding="utf8",
    )


def _size(made: dict[str, Any]) -> str:
    return f"{made['rows']:,} rows, {made['passes']} passes"


INDEX = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>framehaul reports</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 16px/1.5 sans-serif; max-width: 980px; margin: 2em auto; padding: 0 1em; color: #222; }}
li {{ margin: .6em 0; }} small {{ color: #666; }} .problem {{ color: #B00020; }}
table {{ border-collapse: collapse; }} th, td {{ padding: 4px 12px; border-bottom: 1px solid #ddd; text-align: left; }}
td:last-child, th:last-child {{ text-align: right; }}
</style></head><body>
<h1>framehaul</h1>
<p>Your data is a pandas or Polars dataframe. What is the fastest trustworthy way to push it into PostgreSQL or
ClickHouse, and to read it back? Start with the summary; each of the other pages measures one direction, or studies one
question.</p>
{headline}
<ul>
{lines}
</ul>
{where}
</body></html>
"""


def _headline_html(directory: Path) -> str:
    passes = results.read_all(directory)
    if passes.is_empty():
        return ""
    rows = "".join(
        f"<tr><td>{charts.DATABASES[row['database']]} {row['direction']}</td><td>{html.escape(row['label'])}</td>"
        f"<td>{row['median_rows_per_s']:,.0f}</td></tr>"
        for row in findings.winners(results.summary(passes)).to_dicts()
    )
    return f"<table><tr><th>direction</th><th>fastest</th><th>rows/s (median)</th></tr>{rows}</table>"


def readme_blocks(runs: list[Path]) -> dict[str, str]:
    """The generated blocks of the README by name, from the results directories of the committed runs."""
    growth = results.read(SCALING_RUN / f"{results.SCALING}.csv")
    blocks = {
        "streams": scaling.streams_table(scaling.medians(growth)),
        "fidelity": fidelity.readme_text(results.read_cells(runs[0] / results.FIDELITY)),
        "faults": faults.counts_table(results.read_cells(runs[0] / results.FAULTS)),
        **drivers.readme_blocks(runs[0]),
        **transfer.readme_blocks(runs[0]),
        **anatomy.readme_blocks(runs[0]),
        **json_study.readme_blocks(runs[0]),
        **pgbench.readme_blocks(runs[0]),
        **scale_out.readme_blocks(runs[0]),
    }
    for directory, suffix in zip(runs, ("", "-large"), strict=False):
        summary = study.Summary.of(directory, growth, runs[0])
        blocks[f"headline{suffix}"] = f"{_made(summary.facts, summary.summary)}\n\n{summary.winners().data}"
        blocks[f"takeaway{suffix}"] = summary.takeaway().data
        blocks[f"past{suffix}"] = summary.past_published().data
        blocks[f"choices{suffix}"] = summary.choices().data
        blocks[f"agreement{suffix}"] = summary.agreement().data
        blocks[f"matrix{suffix}"] = _matrix(summary.summary)
    return blocks


def refresh_readme(text: str, blocks: dict[str, str]) -> str:
    """The README with its generated blocks replaced; a block without data is left as it is."""

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        content = blocks.get(name, match["content"].strip())
        return f"<!-- begin {name} (generated) -->\n\n{content.strip()}\n\n<!-- end {name} -->"

    return re.sub(
        r"<!-- begin (?P<name>[\w-]+) \(generated\) -->(?P<content>.*?)<!-- end (?P=name) -->",
        block,
        text,
        flags=re.DOTALL,
    )


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
                charts.ratio_text(row),
                "" if row["published_rows_per_s"] is None else f"{row['published_rows_per_s']:,.0f}",
            ]
            for row in group.to_dicts()
        ]
        header = ["technique", "avg s", "mean rows/s", "min", "max", "ratio to best (95% interval)", "published rows/s"]
        parts.append(f"**{charts.DATABASES[database]} {direction}**\n\n{charts.markdown_table(header, rows)}")
    return "\n\n".join(parts)
