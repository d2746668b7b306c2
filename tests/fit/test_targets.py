"""Tests of the training and validation sets of an explainer: sizes, values, time limits and checkpoints."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from games import Additive, Moebius
from problems import QUICK, numbers
from torch import Tensor

from fastshapley import Targets, Training
from fastshapley.coalitions import enumerate_coalitions, kernel_sizes
from fastshapley.data.model_adapter import ModelFunction
from fastshapley.data.table_schema import TableSchema
from fastshapley.fit.targets import TrainingRows, TrainingSet, prepare_training, prepare_validation
from fastshapley.objective import coalition_loss
from fastshapley.players import Features
from fastshapley.training.checkpoint import Checkpoint
from fastshapley.training.process_group import ProcessGroup
from fastshapley.training.recipes import Recipe
from fastshapley.training.run import Clock, Run
from fastshapley.value_functions import Marginal, Problem, Surrogate, ValueFunction
from fastshapley.value_functions.background_sampling import Thin, thinning
from fastshapley.value_functions.base_game import GameTraits

RUN = Run(seed=0)
PACE = 1e-6
NOBODY = torch.Generator()  # for losses that draw nothing


class Counting(Moebius):
    """A game that counts its evaluations, records the calling threads, and stops after ``most`` evaluations."""

    calls = 0
    most = 1 << 40

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        if self.calls >= self.most:
            raise KeyboardInterrupt
        self.calls += s[..., 0].numel()
        self.threads = getattr(self, "threads", set()) | {threading.get_ident()}
        return super().__call__(x, s)


def counting(players: int, outputs: int = 1) -> Counting:
    game = Moebius.random(players, outputs=outputs, terms=3 * players)
    return Counting(game.members, game.dividends)


def recipe(**options: Any) -> Recipe:
    return replace(QUICK, targets=Targets(**{"coalitions": 8, "evaluations": 100_000, "rows": 1000, **options}))


def unthinned(game: ValueFunction) -> Thin:
    """Return the game unchanged for any number of rows."""
    return lambda rows, generator: game


def lesson(
    game: ValueFunction,
    x: Tensor,
    recipe: Recipe,
    run: Run = RUN,
    *,
    thin: Thin | None = None,
    scale: Tensor | None = None,
    pace: float = PACE,
) -> TrainingSet:
    scale = torch.ones(game.outputs, dtype=torch.float64) if scale is None else scale
    owner = list(range(x.shape[1]))
    thin = unthinned(game) if thin is None else thin
    rows = TrainingRows(x, x, [False] * x.shape[1], owner)
    return prepare_training(thin, rows, scale, pace, recipe, run)


def loss_of(found: TrainingSet, phi: Tensor) -> Tensor:
    return found.loss(phi.float(), (torch.arange(len(phi)), found.x[:]), NOBODY)


def expected_loss(game: Moebius, x: Tensor, phi: Tensor) -> Tensor:
    """The paper's loss of each row over all coalitions, weighted by the Shapley kernel."""
    s = enumerate_coalitions(game.players)[1:-1].expand(len(x), -1, -1)
    sizes = s[0].sum(1)
    share = kernel_sizes(game.players).double()[sizes - 1]
    weight = share / torch.bincount(sizes)[sizes]
    assert float(weight.sum()) == pytest.approx(1)
    residual = game(x, s) - s.double() @ phi
    return (weight[:, None] * residual.square()).sum(1).mean(1)


# -- validation sets


def test_all_processes_plan_with_the_mean_pace() -> None:
    class Unlike(ProcessGroup):
        """Two processes; the other one takes three more seconds per row."""

        def everyone(self, value: Any) -> list[Any]:
            return [value, value + 3.0]

    processes = Unlike()
    processes.size = 2
    game = counting(4)
    exam = prepare_validation(unthinned(game), game.rows(50), recipe(), replace(RUN, processes=processes))
    assert exam.pace == pytest.approx(1.5, abs=0.1)  # the pace of this process is microseconds


