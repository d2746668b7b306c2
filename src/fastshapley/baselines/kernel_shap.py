"""Explain images without training: KernelSHAP, and random values to compare with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from fastshapley.baselines.inclusion_curves import bind_images, class_numbers
from fastshapley.data.image_schema import ImageSchema
from fastshapley.data.model_adapter import ModelFunction, trial_rows
from fastshapley.data.players import Partition, Superpixels
from fastshapley.errors import InputError
from fastshapley.estimators import kernel
from fastshapley.explainer import FastSHAP
from fastshapley.explanation import maps
from fastshapley.training.run import Run, seed_of
from fastshapley.value_functions import Baseline, Problem
from fastshapley.value_functions.links import Link


def kernel_shap(
    network: Any,
    X: Any,
    players: Partition | Superpixels,
    *,
    budget: int | None = None,
    logits: bool = True,
    link: Link = "logit",
    classes: ArrayLike | None = None,
    random_state: int | None = 0,
    progress: bool = False,
) -> NDArray[np.float64]:
    """Explain images by KernelSHAP (Lundberg and Lee, 2017) on the model itself, with hidden pixels filled.

    Parameters
    ----------
    network : torch.nn.Module or callable
        The model to explain, from images to outputs.
    X : Tensor, array or dataset
        Images, (n, channels, height, width).
    players : Superpixels or Partition
        The players.
    budget : int, optional
        The number of evaluations per image. The default is that of shap's KernelExplainer. As there, coalitions
        come in pairs. Unlike there, no values are set to zero by an l1 penalty.
    logits : bool, default=True
        Whether the model returns logits, which are turned into probabilities.
    link : {"identity", "logit", "log"}, default="logit"
        The scale on which the probabilities are explained.
    classes : array-like, optional
        The class to return for each image, (n,). The default returns all K classes.
    random_state : int, default=0
        The seed.
    progress : bool, default=False
        Whether to show a progress bar.

    Returns
    -------
    ndarray
        Values (n, rows, columns, K) on a grid, or (n, players, K) for a segmentation. With ``classes`` the last
        axis is left out.
    """
    game, x = baseline_game(network, X, players, logits, link)
    seed = seed_of(random_state)
    estimate = kernel(
        game, x, budget=budget or _budget(game.players), paired=True, random_state=seed, progress=progress
    )
    return _as_maps(estimate.values, game.partition_, classes)


def kernel_shap_s(
    explainer: FastSHAP,
    X: Any,
    *,
    budget: int | None = None,
    classes: ArrayLike | None = None,
    random_state: int | None = 0,
    progress: bool = False,
) -> NDArray[np.float64]:
    """Explain images by KernelSHAP on the value function of a fitted explainer.

    The value function is usually a surrogate. FastSHAP approximates the Shapley values of the same game.

    Parameters
    ----------
    explainer : FastSHAP
        A fitted explainer of images.
    X : Tensor, array or dataset
        Images, (n, channels, height, width).
    budget : int, optional
        The number of evaluations per image, as in `kernel_shap`.
    classes : array-like, optional
        The class to return for each image, (n,). The default returns all K classes.
    random_state : int, default=0
        The seed.
    progress : bool, default=False
        Whether to show a progress bar.

    Returns
    -------
    ndarray
        Values (n, rows, columns, K) on a grid, or (n, players, K) for a segmentation. With ``classes`` the last
        axis is left out.

    Raises
    ------
    InputError
        If ``explainer`` is not a `FastSHAP`.
    """
    if not isinstance(explainer, FastSHAP):
        raise InputError(f"explainer is a {type(explainer).__name__}: pass a fitted FastSHAP, or use kernel_shap")
    check_is_fitted(explainer)
    budget = budget or _budget(explainer.value_function_.players)
    seed = seed_of(random_state)
    estimate = explainer.estimate(X, "kernel", budget=budget, paired=True, random_state=seed, progress=progress)
    return _as_maps(estimate.values, explainer.partition_, classes)


def random_ranking(
    X: Any,
    players: Partition | Superpixels,
    outputs: int,
    *,
    classes: ArrayLike | None = None,
    random_state: int | None = 0,
) -> NDArray[np.float64]:
    """Return uniform random values between 0 and 1, which any method should beat.

    Parameters
    ----------
    X : Tensor, array or dataset
        Images, (n, channels, height, width).
    players : Superpixels or Partition
        The players.
    outputs : int
        The number of classes, K.
    classes : array-like, optional
        The class to return for each image, (n,). The default returns all K classes.
    random_state : int, default=0
        The seed.

    Returns
    -------
    ndarray
        Values (n, rows, columns, K) on a grid, or (n, players, K) for a segmentation. With ``classes`` the last
        axis is left out.
    """
    x, partition = bind_images(X, players)
    generator = np.random.default_rng(seed_of(random_state))
    return _as_maps(generator.random((len(x), len(partition), outputs)), partition, classes)


def baseline_game(
    network: Any, X: Any, players: Partition | Superpixels, logits: bool, link: Link
) -> tuple[Baseline, Tensor]:
    """Return the game in which a model sees images with the hidden players filled, and the encoded images.

    Parameters
    ----------
    network : torch.nn.Module or callable
        The model.
    X : Tensor, array or dataset
        Images, (n, channels, height, width).
    players : Superpixels or Partition
        The players.
    logits : bool
        Whether the model returns logits.
    link : {"identity", "logit", "log"}
        The link of the game.

    Returns
    -------
    game : Baseline
        The game.
    x : Tensor
        The images, (n, channels, height, width), on the device of the model.
    """
    x, partition = bind_images(X, players)
    if isinstance(network, nn.Module):
        x = x.to(next((p.device for p in network.parameters()), x.device))
    model = ModelFunction(network, ImageSchema.of(X), trial_rows(x), logits)
    return Baseline().fit(Problem(model, x, x, partition, link), Run(0)), x


def _budget(players: int) -> int:
    """Return shap's default number of coalitions, plus null and grand, or more if the estimator needs more."""
    return 2 + max(2 * players + 2048, 4 * players)


def _as_maps(values: NDArray[np.float64], players: Partition, classes: ArrayLike | None) -> NDArray[np.float64]:
    drawn = maps(torch.from_numpy(values), players, upsample=False)
    if classes is None:
        return drawn
    return drawn[np.arange(len(drawn)), ..., class_numbers(classes, len(drawn), drawn.shape[-1])]
