"""What tests of several studies begin with."""

import contextlib
from pathlib import Path

import pytest

from framehaul.servers import Servers
from framehaul.settings import Settings


def run_own_data_on(servers: Servers, out: Path, patch: pytest.MonkeyPatch) -> None:
    """Let runs of one's own data use these servers and leave their results here."""
    for module in ("framehaul.studies.own_data.study", "framehaul.bench.recording"):
        patch.setattr(f"{module}.load_settings", lambda: Settings(out=out, data=None))
    patch.setattr("framehaul.servers.running", lambda _: contextlib.nullcontext(servers))


@pytest.fixture
def own_data(servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of one's own data use the tests' servers, and a directory of their own."""
    run_own_data_on(servers, tmp_path, monkeypatch)


@pytest.fixture
def own_out(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for the results of a study that runs on the tests' servers."""
    monkeypatch.setenv("FRAMEHAUL_STATE_DIR", str(settings.state_dir))
    monkeypatch.setenv("FRAMEHAUL_OUT", str(tmp_path))
    return tmp_path
