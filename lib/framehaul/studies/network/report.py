"""Tables, answer and figure of the study of networks, all made from its passes."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from framehaul.bench import ratios, statistics
from framehaul.bench.ratios import Ratio, ratio_of_rows
from framehaul.reporting import charts
from framehaul.reporting.tables import Column, Listing, missing, rivals_text, thousands, where, words
from framehaul.studies.network.catalog import CODEC, COMPARED, LINKS
from framehaul.techniques.registry import DATABASES

WHO = [
    "database", "direction", "technique", "label", "origin", "family", "driver", "frame", "connections", "codec",
    "network", "encryption", "via",
]  # fmt: skip
ORDER = {link.name: at for at, link in enumerate(LINKS)}


def medians(passes: pl.DataFrame) -> list[dict[str, Any]]:
    """A row of `statistics.medians` for each technique, codec, network, encryption and way, in the order of tables."""

    def place(row: dict[str, Any]) -> tuple[int, int, str, str]:
        network = ORDER.get(row["network"], len(ORDER))
        return [*COMPARED].index((row["database"], row["direction"])), network, row["technique"], row["codec"]

    return sorted(statistics.medians(passes, WHO).to_dicts(), key=place)


def timed(passes: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the medians of what was right, without a pooler."""
    return [row for row in medians(passes.filter(via="direct")) if row["status"] == "ok"]


def fastest(passes: pl.DataFrame) -> list[dict[str, Any]]:
    """The fastest of each direction and network without encryption, with those that are tied with it."""
    rows = []
    for _, group in groupby(timed(passes.filter(encryption="none")), itemgetter("database", "direction", "network")):
        ranked = sorted(group, key=lambda row: -row["rows_per_s"])
        published = next((row for row in ranked if row["origin"] == "published"), ranked[0])
        over = ratio_of_rows(ranked[0], published) if published is not ranked[0] else Ratio()
        rows.append(ranked[0] | {"ties": rivals_text(ranked), "over_published": over})
    return rows


TECHNIQUE = words("technique", lambda row: f"`{row['technique']}`")


def fastest_table(passes: pl.DataFrame) -> Listing:
    """Which technique to take on which network."""
    columns = [
        words("direction", where), words("network", "network"), TECHNIQUE, words("codec", "codec"),
        Column("rows/s", "rows_per_s", thousands),
        Column("over the best published", "over_published"), words("tied with it", "ties"),
    ]  # fmt: skip
    return Listing(columns, fastest(passes))


def compared(passes: pl.DataFrame) -> list[dict[str, Any]]:
    """Each technique with a codec, or with TLS, against the same technique without, on each network."""
    rows = timed(passes)
    same = itemgetter("database", "direction", "technique", "network")
    bases = {same(row): row for row in rows if (row["codec"], row["encryption"]) == ("none", "none")}
    paired = [
        row | {"base": bases[same(row)], "ratio": ratio_of_rows(row, bases[same(row)])}
        for row in rows
        if same(row) in bases and row is not bases[same(row)]
    ]
    said = ratios.verdicts([(row["ratio"], 1) for row in paired], "faster", "slower")
    return [row | {"said": words} for row, words in zip(paired, said, strict=True)]


def compared_table(passes: pl.DataFrame) -> Listing:
    """What compression gains and TLS costs, on which network."""
    columns = [
        words("direction", where), TECHNIQUE, words("network", "network"),
        words("with", lambda row: "TLS" if row["encryption"] == "tls" else row["codec"]),
        Column("without, rows/s", lambda row: row["base"]["rows_per_s"], thousands),
        Column("with, rows/s", "rows_per_s", thousands), Column("with over without", "ratio"), words("it is", "said"),
    ]  # fmt: skip
    return Listing(columns, compared(passes))


def pooler_table(passes: pl.DataFrame) -> Listing | str:
    """Which techniques work through PgBouncer."""
    rows = medians(passes.filter(via="pgbouncer"))
    if not rows:
        return "PgBouncer was not tried."
    columns = [
        words("direction", where), TECHNIQUE, Column("rows/s through it", "rows_per_s", thousands),
        words("what happens", lambda row: row["reason"] or "works"),
    ]  # fmt: skip
    return Listing(columns, rows)


def missing_table(passes: pl.DataFrame) -> Listing | str:
    """What was skipped or failed, but for what PgBouncer does, which has a table of its own."""
    return missing(statistics.medians(passes.filter(via="direct"), WHO), "technique", "network")


COLOURS = ("#0072B2", "#D55E00", "#009E73")


def figure(passes: pl.DataFrame) -> Figure:
    """rows/s of the techniques that are compared, from network to network, on a logarithmic axis."""
    rows = timed(passes.filter(encryption="none"))
    names = [name for name in ORDER if any(row["network"] == name for row in rows)]
    with charts.panels(2, 2, height=9.2) as (drawn, panels):
        for axes, (direction, techniques_here) in zip(panels, COMPARED.items(), strict=True):
            charts.title(axes, f"{DATABASES[direction[0]]} {direction[1]}")
            colours = dict(zip(techniques_here, COLOURS, strict=True))
            here = [row for row in rows if (row["database"], row["direction"]) == direction]
            for technique, colour in colours.items():
                for codec, style in (("none", "-"), (CODEC, "--")):
                    line = [row for row in here if (row["technique"], row["codec"]) == (technique, codec)]
                    at = [names.index(row["network"]) for row in line]
                    axes.plot(at, [row["rows_per_s"] for row in line], style, color=colour, marker="o", markersize=4)
            charts.quantities(axes.yaxis, logarithmic=True)
            axes.set_xticks(range(len(names)), [name.replace(", ", "\n") for name in names], fontsize=8)
            axes.grid(axis="y", which="major", color="#eeeeee")
            charts.legend(axes, colours, loc="lower left", fontsize=7)
        charts.footnote(drawn, f"rows/s, median of passes; dashed: {CODEC}; each network as asked for")
    return drawn
