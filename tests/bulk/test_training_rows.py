"""Tests of reading training rows from files: all files get common column types that can be saved."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fastshapley.errors import InputError

pa = pytest.importorskip("pyarrow", reason="needs the bulk extra")

import pyarrow.parquet as pq  # noqa: E402

from fastshapley.bulk.file_search import find_files  # noqa: E402
from fastshapley.bulk.training_rows import read_share  # noqa: E402


def shared(folder: Path, *columns: Any) -> pd.DataFrame:
    """Write a column ``c`` to Parquet files and return what is read from them."""
    for number, values in enumerate(columns):
        pq.write_table(pa.table({"c": values}), folder / f"{number}.parquet")
    return read_share(find_files(folder), ["c"])


def test_types_of_csv_columns_are_inferred_from_all_files(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("a,b,c,d\n,1,,x\n")
    (tmp_path / "2.csv").write_text("a,b,c,d\n2.5,1.5,,\n")
    frame = read_share(find_files(tmp_path), ["a", "b", "c", "d"])
    assert [str(kind) for kind in frame.dtypes[:3]] == ["float64"] * 3
    assert frame["a"].tolist()[1] == 2.5
    assert frame["d"].tolist()[0] == "x"


def test_incompatible_types_in_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"column 'c' has several types: int64 in .*0\.parquet, string in .*1\."):
        shared(tmp_path, pa.array([1, 2]), pa.array(["a"]))


def test_categories_in_one_file_and_text_in_another_are_joined(tmp_path: Path) -> None:
    assert shared(tmp_path, pa.array(["a"]).dictionary_encode(), pa.array(["b"]))["c"].tolist() == ["a", "b"]


def test_categories_in_all_files_stay_categories(tmp_path: Path) -> None:
    found = shared(tmp_path, pa.array(["a"]).dictionary_encode(), pa.array(["b"]).dictionary_encode())["c"]
    assert isinstance(found.dtype, pd.CategoricalDtype)
    assert found.tolist() == ["a", "b"]


def test_decimals_are_numbers(tmp_path: Path) -> None:
    found = shared(tmp_path, pa.array([Decimal("1.25"), None]), pa.array([Decimal("12345.5")]), pa.array([2]))
    assert found["c"].dtype == "float64"
    assert found["c"].dropna().tolist() == [1.25, 12345.5, 2.0]


@pytest.mark.parametrize("value", [date(2020, 1, 1), pd.Timestamp("2020"), timedelta(1)])
def test_times_are_refused_with_the_column_name(tmp_path: Path, value: Any) -> None:
    with pytest.raises(InputError, match=r"column 'c' of .*0\.parquet holds times .*--drop"):
        shared(tmp_path, pa.array([value]))
