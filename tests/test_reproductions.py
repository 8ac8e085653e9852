"""The defects that the reproductions show are still there; one that is not any more fails here, and can be told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from framehaul.servers import Servers
from framehaul.settings import PROJECT

SCRIPTS = sorted((PROJECT / "reproductions").glob("*.py"))
MOST_LINES = 30


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_defect_is_still_there_in_a_short_script_that_stands_alone(script: Path, servers: Servers) -> None:
    text = script.read_text()
    assert "import framehaul" not in text
    assert "from framehaul" not in text
    assert len(text.splitlines()) <= MOST_LINES
    assert f"({script.name})" in (script.parent / "README.md").read_text()
    clickhouse = servers.clickhouse
    addresses = {
        "CLICKHOUSE_HOST": clickhouse.host, "CLICKHOUSE_PORT": str(clickhouse.http_port),
        "CLICKHOUSE_NATIVE_PORT": str(clickhouse.native_port), "CLICKHOUSE_USER": clickhouse.user,
        "CLICKHOUSE_PASSWORD": clickhouse.password, "POSTGRES_DSN": servers.postgres.dsn(),
    }  # fmt: skip
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | addresses)
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["expected", "seen"], done.stderr
    assert done.returncode == 1, f"mended: {done.stdout}"
