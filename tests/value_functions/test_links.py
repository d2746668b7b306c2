"""Tests of link functions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from game_problems import RUN, normal_frame, problem
from sklearn.linear_model import LinearRegression

from fastshapley.errors import InputError
from fastshapley.value_functions import (
    Marginal,
    Surrogate,
)
from fastshapley.value_functions.links import apply_link


def test_logit_of_probabilities() -> None:
    y = torch.tensor([0.0, 0.2, 1.0])
    linked = apply_link("logit", y)
    assert linked[1] == pytest.approx(np.log(0.25), abs=1e-6)
    assert linked.isfinite().all()
    assert torch.equal(apply_link("identity", y), y)
    assert apply_link("logit", y[:0]).shape == (0,)


@pytest.mark.parametrize("game", [Marginal(), Surrogate(training=())], ids=["marginal", "surrogate"])
def test_logit_refuses_outputs_that_are_not_probabilities_at_fit(game: Marginal | Surrogate) -> None:
    X = normal_frame()
    model = LinearRegression().fit(X, X.a + 0.5)  # the mean output is within [0, 1]
    with pytest.raises(InputError, match="not probabilities: use link='identity'"):
        game.fit(problem(model, X, link="logit"), RUN)


def test_an_unknown_link_is_refused() -> None:
    with pytest.raises(InputError, match="link is 'probit'"):
        apply_link("probit", torch.zeros(1))  # type: ignore[arg-type]
