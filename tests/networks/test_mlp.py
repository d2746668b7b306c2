from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from games import Additive
from numpy.typing import NDArray
from problems import QUICK
from torch import Tensor, nan, nn

from fastshapley.data.table_schema import TableSchema
from fastshapley.errors import InputError
from fastshapley.fit.network import build_network
from fastshapley.networks import ExplainerNetwork, MaskedNetwork, Perceptron, PlayerPerceptron, TableEncoder
from fastshapley.players import Partition
from fastshapley.training.recipes import Activation
from fastshapley.training.run import Run

# a number, a constant, a category of 3, a number with gaps, a category of 2
CATEGORIES = [0, 0, 3, 0, 2]
ROWS = torch.tensor(
    [[1.0, 7.0, 0.0, 2.0, 1.0], [3.0, 7.0, 2.0, nan, 0.0], [5.0, 7.0, nan, 4.0, 1.0]], dtype=torch.float64
)


@pytest.fixture
def encoder() -> TableEncoder:
    torch.manual_seed(0)
    return TableEncoder.fitted(ROWS, CATEGORIES)


def inputs_of(encoder: TableEncoder, column: int) -> list[int]:
    return [j for j, owner in enumerate(encoder.columns) if owner == column]


def test_inputs_are_float32_and_owned_by_their_columns(encoder: TableEncoder) -> None:
    encoded = encoder(ROWS)
    assert encoded.dtype == torch.float32
    assert encoded.shape == (3, len(encoder.columns))
    assert [len(inputs_of(encoder, j)) for j in range(5)] == [1, 1, 3, 2, 3]  # 3 is the largest category
    for column in range(5):
        changed = ROWS.clone()
        changed[0, column] = 0.0 if column == 4 else 1.5 if column != 2 else 1.0
        moved = (encoder(changed)[0] != encoded[0]).nonzero()[:, 0].tolist()
        assert moved
        assert set(moved) <= set(inputs_of(encoder, column))


def test_numbers_are_standardised(encoder: TableEncoder) -> None:
    column = encoder(ROWS)[:, inputs_of(encoder, 0)[0]]
    torch.testing.assert_close(column, torch.tensor([-1.5, 0.0, 1.5]) / 1.5**0.5)


@pytest.mark.parametrize("value", [0.0, 7.0, 0.1, -1e9])
def test_a_constant_column_is_zero_and_a_new_value_finite(value: float) -> None:
    x = torch.full((1000, 1), value, dtype=torch.float64)
    encoder = TableEncoder.fitted(x, [0])
    torch.testing.assert_close(encoder(x), torch.zeros(1000, 1), atol=1e-5, rtol=0)
    torch.testing.assert_close(encoder(x[:1] + 1), torch.ones(1, 1))


def test_small_differences_of_large_numbers_survive() -> None:
    """What float32 could not hold is subtracted in float64."""
    x = 1.7e9 + torch.arange(4, dtype=torch.float64)[:, None] * 10
    encoded = TableEncoder.fitted(x, [0])(x)
    torch.testing.assert_close(encoded.diff(dim=0), encoded[1:2] - encoded[:1] + torch.zeros(3, 1))


def test_a_gap_is_the_mean_and_a_flag(encoder: TableEncoder) -> None:
    number, flag = inputs_of(encoder, 3)
    encoded = encoder(ROWS)
    torch.testing.assert_close(encoded[:, number], torch.tensor([-1.0, 0.0, 1.0]))
    assert encoded[:, flag].tolist() == [0, 1, 0]


def test_a_column_of_gaps_and_an_unforeseen_gap_are_finite(encoder: TableEncoder) -> None:
    empty = torch.full((3, 1), nan, dtype=torch.float64)
    assert TableEncoder.fitted(empty, [0])(empty).tolist() == [[0, 1]] * 3
    gap = ROWS.clone()
    gap[0, 0] = nan
    assert encoder(gap)[0, inputs_of(encoder, 0)].tolist() == [0]


