from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
import shap
import torch
from games import Moebius
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from torch import Tensor, nn

from fastshapley.coalitions import enumerate_coalitions
from fastshapley.data.model_adapter import ModelFunction
from fastshapley.data.table_schema import Table, TableSchema
from fastshapley.errors import InputError, ModelError
from fastshapley.estimators import exact
from fastshapley.players import Features, Groups
from fastshapley.training.loop import Training
from fastshapley.training.recipes import Layers
from fastshapley.training.run import Run
from fastshapley.value_functions import (
    Baseline,
    Marginal,
    Missing,
    Problem,
    Surrogate,
    ValueFunction,
    evaluate,
    grand_values,
    null_values,
)
from fastshapley.value_functions.base_game import GameContext
from fastshapley.value_functions.links import Link, apply_link

RUN = Run(seed=0)
QUICK = (Training(steps=1200, batch_size=64, learning_rate=1e-2, schedule="cosine"),)
SMALL = Layers(2, 32, "silu")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small batches on several threads wait for each other, long if other processes hold the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def problem(model: Any, X: Table, players: Features | Groups | None = None, link: Link = "identity") -> Problem:
    schema = TableSchema.of(X)
    x = schema.encode(X)
    return Problem(ModelFunction(model, schema, x), x, x, (players or Features()).bind(schema.names), link)


def normal_frame(rows: int = 60) -> pd.DataFrame:
    return pd.DataFrame(np.random.default_rng(0).normal(size=(rows, 4)), columns=list("abcd"))


def encoded(X: pd.DataFrame) -> Tensor:
    return torch.tensor(X.to_numpy())


def every(players: int, rows: int) -> Tensor:
    return enumerate_coalitions(players).expand(rows, -1, -1)


@pytest.fixture(scope="module")
def classifier() -> Any:
    X = normal_frame()
    return LogisticRegression().fit(X, (X.a * X.b + X.c > 0).astype(int) + (X.d > 1))


# -- Marginal, Baseline, Missing


@pytest.mark.parametrize("link", ["identity", "logit"])
def test_marginal_is_a_loop_over_background_rows_and_links_their_mean(classifier: Any, link: Link) -> None:
    X = normal_frame()
    background = X[10:15]
    game = Marginal(background).fit(problem(classifier, X, link=link), RUN)
    x = encoded(X[:2])
    s = every(4, 2)
    v = game(x, s)
    assert v.shape == (2, 16, 3)
    for row, number in itertools.product(range(2), range(16)):
        mixed = background.copy()
        for column in range(4):
            if s[row, number, column]:
                mixed.iloc[:, column] = X.to_numpy()[row, column]
        mean = classifier.predict_proba(mixed).mean(0)
        expected = mean if link == "identity" else np.log(mean / (1 - mean))
        np.testing.assert_allclose(v[row, number], expected, atol=1e-6)


def test_marginal_is_interventional_tree_shap() -> None:
    X = normal_frame(200)
    model = lightgbm.LGBMRegressor(n_estimators=10, num_leaves=5, n_jobs=1, verbose=-1).fit(X, X.a * X.b + X.c)
    background = X[:20]
    game = Marginal(background).fit(problem(model, X), RUN)
    theirs = shap.TreeExplainer(model, background, feature_perturbation="interventional").shap_values(X[:5])
    ours = exact(game, encoded(X[:5])).values[..., 0]
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_a_linear_model_has_its_closed_form() -> None:
    """Each value is the coefficient times the distance from the background's mean."""
    X = normal_frame()
    model = LinearRegression().fit(X, X.a - 2 * X.b + X.c * X.d)
    game = Marginal(X[:20]).fit(problem(model, X), RUN)
    closed = model.coef_ * (X[:5] - X[:20].mean()).to_numpy()
    np.testing.assert_allclose(exact(game, encoded(X[:5])).values[..., 0], closed, atol=1e-6)


@pytest.mark.parametrize("count", [7, np.int64(7), 1000])
def test_marginal_draws_training_rows(classifier: Any, count: int) -> None:
    X = normal_frame()
    task = problem(classifier, X)
    rows = Marginal(count).fit(task, RUN).rows_
    assert len(rows) == min(count, len(X))
    assert len(rows.unique(dim=0)) == len(rows)
    assert {tuple(row) for row in rows.tolist()} <= {tuple(row) for row in task.x[:].tolist()}
    assert torch.equal(Marginal(count).fit(task, RUN).rows_, rows)
    assert count > 7 or not torch.equal(Marginal(count).fit(task, Run(seed=1)).rows_, rows)


