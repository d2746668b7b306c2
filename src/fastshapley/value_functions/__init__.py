"""Value functions: what a model's output is when only some players are known."""

from fastshapley.value_functions.protocol import (
    BaseGame,
    Problem,
    ValueFunction,
    evaluate,
    grand_values,
    null_values,
)
from fastshapley.value_functions.removal import Baseline, Marginal, Missing, Removal
from fastshapley.value_functions.surrogate import Surrogate

__all__ = [
    "BaseGame",
    "Baseline",
    "Marginal",
    "Missing",
    "Problem",
    "Removal",
    "Surrogate",
    "ValueFunction",
    "evaluate",
    "grand_values",
    "null_values",
]
