"""What the study shows: tables, figures and sentences, all from its files of results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import polars as pl
from IPython.display import SVG, Markdown
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from framehaul.reporting import charts
from framehaul.reporting.tables import markdown_table, missing_table, ratio_text, thousands
from framehaul.reporting.versions import trial_versions_text
from framehaul.results import statistics, store
from framehaul.settings import load_settings
from framehaul.studies.pgbench import STUDY
from framehaul.studies.pgbench.presets import PUBLISHED
from framehaul.studies.pgbench.rounds import SPREAD, Pass, Spread, measure
from framehaul.studies.pgbench.services import PRICES

LABELS = {test.name: test.label for test in PUBLISHED}
COLOURS = ("#0072B2", "#009E73", "#56B4E9", "#E69F00", "#D55E00", "#CC79A7", "#882255", "#999999", "#117733", "#222222")
PUBLISHED_TPS = {
    ("cpu", "ClickHouse's NVMe over RDS gp3"): (36_500, None, 1.12),
    ("io_read", "ClickHouse's NVMe over RDS with 16,000 IOPS"): (84_800, 9_400, 9.0),
    ("io_write", "ClickHouse's NVMe over RDS with 16,000 IOPS"): (19_800, 4_600, 4.3),
    ("io_write", "ClickHouse's NVMe over Aurora I/O optimised"): (19_800, 4_400, 4.5),
}
"""Transactions a second of both, where given, and their ratio: PostgreSQL 17, 2 cores (cpu) and 16 (the others).

https://clickhouse.com/docs/cloud/managed-postgres/benchmarks
"""
UNLIMITED, LIMITED = "small_buffers", "limited_iops"
"""The examples that differ as the published services do: in what the disk may do."""


class Pgbench:
    """The passes of a run, ready to be shown."""

    def __init__(self, found: pl.DataFrame, spread: pl.DataFrame, metadata: dict[str, Any], figures: Path) -> None:
        self.passes, self._spread, self._metadata, self._figures = found, spread, metadata, figures
        self._order: list[str] = metadata["runs"][STUDY.notebook]["order"]

    def services(self) -> Markdown:
        """What was compared."""
        return Markdown(services_table(self.passes, self._metadata["runs"][STUDY.notebook]))

    def table(self) -> Markdown:
        """Every service in every test."""
        return Markdown(speeds_table(self.passes, self._order))

    def chart(self) -> SVG:
        """Transactions a second, a panel for each test; also saved as a figure, as those below."""
        return self._saved("", _bars(self.passes, self._order))

    def over_time(self) -> SVG:
        """Transactions a second as a run goes on."""
        return self._saved("_time", _over_time(self.passes, self._spread, self._order))

    def latencies(self) -> SVG:
        """How transactions are spread over latency."""
        return self._saved("_latency", _latencies(self.passes, self._spread, self._order))

    def clients(self) -> SVG:
        """Transactions a second against clients."""
        return self._saved("_clients", _against_clients(self.passes, self._order))

    def of_server(self) -> Markdown:
        """CPU, disk, cache and WAL."""
        return Markdown(server_table(self.passes, self._order))

    def cost(self) -> Markdown:
        """What a million transactions cost."""
        return Markdown(cost_table(self.passes, self._order))

    def published(self) -> Markdown:
        """The published services beside what differs like them here."""
        return Markdown(published_table(self.passes))

    def findings(self) -> Markdown:
        """What stands out."""
        return Markdown(findings_text(self.passes, self._order, self._metadata["machine"]["cores"]))

    def missing(self) -> Markdown:
        """What did not run, what is wrong, and what is left behind."""
        left = [f"- {text}" for text in self._metadata["runs"][STUDY.notebook]["left"]]
        return Markdown("\n".join([missing_table(_main(self.passes), "service", "test"), "", *left]))

    def versions(self) -> Markdown:
        """What this was run with."""
        return Markdown(trial_versions_text(self._metadata, STUDY.notebook))

    def _saved(self, which: str, figure: Figure) -> SVG:
        return SVG(charts.save(figure, self._figures / f"{STUDY.name}{which}.svg"))


def run(*, preset: str, passes: int, seed: int, services: str = "") -> Pgbench:
    """Run the tests of a preset on every service, or on those named, and write `results/pgbench.csv`.

    Raises what `rounds.measure` raises.
    """
    measure(preset=preset, passes=passes, seed=seed, services=services)
    return load()


def load() -> Pgbench:
    """The results of the last complete run, without any server; raises ResultsError when there is none."""
    settings = load_settings()
    directory = settings.out / "results"
    found, spread = store.read(directory / STUDY.results, Pass), store.read(directory / SPREAD, Spread)
    return Pgbench(found, spread, store.read_metadata(directory), settings.out / "figures")


def readme_blocks(directory: Path) -> dict[str, str]:
    """The tables that the README shows, from a results directory; raises ResultsError when the study was not run."""
    found = store.read(directory / STUDY.results, Pass)
    order = store.read_metadata(directory)["runs"][STUDY.notebook]["order"]
    return {"pgbench": speeds_table(found, order), "pgbench-published": published_table(found)}


def summary(found: pl.DataFrame) -> pl.DataFrame:
    """One row per service, test and number of clients, as `statistics.medians` makes it."""
    return statistics.medians(found, ["service", "label", "test", "scale", "clients", "price_per_hour"], speed="tps")


def _main(found: pl.DataFrame) -> pl.DataFrame:
    """`summary` of each test with its own number of clients, which is the largest: without the sweep."""
    return summary(found.filter(pl.col("clients") == pl.col("clients").max().over("test")))


def ratio(found: pl.DataFrame, test: str, service: str, base: str) -> dict[str, float]:
    """Transactions a second of a service over another's in a test with its own number of clients."""
    here = found.filter(pl.col("clients") == pl.col("clients").max().over("test"), test=test)
    return statistics.ratio(here.filter(service=service), here.filter(service=base), "tps")


