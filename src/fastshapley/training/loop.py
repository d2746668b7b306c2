"""One loop for every network here. It knows nothing of Shapley values."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from fastshapley.errors import TrainingError
from fastshapley.training.checkpoint import Checkpoint, fingerprint
from fastshapley.training.process_group import Team

Loss = Callable[[Any, torch.Generator], Tensor]
Fetch = Callable[[Sequence[Tensor]], Iterable[Any]]
_SAVE_SECONDS = 5.0
_WARM = 0.1  # of the work, in which a cosine schedule's rate rises


@dataclass(frozen=True)
class Training:
    """How one network is trained.

    Either ``epochs`` (passes over the rows, at most) or ``steps`` is given; an epoch is then a twentieth of the
    steps, be that a part of the rows or several passes.
    ``schedule="plateau"`` multiplies the rate by ``factor`` after ``plateau`` epochs without improvement, down
    to ``floor``; ``"cosine"`` warms up over the first tenth and anneals to zero. Training stops after
    ``patience`` epochs without improvement (None: never), and the weights of the best epoch are kept.
    ``clip`` is the largest norm of a gradient.
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
                raise ValueError(f"Training: {name} is {value!r}, which is no whole number")
        if self.schedule not in ("plateau", "cosine"):
            raise ValueError(f"Training: schedule is {self.schedule!r}; use 'plateau' or 'cosine'")

    def plan(self, rows: int) -> tuple[int, int]:
        """How many epochs this is over so many rows, and of how many steps each."""
        if self.epochs is not None:
            return self.epochs, math.ceil(rows / self.batch_size)
        steps = self.steps or 0
        batches = max(1, math.ceil(steps / 20))
        return math.ceil(steps / batches), batches


@dataclass(frozen=True)
class Clock:
    """The seconds that some work may take; by default as many as it needs."""

    seconds: float = math.inf
    start: float = field(default_factory=lambda: time.monotonic())

    def left(self) -> float:
        return max(0.0, self.start + self.seconds - time.monotonic())

    def used(self) -> float:
        """The share of the time that is gone, from 0 to 1."""
        return 1 - self.left() / self.seconds if 0 < self.seconds < math.inf else float(self.seconds <= 0)


@dataclass(frozen=True)
class Run:
    """What the phases of a fit share: a seed, a place for unfinished work, time, and whether to show bars.

    ``timings`` are filled in by the phases: the seconds of each, and how many steps, or rows, it did in them.
    Of a ``team``, each process has unfinished work of its own; what they train together is in ``common``.
    """

    seed: int
    checkpoint: Checkpoint = field(default_factory=lambda: Checkpoint(None))
    progress: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    clock: Clock = field(default_factory=Clock)
    timings: dict[str, tuple[float, int]] = field(default_factory=dict)
    team: Team = field(default_factory=Team)
    common: Checkpoint | None = None

    def alone(self) -> Run:
        """The same run for one process, with the first one's random numbers."""
        return replace(self, team=Team(), checkpoint=self.common or self.checkpoint, common=None)

    def within(self, share: float) -> Run:
        """The same run with a share of the time that is left."""
        return replace(self, clock=Clock(share * self.clock.left()))

    def generator(self, phase: str) -> torch.Generator:
        """A generator for one phase, the same at every call."""
        return torch.Generator(self.device).manual_seed(self._seed(phase))

    @contextmanager
    def isolated(self, phase: str) -> Iterator[None]:
        """Seed torch's global generators (initial weights, dropout) inside, and leave them untouched outside."""
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(self._seed(phase))
            yield

    def bar(self, total: int, description: str, unit: str) -> Any:
        return tqdm(total=total, desc=description, unit=unit, disable=not self.progress)

    def _seed(self, phase: str) -> int:
        rank = self.team.rank
        return int(fingerprint(self.seed, phase, *([rank] if rank else []))[:15], 16)


