"""Describe what a run was made with, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from framehaul.bench import store


def versions_text(metadata: dict[str, Any], notebook: str) -> str:
    """Return machine, versions, run, relevant server settings, and unavailable techniques, as Markdown."""
    run = metadata["runs"][notebook]
    made_by = store.made_by(metadata, run)
    servers = f", {run['servers']} servers" if "servers" in run else ""
    lines = [
        f"Run {run['run_id']}: {size_text(run)}{servers}, started {run['started']}, commit {made_by['commit']}",
        f"Machine: {machine_text(made_by['machine'])}",
    ]
    if load := run.get("load_average"):
        text = ", ".join(f"{one:.2f}" for one in load)
        lines.append(f"Load before the run (1, 5, 15 minutes): {text}{_disturbance(run)}")
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
    return "\n".join(f"- {line}" for line in lines)


def machines_text(metadata: Mapping[str, Any], runs: Iterable[Mapping[str, Any]]) -> str:
    """Return the descriptions of the machines that made these runs, each once; empty without runs."""
    made = (store.made_by(metadata, run).get("machine", {}) for run in runs)
    return "; ".join(dict.fromkeys(map(machine_text, made)))


def machine_text(machine: Mapping[str, Any]) -> str:
    """Return the description of a machine; `unknown` if none was recorded."""
    parts = {"cpu": "{}", "cores": "{} cores", "memory_gib": "{} GiB", "system": "{}"}
    return ", ".join(form.format(machine[part]) for part, form in parts.items() if part in machine) or "unknown"


def _disturbance(run: dict[str, Any]) -> str:
    """Return how other programs disturbed a run, if that was recorded."""
    text = f"; CPU time stolen during it: {run['stolen_s']:g} s" if run.get("stolen_s") is not None else ""
    if resumed := run.get("resumed_after"):
        text += f"; resumed after {resumed} passes, and this line is about the later ones"
    if counts := run.get("disturbed", {}):
        text += (
            f"; of {counts['watched']} passes, {counts['repeated']} were repeated because other programs used the "
            f"machine, and {counts['kept']} are kept though disturbed"
        )
    return text


def size_text(run: Mapping[str, Any]) -> str:
    """Return how much a run measured."""
    if what := run.get("what"):
        return str(what)
    race = " at most, in a race" if run.get("race") else ""
    table = f" of the table {run['table']!r}" if run.get("table") else ""
    passes = f"{run['passes']} pass{'es' if run['passes'] != 1 else ''}"
    return f"{run['rows']:,} rows{race}{table}, {passes} after {run['warmup']} warm-up, seed {run['seed']}"
