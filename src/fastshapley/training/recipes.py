"""Recipes: every setting of the training, in one place."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fastshapley.training.loop import Training

Activation = Literal["relu", "elu", "silu"]
NAMES = ("default", "paper", "sampling")
FEW_ROWS = 2000  # rows below which networks are trained for longer
SOME_ROWS = 10_000  # rows up to which larger batches average more of the noise
MANY_PLAYERS = 32  # players above which more rows are worth more than closer values
VERY_MANY_PLAYERS = 60  # players above which noisy evaluations take longer in proportion
UPDATE_WORK = 0.5  # share of the steps and evaluations of a fit that an update takes
UPDATE_RATE = 0.5  # share of the learning rate that an update takes
ERROR_BARS = Training(steps=400, batch_size=128, learning_rate=3e-3, weight_decay=1e-2, schedule="cosine", clip=1.0)


@dataclass(frozen=True)
class Layers:
    """The hidden layers of a network.

    Parameters
    ----------
    count : int
        The number of hidden layers.
    width : int
        The units of each.
    activation : {"relu", "elu", "silu"}
        The activation function.
    """

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
    """How the network is fitted to Shapley values that are estimated once for each training row.

    Where ``fewest`` rows cannot be afforded, the paper's loss is used instead, with fewer coalitions of as many
    rows as there are.

    Parameters
    ----------
    coalitions : int
        Coalitions per player and row.
    evaluations : int
        The largest number of rows that the surrogate, or the model, is called with. For a marginal game each
        evaluation draws some background rows at random, which leaves the values unbiased.
    rows : int
        If there are fewer rows than this, new ones are mixed from them.
    seconds : float
        The largest time for evaluations, in seconds.
    fewest : int
        The smallest number of rows that is worth estimating values for.
    """

    coalitions: int = 16
    evaluations: int = 12_000_000
    rows: int = 65_536
    seconds: float = 120.0
    fewest: int = 512

    def __post_init__(self) -> None:
        if self.coalitions < 4:
            raise ValueError(f"Targets: coalitions is {self.coalitions}; least squares need at least 4 per player")
        for name in ("evaluations", "rows", "seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"Targets: {name} is {getattr(self, name)}; it must be positive")


@dataclass(frozen=True)
class Recipe:
    """How the surrogate and the explainer are trained.

    Parameters
    ----------
    surrogate : tuple of Training
        The stages of the surrogate's training, one after the other.
    explainer : Training
        How the explainer network is trained.
    errors : Training, optional
        How the network of the error bars is trained. None learns no error bars.
    surrogate_layers, explainer_layers : Layers
        The hidden layers of the two networks.
    surrogate_coalitions : int
        Coalitions per row in each step of the surrogate's training.
    targets : Targets, optional
        Fit to estimated values where they are affordable. None uses the paper's loss on fresh coalitions.
    coalitions : int
        Coalitions per row in each step of the paper's loss.
    paired : bool
        Whether these come in pairs of a coalition and its complement.
    outputs_per_step : int, optional
        Outputs drawn for each step of the paper's loss. None uses all of them.
    validation_rows, validation_coalitions : int
        What chooses the best epoch. It is drawn once.
    tied_classes : bool
        Whether to use that probabilities sum to one, so that values sum to zero over the classes.
    own_units : int
        Hidden units for each player that see the inputs of this player alone. Where there are many values, there
        are fewer.
    tails : float, optional
        Numbers that are further from the mean than this many standard deviations enter the networks by their
        logarithm. None takes numbers as they are.
    surrogate_cuts, cuts : int
        The largest number of split points per column of a model of trees that the surrogate, and the explainer, see
        as inputs, so that their outputs can jump there. 0 leaves them out.
    leaves : int
        The largest number of leaves of these trees that the explainer knows rows by. 0 leaves them out.
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
    surrogate_cuts: int = 0
    cuts: int = 0
    leaves: int = 0

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
        for name in ("own_units", "surrogate_cuts", "cuts", "leaves"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 0:
                raise ValueError(f"Recipe: {name} is {getattr(self, name)!r}; it must be a whole number, 0 or more")
        if self.tails is not None and not self.tails > 0:
            raise ValueError(f"Recipe: tails is {self.tails}; it must be positive, or None")
        if self.outputs_per_step is not None and self.outputs_per_step < 1:
            raise ValueError(f"Recipe: outputs_per_step is {self.outputs_per_step}; it must be positive, or None")

    @property
    def trains_explainer(self) -> bool:
        """Whether an explainer network is trained at all."""
        return self.explainer.plan(1)[0] > 0


def paper() -> Recipe:
    """Return the settings of the FastSHAP paper's tabular experiments and of its authors' code."""
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
    """Return the default settings for tables: values from the kernel estimator, learnt by plain regression.

    The work grows with the number of rows, as does what can be learnt from them. Few rows are mixed to many, and
    trained on for longer. With many players, and with a noisy game, the values of more rows are worth more than
    closer values; noise also asks for a lower learning rate and fewer leaves.

    Parameters
    ----------
    rows : int
        The number of training rows.
    players : int
        The number of players.
    noisy : bool
        Whether evaluations are unbiased but noisy: a marginal game that is evaluated on some of its background.

    Returns
    -------
    Recipe
    """
    many = players > MANY_PLAYERS
    few = min(1.0, (FEW_ROWS / rows) ** 2)  # share of the extra work for few rows, which fades out above them
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
            steps=int(max((3000 if noisy else 2100) * few, min(7700, 0.28 * rows))),
            batch_size=256 if noisy and rows <= SOME_ROWS else 192,
            learning_rate=max(3.5e-3, (4.75e-3 if noisy else 9.5e-3) * min(1.0, math.sqrt(rows / 24_000))),
            schedule="cosine",
            clip=1.0,
        ),
        explainer_layers=Layers(3, 128 if many else 256, "silu"),
        errors=ERROR_BARS,
        targets=Targets(
            coalitions=8 if many else 32,
            evaluations=_evaluations(rows, few, players, noisy=noisy),
            rows=131_072 if noisy else 65_536,
        ),
        tied_classes=True,
        own_units=2 if many else 8,
        tails=3.0,
        surrogate_cuts=16,
        cuts=16,
        leaves=512 if noisy else 4096,
    )


