"""Tests of explainer networks."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from encoded_rows import ROWS, fitted_encoder
from torch import Tensor, nn

from fastshapley.errors import InputError
from fastshapley.networks import ExplainerNetwork, TableEncoder

encoder = pytest.fixture(fitted_encoder)


class Fixed(nn.Module):
    """The same outputs for each row."""

    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, inputs: Tensor) -> Tensor:
        return self.outputs.expand(len(inputs), -1)


def explainer(
    encoder: TableEncoder, outputs: list[float], kind: Literal["free", "mirror", "zero-sum"], classes: int
) -> ExplainerNetwork:
    return ExplainerNetwork(encoder, Fixed(torch.tensor(outputs)), 2, classes, kind)


def test_free_classes_are_the_outputs_of_the_body(encoder: TableEncoder) -> None:
    network = explainer(encoder, [1.0, 2.0, 3.0, 4.0], "free", 2)
    assert network(ROWS).tolist() == [[[1, 2], [3, 4]]] * 3
    network.scale.copy_(torch.tensor([10.0, 1.0]))
    assert network(ROWS[:1]).tolist() == [[[10, 2], [30, 4]]]


def test_two_mirrored_classes_need_one_output_per_player(encoder: TableEncoder) -> None:
    assert ExplainerNetwork.body_outputs(2, 2, "mirror") == 2
    assert explainer(encoder, [1.0, -2.0], "mirror", 2)(ROWS[:1]).tolist() == [[[-1, 1], [2, -2]]]


def test_zero_sum_classes_sum_to_zero(encoder: TableEncoder) -> None:
    phi = explainer(encoder, [1.0, 2.0, 6.0, 0.0, 0.0, 3.0], "zero-sum", 3)(ROWS[:1])
    assert phi.tolist() == [[[-2, -1, 3], [-1, -1, 2]]]


@pytest.mark.parametrize("kind", ["free", "mirror"])
def test_a_body_of_the_wrong_shape_is_refused(
    encoder: TableEncoder, kind: Literal["free", "mirror", "zero-sum"]
) -> None:
    expected = ExplainerNetwork.body_outputs(2, 2, kind)
    with pytest.raises(InputError, match=rf"shape \(3, 5\) for 3 rows: expected \(3, {expected}\)"):
        explainer(encoder, [0.0] * 5, kind, 2)(ROWS)