def seed_of(random_state: Any) -> int:
    """A seed from what scikit-learn takes for one; a new one for None."""
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    if not isinstance(random_state, Integral):
        raise ValueError(f"random_state is {random_state!r}: use a whole number, a numpy generator or None")
    return int(random_state)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread inside.

    On networks as small as ours a second thread gains little, and waiting for it costs tenfold when another
    process holds the core (measured: 28 s against 334 s for the same fit on a busy machine).
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def train(
    network: nn.Module,
    loss: Loss,
    rows: int,
    options: Training,
    run: Run,
    phase: str,
    validate: Callable[[], float],
    describe: Callable[[list[float]], dict[str, str]] = lambda history: {},
    fetch: Fetch = iter,
) -> list[float]:
    """Train ``network`` in place and return the validation loss before the first and after each epoch.

    ``loss(batch, generator)`` is the loss of a minibatch, which is what ``fetch`` makes of its row numbers, given
    those of all the minibatches of an epoch: by default the numbers themselves. ``validate()`` is the loss that
    chooses the best epoch; ``describe(history)`` adds to what the bar shows. Training ends with the run's time; if
    that will not do for all steps, a cosine schedule anneals the rate over what there is of it.
    """
    clock, team = Clock(run.clock.left()), run.team
    epochs, batches = options.plan(team.total(rows))
    size = -(-options.batch_size // team.size)
    generator, states = run.generator(phase), run.common or run.checkpoint
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay, fused=True
    )
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=options.factor, patience=options.plateau, min_lr=options.floor
    )
    state = _State(network, optimizer, scheduler, generator)
    loss = team.parallel(network, loss)
    with run.isolated(phase), run.bar(epochs * batches, phase, "step") as bar:
        saved = team.share(lambda: states.load(phase))
        if saved is None:
            state.record(_validate(network, validate, phase, options, 0, team))
        else:
            state.restore(saved)
        bar.update(state.epoch * batches)
        start = last_save = time.monotonic()
        steps = 0
        while not state.finished and state.epoch < epochs and not state.stopped(options.patience) and clock.left():
            bar.set_description(f"{phase}, epoch {state.epoch + 1}/{epochs}", refresh=False)
            network.train()
            if team.size > 1:  # what was saved is the first one's state: the others must not need theirs
                generator = run.generator(f"{phase} {state.epoch}")
            for number, batch in enumerate(fetch(_batches(rows, batches, size, generator))):
                if not clock.left():
                    break
                if options.schedule == "cosine":
                    done = max((state.epoch + number / batches) / epochs, clock.used())
                    optimizer.param_groups[0]["lr"] = options.learning_rate * _cosine(done, 1 / (epochs * batches))
                _step(network, loss(batch, generator), optimizer, options)
                bar.update()
                steps += 1
            state.epoch += 1
            value = _validate(network, validate, phase, options, state.epoch, team)
            state.record(value)
            if options.schedule == "plateau":
                scheduler.step(value)
            bar.set_postfix(loss=f"{value:.5g}", **describe(state.history))
            if time.monotonic() - last_save > _SAVE_SECONDS and team.rank == 0:
                states.save(phase, state.dump())
                last_save = time.monotonic()
        run.timings[phase] = (time.monotonic() - start, steps)
        new = not state.finished
        state.finished = True  # by its time, perhaps: a run that is resumed does not go on with it
        if new and team.rank == 0:
            states.save(phase, state.dump())
    network.load_state_dict(state.best)
    network.eval()
    return state.history


def _batches(rows: int, count: int, size: int, generator: torch.Generator) -> Sequence[Tensor]:
    """The numbers of the rows of each batch: passes over all of them in random order, the last one in part."""
    size = min(size, rows)
    total = rows if count == math.ceil(rows / size) else count * size  # of a single pass, the last batch is short
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
    """The rate when this share of the work is done, relative to its peak; ``step`` is the share of one step."""
    if done < _WARM:
        return min(1.0, (done + step) / _WARM)
    return 0.5 * (1 + math.cos(math.pi * (done - _WARM) / (1 - _WARM)))


def _validate(
    network: nn.Module, validate: Callable[[], float], phase: str, options: Training, epoch: int, team: Team
) -> float:
    network.eval()
    with torch.no_grad():
        value = team.average(validate())
    if not math.isfinite(value):
        raise TrainingError(
            f"{phase}: the loss is {value} after epoch {epoch}; lower the learning rate "
            f"(now {options.learning_rate:g}) or look for extreme values in X and the model's outputs"
        )
    return value


class _State:
    """All that changes from epoch to epoch."""

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
        """Note the validation loss of the epoch just done; if it is the best, keep weights and buffers."""
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
