"""Building the explainer network and training it on a game."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fastshapley.coalitions import curvature
from fastshapley.data.players import Partition
from fastshapley.data.schema import Schema
from fastshapley.data.stream import Rows, batches
from fastshapley.fit.background_values import background_values
from fastshapley.fit.targets import (
    Batch,
    TrainingRows,
    TrainingSet,
    ValidationSet,
    prepare_training,
    prepare_validation,
)
from fastshapley.fit.tree_targets import TreeTargets, prepare_tree_training
from fastshapley.networks.builders import builder_for
from fastshapley.networks.explainer_network import ExplainerNetwork
from fastshapley.networks.network_builder import ExplainerPlan, GivenNetwork
from fastshapley.networks.table_encoder import TableEncoder
from fastshapley.objective import coalition_loss, efficiency_penalty, normalize
from fastshapley.training.loop import Task, train
from fastshapley.training.recipes import Recipe
from fastshapley.training.run import Run
from fastshapley.value_functions.background_sampling import thinning, unthinned
from fastshapley.value_functions.base_game import classes_of, link_of, scale_of, training_game, tuned_model
from fastshapley.value_functions.protocol import ValueFunction

logger = logging.getLogger(__name__)

ENCODED_ROWS, ENCODED_IMAGES = 4096, 64  # rows, or images, that are encoded at once


def build_network(
    x: Rows,
    schema: Schema,
    game: ValueFunction,
    players: Partition,
    model: Any,
    given: GivenNetwork,
    recipe: Recipe,
    run: Run,
) -> ExplainerNetwork:
    """Return a new network for a game.

    Parameters
    ----------
    x : Tensor or Stream
        Encoded rows, from which the encoding of the inputs is fitted.
    schema : Schema
        The layout of the rows.
    game : ValueFunction
        The game.
    players : Partition
        The players.
    model : object
        The user's model, from which an explainer of images takes its layers.
    given : torch.nn.Module, Backbone, UNet or None
        The body of the network; None for the layers of the recipe.
    recipe : Recipe
        The sizes of the layers.
    run : Run
        The random numbers of the initial weights.

    Returns
    -------
    ExplainerNetwork
    """
    classes = classes_of(game) if recipe.tied_classes and not isinstance(given, nn.Module) else "free"
    source = tuned_model(game, model)
    sizes = (game.players, game.outputs)
    plan = ExplainerPlan(schema, players, *sizes, recipe, classes, given, source, run.processes)
    with run.isolated("explainer weights"):
        return builder_for(schema).explainer(x, plan)


@dataclass(frozen=True)
class NetworkProblem:
    """What an explainer network is trained on, and how.

    Attributes
    ----------
    game : ValueFunction
        The game whose Shapley values it learns.
    rows : TrainingRows
        The rows to learn from.
    recipe : Recipe
        The settings of the training.
    run : Run
        The time, the random numbers and the place for unfinished work.
    normalized : bool
        Whether the loss sees values that are made to sum to grand minus null.
    penalty : float
        The weight of the squared gap before normalisation (the paper's gamma).
    update : bool
        Whether the network was trained before, and is now trained further.
    trees : TreeTargets, optional
        How exact values are computed, instead of estimated ones.
    """

    game: ValueFunction
    rows: TrainingRows
    recipe: Recipe
    run: Run
    normalized: bool = True
    penalty: float = 0.0
    update: bool = False
    trees: TreeTargets | None = None


@dataclass(frozen=True)
class NetworkFit:
    """What training leaves behind besides the network.

    Attributes
    ----------
    losses : list of float
        The validation loss before the first epoch and after each epoch, in units of the network's scale.
    pace : float
        Seconds per row that the model, or the surrogate, is called with.
    """

    losses: list[float]
    pace: float


def fit_network(network: ExplainerNetwork, problem: NetworkProblem) -> NetworkFit:
    """Train an explainer network in place.

    Where there is nothing to learn (a constant game, no time, a recipe without training) the network's scale
    becomes zero, so that every player gets the same share.

    Parameters
    ----------
    network : ExplainerNetwork
        The network.
    problem : NetworkProblem
        What it learns.

    Returns
    -------
    NetworkFit
    """
    game, rows, recipe, run = training_game(problem.game), problem.rows, problem.recipe, problem.run
    if game.players == 1:
        return NetworkFit([], 0.0)  # the one value is grand minus null
    thin = unthinned(game) if recipe.targets is None else thinning(game)
    validation = prepare_validation(thin, rows.x_val, recipe, run)
    if not recipe.trains_explainer:
        _set_scale(network, network.scale if problem.update else 0.0)
        return NetworkFit([], validation.pace)
    trees = problem.trees
    added = background_values(game, recipe.targets, validation.pace, run) if trees is None else None
    if added is not None:  # the same rows and coalitions once more, without most of the noise
        thin = thinning(game, added)
        validation = prepare_validation(thin, rows.x_val, recipe, run, "second examination")
    known = network.scale.clone() if problem.update and network.scale.all() else None
    scale = _agreed_scale(_typical_value(game, validation, recipe, run) if known is None else known, run)
    _set_scale(network, scale)
    training: TrainingSet
    if trees is None:
        training = prepare_training(thin, rows, scale, validation.pace, recipe, run)
    else:
        training = prepare_tree_training(trees, game, rows, scale, recipe, run)
    if run.processes.all(_is_constant(training, validation, run)):
        _set_scale(network, 0.0)
        return NetworkFit([], validation.pace)
    losses = train(_task(network, problem, training, validation, scale), recipe.explainer, run)
    if len(losses) == 1 and not run.clock.left() and not problem.update:
        logger.warning("time_budget left no time to train the explainer: every player gets the same value")
        _set_scale(network, 0.0)
    return NetworkFit(losses, validation.pace)


def _task(
    network: ExplainerNetwork,
    problem: NetworkProblem,
    training: TrainingSet,
    validation: ValidationSet,
    scale: Tensor,
) -> Task:
    """Return the losses of a network, in units of its scale."""
    total_val, worth_val = (validation.total / scale).float(), (validation.worth / scale).float()
    inputs, inputs_val = _inputs(network, training.x), _inputs(network, validation.x)
    size = ENCODED_ROWS if validation.x.ndim == 2 else ENCODED_IMAGES
    parts_val = torch.arange(len(validation.x), device=validation.x.device).split(size)

    def predict(inputs: tuple[Tensor, ...], total: Tensor) -> tuple[Tensor, Tensor | float]:
        """Return the values in units of the scale, and the penalty on their gap."""
        phi = network.decode(*inputs) / network.scale
        gap = problem.penalty * efficiency_penalty(phi, total) if problem.penalty else 0.0
        return (normalize(phi, total) if problem.normalized else phi), gap

    def loss(batch: Batch, generator: torch.Generator) -> Tensor:
        phi, gap = predict(inputs(batch), training.total[batch[0]])
        return training.loss(phi, batch, generator) + gap

    def validate() -> float:
        phi = [predict(inputs_val((rows, validation.x[rows])), total_val[rows])[0] for rows in parts_val]
        return float(coalition_loss(torch.cat(phi), validation.s, worth_val))

    def describe(history: list[float]) -> dict[str, str]:
        if not problem.normalized:
            return {}
        gain = (history[0] - min(history)) / curvature(problem.game.players)
        unit = float(network.scale[0]) ** 2 if len(network.scale.unique()) == 1 else None
        return {"mse": f"-{gain * unit:.4g}"} if unit is not None else {"scaled mse": f"-{gain:.4g}"}

    fetch = partial(batches, training.x)
    return Task("explainer", network, len(training.x), loss, validate, describe, fetch)


def _set_scale(network: ExplainerNetwork, scale: Tensor | float) -> None:
    network.scale.copy_(torch.as_tensor(scale).to(network.scale))


def _inputs(network: ExplainerNetwork, x: Rows) -> Callable[[Batch], tuple[Tensor, ...]]:
    """Return the network's inputs for a batch; what training does not change is computed once."""
    encoder = network.encoder
    if not isinstance(encoder, TableEncoder):
        return lambda batch: (encoder(batch[1]),)
    leaves = _each(network.leaves_of, x)
    if encoder.table is not None:
        return lambda batch: (encoder(batch[1]), *(part[batch[0]] for part in leaves))
    made = (*_each(lambda part: (encoder(part),), x), *leaves)
    return lambda batch: tuple(part[batch[0]] for part in made)


def _each(compute: Callable[[Tensor], tuple[Tensor, ...]], x: Rows) -> tuple[Tensor, ...]:
    """Apply a function to parts of rows, and join what it returns."""
    columns = zip(*(compute(part) for part in x.split(ENCODED_ROWS)), strict=True)
    return tuple(torch.cat(column) for column in columns)


def _typical_value(game: ValueFunction, validation: ValidationSet, recipe: Recipe, run: Run) -> Tensor:
    """Return the size of a typical value of each output, (outputs,): a network learns values of size one fastest.

    Classes whose values cancel share it. The paper's recipe takes probabilities as they are.
    """
    size = run.processes.mean(validation.worth.square().flatten(0, 1)).sqrt() / math.sqrt(game.players)
    if scale_of(game) == "probabilities":
        if recipe.targets is None and link_of(game) == "identity":
            return torch.ones_like(size)
        size = size.square().mean().sqrt().expand_as(size)
    return torch.where(size > 0, size, 1.0)


def _agreed_scale(scale: Tensor, run: Run) -> Tensor:
    """Return the scale that several processes began to train with: when they go on, their rows may differ."""
    if run.common is None:
        return scale
    common = run.common

    def first() -> Tensor:
        known = common.load("scale")
        if known is None:
            common.save("scale", {"scale": scale.cpu()})
        return scale.cpu() if known is None else known["scale"]

    return run.processes.share(first).to(scale)


def _is_constant(training: TrainingSet, validation: ValidationSet, run: Run) -> bool:
    """Return whether every value that was seen is zero."""
    if validation.worth.any() or training.total.any():
        return False
    device = training.x.device
    rows = torch.arange(min(len(training.x), len(validation.x)), device=device)
    nothing = torch.zeros(len(rows), *validation.s.shape[2:], validation.worth.shape[2], device=device)
    return not training.loss(nothing, (rows, training.x[rows]), run.generator("constant"))
