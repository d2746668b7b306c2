"""Models from files, which may be replaced."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastshapley.errors import FileFormatError, InputError
from fastshapley.serving import model_store as module
from fastshapley.serving.model_store import Models, read


def test_graphs_and_saved_explainers_are_the_same_model(exported: Any) -> None:
    graph, saved = read("a", exported.graph).graph, read("b", exported.saved).graph
    assert graph.about == saved.about
    row = graph.example()[0]
    np.testing.assert_array_equal(graph(row)["shap_values"], saved(row)["shap_values"])


def test_names(exported: Any, tmp_path: Path) -> None:
    assert sorted(Models.from_arguments([str(exported.graph), f"other={exported.graph}"])) == ["other", "people"]
    odd = tmp_path / "rate=0.1.onnx"
    shutil.copy(exported.graph, odd)
    assert list(Models.from_arguments([f"people={odd}"])) == ["people"]
    with pytest.raises(InputError, match="two models are called 'people'"):
        Models.from_arguments([str(exported.graph), str(exported.saved)])
    with pytest.raises(InputError, match="a model cannot be called 'a/b'"):
        Models({"a/b": exported.graph})


def test_files_that_are_none(exported: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        Models.from_arguments(["nothing.onnx"])
    short = tmp_path / "short.fastshap"
    short.write_bytes(exported.saved.read_bytes()[:1000])
    with pytest.raises(FileFormatError, match=r"cannot be served: .*short\.fastshap"):
        Models.from_arguments([str(short)])


def test_a_changed_file_is_read_again_and_a_bad_one_is_not(
    exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_LOOK", 0.01)
    file = tmp_path / "people.onnx"
    shutil.copy(exported.graph, file)
    models = Models({"people": file})
    told: list[tuple[str, bool]] = []
    models.reloaded = lambda name, well: told.append((name, well))

    async def until(count: int) -> None:
        for _ in range(1000):
            if len(told) >= count:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("nobody looked")

    async def main() -> None:
        watch = asyncio.create_task(models.watch())
        first = models["people"]
        file.write_bytes(file.read_bytes()[:1000])
        await until(1)
        assert models["people"] is first
        file.unlink()
        await asyncio.sleep(0.05)
        assert models["people"] is first
        shutil.copy(exported.graph, file)
        await until(2)
        assert models["people"] is not first
        await models.close()
        await watch

    asyncio.run(main())
    assert told == [("people", False), ("people", True)]
    assert "people has changed, and cannot be read: the old one goes on" in caplog.text
