"""Tests of the store that keeps results by their settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastshapley.errors import FileFormatError
from fastshapley.paper.store import Store
from fastshapley.training.checkpoint import Checkpoint

SETTINGS: dict[str, Any] = {"table": "census", "recipe": {"steps": 10, "rate": 0.1}, "rows": None}


class Counted:
    """A computation that counts how often it runs."""

    def __init__(self, **arrays: Any) -> None:
        self.arrays, self.made = arrays, 0

    def __call__(self, checkpoint: Checkpoint) -> dict[str, Any]:
        self.made += 1
        return self.arrays


def test_a_stored_result_is_read_and_not_computed_again(tmp_path: Path) -> None:
    compute = Counted(values=np.arange(6.0).reshape(2, 3), seconds=1.5, name="text")
    store = Store(tmp_path)
    assert not store.has("explainers", SETTINGS)
    first = store.remember("explainers", SETTINGS, compute)
    assert store.has("explainers", SETTINGS)
    again = Store(tmp_path).remember("explainers", dict(reversed(SETTINGS.items())), compute)
    assert compute.made == 1
    for found in (first, again):
        np.testing.assert_array_equal(found["values"], np.arange(6.0).reshape(2, 3))
        assert float(found["seconds"]) == 1.5
        assert str(found["name"]) == "text"


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("curves", SETTINGS),
        ("explainers", {**SETTINGS, "rows": 3}),
        ("explainers", {**SETTINGS, "recipe": {"steps": 10, "rate": 0.10000001}}),
        ("explainers", {**SETTINGS, "seed": 0}),
    ],
)
def test_other_settings_have_another_result(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    store, other = Store(tmp_path), Counted(values=2.0)
    store.remember("explainers", SETTINGS, Counted(values=1.0))
    assert not store.has(kind, settings)
    assert float(store.remember(kind, settings, other)["values"]) == 2
    assert float(store.remember("explainers", SETTINGS, other)["values"]) == 1


def test_an_interrupted_computation_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def break_off(checkpoint: Checkpoint) -> dict[str, Any]:
        checkpoint.save("half", {"done": 5})
        raise KeyboardInterrupt

    def go_on(checkpoint: Checkpoint) -> dict[str, Any]:
        half = checkpoint.load("half")
        assert half is not None
        return {"done": half["done"] + 5}

    with pytest.raises(KeyboardInterrupt):
        store.remember("explainers", SETTINGS, break_off)
    assert not store.has("explainers", SETTINGS)
    assert int(store.remember("explainers", SETTINGS, go_on)["done"]) == 10
    assert sorted(path.suffix for path in (tmp_path / "explainers").iterdir()) == [".json", ".npz"]


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.remember("explainers", SETTINGS, Counted(values=np.arange(1000.0)))
    (path,) = (tmp_path / "explainers").glob("*.npz")
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(FileFormatError, match=f"{path.name}.*delete it"):
        store.remember("explainers", SETTINGS, Counted())


def test_loading_a_file_never_executes_it(tmp_path: Path) -> None:
    """An array of objects is a pickle."""
    store = Store(tmp_path)
    store.remember("explainers", SETTINGS, Counted(values=1.0))
    (path,) = (tmp_path / "explainers").glob("*.npz")
    np.savez(path, values=np.array([print], dtype=object))
    with pytest.raises(FileFormatError, match="pickle"):
        store.remember("explainers", SETTINGS, Counted())


def test_objects_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not arrays"):
        Store(tmp_path).remember("explainers", SETTINGS, Counted(values=[print]))
    assert not Store(tmp_path).has("explainers", SETTINGS)
