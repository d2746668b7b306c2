"""Tests of the conversion of values to explanations in the shapes that shap uses."""

from __future__ import annotations

import numpy as np
import pytest
import shap
import torch

from fastshapley.errors import InputError
from fastshapley.explanation import Values, attribution_names, maps, squeeze, taken_up
from fastshapley.players import Superpixels

VALUES = torch.arange(12.0).reshape(2, 2, 3)  # two rows, two players, three outputs
NAMES = ["no", "perhaps", "yes"]


def values(stderr: bool = False) -> Values:
    return Values(VALUES, torch.zeros(2, 3), torch.ones_like(VALUES) if stderr else None, NAMES)


def test_outputs_are_chosen_by_name_and_position() -> None:
    found = values(stderr=True).chosen(["yes", 0])
    np.testing.assert_array_equal(found.values, VALUES[..., [2, 0]])
    assert found.stderr is not None
    assert found.stderr.shape == (2, 2, 2)
    assert list(found.names) == ["yes", "no"]


def test_a_shap_operation_chooses_outputs_per_row() -> None:
    found = values().chosen(shap.Explanation.argsort.flip[:1])
    np.testing.assert_array_equal(found.values[..., 0], VALUES[..., 2])


def test_a_single_output_has_no_axis_and_no_name() -> None:
    one = Values(VALUES[..., :1], torch.zeros(2, 1), None, ["no"])
    found = one.explanation(lambda v: v.numpy())
    assert found.values.shape == (2, 2)
    assert found.output_names is None
    assert values().chosen(["no"]).explanation(lambda v: v.numpy()).values.shape == (2, 2, 1)
    assert squeeze(np.zeros((2, 3))).shape == (2, 3)


def test_maps_have_the_shape_of_the_grid_or_of_the_pixels() -> None:
    partition = Superpixels(grid=(1, 2)).bind_image((1, 2, 4))
    np.testing.assert_array_equal(maps(VALUES, partition, upsample=False), VALUES[:, None])
    pixels = maps(VALUES, partition, upsample=True)
    assert pixels.shape == (2, 2, 4, 3)
    np.testing.assert_allclose(pixels.sum((1, 2)), VALUES.sum(1))


def test_an_earlier_explanation_is_reused_with_its_variances() -> None:
    start = values(stderr=True).explanation(lambda v: v.numpy())
    found, variance = taken_up(start, VALUES)
    assert torch.equal(found, VALUES)
    assert torch.equal(variance, torch.ones_like(VALUES))


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (values(), "start has no error_std"),
        (Values(VALUES[:1], torch.zeros(1, 3), VALUES[:1], NAMES), r"but \(2, 2, 3\) is expected"),
        (Values(VALUES + 1, torch.zeros(2, 3), VALUES, NAMES), "sum to something else"),
    ],
    ids=["no errors", "other rows", "other sums"],
)
def test_explanations_that_cannot_be_reused_raise(start: Values, message: str) -> None:
    with pytest.raises(InputError, match=message):
        taken_up(start.explanation(lambda v: v.numpy()), VALUES)


def test_columns_are_named_after_players_and_outputs() -> None:
    assert attribution_names(["age"], NAMES[:2], ["base"]) == [
        "shap_age_no",
        "shap_age_perhaps",
        "base_no",
        "base_perhaps",
    ]
