"""The paper's data; without its files these tests are skipped."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fastshapley.datasets import Split, load_bankruptcy, load_census

DATA = Path(os.environ.get("FASTSHAPLEY_DATA", ""))
CENSUS = DATA / "census" / "adult.data"


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        "FASTSHAPLEY_DATA" not in os.environ or not (DATA / name).is_file(),
        reason=f"set FASTSHAPLEY_DATA to a folder that holds {name}",
    )


needs_census = needs("census/adult.data")


@pytest.fixture(scope="module")
def census() -> Split:
    return load_census()


@needs_census
def test_census_has_the_papers_features_and_split(census: Split) -> None:
    assert census.X_train.shape == (20838, 12)
    assert census.X_val.shape == (5210, 12)
    assert census.X_test.shape == (6513, 12)
    assert [len(y) for y in (census.y_train, census.y_val, census.y_test)] == [20838, 5210, 6513]
    assert sum(int(y.sum()) for y in (census.y_train, census.y_val, census.y_test)) == 7841
    assert {"fnlwgt", "Education", "income"}.isdisjoint(census.X_train.columns)
    assert (census.X_train.dtypes == np.float64).all()
    assert not census.X_train.isna().to_numpy().any()
    assert len(census.players.bind(list(census.X_train.columns))) == 12


@needs_census
def test_census_gives_the_papers_model(census: Split) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    settings = {
        "objective": "binary",
        "metric": "binary_logloss",
        "learning_rate": 0.05,
        "num_leaves": 10,
        "max_bin": 512,
        "min_data": 100,
        "boost_from_average": True,
        "num_threads": 1,  # the same trees, and no threads that wait for busy cores
        "verbose": -1,
    }
    model = lightgbm.train(
        settings,
        lightgbm.Dataset(census.X_train, census.y_train),
        num_boost_round=10_000,
        valid_sets=[lightgbm.Dataset(census.X_val, census.y_val)],
        callbacks=[lightgbm.early_stopping(50, verbose=False)],
    )
    assert model.best_iteration == 656
    assert model.best_score["valid_0"]["binary_logloss"] == pytest.approx(0.281561, abs=1e-6)


@needs_census
def test_census_by_name_is_the_same_people_with_text_and_gaps(census: Split) -> None:
    named = load_census(categories="names")
    assert named.X_test.index.equals(census.X_test.index)
    assert np.array_equal(named.y_test, census.y_test)
    assert named.X_test["Age"].equals(census.X_test["Age"].astype(np.int64))
    rows = pd.concat([named.X_train, named.X_val, named.X_test])
    text = [name for name in rows if not pd.api.types.is_numeric_dtype(rows[name])]
    assert text == [
        "Workclass",
        "Marital Status",
        "Occupation",
        "Relationship",
        "Race",
        "Sex",
        "Country",
    ]
    gaps = rows.isna().sum()
    assert gaps[gaps > 0].to_dict() == {"Workclass": 1836, "Occupation": 1843, "Country": 583}
    assert not (rows[text] == "?").to_numpy().any()


def test_census_without_its_file_says_what_to_download_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTSHAPLEY_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(FileNotFoundError) as caught:
        load_census()
    message = str(caught.value)
    assert "https://archive.ics.uci.edu/dataset/2/adult" in message
    assert str(tmp_path / "data" / "census" / "adult.data") in message
    assert str(tmp_path / "home") in message


@needs_census
def test_census_is_found_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / ".cache" / "fastshapley" / "census"
    cache.mkdir(parents=True)
    (cache / "adult.data").symlink_to(CENSUS.resolve())
    monkeypatch.delenv("FASTSHAPLEY_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_census().X_test.shape == (6513, 12)


@needs("bankruptcy/data.csv")
def test_bankruptcy_has_the_papers_features_and_split() -> None:
    data = load_bankruptcy()
    assert data.X_train.shape == (4362, 94)
    assert data.X_val.shape == (1091, 94)
    assert data.X_test.shape == (1364, 94)
    assert [len(y) for y in (data.y_train, data.y_val, data.y_test)] == [4362, 1091, 1364]
    assert sum(int(y.sum()) for y in (data.y_train, data.y_val, data.y_test)) == 219
    assert {"Net Income Flag", "Bankrupt?"}.isdisjoint(data.X_train.columns)
    assert all(name == name.strip() for name in data.X_train.columns)
    rows = pd.concat([data.X_train, data.X_val, data.X_test])
    assert (rows.dtypes == np.float64).all()
    assert not rows.isna().to_numpy().any()
    assert rows["Revenue per person"].max() <= 1
    assert len(data.players.bind(list(rows.columns))) == 94


def test_bankruptcy_without_its_file_says_what_to_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTSHAPLEY_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(FileNotFoundError, match=re.escape("https://archive.ics.uci.edu/dataset/572")):
        load_bankruptcy()


def test_unknown_kind_of_categories() -> None:
    kind: Any = "dummies"
    with pytest.raises(ValueError, match="categories is 'dummies': use 'codes' or 'names'"):
        load_census(kind)
