"""Tests of the training loop: options, early stopping, best weights, resuming, seeds and time limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fastshapley.errors import TrainingError
from fastshapley.training.checkpoint import Checkpoint
from fastshapley.training.loop import Task, Training, train
from fastshapley.training.run import Clock, Run, one_thread


def regression(
    options: Training, run: Run, phase: str = "fit", wind: Callable[[], None] = lambda: None
) -> tuple[nn.Module, list[float]]:
    """Fit a small network with dropout to y = 2 x1 - x2."""
    x = torch.randn(256, 2, generator=torch.Generator().manual_seed(0))
    y = 2 * x[:, :1] - x[:, 1:]
    with run.isolated("weights"):
        network = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))

    def loss(rows: Tensor, generator: torch.Generator) -> Tensor:
        wind()
        return (network(x[rows]) - y[rows]).square().mean()

    history = train(
        Task(phase, network, 200, loss, lambda: float((network(x[200:]) - y[200:]).square().mean())), options, run
    )
    return network, history


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


@pytest.mark.parametrize("schedule", ["plateau", "cosine"])
def test_training_lowers_the_validation_loss(schedule: Any) -> None:
    network, history = regression(Training(epochs=40, batch_size=32, learning_rate=1e-2, schedule=schedule), Run(0))
    assert len(history) == 41
    assert min(history) < 0.05 * history[0]
    assert not network.training


def test_best_weights_are_restored_with_their_buffers() -> None:
    network = nn.BatchNorm1d(1)
    x = torch.randn(64, 1, generator=torch.Generator().manual_seed(0)) + 5
    losses = iter([3.0, 1.0, 2.0, 4.0])
    means: list[Tensor] = []

    def validate() -> float:
        assert isinstance(network.running_mean, Tensor)
        means.append(network.running_mean.clone())
        return next(losses)

    train(
        Task("fit", network, 64, lambda rows, g: network(x[rows]).square().mean(), validate),
        Training(epochs=3),
        Run(0),
    )
    assert isinstance(network.running_mean, Tensor)
    assert torch.equal(network.running_mean, means[1])
    assert not torch.equal(means[1], means[2])


def test_training_stops_after_patience_epochs_without_improvement() -> None:
    values = iter([1.0, 0.5, *[0.6] * 100])
    network = nn.Linear(1, 1)
    history = train(
        Task("fit", network, 4, lambda rows, g: network(torch.ones(1, 1)).square().mean(), lambda: next(values)),
        Training(epochs=50, patience=3),
        Run(0),
    )
    assert history == [1.0, 0.5, 0.6, 0.6, 0.6]


@contextmanager
def watched_rates() -> Iterator[list[float]]:
    """Record the learning rate of each optimizer step."""
    rates: list[float] = []

    def watch(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        rates.append(optimizer.param_groups[0]["lr"])

    hook = register_optimizer_step_pre_hook(watch)
    try:
        yield rates
    finally:
        hook.remove()


def test_plateau_lowers_the_learning_rate_to_its_floor() -> None:
    network = nn.Linear(1, 1)
    with watched_rates() as rates:
        options = Training(epochs=12, learning_rate=1e-3, factor=0.1, plateau=1, floor=1e-5)
        train(
            Task("fit", network, 1, lambda rows, g: network(torch.ones(1, 1)).sum(), lambda: 1.0), options, Run(0)
        )
    assert rates[0] == pytest.approx(1e-3)
    assert rates[-1] == pytest.approx(1e-5)


def test_a_seed_fixes_the_weights_and_global_generators_are_untouched() -> None:
    options = Training(epochs=3, batch_size=50)
    before = torch.get_rng_state()
    first, _ = regression(options, Run(1))
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(10)
    second, _ = regression(options, Run(1))
    other, _ = regression(options, Run(2))
    assert same_weights(first, second)
    assert not same_weights(first, other)


@pytest.mark.parametrize("schedule", ["plateau", "cosine"])
def test_a_resumed_run_ends_with_the_same_weights(tmp_path: Path, schedule: Any) -> None:
    options = Training(epochs=6, batch_size=64, learning_rate=1e-2, schedule=schedule)
    whole, history = regression(options, Run(3))

    class Interrupting(Checkpoint):
        saves = 0

        def save(self, name: str, state: dict[str, Any]) -> None:
            super().save(name, state)
            self.saves += 1
            if self.saves == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        regression(options, Run(3, Interrupting(tmp_path, interval=-1.0)))
    resumed, resumed_history = regression(options, Run(3, Checkpoint(tmp_path)))
    assert resumed_history == history
    assert same_weights(whole, resumed)


def test_a_loss_that_is_not_finite_is_reported() -> None:
    network = nn.Linear(1, 1)
    with pytest.raises(TrainingError, match=r"fit: the loss is nan after epoch 1\. Lower the learning rate"):
        train(
            Task(
                "fit",
                network,
                1,
                lambda rows, g: network(torch.full((1, 1), torch.nan)).sum(),
                lambda: float(network(torch.ones(1, 1)).detach()),
            ),
            Training(epochs=2),
            Run(0),
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either epochs or steps"),
        ({"epochs": 1, "steps": 1}, "either epochs or steps"),
        ({"epochs": -1}, "epochs is -1"),
        ({"epochs": 1, "batch_size": 0}, "batch_size is 0"),
        ({"epochs": 1, "learning_rate": float("nan")}, "learning_rate is nan"),
        ({"epochs": 1, "schedule": "step"}, "schedule is 'step'"),
        ({"epochs": 1, "factor": 2.0}, "factor is 2.0"),
        ({"epochs": 1, "patience": -1}, "patience is -1"),
        ({"epochs": 1, "batch_size": 2.5}, "batch_size is 2.5"),
        ({"epochs": 1, "clip": -1.0}, "clip is -1"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Training(**options)


def test_steps_are_divided_into_epochs() -> None:
    for rows in (5, 100, 10**6):  # an epoch is a twentieth of the steps for any number of rows
        assert Training(steps=400, batch_size=32).plan(rows) == (20, 20)
    assert Training(steps=7, batch_size=32).plan(100) == (7, 1)
    assert Training(epochs=7, batch_size=32).plan(100) == (7, 4)
    assert Training(steps=0).plan(10)[0] == 0


@pytest.mark.parametrize(
    ("rows", "options", "sizes"),
    [
        (10, Training(epochs=2, batch_size=4), [4, 4, 2] * 2),
        (10, Training(steps=40, batch_size=4), [4] * 40),  # 20 epochs of two steps, each over some of the rows
        (3, Training(steps=40, batch_size=4), [3] * 40),
        (10, Training(steps=100, batch_size=4), [4] * 100),  # 20 epochs of five steps, each over all rows twice
    ],
)
def test_batches_pass_over_the_rows_in_random_order(rows: int, options: Training, sizes: list[int]) -> None:
    network = nn.Linear(1, 1)
    seen: list[list[int]] = []

    def loss(batch: Tensor, generator: torch.Generator) -> Tensor:
        seen.append(batch.tolist())
        return network(torch.ones(1, 1)).square().sum()

    train(Task("fit", network, rows, loss, lambda: 1.0), options, Run(0))
    assert [len(batch) for batch in seen] == sizes
    epochs, batches = options.plan(rows)
    for epoch in range(epochs):
        drawn = [row for batch in seen[epoch * batches : (epoch + 1) * batches] for row in batch]
        for start in range(0, len(drawn), rows):
            part = drawn[start : start + rows]
            assert len(set(part)) == len(part)  # no row comes twice in one pass
            assert set(part) <= set(range(rows))
    assert seen[0] != sorted(seen[0]) or seen[1] != sorted(seen[1])


def test_one_thread_restores_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# Time limits


class Wound:
    """A clock that a test advances itself."""

    def __init__(self) -> None:
        self.now = 100.0

    def wind(self) -> None:
        self.now += 1

    def clock(self, seconds: float) -> Clock:
        return Clock(seconds, lambda: self.now)


def test_a_clock_counts_down_to_zero() -> None:
    wound = Wound()
    clock = wound.clock(8.0)
    assert (clock.left(), clock.used()) == (8.0, 0.0)
    wound.now += 2
    assert (clock.left(), clock.used()) == (6.0, 0.25)
    wound.now += 20
    assert (clock.left(), clock.used()) == (0.0, 1.0)
    assert (Clock().left(), Clock().used()) == (float("inf"), 0.0)


def test_a_share_of_a_run_is_a_share_of_the_remaining_time() -> None:
    wound = Wound()
    run = Run(3, clock=wound.clock(8.0))
    wound.now += 4
    part = run.within(0.5)
    assert part.clock.seconds == 2.0
    assert part.seed == run.seed
    assert Run(3).within(0.5).clock.left() == float("inf")


def _over() -> Clock:
    wound = Wound()
    clock = wound.clock(1.0)
    wound.now += 10
    return clock


def test_nothing_is_trained_when_no_time_remains() -> None:
    run = Run(0, clock=_over())
    for over in (run, run.within(0.5), Run(0, clock=Clock(0.0))):
        untrained, _ = regression(Training(epochs=0), Run(0))
        network, history = regression(Training(epochs=40, batch_size=32), over)
        assert len(history) == 1
        assert same_weights(network, untrained)
        assert not network.training


@pytest.mark.parametrize("schedule", ["plateau", "cosine"])
def test_a_generous_time_limit_changes_nothing(schedule: Any) -> None:
    options = Training(epochs=5, batch_size=32, learning_rate=1e-2, schedule=schedule, clip=1.0)
    unlimited, history = regression(options, Run(0))
    generous, same_history = regression(options, Run(0, clock=Clock(1e9)))
    assert history == same_history
    assert same_weights(unlimited, generous)


@pytest.mark.parametrize("seconds", [10.0, 50.0, 1000.0])
def test_the_cosine_schedule_ends_with_the_time_limit(seconds: float) -> None:
    """At one step per second and 200 steps, the rate is near zero when the time or the steps end."""
    wound = Wound()
    network = nn.Linear(1, 1)

    def loss(rows: Tensor, generator: torch.Generator) -> Tensor:
        wound.now += 1
        return network(torch.ones(1, 1)).square().sum()

    options = Training(epochs=20, batch_size=1, learning_rate=1e-3, schedule="cosine")
    with watched_rates() as rates:
        train(Task("fit", network, 10, loss, lambda: 1.0), options, Run(0, clock=wound.clock(seconds)))
    steps = int(min(seconds, 200))
    assert len(rates) == steps
    # A tenth of the steps is warm-up. The last step is one step length before the end of the cosine.
    assert rates[-1] == pytest.approx(1e-3 * np.sin(np.pi / 2 / (0.9 * steps)) ** 2, rel=0.02)
    assert max(rates) == pytest.approx(1e-3, rel=0.05)
    assert max(np.diff(rates[steps // 5 :])) <= 0


def test_a_phase_that_ran_out_of_time_is_not_resumed(tmp_path: Path) -> None:
    """A resumed run needs the same network that its other phases used."""
    wound = Wound()
    options = Training(epochs=40, batch_size=32, learning_rate=1e-2)

    def fit(seconds: float) -> nn.Module:
        return regression(options, Run(0, Checkpoint(tmp_path), clock=wound.clock(seconds)), wind=wound.wind)[0]

    first = fit(20.0)
    assert same_weights(first, fit(1e9))


def test_steps_of_an_epoch_cut_off_by_the_time_limit_are_kept() -> None:
    wound = Wound()
    network = nn.Linear(1, 1)
    steps = 0

    def loss(rows: Tensor, generator: torch.Generator) -> Tensor:
        nonlocal steps
        steps += 1
        wound.now += 1
        return network(torch.ones(1, 1)).square().sum()

    with torch.no_grad():
        network.weight.fill_(1.0)
        network.bias.fill_(1.0)
    options = Training(epochs=1, batch_size=1, learning_rate=1e-2)
    history = train(
        Task("fit", network, 1000, loss, lambda: float(network(torch.ones(1, 1)).square().sum())),
        options,
        Run(0, clock=wound.clock(20.0)),
    )
    assert steps == 20
    assert len(history) == 2
    assert history[1] < history[0]
    assert float(network(torch.ones(1, 1)).detach().square().sum()) == pytest.approx(history[1])


# Clipping


def test_clipping_bounds_the_gradient() -> None:
    """Without clipping, one huge gradient makes the following steps of Adam very small."""
    moves = {}
    for clip in (None, 1.0):
        network = nn.Linear(3, 1, bias=False)
        seen: list[Tensor] = []
        sizes = iter([0.1] * 30 + [1e6] + [0.1] * 9)
        norms: list[float] = []

        def loss(
            rows: Tensor, generator: torch.Generator, network: Any = network, seen: Any = seen, sizes: Any = sizes
        ) -> Tensor:
            seen.append(network.weight.detach().clone())
            return next(sizes) * network.weight.sum()

        def watch(optimizer: torch.optim.Optimizer, *_: Any, norms: Any = norms) -> None:
            norms.append(float(optimizer.param_groups[0]["params"][0].grad.norm()))

        hook = register_optimizer_step_pre_hook(watch)
        try:
            options = Training(epochs=40, batch_size=1, learning_rate=1e-3, clip=clip)
            train(Task("fit", network, 1, loss, lambda: 1.0), options, Run(0))
        finally:
            hook.remove()
        moves[clip] = float((seen[39] - seen[31]).norm())
        if clip is None:
            assert max(norms) > 1e6
        else:
            assert max(norms) <= clip * (1 + 1e-5)
            assert norms[0] == pytest.approx(0.1 * 3**0.5)  # a small gradient is not changed
    assert moves[1.0] > 2 * moves[None]