def _base(found: pl.DataFrame, order: list[str]) -> str:
    """The service that others are compared with: the first that ran."""
    ran = set(found.filter(status="ok")["service"])
    return next((name for name in order if name in ran), order[0])


def services_table(found: pl.DataFrame, made: dict[str, Any]) -> str:
    """What was compared, and how long its data took to make, as Markdown."""
    labels = dict(found.select("service", "label").iter_rows())
    rows = []
    for name in made["order"]:
        known = made["services"].get(name)
        settings = known["settings"] if known else {}
        shown = ("shared_buffers", "synchronous_commit", "max_wal_size", "checkpoint_timeout")
        rows.append(
            [
                name, labels[name], " ".join(known["version"].split()[:2]) if known else "",
                ", ".join(f"{setting} {settings[setting]}" for setting in shown if setting in settings),
                f"{known['initialised_s']:.1f} s" if known else "",
            ]
        )  # fmt: skip
    return markdown_table(["service", "what", "version", "settings", "data made in"], rows, text_columns=4)


def speeds_table(found: pl.DataFrame, order: list[str]) -> str:
    """Every service in every test: transactions a second, latencies, and the ratio to the first, as Markdown."""
    base = _base(found, order)
    rows = []
    for test, group in _by_test(found, order):
        for row in group:
            head = [LABELS[test], row["service"], f"{row['clients']}"]
            if row["tps"] is None:
                rows.append([*head, row["status"], *[""] * 8])
                continue
            mark = " ±" if row["unstable"] else ""
            rows.append(
                [
                    *head, f"{row['tps']:,.0f}{mark}", f"{row['min_tps']:,.0f} to {row['max_tps']:,.0f}",
                    ratio_text(ratio(found, test, row["service"], base)),
                    *(f"{row[f'latency_{name}_ms']:.2f}" for name in ("average", "p50", "p95", "p99", "p999", "max")),
                ]
            )  # fmt: skip
    header = ["test", "service", "clients", "TPS", "slowest to fastest pass", f"over {base} (95% interval)",
              "latency ms: average", "p50", "p95", "p99", "p99.9", "max"]  # fmt: skip
    return markdown_table(header, rows, text_columns=2)


def server_table(found: pl.DataFrame, order: list[str]) -> str:
    """What the tests took of server and disk, as Markdown."""
    rows = []
    for test, group in _by_test(found, order):
        for row in group:
            if row["tps"] is None:
                continue
            rows.append(
                [
                    LABELS[test], row["service"],
                    *("" if row[name] is None else f"{row[name] / row['seconds']:.2f}"
                      for name in ("server_cpu_s", "client_cpu_s")),
                    *("" if row[name] is None else f"{row[name]:,.0f}"
                      for name in ("reads_per_s", "writes_per_s", "disk_reads_per_s", "disk_writes_per_s")),
                    "" if row["cache_hit_ratio"] is None else f"{row['cache_hit_ratio']:.1%}",
                    "" if row["wal_bytes_per_transaction"] is None else f"{row['wal_bytes_per_transaction']:,.0f}",
                ]
            )  # fmt: skip
    header = ["test", "service", "busy cores: server", "pgbench", "PostgreSQL's reads/s", "writes/s",
              "the disk's reads/s", "writes/s", "found in shared_buffers", "WAL bytes per transaction"]  # fmt: skip
    return markdown_table(header, rows, text_columns=2)


