"""What notebook 17 calls: tables of other shapes, small batches, and where techniques stop working."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
from IPython.display import SVG, Markdown
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from framehaul.reporting import charts
from framehaul.reporting.shown import Shown, chart, view
from framehaul.reporting.tables import (
    UNSTABLE,
    Column,
    Listing,
    Row,
    bullets,
    megabytes,
    milliseconds,
    thousands,
    where,
    where_and_class,
    words,
)
from framehaul.results import committed, store
from framehaul.studies.table_shapes import STUDY, findings, parts, runs
from framehaul.studies.table_shapes.findings import Keeping, Page, Point, label_of
from framehaul.studies.table_shapes.passes import Row as Result
from framehaul.studies.table_shapes.shapes import BALANCED, SHAPES, STANDARD, STREAM, WIDE
from framehaul.techniques.registry import DATABASES

LABELS = {one.name: one.label for one in (*SHAPES, *WIDE, BALANCED)} | {STREAM: "a steady stream"}
FEW_TIES = 2
"""So many are named; more are counted."""
SHADES = {
    "0.95x or more": ("#08519c", 0.95), "0.8x or more": ("#6baed6", 0.8), "0.5x or more": ("#c6dbef", 0.5),
    "0.2x or more": ("#fdd0a2", 0.2), "less": ("#e6550d", 0.0),
}  # fmt: skip
"""What colours of a rank figure mean: from which share of the fastest's rows/s on."""
LINES = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#117733", "#999999", "#222222",
    "#44AA99", "#AA4499", "#661100", "#6699CC", "#888800", "#B00020",
)  # fmt: skip


def _ties(labels: list[str]) -> str:
    return "; ".join(labels) if len(labels) <= FEW_TIES else f"{len(labels)} others"


def fastest_table(page: Page) -> Listing:
    """The fastest on each table, in rows and in bytes."""

    def published(row: Row) -> str | None:
        one = row["published"]
        return None if one is None else "it is" if one.fastest else str(one.ratio)

    return Listing(
        [
            words("direction", where_and_class),
            words("table", "point", label_of),
            words("fastest", "label"),
            words("not told apart from it", "tied", _ties),
            Column("rows/s", "rows_per_s", thousands), UNSTABLE,
            Column("MB/s", lambda row: row["bytes_per_s"] / 1e6, "{:,.1f}"),
            Column("a call, p50", "p50_s", milliseconds),
            Column("p99", lambda row: row["p99_s"] if row["calls"] > 1 else None, milliseconds),
            Column("peak RSS growth", "peak_rss_bytes", megabytes),
            Column("best published, over it", published),
            Column("order as on the standard table", "order", "{:.2f}"),
        ],
        findings.fastest(page),
        "MB/s: of the rows as Arrow, whatever goes over the wire. Peak RSS growth: of the client, where a pass is one "
        "call. The order: rank correlation (Spearman) with the standard table of the most rows.",
    )  # fmt: skip


def robust_table(page: Page) -> Listing:
    """Who keeps up on all tables."""

    def at(points: list[Point]) -> str:
        return "; ".join(map(label_of, points))

    def worst(keeping: Keeping) -> str:
        one = keeping.worst
        return "" if one is None else "the fastest" if one.fastest else f"{one.ratio} at {label_of(one.point)}"

    return Listing(
        [
            words("direction", lambda row: _direction(row["keeping"].where)),
            words("technique", lambda row: row["keeping"].label),
            words("within 20% of the fastest everywhere", lambda row: row["keeping"].verdict),
            Column("where it is farthest behind", lambda row: worst(row["keeping"])),
            words("told to be farther behind", lambda row: at(row["keeping"].behind)),
            words("does not work", lambda row: at(row["keeping"].stopped)),
        ],
        [{"keeping": one} for one in findings.keeping_up(page)],
    )


def leaders_table(passes: pl.DataFrame) -> Listing:
    """Who leads on each table, from how many rows a call on."""
    return Listing(
        [
            words("direction", where),
            words("table", "shape", LABELS.__getitem__),
            Column("from rows a call on", "rows", "{:,}"),
            words("leads", "technique", "`{}`"),
            Column("rows/s there", "rows_per_s", thousands),
            UNSTABLE,
            Column("most rows measured", "most", "{:,}"),
        ],
        findings.leaders(passes),
        "Appends and reads that give back exactly what was sent. Whoever leads stays until it is told to be slower "
        "than the fastest with as many rows.",
    )


