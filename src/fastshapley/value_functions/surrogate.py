"""The surrogate: a network trained to give the model's output from any part of a row."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fastshapley.coalitions import sample_uniform_sizes
from fastshapley.data.image_schema import ImageSchema
from fastshapley.data.model_adapter import Scale
from fastshapley.data.players import Partition
from fastshapley.data.stream import Rows, batches, some
from fastshapley.data.table_schema import Schema
from fastshapley.errors import InputError
from fastshapley.networks.convolutional import Inverse, MaskedImages
from fastshapley.networks.mlp import MaskedNetwork, Perceptron, TableEncoder
from fastshapley.training.loop import Task, Training, train
from fastshapley.training.process_group import ProcessGroup
from fastshapley.training.recipes import Layers, Recipe, resolve, shorter
from fastshapley.training.run import Run
from fastshapley.value_functions.protocol import BaseGame, Link, Problem, apply_link
from fastshapley.value_functions.removal import Missing

_CHUNK, _ENTRIES = 4096, 1 << 20  # coalitions a forward pass, and their entries: the activations stay in the cache
_VALIDATION, _VALIDATION_IMAGES = 1 << 16, 4096  # coalitions that choose the best epoch
Sampler = Callable[[int, int, int, torch.Generator], Tensor]  # of rows, coalitions and players
_LABELS = 0.5  # of the time that is left, to call the model
_KEPT = 60.0  # seconds after which the model's outputs are kept


class Surrogate(BaseGame):
    """v(x, s) = link(g(x_s, s)) with a network g trained so that g(x_s, s) is E[f(x) | x_s].

    It is trained on the model's outputs at coalitions from ``sampler``, by default of uniform size: by
    Kullback-Leibler divergence where they are probabilities, by squared error where they are not.

    ``network`` is the network's body, a module of the user's from (b, inputs + players) to (b, outputs) logits
    or numbers; by default a small perceptron. It may also be a fitted estimator that takes missing values,
    which is then used as it is. Of images, it is a classifier that starts with its own weights, and returns what
    the model does, logits or probabilities; by default a copy of the model. ``training`` are the stages it is
    trained in and ``layers`` the default body's layers; by default both come from the recipe, and ``training=()``
    takes the network as it is.
    ``coalitions`` are drawn for each row of a step.
    """

    cost = 1

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
        """Train on the problem's rows; the result is the game (`Missing` if an estimator was given)."""
        if self.network is not None and not isinstance(self.network, nn.Module):
            return Missing(self.network).fit(problem, run)
        model, players = problem.model, problem.players
        recipe = problem.recipe or resolve("default", len(problem.x), len(players), images=bool(players.shape))
        scale = _scale(problem)
        with run.isolated("surrogate weights"):
            network = self._network(problem, recipe, scale, run.processes).to(problem.x.device)
        x, y, x_val, y_val = _labelled(problem, run)
        apply_link(problem.link, y)  # outputs that it does not fit are reported here, before training
        self._assemble(network, scale, problem.link, model.schema, players, model.outputs)
        if scale == "real" and not players.shape:  # a copy of the model starts as it is
            self.shift_ = run.processes.mean(y)
            self.spread_ = _spread(y, run.processes)
        self._check(x[:2])
        return self._learn(problem, recipe, x, y, x_val, y_val, run)

    def update(self, problem: Problem, run: Run) -> Surrogate:
        """A copy that is trained further, on the problem's rows; this one stays as it is."""
        model, scale = problem.model, _scale(problem)
        if (model.outputs, scale) != (self.outputs, self.scale):
            raise InputError(
                f"the model gives {model.outputs} outputs ({scale}), and the surrogate learnt {self.outputs} "
                f"({self.scale}): fit anew"
            )
        new = copy.deepcopy(self)
        if new.training is not None:
            new.training = tuple(shorter(stage) for stage in new.training)
        recipe = problem.recipe or resolve(
            "default", len(problem.x), self.players, images=bool(problem.players.shape)
        )
        x, y, x_val, y_val = _labelled(problem, run)
        new.spread_ = torch.where(new.spread_ > 0, new.spread_, _spread(y, run.processes))
        return new._learn(problem, recipe, x, y, x_val, y_val, run)

    def _learn(
        self, problem: Problem, recipe: Recipe, x: Rows, y: Tensor, x_val: Tensor, y_val: Tensor, run: Run
    ) -> Surrogate:
        training = recipe.surrogate if self.training is None else self.training
        coalitions = self.coalitions or recipe.surrogate_coalitions
        self._train(x, y, x_val, y_val, training, coalitions, run)
        self.null = self._null(x[:1])
        self.model_null = apply_link(problem.link, run.processes.mean(y))  # the model's own, where nothing is known
        return self

    def _network(
        self, problem: Problem, recipe: Recipe, scale: Scale, processes: ProcessGroup
    ) -> MaskedNetwork | MaskedImages:
        model, players, body = problem.model, problem.players, copy.deepcopy(self.network)
        if isinstance(model.schema, ImageSchema) or not isinstance(problem.x, Tensor):
            if body is None and not isinstance(model.model, nn.Module):
                raise InputError(
                    f"model is a {type(model.model).__name__}, which cannot be trained on: pass a network to learn "
                    "what it does, value_function=Surrogate(network)"
                )
            body = (copy.deepcopy(model.model) if body is None else body).requires_grad_(True)
            inverse: Inverse = (
                None if model.logits or scale == "real" else "log" if scale == "probabilities" else "logit"
            )
            return MaskedImages(body, players, inverse)
        encoder = TableEncoder.fitted(problem.x, model.schema.category_counts, recipe.tails, processes)
        if body is None:
            layers = self.layers or recipe.surrogate_layers
            inputs = len(encoder.columns) + len(players)
            body = Perceptron(inputs, model.outputs, layers.count, layers.width, layers.activation)
        return MaskedNetwork(encoder, players.owner, body)

    def restore(
        self,
        network: MaskedNetwork | MaskedImages,
        scale: Scale,
        link: Link,
        schema: Schema | ImageSchema,
        players: Partition,
        shift: Tensor,
        spread: Tensor,
        null: Tensor,
        model_null: Tensor,
    ) -> Surrogate:
        """The fitted game from its parts."""
        self._assemble(network, scale, link, schema, players, len(shift))
        self.shift_, self.spread_, self.null, self.model_null = shift, spread, null, model_null
        network.eval()
        return self

    def grand(self, x: Tensor) -> Tensor:
        if isinstance(self.network_, MaskedNetwork):
            with torch.no_grad():
                raw = torch.cat([self.network_.known(part) for part in x.split(_chunk(x))])
            return apply_link(self.link, self.activate(raw))
        return self(x, torch.ones(len(x), 1, self.players, dtype=torch.bool, device=x.device))[:, 0]

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        chunk = _chunk(x)
        rows = max(1, chunk // s.shape[1])
        with torch.no_grad():
            raw = [
                torch.cat([self.network_(a, c) for c in b.split(chunk, dim=1)], dim=1)
                for a, b in zip(x.split(rows), s.split(rows), strict=True)
            ]
        return apply_link(self.link, self.activate(torch.cat(raw)))

    def _assemble(
        self,
        network: MaskedNetwork | MaskedImages,
        scale: Scale,
        link: Link,
        schema: Schema | ImageSchema,
        players: Partition,
        outputs: int,
    ) -> None:
        self.network_, self.scale, self.link = network, scale, link
        self.concurrent = isinstance(network.body, Perceptron)  # a module of the user's may not be
        self.schema_, self.partition_ = schema, players
        self.players, self.outputs = len(players), outputs
        device = next(network.parameters()).device
        self.shift_ = torch.zeros(outputs, dtype=torch.float64, device=device)
        self.spread_ = torch.ones(outputs, dtype=torch.float64, device=device)

    def activate(self, raw: Tensor) -> Tensor:
        """The outputs, on the model's scale, of what the network returns."""
        if self.link != "identity":
            raw = raw.double()  # a probability near one has no digits to spare
        if self.scale == "probabilities" and self.outputs == 2:  # a softmax, nine times as fast
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
        self.network_.eval()  # a batch norm must not learn from this
        try:
            with torch.no_grad():
                shape = tuple(self.network_(x, s).flatten(0, 1).shape)
        except Exception as error:  # whatever the user's module raises
            raise InputError(f"network must be {expected}: {error}") from error
        if shape != (len(x), self.outputs):
            raise InputError(f"network must be {expected}; for {len(x)} rows it returned shape {shape}")

    def _train(
        self,
        x: Rows,
        y: Tensor,
        x_val: Tensor,
        y_val: Tensor,
        training: tuple[Training, ...],
        coalitions: int,
        run: Run,
    ) -> None:
        unit = torch.where(self.spread_ > 0, self.spread_, 1.0)
        y, y_val = ((y - self.shift_) / unit).float(), ((y_val - self.shift_) / unit).float()
        most = _VALIDATION_IMAGES if self.partition_.shape else _VALIDATION
        each = max(1, min(10, most // len(x_val)))
        s_val = self.sampler(len(x_val), each, self.players, run.generator("surrogate validation"))

        def loss(batch: tuple[Tensor, Tensor], generator: torch.Generator) -> Tensor:
            rows, part = batch
            s = self.sampler(len(rows), coalitions, self.players, generator)
            return self._loss(self.network_(part, s), y[rows])

        def validate() -> float:
            size = max(1, _chunk(x_val) // each) if self.partition_.shape else _CHUNK
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


def _chunk(x: Tensor) -> int:
    """How many coalitions a forward pass takes."""
    return max(16, min(_CHUNK, _ENTRIES // max(1, x[:1].numel())))


def _labelled(problem: Problem, run: Run) -> tuple[Rows, Tensor, Tensor, Tensor]:
    """Training and validation rows with the model's outputs: all of them, or as many as budgets allow.

    The outputs are kept with the run's unfinished work, some at a time: the model may be slow.
    """
    x, x_val, model = problem.x, problem.x_val, problem.model
    pace = max(model.pace, 1e-12)
    saved: dict[str, Any] | None = run.checkpoint.load("outputs")
    if saved is None:
        affordable = min(problem.evaluations, _LABELS * run.clock.left() / pace)
        share = min(1.0, affordable / (len(x) + len(x_val)))
        share_val = min(share, _VALIDATION_IMAGES / len(x_val)) if problem.players.shape else share
        generator = run.generator("labelled rows")
        rows, rows_val = _some(len(x), share, generator), _some(len(x_val), share_val, generator)
        none = torch.zeros(0, model.outputs, dtype=torch.float64)
        saved = {"rows": rows.cpu(), "y": none, "rows_val": rows_val.cpu(), "y_val": none}
    for of, outputs, rows in ((x, "y", saved["rows"]), (x_val, "y_val", saved["rows_val"])):
        while (done := len(saved[outputs])) < len(rows):
            part = rows[done : done + max(1, int(_KEPT / pace))].to(x.device)
            saved[outputs] = torch.cat([saved[outputs], model(some(of, part)).cpu()])
            run.checkpoint.save("outputs", saved)
    rows, y, rows_val, y_val = (saved[name].to(x.device) for name in ("rows", "y", "rows_val", "y_val"))
    return some(x, rows), y, x_val[rows_val], y_val


def _scale(problem: Problem) -> Scale:
    return "probability" if problem.link != "identity" and problem.model.scale == "real" else problem.model.scale


def _spread(y: Tensor, processes: ProcessGroup) -> Tensor:
    """Of each output; zero of a constant one, which stays constant."""
    mean = processes.mean(y)
    spread = processes.mean((y - mean).square()).sqrt()
    return torch.where(spread <= 1e-12 * mean.abs(), 0.0, spread)


def _some(rows: int, share: float, generator: torch.Generator) -> Tensor:
    """The numbers of a random share of the rows; of all, in their order."""
    if share >= 1:
        return torch.arange(rows, device=generator.device)
    return torch.randperm(rows, generator=generator, device=generator.device)[: max(1, int(share * rows))]
