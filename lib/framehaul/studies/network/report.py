"""Tables, text and figure of the study of networks, all made from its passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, get_args

import polars as pl
from matplotlib.figure import Figure

from framehaul.reporting import charts
from framehaul.reporting.tables import (
    UNSTABLE,
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
from framehaul.results import ratios, statistics
from framehaul.results.ratios import Ratio, ratio_of_rows
from framehaul.studies.network.catalog import (
    AS_IT_IS,
    COMPARED,
    HELPS,
    HELPS_NOT,
    LINKS,
    LOOPBACK,
    OWN_CODECS,
    UNLIMITED,
    road_to,
)
from framehaul.studies.network.queries import QUERIES
from framehaul.techniques import techniques
from framehaul.techniques.registry import DATABASES, Database

WHO = [
    "database", "direction", "technique", "label", "origin", "family", "driver", "frame", "connections", "codec",
    "network", "encryption", "via", "asked_rtt_ms", "asked_mbit_per_s",
]  # fmt: skip
ORDER = {link.name: at for at, link in enumerate(LINKS)}
LIMITED = [link.name for link in LINKS if not link.loopback and link != UNLIMITED]
"""Networks that are one: with a delay and a rate."""

type Key = tuple[Any, ...]


def medians(passes: pl.DataFrame) -> list[dict[str, Any]]:
    """A row of `statistics.medians` for each technique, codec, network, encryption and way, but for queries of a row.

    By direction, network, technique and codec: rounds are shuffled, and so are passes.
    """
    places = {one.key: at for at, one in enumerate(techniques())}
    directions = [*COMPARED]

    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        key = row["database"], row["direction"], row["technique"]
        network = ORDER.get(row["network"], len(ORDER))
        codec = [*MARKS].index(row["codec"])
        return directions.index(key[:2]), network, places.get(key, len(places)), codec, row["via"]

    moves = passes.filter(~pl.col("technique").is_in([*QUERIES]))
    return sorted(statistics.medians(moves, WHO).to_dicts(), key=place)


def timed(passes: pl.DataFrame, *, encryption: str = "none", via: str = "direct") -> list[dict[str, Any]]:
    """Of those, the ones with a speed, over one way."""
    return [
        row for row in medians(passes)
        if row["status"] == "ok" and row["encryption"] == encryption and row["via"] == via
    ]  # fmt: skip


def groups(rows: Iterable[dict[str, Any]], *names: str) -> dict[Key, list[dict[str, Any]]]:
    """Rows by what they have in those columns, in order of appearance."""
    parted: dict[Key, list[dict[str, Any]]] = {}
    for row in rows:
        parted.setdefault(tuple(row[name] for name in names), []).append(row)
    return parted


def links_table(found: Mapping[str, Any]) -> Listing:
    """Each network as it was asked for and as it was measured."""
    measured: Mapping[str, Mapping[str, float]] = found.get("links", {})
    rows = [{"name": name, **measured[name]} for name in sorted(measured, key=lambda one: ORDER.get(one, len(ORDER)))]
    columns = [
        words("network, as asked for", "name"),
        Column("RTT of a ping, ms", "rtt_ms", "{:.3g}"),
        Column("bulk transfer, Mbit/s", "mbit_per_s", "{:,.0f}"),
        Column("CPU of what stands in for it, s per GB", "forwarder_cpu_s_per_gb", "{:.2f}"),
    ]
    return Listing(columns, rows)


def fastest(passes: pl.DataFrame, *apart: str) -> list[dict[str, Any]]:
    """The fastest of each direction and network without encryption, with those that cannot be told from it.

    Techniques that differ in a column of `apart`, such as `frame`, are not compared with each other.
    """
    rows = []
    for (database, direction), here in groups(timed(passes), "database", "direction").items():
        for group in groups(here, "network", *apart).values():
            ranked = sorted(group, key=lambda row: -row["rows_per_s"])
            published = next((row for row in ranked if row["origin"] == "published"), ranked[0])
            rows.append(
                ranked[0] | {"database": database, "direction": direction, "ties": rivals_text(ranked)}
                | {"over_published": ratio_of_rows(ranked[0], published) if published is not ranked[0] else Ratio()}
            )  # fmt: skip
    return rows


def as_measured(row: Row) -> str:
    """RTT of a ping, and rate of a bulk transfer, of the network that a row was measured on."""
    if row["rtt_ms"] is None or row["mbit_per_s"] is None:
        return ""
    return f"{row['rtt_ms']:.3g} ms, {row['mbit_per_s']:,.0f} Mbit/s"


NETWORK = words("network", "network"), words("as measured", as_measured)
"""How tables say it: as it was asked for, and what it was."""


def cores_busy(row: Row) -> float | None:
    """How many cores client and server kept busy, on average over a pass."""
    if row["client_cpu_s"] is None or row["server_cpu_s"] is None:
        return None
    return float((row["client_cpu_s"] + row["server_cpu_s"]) / row["seconds"])


def fastest_table(passes: pl.DataFrame) -> Listing:
    """Which technique to take on which network."""
    columns = [
        words("direction", where), *NETWORK, words("frame", "frame"), words("fastest", "label"),
        words("function", lambda row: f"`{row['technique']}`"),
        Column("rows/s", "rows_per_s", thousands), UNSTABLE,
        Column("over the best published", "over_published"),
        Column("of the rate", _of_the_rate, "{:.0%}"),
        Column("cores busy", cores_busy, "{:.1f}"),
        words("not told apart from it", "ties"),
    ]  # fmt: skip
    return Listing(columns, fastest(passes, "frame"))


def _of_the_rate(row: Row) -> float | None:
    """How much of the rate of a bulk transfer a pass has used, where the network has a rate."""
    if not row["asked_mbit_per_s"] or not row["mbit_per_s"] or row["wire_bytes"] is None:
        return None
    return float(row["wire_bytes"] * 8 / row["seconds"] / (row["mbit_per_s"] * 1e6))


def _pairs(
    rows: Sequence[dict[str, Any]], kind: Callable[[dict[str, Any]], Any], base: Any, *same: str
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
    return _pairs(
        timed(passes), lambda row: row["codec"], "none", "database", "direction", "technique", "network"
    )  # fmt: skip


def codecs_table(passes: pl.DataFrame) -> Listing:
    """What compression gains, on which network."""
    columns = [
        words("direction", where), *NETWORK, words("codec", "codec"),
        Column("without, rows/s", lambda row: row["base"]["rows_per_s"], thousands),
        Column("with, rows/s", "rows_per_s", thousands), Column("with over without", "ratio"), words("it is", "said"),
        Column("bytes on the wire", _wire_share, "{:.0%}"),
    ]  # fmt: skip
    return Listing(columns, codecs_of(passes))


def _wire_share(row: Row) -> float | None:
    """The bytes of a row as a share of its base's."""
    wire, base = row["wire_bytes"], row["base"]["wire_bytes"]
    return None if wire is None or not base else float(wire / base)