def test_categories_have_vectors_of_their_own_and_a_gap_none(encoder: TableEncoder) -> None:
    rows = ROWS[:1].repeat(4, 1)
    rows[:, 2] = torch.tensor([0, 1, 2, nan])
    first = encoder(rows)[:, inputs_of(encoder, 2)]
    assert len(first.unique(dim=0)) == 4
    assert not first[3].any()
    second = encoder(ROWS[:2])[:, inputs_of(encoder, 4)]
    assert len(torch.cat([first, second]).unique(dim=0)) == 6  # no two columns share a vector


def test_training_leaves_the_gaps_vector_at_zero(encoder: TableEncoder) -> None:
    optimizer = torch.optim.SGD(encoder.parameters(), lr=1.0)
    encoder(ROWS).sum().backward()
    optimizer.step()
    assert not encoder(ROWS)[2, inputs_of(encoder, 2)].any()
    assert encoder(ROWS)[0, inputs_of(encoder, 2)].any()


def test_an_encoder_comes_back_from_its_configuration_and_state(encoder: TableEncoder) -> None:
    again = TableEncoder(**encoder.config)
    again.load_state_dict(encoder.state_dict())
    assert torch.equal(again(ROWS), encoder(ROWS))


def tailed(values: Tensor, tails: float | None) -> Tensor:
    """What standardised numbers become."""
    return TableEncoder([0], [False], tails=tails)(values.double()[:, None])[:, 0]


@pytest.mark.parametrize("tails", [0.5, 1.0, 3.0])
def test_tails_are_the_identity_within_and_a_logarithm_beyond(tails: float) -> None:
    inside = torch.linspace(-tails, tails, 101)
    torch.testing.assert_close(tailed(inside, tails), inside)
    beyond = tails * torch.logspace(0, 12, 50, dtype=torch.float64)
    expected = tails * (1 + torch.log(beyond / tails))
    torch.testing.assert_close(tailed(beyond, tails), expected.float())


@pytest.mark.parametrize("tails", [0.5, 1.0, 3.0])
def test_tails_are_monotone_continuous_and_odd(tails: float) -> None:
    values = torch.linspace(-20 * tails, 20 * tails, 4001, dtype=torch.float64)
    result = tailed(values, tails)
    assert (result.diff() > 0).all()
    step = float(values.diff()[0])
    assert result.diff().max() <= step * (1 + 1e-3)  # no steeper than the identity, hence no jump
    torch.testing.assert_close(tailed(-values, tails), -result)
    around = tails * (1 + torch.tensor([-1e-4, 0.0, 1e-4]))
    slopes = tailed(around, tails).diff() / around.diff()
    torch.testing.assert_close(slopes, torch.ones(2), atol=1e-2, rtol=0)  # smooth where they meet


def test_tails_touch_numbers_alone_and_are_off_by_default() -> None:
    rows = ROWS.clone()
    rows[0, 0] = 1e9
    torch.manual_seed(0)
    plain = TableEncoder.fitted(ROWS, CATEGORIES)
    torch.manual_seed(0)
    tails = TableEncoder.fitted(ROWS, CATEGORIES, 3.0)
    assert torch.equal(plain(ROWS), tails(ROWS))  # nothing is far from the mean
    changed = (plain(rows) != tails(rows)).nonzero().tolist()
    assert changed == [[0, inputs_of(plain, 0)[0]]]
    assert tails(rows)[0, inputs_of(tails, 0)[0]] < 100


def test_extreme_numbers_and_gaps_stay_finite_with_tails() -> None:
    encoder = TableEncoder.fitted(ROWS, CATEGORIES, 3.0)
    rows = ROWS[:1].repeat(3, 1)
    rows[:, 0] = torch.tensor([1e300, -1e300, nan])
    encoded = encoder(rows)[:, inputs_of(encoder, 0)[0]]
    assert encoded[2] == 0
    assert encoded[0] == -encoded[1]
    assert encoded.isfinite().all()


@pytest.mark.parametrize("tails", [None, 2.5])
def test_tails_come_back_from_the_configuration(tails: float | None) -> None:
    encoder = TableEncoder.fitted(ROWS, CATEGORIES, tails)
    again = TableEncoder(**json.loads(json.dumps(encoder.config)))
    again.load_state_dict(encoder.state_dict())
    rows = ROWS * 100
    rows[:, [2, 4]] = ROWS[:, [2, 4]]
    assert torch.equal(again(rows), encoder(rows))
    assert again.config == encoder.config


