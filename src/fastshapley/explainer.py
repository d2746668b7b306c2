"""FastSHAP: the object that a user fits to a model, and that explains rows in one forward pass."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastshapley.advice import Advice, TrialInputs, Workload, advise, shown_settings
from fastshapley.data.kinds import schema_of
from fastshapley.data.players import Features, Groups, Superpixels
from fastshapley.data.stream import Rows
from fastshapley.errors import InputError
from fastshapley.estimators import Estimate, exact, kernel, permutation
from fastshapley.explain.anchoring import Anchor, ModelOutputs, anchor_values
from fastshapley.explain.correction import Correction, correct
from fastshapley.explain.precision import Precision, about_model
from fastshapley.explanation import Values
from fastshapley.export import file_format, onnx
from fastshapley.fit import pipeline
from fastshapley.fit.fitted import Fitted
from fastshapley.fit.settings import Settings
from fastshapley.fit.setup import FitData, check_labels, players_of
from fastshapley.networks import Backbone, UNet
from fastshapley.sklearn_interface import SklearnInterface
from fastshapley.support.forked_process import use_one_thread_after_forks
from fastshapley.support.names import chosen_outputs
from fastshapley.support.shap_import import shap
from fastshapley.training.checkpoint import Checkpoint
from fastshapley.training.process_group import ProcessGroup
from fastshapley.training.recipes import Recipe, resolve
from fastshapley.trust.drift import Drift, compare
from fastshapley.value_functions.base_game import called_model, calls_model, imitation_of
from fastshapley.value_functions.links import Link
from fastshapley.value_functions.protocol import grand_values
from fastshapley.value_functions.sums import check_evaluable, sums_to

if TYPE_CHECKING:
    from fastshapley.bulk.job import Explained

ESTIMATORS = {"exact": exact, "kernel": kernel, "permutation": permutation}
use_one_thread_after_forks()


@dataclass(frozen=True)
class ShapOptions:
    """The keyword arguments that shap's explainers take when they are called.

    Attributes
    ----------
    max_evals : int or "auto"
        The same as ``budget``.
    main_effects : bool
        Must be False: main effects are not estimated.
    error_bounds : bool
        The same as ``errors``.
    batch_size : int or "auto"
        The largest number of rows in one forward pass.
    silent : bool
        Whether to hide the progress bar.
    check_additivity : bool
        Whether to raise an error if values do not sum to the output. With ``normalize="never"`` they may not.
    """

    max_evals: int | Literal["auto"] = "auto"
    main_effects: bool = False
    error_bounds: bool = False
    batch_size: int | Literal["auto"] = "auto"
    silent: bool = False
    check_additivity: bool = False

    def __post_init__(self) -> None:
        if self.main_effects:
            raise InputError("main_effects is True, but main effects are not estimated: leave it out")

    def budget(self, given: int | None) -> int | None:
        """Return the evaluations per row."""
        if self.max_evals == "auto":
            return given
        if given is not None:
            raise InputError("budget and max_evals mean the same: pass one of them")
        return self.max_evals


class FastSHAP(SklearnInterface):
    """Shapley values of any model in one forward pass.

    Parameters
    ----------
    model : object, optional
        A fitted scikit-learn, XGBoost, LightGBM or CatBoost model, a `torch.nn.Module`, or a function from a batch
        of rows to an array (n,) or (n, outputs). It is called with rows of the type of ``X`` in ``fit``. It may be
        None if ``value_function`` is a game of your own.
    value_function : str or object
        What the model's output is when only some players are known: ``"conditional"``, ``"surrogate"``,
        ``"marginal"``, ``"baseline"``, an instance of a class in `fastshapley.value_functions`, or any object with
        ``players``, ``outputs`` and ``__call__(x, s)``. One that is fitted is used as it is. By default it is
        ``"conditional"`` for tables, and ``"surrogate"`` for images and for the paper's recipe.
    players : Features, Groups or Superpixels, optional
        Which columns form a player; by default each column is one. With `Superpixels`, ``X`` holds images: a tensor
        or an array (n, channels, height, width) as the model takes it, or a Dataset or DataLoader of such images.
    link : {"identity", "logit", "log"}
        The function of the model's output that is explained. ``"logit"`` explains log-odds: for hidden players,
        those of the average probability, not the average of the log-odds. For the latter, pass a model that returns
        log-odds.
    logits : bool
        Whether the model is a classifier that returns logits, which are turned into probabilities first.
    network : torch.nn.Module, Backbone or UNet, optional
        The body of the explainer network, a module from (b, inputs) to (b, players * outputs). For images, a
        `Backbone` (the default: the model's own layers), a `UNet`, or a module from images to values or to maps
        (b, outputs, h, w).
    normalize : {"always", "inference", "never"}
        When values are made to sum to grand minus null: also in the training loss, only at inference, or never.
    penalty : float
        The weight in the loss of the squared gap before normalisation (the paper's gamma).
    output_names : list of str, optional
        The names of the model's outputs. By default they are a classifier's classes, or the columns of the frame
        that the model returns.
    recipe : {"default", "paper", "sampling"} or Recipe
        How networks are trained. ``"sampling"`` trains no explainer network, for few rows: values then come from a
        ``budget``, a ``tol`` or `estimate`.
    time_budget : float, optional
        Approximate time limit for ``fit``, in seconds.
    evaluation_budget : int, optional
        The largest number of rows that ``fit`` may call the model with; for a game of your own, the largest number
        of coalitions that it evaluates.
    device : str or torch.device, optional
        Where the networks run; by default a GPU if there is one.
    random_state : int or NumPy generator, optional
        The seed. The same seed gives the same bytes.
    progress : bool
        Whether progress bars are shown.

    Attributes
    ----------
    report_ : Report or None
        The measured distance to the exact Shapley values, on held-out rows.
    timings_ : dict
        What each phase of the fit took and was given: a `Timing` by name.
    fitted_ : Fitted
        Everything that the fit has learnt, as one value.

    Examples
    --------
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
        value_function: Any = "auto",
        players: Features | Groups | Superpixels | None = None,
        link: Link = "identity",
        logits: bool = False,
        network: nn.Module | Backbone | UNet | None = None,
        normalize: Literal["always", "inference", "never"] = "always",
        penalty: float = 0.0,
        output_names: Sequence[str] | None = None,
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
        self.output_names = output_names
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
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        scaling: Any = None,
    ) -> FastSHAP:
        """Train the value function, where it needs training, and the explainer.

        Parameters
        ----------
        X : table or images
            The rows to learn from. A table is a pandas or polars DataFrame, a pyarrow Table, an array or a tensor.
        y : ignored
            scikit-learn passes labels, but the model is fitted already.
        X_val : table or images, optional
            Held-out rows. Some choose the best epochs, the others are what the report is measured on. By default a
            fifth of ``X`` is held out.
        checkpoint : path, optional
            A directory for unfinished work: a fit that was killed goes on where it was.
        scaling : int, ray.train.ScalingConfig or "torchrun", optional
            For several processes that train together, each on rows of its own. If ``X`` is a `ray.data.Dataset`,
            the number of workers or a ScalingConfig, by default one worker per processor. With ``"torchrun"``,
            ``X`` holds the rows of this process, and the processes are those of torch's process group. All of them
            learn the same explainer.

        Returns
        -------
        FastSHAP
            This explainer.
        """
        check_labels(X, y)
        if type(X).__module__.startswith("ray.data"):
            from fastshapley.bulk import ray_fit

            where = checkpoint.directory if isinstance(checkpoint, Checkpoint) else checkpoint
            return ray_fit.fit(self, X, X_val, scaling, where)
        if scaling not in (None, "torchrun"):
            raise InputError(f"scaling is {scaling!r}, but X is not a ray.data.Dataset: use 'torchrun', or None")
        processes = ProcessGroup(together=scaling is not None)
        try:
            return self._keep(pipeline.fit(self._settings(), FitData(X, X_val, checkpoint, processes)))
        finally:
            processes.rest()

    def update(
        self, X: Any, *, X_val: Any = None, checkpoint: str | os.PathLike[str] | Checkpoint | None = None
    ) -> FastSHAP:
        """Train further on new rows, from the current weights: for when `check` finds that rows have drifted.

        A surrogate learns what the model gives for the new rows. The model may have changed since the fit, but must
        have as many outputs; without a model the surrogate stays as it is. A game of the model's own asks the model
        as it is now, and keeps its background. The explainer, the error bars, the report and the reference of
        `check` are then those of the new rows: pass old rows with them if such rows are still to be explained.

        An update takes about half the time of a ``fit``. Categories that were not there at ``fit`` count as
        missing, and gaps in columns that had none count as the mean: fit again if these matter. Until the update is
        done, and if it is interrupted, the explainer stays as it was.

        Parameters
        ----------
        X : table or images
            The new rows.
        X_val : table or images, optional
            Held-out rows; by default a fifth of ``X`` is held out.
        checkpoint : path, optional
            A directory for unfinished work.

        Returns
        -------
        FastSHAP
            This explainer.
        """
        self._check_fitted()
        return self._keep(pipeline.update(self._settings(), FitData(X, X_val, checkpoint), self.fitted_))

    def __call__(
        self,
        X: Any,
        *,
        errors: bool | Literal["game"] = False,
        budget: int | None = None,
        tol: float | None = None,
        start: shap.Explanation | None = None,
        anchor: Literal["game", "model"] = "game",
        predictions: Any = None,
        background: Any = None,
        calls: int | None = None,
        outputs: Any = None,
        upsample: bool = False,
        **shap_options: Any,
    ) -> shap.Explanation:
        """Explain rows.

        Parameters
        ----------
        X : table or images
            The rows.
        errors : bool or "game"
            Whether the result has ``error_std``, the standard error of each value. It is about the Shapley values
            of the model: it contains the game's error as the report estimates it. With ``"game"`` it is about the
            exact values of the game: 90 % of these are within 1.645 standard errors. ``errors_about`` of the result
            is ``"model"`` or ``"game"``; a game of your own, whose error nobody knows, has only the latter.
        budget : int, optional
            Evaluations per row, on average, to correct the values with. Rows with larger errors get more. The
            result then has ``error_std`` too; it is somewhat too small where the budget nearly exhausts the
            coalitions of few players.
        tol : float, optional
            Correct each row until its largest standard error is below ``tol`` times the range of its values.
        start : shap.Explanation, optional
            An explanation of the same rows from an earlier call with a budget or a tolerance, to go on from.
        anchor : {"game", "model"}
            ``"model"`` makes the values of a surrogate's game sum to the model's output minus its mean, instead of
            to the surrogate's. The difference is shared evenly among the players.
        predictions : array, optional
            What the model returns for ``X``, so that it need not be called: for a game of the model's own
            (conditional, marginal, baseline, missing), or with ``anchor="model"``.
        background, calls : table and int, optional
            With ``anchor="model"``, and for tables, the difference is not shared evenly. Its own Shapley values are
            estimated from ``calls`` model calls per row, on mixes of the row with the rows of ``background`` (a
            table like ``X``) that are nearest in what is shown. This helps more, the less the columns depend on
            each other: see docs/results/upkeep.md.
        outputs : list or shap.Explanation.argsort, optional
            Which outputs the result has, by number or name, or as ``shap.Explanation.argsort.flip[:3]``: the three
            largest of each row. The result then has an axis for outputs even if there is one.
        upsample : bool
            For images, whether to share a player's value among its pixels.
        **shap_options
            The options of shap's explainers: ``max_evals`` (a budget), ``main_effects`` (must be False),
            ``error_bounds`` (the same as ``errors``), ``batch_size`` (rows per forward pass), ``silent`` (no
            progress bar) and ``check_additivity`` (an error if values do not sum to the output).

        Returns
        -------
        shap.Explanation
            Values (n, players) for one output, (n, players, outputs) for several. ``sums_to`` says whose output
            they sum to: ``"model"``, ``"surrogate"`` or ``"game"``. For images, shapes follow shap's convention:
            (n, rows, columns, 1, outputs) on the grid; with ``upsample``, and for segments,
            (n, height, width, 1, outputs). `shap.image_plot` draws either.
        """
        options = _shap_options(shap_options)
        x = self._encode(X)
        self.fitted_.warn_of_new_gaps(x)
        grand = None
        game = self.fitted_.game
        asked = predictions is not None or (anchor == "model" and called_model(game) is None)
        if asked and calls_model(game):
            grand, predictions = self._model_outputs()(x, predictions), None
        budget, stderr = options.budget(budget), None
        corrected = errors or options.error_bounds or budget is not None or tol is not None or start is not None
        few = None if corrected or anchor == "model" else self._known_outputs(outputs)
        values, base = self.fitted_.forward(x, options.batch_size, grand, few)
        if corrected:
            progress = self.progress and not options.silent
            correction = Correction(budget, tol, start, self.random_state, progress)
            values, stderr = correct(self.fitted_, x[:], values, correction)
        if anchor not in ("game", "model"):
            raise InputError(f"anchor is {anchor!r}: use 'game', or 'model', with predictions or without")
        if anchor == "model":
            how = Anchor(self._model_outputs(), predictions, background, calls, self.random_state)
            values, base, added = anchor_values(how, x, values, base)
            stderr = None if stderr is None else (stderr.square() + added).sqrt()
        elif predictions is not None or background is not None or calls is not None:
            raise InputError(
                "predictions, background and calls are for anchor='model', or predictions for a game of the "
                "model's own: pass anchor='model', or leave them out"
            )
        about: Literal["model", "game"] = "game"
        if stderr is not None and errors != "game" and self.fitted_.knows_game_error:
            stderr, about = about_model(self.fitted_, stderr), "model"
        if options.check_additivity and anchor == "game":
            self.fitted_.check_sums(x, values, base, few)
        found = Values(values, base, stderr, self.output_names_)
        if few is not None:
            found = replace(found, names=[self.output_names_[k] for k in few], squeezed=False)
        elif outputs is not None:
            found = found.chosen(outputs)
        explanation = self.schema_.explanation(x, found, self.partition_, upsample=upsample)
        explanation.errors_about = about
        explanation.sums_to = sums_to(game, known=grand is not None or anchor == "model")
        return explanation

    def shap_values(
        self,
        X: Any,
        *,
        upsample: bool = False,
        nsamples: int | Literal["auto"] = "auto",
        silent: bool = False,
        check_additivity: bool = False,
    ) -> NDArray[np.float64]:
        """Return Shapley values as an array.

        Parameters
        ----------
        X : table or images
            The rows.
        upsample : bool
            For images, whether to share a player's value among its pixels.
        nsamples : int or "auto"
            A budget of evaluations per row, as shap's KernelExplainer has it.
        silent : bool
            Whether to hide the progress bar.
        check_additivity : bool
            Whether to raise an error if values do not sum to the output. With ``normalize="never"`` they may not.

        Returns
        -------
        ndarray
            (n, players) for one output, (n, players, outputs) for several. For images on a grid,
            (n, rows, columns, outputs), always with an axis for outputs; with ``upsample``
            (n, height, width, outputs).
        """
        x = self._encode(X)
        self.fitted_.warn_of_new_gaps(x)
        values, base = self.fitted_.forward(x)
        if nsamples != "auto":
            correction = Correction(nsamples, random_state=self.random_state, progress=self.progress and not silent)
            values, _ = correct(self.fitted_, x[:], values, correction)
        if check_additivity:
            self.fitted_.check_sums(x, values, base)
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
        **precision: Any,
    ) -> Explained:
        """Explain Parquet or CSV files of any size, and write the values as Parquet files.

        Each part of about ``part_rows`` rows is written to a file of its own, completely or not at all. A run that
        was interrupted goes on when it is called again.

        Parameters
        ----------
        source : path, glob or list of these
            Files or folders, here or where pyarrow finds them (s3://...).
        output : path
            The folder to write to. Its files have a column ``shap_<player>`` for each player, or
            ``shap_<player>_<output>`` where there are several outputs, then base values and predictions (float32).
            With error bars, ``outside_range`` says whether a row is outside of the range of the training rows.
        keys : list of str, optional
            Columns of the source that are copied in front; from CSV they are copied as text. By default all columns
            that are not features, if every file has them.
        outputs : list of str, optional
            The names of the outputs that are wanted; by default all.
        part_rows : int
            The approximate number of rows per part.
        workers : int, optional
            The number of threads; by default one per processor.
        **precision
            ``errors``, ``budget``, ``tol`` and ``anchor``, as in a call of the explainer. A budget is an average
            over some thousand rows. The files then also have columns ``error_std_<player>``, unless only ``anchor``
            is given. For rows outside of the range of the training rows that are not corrected, these are NaN.

        Returns
        -------
        Explained
            How many rows and parts there were.
        """
        self._check_fitted()
        from fastshapley.bulk.job import explain_to
        from fastshapley.bulk.precise_explainer import precise_explainer

        return explain_to(
            precise_explainer(self, _precision(precision)),
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
        """Compute Shapley values of the same game without the network, by enumeration or by sampling.

        Parameters
        ----------
        X : table or images
            The rows.
        method : {"exact", "kernel", "permutation"}
            The estimator.
        **options
            Options of the estimator in `fastshapley.estimators`, such as ``budget``.

        Returns
        -------
        Estimate
            Values, standard errors, evaluations, and whether each row has converged.
        """
        if method not in ESTIMATORS:
            raise InputError(f"method is {method!r}: use one of {sorted(ESTIMATORS)}")
        self._check_fitted()
        check_evaluable(self.value_function_)
        result: Estimate = ESTIMATORS[method](self.value_function_, self._encode(X)[:], **options)
        return result

    def check(self, X: Any, predictions: Any = None) -> Drift:
        """Check whether rows are like the training rows, and whether the model is still the one that was explained.

        Parameters
        ----------
        X : table or images
            The rows.
        predictions : array, optional
            What the model returns for ``X``, which is compared with the surrogate. By default the model is called;
            without a model only the rows are checked.

        Returns
        -------
        Drift
            ``print`` shows it in words, ``.plot()`` draws the columns that differ most.
        """
        x, fitted = self._encode(X)[:], self.fitted_
        schema = fitted.schema
        gaps, grand = None, None
        imitation = imitation_of(fitted.game)
        if imitation is not None and len(x) and (predictions is not None or self.model is not None):
            outputs = self._model_outputs()(x, predictions)
            gaps = (grand_values(imitation, x) - outputs).square().sum(1).sqrt()
            grand = outputs if calls_model(fitted.game) else None
        ratio = None
        if fitted.errors is not None and len(x):
            expected = fitted.errors.expected(x, fitted.forward(x, grand=grand)[0])
            ratio = float(expected / fitted.errors.head.expected.clamp(min=1e-300))
        return compare(
            fitted.reference, schema.summarise(x), schema.summary_names, schema.summary_discrete, gaps, ratio
        )

    @classmethod
    def advise(
        cls, model: Any, X: Any, *, rows: int, error: float = 0.01, seconds: float = 20.0, **settings: Any
    ) -> Advice:
        """Predict the fastest way to Shapley values: exact, TreeSHAP, sampling or a network.

        Parameters
        ----------
        model : object
            The model, as for `FastSHAP`.
        X : table or images
            Rows to try it on.
        rows : int
            How many rows are to be explained.
        error : float
            The relative squared error that is good enough.
        seconds : float
            The approximate duration of the trial.
        **settings
            Other parameters of `FastSHAP`, such as ``players`` or ``link``.

        Returns
        -------
        Advice
            ``print`` shows it as a table.
        """
        workload, whole = Workload(rows, error, seconds), cls(model, **settings)
        schema, wanted = schema_of(X, whole.players), whole._settings()
        x = schema.encode(X).to(wanted.resolved_device())
        recipe = resolve(whole.recipe, len(x), len(players_of(wanted, schema)), images=schema.kind == "image")

        def fit(recipe: Recipe, seconds: float) -> Fitted:
            short = replace(wanted, recipe=recipe, time_budget=seconds, progress=False)
            return pipeline.fit(short, FitData(X))

        shown = shown_settings(whole.get_params(deep=False), cls().get_params(deep=False))
        return advise(TrialInputs(model, whole.logits, schema, x, recipe, fit, shown), workload)

    def save(self, path: str | os.PathLike[str] | IO[bytes]) -> None:
        """Write the explainer to one file, atomically, or to a binary stream. The user's model is not in it."""
        self._check_fitted()
        file_format.save(self.fitted_, self._settings(), path)

    def export_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the explainer as one ONNX graph: from encoded ``rows`` to ``shap_values``, and more.

        The graph's input ``rows`` is float64 (n, columns), with categories as the numbers that the schema in the
        graph's metadata gives them and gaps as NaN, or images as the model takes them. A graph of a game of the
        model's own takes the model's ``outputs`` too. For a conditional game they may be NaN, and values then sum
        to the surrogate's output. The graph returns ``shap_values`` (n, players, outputs),
        ``base_values`` and ``predictions`` (n, outputs), and ``error_std`` if error bars were learnt. The graph is
        checked against torch before it is written.
        """
        self._check_fitted()
        onnx.export(self.fitted_, path, logits=self.logits)

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
        """Read an explainer from its file or from a binary stream; nothing in it is executed.

        Parameters
        ----------
        path : path or binary stream
            What `save` wrote.
        model : object, optional
            The user's model. Value functions that call it (marginal, baseline, missing) need it, and so do networks
            for images that are made of its layers. Without it, the values of a conditional value function sum to
            the surrogate's output, unless ``predictions`` are passed.
        network : torch.nn.Module or Backbone, optional
            The body of the explainer network, if it was one of the user's.
        value_function : object, optional
            The value function, if it was an object or a network of the user's.
        device : str or torch.device, optional
            Where the networks run.

        Returns
        -------
        FastSHAP
        """
        given = file_format.GivenObjects(model, network, value_function, device)
        settings, fitted = file_format.load(path, given)
        return cls(**vars(settings))._keep(fitted)

    def explain_encoded(self, x: Rows, outputs: Sequence[int] | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Explain encoded rows: see `Fitted.explain_encoded`."""
        return self.fitted_.explain_encoded(x, outputs)

    def _settings(self) -> Settings:
        return Settings(**self.get_params(deep=False))

    def _known_outputs(self, outputs: Any) -> tuple[int, ...] | None:
        """Return the numbers of the outputs that are wanted, if they do not depend on the values."""
        if outputs is None or isinstance(outputs, shap.utils.OpChain):
            return None
        return chosen_outputs(self.output_names_, outputs)

    def _model_outputs(self) -> ModelOutputs:
        return ModelOutputs(self.fitted_, self.model, self.logits)

    def _keep(self, fitted: Fitted) -> FastSHAP:
        self.fitted_ = fitted
        self.schema_, self.partition_, self.output_names_ = fitted.schema, fitted.partition, fitted.output_names
        self.value_function_, self.network_ = fitted.game, fitted.network
        self.losses_, self.errors_, self.report_ = fitted.losses, fitted.errors, fitted.report
        self.reference_, self.timings_ = fitted.reference, fitted.timings
        self.normalize_ = fitted.normalize
        self.player_names_ = self.partition_.names
        return self

    def _encode(self, X: Any) -> Rows:
        self._check_fitted()
        return self.schema_.encode(X).to(self.fitted_.device)


def _precision(given: dict[str, Any]) -> Precision:
    try:
        return Precision(**given)
    except TypeError:
        unknown = sorted(set(given) - set(Precision.__dataclass_fields__))
        raise TypeError(f"FastSHAP.explain_to() got unexpected keyword arguments {unknown}") from None


def _shap_options(given: dict[str, Any]) -> ShapOptions:
    try:
        return ShapOptions(**given)
    except TypeError:
        unknown = sorted(set(given) - set(ShapOptions.__dataclass_fields__))
        raise TypeError(f"FastSHAP.__call__() got unexpected keyword arguments {unknown}") from None