def _direction(place: findings.Where) -> str:
    database, direction, contract = place
    return where_and_class({"database": database, "direction": direction, "contract": contract})


def like_table(page: Page) -> Listing:
    """What to take for tables like somebody's."""
    return Listing(
        [
            words("direction", lambda row: _direction(row["where"])),
            words("for tables like", "like"),
            words("take", "technique", "`{}`"),
            words("not told apart from the fastest either", "tied", _ties),
            Column("rows/s", "standings", findings.shares_text),
            words("faster, with other dtypes", "faster", findings.faster_text),
        ],
        findings.for_tables_like(page),
    )


def crossings_table(page: Page) -> Listing:
    """Everyday statements against the fastest append, by the rows of a call."""
    rows = findings.from_rows(page)
    sizes = sorted({one.statement["rows"] for one in page.crossings})

    def against(size: int) -> Callable[[Row], str | None]:
        def text(row: Row) -> str | None:
            one = next((one for one in row["every"] if one.statement["rows"] == size), None)
            if one is None:
                return None
            said = {-1: "slower", 0: "inconclusive", 1: "faster", None: ""}[one.said]
            return f"{one.ratio.ratio:.2f}x, {said}"

        return text

    return Listing(
        [
            words("statement", lambda row: f"{DATABASES[row['database']]}: {row['label']}"),
            words("against the fastest append of", lambda row: "its own driver" if row["own"] else "all"),
            *(Column(f"{size:,} row{'s' if size > 1 else ''}", against(size)) for size in sizes),
            words("told to be slower", _from_rows),
        ],
        rows,
        "Rows/s of the statement over those of the fastest append that is none, with as many rows a call: of all, and "
        "of the statement's own driver.",
    )


def _from_rows(row: Row) -> str:
    first = row["from"]
    if first is None:
        return "not with any number of rows"
    rows = first.statement["rows"]
    return f"from {f'{rows:,} rows' if rows > 1 else 'the first row'} on, than {first.copy['label']}"


def latency_table(passes: pl.DataFrame) -> Listing:
    """How long a small call takes."""
    by_point = findings.medians(passes)
    small = by_point.filter(
        pl.col("rows").is_in(findings.SMALL_ROWS), shape=STANDARD.name, status="ok"
    ).sort("database", "direction", "rows", "p50_s", descending=[True, True, False, False])  # fmt: skip
    return Listing(
        [
            words("direction", where_and_class),
            Column("rows a call", "rows", "{:,}"),
            words("technique or statement", "label"),
            Column("p50", "p50_s", milliseconds),
            Column("p99", "p99_s", milliseconds),
            Column("calls a pass", "calls"),
        ],
        small,
    )


def stream_table(passes: pl.DataFrame, samples: pl.DataFrame) -> Listing:
    """A steady stream of small batches into ClickHouse."""

    def grown(row: Row) -> str | None:
        return None if row["half_parts"] is None else f"{row['half_parts']:,} -> {row['end_parts']:,}"

    durability = {one.name: one.durability for one in parts.MODES}
    return Listing(
        [
            words("small batches by", "label"),
            Column("batches/s, asked for", lambda row: row["rate"]),
            Column("batches/s, got", lambda row: row["rows_per_s"] / row["rows"], "{:.0f}"),
            Column("p50", "p50_s", milliseconds),
            Column("p99", "p99_s", milliseconds),
            Column("parts at half time -> at the end", grown),
            Column("most parts", "most_parts", "{:,.0f}"),
            Column("server CPU s", "server_cpu_s", "{:.2f}"),
            words("when it is answered", lambda row: durability[row["technique"]]),
            words("reason", "reason"),
        ],
        findings.stream(passes, samples),
        f"Batches of {parts.BATCH_ROWS} rows of the standard table, over {parts.SENDERS} connections (more where they "
        "wait for flushes), due at a fixed rate; p50 and p99 from when one was due.",
    )  # fmt: skip


