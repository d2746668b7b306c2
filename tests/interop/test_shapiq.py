"""Tests of our games with shapiq's approximators, and of our explainer as a shapiq explainer."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Exported
from games import GAMES, Glove, KnownGame, Moebius
from numpy.typing import NDArray
from problems import explainer, numbers, people, people_model

from fastshapley import FastSHAP, Groups
from fastshapley.coalitions import enumerate_coalitions
from fastshapley.errors import InputError, ModelError
from fastshapley.estimators import exact

shapiq = pytest.importorskip("shapiq", reason="needs the shapiq extra")
from fastshapley.interop.shapiq import Explainer, Game  # noqa: E402

EXACT = [
    shapiq.KernelSHAP,
    shapiq.UnbiasedKernelSHAP,
    shapiq.SVARM,
    shapiq.kADDSHAP,
]  # Exact if the budget covers all coalitions.
SAMPLING = [shapiq.PermutationSamplingSV, shapiq.StratifiedSamplingSV]


@pytest.fixture(scope="module")
def fitted() -> FastSHAP:
    """Return an explainer with four players, one of which has two columns, and two outputs."""
    X, y = people()
    return explainer(people_model(X, y), players=Groups({"work": ["income", "job"]})).fit(X)


def played(game: KnownGame, output: int) -> tuple[Any, NDArray[np.float64]]:
    """Return the game of the last of three rows, and its Shapley values by our own enumeration."""
    x = game.rows(3, seed=5)[2:]
    return Game(game, x, output=output), exact(game, x).values[0, :, output]


@pytest.mark.parametrize("name", GAMES)
def test_shapiq_exact_computer_agrees_with_our_enumeration_and_the_closed_form(name: str) -> None:
    game = GAMES[name]
    for output in range(game.outputs):
        theirs, ours = played(game, output)
        found = shapiq.ExactComputer(theirs)("SV")
        known = game.shapley(game.rows(3, seed=5)[2:])[0, :, output].numpy()
        np.testing.assert_allclose(found.get_n_order_values(1), ours, atol=1e-9)
        np.testing.assert_allclose(found.get_n_order_values(1), known, atol=1e-9)
        np.testing.assert_allclose(theirs.exact_values("SV", 1).get_n_order_values(1), known, atol=1e-9)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("approximator", EXACT, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("name", GAMES)
def test_approximators_are_exact_when_the_budget_covers_all_coalitions(
    name: str, approximator: Any, normalize: bool
) -> None:
    game = GAMES[name]
    output = game.outputs - 1
    x = game.rows(1)
    options = {"max_order": 1} if approximator is shapiq.kADDSHAP else {}
    method = approximator(game.players, random_state=0, **options)
    theirs = Game(game, x, output=output, normalize=normalize)
    found = method.approximate(2**game.players, theirs)
    # shapiq enforces efficiency by weights of 1e8, so its values are exact up to about 1e-6.
    np.testing.assert_allclose(found.get_n_order_values(1), exact(game, x).values[0, :, output], rtol=0, atol=1e-6)
    null = float(game(x, torch.zeros(1, 1, game.players, dtype=torch.bool))[0, 0, output])
    assert found.baseline_value == pytest.approx(0 if normalize else null, abs=1e-9)


@pytest.mark.parametrize("approximator", SAMPLING, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("name", GAMES)
def test_sampling_approximators_are_within_five_standard_errors(name: str, approximator: Any) -> None:
    """The standard deviation of marginal contributions is at most half of their range."""
    budget = 4000
    theirs, ours = played(GAMES[name], 0)
    found = approximator(theirs.n_players, random_state=1).approximate(budget, theirs)
    s = enumerate_coalitions(theirs.n_players).numpy()
    for player in range(theirs.n_players):
        without = s[~s[:, player]]
        joined = without.copy()
        joined[:, player] = True
        marginal = theirs(joined) - theirs(without)
        contributions = budget / (2 * theirs.n_players)  # Per player, with two evaluations each.
        tolerance = 5 * np.ptp(marginal) / 2 / np.sqrt(contributions) + 1e-9
        assert abs(found.get_n_order_values(1)[player] - ours[player]) <= tolerance


def test_pairwise_interactions_are_the_dividends_of_a_game_of_order_two() -> None:
    game = Moebius.random(6, order=2, terms=9, seed=3)
    x = game.rows(1, seed=1)
    found = shapiq.KernelSHAPIQ(6, max_order=2, index="SII", random_state=0).approximate(64, Game(game, x))
    pairs = np.zeros((6, 6))
    for members, dividend in zip(game.members, x[0, :, None] * game.dividends, strict=True):
        if members.sum() == 2:
            i, j = members.nonzero()[:, 0].tolist()
            pairs[i, j] += float(dividend)
    for i in range(6):
        for j in range(i + 1, 6):
            assert found[(i, j)] == pytest.approx(pairs[i, j], abs=1e-5)


@pytest.mark.parametrize("value_function", ["surrogate", "marginal", "baseline"])
def test_value_functions_can_be_played_as_shapiq_games(value_function: str) -> None:
    X = numbers(120)
    model = explainer(lambda x: x[:, 0] * x[:, 1] + x[:, 2], value_function=value_function).fit(X)
    game = Game.of(model, X[7:8])
    ours = model.estimate(X[7:8], "exact").values[0, :, 0]
    theirs = shapiq.KernelSHAP(4, random_state=0).approximate(16, game)
    np.testing.assert_allclose(theirs.get_n_order_values(1), ours, atol=1e-5)
    assert game.normalization_value == pytest.approx(float(model(X[7:8]).base_values[0]))


def test_players_and_outputs_can_be_given_by_name(fitted: FastSHAP) -> None:
    X, _ = people()
    name = fitted.output_names_[1]
    game = Game.of(fitted, X[:1], output=name)
    assert game.n_players == 4
    assert list(game.player_name_lookup) == list(fitted.player_names_) == ["age", "work", "city", "member"]
    by_name, by_number = game([("work", "member"), ()]), game(np.array([[0, 1, 0, 1], [0, 0, 0, 0]]))
    np.testing.assert_array_equal(by_name, by_number)
    assert by_name[1] == 0
    s = torch.tensor([[[False, True, False, True]]])
    alone = fitted.value_function_(fitted.schema_.encode(X[:1]), s)[0, 0, 1]
    assert by_name[0] == pytest.approx(float(alone) - game.normalization_value, abs=1e-6)
    np.testing.assert_array_equal(game(s[0].numpy()), Game.of(fitted, X[:1], output=1)(s[0].numpy()))


class Counted:
    """A game that notes how many coalitions each of its calls has."""

    def __init__(self, game: KnownGame) -> None:
        self.game, self.players, self.outputs = game, game.players, game.outputs
        self.sizes: list[int] = []

    def __call__(self, x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        self.sizes.append(s.shape[1])
        return self.game(x, s)


def test_many_coalitions_are_evaluated_in_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    game = GAMES["moebius"]
    s = enumerate_coalitions(7).numpy()
    whole = Game(game, game.rows(1), output=0)(s)
    monkeypatch.setattr("fastshapley.interop.shapiq.COALITIONS_AT_ONCE", 7)
    counted = Counted(game)
    divided = Game(counted, game.rows(1), output=0)
    counted.sizes.clear()
    np.testing.assert_allclose(divided(s), whole, atol=1e-12)
    assert counted.sizes == [7] * 18 + [2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"x": Glove(3).rows(2)}, "x is 2 rows: pass one row"),
        ({"x": [[1.0]]}, "x is a list"),
        ({"output": 1}, r"output is 1: choose one of \['0'\]"),
        ({"output": -1}, "output is -1"),
        ({"output": True}, "output is True"),
        ({"player_names": ["a", "b"]}, "player_names has 2 different names: pass one for each of 3 players"),
        ({"player_names": ["a", "b", "a"]}, "player_names has 2 different names"),
    ],
)
def test_arguments_that_do_not_fit_the_game_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Game(Glove(3), **{"x": Glove(3).rows(1), **options})


def test_one_of_several_outputs_must_be_chosen(fitted: FastSHAP) -> None:
    X, _ = people()
    with pytest.raises(InputError, match=r"output is None: choose one of .*, or its index, 0 to 1"):
        Game.of(fitted, X[:1])
    with pytest.raises(InputError, match="output is 'nobody'"):
        Explainer(fitted, output="nobody")


def test_our_explainer_is_a_shapiq_explainer(fitted: FastSHAP) -> None:
    X, _ = people()
    theirs = Explainer(fitted, output=1)
    assert isinstance(theirs, shapiq.Explainer)
    assert (theirs.index, theirs.max_order) == ("SV", 1)
    ours = fitted(X[:5])
    for row, found in enumerate(theirs.explain_X(X[:5])):
        assert isinstance(found, shapiq.InteractionValues)
        assert (found.index, found.max_order, found.min_order, found.n_players) == ("SV", 1, 0, 4)
        np.testing.assert_allclose(found.get_n_order_values(1), ours.values[row, :, 1], atol=1e-12)
        assert found.baseline_value == found[()] == pytest.approx(ours.base_values[row, 1])
    np.testing.assert_allclose(theirs.predict(X[:5]), ours.values[..., 1].sum(1) + ours.base_values[:, 1])


@pytest.mark.parametrize("form", ["array", "series", "frame"])
def test_explain_accepts_one_row_as_array_series_or_frame(fitted: FastSHAP, form: str) -> None:
    X, _ = people()
    row = {"array": X.to_numpy(dtype=object)[3], "series": X.iloc[3], "frame": X[3:4]}[form]
    found = Explainer(fitted, output=0).explain(row)
    np.testing.assert_allclose(found.get_n_order_values(1), fitted.shap_values(X[3:4])[0, :, 0], atol=1e-12)


def test_explain_refuses_several_rows(fitted: FastSHAP) -> None:
    X, _ = people()
    with pytest.raises(InputError, match="x has 2 rows: pass one, or several to explain_X"):
        Explainer(fitted, output=0).explain(X[:2])


def test_a_budget_corrects_the_values(exported: Any) -> None:
    """The budget covers all coalitions, so the corrected values are exact."""
    theirs, X = Explainer(exported.explainer, output=1), exported.X[:2]
    exact = exported.explainer.estimate(X).values[..., 1]
    found = theirs.explain_X(X, budget=32)
    np.testing.assert_allclose([iv.get_n_order_values(1) for iv in found], exact, atol=1e-6)
    assert found[0].estimation_budget == 32
    assert not np.allclose(found[0].get_n_order_values(1), theirs.explain(X[:1]).get_n_order_values(1))


def test_images_are_explained_and_played_as_games(image_explainer: FastSHAP) -> None:
    import small_images

    image = small_images.X[3]
    found = Explainer(image_explainer, output=2).explain(image)
    ours = image_explainer.shap_values(image[None])[0, ..., 2]
    np.testing.assert_allclose(found.get_n_order_values(1), ours.ravel(), atol=1e-12)
    game = Game.of(image_explainer, image[None], output=2)
    theirs = shapiq.KernelSHAP(4, random_state=0).approximate(16, game).get_n_order_values(1)
    np.testing.assert_allclose(theirs, image_explainer.estimate(image[None]).values[0, :, 2], atol=1e-5)


def test_the_import_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shapiq", None)
    monkeypatch.delitem(sys.modules, "fastshapley.interop.shapiq")
    with pytest.raises(ImportError, match=r"needs shapiq: install it with pip install 'fastshapley\[shapiq\]'"):
        import fastshapley.interop.shapiq  # noqa: F401


def test_a_conditional_game_explains_without_its_model_but_is_not_evaluated(conditional: Exported) -> None:
    X, fitted, alone = conditional.X[:2], conditional.explainer, FastSHAP.load(conditional.saved)
    exact_values = shapiq.ExactComputer(Game.of(fitted, X[:1], output=1))("SV").get_n_order_values(1)
    np.testing.assert_allclose(exact_values, fitted.estimate(X[:1]).values[0, :, 1], atol=1e-6)
    found = Explainer(alone, output=1).explain_X(X)
    np.testing.assert_allclose(found[0].get_n_order_values(1), alone(X).values[0, :, 1], atol=1e-9)
    for call in (
        lambda: Explainer(alone, output=1).explain_X(X, budget=20),
        lambda: Game.of(alone, X[:1], output=1)(np.ones((1, 5), dtype=bool)),
    ):
        with pytest.raises(ModelError, match="conditional value function calls the model"):
            call()
