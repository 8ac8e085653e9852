"""Tables, answer and figure of the study of networks, all made from its passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from framehaul.bench import ratios, statistics
from framehaul.bench.ratios import Ratio, ratio_of_rows
from framehaul.reporting import charts
from framehaul.reporting.tables import (
    Column,
    Listing,
    Row,
    bullets,
    missing,
    rivals_text,
    thousands,
    where,
    words,
)
from framehaul.studies.network.catalog import COMPARED, LINKS
from framehaul.techniques import techniques
from framehaul.techniques.registry import DATABASES

WHO = [
    "database", "direction", "technique", "label", "origin", "family", "driver", "frame", "connections", "codec",
    "network", "encryption", "via", "asked_rtt_ms", "asked_mbit_per_s",
]  # fmt: skip
ORDER = {link.name: at for at, link in enumerate(LINKS)}

type Key = tuple[Any, ...]


def medians(passes: pl.DataFrame) -> list[dict[str, Any]]:
    """A row of `statistics.medians` for each technique, codec, network, encryption and way, in the order of tables."""
    places = {one.key: at for at, one in enumerate(techniques())}
    directions = [*COMPARED]

    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        key = row["database"], row["direction"], row["technique"]
        network = ORDER.get(row["network"], len(ORDER))
        return directions.index(key[:2]), network, places.get(key, len(places)), row["codec"], row["via"]

    return sorted(statistics.medians(passes, WHO).to_dicts(), key=place)


def timed(passes: pl.DataFrame) -> list[dict[str, Any]]:
    """Of those, the ones with a speed, without TLS and a pooler."""
    return [row for row in medians(passes.filter(encryption="none", via="direct")) if row["status"] == "ok"]


def groups(rows: Iterable[dict[str, Any]], *names: str) -> dict[Key, list[dict[str, Any]]]:
    """Rows by what they have in those columns, in order of appearance."""
    parted: dict[Key, list[dict[str, Any]]] = {}
    for row in rows:
        parted.setdefault(tuple(row[name] for name in names), []).append(row)
    return parted


def fastest(passes: pl.DataFrame) -> list[dict[str, Any]]:
    """The fastest of each direction and network without encryption, with those that are tied with it."""
    rows = []
    for group in groups(timed(passes), "database", "direction", "network").values():
        ranked = sorted(group, key=lambda row: -row["rows_per_s"])
        published = next((row for row in ranked if row["origin"] == "published"), ranked[0])
        over = ratio_of_rows(ranked[0], published) if published is not ranked[0] else Ratio()
        rows.append(ranked[0] | {"ties": rivals_text(ranked), "over_published": over})
    return rows


def as_measured(row: Row) -> str:
    """RTT and rate of the network that a row was measured on."""
    if row["rtt_ms"] is None or row["mbit_per_s"] is None:
        return ""
    return f"{row['rtt_ms']:.3g} ms, {row['mbit_per_s']:,.0f} Mbit/s"


NETWORK = words("network", "network"), words("as measured", as_measured)
"""How tables say it: as it was asked for, and what it was."""


def fastest_table(passes: pl.DataFrame) -> Listing:
    """Which technique to take on which network."""
    columns = [
        words("direction", where), *NETWORK, words("function", lambda row: f"`{row['technique']}`"),
        words("codec", "codec"), Column("rows/s", "rows_per_s", thousands),
        Column("over the best published", "over_published"), words("tied with it", "ties"),
    ]  # fmt: skip
    return Listing(columns, fastest(passes))


def _pairs(
    rows: list[dict[str, Any]], kind: Callable[[dict[str, Any]], Any], base: Any, *same: str
) -> list[dict[str, Any]]:
    """Rows of another `kind` than `base` beside the one of that kind that is the same in those columns."""
    bases = {tuple(row[name] for name in same): row for row in rows if kind(row) == base}
    paired = [
        row | {"base": other, "ratio": ratio_of_rows(row, other)}
        for row in rows
        if kind(row) != base and (other := bases.get(tuple(row[name] for name in same)))
    ]
    said = ratios.verdicts([(row["ratio"], 1) for row in paired], "faster", "slower")
    return [row | {"said": words} for row, words in zip(paired, said, strict=True)]


def codecs_of(passes: pl.DataFrame) -> list[dict[str, Any]]:
    """Each codec of a technique against the same technique without one, on each network."""
    same = "database", "direction", "technique", "network"
    return _pairs(timed(passes), lambda row: row["codec"], "none", *same)


def codecs_table(passes: pl.DataFrame) -> Listing:
    """What compression gains, on which network."""
    columns = [
        words("direction", where), *NETWORK, words("codec", "codec"),
        Column("without, rows/s", lambda row: row["base"]["rows_per_s"], thousands),
        Column("with, rows/s", "rows_per_s", thousands), Column("with over without", "ratio"), words("it is", "said"),
    ]  # fmt: skip
    return Listing(columns, codecs_of(passes))


def encryption_of(passes: pl.DataFrame) -> list[dict[str, Any]]:
    """Each technique with TLS against itself without, on each network."""
    rows = [row for row in medians(passes.filter(via="direct")) if row["status"] == "ok"]
    same = ("database", "direction", "technique", "codec", "network")
    return _pairs(rows, lambda row: row["encryption"], "none", *same)


def encryption_table(passes: pl.DataFrame) -> Listing:
    """What TLS costs."""
    columns = [
        words("direction", where), words("technique", lambda row: f"`{row['technique']}`"), *NETWORK,
        Column("without, rows/s", lambda row: row["base"]["rows_per_s"], thousands),
        Column("with TLS, rows/s", "rows_per_s", thousands), Column("TLS over none", "ratio"), words("it is", "said"),
    ]  # fmt: skip
    return Listing(columns, encryption_of(passes))


def pooler_table(passes: pl.DataFrame) -> Listing | str:
    """Which techniques work through PgBouncer."""
    rows = medians(passes.filter(via="pgbouncer"))
    if not rows:
        return "PgBouncer was not tried."
    columns = [
        words("direction", where), words("technique", lambda row: f"`{row['technique']}`"),
        Column("rows/s through it", "rows_per_s", thousands),
        words("what happens", lambda row: row["reason"] or "works"),
    ]  # fmt: skip
    return Listing(columns, rows)


def missing_table(passes: pl.DataFrame) -> Listing | str:
    """What was skipped or failed, but for what PgBouncer does, which has a table of its own."""
    return missing(statistics.medians(passes.filter(via="direct"), WHO), "technique", "network")


def findings_text(passes: pl.DataFrame) -> str:
    """The fastest by network, what TLS costs, and how many techniques work through PgBouncer."""
    points = []
    for (database, direction), rows in groups(fastest(passes), "database", "direction").items():
        named = [f"{row['network']}: `{row['technique']}` {thousands(row['rows_per_s'])}" for row in rows]
        points.append(f"**{DATABASES[database]} {direction}**, fastest, rows/s: {'; '.join(named)}.")
    if encrypted := encryption_of(passes):
        middle = median(row["ratio"].ratio for row in encrypted)
        points.append(f"TLS: {middle:.2f}x the rows/s (median of {len(encrypted)} techniques and networks).")
    if pooled := medians(passes.filter(via="pgbouncer")):
        works = sum(row["status"] == "ok" for row in pooled)
        points.append(f"PgBouncer in transaction mode: {works} of {len(pooled)} techniques work.")
    return bullets(points) or "Nothing ran."


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
MARKS = {"none": "o", "lz4": "s", "zstd": "D"}


def figure(passes: pl.DataFrame) -> Figure:
    """rows/s of the techniques that are compared, from network to network, on a logarithmic axis."""
    rows = timed(passes)
    names = [name for name in ORDER if any(row["network"] == name for row in rows)]
    with charts.panels(2, 2, height=9.2) as (drawn, panels):
        for axes, ((database, direction), compared) in zip(panels, COMPARED.items(), strict=True):
            charts.title(axes, f"{DATABASES[database]} {direction}")
            colours = dict(zip(compared, COLOURS, strict=False))
            here = [
                row for row in rows
                if (row["database"], row["direction"]) == (database, direction) and row["technique"] in colours
            ]  # fmt: skip
            for (technique, codec), line in groups(here, "technique", "codec").items():
                axes.plot(
                    [names.index(row["network"]) for row in line], [row["rows_per_s"] for row in line],
                    color=colours[technique], marker=MARKS[codec], markersize=4, linewidth=1.3,
                )  # fmt: skip
            charts.quantities(axes.yaxis, logarithmic=True)
            axes.set_xticks(range(len(names)), [name.replace(", ", "\n") for name in names], fontsize=8)
            axes.grid(axis="y", which="major", color="#eeeeee")
            charts.legend(axes, {name: colours[name] for name in compared}, loc="lower left", fontsize=7)
        charts.footnote(drawn, "rows/s, median of passes; squares: lz4, diamonds: zstd; each network as asked for")
    return drawn
