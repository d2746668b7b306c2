"""Tests of building networks for tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from encoded_rows import ROWS
from problems import QUICK
from sklearn.tree import DecisionTreeRegressor
from torch import nn

from fastshapley import Recipe
from fastshapley.data.image_schema import ImageSchema
from fastshapley.data.table_schema import TableSchema
from fastshapley.errors import FileFormatError, InputError
from fastshapley.networks import Perceptron, PlayerPerceptron, TableEncoder, UNet
from fastshapley.networks.network_builder import ExplainerPlan, SavedNetwork, SurrogatePlan
from fastshapley.networks.table_builder import TableBuilder
from fastshapley.players import Partition, Superpixels


def body_of(own_units: int, owner: list[int], players: int, outputs: int = 1) -> nn.Module:
    """Return the body of a network that a recipe builds for rows of numbers."""
    return TableBuilder().explainer(ROWS, plan(owner, players, outputs, own_units=own_units)).body


def plan(owner: list[int], players: int, outputs: int = 1, own_units: int = 0, given: Any = None) -> ExplainerPlan:
    recipe, schema = replace(QUICK, own_units=own_units), TableSchema.of(np.zeros((3, 5)))
    partition = Partition(tuple(map(str, range(players))), tuple(owner))
    return ExplainerPlan(schema, partition, players, outputs, recipe, given=given)


def test_a_recipe_without_own_units_makes_a_plain_perceptron() -> None:
    assert type(body_of(0, [0, 1, 2, 3, 4], 5)) is Perceptron


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_recipe_with_own_units_gives_each_input_the_player_of_its_column(outputs: int) -> None:
    """A column with gaps has two inputs: the number, and a flag that comes after all numbers."""
    body = body_of(4, [0, 1, 1, 2, 0], 3, outputs)
    assert isinstance(body, PlayerPerceptron)
    assert body.config["owner"] == [0, 1, 1, 2, 0, 1, 2]  # the third and fourth columns have gaps
    assert (body.config["units"], body.config["outputs"]) == (4, outputs)


@pytest.mark.parametrize("units", [-1, 1.5])
def test_own_units_must_be_an_integer(units: Any) -> None:
    with pytest.raises(ValueError, match=f"own_units is {units}; it must be a whole number"):
        replace(QUICK, own_units=units)


def test_a_network_for_images_is_refused() -> None:
    with pytest.raises(InputError, match="which is for images: pass a module, or None"):
        TableBuilder().explainer(ROWS, plan([0, 1, 2, 3, 4], 5, given=UNet()))


def test_images_are_refused() -> None:
    schema = ImageSchema.of(torch.zeros(2, 1, 4, 4))
    partition = Superpixels(2).bind_image(schema.shape)
    with pytest.raises(InputError, match="for tables, and the explainer was fitted to images"):
        TableBuilder().explainer(ROWS, ExplainerPlan(schema, partition, 4, 1, QUICK))


def test_a_module_that_does_not_take_the_inputs_is_refused() -> None:
    expected = r"network must be a module from \(b, 7\) to \(b, 5\)"  # five numbers and two gap flags
    with pytest.raises(InputError, match=expected):
        TableBuilder().explainer(ROWS, plan([0, 1, 2, 3, 4], 5, given=nn.Linear(3, 5)))


@pytest.mark.parametrize("own_units", [0, 3])
def test_an_explainer_network_is_rebuilt_from_its_configuration(own_units: int) -> None:
    made = plan([0, 1, 1, 2, 0], 3, 2, own_units)
    network = TableBuilder().explainer(ROWS, made)
    again = TableBuilder().saved_explainer(SavedNetwork(network.config, made.schema, made.partition))
    again.load_state_dict(network.state_dict())
    assert torch.equal(again.eval()(ROWS), network(ROWS))


def test_a_surrogate_network_is_rebuilt_from_its_configuration() -> None:
    made = plan([0, 1, 1, 2, 0], 3)
    layers = QUICK.surrogate_layers
    network = TableBuilder().surrogate(ROWS, SurrogatePlan(made.schema, made.partition, 2, QUICK, layers))
    again = TableBuilder().saved_surrogate(SavedNetwork(network.config, made.schema, made.partition))
    again.load_state_dict(network.state_dict())
    assert torch.equal(again.known(ROWS), network.known(ROWS))


TABLE = np.random.default_rng(0).normal(size=(200, 3))
TREE = DecisionTreeRegressor(max_depth=3).fit(TABLE, np.sign(TABLE[:, 0]) + np.floor(TABLE[:, 1]))
JUMPS = replace(QUICK, surrogate_cuts=4, cuts=4, own_units=2)


def tree_plan(recipe: Recipe, given: Any = None) -> ExplainerPlan:
    schema = TableSchema.of(TABLE)
    partition = Partition(("a", "b"), (0, 1, 1))
    return ExplainerPlan(schema, partition, 2, 1, recipe, given=given, model=TREE)


def test_networks_for_a_model_of_trees_see_its_split_points() -> None:
    rows = torch.from_numpy(TABLE)
    network = TableBuilder().explainer(rows, tree_plan(JUMPS))
    encoder = network.encoder
    assert isinstance(encoder, TableEncoder)
    assert encoder.columns[:3] == [0, 1, 2]
    assert 0 < len(encoder.cut) == len(encoder.columns) - 3
    thresholds = TREE.tree_.threshold[TREE.tree_.feature >= 0]
    assert all(np.abs(thresholds - cut).min() < 1e-6 for cut in encoder.cut.tolist())
    body = network.body
    assert isinstance(body, PlayerPerceptron)
    assert (body.config["owner"], body.config["shared"]) == ([0, 1, 1], len(encoder.cut))
    plan = tree_plan(JUMPS)
    made = SurrogatePlan(plan.schema, plan.partition, 1, JUMPS, JUMPS.surrogate_layers, model=TREE)
    surrogate = TableBuilder().surrogate(rows, made)
    assert torch.equal(surrogate.encoder.cut, encoder.cut)
    again = TableBuilder().saved_surrogate(SavedNetwork(surrogate.config, plan.schema, plan.partition))
    again.load_state_dict(surrogate.state_dict())
    assert torch.equal(again.known(rows), surrogate.known(rows))


def test_a_recipe_without_cuts_and_a_body_of_the_users_see_numbers_only() -> None:
    rows = torch.from_numpy(TABLE)
    for plan in (tree_plan(replace(JUMPS, surrogate_cuts=0, cuts=0)), tree_plan(JUMPS, given=nn.Linear(3, 2))):
        encoder = TableBuilder().explainer(rows, plan).encoder
        assert isinstance(encoder, TableEncoder)
        assert encoder.columns == [0, 1, 2]


def test_a_custom_module_must_be_passed_again() -> None:
    made = plan([0, 1, 2, 3, 4], 5, given=nn.Linear(7, 5))
    network = TableBuilder().explainer(ROWS, made)
    with pytest.raises(FileFormatError, match="pass it as network="):
        TableBuilder().saved_explainer(SavedNetwork(network.config, made.schema, made.partition))
