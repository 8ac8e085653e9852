"""What notebook 05 calls: the four directions beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Self

import polars as pl
from IPython.display import SVG

from framehaul.bench import statistics, store
from framehaul.errors import ResultsError
from framehaul.reporting import charts
from framehaul.reporting.shown import Shown
from framehaul.reporting.tables import (
    Column,
    Listing,
    Row,
    ratio_text,
    thousands,
    where,
    where_and_class,
    words,
)
from framehaul.reporting.versions import passes_text
from framehaul.settings import Settings, load_settings
from framehaul.studies.fidelity import counts
from framehaul.studies.registry import FIDELITY, SUMMARY
from framehaul.studies.scaling.study import read_streams
from framehaul.studies.summary import front_page, published
from framehaul.studies.summary.across_networks import rows_across_networks
from framehaul.studies.summary.there_already import rows_there_already
from framehaul.studies.transfers import findings
from framehaul.studies.transfers.study import read_all
from framehaul.techniques.registry import DATABASES

ORDER = {
    f"{database} {way}": at for at, (database, way) in enumerate((d, w) for d in DATABASES for w in ("write", "read"))
}


def past_table(summary: pl.DataFrame, cores: int | None = None) -> Listing:
    """Best published against best exact technique beyond, with what the server does alone and the bound of `cores`."""

    def speed(of: str) -> Any:
        return lambda row: f"{row[of]['label']}: {thousands(row[of]['median_rows_per_s'])}"

    def of_baselines(row: Row) -> str:
        best = row["beyond"]["median_rows_per_s"]
        return "; ".join(f"{best / one['median_rows_per_s']:.0%}" for one in row["baselines"])

    def of_bound(row: Row) -> float | None:
        return float(row["beyond"]["median_rows_per_s"] / row["bound"].both) if row["bound"] else None

    return Listing(
        [
            words("direction", where_and_class),
            words("best published, rows/s", speed("published")),
            words("best beyond with exact dtypes, rows/s", speed("beyond")),
            Column("ratio", lambda row: ratio_text(row["beyond"])),
            Column("over one connection", "single_connection", ratio_text),
            Column("of the server alone", of_baselines),
            Column("of the bound of these cores", of_bound, "{:.0%}"),
            Column("cores busy", lambda row: findings.busy_cores(row["beyond"]), "{:.1f}"),
        ],
        map(vars, findings.past_published(summary, cores)),
    )


def agreement_table(summary: pl.DataFrame) -> Listing:
    """Rank agreement with the published matrix, per database and direction."""
    rows = []
    for (database, direction), group in summary.group_by("database", "direction", maintain_order=True):
        rows.append(
            {
                "database": database, "direction": direction, "published": len(group.filter(origin="published")),
                "agreement": published.rank_agreement(group),
                "ratios": sorted(group["measured_over_published"].drop_nulls().to_list()),
            }
        )  # fmt: skip

    def spread(row: Row) -> str:
        ratios = row["ratios"]
        return f"{median(ratios):.2f}x ({ratios[0]:.2f} to {ratios[-1]:.2f})" if ratios else ""

    return Listing(
        [
            words("direction", where),
            Column("techniques compared", lambda row: f"{len(row['ratios'])} of {row['published']}"),
            Column("rank correlation (Spearman)", "agreement", "{:.2f}"),
            Column("measured over published, median (range)", spread),
        ],
        rows,
    )


def published_table(summary: pl.DataFrame) -> Listing:
    """Every published technique: published and measured means, and their ratio."""
    return Listing(
        [
            words("technique", "label"),
            words("direction", where),
            words("published rows/s", "published_rows_per_s", "{:,.0f}"),
            Column("measured rows/s", "mean_rows_per_s", "{:,.0f}"),
            Column("ratio", "measured_over_published", "{:.2f}x"),
        ],
        summary.filter(pl.col("published_rows_per_s").is_not_null()),
    )


class Summary(Shown):
    """The results of all notebooks, ready to be compared."""

    study = SUMMARY

    def __init__(
        self, passes: pl.DataFrame, metadata: dict[str, Any], figures: Path, streams: pl.DataFrame | None = None,
        fidelity: pl.DataFrame | None = None, there_already: Sequence[Row] = (),
        across_networks: Sequence[Row] = (),
    ) -> None:  # fmt: skip
        super().__init__(passes, metadata, figures)
        if passes.is_empty():
            raise ResultsError("there are no results yet; run the other notebooks first (make all)")
        self._streams = pl.DataFrame(schema=store.SCHEMA) if streams is None else streams
        self._fidelity = fidelity
        self.there_already, self._across_networks = there_already, across_networks
        where = pl.concat_str("database", "direction", separator=" ")
        self.summary = published.beside(statistics.summary(passes)).sort(
            where.replace_strict(ORDER, return_dtype=pl.Int64), maintain_order=True
        )

    @classmethod
    def of(cls, directory: Path) -> Self:
        """What a results directory holds; raises ResultsError when there is nothing to compare."""
        matrix = directory / FIDELITY.results
        return cls(
            read_all(directory), store.read_metadata(directory), directory.parent / "figures", read_streams(directory),
            store.read_cells(matrix) if matrix.exists() else None,
            rows_there_already(directory), rows_across_networks(directory),
        )  # fmt: skip

    @classmethod
    def load(cls, settings: Settings | None = None) -> Self:
        """The results of all notebooks' last complete runs, without any server."""
        return cls.of((settings or load_settings()).out / "results")

    def answer(self) -> Listing:
        """The fastest technique of each direction and class of writes."""
        return findings.winners_table(self.summary, self.machine_cores)

    @property
    def run_metadata(self) -> dict[str, Any]:
        """What is known of the first of the runs, with how many rows each direction moved."""
        return super().run_metadata | {"what": _rows(self.summary)}

    def winners(self) -> Listing:
        """The fastest technique of each database and direction, and how it does with edge cases, if they were tried."""
        fidelity = self._fidelity
        tried = Column("edge cases", lambda row: counts.survival(fidelity, dict(row))) if fidelity is not None else None
        return findings.winners_table(self.summary, self.machine_cores, *([tried] if tried else []))

    def past_published(self) -> Listing:
        """How far past the published techniques one gets, and how far that is from what the machine can do."""
        return past_table(self.summary, self.machine_cores)

    def choices(self) -> Listing:
        """Which technique to use for which case."""
        largest = self._streams.filter(pl.col("rows") == pl.col("rows").max().over(statistics.NAMES))
        streamed = [
            row | {"case": f"more than fits in memory ({row['rows']:,} rows)"}
            for row in statistics.statistics(largest).to_dicts()
        ]
        return front_page.which_table(self.summary, [*self._across_networks, *self.there_already, *streamed], "../")

    def chart(self) -> SVG:
        """Published against measured."""
        return self.saved(charts.published_against_measured(self.summary), "published_against_measured")

    def at_a_glance(self) -> SVG:
        """Every technique on one scale."""
        return self.saved(charts.at_a_glance(self.summary), "at_a_glance")

    def agreement(self) -> Listing:
        """Rank agreement with the published matrix, per database and direction."""
        return agreement_table(self.summary)

    def ratios(self) -> Listing:
        """Measured over published rows/s, for every technique."""
        return published_table(self.summary)