def columns_table(passes: pl.DataFrame) -> Listing:
    """What an INSERT into many columns takes of ClickHouse's memory."""
    return Listing(
        [
            Column("columns", "columns", "{:,}"),
            words("path", "label"),
            Column("server's memory", "server_memory_bytes", megabytes),
            Column("kB for each column", lambda row: row["server_memory_bytes"] / row["columns"] / 1e3, "{:,.0f}"),
        ],
        findings.columns_cost(passes),
    )


def stopped_table(passes: pl.DataFrame) -> Listing | str:
    """Where techniques stop working, what was said, and the remedy."""
    rows = findings.stopped(passes)
    if rows.is_empty():
        return "Everything worked."
    return Listing(
        [
            words("direction", where),
            words("who", "label", _ties),
            words("tables", "shape", lambda names: "; ".join(LABELS.get(name, name) for name in names)),
            words("what was said; the remedy", "reason", lambda text: text[:300]),
        ],
        rows.drop("status"),
    )


def wide_text(passes: pl.DataFrame) -> str:
    """How many techniques moved tables of very many columns."""
    points = []
    for shape in (*WIDE, BALANCED):
        tried = passes.filter(shape=shape.name)
        for (database,), group in tried.group_by("database", maintain_order=True):
            good = group.filter(status="ok")["technique"].n_unique()
            points.append(
                f"{shape.label}, {DATABASES[str(database)]}: {good} of {group['technique'].n_unique()} moved "
                f"{runs.WIDE_ROWS} rows."
            )
    return bullets(points)


def answer_text(passes: pl.DataFrame) -> str:
    """Bullet points: who is robust, from where on COPY is worth it, and what small batches do."""
    page = findings.judge(passes)
    points = []
    for place in page.standings:
        if place[2] == "bulk_load":
            continue
        every = [one for one in findings.keeping_up(page) if one.where == place]
        robust = [one.label for one in every if one.verdict == "robust"]
        said = f"robust on all tables: {'; '.join(robust)}" if robust else _nearest(every)
        points.append(f"**{_direction(place)}**: {said}.")
    slower = [row for row in findings.from_rows(page) if row["database"] == "postgres" and row["from"]]
    for own, whose in ((False, "COPY"), (True, "the same driver's COPY")):
        if told := [row for row in slower if row["own"] == own]:
            listed = "; ".join(f"{row['label']}: from {row['from'].statement['rows']:,}" for row in told)
            points.append(f"**Rows a call from which {whose} is told to be faster** (of those measured): {listed}.")
    streams = passes.filter(shape=STREAM).drop_nulls("most_parts")
    most = streams.sort("most_parts", descending=True).to_dicts()
    if most:
        points.append(
            f"**Small batches into ClickHouse**: {most[0]['label']} at {most[0]['rate']}/s had "
            f"{most[0]['most_parts']:,.0f} parts at most, {most[-1]['label']} at {most[-1]['rate']}/s "
            f"{most[-1]['most_parts']:,.0f}."
        )
    return bullets(points)


def piling_text(passes: pl.DataFrame, samples: pl.DataFrame) -> str:
    """At which rates parts pile up, for each way to send small batches, as Markdown; empty where no stream was long."""

    def steady(row: Row) -> str:
        return f"{row['rate']}/s ({row['most_parts']:,.0f} parts at most)"

    def piling(row: Row) -> str:
        return (
            f"{row['rate']}/s ({row['most_parts']:,.0f} parts at most, {row['rows_per_s'] / row['rows']:,.0f} "
            f"batches/s got through, p99 {row['p99_s']:,.3g} s)"
        )

    points = []
    for label, keeps, piles in findings.piling_up(passes, samples):
        told = [f"keeps up with {', '.join(map(steady, keeps))}"] if keeps else []
        told += [f"parts pile up at {', '.join(map(piling, piles))}"] if piles else []
        points.append(f"**{label}**: {'; '.join(told)}.")
    return bullets(points)


