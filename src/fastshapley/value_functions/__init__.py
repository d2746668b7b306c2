"""Value functions: what a model's output is when only some players are known."""

from fastshapley.value_functions.base_game import BaseGame, Problem
from fastshapley.value_functions.baseline import Baseline
from fastshapley.value_functions.conditional import Conditional
from fastshapley.value_functions.marginal import Marginal
from fastshapley.value_functions.missing import Missing
from fastshapley.value_functions.protocol import ValueFunction, evaluate, grand_values, null_values
from fastshapley.value_functions.removal import Removal
from fastshapley.value_functions.surrogate import Surrogate

__all__ = [
    "BaseGame",
    "Baseline",
    "Conditional",
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
