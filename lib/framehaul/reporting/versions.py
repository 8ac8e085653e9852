"""What a run was made with, as Markdown."""

from __future__ import annotations

from typing import Any


def versions_text(metadata: dict[str, Any], notebook: str) -> str:
    """Machine, versions, run and server settings as Markdown."""
    made = metadata["runs"][notebook]
    machine = metadata["machine"]
    settings = ", ".join(f"`{name} = {value}`" for name, value in made["server"]["settings"].items())
    libraries = ", ".join(f"{name} {version}" for name, version in metadata["libraries"].items())
    return "\n".join(
        [
            f"- Run {made['run_id']}: {made['rows']:,} rows, {made['passes']} passes after {made['warmup']} warm-up, "
            f"seed {made['seed']}, {made['servers']} servers, started {made['started']}, commit {metadata['commit']}",
            f"- Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}",
            f"- Server: {made['server']['version']}; {settings}",
            f"- Python {metadata['python']}; {libraries}",
        ]
    )


def trial_versions_text(metadata: dict[str, Any], notebook: str) -> str:
    """Machine, versions, run and what could not be tried, of a study of outcomes instead of times, as Markdown."""
    made, machine = metadata["runs"][notebook], metadata["machine"]
    libraries = ", ".join(f"{name} {version}" for name, version in metadata["libraries"].items())
    servers_text = f", {made['servers']} servers" if "servers" in made else ""
    lines = [
        f"- Run {made['run_id']}: {made['what']}{servers_text}, started {made['started']}, commit {metadata['commit']}",
        f"- Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}",
    ]
    if "server" in made:
        lines.append(f"- {made['server']['postgres']}; ClickHouse {made['server']['clickhouse']}")
    lines.append(f"- Python {metadata['python']}; {libraries}")
    lines += [f"- {name} {version}" for name, version in made.get("toolchains", {}).items()]
    lines += [f"- Not tried: `{name}`: {reason}" for name, reason in made["unavailable"].items()]
    return "\n".join(lines)