LIKE = ("database", "direction", "frame", "family", "network")
"""What two techniques have in common of which the number of connections is compared."""


def _one_and_two(passes: pl.DataFrame) -> list[dict[str, Any]]:
    """The fastest of each kind of frame and family over two connections and over one, on each network."""
    best: dict[Key, dict[str, Any]] = {}
    for row in timed(passes):
        if row["codec"] != "none" or row["origin"] == "published":
            continue
        key = (*(row[name] for name in LIKE), row["connections"])
        if key not in best or row["rows_per_s"] > best[key]["rows_per_s"]:
            best[key] = row
    return [*best.values()]


def connections_of(passes: pl.DataFrame) -> list[dict[str, Any]]:
    """The best over two connections against the best of its family over one, on each network."""
    return _pairs(_one_and_two(passes), lambda row: row["connections"], 1, *LIKE)


def connections_table(passes: pl.DataFrame) -> Listing:
    """What a second connection gains, on which network."""
    columns = [
        words("direction", where), words("frame", "frame"), *NETWORK,
        words("over one", lambda row: f"`{row['base']['technique']}`"),
        words("over two", lambda row: f"`{row['technique']}`"),
        Column("two over one", "ratio"), words("two are", "said"),
    ]  # fmt: skip
    return Listing(columns, connections_of(passes))


def encryption_of(passes: pl.DataFrame) -> list[dict[str, Any]]:
    """Each technique with TLS against itself without, on each network."""
    rows = [row for row in medians(passes) if row["status"] == "ok" and row["via"] == "direct"]
    same = ("database", "direction", "technique", "codec", "network")
    return _pairs(rows, lambda row: row["encryption"], "none", *same)


def encryption_table(passes: pl.DataFrame) -> Listing:
    """What TLS costs."""
    columns = [
        words("direction", where), words("technique", lambda row: f"`{row['technique']}`"), words("codec", "codec"),
        *NETWORK, Column("without, rows/s", lambda row: row["base"]["rows_per_s"], thousands),
        Column("with TLS, rows/s", "rows_per_s", thousands), Column("TLS over none", "ratio"), words("it is", "said"),
        Column("CPU, TLS over none", _cpu_ratio, "{:.2f}x"),
    ]  # fmt: skip
    return Listing(columns, encryption_of(passes))


