"""Tests of values with errors, corrections and an anchor. tests/bulk/test_precise_explainer.py tests the values."""

from __future__ import annotations

from typing import Any

import pytest

from fastshapley.errors import InputError
from fastshapley.explain.precision import Precision


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"errors": "all"}, "errors is 'all': use True, False or 'game'"),
        ({"budget": 0}, "budget is 0: pass the evaluations per row, at least 1"),
        ({"tol": 0.0}, "tol is 0.0: pass a positive share"),
        ({"anchor": "surrogate"}, "anchor is 'surrogate': use 'game' or 'model'"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Precision(**options)


@pytest.mark.parametrize(
    ("options", "errors", "usual"),
    [
        ({}, False, True),
        ({"errors": True}, True, False),
        ({"errors": "game"}, True, False),
        ({"budget": 8}, True, False),
        ({"tol": 0.1}, True, False),
        ({"anchor": "model"}, False, False),
    ],
)
def test_errors_are_given_with_errors_a_budget_or_a_tolerance(
    options: dict[str, Any], errors: bool, usual: bool
) -> None:
    assert (Precision(**options).gives_errors, Precision(**options).is_usual) == (errors, usual)
