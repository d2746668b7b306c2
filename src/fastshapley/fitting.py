"""Training the explainer's network on a game: on estimated values, or on coalitions with the paper's loss."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fastshapley.coalitions import curvature, sample_kernel
from fastshapley.errors import InputError
from fastshapley.estimators.exact import exact_values
from fastshapley.estimators.kernel import draw_pairs
from fastshapley.estimators.regression import solve_pairs
from fastshapley.mixing import mix_rows
from fastshapley.networks.mlp import Classes, ExplainerNetwork, Perceptron, TableEncoder
from fastshapley.objective import coalition_loss, efficiency_penalty, normalize
from fastshapley.recipes import Recipe, Targets
from fastshapley.schema import Schema
from fastshapley.training import Run, train
from fastshapley.value_functions.base import TableGame, ValueFunction, evaluate, null_values, total_values

logger = logging.getLogger(__name__)

_BLOCK = 1 << 18  # evaluations between two looks at the clock, the bar and the disk
_PART = 4096  # rows that a game is asked about in one call
_FEWEST = 512  # rows with targets below which an explainer learns more from few coalitions of many rows

Lesson = Callable[[Tensor, Tensor, torch.Generator], Tensor]  # of values, for rows by number


@dataclass(frozen=True)
class Game:
    """A value function in the units of an explainer's network: each output divided by its spread."""

    value_function: ValueFunction
    scale: Tensor

    @property
    def players(self) -> int:
        return self.value_function.players

    @property
    def cost(self) -> int:
        return self.value_function.cost if isinstance(self.value_function, TableGame) else 1

    def total(self, x: Tensor) -> Tensor:
        """Grand minus null, (n, outputs)."""
        return (total_values(self.value_function, x) / self.scale).float()

    def draw(
        self, x: Tensor, coalitions: int, generator: torch.Generator, *, paired: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Fresh coalitions s from the Shapley kernel, (n, m, players), and v(x, s) - v(x, 0), (n, m, outputs)."""
        s = sample_kernel(len(x), coalitions, self.players, generator, paired=paired)
        v = evaluate(self.value_function, x, s)
        return s, ((v - null_values(self.value_function, x)[:, None]) / self.scale).float()

    def targets(self, x: Tensor, coalitions: int, generator: torch.Generator) -> Tensor:
        """Estimated Shapley values, (n, players, outputs)."""
        if 1 << self.players <= coalitions:
            values = exact_values(self.value_function, x)
        else:
            z, u = draw_pairs(self.value_function, x, coalitions // 2, generator)
            values = solve_pairs(z, u, total_values(self.value_function, x))
        return (values / self.scale).float()


def build_network(
    x: Tensor, schema: Schema, game: ValueFunction, body: nn.Module | None, recipe: Recipe, run: Run
) -> ExplainerNetwork:
    """A new network for a game: the encoding of the columns, then ``body`` or the recipe's layers."""
    classes = _classes(game) if recipe.tied_classes and body is None else "free"
    layers = recipe.explainer_layers
    outputs = ExplainerNetwork.body_outputs(game.players, game.outputs, classes)
    with run.isolated("explainer weights"):
        encoder = TableEncoder.fitted(x, schema.category_counts)
        body = copy.deepcopy(body)
        if body is None:
            body = Perceptron(len(encoder.columns), outputs, layers.count, layers.width, layers.activation)
    network = ExplainerNetwork(encoder, body, game.players, game.outputs, classes).to(x.device)
    if not isinstance(game, TableGame) or game.scale == "real" or game.link != "identity":
        spread = total_values(game, x[:_PART]).square().mean(0).sqrt()
        network.scale.copy_(torch.where(spread > 0, spread, 1.0))
    _check_body(network, x[:2])
    return network


def _check_body(network: ExplainerNetwork, x: Tensor) -> None:
    try:
        with torch.no_grad():
            network.eval()(x)
    except InputError:
        raise
    except Exception as error:  # whatever the user's module raises
        inputs, outputs = len(network.encoder.columns), network.players * network.outputs
        raise InputError(f"network must be a module from (b, {inputs}) to (b, {outputs}): {error}") from error


def _classes(game: ValueFunction) -> Classes:
    """What is known of the outputs' values: those of probabilities sum to zero over the classes."""
    if not isinstance(game, TableGame) or game.scale != "probabilities":
        return "free"
    if game.outputs == 2:
        return "mirror"
    return "zero-sum" if game.link == "identity" else "free"


def fit_network(
    network: ExplainerNetwork,
    value_function: ValueFunction,
    x: Tensor,
    x_val: Tensor,
    recipe: Recipe,
    run: Run,
    *,
    normalized: bool,
    penalty: float,
    discrete: Sequence[bool],
    owner: Sequence[int],
) -> list[float]:
    """Train ``network`` in place; the result is its validation loss, before and after each epoch.

    ``normalized`` says whether the loss sees normalised values; ``discrete`` which columns hold no numbers, and
    ``owner`` which player each belongs to. Losses are in units of the network's scale.
    """
    if value_function.players == 1:
        return []  # the one value is grand minus null
    game = Game(value_function, network.scale.double())
    generator = run.generator("explainer validation")
    chosen = torch.randperm(len(x_val), generator=generator, device=x.device)[: _validation_rows(game, recipe)]
    x_val = x_val[chosen]
    total_val, (s_val, worth_val) = game.total(x_val), game.draw(x_val, recipe.validation_coalitions, generator)
    x, lesson = _material(game, x, recipe, run, discrete, owner)
    total = torch.cat([game.total(part) for part in x.split(_PART)])
    some = torch.arange(min(len(x), _PART), device=x.device)
    nothing = torch.zeros(len(some), game.players, total.shape[1], device=x.device)
    if not (worth_val.any() or total.any() or lesson(nothing, some, generator)):
        network.scale.zero_()  # a constant game: every value is zero
        return []

    def predict(x: Tensor, total: Tensor) -> tuple[Tensor, Tensor | float]:
        """The network's values in the game's units, and the penalty on their gap."""
        phi = network(x) / network.scale
        gap = penalty * efficiency_penalty(phi, total) if penalty else 0.0
        return (normalize(phi, total) if normalized else phi), gap

    def loss(rows: Tensor, generator: torch.Generator) -> Tensor:
        phi, gap = predict(x[rows], total[rows])
        return lesson(phi, rows, generator) + gap

    def validate() -> float:
        return float(coalition_loss(predict(x_val, total_val)[0], s_val, worth_val))

    def describe(history: list[float]) -> dict[str, str]:
        if not normalized:
            return {}
        gain = (history[0] - min(history)) / curvature(game.players)
        unit = float(network.scale[0]) ** 2 if len(network.scale.unique()) == 1 else None
        return {"mse": f"-{gain * unit:.4g}"} if unit is not None else {"scaled mse": f"-{gain:.4g}"}

    return train(network, loss, len(x), recipe.explainer, run, "explainer", validate, describe)


def _validation_rows(game: Game, recipe: Recipe) -> int:
    """With a budget of evaluations, validation takes a tenth of it at most."""
    if recipe.targets is None:
        return recipe.validation_rows
    affordable = recipe.targets.evaluations // (10 * game.cost * recipe.validation_coalitions)
    return min(recipe.validation_rows, max(16, affordable))


def _material(
    game: Game, x: Tensor, recipe: Recipe, run: Run, discrete: Sequence[bool], owner: Sequence[int]
) -> tuple[Tensor, Lesson]:
    """The rows to train on, and their loss: against targets where these are affordable, else the paper's."""

    def draw(x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return game.draw(x, recipe.coalitions, generator, paired=recipe.paired)

    def paper_loss(phi: Tensor, s: Tensor, worth: Tensor, generator: torch.Generator) -> Tensor:
        if recipe.outputs_per_step is not None and recipe.outputs_per_step < phi.shape[2]:
            order = torch.randperm(phi.shape[2], generator=generator, device=generator.device)
            pick = order[: recipe.outputs_per_step]
            phi, worth = phi[..., pick], worth[..., pick]
        return coalition_loss(phi, s, worth)

    options = recipe.targets
    if options is None:
        return x, lambda phi, rows, g: paper_loss(phi, *draw(x[rows], g), g)
    affordable = options.evaluations // game.cost
    coalitions = 2 * (options.coalitions * game.players // 2)
    coalitions = min(coalitions, 1 << game.players)  # all of them: exact values
    if affordable // coalitions >= _FEWEST:
        x = _rows(x, affordable // coalitions, options, run, discrete, owner)
        (targets,) = _in_blocks(x, coalitions, game, run, lambda part, g: (game.targets(part, coalitions, g),))
        return x, lambda phi, rows, g: (phi - targets[rows]).square().mean()
    x = _rows(x, max(1, affordable // recipe.coalitions), options, run, discrete, owner)
    logger.info("evaluations are dear: %d rows with %d coalitions each, kept", len(x), recipe.coalitions)
    s, worth = _in_blocks(x, recipe.coalitions, game, run, draw)
    return x, lambda phi, rows, g: paper_loss(phi, s[rows], worth[rows], g)


def _rows(
    x: Tensor, affordable: int, options: Targets, run: Run, discrete: Sequence[bool], owner: Sequence[int]
) -> Tensor:
    """As many rows as are affordable: fewer than there are, or more, mixed from them."""
    generator = run.generator("rows")
    if affordable < len(x):
        return x[torch.randperm(len(x), generator=generator, device=x.device)[:affordable]]
    more = min(affordable, options.rows) - len(x)
    return torch.cat([x, mix_rows(x, more, discrete, generator, owner)]) if more > 0 else x


def _in_blocks(
    x: Tensor,
    coalitions: int,
    game: Game,
    run: Run,
    compute: Callable[[Tensor, torch.Generator], tuple[Tensor, ...]],
) -> tuple[Tensor, ...]:
    """Apply ``compute`` to blocks of rows, each with a seed and a checkpoint of its own."""
    parts: list[list[Tensor]] = []
    bar = run.bar(len(x), "coalitions", "row")
    for number, block in enumerate(x.split(max(1, _BLOCK // (coalitions * game.cost)))):
        name = f"coalitions {number}"
        saved = run.checkpoint.load(name)
        if saved is None:
            saved = {"parts": [part.cpu() for part in compute(block, run.generator(name))]}
            run.checkpoint.save(name, saved)
        parts.append([part.to(x.device) for part in saved["parts"]])
        bar.update(len(block))
    bar.close()
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))
