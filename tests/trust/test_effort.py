"""Tests of the limits on the work for error bars and for the report."""

from __future__ import annotations

import math
from typing import Any

import pytest
from games import Additive

from fastshapley.errors import InputError
from fastshapley.trust import effort
from fastshapley.trust.effort import Allowance
from fastshapley.trust.measurement import true_values


@pytest.mark.parametrize("name", ["calls", "seconds", "pace", "share"])
@pytest.mark.parametrize("value", [-1.0, math.nan])
def test_negative_numbers_raise(name: str, value: float) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(InputError, match=f"{name} is {value}: it must not be negative"):
        Allowance(**options)


def test_the_numbers_are_read_at_call_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    game = Additive(3)
    x = game.rows(20)
    monkeypatch.setattr(effort, "REPORT_EVALUATIONS", 40)
    for share, rows in ((1.0, 5), (0.2, 1)):  # Three players have 8 coalitions.
        found = true_values(game.shapley, game, x, torch.Generator(), Allowance(share=share))
        assert found is not None
        assert len(found.rows) == rows
