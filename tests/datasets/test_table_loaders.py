"""Tests of the table loaders. Those that need the paper's data are skipped if its files are missing."""

from __future__ import annotations

import gzip
import hashlib
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from paper_data import DATA, needs

from fastshapley.datasets import Split, load_bankruptcy, load_census, load_marketing, load_news
from fastshapley.datasets.table_loaders import SOURCES
from fastshapley.players import Groups

CENSUS = DATA / "census" / "adult.data"


needs_census = needs("census/adult.data")


@pytest.fixture(scope="module")
def census() -> Split:
    return load_census()


@needs_census
def test_census_has_the_features_and_split_of_the_paper(census: Split) -> None:
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
def test_census_gives_the_model_of_the_paper(census: Split) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    settings = {
        "objective": "binary",
        "metric": "binary_logloss",
        "learning_rate": 0.05,
        "num_leaves": 10,
        "max_bin": 512,
        "min_data": 100,
        "boost_from_average": True,
        "num_threads": 1,  # The trees are the same, and no thread waits for a busy core.
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
def test_census_with_names_has_the_same_rows_with_text_and_gaps(census: Split) -> None:
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


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", fail)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


@pytest.mark.usefixtures("offline")
def test_the_error_for_a_missing_census_file_names_the_download_and_where_to_put_it(
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
def test_census_is_found_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / ".cache" / "fastshapley" / "census"
    cache.mkdir(parents=True)
    (cache / "adult.data").symlink_to(CENSUS.resolve())
    monkeypatch.delenv("FASTSHAPLEY_DATA")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_census().X_test.shape == (6513, 12)


@needs("bankruptcy/data.csv")
def test_bankruptcy_has_the_features_and_split_of_the_paper() -> None:
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


@pytest.mark.usefixtures("offline")
def test_the_error_for_a_missing_bankruptcy_file_names_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTSHAPLEY_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(FileNotFoundError, match=re.escape("https://archive.ics.uci.edu/dataset/572")):
        load_bankruptcy()


@needs("marketing/bank-full.csv")
def test_marketing_has_the_features_and_split_of_the_paper() -> None:
    data = load_marketing()
    assert data.X_train.shape == (36620, 34)
    assert data.X_val.shape == (4069, 34)
    assert data.X_test.shape == (4522, 34)
    assert [len(y) for y in (data.y_train, data.y_val, data.y_test)] == [36620, 4069, 4522]
    assert sum(int(y.sum()) for y in (data.y_train, data.y_val, data.y_test)) == 5289
    rows = pd.concat([data.X_train, data.X_val, data.X_test])
    assert "y" not in rows.columns
    assert (rows.dtypes == np.float64).all()
    assert not rows.isna().to_numpy().any()
    assert isinstance(data.players, Groups)
    partition = data.players.bind(list(rows.columns))
    assert len(partition) == 16
    owner = np.array(partition.owner)
    one_hot = {"job": 12, "marital": 3, "contact": 3, "poutcome": 4}
    for number, name in enumerate(partition.names):
        columns = rows.iloc[:, owner == number]
        assert columns.shape[1] == one_hot.get(name, 1)
        if name in one_hot:
            assert set(np.unique(columns)) == {0, 1}
            assert (columns.sum(axis=1) == 1).all()
    for name in ("age", "balance", "day", "duration", "campaign", "pdays", "previous"):
        assert rows[name].mean() == pytest.approx(0, abs=1e-9)
        assert rows[name].std(ddof=0) == pytest.approx(1)
    for name, values in {"education": range(4), "month": range(12), "default": range(2), "loan": range(2)}.items():
        assert set(rows[name]) == set(values)


def assert_is_news(data: Split) -> None:
    assert data.X_train.shape == (31590, 58)
    assert data.X_val.shape == (3510, 58)
    assert data.X_test.shape == (3900, 58)
    assert [len(y) for y in (data.y_train, data.y_val, data.y_test)] == [31590, 3510, 3900]
    assert {"url", "timedelta", "shares"}.isdisjoint(data.X_train.columns)
    assert all(name == name.strip() for name in data.X_train.columns)
    assert (data.X_train.dtypes == np.float64).all()
    assert not data.X_train.isna().to_numpy().any()
    assert len(data.players.bind(list(data.X_train.columns))) == 58


@needs("news/OnlineNewsPopularity.csv")
def test_news_has_the_features_and_split_of_the_paper() -> None:
    data = load_news()
    assert_is_news(data)
    positive = sum(int(y.sum()) for y in (data.y_train, data.y_val, data.y_test))
    assert 0.45 < positive / 39000 < 0.55  # The median is 1400 shares.


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("published", [False, True], ids=["without url", "as published"])
def test_news_accepts_the_published_file(
    packed: bool, published: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The published file has URLs, and spaces in its header. It may be compressed by gzip."""
    lines = [f"http://example.org/{i}, {i}.0, {10 + i % 7}.0, {1300 + i}" for i in range(300)]
    text = "\n".join(["url, timedelta, n_tokens_title, shares", *lines]) + "\n"
    if not published:
        text = "\n".join(line.split(", ", 1)[1].replace(", ", ",") for line in text.splitlines()) + "\n"
    (tmp_path / "news").mkdir()
    file = tmp_path / "news" / "OnlineNewsPopularity.csv"
    if packed:
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(text.encode()))
    else:
        file.write_text(text)
    monkeypatch.setenv("FASTSHAPLEY_DATA", str(tmp_path))
    data = load_news()
    assert list(data.X_train.columns) == ["n_tokens_title"]
    assert [len(part) for part in (data.X_train, data.X_val, data.X_test)] == [243, 27, 30]
    # Above 1400, and not equal to it.
    assert sum(int(y.sum()) for y in (data.y_train, data.y_val, data.y_test)) == 199
    for X, y in ((data.X_train, data.y_train), (data.X_test, data.y_test)):
        assert (X["n_tokens_title"] == 10 + X.index % 7).all()
        assert ((X.index > 100) == y).all()


@pytest.mark.parametrize(
    ("load", "address"),
    [
        (load_marketing, "https://archive.ics.uci.edu/dataset/222"),
        (load_news, "https://archive.ics.uci.edu/dataset/332"),
    ],
)
@pytest.mark.usefixtures("offline")
def test_the_error_for_a_missing_file_names_the_download(
    load: Any, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTSHAPLEY_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(FileNotFoundError, match=re.escape(address)):
        load()


def test_an_unknown_kind_of_categories_raises() -> None:
    kind: Any = "dummies"
    with pytest.raises(ValueError, match="categories is 'dummies': use 'codes' or 'names'"):
        load_census(kind)


@needs_census
@pytest.mark.parametrize("table", ["census", "marketing"])
def test_published_files_have_the_checksums_that_downloads_must_match(table: str) -> None:
    source = SOURCES[table]
    path = DATA / source.name
    if not path.is_file():
        pytest.skip(f"set FASTSHAPLEY_DATA to a folder that holds {source.name}")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == source.sha256
