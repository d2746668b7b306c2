"""Tests of FastSHAP as a scikit-learn transformer: scikit-learn's checks, feature names and pipelines."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from problems import explainer, numbers, people, people_model
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from fastshapley import FastSHAP, Groups
from fastshapley.errors import InputError


@dataclass(frozen=True)
class Sums:
    """A model of any table of numbers, with or without gaps. Its repr gives the same test ids in each run."""

    factors: tuple[float, ...]

    def __call__(self, rows: Any) -> Any:
        return np.nan_to_num(np.asarray(rows, dtype=float)).sum(axis=1)[:, None] * self.factors


total, two = Sums((1.0,)), Sums((1.0, -2.0))


EXPECTED_FAILURES = {
    "check_methods_subset_invariance": "networks compute in float32: a row alone and among others differ by 1e-7",
}


def expected_failures(estimator: FastSHAP) -> dict[str, str]:
    return EXPECTED_FAILURES


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [explainer(total), explainer(two)], expected_failed_checks=expected_failures
)
def test_scikit_learns_estimator_checks_pass(estimator: FastSHAP, check: Callable[[FastSHAP], None]) -> None:
    check(estimator)


@pytest.mark.parametrize(
    "check",
    [
        estimator_checks.check_transformer_get_feature_names_out,
        estimator_checks.check_transformer_get_feature_names_out_pandas,
        estimator_checks.check_set_output_transform,
        estimator_checks.check_set_output_transform_pandas,
        estimator_checks.check_global_output_transform_pandas,
    ],
    ids=lambda check: check.__name__,
)
def test_scikit_learns_transformer_checks_pass(check: Callable[[str, FastSHAP], None]) -> None:
    check("FastSHAP", explainer(total))


def test_no_rows_give_an_empty_array() -> None:
    assert explainer(two).fit(numbers()).transform(numbers()[:0]).shape == (0, 8)


def test_values_of_a_row_do_not_depend_on_the_other_rows() -> None:
    """The check that is expected to fail, with a tolerance for float32."""
    fitted = explainer(two).fit(numbers())
    alone = np.concatenate([fitted.transform(row[None]) for row in numbers(20)])
    np.testing.assert_allclose(alone, fitted.transform(numbers(20)), rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def table() -> tuple[pd.DataFrame, Any]:
    return people()


@pytest.fixture(scope="module")
def fitted(table: tuple[pd.DataFrame, Any]) -> FastSHAP:
    return explainer(people_model(*table)).fit(*table)


class TestTransform:
    def test_one_output_gives_the_values_themselves(self) -> None:
        X = numbers()
        fitted = explainer(total).fit(X)
        np.testing.assert_array_equal(fitted.transform(X), fitted.shap_values(X))
        assert list(fitted.get_feature_names_out()) == ["shap_x0", "shap_x1", "shap_x2", "shap_x3"]

    def test_several_outputs_give_a_column_per_player_and_output(self, fitted: FastSHAP, table: Any) -> None:
        X = table[0][:20]
        found = fitted.transform(X)
        names = list(fitted.get_feature_names_out())
        assert names[:3] == ["shap_age_0", "shap_age_1", "shap_income_0"]
        assert found.shape == (20, len(names)) == (20, 10)
        explanation = fitted(X)
        for player, output in (("age", "1"), ("city", "0")):
            expected = explanation[:, player, output].values
            np.testing.assert_array_equal(found[:, names.index(f"shap_{player}_{output}")], expected)

    def test_pandas_output_has_the_index_of_the_input(self, fitted: FastSHAP, table: Any) -> None:
        X = table[0][:20].set_index(pd.Index([f"row {i}" for i in range(20)]))
        frames = clone(fitted).set_output(transform="pandas")
        frame = clone(frames).fit(table[0]).transform(X)  # a clone keeps the output setting
        assert list(frame.columns) == list(fitted.get_feature_names_out())
        assert frame.index.equals(X.index)
        np.testing.assert_array_equal(frame.to_numpy(), fitted.transform(X))

    def test_each_group_is_one_column(self) -> None:
        X = numbers()
        fitted = explainer(total, players=Groups({"pair": [1, 2]})).fit(X)
        assert fitted.transform(X).shape == (200, 3)
        assert list(fitted.get_feature_names_out(list("abcd"))) == ["shap_x0", "shap_pair", "shap_x3"]

    def test_wrong_feature_names_raise(self, fitted: FastSHAP) -> None:
        with pytest.raises(InputError, match="input_features should have length equal to number of features"):
            fitted.get_feature_names_out(["age"])
        with pytest.raises(InputError, match="input_features is not equal to feature_names_in_"):
            fitted.get_feature_names_out(list("abcde"))

    def test_feature_names_are_those_of_the_last_fit(self) -> None:
        X = numbers()
        fitted = explainer(total).fit(pd.DataFrame(X, columns=list("abcd")))
        assert list(fitted.feature_names_in_) == list("abcd")
        fitted.fit(X[:, :3])
        assert not hasattr(fitted, "feature_names_in_")
        assert fitted.n_features_in_ == 3

    def test_transforming_images_raises(self, image_explainer: FastSHAP) -> None:
        import small_images

        with pytest.raises(InputError, match="fitted to images: use shap_values"):
            image_explainer.transform(small_images.X[:2])
        with pytest.raises(InputError, match="fitted to images"):
            image_explainer.get_feature_names_out()
        assert not hasattr(image_explainer, "n_features_in_")


class TestPipelines:
    def test_feature_names_pass_through_a_scaler(self) -> None:
        X = pd.DataFrame(numbers(), columns=list("abcd"))
        y = X["a"] - 2 * X["c"]
        scaler = StandardScaler().fit(X)
        model = LinearRegression().fit(scaler.transform(X), y)
        pipeline = make_pipeline(StandardScaler(), explainer(model, value_function="baseline"))
        found = pipeline.fit_transform(X, y)
        assert list(pipeline.get_feature_names_out()) == ["shap_a", "shap_b", "shap_c", "shap_d"]
        np.testing.assert_allclose(found.sum(1) + pipeline[1].expected_value, y, atol=1e-4)

    def test_values_can_be_features_of_another_model(self, table: Any) -> None:
        X, y = table
        pipeline = Pipeline([("explain", explainer(people_model(X, y))), ("again", LogisticRegression())])
        assert pipeline.fit(X, y).score(X, y) > 0.75
        assert pipeline.set_output(transform="pandas").fit(X, y)["again"].feature_names_in_[0] == "shap_age_0"

    def test_a_column_transformer_can_contain_an_explainer(self) -> None:
        X = pd.DataFrame(numbers(), columns=list("abcd"))
        columns = make_column_transformer((explainer(total), ["a", "b"]), ("passthrough", ["c"]))
        assert columns.fit_transform(X).shape == (200, 3)
        assert list(columns.get_feature_names_out()) == [
            "fastshap__shap_a",
            "fastshap__shap_b",
            "passthrough__c",
        ]

    def test_a_clone_keeps_only_the_fitted_model(self, fitted: FastSHAP, table: Any) -> None:
        model = fitted.model
        before = pickle.dumps(model)
        copied = clone(make_pipeline(fitted))[0]
        assert copied is not fitted
        assert copied.model is model
        assert not hasattr(copied, "network_")
        copied.fit(*table)
        assert pickle.dumps(model) == before

    def test_validation_rows_can_be_passed_through_a_pipeline(self) -> None:
        X = numbers()
        pipeline = make_pipeline(explainer(total)).fit(X, fastshap__X_val=X[:60])
        assert pipeline[0].report_.rows == 30


class TestLabels:
    """Labels are ignored as the second argument of fit. Rows, which it used to accept, raise an error."""

    X = numbers()

    @pytest.mark.parametrize(
        "y",
        [X[:, 0], X[:, 0].tolist(), X[:, :1], X[:, :2], pd.Series(X[:, 0]), torch.ones(200), [["a", "b"], []]],
        ids=["array", "list", "column", "two targets", "Series", "tensor", "several labels"],
    )
    def test_labels_are_ignored(self, y: Any) -> None:
        values = explainer(total).fit(self.X, y).transform(self.X)
        np.testing.assert_array_equal(values, explainer(total).fit(self.X).transform(self.X))

    @pytest.mark.parametrize(
        ("kind", "rows"), [(np.asarray, 10), (pd.DataFrame, 10), (pd.DataFrame, 200), (torch.as_tensor, 10)]
    )
    def test_rows_as_labels_raise(self, kind: Any, rows: int) -> None:
        with pytest.raises(InputError, match=r"y is a .* of rows like those of X.*X_val="):
            explainer(total).fit(kind(self.X), kind(self.X[:rows]))

    def test_labels_as_wide_as_the_table_are_ignored(self) -> None:
        frame = pd.DataFrame(self.X)
        for X, y in ((self.X, self.X > 0), (frame, frame.add_prefix("label_")), (self.X.tolist(), self.X[:, :1])):
            explainer(total).fit(X, y)

    def test_rows_of_one_column_as_labels_raise(self) -> None:
        with pytest.raises(InputError, match="X_val="):
            explainer(total).fit(self.X[:, :1], self.X[:10, :1])

    def test_images_as_labels_raise(self) -> None:
        import small_images

        with pytest.raises(InputError, match="X_val="):
            small_images.explainer().fit(small_images.X, small_images.X[:4])
        with pytest.raises(InputError, match="y is a TensorDataset of rows"):
            small_images.explainer().fit(small_images.X, torch.utils.data.TensorDataset(small_images.X))
