"""The surrogate: a network that is trained to give the model's output from any part of a row."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fastshapley.coalitions import sample_uniform_sizes
from fastshapley.data.model_adapter import Scale
from fastshapley.data.players import Partition
from fastshapley.data.schema import Schema
from fastshapley.data.stream import batches
from fastshapley.errors import InputError
from fastshapley.networks.builders import builder_for
from fastshapley.networks.column_tables import ColumnTables
from fastshapley.networks.network_builder import SavedNetwork, SurrogatePlan
from fastshapley.networks.perceptron import Perceptron
from fastshapley.networks.surrogate_networks import Inverse, SurrogateNetwork
from fastshapley.networks.weights import load_weights, with_prefix
from fastshapley.training.loop import Task, Training, train
from fastshapley.training.process_group import ProcessGroup
from fastshapley.training.recipes import Layers, Recipe, shorter
from fastshapley.training.run import Run
from fastshapley.value_functions.base_game import BaseGame, GameContext, Problem
from fastshapley.value_functions.labels import LabelledRows, label_rows
from fastshapley.value_functions.links import Link, apply_link
from fastshapley.value_functions.missing import Missing

_PASS_COALITIONS = 4096  # largest number of coalitions in a forward pass
_PASS_ENTRIES = 1 << 20  # largest number of their entries, so that activations stay in the cache
_VALIDATION_COALITIONS = 1 << 16  # coalitions that choose the best epoch
_VALIDATION_IMAGES = 4096  # the same for a network that is as slow as a classifier of images
Sampler = Callable[[int, int, int, torch.Generator], Tensor]  # rows, coalitions, players, generator -> coalitions


class Surrogate(BaseGame):
    """v(x, s) = link(g(x_s, s)) with a network g that is trained so that g(x_s, s) is E[f(x) | x_s].

    It is trained on the model's outputs, by the Kullback-Leibler divergence if these are probabilities, and by the
    squared error otherwise.

    Parameters
    ----------
    network : nn.Module or estimator, optional
        The body of the network: a module from (b, inputs + players) to (b, outputs) logits or numbers, by default a
        small perceptron. A fitted estimator that accepts missing values is used as it is. For images, it is a
        classifier that starts with its own weights and returns logits or probabilities as the model does, by
        default a copy of the model.
    training : tuple of Training, optional
        The stages of the training, by default those of the recipe; ``()`` takes the network as it is.
    layers : Layers, optional
        The hidden layers of the default body, by default those of the recipe.
    coalitions : int, optional
        The number of coalitions per row and step, by default that of the recipe.
    sampler : callable
        Draws the coalitions; by default their sizes are uniform.
    """

    kind = "surrogate"
    has_short_name = True
    fits_together = True
    is_surrogate = True

    _evaluator: SurrogateNetwork | ColumnTables | None

    def __init__(
        self,
        network: Any = None,
        training: tuple[Training, ...] | None = None,
        layers: Layers | None = None,
        coalitions: int | None = None,
        sampler: Sampler = sample_uniform_sizes,
    ) -> None:
        self.network = network
        self.training = training
        self.layers = layers
        self.coalitions = coalitions
        self.sampler = sampler

    def fit(self, problem: Problem, run: Run) -> Surrogate | Missing:
        """Train on the rows of a problem, and return the game: `Missing` if ``network`` is an estimator.

        Raises
        ------
        InputError
            If the network does not fit the data, or the outputs do not suit the link.
        """
        if self.network is not None and not isinstance(self.network, nn.Module):
            return Missing(self.network).fit(problem, run)
        return self.fit_to(label_rows(problem, run, _most_validation_rows(problem)), problem, run)

    def fit_to(self, rows: LabelledRows, problem: Problem, run: Run) -> Surrogate:
        """Train on rows that the model has been called with, and return the game; otherwise as `fit`."""
        model, players, recipe = problem.model, problem.players, problem.resolved_recipe()
        scale = _scale(problem)
        with run.isolated("surrogate weights"):
            network = self._network(problem, recipe, scale, run.processes).to(problem.x.device)
        apply_link(problem.link, rows.y)  # Outputs that do not suit the link are reported before training.
        self._assemble(network, scale, problem.link, model.schema, players, model.outputs)
        if scale == "real" and not network.starts_trained:
            self.shift_ = _mean(rows.y, run.processes)
            self.spread_ = _spread(rows.y, run.processes)
        self._check(rows.x[:2])
        return self._learn(problem, recipe, rows, run)

    def update(self, problem: Problem, run: Run) -> Surrogate:
        """Return a copy that is trained further on the rows of a problem; this object stays as it is.

        Raises
        ------
        InputError
            If the model has another number or kind of outputs now.
        """
        return self.updated_to(label_rows(problem, run, _most_validation_rows(problem)), problem, run)

    def updated_to(self, rows: LabelledRows, problem: Problem, run: Run) -> Surrogate:
        """Return what `update` does, trained on rows that the model has been called with."""
        problem = replace(problem, link=self.link)
        model, scale = problem.model, _scale(problem)
        if (model.outputs, scale) != (self.outputs, self.scale):
            raise InputError(
                f"the model has {model.outputs} outputs ({scale}), and the surrogate learnt {self.outputs} "
                f"({self.scale}): call fit instead"
            )
        new = copy.deepcopy(self)
        if new.training is not None:
            new.training = tuple(shorter(stage) for stage in new.training)
        new.spread_ = torch.where(new.spread_ > 0, new.spread_, _spread(rows.y, run.processes))
        return new._learn(problem, problem.resolved_recipe(), rows, run)

    def _learn(self, problem: Problem, recipe: Recipe, rows: LabelledRows, run: Run) -> Surrogate:
        training = recipe.surrogate if self.training is None else self.training
        self._train(rows, training, self.coalitions or recipe.surrogate_coalitions, run)
        self.null = self._null(rows.x[:1])
        self.model_null = apply_link(problem.link, _mean(rows.y, run.processes))  # the null of the model itself
        return self

    def _network(self, problem: Problem, recipe: Recipe, scale: Scale, processes: ProcessGroup) -> SurrogateNetwork:
        model = problem.model
        inverse: Inverse = (
            None if model.logits or scale == "real" else "log" if scale == "probabilities" else "logit"
        )
        plan = SurrogatePlan(
            model.schema,
            problem.players,
            model.outputs,
            recipe,
            self.layers or recipe.surrogate_layers,
            inverse,
            self.network,
            model.model,
            processes,
        )
        return builder_for(model.schema).surrogate(problem.x, plan)

    def describe(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the scale, the link and the network's configuration, and the weights and constants."""
        config = {"kind": self.kind, "scale": self.scale, "link": self.link, **self.network_.config}
        tensors = {f"network.{name}": tensor for name, tensor in self.network_.state_dict().items()}
        constants = {"shift": self.shift_, "spread": self.spread_, "null": self.null, "model_null": self.model_null}
        return config, {**tensors, **constants}

    @classmethod
    def restore(cls, config: dict[str, Any], tensors: dict[str, Tensor], context: GameContext) -> Surrogate:
        """Return the fitted game; a body of the user's, or the model whose layers it has, must be given."""
        saved = SavedNetwork(config, context.schema, context.partition, context.given, context.model)
        network = builder_for(context.schema).saved_surrogate(saved).to(context.device)
        load_weights(
            network, with_prefix(tensors, "network"), "model" if context.given is None else "value_function"
        )
        game, outputs = cls(), len(tensors["shift"])
        game._assemble(network, config["scale"], config["link"], context.schema, context.partition, outputs)
        game.shift_, game.spread_, game.null = tensors["shift"], tensors["spread"], tensors["null"]
        game.model_null = tensors.get("model_null", tensors["null"])  # The first files do not have it.
        network.eval()
        return game

    @classmethod
    def setting(cls, given: Any) -> Any:
        """Return the value function as a user writes it; a network is passed to `Surrogate`."""
        return cls(given) if isinstance(given, nn.Module) else super().setting(given)

    @property
    def imitation(self) -> Surrogate:
        """The surrogate itself."""
        return self

    def tuned_model(self, model: Any) -> Any:
        """Return the network's body if it began as a copy of the model, and the model otherwise."""
        body = self.network_.body
        if type(body) is type(model) and body.state_dict().keys() == model.state_dict().keys():
            return body
        return model

    def weights(self) -> list[Tensor]:
        """Return the weights of the network."""
        return list(self.network_.state_dict().values())

    def grand(self, x: Tensor) -> Tensor:
        """Return v(x, 1), (n, outputs)."""
        return apply_link(self.link, self.whole_rows(x))

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        """Return v(x, s), (n, m, outputs)."""
        return apply_link(self.link, self.expectation(x, s))

    def whole_rows(self, x: Tensor) -> Tensor:
        """Return the estimates of the model's outputs for whole rows, before the link, (n, outputs)."""
        with torch.no_grad():
            return self.activate(torch.cat([self._trained().known(part) for part in x.split(_pass_size(x))]))

    def expectation(self, x: Tensor, s: Tensor) -> Tensor:
        """Return the estimate of E[f(x) | x_s], before the link, (n, m, outputs)."""
        most = _pass_size(x)
        rows, network = max(1, most // s.shape[1]), self._trained()
        with torch.no_grad():
            raw = [
                torch.cat([network(a, c) for c in b.split(most, dim=1)], dim=1)
                for a, b in zip(x.split(rows), s.split(rows), strict=True)
            ]
        return self.activate(torch.cat(raw))

    def _trained(self) -> SurrogateNetwork | ColumnTables:
        """Return what evaluates the trained network."""
        if self._evaluator is None:
            self._evaluator = self.network_.trained()
        return self._evaluator

    def _assemble(
        self,
        network: SurrogateNetwork,
        scale: Scale,
        link: Link,
        schema: Schema,
        players: Partition,
        outputs: int,
    ) -> None:
        self.network_, self.scale, self.link = network, scale, link
        self._evaluator = None
        self.concurrent = isinstance(network.body, Perceptron)  # A module of the user's may not be.
        self.schema_, self.partition_ = schema, players
        self.players, self.outputs = len(players), outputs
        device = next(network.parameters()).device
        self.shift_ = torch.zeros(outputs, dtype=torch.float64, device=device)
        self.spread_ = torch.ones(outputs, dtype=torch.float64, device=device)

    def activate(self, raw: Tensor) -> Tensor:
        """Return the outputs on the model's scale, given what the network returns."""
        if self.link != "identity":
            raw = raw.double()  # A probability near one needs all digits.
        if self.scale == "probabilities" and self.outputs == 2:  # This is a softmax, nine times as fast.
            ahead = raw[..., 1] - raw[..., 0]
            return torch.stack([(-ahead).sigmoid(), ahead.sigmoid()], dim=-1)
        if self.scale == "probabilities":
            return raw.softmax(-1)
        if self.scale == "probability":
            return raw.sigmoid()
        return self.shift_ + self.spread_ * raw

    def _check(self, x: Tensor) -> None:
        s = torch.ones(len(x), 1, self.players, dtype=torch.bool, device=x.device)
        expected = f"a module from {self.network_.inputs} to (b, {self.outputs})"
        self.network_.eval()  # Batch normalisation must not learn from this.
        try:
            with torch.no_grad():
                shape = tuple(self.network_(x, s).flatten(0, 1).shape)
        except Exception as error:  # A user's module may raise anything.
            raise InputError(f"network must be {expected}: {error}") from error
        if shape != (len(x), self.outputs):
            raise InputError(f"network must be {expected}; for {len(x)} rows it returned shape {shape}")

    def _train(self, rows: LabelledRows, training: tuple[Training, ...], coalitions: int, run: Run) -> None:
        unit = torch.where(self.spread_ > 0, self.spread_, 1.0)
        y, y_val = ((labels - self.shift_).div(unit).float() for labels in (rows.y, rows.y_val))
        x, x_val, large = rows.x, rows.x_val, self.network_.starts_trained
        most = _VALIDATION_IMAGES if large else _VALIDATION_COALITIONS
        each = max(1, min(10, most // len(x_val)))
        s_val = self.sampler(len(x_val), each, self.players, run.generator("surrogate validation"))

        def loss(batch: tuple[Tensor, Tensor], generator: torch.Generator) -> Tensor:
            numbers, part = batch
            s = self.sampler(len(numbers), coalitions, self.players, generator)
            return self._loss(self.network_(part, s), y[numbers])

        def validate() -> float:
            size = max(1, _pass_size(x_val) // each) if large else _PASS_COALITIONS
            parts = zip(x_val.split(size), s_val.split(size), y_val.split(size), strict=True)
            return sum(len(a) * float(self._loss(self.network_(a, b), c)) for a, b, c in parts) / len(x_val)

        self.losses_: list[float] = []
        for stage, options in enumerate(training):
            name = "surrogate" if len(training) == 1 else f"surrogate stage {stage + 1}"
            part = run.within(1 / (len(training) - stage))
            self.losses_ += train(
                Task(name, self.network_, len(x), loss, validate, fetch=partial(batches, x)), options, part
            )
        self.network_.eval()
        self._evaluator = None

    def _loss(self, raw: Tensor, y: Tensor) -> Tensor:
        target = y[:, None].expand(raw.shape)
        if self.scale == "probabilities":
            return -(target * raw.log_softmax(-1)).sum(-1).mean()
        if self.scale == "probability":
            return functional.binary_cross_entropy_with_logits(raw, target)
        return functional.mse_loss(raw, target)

    def _null(self, x: Tensor) -> Tensor:
        null = self(x[:1], torch.zeros(1, 1, self.players, dtype=torch.bool, device=x.device))
        return null[0, 0].double()


def _pass_size(x: Tensor) -> int:
    """Return the number of coalitions in a forward pass."""
    return max(16, min(_PASS_COALITIONS, _PASS_ENTRIES // max(1, x[:1].numel())))


def _most_validation_rows(problem: Problem) -> float:
    return _VALIDATION_IMAGES if problem.model.schema.kind == "image" else math.inf


def _scale(problem: Problem) -> Scale:
    return "probability" if problem.link != "identity" and problem.model.scale == "real" else problem.model.scale


def _mean(y: Tensor, processes: ProcessGroup) -> Tensor:
    """Return the mean of each output; a constant output keeps its value to the last digit."""
    mean = processes.mean(y)
    return torch.where(processes.mean((y - y[0]).abs()) > 0, mean, y[0])


def _spread(y: Tensor, processes: ProcessGroup) -> Tensor:
    """Return the standard deviation of each output; zero for a constant output, which stays constant."""
    mean = processes.mean(y)
    spread = processes.mean((y - mean).square()).sqrt()
    return torch.where(spread <= 1e-12 * mean.abs(), 0.0, spread)
