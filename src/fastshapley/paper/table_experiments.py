"""The pieces of the paper's experiments on tables. Each is computed once and kept in a store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor

from fastshapley import metrics
from fastshapley.data.model_adapter import ModelFunction
from fastshapley.data.players import Partition
from fastshapley.data.table_schema import TableSchema
from fastshapley.datasets.download import find
from fastshapley.datasets.table_loaders import SOURCES, Split
from fastshapley.estimators import Estimate, exact, kernel, permutation
from fastshapley.fit.network import NetworkProblem, build_network, fit_network
from fastshapley.fit.targets import TrainingRows
from fastshapley.objective import normalize
from fastshapley.paper import store
from fastshapley.paper.store import Arrays, Store, game_arrays, game_from
from fastshapley.paper.table_settings import TABLES, baseline
from fastshapley.training import recipes
from fastshapley.training.checkpoint import Checkpoint
from fastshapley.training.recipes import Recipe
from fastshapley.training.run import Run, one_thread
from fastshapley.value_functions import BaseGame, Marginal, Problem, Surrogate
from fastshapley.value_functions.protocol import total_values

Arm = Literal["paper", "default"]
Kind = Literal["surrogate", "marginal", "baseline"]
Normalize = Literal["always", "inference", "never"]

ESTIMATORS: dict[str, Callable[..., Estimate]] = {
    "kernel, unpaired": partial(kernel, paired=False),
    "kernel, paired": kernel,
    "kernel, leverage": partial(kernel, sampling="leverage"),
    "permutation": partial(permutation, antithetic=False),
    "permutation, antithetic": permutation,
}
_MOST_EXACT_PLAYERS = 16  # games with more players get converged instead of exact values
_SEED = 0
# Modules and folders of fastshapley that the results depend on. A change in any of them recomputes the results.
CODE = (
    "coalitions",
    "data",
    "datasets",
    "estimators",
    "export/file_format",
    "export/file_header",
    "fit",
    "networks",
    "objective",
    "paper/table_experiments",
    "paper/table_settings",
    "training",
    "value_functions",
)


@dataclass(frozen=True)
class TableScale:
    """The size of the experiments.

    Parameters
    ----------
    test_rows : int
        The number of test rows.
    train_rows : int or None
        The number of training rows, or None for all.
    epochs : int or None
        The maximum number of epochs in each stage of the paper's recipe, or None for its own.
    share : float
        The share of the default recipe's steps and evaluations.
    samples : tuple of int
        The numbers of coalitions per row in training.
    evaluations : int
        The number of evaluations per player of each estimator.
    truth : int
        The number of evaluations per player of converged values.
    marginal_epochs : int
        The maximum number of epochs of the paper's recipe for the marginal game. Each calls the model 150 million
        times.
    marginal_evaluations : int
        The maximum number of evaluations per row of each estimator for the marginal game.
    marginal_truth : int
        The number of evaluations per row of converged values for the marginal game.
    """

    test_rows: int = 256
    train_rows: int | None = None
    epochs: int | None = None
    share: float = 1.0
    samples: tuple[int, ...] = (1, 4, 16, 32, 48, 64)
    evaluations: int = 256
    truth: int = 1024
    marginal_epochs: int = 12
    marginal_evaluations: int = 1024
    marginal_truth: int = 4096


FULL = TableScale()
QUICK = TableScale(
    test_rows=64, train_rows=4000, epochs=4, share=0.1, samples=(1, 8, 32), evaluations=64, truth=256
)  # all experiments in ten minutes, without the accuracy of the paper's


@dataclass(frozen=True, order=True)
class GamePiece:
    """A game, given by a table and a kind of value function, and its true Shapley values."""

    table: str
    kind: Kind = "surrogate"


@dataclass(frozen=True, order=True)
class ExplainerPiece:
    """An explainer of a game.

    Parameters
    ----------
    game : GamePiece
        The game.
    arm : {"paper", "default"}
        The recipe.
    samples : int, default=32
        The number of coalitions per row in training.
    paired : bool, default=True
        Whether coalitions come in pairs.
    normalize : {"always", "inference", "never"}, default="always"
        When values are normalised.
    penalty : float, default=0.0
        The weight of the efficiency gap in the loss.
    """

    game: GamePiece
    arm: Arm
    samples: int = 32
    paired: bool = True
    normalize: Normalize = "always"
    penalty: float = 0.0


@dataclass(frozen=True, order=True)
class CurvePiece:
    """The error of an estimator by the number of evaluations."""

    game: GamePiece
    estimator: str


TablePiece = GamePiece | ExplainerPiece | CurvePiece


@dataclass(frozen=True)
class EncodedTable:
    """A table with its encoded rows. The model is trained when it is first used."""

    data: Split
    schema: TableSchema
    players: Partition
    x: Tensor
    x_val: Tensor
    x_test: Tensor
    name: str

    @cached_property
    def model(self) -> ModelFunction:
        """The model to explain."""
        return ModelFunction(TABLES[self.name].train(self.data), self.schema, self.x[:256])

    def problem(self, recipe: Recipe) -> Problem:
        """Return what a value function is fitted to."""
        return Problem(self.model, self.x, self.x_val, self.players, "identity", recipe)


@cache
def load_table(name: str, scale: TableScale) -> EncodedTable:
    """Return a table of the paper, encoded.

    Parameters
    ----------
    name : str
        The name of the table.
    scale : TableScale
        The numbers of training and test rows.

    Returns
    -------
    EncodedTable
        The table.
    """
    data = TABLES[name].load()
    schema = TableSchema.of(data.X_train)
    rows = data.X_train[: scale.train_rows]
    x, x_val, x_test = (schema.encode(X) for X in (rows, data.X_val, data.X_test[: scale.test_rows]))
    return EncodedTable(data, schema, data.players.bind(schema.names), x, x_val, x_test, name)


class TableExperiments:
    """Games, true values, explainers and curves at one scale, from a store or computed into it.

    Parameters
    ----------
    kept : Store
        The store.
    scale : TableScale
        The size of the experiments.
    """

    def __init__(self, kept: Store, scale: TableScale) -> None:
        self.store, self.scale = kept, scale

    def has(self, piece: TablePiece) -> bool:
        """Return whether a piece is in the store."""
        if isinstance(piece, GamePiece):
            return self.store.has("truths", self._of_game(piece))
        if isinstance(piece, CurvePiece):
            return self.store.has("curves", self._of_curve(piece))
        known = piece.arm == "paper" or self.store.has("shapes", self._of_data(piece.game.table))
        return known and self.store.has("explainers", self._of_explainer(piece))

    def compute(self, piece: TablePiece) -> None:
        """Compute a piece, unless it is in the store."""
        with one_thread():
            if isinstance(piece, GamePiece):
                self.truth(piece)
            elif isinstance(piece, CurvePiece):
                self.curve(piece)
            else:
                self.explainer(piece)

    def game(self, game: GamePiece) -> BaseGame:
        """Return the fitted game."""
        table = self.table(game.table)
        if game.kind == "surrogate":
            return game_from(self.surrogate(game.table), table.schema, table.players)
        kind = Marginal() if game.kind == "marginal" else baseline(table.data)
        return kind.fit(table.problem(self._paper_recipe(game)), Run(_SEED))

    def surrogate(self, table: str) -> Arrays:
        """Return the surrogate of a table, trained by the paper's recipe, with its validation loss."""
        game = GamePiece(table)

        def compute(checkpoint: Checkpoint) -> dict[str, Any]:
            fitted = Surrogate().fit(self.table(table).problem(self._paper_recipe(game)), Run(_SEED, checkpoint))
            assert isinstance(fitted, Surrogate)
            return {**game_arrays(fitted), "loss": min(fitted.losses_)}

        return self.store.remember("surrogates", self._of_game(game), compute)

    def truth(self, game: GamePiece) -> Arrays:
        """Return the Shapley values of the test rows, exact or converged, and their standard errors."""

        def compute(checkpoint: Checkpoint) -> dict[str, Any]:
            v, x = self.game(game), self.table(game.table).x_test
            if game.kind == "marginal":
                found = kernel(v, x, budget=self.scale.marginal_truth, sampling="leverage", random_state=1)
            elif v.players <= _MOST_EXACT_PLAYERS:
                found = exact(v, x)
            else:
                found = kernel(v, x, budget=self.scale.truth * v.players, sampling="leverage", random_state=1)
            return {"values": found.values, "stderr": found.stderr}

        return self.store.remember("truths", self._of_game(game), compute)

    def curve(self, curve: CurvePiece) -> Arrays:
        """Return the l2 distance of each test row to the truth, (budgets, rows), and the budgets."""

        def compute(checkpoint: Checkpoint) -> dict[str, Any]:
            v, x = self.game(curve.game), self.table(curve.game.table).x_test
            budget = min(self.scale.evaluations * v.players, 1 << v.players)
            if curve.game.kind == "marginal":
                budget = min(budget, self.scale.marginal_evaluations)
            found = ESTIMATORS[curve.estimator](v, x, budget=budget, history=True, random_state=0)
            truth = self.truth(curve.game)["values"]
            return {"budgets": found.budgets, "l2": [metrics.l2(values, truth) for values in found.history]}

        return self.store.remember("curves", self._of_curve(curve), compute)

    def explainer(self, explainer: ExplainerPiece) -> Arrays:
        """Return the explainer's values of the test rows, its validation losses and its weights."""

        def compute(checkpoint: Checkpoint) -> dict[str, Any]:
            table, v, recipe = self.table(explainer.game.table), self.game(explainer.game), self._recipe(explainer)
            run = Run(_SEED, checkpoint)
            network = build_network(table.x, table.schema, v, table.players, None, None, recipe, run)
            rows = TrainingRows(table.x, table.x_val, table.schema.discrete, table.players.owner)
            normalized = explainer.normalize == "always"
            losses = fit_network(
                network, NetworkProblem(v, rows, recipe, run, normalized, explainer.penalty)
            ).losses
            with torch.no_grad():
                values = network(table.x_test).double().numpy()
            weights = {f"network.{name}": tensor.numpy() for name, tensor in network.state_dict().items()}
            return {"raw": values, "total": total_values(v, table.x_test).numpy(), "losses": losses, **weights}

        found = self.store.remember("explainers", self._of_explainer(explainer), compute)
        raw, total = torch.from_numpy(found["raw"]), torch.from_numpy(found["total"])
        return {**found, "values": (raw if explainer.normalize == "never" else normalize(raw, total)).numpy()}

    def table(self, name: str) -> EncodedTable:
        """Return a table, encoded."""
        return load_table(name, self.scale)

    def _recipe(self, explainer: ExplainerPiece) -> Recipe:
        if explainer.arm == "paper":
            recipe = self._paper_recipe(explainer.game)
            return replace(recipe, coalitions=explainer.samples, paired=explainer.paired)
        shape = self.store.remember(
            "shapes", self._of_data(explainer.game.table), self._shape(explainer.game.table)
        )
        noisy = explainer.game.kind == "marginal"
        recipe = recipes.default(int(shape["rows"]), int(shape["players"]), noisy=noisy)
        if self.scale.share == 1:
            return recipe
        assert recipe.explainer.steps is not None
        assert recipe.targets is not None
        return replace(
            recipe,
            explainer=replace(recipe.explainer, steps=int(self.scale.share * recipe.explainer.steps)),
            targets=replace(recipe.targets, evaluations=int(self.scale.share * recipe.targets.evaluations)),
        )

    def _paper_recipe(self, game: GamePiece) -> Recipe:
        """Return the authors' settings for a table, with fewer epochs if the scale or the game requires it."""
        recipe = TABLES[game.table].recipe
        most = self.scale.epochs or recipe.explainer.epochs
        assert most is not None
        for_explainer = min(most, self.scale.marginal_epochs) if game.kind == "marginal" else most
        stages = tuple(replace(stage, epochs=min(most, stage.epochs or most)) for stage in recipe.surrogate)
        return replace(recipe, surrogate=stages, explainer=replace(recipe.explainer, epochs=for_explainer))

    def _shape(self, table: str) -> Callable[[Checkpoint], dict[str, Any]]:
        def compute(checkpoint: Checkpoint) -> dict[str, Any]:
            found = self.table(table)
            return {"rows": len(found.x), "players": len(found.players)}

        return compute

    def _of_data(self, table: str) -> dict[str, Any]:
        rows = {"train_rows": self.scale.train_rows, "test_rows": self.scale.test_rows}
        return {"made_by": revision(), "table": table, "data": _digest(table), "seed": _SEED, **rows}

    def _of_game(self, game: GamePiece) -> dict[str, Any]:
        recipe = asdict(self._paper_recipe(replace(game, kind="surrogate")))
        truth = self.scale.marginal_truth if game.kind == "marginal" else self.scale.truth
        surrogate = {name: value for name, value in recipe.items() if name.startswith("surrogate")}
        return {**self._of_data(game.table), "game": game.kind, "truth": truth, **surrogate}

    def _of_curve(self, curve: CurvePiece) -> dict[str, Any]:
        marginal = curve.game.kind == "marginal"
        evaluations = self.scale.marginal_evaluations if marginal else self.scale.evaluations
        return {**self._of_game(curve.game), "estimator": curve.estimator, "evaluations": evaluations}

    def _of_explainer(self, explainer: ExplainerPiece) -> dict[str, Any]:
        """Return what an explainer depends on. Normalisation after training is not part of it."""
        settings = {"recipe": asdict(self._recipe(explainer)), "normalized": explainer.normalize == "always"}
        return {**self._of_game(explainer.game), **settings, "penalty": explainer.penalty}


def revision() -> str:
    """Return a hash of the code and the versions of the packages that the results depend on."""
    return store.revision(CODE, ("lightgbm", "numpy", "torch", "xgboost"))


@cache
def _digest(table: str) -> str:
    with find(SOURCES[table]).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
