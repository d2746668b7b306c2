"""Encode the rows that other packages pass to a fitted explainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sklearn.utils.validation import check_is_fitted

if TYPE_CHECKING:
    from fastshapley.data.stream import Rows
    from fastshapley.explainer import FastSHAP


def encode_rows(explainer: FastSHAP, X: Any) -> Rows:
    """Encode rows as the network of a fitted explainer takes them.

    Parameters
    ----------
    explainer : FastSHAP
        A fitted explainer.
    X : DataFrame, array, tensor or dataset
        Rows or images, as the explainer takes them.

    Returns
    -------
    Rows
        The encoded rows, on the device of the network.

    Raises
    ------
    NotFittedError
        If the explainer is not fitted.
    InputError
        If the rows are not like those of the fit.
    """
    check_is_fitted(explainer)
    return explainer.schema_.encode(X).to(explainer.network_.scale.device)
