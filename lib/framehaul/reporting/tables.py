"""A table is described once, by its columns, and comes out as HTML in a notebook and as Markdown in the writeup."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from IPython.display import Markdown

from framehaul.bench import ratios, store
from framehaul.reporting.versions import machine_text, size_text, versions_text
from framehaul.settings import load_settings
from framehaul.techniques.registry import DATABASES

type Row = Mapping[str, Any]
type Cell = str | Callable[[Row], Any]
"""What stands in a cell: a field of its row, or what makes something of the row."""

THOUSAND, MILLION = 1e3, 1e6
SORTABLE_ROWS = 20
"""A table of more rows can be sorted and searched by its reader."""


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading, what stands in it, and how that is written; None is written as nothing."""

    title: str
    cell: Cell
    form: str | Callable[[Any], str] = "{}"
    """A format of Python's, as `{:,.0f} ms`, or what writes a value."""
    numeric: bool = True
    """Numbers are set to the right, and missing where a row was skipped or failed."""

    def value(self, row: Row) -> Any:
        """What stands in this column of a row, as it is."""
        return row.get(self.cell) if isinstance(self.cell, str) else self.cell(row)

    def text(self, value: Any) -> str:
        """How it is written."""
        if value is None:
            return ""
        return self.form.format(value) if isinstance(self.form, str) else self.form(value)


def words(title: str, cell: Cell, form: str | Callable[[Any], str] = "{}") -> Column:
    """Return a column of text."""
    return Column(title, cell, form, numeric=False)


UNSTABLE = words("±", lambda row: "±" if row.get("unstable") else "")
"""Behind a median: whether passes vary much."""


def where(row: Row) -> str:
    """The database and the direction of a row, as `PostgreSQL write`."""
    return f"{DATABASES[row['database']]} {row['direction']}"


class Listing:
    """A table with its rows, which notebooks show as it is; `str` of it is Markdown.

    A row whose `status` is `skipped` or `failed` says so in its first column of numbers, and has no others.
    """

    def __init__(self, columns: Sequence[Column], rows: pl.DataFrame | Iterable[Row], note: str = "") -> None:
        self.columns = [*columns]
        self.rows: list[Row] = [*(rows.to_dicts() if isinstance(rows, pl.DataFrame) else rows)]
        self.note = note

    def cells(self) -> list[list[str]]:
        """What is written in each row."""
        return [[text for text, _ in self._written(row)] for row in self.rows]

    def _written(self, row: Row) -> list[tuple[str, Any]]:
        """Text and value of each cell of a row."""
        status = row.get("status", "ok")
        without_numbers = status in ("skipped", "failed")
        first = next((column for column in self.columns if column.numeric), None)
        cells: list[tuple[str, Any]] = []
        for column in self.columns:
            if without_numbers and column.numeric:
                cells.append((status if column is first else "", None))
            else:
                value = column.value(row)
                cells.append((column.text(value), value))
        return cells

    def __str__(self) -> str:
        return markdown_table(
            [column.title for column in self.columns], self.cells(), [column.numeric for column in self.columns]
        )

    def _repr_markdown_(self) -> str:
        return f"{self}\n\n{self.note}" if self.note else str(self)

    def _repr_html_(self) -> str:
        """A large one can be sorted, by values and not by their text, and searched: the page's template sees to it."""
        head = "".join(f"<th{_class(column)}>{html.escape(column.title)}</th>" for column in self.columns)
        body = []
        for row in self.rows:
            cells = "".join(
                f"<td{_class(column)}{_order(value)}>{_inline(text)}</td>"
                for column, (text, value) in zip(self.columns, self._written(row), strict=True)
            )
            body.append(f'<tr class="{row.get("status", "ok")}">{cells}</tr>')
        sortable = " sortable" if len(self.rows) > SORTABLE_ROWS else ""
        note = f"<p>{_inline(self.note)}</p>" if self.note else ""
        return (
            f'<div class="listing"><style>{TABLE_CSS}</style><table class="framehaul{sortable}"><thead><tr>{head}</tr>'
            f"</thead><tbody>{''.join(body)}</tbody></table>{note}</div>"
        )


def _class(column: Column) -> str:
    return ' class="number"' if column.numeric else ""


