"""Tests of inclusion and exclusion curves, on models whose curves are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fastshapley.baselines.inclusion_curves import PAPER_SHARES, SHARES, Curve, paired_interval, removal_curves
from fastshapley.errors import InputError
from fastshapley.metrics import bootstrap_interval
from fastshapley.players import Features, Superpixels

GRID = Superpixels(grid=4)  # 16 players of 2 x 2 pixels.
STEPS = np.arange(17) / 16
SEEN = 6  # The only player that the model uses: row 1, column 2.


def sees(images: Tensor) -> Tensor:
    """Return probabilities of three classes. Class 1 has 0.9 if a pixel of player `SEEN` is shown, else 0.2."""
    shown = images[:, 0, 2:4, 4:6].flatten(1).any(1)
    likely = torch.where(shown, 0.9, 0.2)
    return torch.stack([(1 - likely) * 0.7, likely, (1 - likely) * 0.3], dim=1)


def ranked(place: int) -> list[float]:
    """Return values that rank player `SEEN` at this place among the sixteen players."""
    others = [player for player in range(16) if player != SEEN]
    order = [*others[:place], SEEN, *others[place:]]
    return [-float(order.index(player)) for player in range(16)]


def test_curves_jump_at_the_rank_of_the_only_important_player() -> None:
    X = torch.ones(3, 1, 8, 8)
    places = [0, 5, 15]
    values = [ranked(place) for place in places]
    curves = removal_curves(sees, X, values, GRID, [1, 1, 1], shares=STEPS, batch_size=2)
    for row, place in enumerate(places):
        entered = np.arange(17) > place
        np.testing.assert_allclose(curves.inclusion.probability.scores[row], np.where(entered, 0.9, 0.2), rtol=1e-6)
        np.testing.assert_allclose(curves.exclusion.probability.scores[row], np.where(entered, 0.2, 0.9), rtol=1e-6)
        np.testing.assert_array_equal(curves.inclusion.agreement.scores[row], entered)
        np.testing.assert_array_equal(curves.exclusion.agreement.scores[row], ~entered)
        # The jump is between place and place + 1 of 16, and the trapezoid rule counts half of that step.
        assert curves.inclusion.agreement.auc[row] == pytest.approx((16 - place - 0.5) / 16)
        assert curves.exclusion.agreement.auc[row] == pytest.approx((place + 0.5) / 16)
    np.testing.assert_allclose(
        curves.inclusion.log_odds.scores,
        np.log(curves.inclusion.probability.scores / (1 - curves.inclusion.probability.scores)),
    )
    np.testing.assert_allclose(curves.inclusion.agreement.mean, np.mean(curves.inclusion.agreement.scores, axis=0))


def test_areas_means_and_intervals_equal_those_computed_by_hand() -> None:
    curve = Curve(np.array([0.1, 0.2, 0.6, 1.0]), np.array([[0.0, 1.0, 1.0, 0.5], [2.0, 2.0, 2.0, 2.0]]))
    np.testing.assert_allclose(curve.auc, [0.05 + 0.4 + 0.3, 1.8])
    np.testing.assert_allclose(curve.mean, [1.0, 1.5, 1.5, 1.25])
    assert curve.interval() == bootstrap_interval(curve.auc)
    band = curve.band(level=0.5)
    assert band.shape == (2, 4)
    for column in range(4):
        assert tuple(band[:, column]) == bootstrap_interval(curve.scores[:, column], level=0.5)


def test_each_number_of_players_is_evaluated_once() -> None:
    """The default shares of 16 players are 0, 0, 1, 2, 2, 4, 8, 12, 14, 14, 15, 16 and 16 players."""
    calls: list[int] = []

    def predict(images: Tensor) -> Tensor:
        calls.append(len(images))
        shown = (images != 0).flatten(1).sum(1) / 4  # The number of players.
        return torch.stack([shown / 16, 1 - shown / 16], dim=1)

    X = torch.ones(5, 1, 8, 8)
    curves = removal_curves(
        predict, X, np.random.default_rng(0).random((5, 4, 4)), GRID, np.zeros(5, int), batch_size=3
    )
    counts = np.array([0, 0, 1, 2, 2, 4, 8, 12, 14, 14, 15, 16, 16])
    assert curves.inclusion.agreement.shares.tolist() == list(SHARES)
    np.testing.assert_allclose(curves.inclusion.probability.scores, np.broadcast_to(counts / 16, (5, 13)))
    np.testing.assert_allclose(curves.exclusion.probability.scores, np.broadcast_to(1 - counts / 16, (5, 13)))
    assert calls == [3] * 18 + [2] * 18  # Nine numbers of players, each shown and filled.
    # Probabilities of 0 and 1 are clipped before the log-odds.
    assert curves.inclusion.log_odds.scores[0, 0] == pytest.approx(np.log(1e-7), rel=1e-6)
    assert curves.inclusion.log_odds.scores[0, -1] == pytest.approx(-np.log(1e-7), rel=1e-6)


def test_the_shares_of_the_paper_leave_out_the_ends() -> None:
    X, values = torch.ones(2, 1, 8, 8), [ranked(3), ranked(12)]
    ours = removal_curves(sees, X, values, GRID, [1, 1]).inclusion.agreement
    paper = removal_curves(sees, X, values, GRID, [1, 1], shares=PAPER_SHARES).inclusion.agreement
    np.testing.assert_array_equal(paper.scores, ours.scores[:, 1:-1])
    np.testing.assert_allclose(
        ours.auc, paper.auc + 0.01 * (ours.scores[:, [0, 1]].mean(1) + ours.scores[:, -2:].mean(1))
    )


def test_hidden_segments_are_filled() -> None:
    segments = np.array([[5, 5, 9, 9]] * 2 + [[7, 7, 7, 7]] * 2)  # Three players: 5, 7 and 9.
    players = Superpixels(segmentation=segments, fill=[0.5, -1.0, 2.0]).bind_image((3, 4, 4))
    seen: list[Tensor] = []

    def predict(images: Tensor) -> np.ndarray[Any, Any]:
        seen.append(images.clone())
        return np.full((len(images), 2), 0.5, dtype=np.float32)

    X = np.random.default_rng(0).normal(size=(1, 3, 4, 4)).astype(np.float32)
    removal_curves(predict, X, [[0.0, 2.0, 1.0]], players, [0], shares=[0, 1 / 3, 2 / 3, 1])
    shown = np.array([segments == 7, np.isin(segments, (7, 9))])
    fill = np.array([0.5, -1.0, 2.0], dtype=np.float32)[:, None, None]
    for number, mask in enumerate(shown):
        np.testing.assert_array_equal(seen[2 + 2 * number][0], np.where(mask, X[0], fill))
        np.testing.assert_array_equal(seen[3 + 2 * number][0], np.where(mask, fill, X[0]))
    np.testing.assert_array_equal(seen[0][0], np.broadcast_to(fill, (3, 4, 4)))
    np.testing.assert_array_equal(seen[1], X)


def test_ties_are_broken_at_random() -> None:
    """If all values are equal, each rank of the important player is equally likely."""
    images = 2000
    X, values = torch.ones(images, 1, 8, 8), np.zeros((images, 16))
    labels = np.ones(images, dtype=int)

    def areas(random_state: int) -> np.ndarray[Any, Any]:
        curves = removal_curves(sees, X, values, GRID, labels, shares=STEPS, random_state=random_state)
        return curves.inclusion.agreement.auc

    first = areas(0)
    np.testing.assert_array_equal(first, areas(0))
    assert (first != areas(1)).any()
    places = 15.5 - 16 * first
    # Ranks are uniform on 0 to 15, so their mean has a standard error of sqrt(255 / 12 / 2000) = 0.103.
    assert abs(places.mean() - 7.5) < 4 * 0.103
    assert np.unique(places.round()).tolist() == list(range(16))
    # A tie does not change the ranks above it.
    above = values.copy()
    above[:, SEEN] = 1
    curves = removal_curves(sees, X, above, GRID, labels, shares=STEPS)
    np.testing.assert_allclose(curves.inclusion.agreement.auc, 15.5 / 16)


def test_methods_are_compared_on_the_same_images() -> None:
    generator = np.random.default_rng(0)
    images = 200
    hardness = generator.normal(size=(images, 1))  # Images differ far more than methods.
    shares = np.array([0.0, 1.0])
    a = Curve(shares, hardness + 0.1 + 0.05 * generator.normal(size=(images, 2)))
    b = Curve(shares, hardness + 0.05 * generator.normal(size=(images, 2)))
    low, high = paired_interval(a, b)
    assert 0.05 < low < 0.1 < high < 0.15
    assert (low, high) == bootstrap_interval(a.auc - b.auc)
    assert paired_interval(b, a)[1] < 0
    assert a.interval()[0] < b.interval()[1]  # The separate intervals overlap.
    assert paired_interval(a, a) == (0, 0)
    with pytest.raises(InputError, match="the same images"):
        paired_interval(a, Curve(shares, b.scores[:10]))
    with pytest.raises(InputError, match="the same shares"):
        paired_interval(a, Curve(np.array([0.0, 0.5]), b.scores))


def test_tensors_arrays_and_bound_players_give_the_same_curves() -> None:
    X = torch.ones(2, 1, 8, 8)
    values = [ranked(2), ranked(9)]
    plain = removal_curves(sees, X, values, GRID, [1, 1])
    other = removal_curves(
        sees, X.numpy(), torch.tensor(values), GRID.bind_image((1, 8, 8)), torch.tensor([1, 1]), batch_size=1
    )
    np.testing.assert_array_equal(plain.exclusion.log_odds.scores, other.exclusion.log_odds.scores)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": np.zeros((2, 15))}, r"values has shape \(2, 15\), expected \(2, 16\)"),
        ({"values": np.zeros((2, 16, 3))}, r"values has shape \(2, 16, 3\)"),
        ({"values": np.full((2, 16), np.nan)}, "not finite"),
        ({"labels": [1]}, r"labels has shape \(1,\)"),
        ({"labels": [0.0, 1.0]}, "dtype float64: pass one integer per image"),
        ({"labels": [0, -1]}, "numbered from 0"),
        ({"labels": [0, 3]}, "labels go up to 3, but predict returns 3 classes"),
        ({"shares": [0.5]}, "shares is"),
        ({"shares": [0.5, 0.2]}, "pass two or more increasing numbers"),
        ({"shares": [1, 50, 99]}, "between 0 and 1"),
        (
            {"players": Superpixels(grid=4).bind_image((1, 4, 4))},
            r"players belong to images of shape \(1, 4, 4\)",
        ),
        ({"players": Features()}, "use Superpixels"),
        ({"players": Superpixels(grid=3)}, "does not divide"),
        ({"X": torch.ones(2, 8, 8)}, "X has shape"),
        ({"X": np.ones((0, 1, 8, 8), dtype=np.float32)}, "X has no rows"),
        ({"predict": lambda images: sees(images).log()}, "which are not probabilities: for a network with logits"),
        ({"predict": lambda images: sees(images) * torch.nan}, "which are not probabilities"),
        ({"predict": lambda images: sees(images)[:, 0]}, r"predict returned shape \(2,\) for 2 images"),
    ],
)
def test_bad_input_raises(change: dict[str, Any], message: str) -> None:
    given = {
        "predict": sees,
        "X": torch.ones(2, 1, 8, 8),
        "values": np.zeros((2, 16)),
        "players": GRID,
        "labels": [0, 1],
        **change,
    }
    with pytest.raises(InputError, match=message):
        removal_curves(**given)
