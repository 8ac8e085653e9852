"""What a run was made with, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def versions_text(metadata: dict[str, Any], notebook: str) -> str:
    """Machine, versions, run, server settings that matter, and what could not run, as Markdown."""
    run, machine = metadata["runs"][notebook], metadata["machine"]
    servers = f", {run['servers']} servers" if "servers" in run else ""
    lines = [
        f"Run {run['run_id']}: {size_text(run)}{servers}, started {run['started']}, "
        f"commit {run.get('commit', metadata['commit'])}",
        f"Machine: {machine_text(machine)}",
    ]
    if load := run.get("load_average"):
        lines.append(f"Load before the run (1, 5, 15 minutes): {', '.join(f'{one:.2f}' for one in load)}{_others(run)}")
    if server := run.get("server", {}):
        settings = [f"`{name} = {value}`" for name, value in server.get("settings", {}).items()]
        versions = [server[name] for name in ("version", "postgres") if name in server]
        versions += [f"ClickHouse {server['clickhouse']}"] if "clickhouse" in server else []
        where = [f"its data on {run['data_filesystem']}"] if run.get("data_filesystem") else []
        where += [f"reached over a {server['transport']}"] if server.get("transport", "TCP") != "TCP" else []
        lines.append(f"Server: {'; '.join([*versions, *where, *([', '.join(settings)] if settings else [])])}")
    libraries = ", ".join(f"{name} {version}" for name, version in metadata["libraries"].items())
    lines.append(f"Python {metadata['python']}; {libraries}")
    lines += [f"{name} {version}" for name, version in run.get("toolchains", {}).items()]
    lines += [f"Not tried: `{name}`: {reason}" for name, reason in run.get("unavailable", {}).items()]
    return "\n".join(f"- {line}" for line in lines)


def machine_text(machine: Mapping[str, Any]) -> str:
    """Where a run was made; `unknown` where that was not recorded."""
    parts = {"cpu": "{}", "cores": "{} cores", "memory_gib": "{} GiB", "system": "{}"}
    return ", ".join(form.format(machine[part]) for part, form in parts.items() if part in machine) or "unknown"


def _others(run: dict[str, Any]) -> str:
    """What others had of the machine during a run, where that is known."""
    stolen, counts = run.get("stolen_s"), run.get("disturbed", {})
    text = "" if stolen is None else f"; CPU time stolen during it: {stolen:g} s"
    if resumed := run.get("resumed_after"):
        text += f"; gone on from after {resumed} passes, what is said here is of the passes since"
    if counts:
        text += (
            f"; of {counts['watched']} passes {counts['repeated']} were made again because others had the machine, "
            f"{counts['kept']} are kept though disturbed"
        )
    return text


def size_text(run: dict[str, Any]) -> str:
    """How much a run measured."""
    race = " at most, in a race" if run.get("race") else ""
    race += f" of the table {table!r}" if (table := run.get("table")) else ""
    if what := run.get("what"):
        return str(what)
    return f"{run['rows']:,} rows{race}, {passes_text(run['passes'])} after {run['warmup']} warm-up, seed {run['seed']}"


def passes_text(count: int) -> str:
    """`1 pass`, `6 passes`."""
    return f"{count} pass{'es' if count != 1 else ''}"
