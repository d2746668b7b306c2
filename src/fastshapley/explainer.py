"""FastSHAP: the object that a user fits to a model, and that explains rows in one forward pass."""

from __future__ import annotations

import copy
import os
from typing import Any, Literal

import numpy as np
import shap
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

from fastshapley import persistence, recipes
from fastshapley.checkpoints import Checkpoint, fingerprint
from fastshapley.errors import InputError
from fastshapley.estimators import Estimate, exact, kernel
from fastshapley.fitting import fit_network
from fastshapley.models import PROBE, ModelFunction
from fastshapley.networks.mlp import ExplainerNetwork, Perceptron, TableEncoder
from fastshapley.objective import normalize
from fastshapley.players import Features, Groups, Partition
from fastshapley.recipes import Recipe
from fastshapley.report import Report, measure, true_values
from fastshapley.schema import Schema, Table
from fastshapley.training import Run
from fastshapley.value_functions import Baseline, Marginal, Problem, Removal, Surrogate, ValueFunction
from fastshapley.value_functions.base import Link, grand_values, null_values

_BATCH = 8192  # rows explained in one forward pass
_HELD_OUT = 0.2  # of the rows, when no validation rows are given
_NAMED = {"surrogate": Surrogate, "marginal": Marginal, "baseline": Baseline}


