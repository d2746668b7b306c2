"""Helpers that the tests of bulk explanation share."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.dataset as ds
from numpy.typing import NDArray
from problems import QUICK, explainer, people

from fastshapley import FastSHAP, Targets, Training

# These tests do not depend on how well the explainer is trained.
SHORT = replace(
    QUICK,
    surrogate=(Training(steps=20, batch_size=64),),
    explainer=Training(steps=20, batch_size=32),
    targets=Targets(coalitions=8, evaluations=5_000, rows=64),
)
ROWS = 5


def score(frame: pd.DataFrame) -> NDArray[np.float64]:
    return (frame["job"] == "chef").to_numpy() + frame["age"].to_numpy() / 50


def chances(frame: pd.DataFrame) -> NDArray[np.float64]:
    """Return the probabilities of two classes."""
    chance = 1 / (1 + np.exp(-score(frame)))
    return np.stack([1 - chance, chance], axis=1)


def quick(model: Any, **options: Any) -> FastSHAP:
    """Return an explainer that trains for a few steps only."""
    return explainer(model, **{"recipe": SHORT, **options})


def keyed(rows: int, seed: int = 1, start: int = 0) -> pd.DataFrame:
    """Return rows of people, each with an id and a name."""
    frame = people(rows, seed)[0]
    frame.insert(0, "id", np.arange(start, start + rows))
    frame["name"] = [f"person, {number}" for number in frame["id"]]
    return frame


def features(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[["age", "income", "job", "city", "member"]]


def write_many(folder: Path, files: int) -> pd.DataFrame:
    """Write files 00.parquet, 01.parquet, ... of ``ROWS`` rows each and return all rows in one frame."""
    folder.mkdir()
    frames = [keyed(ROWS, seed=number, start=ROWS * number) for number in range(files)]
    for number, frame in enumerate(frames):
        frame.to_parquet(folder / f"{number:02}.parquet")
    return pd.concat(frames, ignore_index=True)


def read(folder: str | os.PathLike[str]) -> pd.DataFrame:
    """Return the rows of all files in a folder, in the order of the files."""
    frame: pd.DataFrame = ds.dataset(str(folder)).to_table().to_pandas()
    return frame


def parts_in(folder: Path) -> dict[str, int]:
    """Return the names of the parts in a folder, with their modification times."""
    return {path.name: path.stat().st_mtime_ns for path in sorted(folder.glob("part-*.parquet"))}


def only_whole_files(folder: Path) -> bool:
    """Return whether a folder holds only the manifest, parts and the mark of success."""
    allowed = re.compile(r"_fastshapley\.json|_SUCCESS|part-\d{5}-\d{5}-[0-9a-f]{8}\.parquet")
    return all(allowed.fullmatch(path.name) for path in folder.iterdir())


def assert_explains(fitted: FastSHAP, X: Any, table: pd.DataFrame, outputs: list[int] | None = None) -> None:
    """Check that a table has the values, base values and predictions of the rows X, in order."""
    names, all_outputs = fitted.player_names_, fitted.output_names_
    outputs = list(range(len(all_outputs))) if outputs is None else outputs
    suffixes = [""] if len(outputs) == 1 else [f"_{all_outputs[k]}" for k in outputs]
    expected = fitted.explain_encoded(fitted.schema_.encode(X))
    explanation = fitted(X)  # the same values from the other interface
    values = np.asarray(explanation.values).reshape(len(X), len(names), len(all_outputs))
    base = np.asarray(explanation.base_values).reshape(len(X), len(all_outputs))
    for k, suffix in zip(outputs, suffixes, strict=True):
        wanted = {f"shap_{name}{suffix}": values[:, j, k] for j, name in enumerate(names)}
        wanted |= {f"base_value{suffix}": base[:, k], f"prediction{suffix}": expected[2][:, k].numpy()}
        for name, numbers in wanted.items():
            assert table[name].dtype == np.float32
            np.testing.assert_allclose(table[name], numbers, rtol=1e-5, atol=1e-6, err_msg=name)
