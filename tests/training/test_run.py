"""Tests of a run: generators per phase, seeds, and recorded times."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastshapley.training.run import Clock, Run, seed_of


def test_each_phase_has_its_own_reproducible_generator() -> None:
    run = Run(3)
    first, again = (torch.rand(5, generator=run.generator("a")) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, torch.rand(5, generator=run.generator("b")))
    assert not torch.equal(first, torch.rand(5, generator=Run(4).generator("a")))


def test_global_generators_are_seeded_inside_and_untouched_outside() -> None:
    before = torch.get_rng_state()
    with Run(3).isolated("weights"):
        first = torch.rand(3)
    with Run(3).isolated("weights"):
        assert torch.equal(torch.rand(3), first)
    assert torch.equal(torch.get_rng_state(), before)


def test_seeds_come_from_integers_and_generators() -> None:
    assert seed_of(7) == 7
    assert seed_of(np.random.RandomState(0)) == seed_of(np.random.RandomState(0))
    assert seed_of(np.random.default_rng(0)) == seed_of(np.random.default_rng(0))
    assert seed_of(None) != seed_of(None)
    with pytest.raises(ValueError, match=r"random_state is 'x': use an integer"):
        seed_of("x")


def test_a_timed_phase_records_its_time_and_its_limit() -> None:
    now = [0.0]
    run = Run(0, clock=Clock(10.0, lambda: now[0]))
    now[0] = 2.0
    with run.timed("phase"):
        now[0] = 5.0
    timing = run.timings["phase"]
    assert (timing.seconds, timing.allotted, timing.units) == (3.0, 8.0, 0)


def test_a_part_of_a_clock_has_at_most_the_remaining_time() -> None:
    now = [0.0]
    clock = Clock(10.0, lambda: now[0])
    now[0] = 4.0
    assert clock.part(100.0).seconds == 6.0
    assert clock.part(1.0).seconds == 1.0
    assert clock.elapsed() == 4.0
