"""Tests of mean outputs over drawn rows: weights, controls, blocks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fastshapley.players import Features
from fastshapley.value_functions import drawn_means
from fastshapley.value_functions.drawn_means import Draw, DrawnMeans
from fastshapley.value_functions.draws import DonorNumbers
from fastshapley.value_functions.samplers import ConditionalSampler
from fastshapley.value_functions.samplers.conditional_sampler import Draws

DONORS = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0]], dtype=torch.float64)
PLAYERS = Features().bind(["a", "b"])
NUMBERS = DonorNumbers(len(DONORS), PLAYERS, DONORS, seed=0)
ALL = torch.tensor([[False, False], [True, False], [False, True], [True, True]])


class FromDonors(ConditionalSampler):
    """Hidden entries of donors; the control is the first donor entry less its mean, whatever is hidden."""

    def _drawn(self, x: Tensor, s: Tensor, numbers: Tensor) -> Draws:
        raise AssertionError

    def __call__(self, x: Tensor, s: Tensor, numbers: Tensor) -> Tensor:
        return torch.where(PLAYERS.mask(s)[:, None], x[:, None], DONORS[numbers])

    def draw(self, x: Tensor, s: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor | None]:
        return self(x, s, numbers), DONORS[numbers][..., :1] - 2.5


def total(x: Tensor) -> Tensor:
    return x.sum(1, keepdim=True)


def means(count: int = 4, control: float = 0.0, generator: torch.Generator | None = None) -> DrawnMeans:
    by_size = (Draw(None, 0, 1.0, 0.0), Draw(FromDonors(), count, 0.5, control), Draw(None, 1, 1.0, 0.0))
    return DrawnMeans(total, 1, by_size, NUMBERS, generator)


def test_means_are_weighted_by_size_and_the_grand_coalition_is_the_model() -> None:
    x = torch.tensor([[5.0, 7.0], [6.0, 8.0]], dtype=torch.float64)
    found = means()(x, ALL.expand(2, -1, -1))[..., 0]
    assert found.tolist() == [[0, 0.5 * 30, 0.5 * 9.5, 12], [0, 0.5 * 31, 0.5 * 10.5, 14]]
    assert means().weights(ALL[None])[0, :, 0].tolist() == [0, 0.5, 0.5, 1]


def test_controls_are_subtracted_with_their_multiple() -> None:
    """The output of a draw is x_a + z_b = x_a + 10 z_a, so ten times the control takes all of the noise off."""
    x = torch.full((200, 2), 5.0, dtype=torch.float64)
    s = torch.tensor([[True, False]]).expand(200, 1, -1)
    noisy = means(1, 0.0, torch.Generator().manual_seed(0))(x, s)
    quiet = means(1, 10.0, torch.Generator().manual_seed(0))(x, s)
    assert noisy.std() > 1
    torch.testing.assert_close(quiet, torch.full_like(quiet, 0.5 * 30))


def test_the_same_question_has_the_same_draws_without_a_generator() -> None:
    x = torch.rand(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    s = ALL.expand(50, -1, -1)
    assert torch.equal(means(2)(x, s), means(2)(x, s))
    alone = torch.cat([means(2)(x[i : i + 1], s[:1]) for i in range(50)])
    torch.testing.assert_close(alone, means(2)(x, s))


def test_blocks_do_not_change_the_means(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(9, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole = means()(x, ALL.expand(9, -1, -1))
    monkeypatch.setattr(drawn_means, "BLOCK_DRAWS", 6)
    torch.testing.assert_close(means()(x, ALL.expand(9, -1, -1)), whole)


def test_no_coalitions_give_no_means() -> None:
    assert means()(DONORS[:0], torch.zeros(0, 3, 2, dtype=torch.bool)).shape == (0, 3, 1)
    assert means()(DONORS[:2], torch.zeros(2, 0, 2, dtype=torch.bool)).shape == (2, 0, 1)
