"""Tests of one-hot detection: one-hot columns are found, and columns that only look one-hot are not."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from problems import QUICK, explainer
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.exceptions import NotFittedError
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fastshapley import Features, Groups
from fastshapley.datasets import load_marketing
from fastshapley.errors import InputError

ROWS = 400


def table(seed: int = 0, rows: int = ROWS) -> pd.DataFrame:
    """Two category columns (one has separators in its category names), two number columns and two flags."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.normal(size=rows),
            "job": rng.choice(["clerk", "self_employed", "self_other", "chef de-partie"], rows),
            "home_town": rng.choice(["Bern", "Basel", "Zug"], rows),
            "has_car": rng.random(rows) < 0.5,
            "has_house": rng.random(rows) < 0.1,
            "home_size": rng.integers(0, 9, rows),
        }
    )


JOBS = ["job_chef de-partie", "job_clerk", "job_self_employed", "job_self_other"]
TOWNS = ["home_town_Basel", "home_town_Bern", "home_town_Zug"]


@pytest.mark.parametrize("dtype", [bool, int, float, "boolean"])
def test_columns_of_get_dummies_are_found(dtype: Any) -> None:
    X = pd.get_dummies(table(), columns=["job", "home_town"], dtype=float).astype(
        dict.fromkeys([*JOBS, *TOWNS], dtype)
    )
    groups = Groups.from_one_hot(X)
    assert groups.groups == {"job": JOBS, "home_town": TOWNS}
    assert groups.bind(list(X.columns)).names == ("age", "has_car", "has_house", "home_size", "job", "home_town")


@pytest.mark.parametrize("separator", ["_", "=", "__", ": ", ".", "|"])
def test_any_separator_is_recognised(separator: str) -> None:
    X = pd.get_dummies(table(), columns=["job", "home_town"], prefix_sep=separator)
    assert set(Groups.from_one_hot(X).groups) == {"job", "home_town"}


def test_columns_with_a_dropped_category_are_found() -> None:
    X = pd.get_dummies(table(), columns=["job", "home_town"], drop_first=True)
    assert Groups.from_one_hot(X).groups == {"job": JOBS[1:], "home_town": TOWNS[1:]}
    assert Groups.from_one_hot(pl.from_pandas(X)) == Groups.from_one_hot(X)


def test_columns_of_a_feature_with_gaps_are_found() -> None:
    X = table()
    X.loc[::7, "job"] = None
    assert Groups.from_one_hot(pd.get_dummies(X, columns=["job", "home_town"])).groups["job"] == JOBS
    with_gaps = pd.get_dummies(X, columns=["job"], dummy_na=True)
    assert Groups.from_one_hot(with_gaps).groups["job"] == [*JOBS, "job_nan"]


def test_columns_named_by_a_column_transformer_are_found() -> None:
    transformer = ColumnTransformer(
        [("onehot", OneHotEncoder(sparse_output=False), ["job", "home_town"])], remainder="passthrough"
    ).set_output(transform="pandas")
    X = transformer.fit_transform(table())
    found = Groups.from_one_hot(X)
    assert list(found.groups) == ["onehot__job", "onehot__home_town"]
    assert found.bind(list(X.columns)).owner == Groups.from_transformer(transformer).bind(list(X.columns)).owner


@pytest.mark.parametrize("seed", range(20))
def test_independent_flags_are_not_grouped(seed: int) -> None:
    """Common and rare flags, in few and in many rows, with a common prefix."""
    rng = np.random.default_rng(seed)
    for rows in (5, 30, 300, 3000):
        for share in (0.5, 0.1, 0.01, 0.001):
            X = pd.DataFrame(rng.random((rows, 6)) < share, columns=[f"sign_{c}" for c in "abcdef"])
            assert Groups.from_one_hot(X).groups == {}


