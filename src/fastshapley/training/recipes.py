"""Recipes: all that can be chosen about training, in one place."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fastshapley.training.loop import Training

Activation = Literal["relu", "elu", "silu"]
_FEW = 2000  # rows
_MANY = 32  # players
_CONTINUED, _SLOWER = 0.5, 0.5  # of the work, and of the rate, for networks that have learnt before
_ERRORS = Training(steps=400, batch_size=128, learning_rate=3e-3, weight_decay=1e-2, schedule="cosine", clip=1.0)


@dataclass(frozen=True)
class Layers:
    """The hidden layers of a network."""

    count: int = 2
    width: int = 128
    activation: Activation = "relu"

    def __post_init__(self) -> None:
        if self.count < 0 or self.width < 1:
            raise ValueError(f"Layers: {self.count} layers of {self.width} units make no network")
        if self.activation not in ("relu", "elu", "silu"):
            raise ValueError(f"Layers: activation is {self.activation!r}; use 'relu', 'elu' or 'silu'")


@dataclass(frozen=True)
class Targets:
    """Fit the network to Shapley values estimated once for each training row, instead of to fresh coalitions.

    ``coalitions`` are evaluated per player and row, for as many rows as ``evaluations`` and ``seconds`` allow in
    all. Evaluations count the rows that the surrogate is called with, or the model; of a marginal game's background
    each takes a part, drawn at random, which leaves the values right on average. With fewer than ``rows`` rows at
    hand, new ones are mixed from them. Where this is too dear for ``fewest`` rows, the network is fitted by the
    paper's loss to fewer coalitions of as many rows as there are.
    """

    coalitions: int = 16
    evaluations: int = 12_000_000
    rows: int = 65_536
    seconds: float = 120.0
    fewest: int = 512

    def __post_init__(self) -> None:
        if self.coalitions < 4:
            raise ValueError(
                f"Targets: coalitions is {self.coalitions}; the least squares need at least 4 a player"
            )
        for name in ("evaluations", "rows", "seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"Targets: {name} is {getattr(self, name)}; it must be positive")


@dataclass(frozen=True)
class Recipe:
    """How the surrogate and the explainer are trained.

    surrogate: the stages that the surrogate goes through, one after the other.
    surrogate_coalitions: coalitions a row in each of its steps.
    explainer: how the explainer is trained.
    errors: how the network is trained that says how far each value may be off; None for no such network.
    targets: fit to estimated values where they are affordable; None for the paper's loss on fresh coalitions.
    coalitions, paired: coalitions a row in each step of the paper's loss, and whether they come in pairs.
    outputs_per_step: outputs drawn for each step of the paper's loss; None for all of them jointly.
    validation_rows, validation_coalitions: what early stopping looks at, drawn once.
    tied_classes: use that probabilities sum to one, so that values sum to zero over classes.
    own_units: units of the explainer that see the inputs of one player alone, for each player; 0 for none.
    tails: numbers further than so many spreads from the mean enter the networks by their logarithm; None for as
        they are.
    """

    surrogate: tuple[Training, ...]
    explainer: Training
    errors: Training | None = None
    surrogate_layers: Layers = field(default_factory=Layers)
    explainer_layers: Layers = field(default_factory=Layers)
    surrogate_coalitions: int = 1
    targets: Targets | None = None
    coalitions: int = 32
    paired: bool = True
    outputs_per_step: int | None = None
    validation_rows: int = 512
    validation_coalitions: int = 128
    tied_classes: bool = False
    own_units: int = 0
    tails: float | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.surrogate, tuple) and all(isinstance(s, Training) for s in self.surrogate)):
            raise ValueError(f"Recipe: surrogate is {self.surrogate!r}; it must be a tuple of Training")
        for name, kind in (
            ("explainer", Training),
            ("errors", Training | None),
            ("surrogate_layers", Layers),
            ("explainer_layers", Layers),
            ("targets", Targets | None),
        ):
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"Recipe: {name} is {getattr(self, name)!r}; it must be a {kind}")
        for name in ("coalitions", "surrogate_coalitions", "validation_rows", "validation_coalitions"):
            if getattr(self, name) < 1:
                raise ValueError(f"Recipe: {name} is {getattr(self, name)}; it must be positive")
        for name in ("coalitions", "validation_coalitions"):
            if (self.paired or name != "coalitions") and getattr(self, name) % 2:
                raise ValueError(f"Recipe: {name} is {getattr(self, name)}; pairs need an even number")
        if not isinstance(self.own_units, int) or self.own_units < 0:
            raise ValueError(f"Recipe: own_units is {self.own_units!r}; it must be a whole number, 0 or more")
        if self.tails is not None and not self.tails > 0:
            raise ValueError(f"Recipe: tails is {self.tails}; it must be positive, or None")
        if self.outputs_per_step is not None and self.outputs_per_step < 1:
            raise ValueError(f"Recipe: outputs_per_step is {self.outputs_per_step}; it must be positive, or None")

    @property
    def trains_explainer(self) -> bool:
        """Whether there is anything to train an explainer's network with."""
        return self.explainer.plan(1)[0] > 0


def paper() -> Recipe:
    """The settings of the FastSHAP paper's tabular experiments and of its authors' code."""
    return Recipe(
        surrogate=tuple(
            Training(epochs=100, batch_size=batch, learning_rate=1e-3, patience=5) for batch in (32, 512, 8192)
        ),
        surrogate_layers=Layers(2, 128, "elu"),
        explainer=Training(epochs=200, batch_size=32, learning_rate=2e-4, patience=5),
        explainer_layers=Layers(2, 128, "relu"),
        validation_rows=500,
    )


