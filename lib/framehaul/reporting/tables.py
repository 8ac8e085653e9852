"""Show frames as tables, and what a run was made with: HTML in a notebook, Markdown in the writeup."""

import html
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

import polars as pl
import polars.selectors as cs
from IPython.display import Markdown

from framehaul.bench import ratios, store
from framehaul.settings import load_settings
from framehaul.techniques.registry import DATABASES

type Row = Mapping[str, Any]
type Form = Callable[[Any], str]
"""A function that formats a value, which is never None."""

SORTABLE_ROWS = 20
"""The number of rows above which a table on a page can be sorted and searched."""
NUMBER = ' class="number"'
ENDS = ("low", "high", "rounds")
"""The suffixes of the columns with the range or interval of a number, and with its number of rounds."""


class Column(NamedTuple):
    """A column of a table, with the values by which a page sorts it; numbers are aligned right."""

    title: str
    values: Sequence[Any]
    texts: Sequence[str]
    numeric: bool


@dataclass(frozen=True, repr=False)
class Listing:
    """A table that notebooks display; `str` of it is Markdown."""

    columns: Sequence[Column]
    statuses: Sequence[str]
    note: str = ""

    def __str__(self) -> str:
        titles, _, texts, numeric = zip(*self.columns, strict=True)
        lines = [titles, ["---:" if number else "---" for number in numeric], *zip(*texts, strict=True)]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)

    def _repr_markdown_(self) -> str:
        return f"{self}\n\n{self.note}" if self.note else str(self)

    def _repr_html_(self) -> str:
        """Return HTML; the script of a page makes a table of class `sortable` sortable, by `data-order`."""
        head = "".join(f"<th{NUMBER * one.numeric}>{html.escape(one.title)}</th>" for one in self.columns)
        rows = zip(*(map(_cell, one.values, one.texts, repeat(one.numeric)) for one in self.columns), strict=True)
        body = (f'<tr class="{status}">{"".join(row)}</tr>' for status, row in zip(self.statuses, rows, strict=True))
        sortable = " sortable" if len(self.statuses) > SORTABLE_ROWS else ""
        note = f"<p>{_inline(self.note)}</p>" if self.note else ""
        return (
            f'<div class="listing"><style>{TABLE_CSS}</style><table class="framehaul{sortable}"><thead><tr>{head}</tr>'
            f"</thead><tbody>{''.join(body)}</tbody></table>{note}</div>"
        )


def _cell(value: object, text: str, numeric: bool) -> str:
    order = f' data-order="{float(value)!r}"' if numeric and isinstance(value, int | float) else ""
    return f"<td{NUMBER * numeric}{order}>{_inline(text)}</td>"