def test_a_validation_set_has_coalition_pairs_and_their_values() -> None:
    game = Additive(6, outputs=2)
    x = game.rows(40)
    exam = prepare_validation(unthinned(game), x, recipe(), RUN)
    assert exam.s.shape == (40, 16, 6)
    torch.testing.assert_close(exam.worth, (exam.x[:, None] * exam.s) @ game.weight)
    torch.testing.assert_close(exam.total, exam.x @ game.weight)
    assert exam.s.any(2).all()
    assert not exam.s.all(2).any()
    for row in exam.s:
        drawn = sorted(s.tolist() for s in row)
        assert drawn == sorted((~s).tolist() for s in row)
    rows = {tuple(row) for row in exam.x.tolist()}
    assert rows == {tuple(row) for row in x.tolist()}
    assert exam.pace > 0


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        (recipe(evaluations=10_000), 62),  # a tenth of the evaluations, at 16 coalitions per row
        (recipe(evaluations=100), 1),
        (recipe(evaluations=10**9), 200),
        (replace(recipe(evaluations=10**9), validation_rows=50), 50),
        (replace(QUICK, targets=None, validation_rows=70), 70),
    ],
    ids=["a tenth", "at least one", "all rows", "validation_rows", "fresh coalitions"],
)
def test_number_of_validation_rows(options: Recipe, rows: int) -> None:
    game = Additive(5)
    exam = prepare_validation(unthinned(game), game.rows(200), options, RUN)
    assert len(exam.x) == len(exam.s) == len(exam.worth) == len(exam.total) == rows


def marginal(background: int, columns: int = 4, seconds: float = 0.0) -> tuple[Marginal, Any, Tensor]:
    """A game of an additive model, the model, and rows; the model takes ``seconds`` per row on ``model.now``."""

    class Model:
        calls = 0
        now = 0.0

        def __call__(self, rows: Any) -> Any:
            self.calls += len(rows)
            self.now += seconds * len(rows)
            return rows[:, 0] - 2 * rows[:, 1] + np.sin(rows[:, 2])

    X = numbers(200, columns)
    schema, model = TableSchema.of(X), Model()
    x = schema.encode(X)
    task = Problem(ModelFunction(model, schema, x[:10]), x, x, Features().bind(schema.names))
    game = Marginal(background).fit(task, RUN)
    model.calls = 0
    return game, model, x


def test_validation_of_a_marginal_game_costs_the_background_per_coalition() -> None:
    game, model, x = marginal(10)
    exam = prepare_validation(unthinned(game), x, recipe(evaluations=32_000), RUN)
    assert len(exam.x) == 20
    assert model.calls <= 3200 + 20  # plus the grand values


def test_validation_of_a_thinned_game_costs_one_row_per_coalition() -> None:
    game, model, x = marginal(10)
    options = recipe(evaluations=32_000)
    exam = prepare_validation(thinning(game), x, options, RUN)
    assert len(exam.x) == 200
    assert model.calls == 200 * 16 + 200


@pytest.mark.parametrize("few", [True, False], ids=["thinned", "whole"])
def test_the_pace_is_the_time_per_row_of_the_model(few: bool) -> None:
    game, model, x = marginal(10, columns=12, seconds=1e-4)
    options = recipe(evaluations=32_000)
    thin = thinning(game) if few else unthinned(game)
    pace = prepare_validation(thin, x, options, Run(0, clock=Clock(now=lambda: model.now))).pace
    assert 0.8e-4 < pace < 1.2e-4  # grand values are extra; repeated coalitions may be evaluated once


class Ticking(Additive):
    """A game that takes ``seconds`` per coalition on a simulated clock."""

    now = 0.0

    def __init__(self, seconds: float) -> None:
        super().__init__(4)
        self.seconds = seconds

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        self.now += self.seconds * s[..., 0].numel()
        return super().__call__(x, s)