def cost_table(found: pl.DataFrame, order: list[str]) -> str:
    """What a million transactions cost on services with a price, as Markdown; a sentence when none has one."""
    rows = [
        [LABELS[test], row["service"], f"{row['price_per_hour']:.3f}", f"{row['tps']:,.0f}",
         f"{row['price_per_hour'] / 3600 / row['tps'] * 1e6:.4f}"]
        for test, group in _by_test(found, order)
        for row in group
        if row["tps"] is not None and row["price_per_hour"] is not None
    ]  # fmt: skip
    if not rows:
        return f"No service has a price: give it as `{PRICES}='name=0.35'`, per hour and in any currency."
    return markdown_table(["test", "service", "per hour", "TPS", "per million transactions"], rows, 2)


def published_table(found: pl.DataFrame) -> str:
    """The published ratios, beside that of unlimited and limited IOPS here, as Markdown."""
    here = {(row["test"], row["service"]): row["tps"] for row in _main(found).to_dicts()}
    rows = []
    for (test, what), (fast, slow, times) in PUBLISHED_TPS.items():
        both = [here.get((test, service)) for service in (UNLIMITED, LIMITED)]
        rows.append(
            [
                LABELS[test], what, f"{fast:,} to {slow:,}" if slow else f"{fast:,}", f"{times:.2f}x",
                " to ".join("" if tps is None else f"{tps:,.0f}" for tps in both) if all(both) else "not measured",
                ratio_text(ratio(found, test, UNLIMITED, LIMITED)),
            ]
        )  # fmt: skip
    header = ["test", "published", "TPS", "ratio", f"here: {UNLIMITED} to {LIMITED}, TPS", "ratio (95% interval)"]
    return markdown_table(header, rows, text_columns=2)


def findings_text(found: pl.DataFrame, order: list[str], cores: int) -> str:
    """What stands out: who is fastest in each test, and what held the others."""
    base, lines = _base(found, order), []
    for test, group in _by_test(found, order):
        timed = sorted((row for row in group if row["tps"] is not None), key=lambda row: -row["tps"])
        if not timed:
            lines.append(f"- **{LABELS[test]}**: ran on no service.")
            continue
        best = timed[0]
        text = f"- **{LABELS[test]}**: most transactions on {best['service']}, {best['tps']:,.0f} TPS (median)"
        if best["service"] != base:
            text += f", {ratio_text(ratio(found, test, best['service'], base))} of {base}"
        near = [row["service"] for row in timed[1:] if row["max_tps"] >= best["min_tps"]]
        text += f"; inconclusive from {', '.join(near)}." if near else "."
        lines.append(text)
        freed = ratio(found, test, UNLIMITED, LIMITED)
        if freed["ratio_low"] > 1:
            held = next(row for row in timed if row["service"] == LIMITED)
            lines.append(
                f"  The limit on IOPS is all that parts {UNLIMITED} from {LIMITED}: {ratio_text(freed)} the "
                f"transactions. With it the disk did {held['disk_reads_per_s']:,.0f} reads and "
                f"{held['disk_writes_per_s']:,.0f} writes a second."
            )
        server, client = best["server_cpu_s"], best["client_cpu_s"]
        if server is not None:
            busy = (server + client) / best["seconds"]
            lines.append(
                f"  On {best['service']} server and pgbench kept {busy:.1f} of {cores} cores busy; pgbench took "
                f"{client / (server + client):.0%} of that."
            )
    return "\n".join(lines)


