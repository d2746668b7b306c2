"""The cache of exported graphs: it saves the export, and is trusted no more than the explainer's file."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import stat
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs the serve extra")
from fastshapley.serving import graph_cache
from fastshapley.serving.graph_cache import GraphCache
from fastshapley.serving.model_loader import ModelLoader


@pytest.fixture
def saved(exported: Any, tmp_path: Path) -> Path:
    """A copy of the saved explainer, in a folder of its own."""
    return Path(shutil.copy(exported.saved, tmp_path / "people.fastshap"))


@pytest.fixture
def cache(saved: Path) -> GraphCache:
    return GraphCache(saved, hashlib.sha256(saved.read_bytes()).hexdigest())


@pytest.fixture
def loader(exported: Any, tmp_path: Path) -> ModelLoader:
    """A loader whose export copies the exported graph, and notes each export in a file."""
    script = f"""
        import shutil, sys
        open({str(tmp_path / "exports")!r}, "a").write("x")
        shutil.copy({str(exported.graph)!r}, sys.argv[3])
    """
    return ModelLoader(export_command=[sys.executable, "-c", textwrap.dedent(script)])


def exports(folder: Path) -> int:
    return len((folder / "exports").read_text())


def test_an_explainer_is_exported_once(saved: Path, cache: GraphCache, loader: ModelLoader, tmp_path: Path) -> None:
    first, second = (loader.load("people", saved) for _ in range(2))
    assert first.data == second.data
    assert exports(tmp_path) == 1
    assert stat.S_IMODE(cache.path.stat().st_mode) == 0o600


def test_a_cache_of_other_content_or_of_another_version_is_replaced(
    saved: Path, cache: GraphCache, loader: ModelLoader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader.load("people", saved)
    saved.write_bytes(saved.read_bytes() + b" ")  # another file under the same name
    loader.load("people", saved)
    assert exports(tmp_path) == 2
    monkeypatch.setattr(graph_cache, "__version__", "0.0.0")
    loader.load("people", saved)
    assert exports(tmp_path) == 3
    loader.load("people", saved)
    assert exports(tmp_path) == 3


def test_a_damaged_cache_is_rebuilt(saved: Path, cache: GraphCache, loader: ModelLoader, tmp_path: Path) -> None:
    data = loader.load("people", saved).data
    good = cache.path.read_bytes()
    flipped = bytearray(good)
    flipped[-100] ^= 1
    for count, bad in enumerate([b"", good[:50], good[:-1], bytes(flipped), b"{" * 5000], start=2):
        cache.path.write_bytes(bad)
        assert loader.load("people", saved).data == data
        assert exports(tmp_path) == count
        assert cache.path.read_bytes() == good


def test_a_cache_that_others_may_write_is_not_used(
    cache: GraphCache, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    cache.write(b"graph")
    assert cache.read() == b"graph"
    for mode in (0o620, 0o602):
        cache.path.chmod(mode)
        assert cache.read() is None
    assert "is not used: other users may write it" in caplog.text
    real = tmp_path / "elsewhere"
    cache.path.rename(real)
    real.chmod(0o600)
    cache.path.symlink_to(real)
    assert cache.read() is None
    cache.write(b"new")
    assert not cache.path.is_symlink()
    assert cache.read() == b"new"
    assert real.read_bytes().endswith(b"graph")
    cache.path.unlink()
    os.mkfifo(cache.path)
    assert cache.read() is None
    assert "is not used: it is not a regular file" in caplog.text


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_a_cache_of_another_user_is_not_used(cache: GraphCache, caplog: pytest.LogCaptureFixture) -> None:
    cache.write(b"graph")
    os.chown(cache.path, 12345, -1)
    assert cache.read() is None
    assert "belongs to another user" in caplog.text


def test_a_folder_that_cannot_be_written_is_no_error(
    saved: Path, cache: GraphCache, loader: ModelLoader, caplog: pytest.LogCaptureFixture
) -> None:
    cache.path.mkdir()  # Permissions do not stop root, and this does.
    caplog.set_level(logging.INFO)
    assert loader.load("people", saved).graph.columns
    assert "is not cached" in caplog.text


def test_the_head_names_file_version_and_graph(cache: GraphCache) -> None:
    cache.write(b"graph")
    head, _, graph = cache.path.read_bytes().partition(b"\n")
    assert graph == b"graph"
    assert json.loads(head).keys() == {"format", "version", "explainer", "graph"}
    assert json.loads(head)["graph"] == hashlib.sha256(b"graph").hexdigest()