@pytest.mark.parametrize("owner", [[0, 1, 2, 3, 4], [0, 1, 1, 0, 2]], ids=["columns", "groups"])
@pytest.mark.parametrize("replacement", [nan, 1.0, 0.0, 1e300])
def test_a_masked_network_is_blind_to_what_is_hidden(
    encoder: TableEncoder, owner: list[int], replacement: float
) -> None:
    players = max(owner) + 1
    network = MaskedNetwork(encoder, owner, Perceptron(len(encoder.columns) + players, 2, 2, 16, "silu"))
    every = (torch.arange(2**players)[:, None] >> torch.arange(players)) & 1 == 1
    s = every.expand(len(ROWS), -1, -1)
    before = network(ROWS, s)
    assert before.shape == (3, 2**players, 2)
    for column, player in enumerate(owner):
        if CATEGORIES[column] and replacement > 1:
            continue  # no such code
        changed = ROWS.clone()
        changed[:, column] = replacement
        after = network(changed, s)
        assert torch.equal(after[:, ~every[:, player]], before[:, ~every[:, player]])
        shown = ~torch.isclose(ROWS[:, column], changed[:, column], equal_nan=True)
        if column != 1:  # a constant column may well not matter
            assert (after[shown][:, every[:, player]] != before[shown][:, every[:, player]]).any() == shown.any()


@pytest.mark.parametrize("layers", [0, 1, 2])
@pytest.mark.parametrize("owner", [[0, 1, 2, 3, 4], [0, 1, 1, 0, 2]], ids=["columns", "groups"])
def test_many_coalitions_at_once_are_worth_as_much_as_one_by_one(
    encoder: TableEncoder, owner: list[int], layers: int
) -> None:
    players = max(owner) + 1
    network = MaskedNetwork(encoder, owner, Perceptron(len(encoder.columns) + players, 2, layers, 16, "silu"))
    s = torch.rand(3, 300, players, generator=torch.Generator().manual_seed(0)) < 0.5
    together = network(ROWS, s)
    assert together.shape == (3, 300, 2)
    alone = torch.cat([network(ROWS, part) for part in s.split(1, dim=1)], dim=1)
    torch.testing.assert_close(together, alone)


def test_a_masked_network_on_numbers_alone_sees_inputs_and_coalition() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 6.0]], dtype=torch.float64)
    network = MaskedNetwork(TableEncoder.fitted(x, [0, 0]), [0, 1], nn.Identity())
    s = torch.tensor([[[True, False]], [[True, True]]])
    torch.testing.assert_close(network(x, s), torch.tensor([[[-1.0, 0, 1, 0]], [[1.0, 1, 1, 1]]]))


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


def test_free_outputs_are_the_bodys(encoder: TableEncoder) -> None:
    network = explainer(encoder, [1.0, 2.0, 3.0, 4.0], "free", 2)
    assert network(ROWS).tolist() == [[[1, 2], [3, 4]]] * 3
    network.scale.copy_(torch.tensor([10.0, 1.0]))
    assert network(ROWS[:1]).tolist() == [[[10, 2], [30, 4]]]


def test_two_mirrored_classes_need_one_output_a_player(encoder: TableEncoder) -> None:
    assert ExplainerNetwork.body_outputs(2, 2, "mirror") == 2
    assert explainer(encoder, [1.0, -2.0], "mirror", 2)(ROWS[:1]).tolist() == [[[-1, 1], [2, -2]]]


def test_zero_sum_classes_sum_to_zero(encoder: TableEncoder) -> None:
    phi = explainer(encoder, [1.0, 2.0, 6.0, 0.0, 0.0, 3.0], "zero-sum", 3)(ROWS[:1])
    assert phi.tolist() == [[[-2, -1, 3], [-1, -1, 2]]]