def _order(value: Any) -> str:
    """What a number is sorted by, whatever it is written as."""
    number = float(value) if isinstance(value, int | float) else getattr(value, "ratio", None)
    return "" if number is None else f' data-order="{number!r}"'


def _inline(text: str) -> str:
    """Text as HTML; what stands in backticks is code, as in Markdown."""
    parts = html.escape(text, quote=False).split("`")
    if len(parts) % 2 == 0:
        return "`".join(parts)
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts))


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
    frame: pl.DataFrame, caption: str = "", titles: Mapping[str, str] | None = None, *, empty: str = "Nothing.",
) -> Listing | Markdown:  # fmt: skip
    """Show a frame as a table: the names of its columns give their units, formats and headings.

    - `rows`, `*_per_s`, `*_bytes`, `seconds`, `*_s`, `ratio*`, `share*` are written with units: 1.35M, 12 MB.
    - `x_low`, `x_high` and `x_rounds` are shown within the column `x`, as `1.23x (95%: 1.10 to 1.31)`.
    - `unstable` marks the first speed of a row with ±; `status` and `reason` take the place of missing numbers.
    - `titles` gives other headings; a list is joined by `; `; `database` is written as a name.

    A frame without rows is shown as the sentence `empty`.
    """
    if frame.is_empty():
        return Markdown(empty)
    titles, names = titles or {}, frame.columns
    hidden = {f"{name}_{end}" for name in names for end in ("low", "high", "rounds") if f"{name}_{end}" in names}
    fast = next((name for name in names if name.endswith("_per_s") or name == "tps"), "") if "unstable" in names else ""
    hidden |= {"unstable"} if fast else set()
    if "status" in names and set(frame["status"]) <= {"ok"}:
        hidden |= {"status", "reason"}
    columns = [
        _column(name, frame.schema[name], titles.get(name), fast == name, f"{name}_low" in names)
        for name in names if name not in hidden
    ]  # fmt: skip
    return Listing(columns, frame, caption)


def caption(study: str = "") -> str:
    """Return what the passes of a study's last run were measured on: rows, rounds, date and machine.

    Without a study it is the first of the runs, for notebooks that read what others have measured.
    """
    metadata, notebook = _last_run(study)
    run = metadata["runs"][notebook]
    return f"{size_text(run)}; {run['started'].split()[0]}; {machine_text(metadata['machine'])}"


def versions(study: str = "") -> Markdown:
    """Show what the last run of a study, or the first of the runs, was made with: machine, servers, libraries."""
    return Markdown(versions_text(*_last_run(study)))


def _last_run(study: str) -> tuple[dict[str, Any], str]:
    """Return what is known of all runs, and the notebook of a study's run."""
    metadata = store.read_metadata(load_settings().out / "results")
    return metadata, next(one for one in sorted(metadata["runs"]) if one.partition("_")[2] == study or not study)


def _column(name: str, kind: pl.DataType, title: str | None, marked: bool, ends: bool) -> Column:
    """Return the column of a table for one of a frame."""
    heading, form = heading_and_form(name, "{:,}" if kind.is_integer() else "{:,.3g}" if kind.is_float() else "{}")
    if isinstance(kind, pl.List):
        form = _joined
    elif kind == pl.Boolean:
        form = _yes
    text = Column(title or heading, name, form, numeric=kind.is_numeric())
    if ends:
        return Column(text.title, lambda row: _with_ends(row, name, text))
    if marked:
        return Column(text.title, lambda row: f"{text.text(row[name])}{' ±' if row['unstable'] else ''}" or None)
    return text


def heading_and_form(name: str, otherwise: str = "{:,.3g}") -> tuple[str, str | Callable[[Any], str]]:
    """Return the heading of a column of this name, and how its values are written."""
    for pattern, unit, form in UNITS:
        if found := pattern.search(name):
            rest = name if found.lastindex else f"{name[: found.start()]} {name[found.end() :]}"
            return _spelled(f"{rest} {unit}"), form
    return _spelled(name), otherwise


def _spelled(name: str) -> str:
    """Return a column's name in words."""
    return " ".join({"rss": "RSS", "cpu": "CPU"}.get(word, word) for word in name.replace("_", " ").split())


