"""A client of `fastshapley serve`: a frame goes out, a `shap.Explanation` comes back.

It needs neither the explainer nor torch.
"""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import shap
from numpy.typing import NDArray

from fastshapley.errors import InputError, ServerError

_ROWS = 1000  # of one request


class Client:
    """Explains through a server.

    ``url`` is the server's, such as ``"http://127.0.0.1:8080"``; ``model`` is the name of one of its models, by
    default its only one; ``token`` is what it asks for; ``timeout`` are the seconds to wait for an answer.
    """

    def __init__(
        self, url: str, model: str | None = None, *, token: str | None = None, timeout: float = 30.0
    ) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise InputError(f"url must begin with http:// or https://, and is {url!r}")
        self.url, self.timeout, self._token = url.rstrip("/"), timeout, token
        self.model = self._only() if model is None else model

    def models(self) -> list[str]:
        """The names of the server's models."""
        found: list[str] = self._ask("/v1/models")["models"]
        return found

    def explain(self, X: Any, outputs: Any = None) -> shap.Explanation:
        """The explanation of rows: a DataFrame with the columns of the fit, or an array of numbers or images.

        Values are (n, features), or (n, features, outputs) for several outputs, as from the explainer itself, and
        of images on a grid (n, rows, columns, 1[, outputs]). ``outputs`` (n, outputs) are the model's own, which
        explainers of a marginal or baseline game need.
        """
        rows = _rows(X)
        if not rows:
            raise InputError("X has no rows")
        given = None if outputs is None else np.asarray(outputs, dtype=np.float64).reshape(len(rows), -1).tolist()
        answers = []
        for start in range(0, len(rows), _ROWS):
            body: dict[str, Any] = {"instances": rows[start : start + _ROWS]}
            if given is not None:
                body["outputs"] = given[start : start + _ROWS]
            answers.append(self._ask(f"/v1/models/{urllib.parse.quote(self.model)}:explain", body))
        return _explanation(X, answers)

    def predict(self, X: Any) -> NDArray[np.float64]:
        """What the values add up to with the base value: (n,), or (n, outputs)."""
        rows = _rows(X)
        found = []
        for start in range(0, len(rows), _ROWS):
            body = {"instances": rows[start : start + _ROWS]}
            found += self._ask(f"/v1/models/{urllib.parse.quote(self.model)}:predict", body)["predictions"]
        return np.asarray(found, dtype=np.float64)

    def _only(self) -> str:
        models = self.models()
        if len(models) != 1:
            raise InputError(f"pass model=: the server has {models}")
        return models[0]

    def _ask(self, path: str, body: Any = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        if self._token is not None:
            request.add_header("authorization", f"Bearer {self._token}")
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as response:
                found: dict[str, Any] = json.load(response)
                return found
        except urllib.error.HTTPError as error:
            with error:
                said = error.read().decode(errors="replace")
            with contextlib.suppress(ValueError, KeyError, TypeError):
                said = json.loads(said)["error"]
            kind = InputError if error.code == 400 else ServerError
            raise kind(f"{self.url} answered {error.code}: {said}") from None
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            raise ServerError(f"{self.url} does not answer: {getattr(error, 'reason', error)}") from error


def _rows(X: Any) -> list[Any]:
    """Rows as JSON has them, gaps as null."""
    if isinstance(X, pd.DataFrame):
        columns = [[_plain(value) for value in X[name].tolist()] for name in X.columns]
        names = [str(name) for name in X.columns]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    array = _array(X)
    if array.ndim < 2:
        raise InputError(f"X must be a table or images, and has the shape {array.shape}")
    rows: list[Any] = array.tolist()
    return rows if array.ndim > 2 else [[_plain(value) for value in row] for row in rows]


def _plain(value: Any) -> Any:
    if isinstance(value, str | bool | int):
        return value
    if value is None or pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value


def _explanation(X: Any, answers: Sequence[Mapping[str, Any]]) -> shap.Explanation:
    """One explanation of several answers."""
    rows = [row for answer in answers for row in answer["explanations"]]
    arrays = {key: np.asarray([row[key] for row in rows]) for key in rows[0]}
    names, outputs, grid = (answers[0].get(key) for key in ("feature_names", "output_names", "grid"))
    values, errors = arrays["shap_values"], arrays.get("error_std")
    if grid is not None:
        shape = (len(rows), *grid, 1, *values.shape[2:])
        values = values.reshape(shape)
        errors = None if errors is None else errors.reshape(shape)
    data, display = _data(X)
    if grid is not None:
        data = np.moveaxis(data, 1, -1)  # as plots have images
    about_columns = grid is not None or data.shape[1:] == (len(names or ()),)  # and not about groups of them
    return shap.Explanation(
        values=values,
        base_values=arrays["base_values"],
        data=data if about_columns else None,
        display_data=display if about_columns else None,
        feature_names=None if grid is not None else names,
        error_std=errors,
        output_names=outputs if outputs is not None and len(outputs) > 1 else None,
    )


def _data(X: Any) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Numbers, for plots to colour by, and what a person should read where columns hold something else."""
    if not isinstance(X, pd.DataFrame):
        return _array(X), None
    columns, plain = [], True
    for _, column in X.items():
        if pd.api.types.is_numeric_dtype(column.dtype):
            columns.append(column.to_numpy(dtype=np.float64, na_value=np.nan))
        else:
            plain = False
            codes = pd.factorize(column, sort=True)[0].astype(np.float64)
            columns.append(np.where(codes < 0, np.nan, codes))
    return np.column_stack(columns), None if plain else X.to_numpy(dtype=object)


def _array(X: Any) -> NDArray[Any]:
    return np.asarray(X.detach().cpu() if hasattr(X, "detach") else X)