def _inline(text: str) -> str:
    """Return text as HTML; text in backticks is code, as in Markdown."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", html.escape(text, quote=False))


# More specific than JupyterLab's own rules, which set all cells to the right.
TABLE_CSS = """
.listing { overflow-x: auto; } .listing table.framehaul { border-collapse: collapse; font-size: 12px; margin: 0; }
.listing table.framehaul th, .listing table.framehaul td { padding: 3px 8px; text-align: left; vertical-align: top; }
.listing table.framehaul .number { text-align: right; white-space: nowrap; }
.listing table.framehaul tbody tr { border-top: 1px solid #e4e4e4; }
.listing table.framehaul thead th { border-bottom: 1px solid #888; }
.listing .skipped { color: #777; } .listing .failed { color: #B00020; } .listing p { font-size: 11px; color: #555; }
"""


def show(
    frame: pl.DataFrame, caption: str = "", titles: Mapping[str, str] | None = None, *, empty: str = "Nothing."
) -> Listing | Markdown:
    """Show a frame as a table. The names of its columns decide their headings, units and formats.

    - `rows`, `*_per_s`, `*_bytes`, `seconds`, `*_s`, `ratio*`, `share*` get units: 1.35M, 12 MB.
    - `x_low`, `x_high` and `x_rounds` are shown within the column `x`, as `1.23x (95%: 1.10 to 1.31)`.
    - `unstable` marks the first speed or time of a row with ±; `status` takes the place of missing numbers.
    - `titles` replaces headings. The items of a list are joined by `; `.

    A frame without rows is shown as the sentence `empty`.
    """
    if frame.is_empty():
        return Markdown(empty)
    names = frame.columns
    frame = frame.with_columns(cs.list().list.eval(pl.element().cast(pl.String)).list.join("; "))
    hidden, rows = {f"{name}_{end}" for name in names for end in ENDS}, frame.to_dicts()
    marked = next((name for name in names if name.endswith("_per_s") or name in {"tps", "seconds"}), "")
    hidden |= {"unstable"} if marked else set()
    statuses = [row.get("status", "ok") for row in rows]
    if "status" in names and {*statuses} <= {"ok"}:
        hidden |= {"status", "reason"}
    columns, missing = list[Column](), [one if one in ("skipped", "failed") else None for one in statuses]
    for name in (one for one in names if one not in hidden):
        kind = frame.schema[name]
        heading, form = heading_and_form(name, kind)
        texts = [cell_text(row, name, form, unstable=name == marked) for row in rows]
        for at, row in enumerate(rows if kind.is_numeric() else []):
            if row[name] is None and (status := missing[at]) is not None:
                texts[at], missing[at] = status, ""  # only the first missing number of a row has it
        columns.append(Column((titles or {}).get(name, heading), frame[name].to_list(), texts, kind.is_numeric()))
    return Listing(columns, statuses, caption)


def cell_text(row: Row, name: str, form: Form, *, unstable: bool = False) -> str:
    """Return a value of a row as text, with its range or interval; `unstable` marks it if the row is unstable."""
    value, low, high, rounds = (row.get(field) for field in (name, *(f"{name}_{end}" for end in ENDS)))
    if value is None:
        return ""
    if low is not None and high is not None:
        ends = ratios.interval_text(low, high, rounds) if rounds else f"{form(low)} to {form(high)}"
        return f"{form(value)} ({ends})"
    return f"{form(value)} ±" if unstable and row.get("unstable") else form(value)


def caption(study: str = "") -> str:
    """Return the rows, rounds, date and machine of the last run of a study.

    Without a study it is the first run, for notebooks that read the results of other studies.
    """
    run, made_by = _last_run(study)
    return f"{size_text(run)}; {run['started'].split()[0]}; {machine_text(made_by['machine'])}"


def versions(study: str = "") -> Markdown:
    """Show the machine, servers and libraries of the last run of a study, or of the first run."""
    run, made_by = _last_run(study)
    servers = f", {run['servers']} servers" if "servers" in run else ""
    lines = [
        f"Run {run['run_id']}: {size_text(run)}{servers}, started {run['started']}, commit {made_by['commit']}",
        f"Machine: {machine_text(made_by['machine'])}",
    ]
    if load := run.get("load_average"):
        text, resumed = ", ".join(f"{one:.2f}" for one in load), run.get("resumed_after")
        later = f"; resumed after {resumed} passes, and this line is about the later ones" if resumed else ""
        lines.append(f"Load before the run (1, 5, 15 minutes): {text}{later}")
    if server := run.get("server", {}):
        parts = [server[name] for name in ("version", "postgres") if name in server]
        parts += [f"ClickHouse {server['clickhouse']}"] if "clickhouse" in server else []
        parts += [f"its data on {run['data_filesystem']}"] if run.get("data_filesystem") else []
        parts += [f"reached over a {server['transport']}"] if server.get("transport", "TCP") != "TCP" else []
        settings = ", ".join(f"`{name} = {value}`" for name, value in server.get("settings", {}).items())
        lines.append(f"Server: {'; '.join(filter(None, [*parts, settings]))}")
    libraries = ", ".join(f"{name} {version}" for name, version in made_by["libraries"].items())
    lines.append(f"Python {made_by['python']}; {libraries}")
    lines += [f"{name} {version}" for name, version in run.get("toolchains", {}).items()]
    lines += [f"Not tried: `{name}`: {reason}" for name, reason in run.get("unavailable", {}).items()]
    return Markdown("\n".join(f"- {line}" for line in lines))


def _last_run(study: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the metadata of the last run of a study, or of the first run, and with what it was made."""
    metadata = store.read_metadata(load_settings().out / "results")
    run = next(run for name, run in sorted(metadata["runs"].items()) if name.partition("_")[2] == study or not study)
    return run, store.made_by(metadata, run)


def machines_text(metadata: Mapping[str, Any], runs: Iterable[Mapping[str, Any]]) -> str:
    """Return the descriptions of the machines that made these runs, each once; empty without runs."""
    made = (store.made_by(metadata, run).get("machine", {}) for run in runs)
    return "; ".join(dict.fromkeys(map(machine_text, made)))


def machine_text(machine: Mapping[str, Any]) -> str:
    """Return the description of a machine; `unknown` if none was recorded."""
    parts = {"cpu": "{}", "cores": "{} cores", "memory_gib": "{} GiB", "system": "{}"}
    return ", ".join(form.format(machine[part]) for part, form in parts.items() if part in machine) or "unknown"


def size_text(run: Mapping[str, Any]) -> str:
    """Return how much a run measured."""
    if what := run.get("what"):
        return str(what)
    race = " at most, in a race" if run.get("race") else ""
    passes = f"{run['passes']} pass{'es' if run['passes'] != 1 else ''}"
    return f"{run['rows']:,} rows{race}, {passes} after {run['warmup']} warm-up, seed {run['seed']}"


def heading_and_form(name: str, kind: pl.DataType | type[pl.DataType] = pl.Float64) -> tuple[str, Form]:
    """Return the heading of a column of a dtype, and the function that formats its values, which are never None."""
    unit, otherwise = "", "{:,}" if kind.is_integer() else "{:,.3g}" if kind.is_numeric() else "{}"
    form: Form = {True: "yes", False: ""}.__getitem__ if kind == pl.Boolean else otherwise.format
    for pattern, unit_of, form_of in UNITS:
        if found := re.search(pattern, name):
            unit, form = unit_of, form_of
            if not found.lastindex:
                name = f"{name[: found.start()]} {name[found.end() :]}"
            break
    words = f"{name} {unit}".replace("_", " ").split()
    return " ".join({"rss": "RSS", "cpu": "CPU"}.get(word, word) for word in words), form


def thousands(value: float) -> str:
    """Return a number of rows/s as text: `950`, `42k`, `1.35M`."""
    if abs(value) >= 999_500:  # noqa: PLR2004
        return f"{value / 1e6:.2f}".rstrip("0").rstrip(".") + "M"
    return f"{value / 1e3:.0f}k" if abs(value) >= 1e3 else f"{value:.0f}"  # noqa: PLR2004


def seconds_text(value: float) -> str:
    """Return a time as text: `850 µs`, `12.3 ms`, `4.56 s`, `12 min`."""
    if value >= 600:  # noqa: PLR2004
        return f"{value / 60:,.0f} min"
    if value >= 1:
        return f"{value:.2f} s"
    return f"{value * 1e3:.1f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs"  # noqa: PLR2004


def megabytes(value: float) -> str:
    """Return bytes in MB, with a decimal below 100 MB."""
    return f"{value / 1e6:,.{1 if value < 100e6 else 0}f} MB"  # noqa: PLR2004


CLASSES = {"append": "append", "bulk_load": "bulk load", "replace": "replace", "upsert": "upsert", None: ""}
"""The titles of the classes of writes; a read has no class."""


def dtypes_text(dtypes: str) -> str:
    """Return changed dtypes, grouped by dtype: `source_id, metric_1: Int64; event_date: String`."""
    if ":" not in dtypes:
        return dtypes
    columns: dict[str, list[str]] = {}
    for pair in dtypes.split(";"):
        name, _, dtype = pair.rpartition(":")
        columns.setdefault(dtype, []).append(name)
    return "; ".join(f"{', '.join(names)}: {dtype}" for dtype, names in columns.items())


UNITS: list[tuple[str, str, Form]] = [
    ("(database)", "", DATABASES.__getitem__),
    ("(contract)", "", CLASSES.__getitem__),
    ("rows_per_s", "rows/s", thousands),
    ("bytes_per_row", "bytes/row", "{:,.0f}".format),
    ("^tps$", "transactions/s", "{:,.0f}".format),
    ("_?per_s$", "per s", thousands),
    ("(bytes)", "", megabytes),
    ("^(rows)|(_rows)$", "", "{:,.0f}".format),
    ("_s$|^(seconds)", "", seconds_text),
    ("^(ratio)|(gain)|^(over_)", "", "{:.2f}x".format),
    ("^(share)|(share)$", "", "{:.0%}".format),
]
"""Patterns of column names, with the unit in a heading and the format of values.

The unit takes the place of the matched part of the name, unless the pattern has a group that matched.
"""