@pytest.mark.parametrize(("background", "message"), [(0, "background is 0"), (normal_frame()[:0], "no rows")])
def test_marginal_needs_background(classifier: Any, background: int | Table, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Marginal(background).fit(problem(classifier, normal_frame()), RUN)


def test_mixed_rows_are_built_in_chunks(classifier: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    game = Marginal(5).fit(problem(classifier, normal_frame()), RUN)
    x = encoded(normal_frame())
    whole = game(x, every(4, len(x)))
    monkeypatch.setattr("fastshapley.value_functions.removal.MEMORY", 1000)
    torch.testing.assert_close(game(x, every(4, len(x))), whole, rtol=0, atol=1e-14)


def game_with_repeats(players: int, kind: Baseline | Marginal) -> tuple[Any, list[Any], Tensor, Tensor]:
    """A game, the rows that its model is called with, and rows with coalitions that come again and again."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, players))
    seen: list[Any] = []
    weight = rng.normal(size=(players, 2))

    def model(rows: Any) -> Any:
        seen.append(np.array(rows))
        return np.tanh(rows @ weight)

    task = problem(model, X)
    game = kind.fit(task, RUN)
    seen.clear()
    s = torch.from_numpy(rng.random((5, 7, players)) < 0.5)
    s[0, 0], s[0, 1], s[1, 0] = True, False, s[0, 2]  # another row's coalition is another matter
    s[2, 1] = s[2, 0]
    s[2, 1, -1] = ~s[2, 0, -1]  # only the last player differs
    s[2, 2] = s[2, 0]
    s[2, 2, 0] = ~s[2, 0, 0]  # only the first does
    order = torch.from_numpy(rng.permutation(21))
    return game, seen, task.x[:5], s.repeat(1, 3, 1)[:, order]


@pytest.mark.parametrize("players", [3, 4, 8, 9, 63, 64, 65, 130])
@pytest.mark.parametrize("kind", [Baseline(), Marginal(4)], ids=["baseline", "marginal"])
def test_no_coalition_of_a_row_is_evaluated_twice_in_a_call(players: int, kind: Baseline | Marginal) -> None:
    game, seen, x, s = game_with_repeats(players, kind)
    v = game(x, s)
    distinct = sum(len(row.unique(dim=0)) for row in s)
    assert distinct < s[..., 0].numel()
    assert sum(map(len, seen)) == distinct * game.cost
    alone = torch.stack(
        [torch.cat([game(x[i : i + 1], s[i : i + 1, j : j + 1]) for j in range(21)], 1)[0] for i in range(5)]
    )
    torch.testing.assert_close(v, alone, rtol=0, atol=1e-14)


def test_no_rows_and_no_coalitions(classifier: Any) -> None:
    game = Baseline().fit(problem(classifier, normal_frame()), RUN)
    x = encoded(normal_frame()[:3])
    assert game.grand(x[:0]).shape == (0, 3)


def test_the_columns_of_a_group_come_and_go_together(classifier: Any) -> None:
    X = normal_frame()
    alone = Baseline().fit(problem(classifier, X), RUN)
    grouped = Baseline().fit(problem(classifier, X, Groups({"ac": ["a", "c"]})), RUN)
    assert grouped.players == 3
    x = encoded(X[:3])
    s = every(3, 3)
    torch.testing.assert_close(grouped(x, s), alone(x, s[..., [0, 1, 0, 2]]))


def mixed_frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "pay": [1.0, 2.0, np.nan, 6.0],
            "age": [20, 31, 40, 50],
            "job": ["chef", "clerk", "clerk", None],
            "old": [True, False, True, True],
        }
    )


class Recorder:
    """A model that keeps what it is called with."""

    def __init__(self) -> None:
        self.seen: list[pd.DataFrame] = []

    def __call__(self, X: pd.DataFrame) -> NDArray[np.float64]:
        self.seen.append(X)
        return np.zeros(len(X))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (None, [3.0, 35.25, "clerk", True]),
        ({"job": "chef", "age": 30}, [3.0, 30, "chef", True]),
        (pd.DataFrame({"pay": [9.0], "age": [1], "job": ["chef"], "old": [False]}), [9.0, 1, "chef", False]),
    ],
    ids=["mean and mode", "mapping", "one row"],
)
def test_baseline_values(values: Any, expected: list[Any]) -> None:
    X, model = mixed_frame(), Recorder()
    task = problem(model, X)
    game = Baseline(values).fit(task, RUN)
    game(task.x[:1], torch.zeros(1, 1, 4, dtype=torch.bool))
    assert model.seen[-1].iloc[0].tolist() == expected
    game(task.x[:1], torch.tensor([[[True, False, True, False]]]))
    assert model.seen[-1].iloc[0].tolist() == [1.0, expected[1], "chef", expected[3]]


@pytest.mark.parametrize(
    ("values", "message"),
    [({"wage": 1}, "'wage', which is not a column"), (mixed_frame(), "4 rows: pass one row")],
)
def test_bad_baselines(values: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Baseline(values).fit(problem(Recorder(), mixed_frame()), RUN)


def test_missing_hides_by_gaps() -> None:
    X = normal_frame()
    X.iloc[::3, 0] = np.nan
    model = HistGradientBoostingClassifier(max_iter=5, min_samples_leaf=5).fit(X, X.b > 0)
    game = Missing().fit(problem(model, X), RUN)
    s = torch.tensor([[[True, True, False, False], [False, False, False, True]]])
    v = game(encoded(X[1:2]), s)
    for number in range(2):
        hidden = X[1:2].where(s[0, number].numpy()[None])
        np.testing.assert_allclose(v[0, number], model.predict_proba(hidden)[0])


def test_a_game_without_its_model_says_what_to_do(classifier: Any) -> None:
    game = Baseline().fit(problem(classifier, normal_frame()), RUN)
    context = GameContext(game.schema_, game.partition_, torch.device("cpu"))
    alone = Baseline.restore(*game.describe(), context)
    assert torch.equal(null_values(alone, game.rows_), game.null[None])
    with pytest.raises(ModelError, match=r"load\(path, model=model\)"):
        grand_values(alone, game.rows_)


# -- links


def test_logit_of_probabilities() -> None:
    y = torch.tensor([0.0, 0.2, 1.0])
    linked = apply_link("logit", y)
    assert linked[1] == pytest.approx(np.log(0.25), abs=1e-6)
    assert linked.isfinite().all()
    assert torch.equal(apply_link("identity", y), y)
    assert apply_link("logit", y[:0]).shape == (0,)


@pytest.mark.parametrize("game", [Marginal(), Surrogate(training=())], ids=["marginal", "surrogate"])
def test_logit_refuses_outputs_that_are_no_probabilities_at_fit(game: Marginal | Surrogate) -> None:
    X = normal_frame()
    model = LinearRegression().fit(X, X.a + 0.5)  # the mean output is within [0, 1]
    with pytest.raises(InputError, match="not probabilities: use link='identity'"):
        game.fit(problem(model, X, link="logit"), RUN)


def test_an_unknown_link_is_named() -> None:
    with pytest.raises(InputError, match="link is 'probit'"):
        apply_link("probit", torch.zeros(1))  # type: ignore[arg-type]


# -- Surrogate, on independent binary columns: E[f | x_s] is the mean over the rows that agree on s

BITS = enumerate_coalitions(4).double()
TABLE = BITS.repeat(16, 1)
SCORES = torch.tensor([[1.0, -2.0, 0.5], [-1.0, 1.0, 1.0], [2.0, 0.0, -1.0], [0.5, 0.5, 0.0]], dtype=torch.float64)


def probabilities(classes: int) -> Callable[[Tensor], Tensor]:
    return lambda x: (x @ SCORES[:, :classes]).softmax(1)


def probability(x: Tensor) -> Tensor:
    return (x @ SCORES[:, 0] - 1).sigmoid()


def regression(outputs: int) -> Callable[[Tensor], Tensor]:
    return lambda x: 100 + 10 * x @ SCORES[:, :outputs] + 5 * x[:, :1] * x[:, 1:2]


def booster() -> Any:
    """A model that is known to return the probability of one class alone."""
    options = {"objective": "binary", "min_data_in_leaf": 1, "verbose": -1, "num_threads": 1}
    data = lightgbm.Dataset(TABLE.numpy(), (TABLE[:, 0] + TABLE[:, 1] + TABLE[:, 2] > 1).numpy())
    return lightgbm.train(options, data, num_boost_round=10)


def conditional_expectations(y: Tensor) -> Tensor:
    """E[y | x_s] for the 16 rows and the 16 coalitions, (16, 16, outputs), y being the rows' outputs."""
    agree = ((BITS[:, None, None] == BITS) | ~enumerate_coalitions(4)[:, None]).all(-1)  # row, coalition, row
    return (agree.double() @ y) / agree.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("model", "scale", "link"),
    [
        (probabilities(2), "probabilities", "identity"),
        (probabilities(3), "probabilities", "identity"),
        (probabilities(3), "probabilities", "logit"),
        (booster, "probability", "identity"),
        (probability, "probability", "logit"),
        (regression(1), "real", "identity"),
        (regression(3), "real", "identity"),
    ],
    ids=["2 classes", "3 classes", "3 logits", "1 probability", "1 logit", "1 number", "3 numbers"],
)
def test_the_surrogate_is_the_conditional_expectation(model: Any, scale: str, link: Link) -> None:
    model = model() if model is booster else model
    X: Table = TABLE.numpy() if isinstance(model, lightgbm.Booster) else TABLE
    task = problem(model, X, link=link)
    game = Surrogate(training=QUICK, layers=SMALL, coalitions=4).fit(task, RUN)
    assert isinstance(game, Surrogate)
    assert game.scale == scale
    truth = apply_link(link, conditional_expectations(task.model(BITS)))
    v = evaluate(game, BITS, every(4, 16))
    error = (v - truth).square().mean() / (truth - truth.mean((0, 1))).square().mean()
    assert error < 0.01  # of the variance


def body(outputs: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, outputs))


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def test_a_network_of_the_users_is_trained_as_a_copy() -> None:
    network = body()
    before = state(network)
    task = problem(probabilities(2), TABLE)
    game = Surrogate(network, training=QUICK).fit(task, RUN)
    truth = conditional_expectations(task.model(BITS))
    error = (evaluate(game, BITS, every(4, 16)) - truth).square().mean()
    assert error < 0.05 * truth.var()
    torch.testing.assert_close(state(network), before)


