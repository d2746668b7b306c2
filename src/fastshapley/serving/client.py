"""A client of `fastshapley serve`: a frame goes out, a `shap.Explanation` comes back.

It needs neither the explainer nor torch.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fastshapley.errors import InputError, ServerError
from fastshapley.support.shap_import import shap

_ROWS, _BYTES = 1000, 2_000_000  # of one request


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
        if token is not None and not token.strip().isprintable():
            raise InputError("token has characters that are not printable: pass what the server's file has")
        self.url, self.timeout = url.rstrip("/"), timeout
        self._token = None if token is None else token.strip()  # of a file, it may end with a line
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
        answers = self._answers("explain", X, outputs)
        about = self._ask(f"/v2/models/{urllib.parse.quote(self.model)}")["parameters"]
        return _explanation(X, answers, about["columns"], about["categories"])

    def predict(self, X: Any, outputs: Any = None) -> NDArray[np.float64]:
        """What the values add up to with the base value: (n,), or (n, outputs)."""
        answers = self._answers("predict", X, outputs)
        return np.asarray([row for answer in answers for row in answer["predictions"]], dtype=np.float64)

    def _answers(self, action: str, X: Any, outputs: Any) -> list[dict[str, Any]]:
        """The server's answers to as many requests as it takes."""
        rows = _texts(_rows(X))
        if not rows:
            raise InputError("X has no rows")
        given = None
        if outputs is not None:
            array = np.asarray(outputs, dtype=np.float64)
            if len(array) != len(rows):
                raise InputError(f"outputs has {len(array)} rows where X has {len(rows)}")
            given = _texts(array.reshape(len(rows), -1).tolist())
        answers, start = [], 0
        while start < len(rows):
            end = start + _together(rows[start : start + _ROWS])
            answers += self._some(action, rows[start:end], None if given is None else given[start:end])
            start = end
        return answers

    def _some(self, action: str, rows: list[str], outputs: list[str] | None) -> list[dict[str, Any]]:
        """Of one request, or of two halves where a server takes less at once."""
        body = f'{{"instances": [{", ".join(rows)}]'
        body += "}" if outputs is None else f', "outputs": [{", ".join(outputs)}]}}'
        try:
            return [self._ask(f"/v1/models/{urllib.parse.quote(self.model)}:{action}", body)]
        except _TooLarge as error:
            if len(rows) == 1:
                raise ServerError(str(error)) from None
        half = len(rows) // 2
        first, second = (None, None) if outputs is None else (outputs[:half], outputs[half:])
        return self._some(action, rows[:half], first) + self._some(action, rows[half:], second)

    def _only(self) -> str:
        models = self.models()
        if len(models) != 1:
            raise InputError(f"pass model=: the server has {models}")
        return models[0]

    def _ask(self, path: str, body: str | None = None) -> dict[str, Any]:
        data = None if body is None else body.encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        if self._token is not None:
            request.add_header("authorization", f"Bearer {self._token}".encode().decode("latin-1"))
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as response:
                found: dict[str, Any] = json.load(response)
                return found
        except urllib.error.HTTPError as error:
            with error:
                said = error.read().decode(errors="replace")
            with contextlib.suppress(ValueError, KeyError, TypeError):
                said = json.loads(said)["error"]
            kind = {400: InputError, 413: _TooLarge}.get(error.code, ServerError)
            raise kind(f"{self.url} answered {error.code}: {said}") from None
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"{self.url} does not answer: {getattr(error, 'reason', error)}") from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ServerError(f"{self.url} answered with something else than JSON: {error}") from error


class _TooLarge(ServerError):
    """A request that was too large."""


def _rows(X: Any) -> list[Any]:
    """Rows as JSON has them, gaps as null."""
    if isinstance(X, pd.DataFrame):
        names = [str(name) for name in X.columns]
        if len(set(names)) < len(names):
            raise InputError(f"X has columns of the same name: {names}")
        columns = [[_plain(value) for value in column.tolist()] for _, column in X.items()]
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


def _texts(rows: list[Any]) -> list[str]:
    """Each row as JSON."""
    try:
        return [json.dumps(row, allow_nan=False) for row in rows]
    except (TypeError, ValueError) as error:
        raise InputError(f"X has something that JSON has no word for: {error}") from None


def _together(rows: list[str]) -> int:
    """How many of the first go into one request: one at least."""
    size = 0
    for number, row in enumerate(rows):
        size += len(row) + 2
        if size > _BYTES:
            return max(number, 1)
    return len(rows)


def _explanation(
    X: Any, answers: Sequence[Mapping[str, Any]], columns: Sequence[str], categories: Mapping[str, Any]
) -> shap.Explanation:
    """One explanation of several answers."""
    rows = [row for answer in answers for row in answer["explanations"]]
    arrays = {key: np.asarray([row[key] for row in rows]) for key in rows[0]}
    names, outputs, grid = (answers[0].get(key) for key in ("feature_names", "output_names", "grid"))
    values, errors = arrays["shap_values"], arrays.get("error_std")
    data, display = None, None
    if grid is not None:
        shape = (len(rows), *grid, 1, *values.shape[2:])
        values = values.reshape(shape)
        errors = None if errors is None else errors.reshape(shape)
    if not columns:
        data = _image(_array(X))
    elif names == columns:  # and not groups of them
        data, display = _data(X, columns, categories)
    return shap.Explanation(
        values=values,
        base_values=arrays["base_values"],
        data=data,
        display_data=display,
        feature_names=names if columns else None,
        error_std=errors,
        output_names=outputs if outputs is not None and len(outputs) > 1 else None,
    )


def _data(
    X: Any, columns: Sequence[str], categories: Mapping[str, Any]
) -> tuple[NDArray[np.float64], NDArray[Any] | None]:
    """Numbers, for plots to colour by, in the order of the fit, and what a person should read for categories."""
    if not isinstance(X, pd.DataFrame):
        X = pd.DataFrame(_array(X))
    named = X.set_axis(list(columns) if list(X.columns) == list(range(X.shape[1])) else map(str, X.columns), axis=1)
    numbers, texts = [], []
    for name in columns:
        column = named[name]
        if (known := categories[name]) is None:
            numbers.append(pd.to_numeric(column).to_numpy(dtype=np.float64, na_value=np.nan))
            texts.append(numbers[-1].astype(object))  # plots take a column for one of names if it holds text
        else:
            codes = {category: float(code) for code, category in enumerate(known)}
            plain = [_plain(value) for value in column.tolist()]
            numbers.append(np.array([codes.get(value, np.nan) for value in plain]))
            texts.append(np.array(["missing" if value is None else str(value) for value in plain], dtype=object))
    coded = any(known is not None for known in categories.values())
    return np.column_stack(numbers), np.column_stack(texts) if coded else None


def _image(images: NDArray[Any]) -> NDArray[Any]:
    """Channels last, and between 0 and 1, as plots have images."""
    images = np.moveaxis(images, 1, -1)
    if images.min() < 0 or images.max() > 1:
        images = (images - images.min()) / max(float(images.max() - images.min()), 1e-12)
    return images


def _array(X: Any) -> NDArray[Any]:
    return np.asarray(X.detach().cpu() if hasattr(X, "detach") else X)
