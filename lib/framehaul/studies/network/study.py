"""What notebook 23 calls: techniques over networks that are slower and farther than loopback, with TLS, and pooled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from IPython.display import SVG, Markdown

from framehaul.errors import UnavailableError
from framehaul.harness.passes import Pass, attempt, columns_of
from framehaul.harness.recording import Recording, recording, which
from framehaul.harness.rounds import Rounds, check, in_rounds, interruptible
from framehaul.reporting.shown import Shown, view
from framehaul.reporting.tables import Listing
from framehaul.results import store
from framehaul.servers.network import Link
from framehaul.studies.network import STUDY, catalog, process, report
from framehaul.studies.network.catalog import Task
from framehaul.studies.network.process import Inside
from framehaul.studies.network.queries import CALLS, QUERIES
from framehaul.studies.network.rows import Result
from framehaul.studies.network.wanted import AS_IT_IS, NAMESPACES, RELAY, Wanted
from framehaul.techniques.registry import Database


def run(*, rows: int, passes: int, warmup: int, seed: int, roads: str) -> Roads:
    """Measure over networks of our own, or over the road that is there, and write `results/network.csv`.

    Warm-ups are made over the shortest of the networks: what they warm does not depend on that. Raises ValueError for a
    parameter that makes no sense, ServerError and ResultsError for what their names say.
    """
    check(ROWS=(rows, 1))
    rounds = Rounds(passes, warmup, seed)
    terms = {"rows": rows, "roads": roads, **vars(rounds)}
    with recording(STUDY.notebook, STUDY.results, Result, "pass", terms) as this_run, ExitStack() as stack:
        links = catalog.chosen_links(roads, this_run.settings.servers)
        planned = catalog.tasks(roads, links)
        if this_run.settings.servers == "external":  # whose address says what lies before it
            planned = [task for task in planned if task.via == "direct"]
        this_run.say("starting servers and networks")
        inside, road = _started(stack, rows, seed, links, planned)
        this_run.metadata |= terms | inside.found
        if road == AS_IT_IS and (told := report.nearest(inside.found)):
            this_run.say(told)
        of_links = {link.name: link for link in links}

        def row(task: Task, number: int, outcome: Pass[dict[str, Any]]) -> Result:
            return _row(this_run.run_id, inside.found, of_links[task.network], rows, task, number, outcome)

        interruptible(lambda stop: _measure(this_run, inside, planned, rounds, row, stop))
    return Roads.load(this_run.settings)


def _started(
    stack: ExitStack, rows: int, seed: int, links: tuple[Link, ...], planned: list[Task]
) -> tuple[Inside, str]:
    """The process inside, over the best road that this system gives."""
    frames: list[str] = sorted({task.of.frame for task in planned})
    databases: list[Database] = sorted({task.database for task in planned})
    wanted = Wanted(rows, seed, NAMESPACES, [link.name for link in links], frames, databases)
    if links == (catalog.AS_IT_IS,):
        return stack.enter_context(process.started(replace(wanted, road=AS_IT_IS))), AS_IT_IS
    try:
        return stack.enter_context(process.started(wanted)), NAMESPACES
    except UnavailableError as error:
        inside = stack.enter_context(process.started(replace(wanted, road=RELAY)))
        inside.found["without_namespaces"] = str(error)
        return inside, RELAY


def _measure(
    this_run: Recording, inside: Inside, planned: list[Task], rounds: Rounds,
    row: Callable[[Task, int, Pass[dict[str, Any]]], Result], stop: threading.Event,
) -> None:  # fmt: skip
    record, finished = this_run.passes(row)
    left = [task for task in planned if not all(finished(task, at) for at in range(1, rounds.passes + 1))]
    nearest = {(task.database, task.direction, task.technique, task.codec): task for task in reversed(left)}
    this_run.expect(rounds.warmup * len(nearest) + rounds.passes * len(planned))
    for _ in range(rounds.warmup):
        for task in nearest.values():
            if stop.is_set():
                raise KeyboardInterrupt
            this_run.progress(f"warm-up: {task.words}")
            attempt(lambda: inside.measure(task), failures=NOT_OF_A_PASS)  # noqa: B023
    in_rounds(
        planned, replace(rounds, warmup=0), lambda task, _: inside.measure(task), record, stop=stop, finished=finished,
        progress=lambda task, number: this_run.progress(f"pass {number}: {task.words}"), failures=NOT_OF_A_PASS,
    )  # fmt: skip


NOT_OF_A_PASS: tuple[type[Exception], ...] = ()
"""What a pass raises comes as its outcome; what is raised besides is the end of the run: the process has ended."""


def _row(
    run_id: str, found: dict[str, Any], link: Link, rows: int, task: Task, number: int, outcome: Pass[dict[str, Any]]
) -> Result:
    one, measured = task.of, found["links"].get(catalog.road_to(task.database, task.network), {})
    ended = columns_of(outcome)
    return Result(
        **which(one), run_id=run_id, notebook=STUDY.notebook, driver=one.driver, connections=one.connections,
        contract=one.contract.kind if one.contract else None, codec=task.codec,
        network=task.network, encryption=task.encryption, via=task.via, task=task.words, how=found["how"],
        asked_rtt_ms=link.rtt_ms or None, asked_mbit_per_s=link.mbit_per_s or None, rtt_ms=measured.get("rtt_ms"),
        mbit_per_s=measured.get("mbit_per_s"), rows=CALLS if one.name in QUERIES else rows, pass_=number, **ended,
    )  # fmt: skip


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The blocks of the writeup, of the run in a results directory."""
    passes = store.read(directory / STUDY.results, Result)
    found = store.read_metadata(directory)["runs"][STUDY.notebook]
    blocks = {
        "links": f"{how_text(found)}\n\n{report.links_table(found)}",
        "fastest": str(report.fastest_table(passes)),
        "codecs": str(report.codecs_table(passes)),
        "connections": str(report.connections_table(passes)),
        "tls": str(report.encryption_by_network(passes)),
        "round-trips": str(report.round_trips_table(passes)),
        "queries": str(report.queries_table(passes)),
        "pgbouncer": str(report.pooler_table(passes)),
        "findings": report.findings_text(passes, found),
        "advised": report.advised_text(passes),
    }
    return {f"network-{name}": text for name, text in blocks.items()}


