"""One-hot columns: which columns of a table encode the categories of one former column."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fastshapley.errors import InputError
from fastshapley.support.frames import as_pandas

_CHANCE = math.log(1e-6)  # largest log-probability with which independent columns may look one-hot
_FLAGS = {"is", "has", "have", "had", "was", "can", "flag", "any"}  # first words of the names of flags


def recognised(names: Sequence[str], x: NDArray[np.float64], others: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return the one-hot columns of each category.

    They hold 0 and 1, their names start alike up to a separator, and no row has two ones. This must not be chance:
    if columns with the same number of ones were independent, the probability must be below one in a million. Rows
    without a one mean that a category was dropped, or that there are gaps. Flags such as ``is_child`` and
    ``is_retired`` can look like this, too, so they are left alone. So can rare flags in rows that repeat each
    other, for which the probability is wrong, so most rows must have a one.

    Parameters
    ----------
    names : sequence of str
        The names of the columns.
    x : ndarray of shape (rows, columns)
        The columns.
    others : sequence of str
        Further names that groups must not have.

    Returns
    -------
    dict
        The names of the columns of each group.
    """
    sharing = _sharing(names, x)
    used = {*names, *others}
    taken: set[int] = set()
    found: dict[str, list[str]] = {}
    for prefix in sorted(sharing, key=len):  # The name of a category may contain separators.
        columns = [column for column in sharing[prefix] if column not in taken]
        longer = [other for other in sharing if other.startswith(prefix) and {*columns} <= {*sharing[other]}]
        name = max(longer, key=len)
        if len(columns) > 1 and _exclusive(name, x[:, columns]):
            taken.update(columns)
            found[f"{name} (one-hot)" if name in used else name] = [names[column] for column in columns]
    return found


def columns_of(X: Any) -> tuple[list[str], NDArray[np.float64]]:
    """Return the names of the numeric columns of a frame, and their values (rows, columns).

    Raises
    ------
    InputError
        If X is not a DataFrame, or has two columns with the same name.
    """
    X = as_pandas(X)
    if not isinstance(X, pd.DataFrame):
        raise InputError(
            f"X is a {type(X).__name__}, whose columns have no names: pass a DataFrame, or pass the encoder to "
            "Groups.from_transformer"
        )
    if not X.columns.is_unique:
        again = list(map(str, X.columns[X.columns.duplicated()].unique()))
        raise InputError(f"X has several columns with the same name: {again}. Rename them, or leave some out")
    keys = [key for key, dtype in X.dtypes.items() if pd.api.types.is_numeric_dtype(dtype) and dtype.kind != "c"]
    held = [X[key].to_numpy(dtype=np.float64, na_value=np.nan) for key in keys]
    return [str(key) for key in keys], np.stack(held).T if held else np.empty((len(X), 0))


def encoded(transformer: Any) -> dict[str, list[int]]:
    """Return the positions of the columns that a fitted transformer makes of each one-hot encoded column.

    Raises
    ------
    InputError
        If the transformer has no one-hot encoder.
    """
    from sklearn.utils.validation import check_is_fitted

    if not _has_encoder(transformer):
        raise InputError(
            f"transformer is a {type(transformer).__name__}: pass a fitted ColumnTransformer or OneHotEncoder, or "
            "a Pipeline that ends in one"
        )
    check_is_fitted(transformer)
    found: dict[str, list[int]] = {}
    for name, first, width in _blocks(transformer, None):
        if width:
            again = sum(known == name or known.startswith(f"{name} (") for known in found)
            found[f"{name} ({again + 1})" if again else name] = list(range(first, first + width))
    return found


