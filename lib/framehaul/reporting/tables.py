"""Tables as Markdown and as HTML."""

from __future__ import annotations

import html
import math
from typing import Any

import polars as pl

from framehaul.techniques.registry import CONNECT_IN_CALL, DRIVERS


def missing_table(found: pl.DataFrame, who: str, of: str) -> str:
    """What was skipped or failed among medians, by label, as Markdown; a sentence when there is nothing.

    `who` is what a label names, `of` the column that tells what it was asked for.
    """
    bad = found.filter(pl.col("status") != "ok")
    if bad.is_empty():
        return "Everything ran."
    rows = [
        [str(label), str(status), ", ".join(group[of].unique(maintain_order=True)), str(reason or "")]
        for (label, status, reason), group in bad.group_by("label", "status", "reason", maintain_order=True)
    ]
    return markdown_table([who, "", f"{of}s", "reason"], rows, text_columns=4)


THOUSAND, MILLION = 1e3, 1e6


def text_table(header: list[str], rows: list[list[str]]) -> str:
    """An HTML table of text, which may hold markup, left-aligned and wrapped."""
    head = "".join(f"<th>{name}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<div class="results"><style>{TABLE_CSS}</style><table class="texts"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def html_table(summary: pl.DataFrame) -> str:
    """The summary of one database and direction as an HTML table that scrolls sideways where it must."""
    header = ["technique", "origin", "avg s", "mean rows/s", "min", "max", "median", "ratio to best published",
              "dtypes", "client CPU s", "server CPU s", "peak RSS", "wire"]  # fmt: skip
    body: list[str] = []
    for row in summary.to_dicts():
        label = html.escape(row["label"])
        if row["median_rows_per_s"] is None:
            reason = html.escape(row["reason"] or "")
            body.append(
                f'<tr class="{row["status"]}"><th>{label}</th><td>{row["origin"]}</td>'
                f'<td colspan="11">{row["status"]}: {reason}</td></tr>'
            )
            continue
        cells = [
            row["origin"],
            f"{row['avg_s']:.4f}",
            *(f"{row[name]:,.0f}" for name in ("mean_rows_per_s", "min_rows_per_s", "max_rows_per_s")),
            f"{row['median_rows_per_s']:,.0f}{' ±' if row['unstable'] else ''}",
            ratio_text(row),
            html.escape(dtypes_text(row["dtypes"] or "")),
            _seconds(row["client_cpu_s"]),
            _seconds(row["server_cpu_s"]),
            _megabytes(row["peak_rss_bytes"]),
            _megabytes(row["wire_bytes"]),
        ]
        body.append(f"<tr><th>{label}</th>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{name}</th>" for name in header)
    connecting = [DRIVERS[name] for name in CONNECT_IN_CALL if name in set(summary["driver"])]
    told = f" Connecting is on the clock with {' and '.join(connecting)} alone." if connecting else ""
    return (
        f'<div class="results"><style>{TABLE_CSS}</style><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table><p>± : coefficient of variation over 10%, read with care. "
        "Ratio: of medians, with a bootstrap 95% interval over rounds. CPU and wire bytes: medians; "
        f"RSS: highest growth during a pass. An empty cell could not be measured.{told}</p></div>"
    )


TABLE_CSS = """
.results { overflow-x: auto; } .results table { border-collapse: collapse; font-size: 11px; }
.results th, .results td { padding: 3px 8px; text-align: right; white-space: nowrap; }
.results td:nth-child(9) { white-space: normal; font-size: 10px; text-align: left; }
.results th:first-child, .results td[colspan] { text-align: left; font-weight: normal; }
.results td[colspan] { white-space: normal; }
.results .texts th, .results .texts td { text-align: left; white-space: normal; vertical-align: top; font-size: 11px; }
.results tbody tr { border-top: 1px solid #e4e4e4; } .results thead th { border-bottom: 1px solid #888; }
.results .skipped { color: #777; } .results .failed { color: #B00020; } .results p { font-size: 11px; color: #555; }
"""


def markdown_table(header: list[str], rows: list[list[str]], text_columns: int = 1) -> str:
    """A Markdown table; numbers, that is all but the first `text_columns`, are set to the right."""
    lines = [header, ["---"] * text_columns + ["---:"] * (len(header) - text_columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def dtypes_text(dtypes: str) -> str:
    """Drifted dtypes with columns that drift alike together: `source_id, metric_1: Int64; event_date: String`."""
    if ":" not in dtypes:
        return dtypes
    columns: dict[str, list[str]] = {}
    for pair in dtypes.split(";"):
        name, _, dtype = pair.rpartition(":")
        columns.setdefault(dtype, []).append(name)
    return "; ".join(f"{', '.join(names)}: {dtype}" for dtype, names in columns.items())


def ratio_text(row: dict[str, Any]) -> str:
    """A ratio with its interval, as `1.23x (1.10 to 1.31)`."""
    if row["ratio"] is None or math.isnan(row["ratio"]):
        return ""
    return f"{row['ratio']:.2f}x ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})"


def thousands(value: float) -> str:
    """A number of rows/s as a reader says it: 950, 42k, 1.35M."""
    if abs(value) >= MILLION:
        return f"{value / MILLION:.2f}".rstrip("0").rstrip(".") + "M"
    return f"{value / THOUSAND:.0f}k" if abs(value) >= THOUSAND else f"{value:.0f}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _megabytes(value: float | None) -> str:
    return "" if value is None else f"{value / 1e6:.1f} MB"
