"""Donors and fitted samplers for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from problems import QUICK
from torch import Tensor

from fastshapley.data.table_schema import TableSchema
from fastshapley.players import Features, Groups
from fastshapley.training.loop import Training
from fastshapley.training.run import Run
from fastshapley.value_functions.samplers import ConditionalSampler, Donors, SamplerRows


def donors_of(X: pd.DataFrame, players: Features | Groups | None = None, outputs: Tensor | None = None) -> Donors:
    """Donors in the order of the table; by default the output is the first column."""
    schema = TableSchema.of(X)
    rows = schema.encode(X)
    outputs = rows[:, :1].nan_to_num() if outputs is None else outputs
    return Donors(rows, outputs, schema, (players or Features()).bind(schema.names))


def fitted(sampler: ConditionalSampler, donors: Donors, seed: int = 0, steps: int = 300) -> Any:
    """The sampler after a short fit to the donors' own rows; if there are enough, 64 of them are held out."""
    training = Training(steps=steps, batch_size=128, learning_rate=5e-3, schedule="cosine")
    recipe = replace(QUICK, surrogate=(training,))
    learnt = donors.rows[64:] if len(donors) >= 128 else donors.rows
    sampler.fit(donors, SamplerRows(learnt, donors.rows[:64]), recipe, Run(seed=seed))
    return sampler


def mixed_table(rows: int = 200, seed: int = 0) -> pd.DataFrame:
    """Dependent columns: numbers, gaps, whole numbers, few values, booleans, categories, a constant, only gaps."""
    generator = np.random.default_rng(seed)
    base = generator.normal(size=rows)
    number = base + 0.5 * generator.normal(size=rows)
    gaps = np.where(generator.random(rows) < 0.2, np.nan, base - generator.normal(size=rows))
    return pd.DataFrame(
        {
            "number": number,
            "gaps": gaps,
            "whole": np.round(1000 * number),
            "few": np.clip(np.round(base), -2, 2),
            "flag": base > 0.3,
            "city": pd.Series(np.array(["a", "b", "c"])[np.digitize(base, [-0.5, 0.5])]).where(
                generator.random(rows) > 0.1
            ),
            "constant": 7.0,
            "nothing": np.full(rows, np.nan),
        }
    )


def normal_table(covariance: Tensor, rows: int, seed: int = 0) -> pd.DataFrame:
    """Normal rows with means 10, 20, ... and a covariance."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(rows, len(covariance), generator=generator, dtype=torch.float64)
    x = noise @ torch.linalg.cholesky(covariance).T + 10 * torch.arange(1, len(covariance) + 1)
    return pd.DataFrame(x.numpy(), columns=[f"x{j}" for j in range(len(covariance))])


def all_donors(donors: Donors, rows: int = 1) -> Tensor:
    """The numbers of all donors, for each of some rows."""
    return torch.arange(len(donors)).expand(rows, -1)