@pytest.mark.parametrize("targets", [True, False])
def test_a_slow_game_has_fewer_validation_rows(targets: bool) -> None:
    """The number is unchanged for a recipe without targets. The pace is the time per coalition of the game."""
    options = recipe(evaluations=10**9) if targets else replace(QUICK, targets=None)
    lengths = []
    for seconds in (1e-9, 1e-3, 1.0):
        game = Ticking(seconds)
        run = Run(0, clock=Clock(now=partial(getattr, game, "now")))
        exam = prepare_validation(unthinned(game), game.rows(400), options, run)
        lengths.append(len(exam.s))
        assert seconds <= exam.pace < 1.5 * seconds  # null and grand are evaluated in addition to the 16 coalitions
    assert lengths[0] == 400
    assert (400 > lengths[1] > lengths[2] > 0) if targets else lengths == [400] * 3


def test_a_validation_set_is_saved_in_the_checkpoint(tmp_path: Path) -> None:
    game = counting(5)
    x = game.rows(60)
    first = prepare_validation(unthinned(game), x, recipe(), Run(0, Checkpoint(tmp_path)))
    spent = game.calls
    again = prepare_validation(unthinned(game), x, recipe(), Run(0, Checkpoint(tmp_path)))
    assert game.calls == spent
    assert again.pace == first.pace
    for name in ("x", "total", "s", "worth"):
        assert torch.equal(getattr(again, name), getattr(first, name))


# -- training sets with targets


