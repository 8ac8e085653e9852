"""Servers on loopback are reached directly where the machine sends HTTP through a proxy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from framehaul.servers import reach_loopback_directly
from framehaul.settings import PROJECT

NO_PROXY_HERE = "http://127.0.0.1:9"
"""Nothing listens on the discard port: whatever goes through this proxy fails."""


def test_embedded_servers_start_and_answer_with_a_proxy_in_the_environment(open_dir: Path) -> None:
    proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy"), NO_PROXY_HERE)
    left = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"}
    code = (
        "from pathlib import Path; from urllib.request import urlopen; import framehaul.servers as servers;"
        "from framehaul.settings import Settings\n"
        f"with servers.running(Settings(state_dir=Path({str(open_dir / 'proxied')!r}))) as both:\n"
        "    print(urlopen(f'http://127.0.0.1:{both.clickhouse.http_port}/ping').read().decode().strip())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, env=left | proxies, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "Ok."), done.stderr[-2000:]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "127.0.0.1,localhost,::1"),
        ("", "127.0.0.1,localhost,::1"),
        ("corp.example, localhost", "corp.example,localhost,127.0.0.1,::1"),
        ("*", "*"),
    ],
)
def test_what_was_excepted_from_the_proxy_stays_so(
    before: str | None, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        if before is not None:
            monkeypatch.setenv(name, before)
    reach_loopback_directly()
    reach_loopback_directly()
    assert {os.environ["no_proxy"], os.environ["NO_PROXY"]} == {after}