def encryption_by_network(passes: pl.DataFrame) -> Listing:
    """What TLS costs all techniques of a direction together, on each network."""
    rows = []
    for pairs in groups(encryption_of(passes), "database", "direction", "network").values():
        speeds = sorted(pair["ratio"].ratio for pair in pairs)
        cpu = [ratio for pair in pairs if (ratio := _cpu_ratio(pair)) is not None]
        rows.append(
            pairs[0] | {"pairs": len(pairs), "speed": f"{median(speeds):.2f}x ({speeds[0]:.2f} to {speeds[-1]:.2f})"}
            | {"slower": sum(pair["said"] == "slower" for pair in pairs), "cpu": median(cpu) if cpu else None}
        )  # fmt: skip
    columns = [
        words("direction", where), *NETWORK, Column("techniques and codecs", "pairs", "{:.0f}"),
        Column("TLS over none, the middle (least to most)", "speed"), Column("told to be slower", "slower", "{:.0f}"),
        Column("CPU, TLS over none, the middle", "cpu", "{:.2f}x"),
    ]  # fmt: skip
    return Listing(columns, rows)


def _cpu_ratio(row: Row) -> float | None:
    """The CPU time of client and server over its base's."""
    mine, base = cores_busy(row), cores_busy(row["base"])
    return None if mine is None or not base else mine * row["seconds"] / (base * row["base"]["seconds"])


def round_trips_table(passes: pl.DataFrame) -> Listing:
    """How often each technique waits for the server's answer, as counted, and what that is of a pass."""
    rows = []
    for group in groups(timed(passes), "database", "direction", "technique", "codec").values():
        counted = [row for row in group if row["round_trips"] is not None]
        if counted and (counted[0]["codec"] != "lz4" or counted[0]["technique"] in OWN_CODECS):
            far = max(counted, key=lambda row: row["asked_rtt_ms"] or 0)
            rows.append(far)
    columns = [
        words("direction", where), words("technique", lambda row: f"`{row['technique']}`"), words("codec", "codec"),
        Column("connections", "connections"), Column("round trips", "round_trips", "{:.0f}"), *NETWORK,
        Column("of a pass there, over one connection after another", _waiting_share, "{:.0%}"),
    ]  # fmt: skip
    return Listing(columns, rows)


def _waiting_share(row: Row) -> float | None:
    """The round trips of each connection as a share of a pass."""
    if not row["asked_rtt_ms"]:
        return None
    return float(row["round_trips"] / row["connections"] * row["rtt_ms"] / 1e3 / row["seconds"])


def queries_of(passes: pl.DataFrame) -> list[dict[str, Any]]:
    """Queries of one row that have a time: each form on each network, with how it is to a simple query there."""
    found = statistics.medians(passes.filter(pl.col("technique").is_in([*QUERIES]), status="ok"), WHO).to_dicts()
    rows = sorted(found, key=lambda row: (ORDER.get(row["network"], len(ORDER)), [*QUERIES].index(row["technique"])))
    simple = next(iter(QUERIES))
    paired = {
        (row["network"], row["technique"]): row for row in _pairs(rows, lambda row: row["technique"], simple, "network")
    }
    return [paired.get((row["network"], row["technique"]), row) for row in rows]


def queries_table(passes: pl.DataFrame) -> Listing | str:
    """What a query of one row takes in each form, and how often it waits for the server."""
    rows = queries_of(passes)
    if not rows:
        return "Queries of one row were not measured in this run."
    columns = [
        *NETWORK, words("a query of one row", "label"),
        Column("ms", lambda row: 1e3 * row["seconds"] / row["rows"], "{:.2f}"),
        Column("round trips", lambda row: row["round_trips"] and row["round_trips"] / row["rows"], "{:.1f}"),
        Column("queries/s over those of a simple query", "ratio"), words("it is", "said"),
    ]  # fmt: skip
    return Listing(columns, rows)


def pooler_table(passes: pl.DataFrame) -> Listing | str:
    """Which techniques work through PgBouncer, and what it costs those that were measured without it, too."""
    rows = [row for row in medians(passes) if row["via"] == "pgbouncer"]
    if not rows:
        return "PgBouncer was not tried."
    same = ("database", "direction", "technique", "network")
    costs = {(row["direction"], row["technique"]): row for row in _pairs(
        [*timed(passes), *(row for row in rows if row["status"] == "ok")], lambda row: row["via"], "direct", *same
    )}  # fmt: skip

    def cost(row: Row) -> Row:
        return costs.get((row["direction"], row["technique"]), {})

    columns = [
        words("direction", where), *NETWORK, words("technique", lambda row: f"`{row['technique']}`"),
        Column("rows/s through it", "rows_per_s", thousands),
        Column("over direct", lambda row: cost(row).get("ratio")), words("it is", lambda row: cost(row).get("said")),
        words("what happens", lambda row: row["reason"] or "works"),
    ]  # fmt: skip
    return Listing(columns, rows)


