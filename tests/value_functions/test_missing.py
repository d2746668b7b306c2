"""Tests of the missing game, which hides columns as missing values."""

from __future__ import annotations

import numpy as np
import torch
from game_problems import RUN, encoded, normal_frame, problem
from sklearn.ensemble import HistGradientBoostingClassifier

from fastshapley.value_functions import (
    Missing,
)


def test_hidden_columns_are_missing_values() -> None:
    X = normal_frame()
    X.iloc[::3, 0] = np.nan
    model = HistGradientBoostingClassifier(max_iter=5, min_samples_leaf=5).fit(X, X.b > 0)
    game = Missing().fit(problem(model, X), RUN)
    s = torch.tensor([[[True, True, False, False], [False, False, False, True]]])
    v = game(encoded(X[1:2]), s)
    for number in range(2):
        hidden = X[1:2].where(s[0, number].numpy()[None])
        np.testing.assert_allclose(v[0, number], model.predict_proba(hidden)[0])
