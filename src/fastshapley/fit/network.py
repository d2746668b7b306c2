"""Building the explainer's network, and training it on a game."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fastshapley.coalitions import curvature
from fastshapley.data.players import Partition
from fastshapley.data.schema import Schema
from fastshapley.data.stream import Rows, batches
from fastshapley.fit.background_values import background_values
from fastshapley.fit.targets import Batch, Examination, Lesson, prepare_examination, prepare_lesson
from fastshapley.networks.builders import builder_for
from fastshapley.networks.explainer_network import ExplainerNetwork
from fastshapley.networks.network_builder import ExplainerPlan, GivenNetwork
from fastshapley.networks.table_encoder import TableEncoder
from fastshapley.objective import coalition_loss, efficiency_penalty, normalize
from fastshapley.training.loop import Task, train
from fastshapley.training.recipes import Recipe
from fastshapley.training.run import Run
from fastshapley.value_functions.background_sampling import thinning
from fastshapley.value_functions.base_game import classes_of, link_of, scale_of, tuned_model
from fastshapley.value_functions.protocol import ValueFunction

logger = logging.getLogger(__name__)

_PART, _IMAGES = 4096, 64  # rows encoded at once


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
    """A new network for a game: the encoding of the inputs, then ``given``, or by default the recipe's layers.

    ``model`` is the user's, from which an explainer of images takes its layers.
    """
    classes = classes_of(game) if recipe.tied_classes and not isinstance(given, nn.Module) else "free"
    source = tuned_model(game, model)
    sizes = (game.players, game.outputs)
    plan = ExplainerPlan(schema, players, *sizes, recipe, classes, given, source, run.processes)
    with run.isolated("explainer weights"):
        return builder_for(schema).explainer(x, plan)


def fit_network(
    network: ExplainerNetwork,
    value_function: ValueFunction,
    x: Rows,
    x_val: Rows,
    recipe: Recipe,
    run: Run,
    *,
    normalized: bool,
    penalty: float,
    discrete: Sequence[bool],
    owner: Sequence[int],
    update: bool = False,
) -> tuple[list[float], float]:
    """Train ``network`` in place; the result is its validation loss, before and after each epoch, and a pace.

    An ``update`` goes on with a network that was trained before. ``normalized`` says whether the loss sees values
    that are normalised; ``discrete`` which columns hold no numbers, and ``owner`` which player each belongs to.
    Losses are in units of the network's scale. The pace is the seconds that a row takes which the model, or the
    surrogate, is called with.
    """
    if value_function.players == 1:
        return [], 0.0  # the one value is grand minus null
    exam = prepare_examination(thinning(value_function, recipe.targets), x_val, recipe, run)
    if not recipe.trains_explainer:
        if not update:
            network.scale.zero_()  # each player has the same share
        return [], exam.pace
    added = background_values(value_function, recipe.targets, exam.pace, run)
    thin = thinning(value_function, recipe.targets, added)
    if added is not None:  # the same rows and coalitions once more, with most of the noise off
        exam = prepare_examination(thin, x_val, recipe, run, "second examination")
    scale = network.scale.clone() if update and network.scale.all() else _scale(value_function, exam, recipe, run)
    scale = _as_before(scale, run)
    network.scale.copy_(scale)
    total_val, worth_val = (exam.total / scale).float(), (exam.worth / scale).float()
    lesson = prepare_lesson(thin, x, scale, exam.pace, recipe, run, discrete, owner)
    if run.processes.all(_is_constant(lesson, exam, run)):
        network.scale.zero_()
        return [], exam.pace

    inputs, inputs_val = _inputs(network.encoder, lesson.x), _inputs(network.encoder, exam.x)
    parts_val = torch.arange(len(exam.x), device=x.device).split(_PART if exam.x.ndim == 2 else _IMAGES)

    def predict(inputs: Tensor, total: Tensor) -> tuple[Tensor, Tensor | float]:
        """The network's values in units of its scale, and the penalty on their gap."""
        phi = network.decode(inputs) / network.scale
        gap = penalty * efficiency_penalty(phi, total) if penalty else 0.0
        return (normalize(phi, total) if normalized else phi), gap

    def loss(batch: Batch, generator: torch.Generator) -> Tensor:
        phi, gap = predict(inputs(batch), lesson.total[batch[0]])
        return lesson.loss(phi, batch, generator) + gap

    def validate() -> float:
        phi = [predict(inputs_val((rows, exam.x[rows])), total_val[rows])[0] for rows in parts_val]
        return float(coalition_loss(torch.cat(phi), exam.s, worth_val))

    def describe(history: list[float]) -> dict[str, str]:
        if not normalized:
            return {}
        gain = (history[0] - min(history)) / curvature(value_function.players)
        unit = float(network.scale[0]) ** 2 if len(network.scale.unique()) == 1 else None
        return {"mse": f"-{gain * unit:.4g}"} if unit is not None else {"scaled mse": f"-{gain:.4g}"}

    fetch = partial(batches, lesson.x)
    task = Task("explainer", network, len(lesson.x), loss, validate, describe, fetch)
    losses = train(task, recipe.explainer, run)
    if len(losses) == 1 and not run.clock.left() and not update:
        logger.warning("time_budget left no time to train the explainer: every player gets the same value")
        network.scale.zero_()
    return losses, exam.pace


def _inputs(encoder: nn.Module, x: Rows) -> Callable[[Batch], Tensor]:
    """The network's inputs for a batch; made once where they do not change in training."""
    if not isinstance(encoder, TableEncoder) or encoder.table is not None:
        return lambda batch: encoder(batch[1])
    made = torch.cat([encoder(part) for part in x.split(_PART)])
    return lambda batch: made[batch[0]]


def _scale(value_function: ValueFunction, exam: Examination, recipe: Recipe, run: Run) -> Tensor:
    """The size of a typical value, by output, (outputs,): a network learns fastest what is of size one.

    Classes whose values cancel share it. The paper's recipe takes probabilities as they are.
    """
    spread = run.processes.mean(exam.worth.square().flatten(0, 1)).sqrt() / math.sqrt(value_function.players)
    if scale_of(value_function) == "probabilities":
        if recipe.targets is None and link_of(value_function) == "identity":
            return torch.ones_like(spread)
        spread = spread.square().mean().sqrt().expand_as(spread)
    return torch.where(spread > 0, spread, 1.0)


def _as_before(scale: Tensor, run: Run) -> Tensor:
    """The units in which a processes that goes on began to learn: its rows may be dealt out otherwise now."""
    if run.common is None:
        return scale
    common = run.common

    def first() -> Tensor:
        known = common.load("scale")
        if known is None:
            common.save("scale", {"scale": scale.cpu()})
        return scale.cpu() if known is None else known["scale"]

    return run.processes.share(first).to(scale)


def _is_constant(lesson: Lesson, exam: Examination, run: Run) -> bool:
    """Whether every value that was seen is zero."""
    if exam.worth.any() or lesson.total.any():
        return False
    rows = torch.arange(min(len(lesson.x), len(exam.x)), device=lesson.x.device)
    nothing = torch.zeros(len(rows), *exam.s.shape[2:], exam.worth.shape[2], device=lesson.x.device)
    return not lesson.loss(nothing, (rows, lesson.x[rows]), run.generator("constant"))