@pytest.mark.parametrize("seed", range(20))
def test_rare_flags_in_repeated_rows_are_not_grouped(seed: int) -> None:
    """50 patients with 100 rows each, and 60 rows that are drawn with replacement."""
    rng = np.random.default_rng(seed)
    panel = np.repeat(rng.random((50, 2)) < 0.08, 100, axis=0)
    drawn = (rng.random((60, 2)) < 0.08)[rng.integers(0, 60, 5000)]
    for held in (panel, drawn):
        assert Groups.from_one_hot(pd.DataFrame(held, columns=["sign_a", "sign_b"])).groups == {}


@pytest.mark.parametrize("categories", range(3, 9))
def test_a_dropped_category_is_recognised_for_any_number_of_categories(categories: int) -> None:
    kind = np.random.default_rng(0).integers(0, categories, ROWS)
    X = pd.get_dummies(pd.DataFrame({"kind": kind.astype(str)}), drop_first=True)
    assert {name: len(columns) for name, columns in Groups.from_one_hot(X).groups.items()} == {
        "kind": categories - 1
    }


def test_flags_named_is_are_grouped_only_if_exactly_one_always_holds() -> None:
    stage = np.random.default_rng(0).choice(["child", "adult", "retired"], ROWS)
    X = pd.DataFrame({"is_child": stage == "child", "is_retired": stage == "retired", "x": 1.5})
    assert Groups.from_one_hot(X).groups == {}
    assert set(Groups.from_one_hot(X.assign(is_adult=stage == "adult")).groups) == {"is"}
    assert Groups.from_one_hot(X.add_prefix("remainder__")).groups == {}
    assert set(Groups.from_one_hot(X.add_prefix("stage_")).groups) == {"stage_is"}
    assert set(Groups.from_one_hot(X.rename(columns=lambda name: name.replace("is", "stage"))).groups) == {"stage"}


@pytest.mark.parametrize(
    "X",
    [
        pd.DataFrame({"a_1": [0, 1] * 50, "b_1": [1, 0] * 50}),
        pd.DataFrame({"a1": [0, 1] * 50, "a2": [1, 0] * 50}),
        pd.DataFrame({"a_1": [0, 1] * 2, "a_2": [1, 0] * 2}),
        pd.DataFrame({"a_1": [0, 2] * 50, "a_2": [1, 0] * 50}),
        pd.DataFrame({"a_1": [0.0, 1.0] * 50, "a_2": [np.nan, 0.0] * 50}),
        pd.DataFrame({"a_1": ["0", "1"] * 50, "a_2": ["1", "0"] * 50}),
        pd.DataFrame({"a_1": [1] * 100, "a_2": [0] * 100}),
        pd.DataFrame({"a_1": [0] * 100, "a_2": [0] * 100}),
        pd.DataFrame({"_1": [0, 1] * 50, "_2": [1, 0] * 50}),
        pd.DataFrame({"a_1": [0, 1] * 50}),
        pd.DataFrame({"a_1": [], "a_2": []}),
        pd.DataFrame({"a": ["x"]}),
    ],
    ids=[
        "two prefixes",
        "no separator",
        "few rows",
        "value 2",
        "gaps",
        "digits as text",
        "constant",
        "all zeros",
        "empty prefix",
        "one column",
        "no rows",
        "words",
    ],
)
def test_columns_that_are_not_one_hot_are_not_grouped(X: pd.DataFrame) -> None:
    assert Groups.from_one_hot(X).groups == {}


@pytest.mark.parametrize("job", [1.5, "text"])
def test_a_group_does_not_take_the_name_of_a_column(job: Any) -> None:
    X = pd.get_dummies(table(), columns=["job"]).assign(job=job)
    groups = Groups.from_one_hot(X)
    assert list(groups.groups) == ["job (one-hot)"]
    assert "job" in groups.bind(list(X.columns)).names


def test_duplicate_column_names_are_refused() -> None:
    X = pd.DataFrame(np.eye(3), columns=["job_a", "job_b", "job_a"])
    with pytest.raises(InputError, match=r"X has several columns with the same name: \['job_a'\]"):
        Groups.from_one_hot(X)