@pytest.mark.parametrize("kind", ["free", "mirror"])
def test_a_body_of_the_wrong_shape_is_reported(
    encoder: TableEncoder, kind: Literal["free", "mirror", "zero-sum"]
) -> None:
    expected = ExplainerNetwork.body_outputs(2, 2, kind)
    with pytest.raises(InputError, match=rf"shape \(3, 5\) for 3 rows: expected \(3, {expected}\)"):
        explainer(encoder, [0.0] * 5, kind, 2)(ROWS)


# -- the default explainer's body


OWNERS = {"one to one": [0, 1, 2], "out of order": [2, 0, 1], "several inputs a player": [0, 1, 1, 0, 2, 1]}


def player_perceptron(
    owner: list[int], outputs: int = 1, units: int = 4, layers: int = 2, activation: Activation = "silu"
) -> PlayerPerceptron:
    torch.manual_seed(0)
    return PlayerPerceptron(owner, outputs, units, layers, 16, activation).double()


def normal(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def act(activation: str, z: NDArray[np.float64]) -> NDArray[np.float64]:
    if activation == "relu":
        return np.maximum(z, 0)
    return z / (1 + np.exp(-z)) if activation == "silu" else np.where(z > 0, z, np.expm1(z))


def by_hand(network: PlayerPerceptron, owner: list[int], inputs: Tensor) -> NDArray[np.float64]:
    """Values (b, players, outputs): a_i0(x) + sum over j of a_ij(x) h_ij(x_i), one number at a time."""
    units, outputs, activation = (network.config[name] for name in ("units", "outputs", "activation"))
    state = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    layers = [state[f"hidden.{2 * i}.weight"] for i in range(network.config["layers"] + 1)]
    biases = [state[f"hidden.{2 * i}.bias"] for i in range(network.config["layers"] + 1)]
    players = max(owner) + 1
    values = np.zeros((len(inputs), players, outputs))
    for row, x in enumerate(inputs.numpy()):
        a = x
        for layer, bias in zip(layers[:-1], biases[:-1], strict=True):
            a = act(activation, layer @ a + bias)
        a = (layers[-1] @ a + biases[-1]).reshape(1 + units, players, outputs)
        for i in range(players):
            values[row, i] = a[0, i]
            for j in range(units):
                own = sum(state["weight"][j, k] * x[k] for k in range(len(owner)) if owner[k] == i)
                values[row, i] += a[1 + j, i] * act(activation, own + state["bias"][j, i])
    return values


@pytest.mark.parametrize("owner", OWNERS.values(), ids=list(OWNERS))
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize(("layers", "activation"), [(2, "silu"), (1, "relu"), (0, "elu")])
def test_a_player_perceptron_is_its_formula(
    owner: list[int], outputs: int, layers: int, activation: Activation
) -> None:
    network = player_perceptron(owner, outputs, layers=layers, activation=activation)
    inputs = normal(7, len(owner))
    found = network(inputs).detach()
    assert found.shape == (7, 3 * outputs)
    np.testing.assert_allclose(found.reshape(7, 3, outputs), by_hand(network, owner, inputs), atol=1e-12)


@pytest.mark.parametrize("owner", OWNERS.values(), ids=list(OWNERS))
@pytest.mark.parametrize("outputs", [1, 3])
def test_own_units_see_the_inputs_of_one_player_alone(owner: list[int], outputs: int) -> None:
    """With hidden layers that do not look at the row, each input moves the values of its own player only."""
    network = player_perceptron(owner, outputs)
    for layer in network.hidden:
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.weight)
            nn.init.normal_(layer.bias)
    inputs = normal(5, len(owner))
    before = network(inputs).reshape(5, 3, outputs)
    for column, player in enumerate(owner):
        changed = inputs.clone()
        changed[:, column] += 1
        moved = network(changed).reshape(5, 3, outputs) != before
        assert moved[:, player].all()
        assert not moved[:, [i for i in range(3) if i != player]].any()


@pytest.mark.parametrize("owner", OWNERS.values(), ids=list(OWNERS))
def test_hidden_layers_see_the_whole_row(owner: list[int]) -> None:
    network = player_perceptron(owner)
    inputs = normal(5, len(owner)).requires_grad_()
    for i in range(3):
        (slope,) = torch.autograd.grad(network(inputs)[:, i].sum(), inputs)
        assert (slope != 0).all()


