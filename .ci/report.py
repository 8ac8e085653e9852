"""What a run found, as Markdown: how many passes ended how, which notebooks stopped, and the reasons of failures.

python3 .ci/report.py RUN [--expected 'FILE COLUMN=VALUE ...']

Rows of FILE with these values may fail. Exit status 1 when anything else failed, or when there are no results. It needs
nothing but Python, so that it can tell of a run whose environment was never made.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import Counter
from pathlib import Path

LONGEST_REASON = 300
STATUSES = ("ok", "skipped", "failed")


def main() -> int:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--expected", default="")
    arguments = parser.parse_args()
    lines, ok = report(arguments.run, arguments.expected)
    print("\n".join(lines))
    return 0 if ok else 1


def report(run: Path, expected: str = "") -> tuple[list[str], bool]:
    """The lines about a run, and whether nothing failed that was not expected to."""
    lines = [f"## {run.name}", "", *_where(run / "results" / "environment.json")]
    tables, reasons, unexpected = [], Counter[str](), 0
    file_expected, _, values_expected = expected.partition(" ")
    wanted = dict(pair.split("=", 1) for pair in values_expected.split())
    for path in sorted((run / "results").glob("*.csv")):
        with path.open(newline="", encoding="utf8") as file:
            rows = [row for row in csv.DictReader(file) if row.get("status")]
        counts = Counter(row["status"] for row in rows)
        if rows:
            tables.append(f"| {path.name} | {' | '.join(str(counts[status]) for status in STATUSES)} |")
        for row in rows:
            if row["status"] == "failed":
                allowed = path.name == file_expected and all(row.get(name) == value for name, value in wanted.items())
                unexpected += not allowed
                file_and_word = f"`{path.name}`{' (expected)' if allowed else ''}"
                reasons[f"{file_and_word}: {_plain(row.get('reason') or '')}"] += 1
    if tables:
        lines += ["| results | ok | skipped | failed |", "| --- | ---: | ---: | ---: |", *tables, ""]
    else:
        lines.append("No results.")
    stopped = sorted(path.stem for path in (run / "reports" / "failed").glob("*.ipynb"))
    lines += [f"- `{name}` stopped before its end" for name in stopped]
    lines += [f"- {count} x {reason}" for reason, count in reasons.most_common()]
    upgraded = run / "upgraded.txt"
    if upgraded.exists():
        said = upgraded.read_text().splitlines()
        changed = [line for line in said if line.startswith(("Updated", "Added", "Removed"))]
        lines += ["", f"Not the versions of uv.lock ({len(changed)}):", "", "```text", *changed, "```"]
    return lines, bool(tables) and not stopped and not unexpected


def _where(environment: Path) -> list[str]:
    """The machine and the commit of the run."""
    if not environment.exists():
        return []
    facts = json.loads(environment.read_text())
    machine = facts.get("machine", {})
    return [f"Commit {facts.get('commit', 'unknown')}, {machine.get('cpu')}, {machine.get('cores')} cores.", ""]


def _plain(reason: str) -> str:
    """A reason on one line, of which Markdown changes nothing."""
    return f"`{' '.join(reason.split())[:LONGEST_REASON].replace('`', chr(39))}`"


if __name__ == "__main__":
    sys.exit(main())
