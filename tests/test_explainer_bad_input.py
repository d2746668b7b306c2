"""Tests of FastSHAP with wrong or unusual input: it works, or raises a clear error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from lightgbm import LGBMClassifier
from problems import QUICK, explainer, numbers
from sklearn.exceptions import NotFittedError
from torch import nn

from fastshapley import Training
from fastshapley.errors import InputError, ModelError, TrainingError
from fastshapley.value_functions import Surrogate


class TestBadInput:
    X = numbers()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"normalize": "sometimes"}, "normalize is 'sometimes'"),
            ({"link": "probit"}, "link is 'probit'"),
            ({"penalty": -1}, "penalty is -1"),
            ({"players": {"a": [0]}}, "players is"),
            ({"value_function": "copula"}, "value_function is 'copula'"),
            ({"value_function": Surrogate}, "value_function is <class"),
            ({"recipe": "secret"}, "recipe is 'secret'"),
            ({"random_state": "lucky"}, "random_state is 'lucky'"),
            ({"penalty": "high"}, "penalty is 'high'"),
            ({"model": None}, "model is None"),
            ({"network": nn.Linear(4, 3)}, r"expected \(2, 4\), a value for each of 4 players"),
            ({"network": nn.Linear(3, 4)}, r"module from \(b, 4\) to \(b, 4\)"),
        ],
    )
    def test_bad_parameters_raise(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            explainer(**{"model": lambda rows: rows[:, 0], **options}).fit(self.X)

    def test_bad_models_raise(self) -> None:
        with pytest.raises(NotFittedError, match="not fitted"):
            explainer(LGBMClassifier()).fit(self.X)
        with pytest.raises(ModelError, match="not finite"):
            explainer(lambda rows: np.full(len(rows), np.inf)).fit(self.X)
        with pytest.raises(ModelError, match="labels"):
            explainer(lambda rows: (rows[:, 0] > 0).astype(int)).fit(self.X)

    def test_bad_rows_raise(self) -> None:
        with pytest.raises(InputError, match="X has no rows"):
            explainer(lambda rows: rows[:, 0]).fit(self.X[:0])
        with pytest.raises(InputError, match="X_val has no rows"):
            explainer(lambda rows: rows[:, 0]).fit(self.X, X_val=self.X[:0])
        with pytest.raises(InputError, match="X_val has 3 features, but FastSHAP is expecting 4"):
            explainer(lambda rows: rows[:, 0]).fit(self.X, X_val=self.X[:, :3])

    def test_numbers_that_overflow_the_network_raise(self) -> None:
        fitted = explainer(lambda rows: np.tanh(rows[:, 0]), value_function="marginal").fit(self.X)
        rows = self.X[:3].copy()
        rows[1] = 1e300
        with pytest.raises(InputError, match="too large for the network"):
            fitted(rows)

    @pytest.mark.filterwarnings("ignore:overflow")
    def test_a_loss_that_is_not_finite_raises(self) -> None:
        recipe = replace(QUICK, surrogate=(Training(steps=50, learning_rate=1e30),))
        with pytest.raises(TrainingError, match=r"surrogate: the loss is .* Lower the learning rate"):
            explainer(lambda rows: rows[:, 0], recipe=recipe).fit(self.X)

    @pytest.mark.parametrize("rows", [1, 2, 7])
    def test_few_rows_work(self, rows: int) -> None:
        fitted = explainer(lambda rows: rows[:, 0]).fit(self.X[:rows])
        assert fitted.shap_values(self.X[:3]).shape == (3, 4)
        assert "training rows" in str(fitted.report_) if rows < 10 else "held-out rows" in str(fitted.report_)

    @pytest.mark.parametrize("normalize", ["always", "never"])
    def test_one_player_works(self, normalize: Any) -> None:
        fitted = explainer(lambda rows: rows[:, 0] ** 2, value_function="baseline", normalize=normalize)
        values = fitted.fit(self.X[:, :1]).shap_values(self.X[:5, :1])
        np.testing.assert_allclose(values, self.X[:5, :1] ** 2 - self.X[:, :1].mean() ** 2, atol=0.05)
        np.testing.assert_allclose(values, fitted.estimate(self.X[:5, :1]).values[..., 0])

    def test_a_constant_model_works(self) -> None:
        fitted = explainer(lambda rows: np.full(len(rows), 1 / 3)).fit(self.X)
        assert (fitted.shap_values(self.X[:5]) == 0).all()
        np.testing.assert_allclose(fitted(self.X[:5]).base_values, 1 / 3)
        assert fitted.report_ is not None
        assert fitted.report_.l2 == 0
        assert "nan" not in str(fitted.report_)