def default(rows: int, players: int, *, noisy: bool = False) -> Recipe:
    """Ours: targets from the kernel estimator, then a plain regression with an annealed rate.

    The work grows with the number of training ``rows``, as does what can be learnt from them; but few are mixed to
    many, and learnt for longer. Of many ``players``, and of a ``noisy`` game, which is evaluated on a part of its
    background, values of more rows are worth more than closer ones; noise also asks for a lower rate.
    """
    many = players > _MANY
    few = min(1.0, (_FEW / rows) ** 2)  # of the work that few rows are worth, which fades out above them
    return Recipe(
        surrogate=(
            Training(
                steps=max(2000, min(8000, rows // 2)),
                batch_size=128,
                learning_rate=4e-3,
                weight_decay=min(1.0, 500 / rows),
                schedule="cosine",
                clip=1.0,
            ),
        ),
        surrogate_layers=Layers(2, 128, "silu"),
        surrogate_coalitions=4,
        explainer=Training(
            steps=int(max(2100 * few, min(7700, 0.28 * rows))),
            batch_size=192,
            learning_rate=max(3.5e-3, (4.75e-3 if noisy else 9.5e-3) * min(1.0, math.sqrt(rows / 24_000))),
            schedule="cosine",
            clip=1.0,
        ),
        explainer_layers=Layers(3, 128 if many else 256, "silu"),
        errors=_ERRORS,
        targets=Targets(
            coalitions=8 if many else 16 if noisy else 32,
            evaluations=(2 if noisy else 1) * int(max(8e6 * few, min(14e6, 500 * rows))),
            rows=131_072 if noisy else 65_536,
        ),
        tied_classes=True,
        own_units=2,
        tails=3.0,
    )


def paper_images() -> Recipe:
    """The settings of the FastSHAP paper's image experiments."""
    training = Training(epochs=100, batch_size=32, learning_rate=1e-3, factor=0.8, plateau=3, patience=20)
    return Recipe(surrogate=(training,), explainer=training, coalitions=2, validation_coalitions=2)


def default_images(rows: int) -> Recipe:
    """Ours for images: coalitions are evaluated once and kept, and learnt from with an annealed rate.

    As for tables, few images are mixed to many, and learnt from for longer; of many, each is evaluated less often.
    """
    few = min(1.0, (_FEW / rows) ** 2)
    return Recipe(
        surrogate=(
            Training(
                steps=max(500, min(8000, 6 * rows // 64)),
                batch_size=64,
                learning_rate=1e-3,
                weight_decay=1e-2,
                schedule="cosine",
                clip=1.0,
            ),
        ),
        explainer=Training(
            steps=int(max(2500 * few, min(4500, 20 * rows / 64))),
            batch_size=64,
            learning_rate=1e-3 * (1 + few),
            weight_decay=1e-2,
            schedule="cosine",
            clip=1.0,
        ),
        targets=Targets(
            evaluations=max(64 * rows, min(512 * rows, 3_000_000)),
            rows=int(max(1.0, 8 * few * rows)),
            seconds=math.inf,
            fewest=1 << 40,
        ),
        errors=_ERRORS,
        coalitions=32,
        validation_rows=256,
        validation_coalitions=32,
        tied_classes=True,
    )


def scaled(recipe: Recipe, work: float, rate: float = 1.0) -> Recipe:
    """The recipe with a share of the steps and evaluations, and of the learning rates."""

    targets = recipe.targets
    if targets is not None:
        targets = replace(targets, evaluations=math.ceil(work * targets.evaluations))
    surrogate = tuple(shorter(stage, work, rate) for stage in recipe.surrogate)
    return replace(recipe, surrogate=surrogate, explainer=shorter(recipe.explainer, work, rate), targets=targets)


def shorter(training: Training, work: float = _CONTINUED, rate: float = _SLOWER) -> Training:
    """A share of the steps, or epochs, and of the learning rate; by default that of networks that learnt before."""
    epochs, steps = (
        None if amount is None else math.ceil(work * amount) for amount in (training.epochs, training.steps)
    )
    return replace(training, epochs=epochs, steps=steps, learning_rate=rate * training.learning_rate)


def shared(recipe: Recipe, size: int) -> Recipe:
    """The recipe for one of so many processes, each of which prepares its part; they train together."""
    if size == 1:
        return recipe
    targets = recipe.targets
    if targets is not None:
        targets = replace(
            targets,
            evaluations=math.ceil(targets.evaluations / size),
            rows=math.ceil(targets.rows / size),
            fewest=math.ceil(targets.fewest / size),
        )
    return replace(recipe, targets=targets, validation_rows=math.ceil(recipe.validation_rows / size))


def continued(recipe: Recipe) -> Recipe:
    """The recipe for networks that have learnt before."""
    return scaled(recipe, _CONTINUED, _SLOWER)


def resolve(recipe: Any, rows: int, players: int, *, noisy: bool = False, images: bool = False) -> Recipe:
    """A recipe from its name, for so many training rows, or images, and players, or as given."""
    if isinstance(recipe, Recipe):
        return recipe
    if recipe == "paper":
        return paper_images() if images else paper()
    if recipe in ("default", "sampling"):
        found = default_images(rows) if images else default(rows, players, noisy=noisy)
        return found if recipe == "default" else replace(found, explainer=replace(found.explainer, steps=0))
    raise ValueError(f"recipe is {recipe!r}: use 'default', 'paper', 'sampling' or a fastshapley.Recipe")
