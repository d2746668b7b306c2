"""Explanations by evaluating a game, with no training: KernelSHAP, and noise to compare with.

The result is (n, rows, columns, K) on a grid and (n, players, K) for a segmentation; with ``classes``, an array
(n,), only that class of each image is given, and the last axis is left out.
"""

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
    """KernelSHAP (Lundberg and Lee, 2017) on the model itself, with hidden pixels filled.

    network: what is explained, a torch.nn.Module or a function from images to outputs.
    logits: whether these are logits, which are turned into probabilities; ``link`` is then that of a probability.
    budget: evaluations for each image; by default as many as shap's own KernelExplainer spends. Like there,
        coalitions come in pairs; unlike there, no values are set to zero by an l1 penalty.
    """
    game, x = baseline_game(network, X, players, logits, link)
    seed = seed_of(random_state)
    estimate = kernel(
        game, x, budget=budget or _budget(game.players), paired=True, random_state=seed, progress=progress
    )
    return _drawn(estimate.values, game.partition_, classes)


def kernel_shap_s(
    explainer: FastSHAP,
    X: Any,
    *,
    budget: int | None = None,
    classes: ArrayLike | None = None,
    random_state: int | None = 0,
    progress: bool = False,
) -> NDArray[np.float64]:
    """The same on the value function of a fitted explainer, as a rule its surrogate: what FastSHAP approximates."""
    if not isinstance(explainer, FastSHAP):
        raise InputError(f"explainer is a {type(explainer).__name__}: pass a fitted FastSHAP, or use kernel_shap")
    check_is_fitted(explainer)
    budget = budget or _budget(explainer.value_function_.players)
    seed = seed_of(random_state)
    estimate = explainer.estimate(X, "kernel", budget=budget, paired=True, random_state=seed, progress=progress)
    return _drawn(estimate.values, explainer.partition_, classes)


def random_ranking(
    X: Any,
    players: Partition | Superpixels,
    outputs: int,
    *,
    classes: ArrayLike | None = None,
    random_state: int | None = 0,
) -> NDArray[np.float64]:
    """Uniform noise between 0 and 1 for each player and output: what any method should beat."""
    x, partition = bind_images(X, players)
    generator = np.random.default_rng(seed_of(random_state))
    return _drawn(generator.random((len(x), len(partition), outputs)), partition, classes)


def baseline_game(
    network: Any, X: Any, players: Partition | Superpixels, logits: bool, link: Link
) -> tuple[Baseline, Tensor]:
    """The game in which a model sees images with the hidden players filled, and the images as it takes them."""
    x, partition = bind_images(X, players)
    if isinstance(network, nn.Module):
        x = x.to(next((p.device for p in network.parameters()), x.device))
    model = ModelFunction(network, ImageSchema.of(X), trial_rows(x), logits)
    return Baseline().fit(Problem(model, x, x, partition, link), Run(0)), x


def _budget(players: int) -> int:
    """shap's own number of coalitions beside null and grand, and at least what the estimator needs."""
    return 2 + max(2 * players + 2048, 4 * players)


def _drawn(values: NDArray[np.float64], players: Partition, classes: ArrayLike | None) -> NDArray[np.float64]:
    drawn = maps(torch.from_numpy(values), players, upsample=False)
    if classes is None:
        return drawn
    return drawn[np.arange(len(drawn)), ..., class_numbers(classes, len(drawn), drawn.shape[-1])]