def test_an_array_without_column_names_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"X is a ndarray, whose columns have no names: .* Groups.from_transformer"
    ):
        Groups.from_one_hot(np.eye(3))


@pytest.mark.skipif(
    not any(Path(os.environ.get("FASTSHAPLEY_DATA", "missing"), "marketing").glob("*.csv*")),
    reason="set FASTSHAPLEY_DATA to a folder that holds marketing",
)
def test_the_players_of_the_marketing_table_are_found() -> None:
    split = load_marketing()
    names = list(split.X_train.columns)
    assert split.players is not None
    assert Groups.from_one_hot(split.X_train).bind(names) == split.players.bind(names)


ENCODERS = {
    "plain": {},
    "first": {"drop": "first"},
    "binary": {"drop": "if_binary"},
    "unknown": {"handle_unknown": "ignore"},
    "infrequent": {"min_frequency": 0.25},
    "infrequent, first": {"min_frequency": 0.25, "drop": "first"},
    "few": {"max_categories": 2},
    "one category": {"drop": "first", "max_categories": 1},
}


@pytest.mark.parametrize("options", ENCODERS.values(), ids=list(ENCODERS))
@pytest.mark.parametrize("form", ["frame", "array"])
def test_groups_of_a_fitted_encoder_are_its_output_columns(options: dict[str, Any], form: str) -> None:
    """The groups agree with scikit-learn's column names, and the columns of a player sum to at most one."""
    X = table()[["home_town", "job", "has_car"]].astype(str)
    X["job"] = X["job"].replace("self_other", "clerk")  # the most frequent category
    given = X if form == "frame" else X.to_numpy(dtype=object)
    encoder = OneHotEncoder(sparse_output=False, **options).fit(given)
    groups = Groups.from_transformer(encoder).groups
    made = list(encoder.get_feature_names_out())
    names = X.columns if form == "frame" else ["x0", "x1", "x2"]
    by_name = {name: [j for j, column in enumerate(made) if column.startswith(f"{name}_")] for name in names}
    assert [columns for columns in by_name.values() if columns] == list(groups.values())
    assert set(groups) <= (set(X.columns) if form == "frame" else {"column 0", "column 1", "column 2"})
    Groups(groups).bind([f"x{j}" for j in range(len(made))])
    encoded = np.asarray(encoder.transform(given))
    for columns in groups.values():
        assert encoded[:, list(map(int, columns))].sum(1).max() == 1


def numeric_first(columns: Any, *steps: Any) -> ColumnTransformer:
    return ColumnTransformer(
        [
            ("scaled", StandardScaler(), ["age", "home_size"]),
            ("onehot", make_pipeline(*steps, OneHotEncoder(drop="first", sparse_output=False)), columns),
            ("gone", "drop", ["has_house"]),
        ],
        remainder="passthrough",
    )


@pytest.mark.parametrize(
    "columns",
    [
        ["job", "home_town"],
        [1, 2],
        slice(1, 3),
        slice("job", "home_town"),
        [False, True, True, False, False, False],
        np.array([1, 2]),
        make_column_selector("job|home_town"),
    ],
    ids=["names", "positions", "slice", "slice of names", "mask", "numpy", "selector"],
)
@pytest.mark.parametrize(
    "steps", [(), (SimpleImputer(strategy="most_frequent"),)], ids=["encoder only", "with imputer"]
)
def test_groups_of_a_fitted_column_transformer_are_its_one_hot_columns(columns: Any, steps: Any) -> None:
    X = table()
    transformer = numeric_first(columns, *steps).fit(X)
    groups = Groups.from_transformer(make_pipeline(transformer)).groups
    assert groups == {"job": [2, 3, 4], "home_town": [5, 6]}
    assert len(Groups(groups).bind([f"x{j}" for j in range(8)])) == 5


def test_a_selector_without_matches_gives_no_groups() -> None:
    transformer = numeric_first(make_column_selector("nothing")).fit(table()[["age", "home_size", "has_house"]])
    assert Groups.from_transformer(transformer).groups == {}