def test_without_training_a_network_is_taken_as_it_is() -> None:
    network = body().eval()
    game = Surrogate(network, training=()).fit(problem(probabilities(2), TABLE), RUN)
    assert isinstance(game, Surrogate)
    torch.testing.assert_close(state(game.network_.body), state(network))
    s = torch.ones(16, 1, 4, dtype=torch.bool)
    inputs = torch.cat([2 * BITS - 1, torch.ones(16, 4)], 1).float()  # standardised: half of the bits are one
    torch.testing.assert_close(game(BITS, s)[:, 0], network(inputs).softmax(1))


@pytest.mark.parametrize(
    ("network", "got"),
    [
        (body(3), r"returned shape \(2, 3\)"),
        (nn.Linear(5, 2), "shapes cannot be multiplied"),
        (nn.Sequential(nn.Linear(8, 1), nn.Flatten(0)), r"returned shape \(2,\)"),
        (nn.LSTM(8, 2), "tuple"),
    ],
    ids=["outputs", "inputs", "one axis", "a tuple"],
)
def test_a_network_of_the_wrong_shape_is_reported_before_training(network: nn.Module, got: str) -> None:
    with pytest.raises(InputError, match=rf"network must be a module from \(b, 8\) to \(b, 2\).*{got}"):
        Surrogate(network).fit(problem(probabilities(2), TABLE), RUN)