load = Summary.load


def headline_html(directory: Path) -> str:
    """The fastest technique of each direction, for the index page; empty when there are no results."""
    passes = read_all(directory)
    return "" if passes.is_empty() else findings.winners_table(statistics.summary(passes))._repr_html_()


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The blocks of the writeup, of the run in a results directory."""
    summary = Summary.of(directory)
    made = _made(summary.metadata, summary.summary)
    return {
        "answer": f"{summary.answer()}\n\n{made}",
        "which": str(front_page.which_table(summary.summary, summary.there_already)),
        "headline": f"{made}\n\n{summary.winners()}",
        "past": str(summary.past_published()),
        "choices": str(summary.choices()),
        "agreement": str(summary.agreement()),
        "matrix": _matrix(summary.summary),
    }


def _made(metadata: dict[str, Any], summary: pl.DataFrame) -> str:
    """One sentence on where and how a run was made."""
    machine, run_metadata = metadata["machine"], metadata["runs"]["01_postgres_write"]
    over_socket = run_metadata["server"].get("transport") == "Unix socket"
    return (
        f"{_rows(summary)}, {passes_text(run_metadata['passes'])}, {_memory(summary)}, "
        f"{run_metadata['started'].split()[0]}, "
        f"{machine['cores']} cores ({_processor(machine)}), {machine['memory_gib']} GiB, "
        f"client and servers on this one machine{', PostgreSQL over a Unix socket' if over_socket else ''}; "
        f"{' '.join(metadata['runs']['01_postgres_write']['server']['version'].split()[:2])}, "
        f"ClickHouse {metadata['runs']['03_clickhouse_write']['server']['version']}, "
        f"Python {metadata['python']}, pandas {metadata['libraries']['pandas']}, "
        f"Polars {metadata['libraries']['polars']}."
    )


def _processor(machine: dict[str, Any]) -> str:
    """Its name, and where it is known which one of that name: `AMD EPYC, cpu family 25, model 17`."""
    parts = [part for part in (machine.get("cpu_model") or "").split(", ") if part.startswith(("cpu family", "model"))]
    return ", ".join([machine["cpu"], *parts])


def _rows(summary: pl.DataFrame) -> str:
    """How many rows the fastest of each direction moved: `1,000,000 rows`, or each direction's own number."""
    most = summary.group_by("database", "direction", maintain_order=True).agg(pl.col("rows").max()).to_dicts()
    if len({row["rows"] for row in most}) == 1:
        return f"{most[0]['rows']:,} rows"
    return ", ".join(f"{where(row)} {row['rows']:,} rows" for row in most)


def _memory(summary: pl.DataFrame) -> str:
    """Whose memory passes found. Runs that have not counted page faults handed it back before every pass."""
    return "memory cold (handed back before every pass)" if summary["minor_faults"].is_null().all() else "memory warm"


def _matrix(summary: pl.DataFrame) -> str:
    """All techniques of all directions, with the published figure beside."""
    columns = [
        words("technique", "label"),
        Column("avg s", "avg_s", "{:.4f}"),
        *(Column(name, f"{name.split()[0]}_rows_per_s", "{:,.0f}") for name in ("mean rows/s", "min", "max")),
        Column("ratio to best", ratio_text),
        Column("published rows/s", "published_rows_per_s", "{:,.0f}"),
    ]
    return "\n\n".join(
        f"**{where(group.row(0, named=True))}**\n\n{Listing(columns, group)}"
        for _, group in summary.group_by("database", "direction", maintain_order=True)
    )
