"""The models of a server, whose files may be replaced."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from fastshapley.errors import InputError
from fastshapley.serving.model_store import ModelStore


def test_models_have_the_name_of_their_file_or_a_given_name(exported: Any, tmp_path: Path) -> None:
    arguments = [str(exported.graph), f"other={exported.graph}"]
    assert sorted(ModelStore.from_arguments(arguments)) == ["other", "people"]
    with_equals_sign = tmp_path / "rate=0.1.onnx"
    shutil.copy(exported.graph, with_equals_sign)
    assert list(ModelStore.from_arguments([f"people={with_equals_sign}"])) == ["people"]


def test_names_that_are_taken_or_invalid_are_refused(exported: Any) -> None:
    with pytest.raises(InputError, match="two models have the name 'people': pass NAME=FILE"):
        ModelStore.from_arguments([str(exported.graph), str(exported.saved)])
    with pytest.raises(InputError, match="'a/b' is not a name for a model"):
        ModelStore({"a/b": exported.graph})


def test_a_missing_file_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        ModelStore.from_arguments(["nothing.onnx"])


def test_a_changed_file_is_reloaded_and_a_damaged_one_is_not(
    exported: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "people.onnx"
    shutil.copy(exported.graph, file)
    models = ModelStore({"people": file}, poll_seconds=0.01)
    reloads: list[tuple[str, str]] = []

    async def wait_for_reloads(count: int) -> None:
        for _ in range(1000):
            if len(reloads) >= count:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"only {len(reloads)} reloads")

    async def main() -> None:
        watching = asyncio.create_task(models.watch(lambda name, result: reloads.append((name, result))))
        first = models["people"]
        file.write_bytes(file.read_bytes()[:1000])
        await wait_for_reloads(1)
        assert models["people"] is first
        file.unlink()
        await asyncio.sleep(0.05)
        assert models["people"] is first
        shutil.copy(exported.graph, file)
        await wait_for_reloads(2)
        assert models["people"] is not first
        await models.close()
        await watching

    asyncio.run(main())
    assert reloads == [("people", "failed"), ("people", "read")]
    assert "the file of people has changed but cannot be read, the old model stays" in caplog.text