def test_a_column_that_is_encoded_several_times_gives_several_players() -> None:
    twice = ColumnTransformer([(name, OneHotEncoder(), ["job"]) for name in ("a", "b", "c")]).fit(table())
    assert list(Groups.from_transformer(twice).groups) == ["job", "job (2)", "job (3)"]


def test_transformers_without_encoders_give_no_groups_or_an_error() -> None:
    with pytest.raises(InputError, match="transformer is a StandardScaler: pass a fitted ColumnTransformer"):
        Groups.from_transformer(StandardScaler().fit(table()[["age"]]))
    with pytest.raises(NotFittedError):
        Groups.from_transformer(OneHotEncoder())
    nothing = ColumnTransformer([("scaled", StandardScaler(), ["age"])]).fit(table())
    assert Groups.from_transformer(nothing).groups == {}


# what fit logs about one-hot columns


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "one-hot" in record.getMessage()]


def score(X: pd.DataFrame) -> Any:
    return X["age"].to_numpy() + X["job_clerk"].to_numpy()


def test_fit_logs_one_hot_columns_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    X = pd.get_dummies(table(), columns=["job", "home_town"])
    with caplog.at_level(logging.INFO):
        fitted = explainer(score).fit(X)
    (line,) = said(caplog)
    assert "'job' (4 columns), 'home_town' (3 columns)" in line
    assert "players=Groups.from_one_hot(X)" in line
    assert len(fitted.player_names_) == 11


def test_fit_logs_the_names_that_the_groups_will_have(caplog: pytest.LogCaptureFixture) -> None:
    X = pd.get_dummies(table(), columns=["job"]).assign(job=table()["job"])[["age", "job", *JOBS]]
    explainer(score, recipe=QUICK).fit(X)
    assert "'job (one-hot)' (4 columns)" in said(caplog)[0]


@pytest.mark.parametrize(
    ("players", "count"), [(Features(), 11), (Groups({"flags": ["has_car", "has_house"]}), 10), ("found", 6)]
)
def test_fit_logs_nothing_if_players_are_given(players: Any, count: int, caplog: pytest.LogCaptureFixture) -> None:
    X = pd.get_dummies(table(), columns=["job", "home_town"])
    fitted = explainer(score, players=Groups.from_one_hot(X) if players == "found" else players).fit(X)
    assert said(caplog) == []
    assert len(fitted.player_names_) == count
    if players == "found":
        fitted.update(X)
        assert said(caplog) == []


@pytest.mark.parametrize("form", ["no one-hot columns", "two categories of text", "an array"])
def test_fit_logs_nothing_without_one_hot_columns(form: str, caplog: pytest.LogCaptureFixture) -> None:
    """Text columns with two categories are encoded as 0 and 1 but are not one-hot."""
    X: Any = table()[["age", "has_car", "has_house"]]
    if form == "two categories of text":
        high = table()["age"] > 0
        X = X.assign(mood_up=np.where(high, "b", "a"), mood_down=np.where(high, "a", "b"))
    elif form == "an array":
        X = pd.get_dummies(table()["job"]).to_numpy(dtype=float)
    explainer(lambda rows: np.asarray(rows)[:, 0].astype(float), recipe=QUICK).fit(X)
    assert said(caplog) == []


def test_a_one_hot_player_gets_the_value_of_all_its_columns() -> None:
    """The model uses a single category; the value of the player is the joint value of its columns."""
    X = pd.get_dummies(table(), columns=["job"]).drop(columns="home_town").astype(float)
    fitted = explainer(score, players=Groups.from_one_hot(X), value_function="baseline").fit(X)
    exact = fitted.estimate(X[:50]).values[..., 0]
    job = list(fitted.player_names_).index("job")
    mean = X["job_clerk"].mean()
    np.testing.assert_allclose(exact[:, job], X["job_clerk"][:50] - mean, atol=0.05)
    assert fitted.shap_values(X[:50]).shape == (50, 5)
