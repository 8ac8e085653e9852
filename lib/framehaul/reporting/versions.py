"""What a run was made with, as Markdown."""

from __future__ import annotations

from typing import Any


def versions_text(metadata: dict[str, Any], notebook: str) -> str:
    """Machine, versions, run, server settings that matter, and what could not run, as Markdown."""
    made, machine = metadata["runs"][notebook], metadata["machine"]
    servers = f", {made['servers']} servers" if "servers" in made else ""
    lines = [
        f"Run {made['run_id']}: {size_text(made)}{servers}, started {made['started']}, commit {metadata['commit']}",
        f"Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}",
    ]
    if server := made.get("server", {}):
        settings = [f"`{name} = {value}`" for name, value in server.get("settings", {}).items()]
        versions = [server[name] for name in ("version", "postgres", "clickhouse") if name in server]
        lines.append(f"Server: {'; '.join([*versions, *([', '.join(settings)] if settings else [])])}")
    libraries = ", ".join(f"{name} {version}" for name, version in metadata["libraries"].items())
    lines.append(f"Python {metadata['python']}; {libraries}")
    lines += [f"{name} {version}" for name, version in made.get("toolchains", {}).items()]
    lines += [f"Not tried: `{name}`: {reason}" for name, reason in made.get("unavailable", {}).items()]
    return "\n".join(f"- {line}" for line in lines)


def size_text(made: dict[str, Any]) -> str:
    """How much a run measured."""
    what: str = made.get("what") or (
        f"{made['rows']:,} rows, {made['passes']} passes after {made['warmup']} warm-up, seed {made['seed']}"
    )
    return what
