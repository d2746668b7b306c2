"""Inclusion and exclusion curves: the outputs of a classifier when only some players of an image are shown.

A ranking of the players is good if the first players alone keep the class, and the image without them loses it.
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

# The shares of the players that the paper shows or fills.
PAPER_SHARES = (0.01, 0.05, 0.10, 0.15, 0.25, 0.50, 0.75, 0.85, 0.90, 0.95, 0.99)
# The same, with both ends.
SHARES = (0.0, *PAPER_SHARES, 1.0)
_MIN_PROBABILITY = 1e-7  # distance of probabilities from 0 and 1 before the log-odds


@dataclass(frozen=True)
class Curve:
    """One score per image and share of the players.

    Parameters
    ----------
    shares : ndarray
        The shares of the players, (shares,).
    scores : ndarray
        The scores, (n, shares).
    """

    shares: Array
    scores: Array

    @property
    def mean(self) -> Array:
        """The mean over images, (shares,)."""
        return self.scores.mean(axis=0)

    @property
    def auc(self) -> Array:
        """The area under each image's curve, (n,), by the trapezoidal rule.

        Examples
        --------
        >>> Curve(np.array([0.0, 0.5, 1.0]), np.array([[0.0, 1.0, 1.0]])).auc
        array([0.75])
        """
        return integrate.trapezoid(self.scores, self.shares, axis=1)

    def interval(self, level: float = 0.95, random_state: int | None = 0) -> tuple[float, float]:
        """Return the bootstrap interval of the mean area.

        Parameters
        ----------
        level : float, default=0.95
            The confidence level.
        random_state : int, default=0
            The seed.

        Returns
        -------
        tuple of float
            The lower and the upper end.
        """
        return bootstrap_interval(self.auc, level, random_state=random_state)

    def band(self, level: float = 0.95, random_state: int | None = 0) -> Array:
        """Return the bootstrap interval of the mean at each share.

        Parameters
        ----------
        level : float, default=0.95
            The confidence level.
        random_state : int, default=0
            The seed.

        Returns
        -------
        ndarray
            The lower and the upper ends, (2, shares).
        """
        columns = self.scores.T
        return np.array([bootstrap_interval(column, level, random_state=random_state) for column in columns]).T


@dataclass(frozen=True)
class Scores:
    """The curves of three scores.

    Parameters
    ----------
    agreement : Curve
        1 if the most likely class is the explained one, otherwise 0.
    log_odds : Curve
        The log-odds of the explained class.
    probability : Curve
        The probability of the explained class.
    """

    agreement: Curve
    log_odds: Curve
    probability: Curve


@dataclass(frozen=True)
class Curves:
    """The inclusion and exclusion curves of a ranking.

    A better ranking has larger areas under the inclusion curves, and smaller areas under the exclusion curves.

    Parameters
    ----------
    inclusion : Scores
        The first players of the ranking are shown, and all others are filled.
    exclusion : Scores
        The first players of the ranking are filled, and all others are shown.
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
    """Return the inclusion and exclusion curves of images.

    Parameters
    ----------
    predict : callable
        Returns the class probabilities (b, K) of images (b, channels, height, width). To treat all methods equally,
        use an evaluator: a network that was trained on images with hidden players. For a network in evaluation mode
        that returns logits, pass ``lambda images: network(images).softmax(1)``.
    X : Tensor, array or dataset
        Images, (n, channels, height, width).
    values : array-like
        The values of the explained class, (n, players), or (n, rows, columns) on a grid. The player with the
        largest value ranks first. Ties are broken at random, so that a method with equal values does not profit
        from the layout of the image.
    players : Superpixels or Partition
        The players.
    labels : array-like
        The explained class of each image, (n,): the class that the original model predicts for the full image.
    shares : sequence of float, default=SHARES
        The shares of the players that are shown or filled, rounded to whole players. ``PAPER_SHARES`` leaves out
        both ends, which are the same for all methods. The area is that between the first and the last share.
    batch_size : int, default=256
        The number of images per call of ``predict``.
    random_state : int, default=0
        The seed of the ties.

    Returns
    -------
    Curves
        The curves.

    Raises
    ------
    InputError
        If the arguments do not fit together, or ``predict`` does not return probabilities.

    Examples
    --------
    RISE's insertion and deletion (Petsiuk et al., 2018) are the areas under the probability of the original model,
    player by player. The players' fill takes the place of its blur.

    >>> def model(images):  # looks at the top left pixel
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
    # The small constant keeps rounding errors from deciding about a share such as 5 / 8 of 4 players.
    counts, which = np.unique((shares * len(partition) + 0.5 + 1e-9).astype(np.int64), return_inverse=True)
    # The axes are (probability, agreement), (inclusion, exclusion), images and counts.
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
    odds = special.logit(probability.clip(_MIN_PROBABILITY, 1 - _MIN_PROBABILITY))
    inclusion, exclusion = (
        Scores(*(Curve(shares, score[way]) for score in (agreement, odds, probability))) for way in (0, 1)
    )
    return Curves(inclusion, exclusion)


def paired_interval(a: Curve, b: Curve, level: float = 0.95, random_state: int | None = 0) -> tuple[float, float]:
    """Return the bootstrap interval of the mean area under ``a`` minus the mean area under ``b``.

    Both areas of an image are resampled together, so the difficulty of an image cancels out.

    Parameters
    ----------
    a, b : Curve
        The curves of two methods for the same images and shares.
    level : float, default=0.95
        The confidence level.
    random_state : int, default=0
        The seed.

    Returns
    -------
    tuple of float
        The lower and the upper end.

    Raises
    ------
    InputError
        If the curves have different images or shares.
    """
    if a.scores.shape != b.scores.shape or not np.array_equal(a.shares, b.shares):
        raise InputError(
            f"a has scores of shape {a.scores.shape} and b of {b.scores.shape}: measure both methods on the same "
            "images, at the same shares"
        )
    return bootstrap_interval(a.auc - b.auc, level, random_state=random_state)


def bind_images(X: Any, players: Partition | Superpixels) -> tuple[Tensor, Partition]:
    """Check images, and bind players to them.

    Parameters
    ----------
    X : Tensor, array or dataset
        Images, (n, channels, height, width).
    players : Superpixels or Partition
        The players.

    Returns
    -------
    x : Tensor
        The images, (n, channels, height, width), float32.
    players : Partition
        The players of the images.

    Raises
    ------
    InputError
        If the players do not fit the images.
    """
    x = ImageSchema.of(X).encode(X)[:]
    if isinstance(players, Superpixels):
        return x, players.bind_image(x.shape[1:])
    if not isinstance(players, Partition):
        raise InputError(f"players is {players!r}: use Superpixels(grid=14)")
    own = (len(players.fill), *players.shape[1:])
    if own != tuple(x.shape[1:]):
        raise InputError(
            f"players belong to images of shape {own}, but X has images of shape {tuple(x.shape[1:])}: pass "
            "Superpixels, or bind them to this shape with bind_image"
        )
    return x, players


def class_numbers(
    classes: ArrayLike | Tensor, rows: int, outputs: int | None, argument: str = "classes"
) -> NDArray[np.int64]:
    """Check the class of each row.

    Parameters
    ----------
    classes : array-like
        One integer per row.
    rows : int
        The number of rows.
    outputs : int or None
        The number of classes, if it is known.
    argument : str, default="classes"
        The name of the argument, for error messages.

    Returns
    -------
    ndarray
        The classes, (rows,), int64.

    Raises
    ------
    InputError
        If the classes are not integers from 0 to ``outputs - 1``, one per row.
    """
    given = np.asarray(classes.cpu() if isinstance(classes, Tensor) else classes)
    if given.shape != (rows,) or given.dtype.kind not in "iu":
        raise InputError(
            f"{argument} has shape {given.shape} and dtype {given.dtype}: pass one integer per image, "
            f"({rows},), the explained class"
        )
    if given.min() < 0 or (outputs is not None and given.max() >= outputs):
        most = "" if outputs is None else f" to {outputs - 1}"
        raise InputError(
            f"{argument} are from {given.min()} to {given.max()}: the classes are numbered from 0{most}"
        )
    return given.astype(np.int64)


def _places(values: Any, rows: int, players: int, random_state: int | None) -> NDArray[np.int64]:
    """Return the rank of each player in its image, (rows, players), 0 for the largest value."""
    given = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, dtype=np.float64)
    if given.ndim < 2 or len(given) != rows or given[0].size != players:
        raise InputError(
            f"values has shape {given.shape}, expected ({rows}, {players}): pass one value of the explained class "
            "per image and player"
        )
    if not np.isfinite(given).all():
        raise InputError("values has entries that are not finite: they cannot be ranked")
    given = given.reshape(rows, players)
    draws = np.random.default_rng(random_state).random(given.shape)
    return np.lexsort((draws, -given), axis=1).argsort(axis=1)


def _checked_shares(shares: Sequence[float] | Array) -> Array:
    given = np.asarray(shares, dtype=np.float64)
    if given.ndim != 1 or len(given) < 2 or (np.diff(given) <= 0).any() or given[0] < 0 or given[-1] > 1:
        raise InputError(f"shares is {given.tolist()}: pass two or more increasing numbers between 0 and 1")
    return given


def _probabilities(predict: Callable[[Tensor], Any], images: Tensor, labels: Tensor) -> Tensor:
    """Return the checked probabilities of images, (b, K), float64."""
    with torch.no_grad():
        made = torch.as_tensor(predict(images)).to(images.device, torch.float64)
    if made.ndim != 2 or len(made) != len(images):
        raise InputError(
            f"predict returned shape {tuple(made.shape)} for {len(images)} images: expected (b, classes)"
        )
    if not ((made >= -1e-6) & (made <= 1 + 1e-6)).all():
        raise InputError(
            f"predict returned numbers from {float(made.min()):.3g} to {float(made.max()):.3g}, which are not "
            "probabilities: for a network with logits, pass lambda images: network(images).softmax(1)"
        )
    if int(labels.max()) >= made.shape[1]:
        raise InputError(f"labels go up to {int(labels.max())}, but predict returns {made.shape[1]} classes")
    return made
