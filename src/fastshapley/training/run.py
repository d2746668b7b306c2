"""What the phases of one fit share: a seed, a clock, a checkpoint, and the processes that take part."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from fastshapley.training.checkpoint import Checkpoint, fingerprint
from fastshapley.training.process_group import ProcessGroup


class Clock:
    """The time that some work may take.

    Parameters
    ----------
    seconds : float
        The time limit. By default there is none.
    now : callable
        Returns the present time in seconds. Tests pass a clock of their own.
    """

    def __init__(self, seconds: float = math.inf, now: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.now = seconds, now
        self.start = now()

    def left(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(0.0, self.start + self.seconds - self.now())

    def elapsed(self) -> float:
        """Return the seconds since the clock was started."""
        return self.now() - self.start

    def used(self) -> float:
        """Return the share of the time limit that has passed, from 0 to 1."""
        return 1 - self.left() / self.seconds if 0 < self.seconds < math.inf else float(self.seconds <= 0)

    def part(self, seconds: float = math.inf) -> Clock:
        """Return a new clock that starts now and has ``seconds``, or what is left if that is less."""
        return Clock(min(seconds, self.left()), self.now)


@dataclass(frozen=True)
class Timing:
    """How long one phase of a fit took.

    Attributes
    ----------
    seconds : float
        The time that it took.
    allotted : float
        The time that it was given; infinite without a ``time_budget``.
    units : int
        The number of training steps, or of model calls, that it made in this time; 0 where nothing is counted.
    """

    seconds: float
    allotted: float = math.inf
    units: int = 0


@dataclass(frozen=True)
class Run:
    """The seed, the time and the places for unfinished work that the phases of one fit share.

    Attributes
    ----------
    seed : int
        The seed from which each phase derives a generator of its own.
    checkpoint : Checkpoint
        Where this process keeps its unfinished work.
    progress : bool
        Whether progress bars are shown.
    device : torch.device
        Where tensors live.
    clock : Clock
        The time that is left.
    timings : dict
        A `Timing` for each phase, by its name. The phases fill it in.
    processes : ProcessGroup
        The processes that train together, each on rows of its own.
    common : Checkpoint or None
        Where several processes keep what they train together.
    """

    seed: int
    checkpoint: Checkpoint = field(default_factory=lambda: Checkpoint(None))
    progress: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    clock: Clock = field(default_factory=Clock)
    timings: dict[str, Timing] = field(default_factory=dict)
    processes: ProcessGroup = field(default_factory=ProcessGroup)
    common: Checkpoint | None = None

    def alone(self) -> Run:
        """Return the same run for one process, with the random numbers of the first one."""
        return replace(self, processes=ProcessGroup(), checkpoint=self.common or self.checkpoint, common=None)

    def within(self, share: float) -> Run:
        """Return the same run with a share of the time that is left."""
        return replace(self, clock=self.clock.part(share * self.clock.left()))

    @contextmanager
    def timed(self, phase: str) -> Iterator[Run]:
        """Record how long the phase inside takes, and what it was given."""
        allotted, clock = self.clock.left(), self.clock.part()
        yield self
        units = self.timings[phase].units if phase in self.timings else 0
        self.timings[phase] = Timing(clock.elapsed(), allotted, units)

    def generator(self, phase: str) -> torch.Generator:
        """Return the generator of one phase; it starts in the same state at every call."""
        return torch.Generator(self.device).manual_seed(self._seed(phase))

    @contextmanager
    def isolated(self, phase: str) -> Iterator[None]:
        """Seed torch's global generators (initial weights, dropout) inside, and leave them untouched outside."""
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(self._seed(phase))
            yield

    def bar(self, total: int, description: str, unit: str) -> Any:
        """Return a progress bar, which is hidden unless ``progress`` is set."""
        return tqdm(total=total, desc=description, unit=unit, disable=not self.progress)

    def _seed(self, phase: str) -> int:
        rank = self.processes.rank
        return int(fingerprint(self.seed, phase, *([rank] if rank else []))[:15], 16)


def seed_of(random_state: Any) -> int:
    """Return a seed for what scikit-learn accepts as ``random_state``; a new one for None.

    Raises
    ------
    ValueError
        If ``random_state`` is neither an integer, a NumPy generator nor None.
    """
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    if not isinstance(random_state, Integral):
        raise ValueError(f"random_state is {random_state!r}: use an integer, a NumPy generator or None")
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