def _nearest(every: list[Keeping]) -> str:
    """Who comes nearest where nobody is robust."""
    one = next(iter(every), None)
    if one is None or one.worst is None:
        return "nothing was moved"
    stops = f", and not at {'; '.join(map(label_of, one.stopped))}" if one.stopped else ""
    worst = "" if one.worst.fastest else f", {one.worst.share:.2f}x of the fastest at {label_of(one.worst.point)}"
    return f"nobody is told to be within 20% everywhere; nearest is {one.label}{worst}{stops}"


def rank_figure(page: Page, database: str, direction: str) -> Figure:
    """Rank and share of the fastest's rows/s of every technique on every table."""
    wheres = [where for where in page.standings if where[:2] == (database, direction)]
    every = [(where, one) for where in wheres for one in page.standings[where]]
    known = dict.fromkeys(one.point for _, one in every)
    points = sorted(known, key=lambda point: point[0] == STANDARD.name and point[1] in findings.SMALL_ROWS)
    names = list(dict.fromkeys((where, one.row["technique"], one.row["label"]) for where, one in every))
    shares = {
        name: sum(one.share or 0 for where, one in every if (where, one.row["technique"]) == name[:2]) for name in names
    }
    names.sort(key=lambda name: (wheres.index(name[0]), -shares[name]))
    with charts.panels(1, height=2.6 + 0.36 * len(names), width=12.5) as (figure, [axes]):
        for where, one in every:
            x, y = points.index(one.point), names.index((where, one.row["technique"], one.row["label"]))
            if one.share is None:
                axes.text(x, y, one.row["status"], ha="center", va="center", fontsize=8, color=charts.FAINT)
                continue
            colour = next(colour for colour, least in SHADES.values() if one.share >= least)
            axes.add_patch(Rectangle((x - 0.47, y - 0.44), 0.94, 0.88, color=colour, linewidth=0))
            told = "" if one.fastest or one.slower else "~"
            ink = "white" if colour in ("#08519c", "#e6550d") else charts.INK
            axes.text(x, y, f"{one.rank}.  {told}{one.share:.2f}x", ha="center", va="center", fontsize=8, color=ink)
        labels = [f"{label}{', bulk load' if where[2] == 'bulk_load' else ''}" for where, _, label in names]
        origins = {(where, one.row["technique"]): one.row["origin"] for where, one in every}
        charts.name_lines(axes, labels, [origins[name[:2]] for name in names], size=8)
        axes.set_xlim(-0.5, max(len(points), 4) - 0.5)
        axes.set_xticks(range(len(points)), [_wrapped(one) for one in points], fontsize=8)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        marks = "; ".join(["~: not told apart from the fastest", *charts.name_inks(origins.values())])
        figure.suptitle(
            f"{DATABASES[database]} {direction}: rank, and rows/s over the fastest's ({marks})", x=0.01, ha="left",
            fontweight="bold", fontsize=10,
        )  # fmt: skip
        handles = [Patch(color=colour, label=name) for name, (colour, _) in SHADES.items()]
        figure.legend(handles=handles, loc="outside lower left", ncols=5, frameon=False, fontsize=8)
    return figure


def _wrapped(point: Point) -> str:
    """Its label, so narrow that it stands over a column."""
    return "\n".join(line for part in label_of(point).split(", ") for line in textwrap.wrap(part, 11))


def small_figure(passes: pl.DataFrame) -> Figure:
    """What a write of few rows takes, against rows: techniques as lines, everyday statements dashed."""
    by_point = findings.medians(passes).filter(shape=STANDARD.name, direction="write", status="ok")
    with charts.panels(1, 2, height=5.2, width=11.5) as (figure, drawn):
        for axes, database in zip(drawn, DATABASES, strict=True):
            here = by_point.filter(database=database)
            names = dict(here.select("technique", "label").iter_rows())
            for (name, label), colour in zip(names.items(), LINES, strict=False):
                line = here.filter(technique=name).sort("rows")
                everyday = line["origin"][0] == "everyday"
                seconds = [1e3 * one for one in line["p50_s"]]
                axes.plot(
                    line["rows"].to_list(), seconds, color=colour, label=label, marker="o", markersize=3.5,
                    linestyle="--" if everyday else "-",
                )  # fmt: skip
            for axis in (axes.xaxis, axes.yaxis):
                charts.quantities(axis, logarithmic=True)
            charts.title(axes, f"{DATABASES[database]}: a write of the standard table, ms")
            axes.set_xlabel("rows of a call (p50 of a pass, median of passes; dashed: everyday statements)", fontsize=8)
            axes.grid(which="major", color="#eeeeee")
            if names:
                axes.legend(fontsize=6.5, frameon=False, loc="upper left")
    return figure


