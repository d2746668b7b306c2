"""FastSHAP: the object that a user fits to a model, and that explains rows in one forward pass."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastshapley.advice import Advice, advise
from fastshapley.data.players import Features, Groups, Superpixels
from fastshapley.data.stream import Rows
from fastshapley.errors import InputError
from fastshapley.estimators import Estimate, exact, kernel, permutation
from fastshapley.explanation import Values
from fastshapley.export import file_format as persistence
from fastshapley.export import onnx
from fastshapley.fit.fitted import anchored, forward, refined, warn_of_gaps
from fastshapley.fit.pipeline import Fitted, fit_explainer
from fastshapley.fit.setup import check_labels
from fastshapley.networks.backbone import Backbone
from fastshapley.networks.unet import UNet
from fastshapley.sklearn_interface import Protocols
from fastshapley.support.shap_import import shap
from fastshapley.training.process_group import ProcessGroup
from fastshapley.training.recipes import Recipe
from fastshapley.trust.drift import Drift, check
from fastshapley.value_functions.links import Link
from fastshapley.value_functions.protocol import grand_values

if TYPE_CHECKING:
    from fastshapley.bulk.job import Explained


class FastSHAP(Protocols):
    """Shapley values of any model in one forward pass.

    model: a fitted scikit-learn, XGBoost, LightGBM or CatBoost model, a torch.nn.Module, or a function from a
        batch of rows to an array (n,) or (n, outputs). It is called with rows of the type of X. It may be None
        if ``value_function`` is a game of the user's own.
    value_function: what a model's output is when only some players are known: ``"surrogate"``, ``"marginal"``,
        ``"baseline"``, one of the classes in `fastshapley.value_functions`, or any object with ``players``,
        ``outputs`` and ``__call__(x, s)``. A fitted one is used as it is.
    players: `Groups` of columns; by default each column is a player. For images, `Superpixels`: X is then a tensor
        or an array (n, channels, height, width) as the model takes it, or a Dataset, or DataLoader, of such images.
    link: ``"identity"``, ``"logit"`` (log-odds) or ``"log"``, of the model's output, inside the value function.
    logits: the model is a classifier that returns logits, which are turned into probabilities first.
    network: the explainer network's body, a module from (b, inputs) to (b, players * outputs). For images, a
        `Backbone` (the default: the model's own layers) or a `UNet`, or a module from images to values, or to maps
        (b, outputs, h, w).
    normalize: whether values are made to sum to grand minus null: ``"always"``, only at ``"inference"`` and not
        in the training loss, or ``"never"``.
    penalty: the weight in the loss of the squared gap before normalisation (the paper's gamma).
    recipe: ``"default"``, ``"paper"``, or a `Recipe`; ``"sampling"`` trains no explainer's network, for few rows,
        whose values come from a ``budget``, a ``tol`` or `estimate`.
    time_budget: seconds that ``fit`` may take, about; it then does as well as it can in them.
    evaluation_budget: rows that ``fit`` may call the model with (a game of the user's own: coalitions evaluated).
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
        players: Features | Groups | Superpixels | None = None,
        link: Link = "identity",
        logits: bool = False,
        network: nn.Module | Backbone | UNet | None = None,
        normalize: Literal["always", "inference", "never"] = "always",
        penalty: float = 0.0,
        recipe: Literal["default", "paper", "sampling"] | Recipe = "default",
        time_budget: float | None = None,
        evaluation_budget: int | None = None,
        device: str | torch.device | None = None,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
        progress: bool = True,
    ) -> None:
        self.model = model
        self.value_function = value_function
        self.players = players
        self.link = link
        self.logits = logits
        self.network = network
        self.normalize = normalize
        self.penalty = penalty
        self.recipe = recipe
        self.time_budget = time_budget
        self.evaluation_budget = evaluation_budget
        self.device = device
        self.random_state = random_state
        self.progress = progress

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        X_val: Any = None,
        checkpoint: str | os.PathLike[str] | None = None,
        scaling: Any = None,
    ) -> FastSHAP:
        """Train the value function, where it needs training, and the explainer.

        ``y`` is ignored: scikit-learn passes it, but the model is fitted already. Some of ``X_val`` choose the best
        epochs, the others are what the report is measured on; by default a fifth of ``X`` is held out. With
        ``checkpoint``, a directory, a fit that was killed goes on where it was.

        scaling: where several processes train together, each on rows of its own. X is a `ray.data.Dataset`, and
            ``scaling`` a number of workers or a `ray.train.ScalingConfig`, by default one a processor. Or it is
            ``"torchrun"``, X the rows of this process, and torch's process group the others: all get the same.
        """
        check_labels(X, y)
        if type(X).__module__.startswith("ray.data"):
            from fastshapley.bulk import ray_cluster

            return ray_cluster.fit(self, X, X_val, scaling, checkpoint)
        if scaling not in (None, "torchrun"):
            raise InputError(f"scaling is {scaling!r}, but X is no ray.data.Dataset: use 'torchrun', or None")
        processes = ProcessGroup(together=scaling is not None)
        try:
            return self._keep(fit_explainer(self, X, X_val, checkpoint, update=False, processes=processes))
        finally:
            processes.rest()

    def update(self, X: Any, *, X_val: Any = None, checkpoint: str | os.PathLike[str] | None = None) -> FastSHAP:
        """Go on training with new rows, from the current weights: for when `check` says that rows have drifted.

        A surrogate learns from the model, which may be another one by now, of as many outputs, what it gives for
        the new rows; without the model it stays as it is. A game of the model's own asks the model as it is now,
        and keeps its background. Then the explainer, the errors, the report and the reference of `check` are of the
        new rows: pass old ones with them, if such rows are still to be explained. It takes about half of a ``fit``.
        Categories that were not there at ``fit`` count as missing, and gaps in columns that had none as the mean:
        fit anew if these matter. Until all is done, and if it is interrupted, the explainer stays as it was.
        """
        self._check_fitted()
        return self._keep(fit_explainer(self, X, X_val, checkpoint, update=True))

    def __call__(
        self,
        X: Any,
        *,
        errors: bool = False,
        budget: int | None = None,
        tol: float | None = None,
        start: shap.Explanation | None = None,
        anchor: Literal["game", "model"] = "game",
        predictions: Any = None,
        background: Any = None,
        calls: int | None = None,
        outputs: Any = None,
        upsample: bool = False,
        max_evals: int | Literal["auto"] = "auto",
        main_effects: bool = False,
        error_bounds: bool = False,
        batch_size: int | Literal["auto"] = "auto",
        silent: bool = False,
    ) -> shap.Explanation:
        """The explanation of each row: values (n, players) for one output, (n, players, outputs) for several.

        errors: ``error_std`` of the result is the standard error of each value: 90 % of the exact values are within
            1.645 of them.
        budget: evaluations a row, on average, to correct the values with; rows whose values are further off get
            more. tol: correct each row until its largest standard error is below ``tol`` times the range of its
            values. With either, the result has ``error_std`` too; of few players, whose coalitions a budget nearly
            exhausts, it is somewhat small.
        start: an explanation of the same rows, from an earlier call with a budget or a tol, to go on from: what was
            spent on it is not lost.
        anchor: ``"model"`` makes the values of a surrogate's game sum to the model's output less its mean, not to
            the surrogate's. The model is called, unless its ``predictions`` for X are given, as it returns them.
            The difference is shared evenly among the players.
        calls, background: with ``anchor="model"``, and of tables, the difference is not shared evenly: its own
            Shapley values are estimated from so many calls of the model a row, on mixes of the row with those of
            ``background`` (a table like X) that are nearest in what is not hidden. It helps the more, the less the
            columns depend on each other: see docs/results/upkeep.md.
        outputs: which outputs the result has, by number or name, or as `shap.Explanation.argsort.flip[:3]`, which
            are the three largest of each row; there is an axis for them even if it is one.
        max_evals, main_effects, error_bounds, batch_size, silent: as shap's explainers have them. They are a
            budget; False, as there are none here; errors; the rows of one forward pass, at most; and no bar.

        Of images, as shap has them, (n, rows, columns, 1, outputs) on the grid; with ``upsample``, and for
        segments, (n, height, width, 1, outputs), a player's value shared out among its pixels. `shap.image_plot`
        draws either.
        """
        if main_effects:
            raise InputError("main_effects is True, and they are not estimated here: leave it out")
        x = self._encode(X)
        warn_of_gaps(self.schema_, self.network_, x)
        values, base = forward(self, x, batch_size)
        stderr = None
        if max_evals != "auto":
            if budget is not None:
                raise InputError("budget and max_evals are the same: pass one of them")
            budget = max_evals
        if errors or error_bounds or budget is not None or tol is not None or start is not None:
            bar = self.progress and not silent
            values, stderr = refined(self, x[:], values, budget=budget, tol=tol, start=start, progress=bar)
        if anchor != "game":
            values, base, added = anchored(self, x, values, base, anchor, predictions, background, calls)
            stderr = None if stderr is None else (stderr.square() + added).sqrt()
        elif predictions is not None or background is not None or calls is not None:
            raise InputError("predictions, background and calls are for anchor='model': pass it, or leave them out")
        found = Values(values, base, stderr, self.output_names_)
        if outputs is not None:
            found = found.chosen(outputs)
        return self.schema_.explanation(x, found, self.partition_, upsample=upsample)

    def shap_values(
        self, X: Any, *, upsample: bool = False, nsamples: int | Literal["auto"] = "auto", silent: bool = False
    ) -> NDArray[np.float64]:
        """Shapley values, (n, players) for one output, (n, players, outputs) for several.

        Of images on a grid, (n, rows, columns, outputs), always with the outputs; with ``upsample``
        (n, height, width, outputs), where each player's value is shared out among its pixels.

        nsamples, silent: as shap's KernelExplainer has them: a budget of evaluations a row, and no progress bar.
        """
        x = self._encode(X)
        warn_of_gaps(self.schema_, self.network_, x)
        values, _ = forward(self, x)
        if nsamples != "auto":
            values, _ = refined(self, x[:], values, budget=nsamples, progress=self.progress and not silent)
        return self.schema_.shaped_values(values, self.partition_, upsample=upsample)

    def explain_to(
        self,
        source: Any,
        output: str | os.PathLike[str],
        *,
        keys: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        part_rows: int = 1 << 18,
        workers: int | None = None,
    ) -> Explained:
        """Explain Parquet or CSV files of any size, and write the values as Parquet files to the folder ``output``.

        ``source`` is a path, a folder, a glob, or a list of these, here or where pyarrow finds it (s3://...). There
        is a column ``shap_<player>`` a player, or ``shap_<player>_<output>`` where there are several outputs, then
        base values and predictions, float32, and in front the columns ``keys`` of the source, from CSV as text: by
        default all that are no features, if every file has them. ``outputs`` are the names of those that are
        wanted, by default all.

        Each part of about ``part_rows`` rows is written to a file of its own, whole or not at all. A run that was
        interrupted goes on when it is called again. ``workers`` threads share the work, by default one a processor.
        """
        self._check_fitted()
        from fastshapley.bulk.job import explain_to

        return explain_to(
            self,
            source,
            output,
            keys=keys,
            outputs=outputs,
            part_rows=part_rows,
            workers=workers,
            progress=self.progress,
        )

    def estimate(
        self, X: Any, method: Literal["exact", "kernel", "permutation"] = "exact", **options: Any
    ) -> Estimate:
        """Shapley values of the same game without the network, by enumeration or by sampling.

        ``options`` go to the estimator in `fastshapley.estimators`, such as ``budget`` for the kernel one.
        """
        estimators = {"exact": exact, "kernel": kernel, "permutation": permutation}
        if method not in estimators:
            raise InputError(f"method is {method!r}: use one of {sorted(estimators)}")
        result: Estimate = estimators[method](self.value_function_, self._encode(X)[:], **options)
        return result

    def check(self, X: Any, predictions: Any = None) -> Drift:
        """Whether the rows X are like those that the explainer was trained on, and the model is the one explained.

        The model is called, or its ``predictions`` for X are held against the surrogate's; without either, only the
        rows are looked at. ``print(explainer.check(X))`` says it in words, ``.plot()`` draws the worst columns.
        """
        return check(self, self._encode(X)[:], predictions)

    @classmethod
    def advise(
        cls, model: Any, X: Any, *, rows: int, error: float = 0.01, seconds: float = 20.0, **settings: Any
    ) -> Advice:
        """What is the fastest way to the values of so many ``rows`` like X: exact, TreeSHAP, sampling or a network.

        ``error`` is the relative squared error that will do. A trial of about ``seconds`` is made; ``settings`` are
        those of `FastSHAP`, such as ``players`` or ``link``. ``print(FastSHAP.advise(model, X, rows=1000))``.
        """
        return advise(cls(model, **settings), X, rows, error, seconds)

    def save(self, path: str | os.PathLike[str] | IO[bytes]) -> None:
        """Write the explainer to one file, atomically, or to a binary stream. The user's model is not in it."""
        self._check_fitted()
        persistence.save(self, path)

    def export_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the explainer as one ONNX graph: from encoded ``rows`` to ``shap_values``, and more.

        The rows are float64 (n, columns), with categories as the numbers that the schema in the graph's metadata
        gives them and gaps as NaN, or images as the model takes them. ``shap_values`` are (n, players, outputs),
        ``base_values`` and ``predictions`` (n, outputs), and ``error_std`` is there if errors were learnt. A graph
        of a game of the model's own takes the model's ``outputs`` too. It is checked against torch before it is
        written.
        """
        self._check_fitted()
        onnx.export(self, path)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | IO[bytes],
        model: Any = None,
        *,
        network: nn.Module | Backbone | None = None,
        value_function: Any = None,
        device: str | torch.device | None = None,
    ) -> FastSHAP:
        """Read an explainer from its file, or from a binary stream; nothing in it is executed.

        ``model`` is needed by value functions that call it (marginal, baseline, missing), and by networks for
        images that are made of its layers; ``network`` if the explainer has a body of the user's;
        ``value_function`` if it was an object or a network of the user's.
        """
        return persistence.load(cls, path, model, network, value_function, device)

    def _keep(self, fitted: Fitted) -> FastSHAP:
        self.schema_, self.partition_, self.output_names_ = fitted.schema, fitted.partition, fitted.output_names
        self.value_function_, self.network_ = fitted.game, fitted.network
        self.losses_, self.errors_, self.report_ = fitted.losses, fitted.errors, fitted.report
        self.reference_, self.timings_ = fitted.reference, fitted.timings
        self.normalize_ = self.normalize
        self.player_names_ = self.partition_.names
        return self

    def _encode(self, X: Any) -> Rows:
        self._check_fitted()
        return self.schema_.encode(X).to(self.network_.scale.device)

    def explain_encoded(self, x: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Of encoded rows, values (n, players, outputs), base values and predictions (n, outputs), float64."""
        values, base = forward(self, x)
        if self.normalize_ != "never" or self.value_function_.players == 1:
            return values, base, base + values.sum(1)
        return values, base, grand_values(self.value_function_, x[:])
