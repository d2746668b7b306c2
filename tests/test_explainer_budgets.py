"""Tests of fits with a budget of evaluations or of time, and of the evaluations that fits do not repeat."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from games import Additive, Moebius
from numpy.typing import NDArray
from problems import QUICK, assert_additive, explainer, numbers
from torch import Tensor

from fastshapley import Layers, Targets, Training
from fastshapley.data.model_adapter import AGAIN_ROWS
from fastshapley.errors import InputError
from fastshapley.metrics import relative_squared_error
from fastshapley.value_functions import Baseline, Marginal, Surrogate

# This recipe asks for more evaluations than there are, so only the budget limits them.
WASTEFUL = replace(QUICK, targets=Targets(coalitions=8, evaluations=10**9, rows=10**6))
BUDGETED = {"value_function": "baseline", "recipe": WASTEFUL, "evaluation_budget": 20_000}


def f(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sin(rows[:, 0]) * rows[:, 1] + np.tanh(rows[:, 2] + rows[:, 3])


def f_of_one(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sin(rows[:, 0])


def _processors(count: int, process: int) -> set[int]:
    return set(range(count))


class Counting:
    """A model that records the rows it is called with, and the threads that call it."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seen: list[NDArray[np.float64]] = []
        self.threads: set[int] = set()
        self.seconds = seconds

    def __call__(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        self.seen.append(np.array(rows))
        self.threads.add(threading.get_ident())
        time.sleep(self.seconds * len(rows))
        return f(rows)

    @property
    def calls(self) -> int:
        return sum(map(len, self.seen))


class CountingGame(Moebius):
    """A custom game that counts the coalitions it evaluates."""

    calls = 0

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        self.calls += s[..., 0].numel()
        return super().__call__(x, s)


def own_game(players: int) -> tuple[CountingGame, NDArray[np.float64]]:
    """A game and its rows. The game has no null and grand methods, so these count as ordinary coalitions."""
    game = Moebius.random(players, terms=players)
    return CountingGame(game.members, game.dividends), game.rows(300).numpy()


class TestEvaluations:
    @pytest.mark.parametrize(
        ("value_function", "budgets"),
        [
            (Surrogate, [300, 350, 1000, 10_000]),
            (Baseline, [1300, 2000, 20_000, 60_000]),
            (lambda: Marginal(6), [6300, 20_000, 100_000]),
        ],
        ids=["surrogate", "baseline", "marginal"],
    )
    def test_a_budget_is_never_exceeded(self, value_function: Any, budgets: list[int]) -> None:
        X = numbers(400, 6)
        recipe = (
            QUICK if value_function is Surrogate else WASTEFUL
        )  # evaluations of a surrogate do not call the model
        for budget in budgets:
            model = Counting()
            fitted = explainer(model, value_function=value_function(), recipe=recipe, evaluation_budget=budget).fit(
                X
            )
            assert model.calls <= budget
            assert_additive(fitted, X[:20])

    @pytest.mark.parametrize("players", [4, 8, 14])
    @pytest.mark.parametrize("budget", [1000, 4000, 30_000, 100_000])
    @pytest.mark.parametrize("model", [None, f], ids=["without a model", "with a model"])
    def test_the_budget_of_a_custom_game_is_never_exceeded(self, players: int, budget: int, model: Any) -> None:
        game, X = own_game(players)
        if model is not None:
            budget += 256  # the rows of the model's trial
        fitted = explainer(model, value_function=game, recipe=WASTEFUL, evaluation_budget=budget).fit(X)
        assert game.calls <= budget
        assert np.isfinite(fitted.shap_values(X[:20])).all()

    def test_model_calls_of_a_fitted_game_count_towards_the_budget(self) -> None:
        X = numbers(400, 6)
        model = Counting()
        game = explainer(model, value_function="baseline").fit(X).value_function_
        before = model.calls
        explainer(model, value_function=game, recipe=WASTEFUL, evaluation_budget=20_000).fit(X)
        assert model.calls - before <= 20_000

    def test_one_player_needs_no_evaluations_for_training(self) -> None:
        X = numbers(300, 1)
        fitted = explainer(f_of_one, value_function="marginal", evaluation_budget=400).fit(X)
        np.testing.assert_allclose(fitted.shap_values(X[:5]), fitted.estimate(X[:5]).values[..., 0])

    def test_most_of_a_budget_is_used(self) -> None:
        model = Counting()
        explainer(model, value_function="baseline", recipe=WASTEFUL, evaluation_budget=40_000).fit(numbers(400, 8))
        assert model.calls > 0.75 * 40_000

    def test_a_budget_larger_than_needed_changes_nothing(self) -> None:
        X = numbers()
        free, bounded = Counting(), Counting()
        first = explainer(free, value_function="baseline").fit(X)
        second = explainer(bounded, value_function="baseline", evaluation_budget=10**8).fit(X)
        assert free.calls == bounded.calls
        assert first.shap_values(X).tobytes() == second.shap_values(X).tobytes()

    @pytest.mark.parametrize("value_function", ["surrogate", "baseline", "marginal"])
    def test_too_small_a_budget_raises(self, value_function: str) -> None:
        model = Counting()
        with pytest.raises(InputError, match="evaluation_budget is 100"):
            explainer(model, value_function=value_function, evaluation_budget=100).fit(numbers())

    def test_too_small_a_budget_for_a_custom_game_raises(self) -> None:
        game, X = own_game(4)
        with pytest.raises(InputError, match="evaluation_budget is 100"):
            explainer(None, value_function=game, evaluation_budget=100).fit(X)

    def test_the_error_names_the_smallest_sufficient_budget(self) -> None:
        with pytest.raises(InputError, match=r"takes 1 per coalition: at least 1000 are needed"):
            explainer(f, value_function=Marginal(10), evaluation_budget=1000).fit(numbers())

    @pytest.mark.parametrize("value_function", ["marginal", "baseline"])
    def test_an_evaluation_budget_with_the_paper_recipe_raises(self, value_function: str) -> None:
        fit = explainer(f, value_function=value_function, recipe="paper", evaluation_budget=10**6).fit
        with pytest.raises(InputError, match=r"evaluation_budget: .* Use recipe='default', or a time_budget"):
            fit(numbers())

    def test_a_recipe_without_targets_accepts_an_evaluation_budget_for_a_surrogate(self) -> None:
        model = Counting()
        recipe = replace(QUICK, targets=None)
        explainer(model, recipe=recipe, evaluation_budget=300).fit(numbers())
        assert model.calls <= 300

    def test_more_evaluations_do_not_increase_the_error(self) -> None:
        """The error is the mean relative squared error over seeds, on rows that are not in the training data."""
        X, test = numbers(400, 6), numbers(100, 6, seed=1)
        training = Training(steps=1000, batch_size=64, learning_rate=3e-3, schedule="cosine")
        recipe = replace(WASTEFUL, explainer=training, explainer_layers=Layers(2, 64, "silu"))
        errors = []
        for budget in (1500, 8000, 80_000):
            game = Baseline(np.zeros((1, 6)))
            fits = [
                explainer(f, value_function=game, recipe=recipe, evaluation_budget=budget, random_state=seed).fit(X)
                for seed in range(4)
            ]
            truth = fits[0].estimate(test).values
            errors.append([relative_squared_error(fit.shap_values(test)[..., None], truth) for fit in fits])
        means, variances = np.mean(errors, axis=1), np.var(errors, axis=1, ddof=1) / 4
        for i in range(2):
            assert means[i + 1] <= means[i] + 2 * (variances[i] + variances[i + 1]) ** 0.5
        assert means[2] < 0.5 * means[0]

    def test_a_budget_too_small_for_a_report_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        X = numbers(300, 60)
        fitted = explainer(f, value_function="baseline", recipe=WASTEFUL, evaluation_budget=1260).fit(X)
        assert fitted.report_ is None
        assert "no report: time_budget or evaluation_budget leaves nothing" in caplog.text


class TestTime:
    @pytest.mark.parametrize("value_function", ["surrogate", "baseline", "marginal"])
    @pytest.mark.parametrize("seconds", [1e-9, 0.05, 1, np.float64(2.0)])
    def test_any_time_budget_gives_finite_additive_values(self, value_function: str, seconds: float) -> None:
        X = numbers(600, 6)
        fitted = explainer(f, value_function=value_function, recipe="default", time_budget=seconds).fit(X)
        assert np.isfinite(fitted.shap_values(X)).all()
        assert_additive(fitted, X[:50])

    def test_a_fit_takes_about_its_time_budget(self) -> None:
        """A fit with a budget of 4 seconds takes more than 2 seconds, and less than 12 on a busy machine."""
        X, seconds = numbers(2000, 8), 4.0
        explainer(f, recipe="default", time_budget=0.5).fit(X)  # includes the work that a process does only once
        start = time.monotonic()
        fitted = explainer(f, recipe="default", time_budget=seconds).fit(X)
        assert 0.5 * seconds < time.monotonic() - start < 3 * seconds
        assert_additive(fitted, X[:50])

    def test_a_time_budget_ends_the_paper_recipe(self) -> None:
        X = numbers(400, 6)
        fitted = explainer(f, value_function="baseline", recipe="paper", time_budget=0.5).fit(X)
        assert len(fitted.losses_) - 1 < 200  # the epochs without a budget or patience
        assert_additive(fitted, X[:50])

    def test_a_time_budget_for_a_custom_game_gives_finite_values(self) -> None:
        game, X = own_game(8)
        fitted = explainer(None, value_function=game, recipe="default", time_budget=0.3).fit(X)
        assert np.isfinite(fitted.shap_values(X)).all()

    def test_a_slow_model_labels_fewer_rows(self) -> None:
        X = numbers(3000)
        patient, hurried = Counting(), Counting(seconds=1e-3)
        explainer(patient).fit(X)
        fitted = explainer(hurried, time_budget=1.0).fit(X)
        assert patient.calls >= len(X)
        assert hurried.calls < 0.5 * len(X)
        assert_additive(fitted, X[:50])

    def test_more_time_labels_more_rows(self) -> None:
        X = numbers(3000)
        models = [Counting(seconds=2e-4) for _ in range(2)]
        for model, seconds in zip(models, (0.3, 3.0), strict=True):
            explainer(model, time_budget=seconds).fit(X)
        assert models[0].calls < models[1].calls

    def test_both_budgets_can_be_given_together(self) -> None:
        X = numbers(400, 6)
        model = Counting()
        fitted = explainer(
            model, value_function="baseline", recipe=WASTEFUL, time_budget=1.0, evaluation_budget=5000
        ).fit(X)
        assert model.calls <= 5000
        assert_additive(fitted, X[:50])


@pytest.mark.parametrize("name", ["time_budget", "evaluation_budget"])
@pytest.mark.parametrize("value", [0, -1, -0.5, float("nan"), "long", [10]])
def test_bad_budgets_raise(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} is .*: use a positive number, or None"):
        explainer(f, **{name: value}).fit(numbers())


class TestReproducibility:
    @pytest.mark.parametrize(
        ("value_function", "budget"),
        [("surrogate", 350), ("baseline", 20_000), (Marginal(5), 20_000)],
        ids=["surrogate", "baseline", "marginal"],
    )
    def test_the_same_seed_and_budget_give_the_same_bytes(self, value_function: Any, budget: int) -> None:
        X = numbers(400, 6)
        values = []
        for seed in (0, 0, 1):
            fitted = explainer(f, value_function=value_function, evaluation_budget=budget, random_state=seed)
            values.append(fitted.fit(X).shap_values(X).tobytes())
        assert values[0] == values[1] != values[2]

    def test_several_threads_give_the_same_bytes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        X = numbers(400, 6)
        monkeypatch.setattr("fastshapley.fit.targets.BLOCK_CALLS", 2000)  # many blocks
        values = []
        for processors in (1, 4, 4):
            monkeypatch.setattr(os, "sched_getaffinity", partial(_processors, processors), raising=False)
            values.append(explainer(f).fit(X).shap_values(X).tobytes())
        assert values[0] == values[1] == values[2]

    def test_the_model_is_called_by_one_thread(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fastshapley.fit.targets.BLOCK_CALLS", 2000)
        monkeypatch.setattr(os, "sched_getaffinity", partial(_processors, 4), raising=False)
        model = Counting()
        explainer(model, value_function=Marginal(5)).fit(numbers())
        assert model.threads == {threading.get_ident()}

    @pytest.mark.parametrize(
        ("options", "after"),
        [
            *((BUDGETED, after) for after in (1000, 6000, 9000)),
            *(({"value_function": Marginal(5)}, after) for after in (1000, 2800, 6000)),
        ],
        ids=["early", "midway", "late", "background", "validation set", "training set"],
    )
    def test_a_resumed_fit_gives_the_same_bytes(
        self, options: dict[str, Any], after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Fits with a budget stop early or late. Others stop in the background, validation set or training set."""
        monkeypatch.setattr("fastshapley.fit.targets.BLOCK_CALLS", 1000)
        X = numbers(400, 6)
        whole = Counting()
        expected = explainer(whole, **options).fit(X).shap_values(X)

        class Interrupted(Counting):
            def __call__(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
                if self.calls > after:
                    raise KeyboardInterrupt
                return super().__call__(rows)

        with pytest.raises(KeyboardInterrupt):
            explainer(Interrupted(), **options).fit(X, checkpoint=tmp_path)
        rest = Counting()
        resumed = explainer(rest, **options).fit(X, checkpoint=tmp_path)
        assert resumed.shap_values(X).tobytes() == expected.tobytes()
        assert rest.calls <= whole.calls - (after - 1000) / 2  # a block, or all of the background, is repeated


class TestRepeats:
    """A baseline game of continuous columns evaluates each mixed row once.

    Rows of the trial are not counted. Some of them are called again, to see whether the model answers the same.
    """

    @pytest.mark.parametrize("options", [{}, {"evaluation_budget": 12_000}], ids=["no budget", "with a budget"])
    @pytest.mark.parametrize("columns", [3, 6, 12])
    def test_no_row_is_evaluated_twice(self, columns: int, options: dict[str, Any]) -> None:
        model = Counting()
        game = Baseline(np.full((1, 4 + columns), 0.123))
        explainer(model, value_function=game, **options).fit(numbers(400, 4 + columns))
        trial, *calls = model.seen
        assert len(trial) <= 256
        counts = Counter(row.tobytes() for call in calls for row in call)
        again = Counter(row.tobytes() for row in trial[:AGAIN_ROWS])
        repeated = {row: count for row, count in (counts - again).items() if count > 1}
        assert not repeated


def test_a_game_of_one_player_accepts_budgets() -> None:
    fitted = explainer(None, value_function=Additive(1), evaluation_budget=2000, time_budget=1.0).fit(
        numbers(50, 1)
    )
    assert np.isfinite(fitted.shap_values(numbers(5, 1))).all()