def _sharing(names: Sequence[str], x: NDArray[np.float64]) -> dict[str, list[int]]:
    """Return the columns of 0 and 1 by the start of their names, up to a separator, if several share it."""
    sharing: dict[str, list[int]] = {}
    for column, name in enumerate(names):
        for separator in re.finditer(r"[\W_]+", name):
            if separator.start():
                sharing.setdefault(name[: separator.start()], []).append(column)
    several = {column for columns in sharing.values() if len(columns) > 1 for column in columns}
    binary = {column for column in several if ((x[:, column] == 0) | (x[:, column] == 1)).all()}
    kept = {prefix: [column for column in columns if column in binary] for prefix, columns in sharing.items()}
    return {prefix: columns for prefix, columns in kept.items() if len(columns) > 1}


def _exclusive(name: str, x: NDArray[np.float64]) -> bool:
    """Return whether no row has two ones, and this is not by chance."""
    if len(x) == 0:
        return False
    ones = x.sum(1)
    if ones.max() > 1:
        return False
    dropped = bool(ones.min() == 0)
    flags = name.rpartition("__")[2].lower() in _FLAGS  # The prefix of a ColumnTransformer does not count.
    if dropped and (flags or ones.mean() <= 0.5):
        return False
    none, one = 1.0, 0.0  # probabilities that a row of independent columns has no ones, and a single one
    for share in x.mean(0):
        none, one = none * (1 - share), one * (1 - share) + none * share
    return len(x) * math.log(none + one if dropped else one) < _CHANCE


def _has_encoder(transformer: Any) -> bool:
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder

    if isinstance(transformer, Pipeline):
        return _has_encoder(transformer.steps[-1][1])
    return isinstance(transformer, ColumnTransformer | OneHotEncoder)


def _blocks(transformer: Any, names: Sequence[str] | None) -> Iterator[tuple[str, int, int]]:
    """Yield the name of each encoded column, the position of its first new column, and their number.

    ``names`` are those of the columns that the transformer is given, if they are known.
    """
    if not _has_encoder(transformer):
        return
    if hasattr(transformer, "steps"):
        yield from _blocks(transformer.steps[-1][1], names)
    elif hasattr(transformer, "transformers_"):
        given = given_names(transformer, names)
        for name, part, columns in transformer.transformers_:
            place = transformer.output_indices_[name]
            if place.start == place.stop:  # A part without columns is not fitted.
                continue
            for block, first, width in _blocks(part, chosen_names(given, columns)):
                yield block, place.start + first, width
    else:
        start = 0
        for name, width in zip(given_names(transformer, names), _widths(transformer), strict=True):
            yield str(name), start, width
            start += width


def chosen_names(given: NDArray[Any], columns: Any) -> list[str]:
    """Return the names of the columns that a ColumnTransformer gives to one of its parts."""
    if isinstance(columns, slice):
        if isinstance(columns.start, str) or isinstance(columns.stop, str):
            columns = pd.Index(given).slice_indexer(columns.start, columns.stop)
        return [str(name) for name in given[columns]]
    asked = np.atleast_1d(np.asarray(columns, dtype=object))
    if all(isinstance(column, str) for column in asked):
        return list(asked)
    mask = isinstance(asked[0], bool | np.bool_)
    return [str(name) for name in given[asked.astype(bool if mask else int)]]


def given_names(transformer: Any, names: Sequence[str] | None) -> NDArray[Any]:
    """Return the names of the columns that a fitted transformer was given; earlier steps may have lost them."""
    own = getattr(transformer, "feature_names_in_", None)
    if own is not None:
        return np.asarray(own, dtype=object)
    count = transformer.n_features_in_
    known = names if names is not None and len(names) == count else [f"column {column}" for column in range(count)]
    return np.asarray(known, dtype=object)


def _widths(encoder: Any) -> list[int]:
    """Return the number of columns that a fitted OneHotEncoder makes of each column."""
    rare = getattr(encoder, "infrequent_categories_", [None] * len(encoder.categories_))
    dropped = [None] * len(encoder.categories_) if encoder.drop_idx_ is None else encoder.drop_idx_
    return [
        len(categories) - (0 if few is None else len(few) - 1) - (drop is not None)
        for categories, few, drop in zip(encoder.categories_, rare, dropped, strict=True)
    ]
