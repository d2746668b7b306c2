"""What scikit-learn expects of a transformer, and shap of an explainer."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import NotFittedError
from torch import Tensor

from fastshapley.data.schema import Schema
from fastshapley.data.table_schema import TableSchema
from fastshapley.errors import InputError
from fastshapley.explanation import attribution_names, squeeze

_KEPT = ("_metadata_request", "_sklearn_output_config")  # attributes that scikit-learn's own clone keeps


class _NoTableError(InputError, AttributeError):
    """An attribute of tables was asked of an explainer of images; ``hasattr`` is then False."""


class SklearnInterface(TransformerMixin, BaseEstimator):
    """The part of `FastSHAP` that scikit-learn and shap use."""

    masker = None  # an attribute of shap's explainers: here the value function says what absence means
    schema_: Schema
    value_function_: Any
    player_names_: tuple[str, ...]
    output_names_: tuple[str, ...]

    @abstractmethod
    def shap_values(self, X: Any) -> NDArray[np.float64]:
        """Return Shapley values, (n, players) for one output, (n, players, outputs) for several."""

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return the Shapley values as a table.

        Parameters
        ----------
        X : table
            The rows.

        Returns
        -------
        ndarray or DataFrame
            (n, players), or (n, players * outputs) for several outputs. The columns are those of
            `get_feature_names_out`. ``set_output(transform="pandas")`` makes it a DataFrame.
        """
        self._table_schema()
        values = self.shap_values(X)
        return values.reshape(len(values), math.prod(values.shape[1:]))  # there may be no rows

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[np.object_]:
        """Return the names of the columns of `transform`: ``shap_<player>``, or ``shap_<player>_<output>``.

        Parameters
        ----------
        input_features : array of str, optional
            The names of the columns. If the explainer was fitted to a table with names, they must be those.

        Returns
        -------
        ndarray of str
        """
        columns, players = self._table_schema().names, self.player_names_
        if input_features is not None:
            given = np.asarray(input_features, dtype=object)
            if given.shape != (self.n_features_in_,):
                raise InputError(
                    "input_features should have length equal to number of features "
                    f"({self.n_features_in_}), got shape {given.shape}"
                )
            if hasattr(self, "feature_names_in_") and not np.array_equal(given, self.feature_names_in_):
                raise InputError("input_features is not equal to feature_names_in_: leave it out")
            players = tuple(map(str, given)) if players == columns else players
        return np.array(attribution_names(players, self.output_names_), dtype=object)

    @property
    def n_features_in_(self) -> int:
        """The number of columns of the table."""
        return len(self._table_schema().columns)

    @property
    def feature_names_in_(self) -> NDArray[np.object_]:
        """The names of the columns, if the explainer was fitted to a table with names."""
        schema = self._table_schema()
        if schema.container != "frame":
            raise AttributeError("feature_names_in_: the explainer was not fitted to a table with names")
        return np.array([column.key for column in schema.columns], dtype=object)

    @property
    def expected_value(self) -> float | NDArray[np.float64]:
        """The base value: what is expected when nothing is known about a row; (outputs,) for several outputs."""
        self._check_fitted()
        null = getattr(self.value_function_, "null", None)
        if not isinstance(null, Tensor):
            raise AttributeError("expected_value: it differs from row to row; see base_values of explainer(X)")
        value = squeeze(null.cpu().double().numpy())
        return float(value) if value.ndim == 0 else value

    @property
    def feature_names(self) -> list[str]:
        """The names of the players."""
        self._check_fitted()
        return list(self.player_names_)

    def __sklearn_clone__(self) -> Self:
        # scikit-learn's clone would reset the fitted model that is to be explained.
        parameters = self.get_params(deep=False)
        new = type(self)(**{k: v if k == "model" else copy.deepcopy(v) for k, v in parameters.items()})
        for name in _KEPT:
            if hasattr(self, name):
                setattr(new, name, copy.deepcopy(getattr(self, name)))
        return new

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "network_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        tags.transformer_tags.preserves_dtype = []  # values are float64
        return tags

    def _check_fitted(self) -> None:
        if not hasattr(self, "network_"):
            raise NotFittedError("this FastSHAP is not fitted: call fit(X) first")

    def _table_schema(self) -> TableSchema:
        self._check_fitted()
        if not isinstance(self.schema_, TableSchema):
            raise _NoTableError(
                "this is for tables, but the explainer was fitted to images: use shap_values, which returns maps"
            )
        return self.schema_
