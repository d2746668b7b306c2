"""Fixtures for the tests of downloads: a server on this machine, and an empty home folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from download_server import Server


@pytest.fixture
def server() -> Iterator[Server]:
    """Serve files on a port of this machine."""
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the test's own folder the home folder, with no data and an empty cache."""
    monkeypatch.delenv("FASTSHAPLEY_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path
