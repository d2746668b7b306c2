"""Small problems to which tests fit value functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fastshapley.coalitions import enumerate_coalitions
from fastshapley.data.model_adapter import ModelFunction
from fastshapley.data.table_schema import Table, TableSchema
from fastshapley.players import Features, Groups
from fastshapley.training.run import Run
from fastshapley.value_functions import (
    Problem,
)
from fastshapley.value_functions.links import Link

RUN = Run(seed=0)


def problem(model: Any, X: Table, players: Features | Groups | None = None, link: Link = "identity") -> Problem:
    schema = TableSchema.of(X)
    x = schema.encode(X)
    return Problem(ModelFunction(model, schema, x), x, x, (players or Features()).bind(schema.names), link)


def normal_frame(rows: int = 60) -> pd.DataFrame:
    return pd.DataFrame(np.random.default_rng(0).normal(size=(rows, 4)), columns=list("abcd"))


def encoded(X: pd.DataFrame) -> Tensor:
    return torch.tensor(X.to_numpy())


def every(players: int, rows: int) -> Tensor:
    return enumerate_coalitions(players).expand(rows, -1, -1)