def advised_text(passes: pl.DataFrame) -> str:
    """How many techniques that fail through PgBouncer by what they prepare work where their driver prepares nothing."""
    reasons = [row["reason"] for row in medians(passes) if row["via"] == "pgbouncer" and row["reason"]]
    tried = [reason for reason in reasons if HELPS in reason or HELPS_NOT in reason]
    if not tried:
        return "What drivers advise was not tried in this run."
    return f"{sum(HELPS in reason for reason in tried)} of {len(tried)} that fail so work as their driver advises."


def missing_table(passes: pl.DataFrame) -> Listing | str:
    """What was skipped or failed, but for what PgBouncer does, which has a table of its own."""
    rows = statistics.medians(passes.filter(pl.col("via") == "direct"), WHO)
    return missing(rows, "technique", "network")


def findings_text(passes: pl.DataFrame, found: Mapping[str, Any]) -> str:
    """Bullet points: the fastest by network, where codecs and connections pay, what TLS and PgBouncer cost."""
    points = []
    for (database, direction), rows in groups(fastest(passes), "database", "direction").items():
        named = [
            f"{row['network']}{_measured_text(row)}: `{row['technique']}`{_codec_text(row)} "
            f"{thousands(row['rows_per_s'])}{_ties_text(row)}"
            for row in rows
        ]
        points.append(f"**{DATABASES[database]} {direction}**, fastest, rows/s: {'; '.join(named)}.")
    codecs, connections = codecs_of(passes), connections_of(passes)
    points += [
        f"{codec} over no compression, {DATABASES[database]} {direction}: {_by_network(rows)}."
        for (database, direction, codec), rows in groups(codecs, "database", "direction", "codec").items()
    ]
    points += [
        f"Two connections over one, {DATABASES[database]} {direction}, {frame}, {family}: {_by_network(rows)}."
        for (database, direction, frame, family), rows in groups(connections, *LIKE[:-1]).items()
    ]
    compared = groups((row for row in queries_of(passes) if "ratio" in row), "label")
    points += [
        f"A query of one row, PostgreSQL: {label} over {next(iter(QUERIES.values())).label}, queries/s: "
        f"{_by_network(rows)}."
        for (label,), rows in compared.items()
    ]
    if encrypted := encryption_of(passes):
        ratios_of_all = sorted(row["ratio"].ratio for row in encrypted)
        slower = sum(row["said"] == "slower" for row in encrypted)
        points.append(
            f"TLS moves {median(ratios_of_all):.2f}x the rows/s in the middle of {len(encrypted)} pairs, from "
            f"{ratios_of_all[0]:.2f}x to {ratios_of_all[-1]:.2f}x; told to be slower: {slower} of them."
        )
    return bullets([*points, *_pooler_points(passes), *_carried_points(found)])


def _by_network(rows: Sequence[dict[str, Any]]) -> str:
    """The ratio on each network, where it is told to be faster or slower, and between which two that changes."""
    parts = [
        f"{row['ratio'].ratio:.2f}x on {row['network']}{'' if row['said'] == 'inconclusive' else f' ({row["said"]})'}"
        for row in rows
    ]
    told = [row for row in rows if row["said"] in ("faster", "slower")]
    parts += [
        f"{far['said']} from somewhere between {near['network']} and {far['network']}"
        for near, far in pairwise(told) if near["said"] != far["said"]
    ]  # fmt: skip
    return "; ".join(parts)


def _ties_text(row: Row) -> str:
    """How many cannot be told from it."""
    count = len(row["ties"].split("; ")) if row["ties"] else 0
    return f" (not told from {count} other{'s' if count > 1 else ''})" if count else ""


def _measured_text(row: Row) -> str:
    measured = as_measured(row)
    return f" (as measured {measured})" if measured else ""


def _codec_text(row: Row) -> str:
    return "" if row["codec"] == "none" else f" ({row['codec']})"