def test_a_tree_model_as_surrogate_gets_gaps() -> None:
    X = normal_frame()
    model = LogisticRegression().fit(X, X.a > 0)
    trees = HistGradientBoostingClassifier(max_iter=5, min_samples_leaf=5).fit(X, X.a > 0)
    game = Surrogate(trees).fit(problem(model, X), RUN)
    x = encoded(X)
    np.testing.assert_allclose(grand_values(game, x), trees.predict_proba(X))
    s = torch.tensor([True, False, True, False]).expand(len(x), 1, 4)
    hidden = X.assign(b=np.nan, d=np.nan)
    np.testing.assert_allclose(evaluate(game, x, s)[:, 0], trees.predict_proba(hidden))


def test_a_surrogate_with_other_outputs_is_refused() -> None:
    X = normal_frame()
    trees = HistGradientBoostingRegressor(max_iter=5).fit(X, X.a)
    with pytest.raises(ModelError, match="surrogate has 1 outputs where the model has 2"):
        Surrogate(trees).fit(problem(LogisticRegression().fit(X, X.a > 0), X), RUN)


@pytest.mark.parametrize("kind", [Surrogate, Missing])
def test_clones_keep_a_fitted_estimator(kind: Callable[[Any], Any]) -> None:
    X = normal_frame()
    trees = HistGradientBoostingRegressor(max_iter=5).fit(X, X.a)
    game = clone(kind(trees)).fit(problem(trees, X), RUN)
    assert game.outputs == 1


