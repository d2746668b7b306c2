"""A client of `fastshapley serve`. It needs neither the explainer nor torch."""

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
from fastshapley.support.frames import as_pandas
from fastshapley.support.shap_import import shap

_MAX_ROWS = 1000  # rows of one request
_MAX_BYTES = 2_000_000  # size of one request's rows as JSON, in bytes
_REDIRECTS = (301, 302, 303, 307, 308)


class Client:
    """Explain rows with a model on a server.

    Parameters
    ----------
    url : str
        Address of the server, such as ``"http://127.0.0.1:8080"``.
    model : str, optional
        Name of the model. It can be left out if the server has only one.
    token : str, optional
        Bearer token that the server asks for.
    timeout : float, default=30.0
        Time to wait for an answer, in seconds.

    Raises
    ------
    InputError
        If ``url`` or ``token`` is not valid, or ``model`` is left out and the server has several models.
    ServerError
        If the server does not answer, or redirects to another address: no redirect is followed.

    Examples
    --------
    >>> client = Client("http://127.0.0.1:8080")  # doctest: +SKIP
    >>> explanation = client.explain(X)  # doctest: +SKIP
    """

    def __init__(
        self, url: str, model: str | None = None, *, token: str | None = None, timeout: float = 30.0
    ) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise InputError(f"url must begin with http:// or https://, but is {url!r}")
        if token is not None and not token.strip().isprintable():
            raise InputError("token has characters that are not printable: pass the content of the token file")
        self.url, self.timeout = url.rstrip("/"), timeout
        self._token = None if token is None else token.strip()  # The content of a file may end with a newline.
        self.model = self._only_model() if model is None else model

    def models(self) -> list[str]:
        """Return the names of the server's models."""
        names: list[str] = self._ask("/v1/models")["models"]
        return names

    def explain(self, X: Any, outputs: Any = None) -> shap.Explanation:
        """Explain rows.

        Parameters
        ----------
        X : DataFrame or array-like
            A pandas or polars DataFrame or a pyarrow Table with the columns of the fit, an array of shape
            (n, columns), or images of shape (n, channels, height, width).
        outputs : array-like of shape (n, outputs), optional
            The model's outputs on the scale of the values. Explainers of a marginal or baseline game need them.
            For a conditional game they are optional: rows without them, or with NaN, sum to the surrogate's output.

        Returns
        -------
        explanation : shap.Explanation
            Values of shape (n, features), or (n, features, outputs) for several outputs. For images on a grid,
            values have shape (n, rows, columns, 1[, outputs]). ``sums_to`` says whose output they sum to:
            ``"model"``, ``"surrogate"`` or ``"game"``, or ``"mixed"`` if rows differ in that.

        Raises
        ------
        InputError
            If the server does not take these rows.
        ServerError
            If the server does not answer as it should.
        """
        X = as_pandas(X)
        answers = self._answers("explain", X, outputs)
        about = self._ask(f"/v2/models/{urllib.parse.quote(self.model)}")["parameters"]
        return _explanation(X, answers, about["columns"], about["categories"])

    def predict(self, X: Any, outputs: Any = None) -> NDArray[np.float64]:
        """Return predictions, which are base values plus Shapley values.

        Parameters
        ----------
        X : DataFrame or array-like
            Rows, as in `explain`.
        outputs : array-like of shape (n, outputs), optional
            The model's outputs, as in `explain`.

        Returns
        -------
        predictions : ndarray of shape (n,) or (n, outputs)
            The predictions.
        """
        answers = self._answers("predict", as_pandas(X), outputs)
        return np.asarray([row for answer in answers for row in answer["predictions"]], dtype=np.float64)

    def _answers(self, action: str, X: Any, outputs: Any) -> list[dict[str, Any]]:
        """Send rows in as many requests as needed, and return the answers."""
        rows = _texts(_rows(X))
        if not rows:
            raise InputError("X has no rows")
        output_texts = None
        if outputs is not None:
            array = np.asarray(outputs, dtype=np.float64)
            if len(array) != len(rows):
                raise InputError(f"outputs has {len(array)} rows, but X has {len(rows)}")
            numbers = array.reshape(len(rows), -1).tolist()
            output_texts = _texts([[_plain(number) for number in row] for row in numbers], "outputs")
        answers, start = [], 0
        while start < len(rows):
            end = start + _count_in_request(rows[start : start + _MAX_ROWS])
            part = None if output_texts is None else output_texts[start:end]
            answers += self._send(action, rows[start:end], part)
            start = end
        return answers

    def _send(self, action: str, rows: list[str], outputs: list[str] | None) -> list[dict[str, Any]]:
        """Send rows in one request, or in two halves if the server refuses it as too large."""
        body = f'{{"instances": [{", ".join(rows)}]'
        body += "}" if outputs is None else f', "outputs": [{", ".join(outputs)}]}}'
        try:
            return [self._ask(f"/v1/models/{urllib.parse.quote(self.model)}:{action}", body)]
        except _TooLargeError as error:
            if len(rows) == 1:
                raise ServerError(str(error)) from None
        half = len(rows) // 2
        first, second = (None, None) if outputs is None else (outputs[:half], outputs[half:])
        return self._send(action, rows[:half], first) + self._send(action, rows[half:], second)

    def _only_model(self) -> str:
        models = self.models()
        if len(models) != 1:
            raise InputError(f"the server has the models {models}: pass model=")
        return models[0]

    def _ask(self, path: str, body: str | None = None) -> dict[str, Any]:
        data = None if body is None else body.encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        if self._token is not None:
            request.add_header("authorization", f"Bearer {self._token}".encode().decode("latin-1"))
        try:
            with urllib.request.build_opener(_NoRedirects).open(request, timeout=self.timeout) as response:
                answer: dict[str, Any] = json.load(response)
                return answer
        except urllib.error.HTTPError as error:
            if error.code in _REDIRECTS:
                error.close()
                target = error.headers.get("location")
                raise ServerError(
                    f"{self.url} redirects to {target!r}: if you trust it, pass its address"
                ) from None
            with error:
                reason = error.read().decode(errors="replace")
            with contextlib.suppress(ValueError, KeyError, TypeError):
                reason = json.loads(reason)["error"]
            kind = {400: InputError, 413: _TooLargeError}.get(error.code, ServerError)
            raise kind(f"{self.url} answered {error.code}: {reason}") from None
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"{self.url} does not answer: {getattr(error, 'reason', error)}") from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ServerError(f"{self.url} sent an answer that is not JSON: {error}") from error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follow no redirect: the token and the rows are only for the server that the user named."""

    def redirect_request(self, *arguments: Any) -> None:
        """Return no request, so that the redirect becomes an error."""


class _TooLargeError(ServerError):
    """The server refused a request because it is too large."""


def _rows(X: Any) -> list[Any]:
    """Return rows as JSON values, with None for missing values."""
    if isinstance(X, pd.DataFrame):
        names = [str(name) for name in X.columns]
        if len(set(names)) < len(names):
            raise InputError(f"X has several columns with the same name: {names}")
        columns = [[_plain(value) for value in column.tolist()] for _, column in X.items()]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    array = _array(X)
    if array.ndim < 2:
        raise InputError(f"X must be a table or images, but has shape {array.shape}")
    rows: list[Any] = array.tolist()
    return rows if array.ndim > 2 else [[_plain(value) for value in row] for row in rows]


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, str | bool | int):
        return value
    if value is None or pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value


def _texts(rows: list[Any], name: str = "X") -> list[str]:
    """Return each row as JSON text. ``name`` is that of the rows in error messages."""
    try:
        return [json.dumps(row, allow_nan=False) for row in rows]
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} has a value that JSON cannot hold: {error}") from None


def _count_in_request(rows: list[str]) -> int:
    """Return how many of the first rows fit into one request, which is at least one."""
    size = 0
    for number, row in enumerate(rows):
        size += len(row) + 2
        if size > _MAX_BYTES:
            return max(number, 1)
    return len(rows)


def _explanation(
    X: Any, answers: Sequence[Mapping[str, Any]], columns: Sequence[str], categories: Mapping[str, Any]
) -> shap.Explanation:
    """Join several answers into one explanation."""
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
    elif names == columns:  # The players are columns, not groups of columns.
        data, display = _data(X, columns, categories)
    explanation = shap.Explanation(
        values=values,
        base_values=arrays["base_values"],
        data=data,
        display_data=display,
        feature_names=names if columns else None,
        error_std=errors,
        output_names=outputs if outputs is not None and len(outputs) > 1 else None,
    )
    sums = {answer.get("sums_to") for answer in answers}  # The first servers do not say it.
    explanation.sums_to = sums.pop() if len(sums) == 1 else "mixed"
    return explanation


def _data(
    X: Any, columns: Sequence[str], categories: Mapping[str, Any]
) -> tuple[NDArray[np.float64], NDArray[Any] | None]:
    """Return numbers for plots to colour by, in the order of the fit, and texts to show for categories."""
    if not isinstance(X, pd.DataFrame):
        X = pd.DataFrame(_array(X))
    named = X.set_axis(list(columns) if list(X.columns) == list(range(X.shape[1])) else map(str, X.columns), axis=1)
    numbers, texts = [], []
    for name in columns:
        column = named[name]
        if (known := categories[name]) is None:
            numbers.append(pd.to_numeric(column).to_numpy(dtype=np.float64, na_value=np.nan))
            texts.append(numbers[-1].astype(object))  # As text, plots would treat the column as categorical.
        else:
            codes = {category: float(code) for code, category in enumerate(known)}
            plain = [_plain(value) for value in column.tolist()]
            numbers.append(np.array([codes.get(value, np.nan) for value in plain]))
            texts.append(np.array(["missing" if value is None else str(value) for value in plain], dtype=object))
    coded = any(known is not None for known in categories.values())
    return np.column_stack(numbers), np.column_stack(texts) if coded else None


def _image(images: NDArray[Any]) -> NDArray[Any]:
    """Return images with channels last and values between 0 and 1, as plots need them."""
    images = np.moveaxis(images, 1, -1)
    if images.min() < 0 or images.max() > 1:
        images = (images - images.min()) / max(float(images.max() - images.min()), 1e-12)
    return images


def _array(X: Any) -> NDArray[Any]:
    """Return an array, also from a torch tensor."""
    return np.asarray(X.detach().cpu() if hasattr(X, "detach") else X)
