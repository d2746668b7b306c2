"""The training loop of every network here. It knows nothing about Shapley values."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fastshapley.errors import TrainingError
from fastshapley.training.process_group import ProcessGroup
from fastshapley.training.run import Run, Timing

BatchLoss = Callable[[Any, torch.Generator], Tensor]
Fetch = Callable[[Sequence[Tensor]], Iterable[Any]]
WARM_UP_SHARE = 0.1  # share of the work in which the rate of a cosine schedule rises
EPOCHS_OF_STEPS = 20  # epochs that a number of steps is divided into


@dataclass(frozen=True)
class Training:
    """How one network is trained.

    Give either ``epochs`` or ``steps``. With steps, an epoch is a twentieth of them, which may be a part of the
    rows or several passes over them. The weights of the best epoch are kept.

    Parameters
    ----------
    epochs : int, optional
        The largest number of passes over the rows.
    steps : int, optional
        The number of minibatches.
    batch_size : int
        Rows per minibatch.
    learning_rate : float
        The peak learning rate of AdamW.
    weight_decay : float
        The weight decay of AdamW.
    schedule : {"plateau", "cosine"}
        ``"plateau"`` multiplies the rate by ``factor`` after ``plateau`` epochs without improvement, down to
        ``floor``. ``"cosine"`` raises it over the first tenth and then anneals it to zero.
    factor, plateau, floor : float, int, float
        The options of the plateau schedule.
    patience : int, optional
        Stop after this many epochs without improvement. None never stops early.
    clip : float, optional
        The largest norm of a gradient.
    """

    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    schedule: Literal["plateau", "cosine"] = "plateau"
    factor: float = 0.5
    plateau: int = 2
    floor: float = 1e-5
    patience: int | None = None
    clip: float | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("Training: give either epochs or steps")
        for name in ("epochs", "steps"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"Training: {name} is {value}, which is negative")
        for name in ("batch_size", "learning_rate", "factor"):
            if not getattr(self, name) > 0:
                raise ValueError(f"Training: {name} is {getattr(self, name)}, which is not positive")
        if not 0 < self.factor < 1:
            raise ValueError(f"Training: factor is {self.factor}; it must lie between 0 and 1")
        for name in ("weight_decay", "plateau", "floor", "patience", "clip"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"Training: {name} is {value}, which is negative")
        for name in ("epochs", "steps", "batch_size", "plateau", "patience"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, int):
                raise ValueError(f"Training: {name} is {value!r}, which is not an integer")
        if self.schedule not in ("plateau", "cosine"):
            raise ValueError(f"Training: schedule is {self.schedule!r}; use 'plateau' or 'cosine'")

    def plan(self, rows: int) -> tuple[int, int]:
        """Return the number of epochs over ``rows`` rows, and the number of steps in each."""
        if self.epochs is not None:
            return self.epochs, math.ceil(rows / self.batch_size)
        steps = self.steps or 0
        batches = max(1, math.ceil(steps / EPOCHS_OF_STEPS))
        return math.ceil(steps / batches), batches


def _no_description(history: list[float]) -> dict[str, str]:
    return {}


@dataclass(frozen=True)
class Task:
    """A network and what it is to learn.

    Attributes
    ----------
    name : str
        The name of the phase: of its progress bar, its random numbers and its saved state.
    network : torch.nn.Module
        The network, which is trained in place.
    rows : int
        The number of training rows of this process.
    loss : callable
        ``loss(batch, generator)`` returns the loss of a minibatch.
    validate : callable
        ``validate()`` returns the loss that chooses the best epoch.
    describe : callable
        ``describe(history)`` returns what the progress bar shows in addition.
    fetch : callable
        Turns the row numbers of all minibatches of an epoch into the minibatches. By default these are the row
        numbers themselves.
    """

    name: str
    network: nn.Module
    rows: int
    loss: BatchLoss
    validate: Callable[[], float]
    describe: Callable[[list[float]], dict[str, str]] = _no_description
    fetch: Fetch = iter


def train(task: Task, options: Training, run: Run) -> list[float]:
    """Train a network in place, and load the weights of its best epoch.

    Training ends with the time of the run. If the time is too short for all steps, a cosine schedule anneals the
    rate over the time that there is.

    Parameters
    ----------
    task : Task
        The network and its losses.
    options : Training
        How it is trained.
    run : Run
        The time, the random numbers and the place for unfinished work.

    Returns
    -------
    list of float
        The validation loss before the first epoch and after each epoch.
    """
    network, processes, clock = task.network, run.processes, run.clock.part()
    epochs, batches = options.plan(processes.total(task.rows))
    size = -(-options.batch_size // processes.size)
    generator, states = run.generator(task.name), run.common or run.checkpoint
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay, fused=True
    )
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=options.factor, patience=options.plateau, min_lr=options.floor
    )
    state = _State(network, optimizer, scheduler, generator)
    loss = processes.parallel(network, task.loss)
    with run.isolated(task.name), run.bar(epochs * batches, task.name, "step") as bar:
        saved = processes.share(lambda: states.load(task.name))
        if saved is None:
            state.record(_validate(task, options, 0, processes))
        else:
            state.restore(saved)
        bar.update(state.epoch * batches)
        start = last_save = clock.now()
        steps = 0
        while not state.finished and state.epoch < epochs and not state.stopped(options.patience) and clock.left():
            bar.set_description(f"{task.name}, epoch {state.epoch + 1}/{epochs}", refresh=False)
            network.train()
            if processes.size > 1:  # the saved state is that of the first process: the others must not need theirs
                generator = run.generator(f"{task.name} {state.epoch}")
            for number, batch in enumerate(task.fetch(_batches(task.rows, batches, size, generator))):
                if not clock.left():
                    break
                if options.schedule == "cosine":
                    done = max((state.epoch + number / batches) / epochs, clock.used())
                    optimizer.param_groups[0]["lr"] = options.learning_rate * _cosine(done, 1 / (epochs * batches))
                _step(network, loss(batch, generator), optimizer, options)
                bar.update()
                steps += 1
            state.epoch += 1
            value = _validate(task, options, state.epoch, processes)
            state.record(value)
            if options.schedule == "plateau":
                scheduler.step(value)
            bar.set_postfix(loss=f"{value:.5g}", **task.describe(state.history))
            if clock.now() - last_save > states.interval and processes.rank == 0:
                states.save(task.name, state.dump())
                last_save = clock.now()
        run.timings[task.name] = Timing(clock.now() - start, clock.seconds, steps)
        new = not state.finished
        state.finished = True  # perhaps because its time was over: a resumed run does not go on with it
        if new and processes.rank == 0:
            states.save(task.name, state.dump())
    network.load_state_dict(state.best)
    network.eval()
    return state.history


def _batches(rows: int, count: int, size: int, generator: torch.Generator) -> Sequence[Tensor]:
    """Return the row numbers of each batch: passes over all rows in random order, the last one in part."""
    size = min(size, rows)
    total = rows if count == math.ceil(rows / size) else count * size  # in a single pass the last batch is short
    passes = math.ceil(total / rows)
    order = [torch.randperm(rows, generator=generator, device=generator.device) for _ in range(passes)]
    return torch.cat(order)[:total].split(size)


def _step(network: nn.Module, loss: Tensor, optimizer: torch.optim.Optimizer, options: Training) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    if options.clip is not None:
        nn.utils.clip_grad_norm_(network.parameters(), options.clip)
    optimizer.step()


def _cosine(done: float, step: float) -> float:
    """Return the rate, relative to its peak, when the share ``done`` of the work is done.

    ``step`` is the share of one step.
    """
    if done < WARM_UP_SHARE:
        return min(1.0, (done + step) / WARM_UP_SHARE)
    return 0.5 * (1 + math.cos(math.pi * (done - WARM_UP_SHARE) / (1 - WARM_UP_SHARE)))


def _validate(task: Task, options: Training, epoch: int, processes: ProcessGroup) -> float:
    task.network.eval()
    with torch.no_grad():
        value = processes.average(task.validate())
    if not math.isfinite(value):
        raise TrainingError(
            f"{task.name}: the loss is {value} after epoch {epoch}. Lower the learning rate "
            f"(now {options.learning_rate:g}), or look for extreme values in X and the model's outputs"
        )
    return value


class _State:
    """Everything that changes from epoch to epoch."""

    def __init__(
        self, network: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, generator: torch.Generator
    ) -> None:
        self.network, self.optimizer, self.scheduler, self.generator = (
            network,
            optimizer,
            scheduler,
            generator,
        )
        self.epoch, self.finished = 0, False
        self.history: list[float] = []
        self.best: dict[str, Any] = {}
        self.best_epoch = 0

    def record(self, value: float) -> None:
        """Add the validation loss of the last epoch; if it is the best one, keep the weights and buffers."""
        if not self.best or value < min(self.history):
            self.best, self.best_epoch = copy.deepcopy(self.network.state_dict()), self.epoch
        self.history.append(value)

    def stopped(self, patience: int | None) -> bool:
        return patience is not None and self.epoch - self.best_epoch >= patience

    def dump(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "finished": self.finished,
            "history": self.history,
            "best": self.best,
            "best_epoch": self.best_epoch,
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "generator": self.generator.get_state(),
            "torch": torch.get_rng_state(),
        }

    def restore(self, saved: dict[str, Any]) -> None:
        self.epoch, self.finished, self.history = saved["epoch"], saved["finished"], saved["history"]
        self.best, self.best_epoch = saved["best"], saved["best_epoch"]
        self.network.load_state_dict(saved["network"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.scheduler.load_state_dict(saved["scheduler"])
        self.generator.set_state(saved["generator"])
        torch.set_rng_state(saved["torch"])
