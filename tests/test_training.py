"""The training loop: options, early stopping, best weights, resumption, seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fastshapley.checkpoints import Checkpoint
from fastshapley.errors import TrainingError
from fastshapley.training import Run, Training, one_thread, train


def regression(options: Training, run: Run, phase: str = "fit") -> tuple[nn.Module, list[float]]:
    """Fit a small network with dropout to y = 2 x1 - x2."""
    x = torch.randn(256, 2, generator=torch.Generator().manual_seed(0))
    y = 2 * x[:, :1] - x[:, 1:]
    with run.isolated("weights"):
        network = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))

    def loss(rows: Tensor, generator: torch.Generator) -> Tensor:
        return (network(x[rows]) - y[rows]).square().mean()

    history = train(
        network, loss, 200, options, run, phase, lambda: float((network(x[200:]) - y[200:]).square().mean())
    )
    return network, history


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


@pytest.mark.parametrize("schedule", ["plateau", "cosine"])
def test_learns_and_keeps_the_best_epoch(schedule: Any) -> None:
    network, history = regression(Training(epochs=40, batch_size=32, learning_rate=1e-2, schedule=schedule), Run(0))
    assert len(history) == 41
    assert min(history) < 0.05 * history[0]
    assert not network.training


def test_best_weights_come_back_with_their_buffers() -> None:
    network = nn.BatchNorm1d(1)
    x = torch.randn(64, 1, generator=torch.Generator().manual_seed(0)) + 5
    losses = iter([3.0, 1.0, 2.0, 4.0])
    means: list[Tensor] = []

    def validate() -> float:
        assert isinstance(network.running_mean, Tensor)
        means.append(network.running_mean.clone())
        return next(losses)

    train(
        network, lambda rows, g: network(x[rows]).square().mean(), 64, Training(epochs=3), Run(0), "fit", validate
    )
    assert isinstance(network.running_mean, Tensor)
    assert torch.equal(network.running_mean, means[1])
    assert not torch.equal(means[1], means[2])


def test_stops_after_patience_epochs_without_improvement() -> None:
    values = iter([1.0, 0.5, *[0.6] * 100])
    network = nn.Linear(1, 1)
    history = train(
        network,
        lambda rows, g: network(torch.ones(1, 1)).square().mean(),
        4,
        Training(epochs=50, patience=3),
        Run(0),
        "fit",
        lambda: next(values),
    )
    assert history == [1.0, 0.5, 0.6, 0.6, 0.6]


def test_plateau_lowers_the_rate_to_its_floor() -> None:
    rates = []
    network = nn.Linear(1, 1)

    def watch(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        rates.append(optimizer.param_groups[0]["lr"])

    hook = register_optimizer_step_pre_hook(watch)
    try:
        options = Training(epochs=12, learning_rate=1e-3, factor=0.1, plateau=1, floor=1e-5)
        train(network, lambda rows, g: network(torch.ones(1, 1)).sum(), 1, options, Run(0), "fit", lambda: 1.0)
    finally:
        hook.remove()
    assert rates[0] == pytest.approx(1e-3)
    assert rates[-1] == pytest.approx(1e-5)


def test_same_seed_same_bytes_and_global_generators_untouched() -> None:
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
def test_interrupted_run_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: Any
) -> None:
    monkeypatch.setattr("fastshapley.training._SAVE_SECONDS", -1.0)
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
        regression(options, Run(3, Interrupting(tmp_path)))
    resumed, resumed_history = regression(options, Run(3, Checkpoint(tmp_path)))
    assert resumed_history == history
    assert same_weights(whole, resumed)


def test_loss_that_is_not_finite_is_reported() -> None:
    network = nn.Linear(1, 1)
    with pytest.raises(TrainingError, match="fit: the loss is nan after epoch 1; lower the learning rate"):
        train(
            network,
            lambda rows, g: network(torch.full((1, 1), torch.nan)).sum(),
            1,
            Training(epochs=2),
            Run(0),
            "fit",
            lambda: float(network(torch.ones(1, 1)).detach()),
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
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Training(**options)


def test_steps_and_epochs() -> None:
    assert Training(steps=400, batch_size=32).plan(100) == (100, 4)
    assert Training(steps=400, batch_size=32).plan(5) == (400, 1)
    assert Training(steps=400, batch_size=32).plan(10**6) == (20, 20)  # many rows: many steps, but no more
    assert Training(epochs=7, batch_size=32).plan(100) == (7, 4)
    assert Training(steps=0).plan(10)[0] == 0


def test_one_thread_restores_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