def test_without_own_units_a_player_perceptron_is_its_hidden_layers() -> None:
    network = player_perceptron([0, 1, 1], units=0)
    inputs = normal(4, 3)
    torch.testing.assert_close(network(inputs), network.hidden(inputs))


def test_all_of_a_player_perceptron_learns() -> None:
    network = player_perceptron([0, 1, 1, 0, 2], outputs=2)
    network(normal(50, 5)).square().sum().backward()
    assert all(p.grad is not None and (p.grad != 0).any() for p in network.parameters())


@pytest.mark.parametrize("inputs", [1, 4, 16])
def test_own_units_start_alike_however_many_inputs_a_player_has(inputs: int) -> None:
    """Standard inputs move a unit by one, on average: within 4 standard errors of 2000 players."""
    torch.manual_seed(0)
    network = PlayerPerceptron(torch.arange(2000).repeat_interleave(inputs).tolist(), 1, 4, 0, 1, "relu")
    weight = network.weight.detach()
    squares = weight[0].unflatten(0, (2000, inputs)).square().sum(1)  # the variance of a unit over rows
    assert abs(float(squares.mean()) - 1) <= 1e-6 + 4 * float(squares.std()) / 2000**0.5
    assert torch.equal(weight[1::2], -weight[::2])  # in mirrored pairs
    assert network.bias[:, 0].tolist() == [0, 0, -1, -1]


@pytest.mark.parametrize("owner", OWNERS.values(), ids=list(OWNERS))
def test_a_player_perceptron_comes_back_from_its_configuration_and_state(owner: list[int]) -> None:
    network = player_perceptron(owner, outputs=2)
    again = PlayerPerceptron(**json.loads(json.dumps(network.config))).double()
    again.load_state_dict(network.state_dict())
    assert again.config == network.config
    inputs = normal(9, len(owner))
    assert torch.equal(again(inputs), network(inputs))


def test_the_names_of_the_weights_stay() -> None:
    """Files hold them."""
    hidden = [f"hidden.{number}.{what}" for number in (0, 2, 4) for what in ("weight", "bias")]
    assert sorted(player_perceptron([0, 1, 1]).state_dict()) == sorted(["weight", "bias", *hidden])


@pytest.mark.parametrize("owner", [[0, 1, 2], [0, 1, 1, 0, 2, 1]], ids=["one to one", "several inputs a player"])
def test_a_player_perceptron_can_be_exported(owner: list[int]) -> None:
    """For any number of rows."""
    network = player_perceptron(owner, outputs=2).eval()
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(network, (normal(4, len(owner)),), dynamic_shapes=({0: rows},))
    inputs = normal(11, len(owner))
    torch.testing.assert_close(program.module()(inputs), network(inputs))


def body_of(own_units: int, owner: list[int], players: int, outputs: int = 1) -> nn.Module:
    """The body that a recipe gives a network for the rows, all columns taken as numbers."""
    recipe, schema = replace(QUICK, own_units=own_units), TableSchema.of(np.zeros((3, 5)))
    partition = Partition(tuple(map(str, range(players))), tuple(owner))
    return build_network(ROWS, schema, Additive(players, outputs), partition, None, None, recipe, Run(seed=0)).body


def test_a_recipe_without_own_units_makes_a_plain_perceptron() -> None:
    assert type(body_of(0, [0, 1, 2, 3, 4], 5)) is Perceptron


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_recipe_with_own_units_gives_each_input_the_player_of_its_column(outputs: int) -> None:
    """A column with gaps has two inputs: the number, and the flag after all numbers."""
    body = body_of(4, [0, 1, 1, 2, 0], 3, outputs)
    assert isinstance(body, PlayerPerceptron)
    assert body.config["owner"] == [0, 1, 1, 2, 0, 1, 2]  # the third and the fourth column have gaps
    assert (body.config["units"], body.config["outputs"]) == (4, outputs)


@pytest.mark.parametrize("units", [-1, 1.5])
def test_own_units_must_be_a_whole_number(units: Any) -> None:
    with pytest.raises(ValueError, match=f"own_units is {units}; it must be a whole number"):
        replace(QUICK, own_units=units)