def parts_figure(samples: pl.DataFrame) -> Figure:
    """How many parts the table of a stream has, as time goes on."""
    rates = sorted(set(samples["rate"])) or [0]
    labels = {one.name: one.label for one in parts.MODES}
    colours = dict(zip(labels, LINES, strict=False))
    with charts.panels(1, len(rates), height=3.8) as (figure, drawn):
        for axes, rate in zip(drawn, rates, strict=True):
            here = samples.filter(rate=rate)
            for (name, _), line in here.group_by("technique", "pass", maintain_order=True):
                axes.plot(line["second"].to_list(), line["parts"].to_list(), color=colours[str(name)], linewidth=1.3)
            charts.title(axes, f"{rate} batches/s")
            axes.set_ylim(bottom=0)
            charts.quantities(axes.xaxis, lambda value: f"{value:g} s")
            axes.grid(color="#eeeeee")
        drawn[0].set_ylabel("active parts")
        present = set(samples["technique"])
        charts.legend(
            figure, {labels[name]: colours[name] for name in labels if name in present}, loc="outside lower left",
            fontsize=8, ncols=3,
        )  # fmt: skip
        figure.suptitle(
            f"Parts of a ClickHouse table while batches of {parts.BATCH_ROWS} rows arrive", x=0.01, ha="left",
            fontweight="bold",
        )  # fmt: skip
    return figure


class TableShapes(Shown):
    """The passes of a run over shapes."""

    study = STUDY

    @property
    def samples(self) -> pl.DataFrame:
        """Parts over time."""
        return store.read(self.figures.parent / "results" / parts.RESULTS, parts.Sample)

    answer = view(answer_text)
    fastest = view(lambda passes: fastest_table(findings.judge(passes)))
    leaders = view(leaders_table)
    robust = view(lambda passes: robust_table(findings.judge(passes)))
    like = view(lambda passes: like_table(findings.judge(passes)))
    crossings = view(lambda passes: crossings_table(findings.judge(passes)))
    latency = view(latency_table)
    small = chart(small_figure, "small")
    parts = chart(parts_figure, "parts", of_frame="samples")
    columns = view(columns_table)
    stopped = view(stopped_table)
    wide = view(wide_text)

    def piling(self) -> Markdown:
        """At which rates parts pile up; where no stream was long enough to tell, what to do to know."""
        told = piling_text(self.passes, self.samples)
        return Markdown(told or "Streams of a second do not tell at which rate parts pile up: POINTS=streams does.")

    def stream(self) -> Listing:
        """A steady stream of small batches into ClickHouse."""
        return stream_table(self.passes, self.samples)

    def ranks(self, database: str, direction: str) -> SVG:
        """Who is fastest on which table; also saved as a figure."""
        return self.saved(rank_figure(findings.judge(self.passes), database, direction), f"{database}_{direction}")


def run(**parameters: Any) -> TableShapes:
    """`runs.run`, shown."""
    return TableShapes.load(runs.run(**parameters))


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The blocks of the writeup, of a results directory and of the kept run that held its streams longer."""
    passes, samples = _read(directory)
    page = findings.judge(passes)
    return {
        "shapes-fastest": str(fastest_table(page)),
        "shapes-robust": str(robust_table(page)),
        "shapes-like": str(like_table(page)),
        "shapes-crossings": str(crossings_table(page)),
        "shapes-stream": str(stream_table(passes, samples)),
        "shapes-columns": str(columns_table(passes)),
        "shapes-stopped": str(stopped_table(passes)),
        "shapes-leaders": str(leaders_table(passes)),
        "shapes-piling": piling_text(*_read(committed.STREAMS)),
    }


def _read(directory: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The passes in a results directory, and the parts over time."""
    return store.read(directory / STUDY.results, Result), store.read(directory / parts.RESULTS, parts.Sample)