def _by_test(found: pl.DataFrame, order: list[str]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Each test with the rows of its services, in the order in which they were named."""
    rows = _main(found).to_dicts()
    for test in LABELS:
        here = [row for row in rows if row["test"] == test]
        if here:
            yield test, sorted(here, key=lambda row: order.index(row["service"]))


@contextmanager
def _panels(tests: list[str], height: float) -> Iterator[tuple[Figure, list[tuple[str, Axes]]]]:
    with mpl.rc_context(charts.STYLE):
        figure = Figure(figsize=(10.5, 0.6 + height * len(tests)), layout="constrained")
        panels = figure.subplots(len(tests), squeeze=False)[:, 0]
        for test, axes in zip(tests, panels, strict=True):
            axes.set_title(LABELS[test], loc="left", fontweight="bold")
        yield figure, list(zip(tests, panels, strict=True))


def _colour(order: list[str], service: str) -> str:
    return COLOURS[order.index(service) % len(COLOURS)]


def _legend(figure: Figure, order: list[str], text: str) -> None:
    figure.axes[-1].set_xlabel(text)
    lines = [Line2D([], [], color=_colour(order, name), linewidth=3, label=name) for name in order]
    figure.legend(handles=lines, loc="outside lower center", ncols=min(6, len(order)), frameon=False)


def _bars(found: pl.DataFrame, order: list[str]) -> Figure:
    groups = dict(_by_test(found, order))
    with _panels(list(groups), 0.5 + 0.32 * len(order)) as (figure, panels):
        for test, axes in panels:
            for at, row in enumerate(groups[test]):
                if row["tps"] is None:
                    axes.annotate(row["status"], (0, at), xytext=(6, 0), textcoords="offset points", va="center",
                                  color=charts.STATUS_INK[row["status"]])  # fmt: skip
                    continue
                axes.barh(at, row["tps"], color=_colour(order, row["service"]), height=0.7)
                axes.plot([row["min_tps"], row["max_tps"]], [at, at], color=charts.INK, linewidth=1.2)
                mark = " ±" if row["unstable"] else ""
                axes.annotate(f"{row['tps']:,.0f}{mark}", (row["max_tps"], at), xytext=(6, 0),
                              textcoords="offset points", va="center")  # fmt: skip
            axes.set_yticks(range(len(groups[test])), [row["service"] for row in groups[test]])
            axes.invert_yaxis()
            axes.tick_params(axis="y", length=0)
            axes.margins(x=0.1)
            axes.set_xlim(left=0)
            axes.xaxis.set_major_formatter(lambda value, _: thousands(value))
        figure.supxlabel("transactions a second, median of passes (line: slowest to fastest; ±: they vary by over 10%)",
                         fontsize=9)  # fmt: skip
    return figure


def _of_main(found: pl.DataFrame, spread: pl.DataFrame, kind: str) -> pl.DataFrame:
    """The spread of the tests with their own number of clients, summed over passes; of services that were right."""
    good = _main(found).filter(status="ok").select("service", "test", "clients")
    return (
        spread.filter(kind=kind)
        .join(good, on=["service", "test", "clients"], maintain_order="left")
        .group_by("service", "test", "up_to", maintain_order=True)
        .agg(pl.col("transactions").sum(), pl.col("pass").n_unique().alias("passes"))
        .sort("up_to")
    )


def _over_time(found: pl.DataFrame, spread: pl.DataFrame, order: list[str]) -> Figure:
    bins = _of_main(found, spread, "second")
    with _panels(list(dict(_by_test(found, order))), 1.9) as (figure, panels):
        for test, axes in panels:
            for name in order:
                # Passes are not all equally long: where one of them has ended, the mean would be another's.
                here = bins.filter(test=test, service=name).filter(pl.col("passes") == pl.col("passes").max())
                if len(here):
                    width_s = here["up_to"][0]
                    tps = (here["transactions"] / here["passes"] / width_s).to_list()
                    axes.plot(here["up_to"].to_list(), tps, color=_colour(order, name), linewidth=1.6)
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(lambda value, _: thousands(value))
            axes.set_ylabel("TPS")
        _legend(figure, order, "seconds since the first transaction; mean of passes")
    return figure


def _latencies(found: pl.DataFrame, spread: pl.DataFrame, order: list[str]) -> Figure:
    bins = _of_main(found, spread, "latency_ms")
    with _panels(list(dict(_by_test(found, order))), 1.9) as (figure, panels):
        for test, axes in panels:
            for name in order:
                here = bins.filter(test=test, service=name)
                if len(here):
                    share = (here["transactions"] / here["transactions"].sum() * 100).to_list()
                    axes.step(here["up_to"].to_list(), share, where="pre", color=_colour(order, name), linewidth=1.6)
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.set_ylim(bottom=0)
            axes.set_ylabel("% of transactions")
        _legend(figure, order, "latency in ms, ten steps to a factor of ten; all passes together")
    return figure


def _against_clients(found: pl.DataFrame, order: list[str]) -> Figure:
    rows = summary(found).filter(status="ok")
    several = rows.group_by("test").agg(pl.col("clients").n_unique()).filter(pl.col("clients") > 1)["test"]
    tests = [test for test in LABELS if test in set(several)] or [test for test in LABELS if test in set(rows["test"])]
    with _panels(tests or list(LABELS)[:1], 2.8) as (figure, panels):
        for test, axes in panels:
            for name in order:
                here = rows.filter(test=test, service=name).sort("clients")
                clients, tps = here["clients"].to_list(), here["tps"].to_list()
                axes.plot(clients, tps, color=_colour(order, name), marker="o", markersize=4, linewidth=1.6)
                axes.vlines(clients, here["min_tps"].to_list(), here["max_tps"].to_list(), color=_colour(order, name),
                            linewidth=1)  # fmt: skip
            axes.set_xscale("log", base=2)
            axes.set_xticks(sorted(set(rows.filter(test=test)["clients"])))
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(lambda value, _: thousands(value))
            axes.set_ylabel("TPS")
        _legend(figure, order, "clients; median of passes, lines from the slowest to the fastest")
    return figure


def patience(values: Mapping[str, Any]) -> int | None:
    """For how many seconds more a cell may take: the published tests take hours, most of them to make data."""
    return None if values.get("preset") == "published" else 0
