"""The user's model, of any kind, as one batched function of tensors."""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy import special
from sklearn.base import BaseEstimator, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from fastshapley.data.schema import Schema
from fastshapley.data.stream import Rows
from fastshapley.data.table_schema import Table
from fastshapley.errors import InputError, ModelError
from fastshapley.support.frames import as_pandas

Scale = Literal["probabilities", "probability", "real"]
TRIAL_ROWS = 256  # rows of a table that a model is tried out on
TRIAL_IMAGES = 32  # images that a model is tried out on
AGAIN_ROWS = 64  # rows that a model is called with again, to see whether it answers the same
AGAIN_ENTRIES = 1 << 18  # entries of these rows, at most
BATCH_ROWS = 1 << 14  # largest number of rows per call: trees and networks are fast at this size
BATCH_ENTRIES = 1 << 21  # largest number of entries per call, so that a batch stays at a few megabytes
_SMALLEST_BATCH = 16  # rows per call, however many entries they have


def trial_rows(x: Rows) -> Tensor:
    """Return the first rows, on which a model is tried out."""
    some = x[:TRIAL_IMAGES]
    return some if some.ndim > 2 else x[:TRIAL_ROWS]


class ModelFunction:
    """The user's model as a function from encoded rows (n, ...) to outputs (n, outputs), float64.

    The model is called in batches, with rows of the type that the user passed.

    Parameters
    ----------
    model : object
        The user's model.
    schema : Schema
        The layout of the rows.
    probe : Tensor
        Some encoded rows, on which the model is tried out.
    logits : bool
        Whether the model returns logits, which are turned into probabilities.

    Attributes
    ----------
    scale : str
        ``"probabilities"`` if the outputs of each row sum to one, ``"probability"`` if the output is that of the
        positive class alone, and ``"real"`` otherwise.
    evaluations : int
        The number of rows that the model has been called with.
    seconds : float
        The time that these calls took.
    tried : Tensor
        The outputs for ``probe``.

    Raises
    ------
    ModelError
        If the model cannot be called, or does not return one row of numbers for each row.
    """

    def __init__(self, model: Any, schema: Schema, probe: Tensor, logits: bool = False) -> None:
        self.model, self.schema, self.logits = model, schema, logits
        self.evaluations, self.seconds = 0, 0.0
        self.outputs = 0  # The first call sets it, and the columns of the frame that it returns.
        self._columns: tuple[str, ...] = ()
        self._predict, known_scale = _predictor(model)
        if logits and known_scale is not None:
            raise ModelError(f"logits is True, but a {type(model).__name__} does not return logits: leave it out")
        self._integers_allowed = _is(is_regressor, model)
        self.tried = y = self(probe)
        self._again = probe[: min(AGAIN_ROWS, max(1, AGAIN_ENTRIES // max(1, probe[:1].numel())))]
        if known_scale not in (None, "real") and (y.min() < -1e-6 or y.max() > 1 + 1e-6):
            raise ModelError(f"model returns probabilities outside [0, 1]: from {y.min():.3g} to {y.max():.3g}")
        if known_scale in (None, "probabilities"):  # With several labels, each may be likely on its own.
            known_scale = "probabilities" if _sum_to_one(y) else "probability" if logits else "real"
        self.scale: Scale = known_scale
        self.output_names = _output_names(model, self._columns, self.outputs)

    def __call__(self, x: Rows) -> Tensor:
        """Return the outputs of encoded rows, (n, outputs)."""
        if len(x) == 0:  # Few models accept this.
            return torch.zeros(0, self.outputs, dtype=torch.float64, device=x.device)
        size = max(_SMALLEST_BATCH, min(BATCH_ROWS, BATCH_ENTRIES // x[:1].numel()))
        return torch.cat([self._call(part) for part in x.split(size)]).to(x.device)

    @property
    def pace(self) -> float:
        """The seconds per row."""
        return self.seconds / max(1, self.evaluations)

    def noise(self, calls: float) -> float:
        """Return the variance of the outputs between two calls with the same rows, summed over the outputs.

        Some rows of the trial are called again, in another order; not more than ``calls``. It is zero for a model
        that always answers the same.
        """
        rows = self._again[: int(min(len(self._again), max(0.0, calls)))]
        if not len(rows):
            return 0.0
        again = self(rows.flip(0)).flip(0)
        return float((again - self.tried[: len(rows)].to(again)).square().sum(1).mean()) / 2

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_predict"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._predict, _ = _predictor(self.model)

    def _call(self, x: Tensor) -> Tensor:
        start = time.perf_counter()
        rows = self.schema.decode(x)
        try:
            y = self._predict(rows)
        except ModelError:
            raise
        except Exception as error:  # A user's model may raise anything; the message adds what it was called with.
            raise ModelError(
                f"model failed on {len(x)} rows, a {_type_of(rows)}: {type(error).__name__}: {error}"
                + self._gap_hint(x)
            ) from error
        columns = tuple(map(str, getattr(y, "columns", ())))
        y = _as_matrix(y, len(x), self._integers_allowed)
        if self.logits:
            y = _probabilities(y)
        self.evaluations += len(x)
        self.seconds += time.perf_counter() - start
        if not self.outputs:
            self.outputs, self._columns = y.shape[1], columns
        if y.shape[1] != self.outputs:
            raise ModelError(f"model returned {y.shape[1]} outputs per row, and {self.outputs} before")
        finite = np.isfinite(y).all(axis=1)
        if not finite.all():
            row = int(np.argmin(finite))
            raise ModelError(
                f"model returned a value that is not finite ({y[row]}) for {np.sum(~finite)} of {len(y)} rows, "
                "the first being " + (f"{x[row].tolist()} as encoded" if x.ndim == 2 else f"number {row}")
            )
        return torch.from_numpy(y)

    def _gap_hint(self, x: Tensor) -> str:
        names = self.schema.missing_categories(x)
        return f" (categories are missing in {names}; a category not seen at fit is missing)" if names else ""


def _type_of(rows: Any) -> str:
    """Return the name of a type, with the name of its library if several libraries have such a type."""
    library = type(rows).__module__.partition(".")[0]
    return f"{library} {type(rows).__name__}" if library in ("polars", "pyarrow") else type(rows).__name__


def given_outputs(predictions: Any, rows: int, outputs: int, *, logits: bool) -> Tensor:
    """Return a model's outputs that the user computed, (n, outputs), float64.

    Parameters
    ----------
    predictions : array-like
        What the model returned.
    rows : int
        The number of rows that were explained.
    outputs : int
        The number of outputs of the explainer.
    logits : bool
        Whether the model returns logits, which are turned into probabilities.

    Raises
    ------
    InputError
        If ``predictions`` has another shape, or values that are not finite.
    """
    try:
        y = _as_matrix(predictions, rows, integers_allowed=True)
    except ModelError as error:
        raise InputError(f"predictions is not what the model returns for X: {error}") from error
    if y.shape[1] != outputs:
        raise InputError(f"predictions has {y.shape[1]} outputs per row, and the explainer has {outputs}")
    if not np.isfinite(y).all():
        raise InputError("predictions has values that are not finite")
    return torch.from_numpy(_probabilities(y) if logits else y)


def _predictor(model: Any) -> tuple[Callable[[Table], Any], Scale | None]:
    """Return a function that calls the model with a batch of rows, and the scale of its outputs if it is known."""
    if isinstance(model, nn.Module):
        return _torch_predictor(model), None
    if not isinstance(model, type):
        function = _estimator(model)
        if function is not None:
            predict, scale = function
            return lambda rows: predict(rows.cpu().numpy() if isinstance(rows, Tensor) else rows), scale
        if callable(model):
            owner = getattr(model, "__self__", None)
            if getattr(model, "__name__", "") == "predict" and _is(is_classifier, owner):
                raise ModelError(
                    "model is a classifier's predict, which returns labels: pass the classifier itself"
                )
            return model, None
    what = f"the class {model.__name__}" if isinstance(model, type) else f"of type {type(model).__name__}"
    raise ModelError(
        f"model is {what}: pass a fitted estimator with predict_proba or predict, a "
        "torch.nn.Module, or a function from a batch of rows to an array (n,) or (n, outputs)"
    )


def _estimator(model: Any) -> tuple[Callable[[Table], Any], Scale | None] | None:
    """Return the same for a fitted estimator or booster; None for another object."""
    package = type(model).__module__.partition(".")[0]
    if package == "xgboost" and hasattr(model, "save_config"):
        return _xgboost_booster(model)
    if package == "lightgbm" and hasattr(model, "dump_model"):
        return _lightgbm_booster(model)
    _check_fitted(model)
    if hasattr(model, "predict_proba"):
        return model.predict_proba, "probabilities"
    if package == "catboost":
        return _catboost_booster(model)
    if hasattr(model, "predict"):
        if _is(is_classifier, model):
            raise ModelError(
                f"model is a {type(model).__name__}, which has no predict_proba: pass a function, such as "
                "model.decision_function, or calibrate it with sklearn.calibration.CalibratedClassifierCV"
            )
        return model.predict, "real" if _is(is_regressor, model) else None
    return None


def _is(kind: Callable[[Any], bool], model: Any) -> bool:
    """Return the answer of scikit-learn; False for an object that is not an estimator."""
    try:
        return kind(model)
    except AttributeError:
        return False


def _check_fitted(model: Any) -> None:
    fitted = True
    if isinstance(model, BaseEstimator) and hasattr(model, "fit"):
        try:
            check_is_fitted(model)
        except NotFittedError:
            fitted = False
    elif callable(getattr(model, "is_fitted", None)):  # CatBoost
        fitted = bool(model.is_fitted())
    if not fitted:
        raise NotFittedError(f"model is a {type(model).__name__} that is not fitted: call model.fit first")


def _torch_predictor(model: nn.Module) -> Callable[[Table], Any]:
    lock = threading.Lock()  # A second thread must not see the mode that the first one set.

    def predict(rows: Table) -> Any:
        like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
        if isinstance(rows, np.ndarray) and rows.ndim > 2:
            rows = torch.from_numpy(rows)
        elif not isinstance(rows, Tensor):
            try:
                frame = pd.DataFrame(as_pandas(rows))  # pandas converts pd.NA.
                rows = torch.as_tensor(frame.to_numpy(dtype=np.float64, copy=True, na_value=np.nan))
            except (TypeError, ValueError):
                raise ModelError(
                    "model is a torch.nn.Module, which takes numbers, but X has columns of text: encode them first"
                ) from None
        if rows.is_floating_point():
            rows = rows.to(like.dtype)
        with lock, torch.no_grad():
            training = [module for module in model.modules() if module.training]
            model.eval()
            try:
                return model(rows.to(like.device))
            finally:
                for module in training:  # Parts of a model may have been frozen, so each part is set on its own.
                    module.training = True

    return predict


def _xgboost_booster(model: Any) -> tuple[Callable[[Table], Any], Scale]:
    import xgboost

    objective = json.loads(model.save_config())["learner"]["objective"]["name"]
    if objective in ("multi:softmax", "binary:hinge"):
        raise ModelError(
            f"model was trained with {objective} and returns labels: use multi:softprob or binary:logistic"
        )

    def predict(rows: Table) -> Any:
        named = hasattr(rows, "columns")
        names = None if named else model.feature_names
        return model.predict(xgboost.DMatrix(rows, feature_names=names, enable_categorical=True))

    scales: dict[str, Scale] = {"binary:logistic": "probability", "multi:softprob": "probabilities"}
    return predict, scales.get(objective, "real")


def _lightgbm_booster(model: Any) -> tuple[Callable[[Table], Any], Scale]:
    objective = str(model.dump_model(num_iteration=1).get("objective", "")).split(" ")[0]
    scales: dict[str, Scale] = {"binary": "probability", "multiclass": "probabilities"}
    return model.predict, scales.get(objective, "real")


def _catboost_booster(model: Any) -> tuple[Callable[[Table], Any], Scale]:
    if str(model.get_all_params().get("loss_function")) in ("Logloss", "CrossEntropy", "MultiClass"):
        return lambda rows: model.predict(rows, prediction_type="Probability"), "probabilities"
    return model.predict, "real"


def _as_matrix(y: Any, rows: int, integers_allowed: bool) -> NDArray[np.float64]:
    if isinstance(y, Tensor):
        y = y.detach().cpu()
        y = (y.double() if y.is_floating_point() else y).numpy()  # NumPy has no bfloat16.
    if isinstance(y, list | tuple) and y and np.ndim(y[0]) >= 2:
        raise ModelError(
            f"model returned a {type(y).__name__} of {len(y)} arrays, one for each target: pass a function that "
            "picks or joins them, such as lambda X: model.predict_proba(X)[0]"
        )
    if np.ma.is_masked(y):
        raise ModelError("model returned a masked array with masked entries: return a number for each row")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = np.asarray(y)
    if array.dtype.kind not in ("fiu" if integers_allowed else "f"):
        what = f"{array.dtype} values" if array.ndim else f"a {type(y).__name__}"
        raise ModelError(
            f"model returned {what}, not floats: if they are class labels, pass a function that "
            "returns probabilities or scores; if they are counts, turn them into floats"
        )
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or len(array) != rows or array.shape[1] == 0:
        raise ModelError(
            f"model returned shape {np.shape(y)} for {rows} rows: expected ({rows},) or ({rows}, outputs)"
        )
    return np.array(array, dtype=np.float64, order="C")


def _probabilities(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the softmax of logits (n, outputs), or the sigmoid of a single one."""
    if logits.shape[1] == 1:
        return special.expit(logits)
    return special.softmax(logits, axis=1)


def _sum_to_one(y: Tensor) -> bool:
    whole = torch.ones(len(y), dtype=y.dtype, device=y.device)
    return y.shape[1] > 1 and bool((y >= 0).all()) and torch.allclose(y.sum(1), whole, atol=1e-4)


def _output_names(model: Any, columns: tuple[str, ...], outputs: int) -> tuple[str, ...]:
    """Return the columns of the frame that the model returns, or its classes, or numbers."""
    if len(set(columns)) == outputs:
        return columns
    try:
        names = tuple(str(name) for name in model.classes_)
    except (AttributeError, TypeError):
        names = ()
    return names if len(names) == outputs else tuple(f"output {k}" for k in range(outputs))
