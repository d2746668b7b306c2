"""Encoded rows of a table with every kind of column, and an encoder that is fitted to them."""

from __future__ import annotations

import torch
from torch import nan

from fastshapley.networks import TableEncoder

# The columns are: number, constant, 3 categories, number with gaps, 2 categories.
CATEGORIES = [0, 0, 3, 0, 2]
ROWS = torch.tensor(
    [[1.0, 7.0, 0.0, 2.0, 1.0], [3.0, 7.0, 2.0, nan, 0.0], [5.0, 7.0, nan, 4.0, 1.0]], dtype=torch.float64
)


def fitted_encoder() -> TableEncoder:
    """Return an encoder that is fitted to the rows."""
    torch.manual_seed(0)
    return TableEncoder.fitted(ROWS, CATEGORIES)
