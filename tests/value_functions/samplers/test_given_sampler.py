"""Tests of samplers that are functions of the user's own."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd
import pytest
import torch
from sampler_problems import all_donors, donors_of, fitted
from torch import Tensor, nan

from fastshapley.errors import InputError
from fastshapley.value_functions.samplers import GivenSampler

DONORS = donors_of(pd.DataFrame({"a": [0.0, 1.0, 2.0, 3.0], "b": list("xyzx"), "c": [5.0, 6.0, 7.0, 8.0]}))
S = torch.tensor([[True, False, False], [False, True, True]])


def call(sample: Any, x: Tensor = DONORS.rows[:2]) -> Tensor:
    drawn: Tensor = fitted(GivenSampler(sample), DONORS)(x, S, all_donors(DONORS, 2))
    return drawn


def test_known_entries_that_a_function_changes_are_restored() -> None:
    def everything(x: Tensor, s: Tensor, generator: torch.Generator) -> Tensor:
        s[:] = False  # Its own copies may be changed, too.
        return x.fill_(1.0)

    drawn = call(everything)
    assert drawn.shape == (2, 4, 3)
    assert drawn[0].tolist() == [[0.0, 1.0, 1.0]] * 4
    assert drawn[1].tolist() == [[1.0, 1.0, 6.0]] * 4
    assert DONORS.rows[:2].tolist() == [[0.0, 0.0, 5.0], [1.0, 1.0, 6.0]]


def test_the_generator_follows_from_the_numbers_of_the_donors() -> None:
    def noise(x: Tensor, s: Tensor, generator: torch.Generator) -> Tensor:
        return torch.rand(x.shape, generator=generator).round()  # float32

    first, second = call(noise), call(noise)
    assert torch.equal(first, second)
    assert first.dtype == torch.float64
    assert len(first[0, :, 2].unique()) == 2


def test_gaps_are_allowed() -> None:
    drawn = call(lambda x, s, generator: torch.full_like(x, nan))
    assert drawn.isnan().tolist() == (~S[:, None].expand(-1, 4, -1)).tolist()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x: x[:-1], r"returned a tensor of shape (7, 3): return one of shape (8, 3)"),
        (lambda x: x[:, :, None], r"returned a tensor of shape (8, 3, 1)"),
        (lambda x: x.numpy(), "returned a ndarray: return a tensor"),
        (lambda x: None, "returned a NoneType"),
        (lambda x: x + 1j, "returned complex numbers"),
        (lambda x: torch.full_like(x, torch.inf), "returned infinite values in column 'a'"),
        (lambda x: x - torch.tensor([0.0, 0.0, torch.inf]), "returned infinite values in column 'c'"),
        (lambda x: torch.full_like(x, 3.0), "in column 'b' that are not codes of its 3 categories"),
        (lambda x: torch.full_like(x, -1.0), "whole numbers from 0 to 2"),
        (lambda x: torch.full_like(x, 0.5), "in column 'b'"),
    ],
)
def test_wrong_results_are_refused_by_the_name_of_the_function(wrong: Any, message: str) -> None:
    def my_sampler(x: Tensor, s: Tensor, generator: torch.Generator) -> Any:
        return wrong(x)

    with pytest.raises(InputError, match=r"the sampler 'my_sampler' .*" + re.escape(message)):
        call(my_sampler)