def _joined(values: Iterable[object]) -> str:
    return "; ".join(map(str, values))


def _yes(value: object) -> str:
    return "yes" if value else ""


def _with_ends(row: Row, name: str, text: Column) -> str | None:
    """Return a number with its range or interval, where there is one."""
    value, low, high, rounds = (row.get(part) for part in (name, f"{name}_low", f"{name}_high", f"{name}_rounds"))
    if value is None or low is None or high is None:
        return None if value is None else text.text(value)
    ends = ratios.interval_text(low, high, rounds) if rounds else f"{text.text(low)} to {text.text(high)}"
    return f"{text.text(value)} ({ends})"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[bool]) -> str:
    """A Markdown table whose numbers are set to the right."""
    lines = [header, ["---:" if number else "---" for number in numeric], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def thousands(value: float) -> str:
    """A number of rows/s as a reader says it: 950, 42k, 1.35M."""
    if abs(value) >= MILLION:
        return f"{value / MILLION:.2f}".rstrip("0").rstrip(".") + "M"
    return f"{value / THOUSAND:.0f}k" if abs(value) >= THOUSAND else f"{value:.0f}"


def seconds_text(value: float) -> str:
    """A time as a reader says it: 850 µs, 12.3 ms, 4.56 s, 12 min."""
    if value >= 600:  # noqa: PLR2004
        return f"{value / 60:,.0f} min"
    if value >= 1:
        return f"{value:.2f} s"
    return f"{value * 1e3:.1f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs"  # noqa: PLR2004


def megabytes(value: float) -> str:
    """Bytes in MB, with a decimal where there are few."""
    return f"{value / 1e6:,.{1 if value < 100e6 else 0}f} MB"  # noqa: PLR2004


def interval_text(row: Row) -> str | None:
    """The ends of a row's ratio, as `1.10 to 1.31 in 3 rounds`."""
    if row["ratio"] is None:
        return None
    return ratios.interval_text(row["ratio_low"], row["ratio_high"], row["ratio_rounds"])


def ratio_text(row: Row) -> str:
    """A row's ratio with its ends, as `1.23x (1.10 to 1.31 in 3 rounds)`."""
    return "" if row["ratio"] is None else f"{row['ratio']:.2f}x ({interval_text(row)})"


CLASSES = {"append": "append", "bulk_load": "bulk load", "replace": "replace", "upsert": "upsert", None: ""}
"""The classes of writes, of their contracts' kinds; reads have none."""


def dtypes_text(dtypes: str) -> str:
    """Drifted dtypes with columns that drift alike together: `source_id, metric_1: Int64; event_date: String`."""
    if ":" not in dtypes:
        return dtypes
    columns: dict[str, list[str]] = {}
    for pair in dtypes.split(";"):
        name, _, dtype = pair.rpartition(":")
        columns.setdefault(dtype, []).append(name)
    return "; ".join(f"{', '.join(names)}: {dtype}" for dtype, names in columns.items())


def speed_text(row: Row, of: str = "rows_per_s", form: Callable[[float], str] = thousands) -> str | None:
    """A median, marked where passes vary much; its status where there is none."""
    value = row[of]
    if value is None:
        return None if row["status"] == "ok" else str(row["status"])
    return f"{form(value)}{' ±' if row['unstable'] else ''}"


UNITS: list[tuple[re.Pattern[str], str, str | Callable[[Any], str]]] = [
    (re.compile(pattern), unit, form)
    for pattern, unit, form in (
        ("(database)", "", DATABASES.__getitem__),
        ("(contract)", "", CLASSES.__getitem__),
        ("rows_per_s", "rows/s", thousands),
        ("bytes_per_row", "bytes/row", "{:,.0f}"),
        ("^tps$", "transactions/s", "{:,.0f}"),
        ("_?per_s$", "per s", thousands),
        ("(bytes)", "", megabytes),
        ("^(rows)|(_rows)$", "", "{:,.0f}"),
        ("_s$|^(seconds)", "", seconds_text),
        ("^(ratio)|(gain)|^(over_)", "", "{:.2f}x"),
        ("^(share)|(share)$", "", "{:.0%}"),
    )
]
"""For the names of columns: what they hold, the unit that a heading has in its place, and how a number is written."""
