"""What a guard found, as those want it who read it: a terminal, a pull request, JUnit, asv, Bencher."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args
from xml.etree import ElementTree

from framehaul.reporting.comparison import aligned
from framehaul.reporting.tables import Column, Listing, bullets, where, words
from framehaul.results.ratios import Ratio
from framehaul.studies.guard.verdicts import LOOKS, MATTERS, REGRESSIONS, Judged

type Format = Literal["text", "markdown", "json", "junit", "asv", "bencher"]
FORMATS: tuple[str, ...] = get_args(Format.__value__)


@dataclass(frozen=True)
class Found:
    """All that a guard says."""

    baseline: str
    candidate: str
    judged: Sequence[Judged]
    notes: Sequence[str] = ()
    """What else differs between the environments, and what was left out."""


def render(found: Found, form: str) -> str:
    """As text of a format of FORMATS."""
    forms: dict[str, Callable[[Found], str]] = {
        "text": _text, "markdown": _markdown, "json": _json, "junit": _junit, "asv": _asv, "bencher": _bencher,
    }  # fmt: skip
    return forms[form](found)


def listing(judged: Sequence[Judged]) -> Listing:
    """A line for each technique."""

    def seconds(of: Judged) -> str:
        return "" if math.isnan(sum(of.cpu_s)) else " -> ".join(f"{one * 1000:.1f}" for one in of.cpu_s)

    rows = [
        {"database": one.key[0], "direction": one.key[1], "technique": one.key[2], "of": one, "rows": one.rows}
        for one in judged
    ]
    return Listing(
        [
            words("verdict", lambda row: row["of"].text),
            words("direction", lambda row: "" if row["of"].is_together else where(row)),
            words("technique", lambda row: row["of"].label if row["of"].is_together else row["technique"]),
            Column("rows", "rows", "{:,}"),
            Column("CPU, ms", lambda row: seconds(row["of"])),
            Column("speed by CPU", lambda row: str(row["of"].cpu)),
            Column("by the clock", lambda row: str(row["of"].wall)),
        ],
        rows,
    )


def findings(judged: Sequence[Judged]) -> list[str]:
    """What is behind the verdicts, a line for each."""
    return [f"{one.key[0]} {one.key[1]} {one.key[2]}: {text}" for one in judged for text in one.findings]


def rule() -> str:
    """By which rule it is said."""
    return (
        f"slower, faster: by more than {MATTERS - 1:.0%}, in CPU time (of the client on replayed bytes; of servers "
        "where they are compared) or by the clock; "
        f"looked at after {', '.join(map(str, LOOKS))} rounds, each of a fresh pair of processes; of guards of equals "
        "one in twenty at most marks anything"
    )


def sums(found: Found) -> str:
    """How many of each verdict."""
    counts: dict[str, int] = {}
    for one in found.judged:
        if not one.is_together:
            counts[one.verdict] = counts.get(one.verdict, 0) + 1
    said = [f"{one.label} {one.text}" for one in found.judged if one.is_together]
    said += [f"{count} {name}" for name, count in counts.items()]
    return f"{found.baseline} -> {found.candidate}: {', '.join(said)}"


def _text(found: Found) -> str:
    lines = [sums(found), *(f"  {note}" for note in found.notes), "", aligned(listing(found.judged)), ""]
    return "\n".join([*lines, *(f"  {line}" for line in findings(found.judged)), f"  {rule()}"])


def _markdown(found: Found) -> str:
    parts = [f"**{sums(found)}**", bullets(found.notes) if found.notes else "", str(listing(found.judged))]
    said = findings(found.judged)
    return "\n\n".join(filter(None, [*parts, bullets(said) if said else "", rule()]))


def _json(found: Found) -> str:
    def ratio(one: Ratio) -> dict[str, Any] | None:
        return {"ratio": one.ratio, "low": one.low, "high": one.high, "rounds": one.rounds} if one.logs else None

    return json.dumps(
        {
            "baseline": found.baseline, "candidate": found.candidate, "notes": [*found.notes],
            "techniques": [
                {
                    "database": one.key[0], "direction": one.key[1], "technique": one.key[2], "rows": one.rows,
                    "verdict": one.verdict, "text": one.text, "regression": one.verdict in REGRESSIONS,
                    "cpu": ratio(one.cpu), "clock": ratio(one.wall), "findings": [*one.findings],
                }
                for one in found.judged
            ],
        },
        indent=2,
    )  # fmt: skip


def _junit(found: Found) -> str:
    """A case for each technique; a regression is a failure, what could not be compared is skipped."""
    failed = sum(one.verdict in REGRESSIONS for one in found.judged)
    suite = ElementTree.Element(
        "testsuite", name=f"framehaul guard: {found.baseline} -> {found.candidate}", tests=str(len(found.judged)),
        failures=str(failed), skipped=str(sum(one.verdict == "not compared" for one in found.judged)),
    )  # fmt: skip
    for one in found.judged:
        case = ElementTree.SubElement(suite, "testcase", classname=".".join(one.key[:2]), name=_printable(one.key[2]))
        text = "\n".join(map(_printable, [one.text, *one.findings]))
        if one.verdict in REGRESSIONS:
            ElementTree.SubElement(case, "failure", message=one.text).text = text
        elif one.verdict == "not compared":
            ElementTree.SubElement(case, "skipped", message=_printable("; ".join(one.findings)))
        else:
            ElementTree.SubElement(case, "system-out").text = text
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def _printable(text: str) -> str:
    """XML has no other control characters than these."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text)


def _asv(found: Found) -> str:
    """The candidate's CPU seconds as a file of asv's results, whose commit is the candidate.

    https://asv.readthedocs.io/en/latest/dev.html#benchmark-suite-layout-and-file-formats
    """
    columns = ["result", "params", "version", "started_at", "duration"]
    now = int(time.time() * 1000)
    results = {
        f"framehaul.{'.'.join(one.key)}": [[one.cpu_s[1]], [], "1", now, None]
        for one in found.judged
        if not math.isnan(one.cpu_s[1])
    }
    return json.dumps(
        {
            "version": 2, "commit_hash": found.candidate, "env_name": "framehaul", "date": now, "params": {},
            "python": ".".join(map(str, sys.version_info[:2])), "requirements": {}, "env_vars": {},
            "result_columns": columns, "results": results, "durations": {},
        },
        indent=2,
    )  # fmt: skip


def _bencher(found: Found) -> str:
    """Bencher's own: https://bencher.dev/docs/reference/bencher-metric-format."""
    results: dict[str, Any] = {}
    for one in found.judged:
        measures: dict[str, Any] = {}
        if not math.isnan(one.cpu_s[1]):
            measures["client-cpu-seconds"] = {"value": one.cpu_s[1]}
        if one.cpu.logs:
            measures["speed-over-baseline"] = {
                "value": one.cpu.ratio, "lower_value": one.cpu.low, "upper_value": one.cpu.high
            }  # fmt: skip
        if measures:
            results[" ".join(one.key)] = measures
    return json.dumps(results, indent=2)
