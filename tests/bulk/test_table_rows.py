"""Tests of reading rows of files as a table of the type that an explainer was fitted to."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal

from fastshapley.data.table_schema import TableSchema
from fastshapley.errors import InputError, PartError

pytest.importorskip("pyarrow", reason="needs the bulk extra")

from fastshapley.bulk import table_rows
from fastshapley.bulk.file_search import find_files
from fastshapley.bulk.table_rows import read_table

FRAME = pd.DataFrame(
    {
        "age": np.arange(300) % 70,
        "job": np.array(["cook", "smith", None], dtype=object)[np.arange(300) % 3],
        "rich": np.arange(300) % 2 == 0,
        "height": np.arange(300) / 7,
    }
)


def files_of(folder: Path, frame: pd.DataFrame, suffix: str) -> Any:
    """Write a frame to two files, and return these."""
    for number, part in enumerate((frame[:100], frame[100:])):
        path = folder / f"{number}.{suffix}"
        if suffix == "csv":
            part.to_csv(path, index=False)
        else:
            part.to_parquet(path, index=False)
    return find_files(folder)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_frame_is_read_with_the_types_it_had_at_fit(tmp_path: Path, suffix: str) -> None:
    schema = TableSchema.of(FRAME)
    files = files_of(tmp_path, FRAME[FRAME.columns[::-1]], suffix)
    found = read_table(schema, files, [schema.names] * 2)
    assert_frame_equal(found, FRAME, check_dtype=True)


@pytest.mark.parametrize("given", [FRAME[["age", "height"]].to_numpy(), torch.arange(600.0).reshape(300, 2)])
def test_an_array_and_a_tensor_are_read_as_such(tmp_path: Path, given: Any) -> None:
    files = files_of(tmp_path, pd.DataFrame(np.asarray(given), columns=["a", "b"]), "parquet")
    found = read_table(TableSchema.of(given), files, [["a", "b"]] * 2)
    assert type(found) is type(given)
    assert found.dtype == given.dtype
    np.testing.assert_array_equal(found, given)


def test_a_sample_is_the_same_in_each_run_and_of_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "_BATCH_ROWS", 16)
    rows = np.arange(300.0)[:, None]
    files = files_of(tmp_path, pd.DataFrame(rows, columns=["a"]), "csv")
    first, second = (read_table(TableSchema.of(rows), files, [["a"]] * 2, 60)[:, 0] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert len(set(first)) == 60
    assert (np.diff(first) > 0).all()
    assert 8 < (first < 100).sum() < 32  # 20 of 60 are expected in the first file
    assert len(read_table(TableSchema.of(rows), files, [["a"]] * 2, 1000)) == 300


def test_categories_that_are_new_are_missing_and_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = files_of(tmp_path, FRAME.assign(job="king"), "parquet")
    with caplog.at_level(logging.WARNING, logger="fastshapley"):
        found = read_table(TableSchema.of(FRAME), files, [list(map(str, FRAME))] * 2)
    assert found["job"].isna().all()
    assert caplog.messages == ["column 'job' has values not seen at fit: they are treated as missing"]


def test_files_without_rows_are_an_empty_table(tmp_path: Path) -> None:
    found = read_table(TableSchema.of(FRAME), files_of(tmp_path, FRAME[:0], "csv"), [list(map(str, FRAME))] * 2)
    assert list(found) == list(FRAME)
    assert len(found) == 0


def test_errors_name_the_file(tmp_path: Path) -> None:
    schema, files = TableSchema.of(FRAME), files_of(tmp_path, FRAME.assign(age="old"), "parquet")
    with pytest.raises(InputError, match=r"0\.parquet has values in column 'age' that are not numbers"):
        read_table(schema, files, [schema.names] * 2)
    files = files_of(tmp_path, FRAME, "csv")
    (tmp_path / "0.csv").write_text("age,job,rich,height\n1,2\n")
    with pytest.raises(PartError, match=r"0\.csv"):
        read_table(schema, find_files(str(tmp_path / "0.csv")), [schema.names])
