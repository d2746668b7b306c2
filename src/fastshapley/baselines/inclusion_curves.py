"""Inclusion and exclusion curves: what a classifier makes of images of which only some players are shown.

A ranking of the players is good if the class stays with its first ones alone, and goes with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import integrate, special
from torch import Tensor

from fastshapley.data.image_schema import ImageSchema
from fastshapley.data.players import Partition, Superpixels
from fastshapley.errors import InputError
from fastshapley.metrics import Array, bootstrap_interval

PAPER_SHARES = (0.01, 0.05, 0.10, 0.15, 0.25, 0.50, 0.75, 0.85, 0.90, 0.95, 0.99)
SHARES = (0.0, *PAPER_SHARES, 1.0)
_CLIP = 1e-7  # probabilities are kept this far from 0 and 1 before the log-odds


@dataclass(frozen=True)
class Curve:
    """One score of each image, ``scores`` (n, shares), at each of ``shares`` (shares,) of the players."""

    shares: Array
    scores: Array

    @property
    def mean(self) -> Array:
        """The mean over images, (shares,)."""
        return self.scores.mean(axis=0)

    @property
    def auc(self) -> Array:
        """The area under each image's curve, (n,), by trapezoids from the first share to the last.

        >>> Curve(np.array([0.0, 0.5, 1.0]), np.array([[0.0, 1.0, 1.0]])).auc
        array([0.75])
        """
        return integrate.trapezoid(self.scores, self.shares, axis=1)

    def interval(self, level: float = 0.95, random_state: int | None = 0) -> tuple[float, float]:
        """The bootstrap interval of the mean area."""
        return bootstrap_interval(self.auc, level, random_state=random_state)

    def band(self, level: float = 0.95, random_state: int | None = 0) -> Array:
        """The bootstrap interval of the mean at each share, (2, shares): the lower ends, then the upper ones."""
        columns = self.scores.T
        return np.array([bootstrap_interval(column, level, random_state=random_state) for column in columns]).T


@dataclass(frozen=True)
class Scores:
    """The curves of one way to show players, by score.

    agreement: 1 where the most likely class is the one that is explained, else 0.
    log_odds, probability: of the class that is explained.
    """

    agreement: Curve
    log_odds: Curve
    probability: Curve


@dataclass(frozen=True)
class Curves:
    """``inclusion`` shows the first players of the ranking and fills all else, ``exclusion`` fills those alone.

    A better ranking has larger areas under the inclusion curves, and smaller ones under the exclusion curves.
    """

    inclusion: Scores
    exclusion: Scores


def removal_curves(
    predict: Callable[[Tensor], Any],
    X: Any,
    values: ArrayLike,
    players: Partition | Superpixels,
    labels: ArrayLike,
    *,
    shares: Sequence[float] | Array = SHARES,
    batch_size: int = 256,
    random_state: int | None = 0,
) -> Curves:
    """The curves of images whose players ``values`` rank, the largest first.

    predict: from images (b, channels, height, width) to the probabilities of the classes (b, K). To be fair to all
        methods it is an evaluator, a network that was trained on images with players hidden. Of a network with
        logits, in evaluation mode, it is ``lambda images: network(images).softmax(1)``.
    X: images (n, channels, height, width).
    values: (n, players), or (n, rows, columns) on a grid, of the class that is explained. Ties are broken at
        random: a method that gives all players the same value must not profit from how an image is laid out.
    labels: (n,), the class that is explained, which the original model predicts for the full image.
    shares: of the players that are shown, or filled, each to the nearest whole number of them. ``PAPER_SHARES``
        leave out the two ends, which are the same for all methods; the area is that between the shares given.

    RISE's insertion and deletion (Petsiuk et al., 2018), with the players' fill for its blur, are the areas under
    the probability that the original model itself gives, player by player:

    >>> def model(images):  # that looks at the top left pixel
    ...     return torch.stack([images[:, 0, 0, 0], 1 - images[:, 0, 0, 0]], dim=1)
    >>> X, values = torch.ones(1, 1, 2, 2), [[3.0, 2.0, 1.0, 0.0]]
    >>> steps = np.arange(5) / 4
    >>> rise = removal_curves(model, X, values, Superpixels(grid=2), labels=[0], shares=steps)
    >>> rise.inclusion.probability.mean, rise.exclusion.probability.mean
    (array([0., 1., 1., 1., 1.]), array([1., 0., 0., 0., 0.]))
    >>> rise.inclusion.probability.auc, rise.exclusion.probability.auc
    (array([0.875]), array([0.125]))
    """
    x, partition = bind_images(X, players)
    chosen = torch.from_numpy(class_numbers(labels, len(x), None, "labels")).to(x.device)
    places = torch.from_numpy(_places(values, len(x), len(partition), random_state)).to(x.device)
    shares = _checked_shares(shares)
    # a hair above a half, so that a share such as 5 / 8 of 4 players is not at the mercy of rounding errors
    counts, which = np.unique((shares * len(partition) + 0.5 + 1e-9).astype(np.int64), return_inverse=True)
    # the scores (probability, agreement), of each way to show players (inclusion, exclusion)
    scores = torch.empty(2, 2, len(x), len(counts), dtype=torch.float64, device=x.device)
    for rows in torch.arange(len(x), device=x.device).split(batch_size):
        images, label = x[rows], chosen[rows]
        for column, count in enumerate(counts.tolist()):
            first = places[rows] < count
            for way, s in enumerate((first, ~first)):
                shown = torch.where(partition.mask(s), images, partition.filling(images))
                made = _probabilities(predict, shown, label)
                scores[0, way, rows, column] = made.gather(1, label[:, None])[:, 0]
                scores[1, way, rows, column] = (made.argmax(1) == label).double()
    probability, agreement = scores.cpu().numpy()[..., which]
    odds = special.logit(probability.clip(_CLIP, 1 - _CLIP))
    inclusion, exclusion = (
        Scores(*(Curve(shares, score[way]) for score in (agreement, odds, probability))) for way in (0, 1)
    )
    return Curves(inclusion, exclusion)


def paired_interval(a: Curve, b: Curve, level: float = 0.95, random_state: int | None = 0) -> tuple[float, float]:
    """The bootstrap interval of the mean area under ``a`` minus that under ``b``.

    These are of two methods on the same images, which are resampled with both of their areas: how hard an image is
    cancels out.
    """
    if a.scores.shape != b.scores.shape or not np.array_equal(a.shares, b.shares):
        raise InputError(
            f"a has scores of shape {a.scores.shape} and b of {b.scores.shape}: measure both methods on the same "
            "images, at the same shares"
        )
    return bootstrap_interval(a.auc - b.auc, level, random_state=random_state)


def bind_images(X: Any, players: Partition | Superpixels) -> tuple[Tensor, Partition]:
    """Images as one tensor (n, channels, height, width), float32, checked, and their players."""
    x = ImageSchema.of(X).encode(X)[:]
    if isinstance(players, Superpixels):
        return x, players.bind_image(x.shape[1:])
    if not isinstance(players, Partition):
        raise InputError(f"players is {players!r}: use Superpixels(grid=14)")
    own = (len(players.fill), *players.shape[1:])
    if own != tuple(x.shape[1:]):
        raise InputError(
            f"players are those of images of shape {own}, and X has images of shape {tuple(x.shape[1:])}: use "
            "Superpixels, or their bind_image of this shape"
        )
    return x, players


def class_numbers(
    classes: ArrayLike | Tensor, rows: int, outputs: int | None, argument: str = "classes"
) -> NDArray[np.int64]:
    """A class for each row, (rows,), checked: whole numbers from 0, below ``outputs`` where that is known."""
    given = np.asarray(classes.cpu() if isinstance(classes, Tensor) else classes)
    if given.shape != (rows,) or given.dtype.kind not in "iu":
        raise InputError(
            f"{argument} has shape {given.shape} and dtype {given.dtype}: give a whole number for each image, "
            f"({rows},), the class that is explained"
        )
    if given.min() < 0 or (outputs is not None and given.max() >= outputs):
        most = "" if outputs is None else f" to {outputs - 1}"
        raise InputError(
            f"{argument} are from {given.min()} to {given.max()}: the classes are numbered from 0{most}"
        )
    return given.astype(np.int64)


def _places(values: Any, rows: int, players: int, random_state: int | None) -> NDArray[np.int64]:
    """Each player's place in its image's ranking, (rows, players), 0 for the largest value."""
    given = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, dtype=np.float64)
    if given.ndim < 2 or len(given) != rows or given[0].size != players:
        raise InputError(
            f"values have shape {given.shape} where ({rows}, {players}) is expected: give one for each player of "
            "each image, of the class that is explained"
        )
    if not np.isfinite(given).all():
        raise InputError("values has entries that are not finite, which cannot be ranked")
    given = given.reshape(rows, players)
    draws = np.random.default_rng(random_state).random(given.shape)
    return np.lexsort((draws, -given), axis=1).argsort(axis=1)


def _checked_shares(shares: Sequence[float] | Array) -> Array:
    given = np.asarray(shares, dtype=np.float64)
    if given.ndim != 1 or len(given) < 2 or (np.diff(given) <= 0).any() or given[0] < 0 or given[-1] > 1:
        raise InputError(f"shares is {given.tolist()}: give two or more that increase, between 0 and 1")
    return given


def _probabilities(predict: Callable[[Tensor], Any], images: Tensor, labels: Tensor) -> Tensor:
    """What ``predict`` makes of images, (b, K), float64, checked."""
    with torch.no_grad():
        made = torch.as_tensor(predict(images)).to(images.device, torch.float64)
    if made.ndim != 2 or len(made) != len(images):
        raise InputError(
            f"predict returned shape {tuple(made.shape)} for {len(images)} images: expected (b, classes)"
        )
    if not ((made >= -1e-6) & (made <= 1 + 1e-6)).all():
        raise InputError(
            f"predict returned numbers from {float(made.min()):.3g} to {float(made.max()):.3g}, which are no "
            "probabilities: of a network with logits pass lambda images: network(images).softmax(1)"
        )
    if int(labels.max()) >= made.shape[1]:
        raise InputError(f"labels go up to {int(labels.max())}, and predict returns {made.shape[1]} classes")
    return made