def _evaluations(rows: int, few: float, players: int, *, noisy: bool) -> int:
    """Return the evaluations for tables: more if they are noisy, fewer if many players make them expensive."""
    if not noisy:
        return int(max(8e6 * few, min(14e6, 500 * rows)))
    wanted = max(24e6 * few, min(10e6, 1000 * rows))
    return int(min(wanted, 5e6 * min(1.0, VERY_MANY_PLAYERS / players)) if players > MANY_PLAYERS else wanted)


def paper_images() -> Recipe:
    """Return the settings of the FastSHAP paper's image experiments."""
    training = Training(epochs=100, batch_size=32, learning_rate=1e-3, factor=0.8, plateau=3, patience=20)
    return Recipe(surrogate=(training,), explainer=training, coalitions=2, validation_coalitions=2)


def default_images(rows: int) -> Recipe:
    """Return the default settings for images: coalitions are evaluated once and kept.

    As for tables, few images are mixed to many, and trained on for longer. With many images, each is evaluated less
    often.

    Parameters
    ----------
    rows : int
        The number of training images.

    Returns
    -------
    Recipe
    """
    few = min(1.0, (FEW_ROWS / rows) ** 2)
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
        errors=ERROR_BARS,
        coalitions=32,
        validation_rows=256,
        validation_coalitions=32,
        tied_classes=True,
    )


def scaled(recipe: Recipe, work: float, rate: float = 1.0) -> Recipe:
    """Return the recipe with a share of the steps and evaluations, and of the learning rates."""
    targets = recipe.targets
    if targets is not None:
        targets = replace(targets, evaluations=math.ceil(work * targets.evaluations))
    surrogate = tuple(shorter(stage, work, rate) for stage in recipe.surrogate)
    return replace(recipe, surrogate=surrogate, explainer=shorter(recipe.explainer, work, rate), targets=targets)


def shorter(training: Training, work: float = UPDATE_WORK, rate: float = UPDATE_RATE) -> Training:
    """Return the training with a share of its steps or epochs, and of its rate; by default those of an update."""
    epochs, steps = (
        None if amount is None else math.ceil(work * amount) for amount in (training.epochs, training.steps)
    )
    return replace(training, epochs=epochs, steps=steps, learning_rate=rate * training.learning_rate)


def shared(recipe: Recipe, size: int) -> Recipe:
    """Return the recipe for one of ``size`` processes: each prepares its part, and they train together."""
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
    """Return the recipe for an update of trained networks."""
    return scaled(recipe, UPDATE_WORK, UPDATE_RATE)


def check_recipe(recipe: Any) -> None:
    """Check that a recipe is a `Recipe` or the name of one.

    Raises
    ------
    ValueError
        If it is neither.
    """
    if not isinstance(recipe, Recipe) and recipe not in NAMES:
        raise ValueError(f"recipe is {recipe!r}: use 'default', 'paper', 'sampling' or a fastshapley.Recipe")


def resolve(recipe: Any, rows: int, players: int, *, noisy: bool = False, images: bool = False) -> Recipe:
    """Return the recipe for the size of a problem.

    Parameters
    ----------
    recipe : Recipe or str
        A recipe is returned as it is. A name is one of `NAMES`.
    rows : int
        The number of training rows, or images.
    players : int
        The number of players.
    noisy : bool
        Whether evaluations of the game are unbiased but noisy.
    images : bool
        Whether the rows are images.

    Returns
    -------
    Recipe

    Raises
    ------
    ValueError
        If the name is unknown.
    """
    check_recipe(recipe)
    if isinstance(recipe, Recipe):
        return recipe
    if recipe == "paper":
        return paper_images() if images else paper()
    found = default_images(rows) if images else default(rows, players, noisy=noisy)
    return found if recipe == "default" else replace(found, explainer=replace(found.explainer, steps=0))