def test_targets_from_all_coalitions_are_the_exact_values() -> None:
    game = Moebius.random(6, outputs=2)
    x = game.rows(600)
    scale = torch.tensor([0.5, 3.0], dtype=torch.float64)
    found = lesson(game, x, recipe(coalitions=16, rows=600), scale=scale)
    assert torch.equal(found.x[:], x)
    truth = game.shapley(x) / scale
    torch.testing.assert_close(found.total, truth.sum(1).float(), atol=1e-5, rtol=1e-5)
    assert loss_of(found, truth) < 1e-9  # the least squares are solved in float32
    step = torch.randn(truth.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float(loss_of(found, truth + step)) == pytest.approx(float(step.square().mean()), rel=1e-4)
    some = torch.tensor([5, 17, 5])
    alone = found.loss((truth + step)[some].float(), (some, found.x[some]), NOBODY)
    assert float(alone) == pytest.approx(float(step[some].square().mean()), rel=1e-4)


def test_targets_are_unbiased() -> None:
    """The loss of the true values is the noise; a shift adds the square of the shift."""
    game = Moebius.random(12, terms=40, seed=1)
    x = torch.ones(600, 40, dtype=torch.float64)
    found = lesson(game, x, recipe(coalitions=16, evaluations=10**6, rows=600))
    truth = game.shapley(x)
    noise = float(loss_of(found, truth))
    assert 0 < noise < 0.1 * float(truth.square().mean())
    step = 0.5 * torch.randn(12, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    step -= step.mean()
    more = float(loss_of(found, truth + step)) - noise - float(step.square().mean())
    # the cross term: 600 independent rows, each with noise of this size in the direction of the step
    assert abs(more) < 4 * 2 * (noise * float(step.square().mean()) / 600) ** 0.5


@pytest.mark.parametrize(
    ("evaluations", "most", "rows"),
    [(10**6, 50, 700), (10**6, 1000, 1000), (40_000, 1000, 625)],  # at 64 coalitions per row
    ids=["all rows", "all rows and mixed rows", "some rows"],
)
def test_number_of_rows_with_targets(evaluations: int, most: int, rows: int) -> None:
    game = Moebius.random(6)
    x = game.rows(700)
    found = lesson(game, x, recipe(coalitions=16, evaluations=evaluations, rows=most))
    assert len(found.x) == len(found.total) == rows
    known = {tuple(row) for row in x.tolist()}
    if rows > 700:
        assert torch.equal(found.x[:700], x)
        assert known.isdisjoint(tuple(row) for row in found.x[700:].tolist())
    else:
        assert {tuple(row) for row in found.x[:].tolist()} <= known
    assert len(found.x[:].unique(dim=0)) == rows


# -- training sets of a thinned marginal game


def additive_values(game: Marginal, x: Tensor) -> Tensor:
    """Shapley values of the additive model: each term minus its mean over the background."""

    def terms(x: Tensor) -> Tensor:
        return torch.stack([x[:, 0], -2 * x[:, 1], x[:, 2].sin(), *torch.zeros_like(x.T[3:])], dim=1)[..., None]

    return terms(x) - terms(game.rows_).mean(0)


def thinned(game: Marginal, *, known: bool = True) -> Thin:
    """Thin the game, with or without the values of the background rows."""
    added = additive_values(game, game.rows_) if known else None
    return thinning(game, added)


def test_with_few_players_each_coalition_gets_several_background_rows() -> None:
    """4 players have 16 coalitions; if 64 are requested, each is evaluated with 4 background rows."""
    game, model, x = marginal(10)
    found = lesson(game, x, recipe(coalitions=16, evaluations=40_000), thin=thinned(game))
    assert len(found.x) == 40_000 // 64
    assert model.calls == len(found.x) * (14 * 4 + 1)  # null is known, grand is one call
    assert (
        float(loss_of(found, additive_values(game, found.x[:]))) < 1e-9
    )  # the background values are known, so there is no noise


def test_with_many_players_each_coalition_gets_one_background_row() -> None:
    game, model, x = marginal(10, columns=10)
    found = lesson(game, x, recipe(coalitions=8, evaluations=50_000), thin=thinned(game))
    assert len(found.x) == 50_000 // 80
    assert model.calls == len(found.x) * 81
    assert float(loss_of(found, additive_values(game, found.x[:]))) < 1e-5  # the ridge penalty has an effect


def test_targets_of_a_thinned_game_are_unbiased() -> None:
    """Without background values the targets are noisy, but their mean over repeats of a row is correct."""
    game, _, x = marginal(10)
    found = lesson(
        game,
        x[:1].expand(600, -1),
        recipe(coalitions=4, evaluations=10**6, rows=600),
        thin=thinned(game, known=False),
    )
    truth = additive_values(game, x[:1]).expand(600, -1, -1)
    noise = float(loss_of(found, truth))
    assert noise > 1e-3
    for step in torch.eye(4, dtype=torch.float64)[:3, :, None] - torch.eye(4, dtype=torch.float64)[1:, :, None]:
        more = float(loss_of(found, truth + step)) - noise - float(step.square().mean())
        # the cross term: 600 independent rows, each with noise of at most this size in the direction of the step
        assert abs(more) < 4 * 2 * (noise * float(step.square().mean()) / 600) ** 0.5


def test_coalition_loss_of_a_thinned_game() -> None:
    """It costs one row of the model per coalition, and is zero for an additive model."""
    game, model, x = marginal(10, columns=8)
    found = lesson(game, x, recipe(coalitions=16, evaluations=6400), thin=thinned(game))
    assert len(found.x) == 6400 // 32
    assert model.calls == len(found.x) * 33
    assert float(loss_of(found, additive_values(game, found.x[:]))) < 1e-9


# -- training sets with few coalitions per row


@pytest.mark.parametrize("evaluations", [3200, 20_000])  # enough for 100 and for 625 of the 2000 rows
def test_if_evaluations_are_expensive_the_loss_is_the_papers(
    evaluations: int, caplog: pytest.LogCaptureFixture
) -> None:
    game = Moebius.random(10, terms=40, seed=1)
    x = game.rows(2000)
    with caplog.at_level("INFO"):
        found = lesson(game, x, recipe(coalitions=16, evaluations=evaluations))
    assert len(found.x) == evaluations // 32
    assert f"32 coalitions per row are evaluated once, for {len(found.x)} rows" in caplog.text
    truth = game.shapley(found.x[:])
    expected = expected_loss(game, found.x[:], truth)
    alone = torch.stack(
        [
            found.loss(truth[row : row + 1].float(), (torch.tensor([row]), found.x[row : row + 1]), NOBODY)
            for row in range(len(truth))
        ]
    )
    difference = alone.double() - expected
    assert abs(float(difference.mean())) < 4 * float(difference.std()) / len(difference) ** 0.5
    assert torch.equal(loss_of(found, truth), loss_of(found, truth))  # coalitions are stored, not drawn again


def test_a_recipe_without_targets_draws_fresh_coalitions() -> None:
    game = counting(6, outputs=3)
    x = game.rows(100)
    fresh = replace(QUICK, targets=None)
    found = lesson(game, x, fresh)
    assert torch.equal(found.x[:], x)
    torch.testing.assert_close(found.total, game.shapley(x).sum(1).float(), atol=1e-4, rtol=1e-4)
    phi, batch = game.shapley(x).float(), (torch.arange(100), x)
    generator = torch.Generator().manual_seed(0)
    first, second = found.loss(phi, batch, generator), found.loss(phi, batch, generator)
    assert first != second
    assert found.loss(phi, batch, torch.Generator().manual_seed(0)) == first
    one = lesson(game, x, replace(fresh, outputs_per_step=1))
    seen = {round(float(one.loss(phi * torch.tensor([0, 10, 1000.0]), batch, generator)), -1) for _ in range(20)}
    assert len({len(str(int(value))) for value in seen}) == 3  # one of three outputs of different sizes at a time


# -- time


@pytest.mark.parametrize(
    ("run", "seconds", "most"),
    [(RUN, 2.0, 2000), (Run(0, clock=Clock(5.0)), 100.0, 2000), (Run(0, clock=Clock(0.0)), 100.0, 32)],
    ids=["time for targets", "time of the run", "no time"],
)
def test_the_time_limits_the_number_of_evaluations(run: Run, seconds: float, most: int) -> None:
    """The game takes a thousand evaluations per second; most time of the run is reserved for training."""
    game = counting(10)
    found = lesson(game, game.rows(300), recipe(evaluations=10**6, seconds=seconds), run, pace=1e-3)
    assert game.calls <= most + 3 * len(found.x)  # null and grand
    assert len(found.x) >= 1


def test_unlimited_seconds_do_not_limit_the_rows() -> None:
    game = counting(5)
    found = lesson(game, game.rows(50), recipe(seconds=float("inf"), rows=600), pace=0.0)
    assert len(found.x) == 600


class Drawing(GameTraits):
    """A game that draws new rows."""

    def __init__(self, game: Moebius) -> None:
        self.game, self.players, self.outputs = game, game.players, game.outputs

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        return self.game(x, s)

    def new_rows(self, x: Tensor, count: int, generator: torch.Generator) -> Tensor:
        return torch.full((count, x.shape[1]), 7.0, dtype=x.dtype)


def test_a_game_draws_three_quarters_of_the_new_rows() -> None:
    game = Drawing(Moebius.random(6))
    found = lesson(game, game.game.rows(100), recipe(rows=500), pace=0.0).x[:]
    assert len(found) == 500
    assert torch.equal(found[:100], game.game.rows(100))
    assert int((found == 7).all(1).sum()) == 300


# -- blocks, threads and checkpoints


def processors(count: int, process: int) -> set[int]:
    return set(range(count))


def surrogate() -> tuple[Surrogate, Tensor]:
    X = numbers(600, 5)
    schema = TableSchema.of(X)
    x = schema.encode(X)
    model = ModelFunction(lambda rows: np.sin(rows[:, 0]) * rows[:, 1], schema, x[:10])
    game = Surrogate(training=(Training(steps=20),)).fit(
        Problem(model, x, x[:50], Features().bind(schema.names)), RUN
    )
    assert isinstance(game, Surrogate)
    return game, x


@pytest.mark.parametrize("evaluations", [50_000, 5000], ids=["targets", "few coalitions"])
def test_the_number_of_threads_does_not_change_the_training_set(
    evaluations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    game, x = surrogate()
    monkeypatch.setattr("fastshapley.fit.targets.BLOCK_CALLS", 500)
    options = recipe(evaluations=evaluations, rows=600)
    phi = torch.randn(10, 5, 1, generator=torch.Generator().manual_seed(0))
    found, threads = [], []
    expectation = game.expectation
    for count in (1, 4):
        seen: set[int] = set()

        def watched(x: Tensor, s: Tensor, seen: set[int] = seen) -> Tensor:
            seen.add(threading.get_ident())
            return expectation(x, s)

        monkeypatch.setattr(game, "expectation", watched)
        monkeypatch.setattr(os, "sched_getaffinity", partial(processors, count), raising=False)
        made = lesson(game, x, options)
        found.append([made.x, made.total, loss_of(made, phi)])
        threads.append(seen)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert threads[0] == {threading.get_ident()}
    assert threading.get_ident() not in threads[1]


def test_more_threads_evaluate_more_rows_in_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread takes a thousand evaluations per second; a row takes 32."""
    game, x = surrogate()
    rows = []
    for count in (1, 4):
        monkeypatch.setattr(os, "sched_getaffinity", partial(processors, count), raising=False)
        rows.append(len(lesson(game, x, recipe(evaluations=10**6, seconds=2.0), pace=1e-3).x))
    assert rows == [2000 // 32, 8000 // 32]


def test_a_custom_game_is_called_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastshapley.fit.targets.BLOCK_CALLS", 500)
    monkeypatch.setattr(os, "sched_getaffinity", partial(processors, 4), raising=False)
    game = counting(5)
    lesson(game, game.rows(50), recipe())
    assert game.threads == {threading.get_ident()}


@pytest.mark.parametrize("evaluations", [50_000, 5000], ids=["targets", "few coalitions"])
def test_an_interrupted_training_set_resumes_from_the_checkpoint(
    evaluations: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastshapley.fit.targets.BLOCK_CALLS", 500)
    options = recipe(coalitions=16, evaluations=evaluations)
    game = counting(6)
    x = game.rows(300)
    whole = lesson(game, x, options)
    spent, game.calls = game.calls, 0
    game.most = spent // 2
    with pytest.raises(KeyboardInterrupt):
        lesson(game, x, options, Run(0, Checkpoint(tmp_path)))
    game.calls, game.most = 0, spent
    resumed = lesson(game, x, options, Run(0, Checkpoint(tmp_path)), pace=1.0)  # the plan is saved too
    assert game.calls <= spent // 2 + 1000  # the interrupted block is evaluated again
    phi = torch.zeros(len(x), 6, 1) if len(whole.x) >= len(x) else torch.zeros(len(whole.x), 6, 1)
    assert torch.equal(resumed.x[:], whole.x[:])
    assert torch.equal(resumed.total, whole.total)
    assert torch.equal(loss_of(resumed, phi), loss_of(whole, phi))


def test_an_error_in_a_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    game, x = surrogate()
    monkeypatch.setattr("fastshapley.fit.targets.BLOCK_CALLS", 500)
    monkeypatch.setattr(os, "sched_getaffinity", partial(processors, 4), raising=False)

    def broken(x: Tensor, s: Tensor) -> Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(game, "expectation", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        lesson(game, x, recipe())


def test_the_loss_is_zero_at_the_values_of_an_additive_game() -> None:
    """This holds for the validation set and for the training set."""
    game = Additive(8, outputs=2)
    x = game.rows(100)
    exam = prepare_validation(unthinned(game), x, recipe(), RUN)
    assert float(coalition_loss(game.shapley(exam.x), exam.s, exam.worth)) < 1e-20
    found = lesson(game, x, recipe(evaluations=3200))
    assert float(loss_of(found, game.shapley(found.x[:]))) < 1e-10