def _pooler_points(passes: pl.DataFrame) -> list[str]:
    rows = [row for row in medians(passes) if row["via"] == "pgbouncer"]
    if not rows:
        return []
    works = [row for row in rows if row["status"] == "ok"]
    others = sorted({f"`{row['technique']}`" for row in rows if row["status"] != "ok"})
    if not works:
        return [f"PgBouncer: {rows[0]['reason']}."]
    but = f"; not {', '.join(others)}" if others else ""
    which = f"{len(works)} of {len(rows)} techniques work, also when a connection is used again{but}"
    return [f"Through PgBouncer in transaction mode {which}."]


def _carried_points(found: Mapping[str, Any]) -> list[str]:
    links = found.get("links", {})
    if not {LOOPBACK.name, UNLIMITED.name} <= links.keys():
        return []
    free, bare = links[UNLIMITED.name]["mbit_per_s"], links[LOOPBACK.name]["mbit_per_s"]
    return [
        f"With no delay and no limit, what stands in for the network carries {free / 1e3:.1f} Gbit/s, and loopback "
        f"{bare / 1e3:.1f}: what is faster than that cannot be seen here."
    ]


def nearest(found: Mapping[str, Any]) -> str | None:
    """Of servers that others run: the road to each, and which of the networks it is nearest to, by both logarithms."""
    links: Mapping[str, Mapping[str, float]] = found.get("links", {})
    roads = [(DATABASES[one], links[road_to(one)]) for one in get_args(Database) if road_to(one) in links]
    return " ".join(_nearest(label, **measured) for label, measured in roads) or None


def _nearest(server: str, rtt_ms: float, mbit_per_s: float) -> str:

    def distance(_: str, rtt: float, rate: float) -> float:
        return math.hypot(math.log(rtt_ms / rtt), math.log(mbit_per_s / rate))

    # Of loopback there is no rate that was asked for: what it carries on such machines will do.
    known = [(LOOPBACK.name, 0.03, 20_000.0)] + [
        (link.name, link.rtt_ms, link.mbit_per_s) for link in LINKS if link.name in LIMITED
    ]
    name = min(known, key=lambda one: distance(*one))[0]
    return f"The road to {server}: RTT {rtt_ms:.3g} ms, {mbit_per_s:,.0f} Mbit/s; nearest to it is {name}."


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999999")
MARKS = {"none": "o", "lz4": "s", "zstd": "D", "snappy": "^"}
STYLES = {"none": "-", "tls": ":"}


def figure(passes: pl.DataFrame) -> Figure:
    """rows/s of the techniques that are compared at every effort, from network to network, on a logarithmic axis."""
    compared = {name for names in COMPARED.values() for name in names}
    rows = [
        row for row in medians(passes)
        if row["status"] == "ok" and row["via"] == "direct" and row["technique"] in compared
    ]  # fmt: skip
    names = [link.name for link in (*LINKS, AS_IT_IS) if any(row["network"] == link.name for row in rows)]
    parted = groups(rows, "database", "direction")
    with charts.panels(max(1, (len(parted) + 1) // 2), 2, height=1 + 4.1 * max(1, (len(parted) + 1) // 2)) as (
        drawn,
        panels,
    ):
        for axes in panels[len(parted) :]:
            axes.remove()
        for axes, ((database, direction), here) in zip(panels, parted.items(), strict=False):
            charts.title(axes, f"{DATABASES[database]} {direction}")
            first = COMPARED.get((database, direction), ())
            techniques = sorted({row["technique"] for row in here}, key=lambda one: (one not in first, one))
            colours = dict(zip(techniques, COLOURS * len(techniques), strict=False))
            for (technique, codec, encryption), line in groups(here, "technique", "codec", "encryption").items():
                axes.plot(
                    [names.index(row["network"]) for row in line], [row["rows_per_s"] for row in line],
                    color=colours[technique], marker=MARKS.get(codec, "o"), markersize=4, linestyle=STYLES[encryption],
                    linewidth=1.3,
                )  # fmt: skip
            charts.quantities(axes.yaxis, logarithmic=True)
            measured = {row["network"]: as_measured(row) for row in here}
            ticks = [f"{name}\n({measured[name]})" if measured.get(name) else name for name in names]
            if len(names) > 3:  # noqa: PLR2004  more have no room side by side
                ticks = [tick.replace(", ", "\n") for tick in ticks]
            axes.set_xticks(range(len(names)), ticks, fontsize=8)
            axes.grid(axis="y", which="major", color="#eeeeee")
            charts.legend(axes, {name: colours[name] for name in techniques}, loc="lower left", fontsize=7)
        charts.footnote(
            drawn, "rows/s, median of passes; dotted: with TLS; squares: lz4, diamonds: zstd, triangles: snappy\n"
            "networks from left to right: farther and slower; below each its RTT and rate as measured",
        )  # fmt: skip
    return drawn