class FastSHAP(BaseEstimator):
    """Shapley values of any model in one forward pass.

    model: a fitted scikit-learn, XGBoost, LightGBM or CatBoost model, a torch.nn.Module, or a function from a
        batch of rows to an array (n,) or (n, outputs). It is called with rows of the type of X. It may be None
        if ``value_function`` is a game of the user's own.
    value_function: what a model's output is when only some players are known: ``"surrogate"``, ``"marginal"``,
        ``"baseline"``, one of the classes in `fastshapley.value_functions`, or any object with ``players``,
        ``outputs`` and ``__call__(x, s)``. A fitted one is used as it is.
    players: `Groups` of columns; by default each column is a player.
    link: ``"identity"`` or ``"logit"``, applied to the model's output inside the value function.
    network: the explainer network's body, a module from (b, inputs) to (b, players * outputs).
    normalize: whether values are made to sum to grand minus null: ``"always"``, only at ``"inference"`` and not
        in the training loss, or ``"never"``.
    penalty: the weight in the loss of the squared gap before normalisation (the paper's gamma).
    recipe: ``"default"``, ``"paper"``, or a `Recipe`.
    device: where the networks run; by default a GPU if there is one.

    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import LinearRegression
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
    >>> from fastshapley import Training
    >>> quick = Recipe(surrogate=(Training(steps=50),), explainer=Training(steps=50))
    >>> explainer = FastSHAP(LinearRegression().fit(X, y), recipe=quick, random_state=0, progress=False).fit(X)
    >>> explainer(X[:3]).shape
    (3, 10)
    """

    def __init__(
        self,
        model: Any = None,
        *,
        value_function: Any = "surrogate",
        players: Features | Groups | None = None,
        link: Link = "identity",
        network: nn.Module | None = None,
        normalize: Literal["always", "inference", "never"] = "always",
        penalty: float = 0.0,
        recipe: Literal["default", "paper"] | Recipe = "default",
        device: str | torch.device | None = None,
        random_state: int | np.random.RandomState | None = None,
        progress: bool = True,
    ) -> None:
        self.model = model
        self.value_function = value_function
        self.players = players
        self.link = link
        self.network = network
        self.normalize = normalize
        self.penalty = penalty
        self.recipe = recipe
        self.device = device
        self.random_state = random_state
        self.progress = progress

    def fit(
        self, X: Table, X_val: Table | None = None, *, checkpoint: str | os.PathLike[str] | None = None
    ) -> FastSHAP:
        """Train the value function, where it needs training, and the explainer.

        ``X_val`` are rows that choose the best epochs and that the report is measured on; by default a fifth of
        ``X`` is held out. With ``checkpoint``, a directory, a fit that was killed goes on where it was.
        """
        self._check_parameters()
        device = self._device()
        schema = Schema.of(X)
        x = schema.encode(X)
        if len(x) == 0:
            raise InputError("X has no rows")
        seed = _seed(self.random_state)
        if X_val is None:
            x, x_val = _hold_out(x, seed if checkpoint is None else 0)
        else:
            x_val = schema.encode(X_val, "X_val")
            if len(x_val) == 0:
                raise InputError("X_val has no rows")
        x, x_val = x.to(device), x_val.to(device)
        recipe = recipes.resolve(self.recipe, len(x))

        model = None if self.model is None else ModelFunction(self.model, schema, x[:PROBE])
        partition = (self.players or Features()).bind(schema.names)
        store = Checkpoint(checkpoint)
        outputs = None if model is None else model(x[:PROBE])
        settings = {
            k: v for k, v in self.get_params(deep=False).items() if k not in ("model", "device", "progress")
        }
        seed = store.claim(fingerprint(x, x_val, outputs, schema, _describe(settings)), seed)
        run = Run(seed, store, self.progress, device)

        game, partition = self._fit_value_function(model, x, x_val, partition, recipe, run)
        network = self._build_network(x, schema, game, recipe, run)
        history: list[float] = []
        if game.players > 1:
            history = fit_network(
                network,
                game,
                x,
                x_val,
                recipe,
                run,
                normalized=self.normalize == "always",
                penalty=self.penalty,
                discrete=[column.discrete for column in schema.columns],
            )
        self._set_fitted(schema, partition, game, network, _output_names(model, game.outputs))
        self.losses_ = history
        rows, truth, how = true_values(game, x_val, seed)
        self.report_: Report | None = measure(self._explain(rows)[0].cpu().numpy(), truth, how)
        return self

    def __call__(self, X: Table) -> shap.Explanation:
        """The explanation of each row: values (n, players) for one output, (n, players, outputs) for several."""
        x = self._encode(X)
        values, base = self._explain(x)
        data, display = self._data(X, x)
        several = self.value_function_.outputs > 1
        return shap.Explanation(
            values=_squeeze(values),
            base_values=_squeeze(base),
            data=data,
            display_data=display,
            feature_names=list(self.player_names_),
            output_names=list(self.output_names_) if several else None,
        )

    def shap_values(self, X: Table) -> NDArray[np.float64]:
        """Shapley values, (n, players) for one output, (n, players, outputs) for several."""
        return _squeeze(self._explain(self._encode(X))[0])

    def estimate(self, X: Table, method: Literal["exact", "kernel"] = "exact", **options: Any) -> Estimate:
        """Shapley values of the same game without the network, by enumeration or by sampling.

        ``options`` go to the estimator in `fastshapley.estimators`, such as ``budget`` for the kernel one.
        """
        estimators = {"exact": exact, "kernel": kernel}
        if method not in estimators:
            raise InputError(f"method is {method!r}: use one of {sorted(estimators)}")
        x = self._encode(X)
        result: Estimate = estimators[method](self.value_function_, x, **options)  # type: ignore[operator]
        return result

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the explainer to one file, atomically. The user's model is not in it."""
        self._check_fitted()
        persistence.save(self, path)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: Any = None,
        *,
        network: nn.Module | None = None,
        value_function: Any = None,
        device: str | torch.device | None = None,
    ) -> FastSHAP:
        """Read an explainer from its file; nothing in the file is executed.

        ``model`` is needed by value functions that call it (marginal, baseline, missing); ``network`` if the
        explainer has a body of the user's; ``value_function`` if it was an object or a network of the user's.
        """
        return persistence.load(cls, path, model, network, value_function, device)

    def __sklearn_clone__(self) -> FastSHAP:
        # scikit-learn's clone would empty the fitted model that is to be explained
        parameters = self.get_params(deep=False)
        return type(self)(**{k: v if k == "model" else copy.deepcopy(v) for k, v in parameters.items()})

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "network_")

    def _check_parameters(self) -> None:
        if self.normalize not in ("always", "inference", "never"):
            raise ValueError(f"normalize is {self.normalize!r}: use 'always', 'inference' or 'never'")
        if self.link not in ("identity", "logit"):
            raise ValueError(f"link is {self.link!r}: use 'identity' or 'logit'")
        if not self.penalty >= 0:
            raise ValueError(f"penalty is {self.penalty!r}: it must not be negative")
        if self.players is not None and not hasattr(self.players, "bind"):
            raise ValueError(f"players is {self.players!r}: use Groups({{'name': [columns]}}) or Features()")
        if isinstance(self.value_function, str) and self.value_function not in _NAMED:
            raise ValueError(
                f"value_function is {self.value_function!r}: use one of {sorted(_NAMED)}, or an object"
            )
        if self.model is None and not _is_fitted(self.value_function):
            raise ValueError("model is None: pass the model to explain, or a fitted value function")

    def _device(self) -> torch.device:
        if self.device is not None:
            return torch.device(self.device)
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def _fit_value_function(
        self,
        model: ModelFunction | None,
        x: Tensor,
        x_val: Tensor,
        partition: Partition,
        recipe: Recipe,
        run: Run,
    ) -> tuple[ValueFunction, Partition]:
        game = self.value_function
        if _is_fitted(game):
            link = getattr(game, "link", self.link)
            if self.link not in ("identity", link):
                raise ValueError(f"link is {self.link!r}, but the value function was fitted with link {link!r}")
            if game.players != len(partition):
                if self.players is not None or isinstance(game, Surrogate | Removal):
                    raise InputError(f"value_function has {game.players} players, and the table {len(partition)}")
                partition = Partition(tuple(f"player {i}" for i in range(game.players)), ())
            return game, partition
        assert model is not None
        game = _NAMED[game]() if isinstance(game, str) else clone(game)
        if isinstance(game, Surrogate):
            given = {
                "training": recipe.surrogate,
                "layers": recipe.surrogate_layers,
                "coalitions": recipe.surrogate_coalitions,
            }
            game.set_params(**{name: value for name, value in given.items() if getattr(game, name) is None})
        fitted: ValueFunction = game.fit(Problem(model, x, x_val, partition, self.link), run)
        return fitted, partition

    def _build_network(
        self, x: Tensor, schema: Schema, game: ValueFunction, recipe: Recipe, run: Run
    ) -> ExplainerNetwork:
        encoder = TableEncoder.fitted(x, [len(c.categories or ()) for c in schema.columns])
        classes = _classes(game) if recipe.tied_classes and self.network is None else "free"
        layers = recipe.explainer_layers
        outputs = ExplainerNetwork.body_outputs(game.players, game.outputs, classes)
        with run.isolated("explainer weights"):
            body = copy.deepcopy(self.network) or Perceptron(
                len(encoder.columns), outputs, layers.count, layers.width, layers.activation
            )
        network = ExplainerNetwork(encoder, body, game.players, game.outputs, classes).to(x.device)
        if getattr(game, "scale", "real") == "real" or getattr(game, "link", "identity") != "identity":
            total = grand_values(game, x[:_BATCH]).double() - null_values(game, x[:_BATCH]).double()
            spread = total.square().mean(0).sqrt()
            network.scale.copy_(torch.where(spread > 0, spread, 1.0))
        with torch.no_grad():
            network.eval()(x[:1])  # a body of the wrong shape is reported here
        return network

    def _set_fitted(
        self,
        schema: Schema,
        partition: Partition,
        game: ValueFunction,
        network: ExplainerNetwork,
        output_names: tuple[str, ...],
    ) -> None:
        self.schema_, self.partition_, self.value_function_, self.network_ = schema, partition, game, network
        self.output_names_ = output_names
        self.player_names_ = partition.names
        self.feature_names_in_ = np.array([column.key for column in schema.columns], dtype=object)
        self.n_features_in_ = len(schema.columns)

    def _check_fitted(self) -> None:
        if not hasattr(self, "network_"):
            raise NotFittedError("this FastSHAP is not fitted: call fit(X) first")

    def _encode(self, X: Table) -> Tensor:
        self._check_fitted()
        return self.schema_.encode(X).to(self.network_.scale.device)

    def _explain(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Values (n, players, outputs) and base values (n, outputs), float64."""
        game = self.value_function_
        values, base = [], []
        for part in x.split(_BATCH):
            null = null_values(game, part).double()
            with torch.no_grad():
                phi = self.network_(part).double()
            if self.normalize != "never" or game.players == 1:
                phi = normalize(phi, grand_values(game, part).double() - null)
            values.append(phi)
            base.append(null)
        return torch.cat(values), torch.cat(base)

    def _data(self, X: Table, x: Tensor) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
        """What to plot beside each value, (n, players): numbers, and what to show in their place for categories."""
        owner = self.partition_.owner
        if not owner:
            return None, None
        columns = x.cpu().numpy()
        if len(self.partition_) == len(owner) and not self.schema_.categorical:
            return columns, None
        shown = np.asarray(X, dtype=object)
        data = np.full((len(x), len(self.partition_)), np.nan)
        display = np.empty(data.shape, dtype=object)
        for player in range(len(self.partition_)):
            members = self.partition_.members(player)
            if len(members) == 1:
                data[:, player], display[:, player] = columns[:, members[0]], shown[:, members[0]]
            else:
                names = [self.schema_.names[m] for m in members]
                display[:, player] = [
                    ", ".join(n for n, v in zip(names, row, strict=True) if v not in (0, False)) or "none"
                    for row in shown[:, members]
                ]
        return data, display


def _is_fitted(value_function: Any) -> bool:
    return hasattr(value_function, "players") and hasattr(value_function, "outputs")


def _classes(game: ValueFunction) -> Literal["free", "mirror", "zero-sum"]:
    """What is known of the outputs' values: those of probabilities sum to zero over the classes."""
    if getattr(game, "scale", None) != "probabilities":
        return "free"
    if game.outputs == 2:
        return "mirror"
    return "zero-sum" if getattr(game, "link", None) == "identity" else "free"


def _output_names(model: ModelFunction | None, outputs: int) -> tuple[str, ...]:
    if model is not None and model.outputs == outputs:
        return model.output_names
    return tuple(f"output {k}" for k in range(outputs))


def _hold_out(x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    held = int(_HELD_OUT * len(x))
    if held == 0:
        return x, x
    return x[order[held:]], x[order[:held]]


def _seed(random_state: Any) -> int:
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    return int(random_state)


def _describe(settings: dict[str, Any]) -> str:
    """Settings as text that is the same in every process."""
    return repr({k: v if not hasattr(v, "__dict__") else (type(v).__name__, str(v)) for k, v in settings.items()})


def _squeeze(values: Tensor) -> NDArray[np.float64]:
    array: NDArray[np.float64] = values.cpu().numpy()
    return array[..., 0] if array.shape[-1] == 1 else array