def test_same_seed_same_surrogate_and_global_generators_untouched() -> None:
    before = torch.get_rng_state()
    task = problem(probabilities(2), TABLE)
    short = (Training(steps=20),)
    first, again, other = (
        evaluate(Surrogate(training=short).fit(task, Run(seed)), BITS, every(4, 16)) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_default_recipe_trains_a_surrogate_of_a_constant_model() -> None:
    game = Surrogate().fit(problem(lambda x: torch.full((len(x),), 3.0), TABLE), RUN)
    v = evaluate(game, BITS, every(4, 16))
    torch.testing.assert_close(v, torch.full_like(v, 3.0), atol=1e-2, rtol=0)


# -- the protocol


@pytest.mark.parametrize("link", ["identity", "logit"])
@pytest.mark.parametrize("kind", ["surrogate", "marginal", "baseline", "missing"])
def test_null_and_grand_are_the_empty_and_the_full_coalition(kind: str, link: Link) -> None:
    X = normal_frame()
    model = HistGradientBoostingClassifier(max_iter=5).fit(X, X.a > 0)
    games: dict[str, Any] = {
        "surrogate": Surrogate(training=()),
        "marginal": Marginal(5),
        "baseline": Baseline(),
        "missing": Missing(),
    }
    game = games[kind].fit(problem(model, X, link=link), RUN)
    assert isinstance(game, ValueFunction)
    x = encoded(X[:5])
    s = torch.zeros(5, 2, 4, dtype=torch.bool)
    s[:, 1] = True
    v = evaluate(game, x, s)
    torch.testing.assert_close(null_values(game, x), v[:, 0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(grand_values(game, x), v[:, 1], atol=1e-6, rtol=1e-5)
    assert not torch.allclose(v[:, 0], v[:, 1])


def test_an_object_of_the_users_needs_no_null_or_grand() -> None:
    game = Moebius.random(3, outputs=2)
    x = game.rows(4)
    assert not null_values(game, x).any()
    torch.testing.assert_close(grand_values(game, x), x @ game.dividends)


class Users:
    players, outputs = 2, 1

    def __init__(self, result: Any, null: Any = None) -> None:
        self.result, self.null = result, null

    def __call__(self, x: Tensor, s: Tensor) -> Any:
        return self.result

    def grand(self, x: Tensor) -> Any:
        return self.result


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (torch.zeros(3, 4), r"returned \(3, 4\): expected a tensor of shape \(3, 4, 1\)"),
        (np.zeros((3, 4, 1)), "returned a ndarray"),
        (
            torch.tensor([0.0, torch.nan, torch.inf])[:, None, None].expand(3, 4, 1),
            r"not finite for 2 rows, numbers \[1, 2\]",
        ),
    ],
    ids=["shape", "type", "finite"],
)
def test_evaluate_reports_what_is_wrong(result: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(Users(result), torch.zeros(3, 2), torch.zeros(3, 4, 2, dtype=torch.bool))


def test_null_and_grand_are_checked_too() -> None:
    game = Users(torch.zeros(3, 2), null=torch.zeros(2))
    with pytest.raises(InputError, match=r"null has shape \(2,\) where \(1,\)"):
        null_values(game, torch.zeros(3, 2))
    with pytest.raises(InputError, match=r"grand .* returned \(3, 2\): expected a tensor of shape \(3, 1\)"):
        grand_values(game, torch.zeros(3, 2))


def test_values_come_without_gradients() -> None:
    game = Users(torch.zeros(1, 1, requires_grad=True))
    assert not grand_values(game, torch.zeros(1, 2)).requires_grad
