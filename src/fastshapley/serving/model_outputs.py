"""The model's own outputs: from what a model or a predictor returns to what a graph takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastshapley.export.graph import Array, Graph

_CLIP = 1e-7  # distance that probabilities keep from 0 and 1 before a logit or a logarithm, as in a fit
_TOLERANCE = 1e-4  # how far rounding to 32 bits may take probabilities
_LONGEST_SHAPE = 60  # characters of a shape that an error message shows


class OutputsError(Exception):
    """A model or a predictor returned something that cannot be the model's outputs."""


def model_outputs(returned: Any, rows: int, graph: Graph) -> Array:
    """Return outputs as a graph takes them, which is on the scale of the values.

    Logits become probabilities if the explained model returns logits. Then the link is applied.

    Parameters
    ----------
    returned : object
        What the model returned: an array or nested lists, one number or list of numbers per row.
    rows : int
        Number of rows.
    graph : Graph
        The graph.

    Returns
    -------
    outputs : ndarray of shape (rows, outputs)
        The outputs.

    Raises
    ------
    OutputsError
        If there are not as many finite numbers as the explainer has outputs, or they are not probabilities where
        the explained model returned probabilities.
    """
    count = len(graph.output_names)
    array = _numbers(returned)
    if array.ndim == 1 and count == 1:
        array = array[:, None]
    if array.shape != (rows, count):
        expected = f"({rows}, {count})" if count > 1 else f"({rows},) or ({rows}, 1)"
        hint = ""
        if array.shape in ((rows,), (rows, 1)) and graph.scale == "probabilities":
            hint = "; it must return the probabilities of all classes, not labels"
        raise OutputsError(f"returned shape {str(array.shape)[:_LONGEST_SHAPE]}, but {expected} is expected{hint}")
    finite = np.isfinite(array).all(1)
    if not finite.all():
        row = int(finite.argmin())
        raise OutputsError(f"returned {array[row].tolist()} for row {row}, which is not finite")
    return _linked(_probabilities(array) if graph.logits else array, graph)


def _numbers(returned: Any) -> NDArray[np.float64]:
    try:
        array = np.asarray(returned)
        if array.dtype.kind not in "fiu":
            raise ValueError(f"the first is {array.flat[0]!r:.40}" if array.size else "there are none")
        return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise OutputsError(f"did not return one number, or one list of numbers, per row: {error}") from None


def _probabilities(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the softmax of logits (n, outputs), or the sigmoid of a single one."""
    if logits.shape[1] == 1:
        with np.errstate(over="ignore"):
            return 1 / (1 + np.exp(-logits))
    powers = np.exp(logits - logits.max(1, keepdims=True))
    found: NDArray[np.float64] = powers / powers.sum(1, keepdims=True)
    return found


def _linked(outputs: NDArray[np.float64], graph: Graph) -> Array:
    if graph.scale != "real" or graph.link != "identity":
        outside = ((outputs < -_TOLERANCE) | (outputs > 1 + _TOLERANCE)).any(1)
        if graph.scale == "probabilities":
            outside |= np.abs(outputs.sum(1) - 1) > 10 * _TOLERANCE
        if outside.any():
            row = int(outside.argmax())
            raise OutputsError(
                f"returned {outputs[row].tolist()} for row {row}, but the explained model returned probabilities"
            )
    if graph.link == "identity":
        return outputs
    clipped = np.maximum(outputs, _CLIP)
    if graph.link == "log":
        return np.log(clipped)
    clipped = np.minimum(clipped, 1 - _CLIP)
    return np.log(clipped) - np.log1p(-clipped)
