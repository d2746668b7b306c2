"""The sampler that expects hidden entries by a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fastshapley.coalitions import sample_uniform_sizes
from fastshapley.data.stream import batches
from fastshapley.networks.perceptron import Perceptron
from fastshapley.networks.surrogate_networks import MaskedNetwork
from fastshapley.networks.table_encoder import TableEncoder
from fastshapley.networks.weights import load_weights, with_prefix
from fastshapley.training.loop import Task, train
from fastshapley.training.process_group import ProcessGroup
from fastshapley.training.recipes import Layers, Recipe
from fastshapley.training.run import Run
from fastshapley.value_functions.column_scores import BLOCK_ENTRIES, ColumnScores
from fastshapley.value_functions.samplers.column_distributions import ColumnDistributions
from fastshapley.value_functions.samplers.conditional_sampler import (
    ConditionalSampler,
    Donors,
    Draws,
    SamplerRows,
    ScoredDonors,
    leading_output,
)

LAYERS = Layers(2, 128, "silu")  # of the network
COALITIONS = 4  # coalitions per row in each step of its training
MOST_STEPS = 2000  # of its training
VALIDATION_COALITIONS = 8  # coalitions per held-out row that choose its best epoch


class NetworkSampler(ConditionalSampler):
    """A network expects the mean and the deviation of each hidden score, or the probability of each value.

    It is trained on rows with hidden entries. A donor's score is shifted and stretched from what the network
    expects of the donor to what it expects of the row. In a column of few values, a donor's value has a rank in the
    distribution expected of the donor; the drawn value has the same rank in that of the row. A gap of a donor stays
    a gap. Drawn numbers stay within the range of the donors.
    """

    kind = "network"
    network: MaskedNetwork

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights."""
        return {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}

    def config(self) -> dict[str, Any]:
        """Return the layout of the network."""
        return {"kind": self.kind, **self.network.config}

    def _prepare(self, donors: Donors, seed: int) -> None:
        super()._prepare(donors, seed)
        rows = donors.rows
        self._scores = ColumnScores.fitted(rows, leading_output(donors.outputs), donors.schema.discrete)
        self._scored = ScoredDonors.of(rows, self._scores, seed)
        self._slopes = self._scored.slopes(donors.outputs)
        self.distributions = ColumnDistributions(self._scores)
        self._place = self.distributions.place(rows)
        generator = torch.Generator(rows.device).manual_seed(seed + 1)
        self._rank = torch.rand(self._place.shape, generator=generator, device=rows.device)

    def _load(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        encoder, body = TableEncoder(**config["encoder"]), Perceptron(**config["layers"])
        self.network = MaskedNetwork(encoder, config["owner"], body).to(self.donors.rows.device)
        load_weights(self.network, with_prefix(tensors, "network"), "value_function")
        self._finish()

    def _finish(self) -> None:
        self.network.eval()
        self._trained = self.network.trained()

    def _learn(self, rows: SamplerRows, recipe: Recipe, run: Run) -> None:
        x, players, outputs = rows.x, self.donors.players, self.distributions.outputs
        with run.isolated("sampler weights"):
            encoder = TableEncoder.fitted(x, self.donors.schema.category_counts, recipe.tails, ProcessGroup())
            inputs = len(encoder.columns) + len(players)
            body = Perceptron(inputs, outputs, LAYERS.count, LAYERS.width, LAYERS.activation)
            self.network = MaskedNetwork(encoder, players.owner, body).to(x.device)
        scores, place = self._scores.encode(x), self.distributions.place(x)

        def loss(batch: tuple[Tensor, Tensor], generator: torch.Generator) -> Tensor:
            numbers, part = batch
            coalitions = min(COALITIONS, max(1, BLOCK_ENTRIES // (len(part) * outputs)))
            s = sample_uniform_sizes(len(part), coalitions, len(players), generator)
            total, count = self._loss(part, s, scores[numbers], place[numbers])
            return total / count.clamp(min=1)

        validate = self._validation(rows.x_val, run.generator("sampler validation"))
        task = Task("sampler", self.network, len(x), loss, validate, fetch=partial(batches, x))
        for training in recipe.surrogate[-1:]:
            steps = None if training.steps is None else min(training.steps, MOST_STEPS)
            train(task, replace(training, steps=steps), run)
        self._finish()

    def _loss(self, x: Tensor, s: Tensor, scores: Tensor, place: Tensor) -> Tensor:
        """Return the loss of rows (n, columns) and coalitions (n, m, players) as a sum and a number of entries."""
        return self.distributions.loss(self.network(x, s), scores, place, ~self.donors.players.mask(s))

    def _validation(self, x: Tensor, generator: torch.Generator) -> Callable[[], float]:
        """Return the function that computes the loss of held-out rows, with the same coalitions each time."""
        s = sample_uniform_sizes(len(x), VALIDATION_COALITIONS, len(self.donors.players), generator)
        size = max(1, BLOCK_ENTRIES // (VALIDATION_COALITIONS * self.distributions.outputs))
        parts = [part.split(size) for part in (x, s, self._scores.encode(x), self.distributions.place(x))]

        def validate() -> float:
            total, count = torch.stack([self._loss(*part) for part in zip(*parts, strict=True)]).sum(0).tolist()
            return total / max(1, count)

        return validate

    def _width(self) -> int:
        return max(super()._width(), self.distributions.outputs)

    def _drawn(self, x: Tensor, s: Tensor, numbers: Tensor) -> Draws:
        draws, layout = numbers.shape[1], self.distributions
        with torch.no_grad():
            row = self._trained(x, s[:, None])
            donor = self._trained(self.donors.rows[numbers].flatten(0, 1), s.repeat_interleave(draws, 0)[:, None])
        donor = donor[:, 0].unflatten(0, (len(x), draws))
        moved = layout.moved_scores(row, donor, self._scored.spread[numbers])
        drawn = self._scored.decoded(moved, numbers)
        surprise = moved - layout.expected_scores(row)
        if len(layout.few):
            level = layout.moved_levels(row, donor, self._place[numbers], self._rank[numbers])
            values = layout.values(level)
            values = torch.where(drawn[..., layout.few].isnan(), torch.nan, values)
            drawn = drawn.index_copy(-1, layout.few, values)
            surprise[..., layout.few] += layout.scores(level) - moved[..., layout.few]
        return Draws(drawn, surprise.masked_fill(drawn.isnan(), 0))