def how_text(found: dict[str, Any]) -> str:
    """What the networks of a run are made of."""
    text = f"Made of: {found['how']}."
    if control := found.get("congestion_control"):
        text += f" Congestion control: {control}."
    if reason := found.get("without_namespaces"):
        text += f" ({reason}.)"
    if version := found.get("pgbouncer"):
        text += f" {version}."
    return text


class Roads(Shown):
    """The passes of a run over networks."""

    study = STUDY
    fastest = view(report.fastest_table)
    codecs = view(report.codecs_table)
    connections = view(report.connections_table)
    encryption = view(report.encryption_table)
    round_trips = view(report.round_trips_table)
    queries = view(report.queries_table)
    pooler = view(report.pooler_table)
    missing = view(report.missing_table)

    def answer(self) -> Markdown:
        """What stands out."""
        return Markdown(report.findings_text(self.passes, self.run_metadata))

    def how(self) -> Markdown:
        """What the networks are made of, and which of them the roads to one's own servers are nearest to."""
        told = report.nearest(self.run_metadata)
        return Markdown(how_text(self.run_metadata) + (f"\n\n{told}" if told else ""))

    def links(self) -> Listing:
        """Each network as it was asked for and as it was measured."""
        return report.links_table(self.run_metadata)

    def chart(self) -> SVG:
        """rows/s from network to network; also saved as a figure."""
        return self.saved(report.figure(self.passes))


load = Roads.load
