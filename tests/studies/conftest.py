"""What tests of several studies begin with."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from framehaul.servers import Servers
from framehaul.settings import Settings


@pytest.fixture
def own_settings(servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Where runs of one's own data go: the tests' servers, and a directory of their own."""
    found = Settings(out=tmp_path, data=None)
    for module in ("framehaul.studies.own_data.study", "framehaul.bench.recording"):
        monkeypatch.setattr(f"{module}.load_settings", lambda: found)
    monkeypatch.setattr("framehaul.servers.running", lambda _: contextlib.nullcontext(servers))
    return found
