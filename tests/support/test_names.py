"""Tests of choosing names, and of the message about missing ones."""

from __future__ import annotations

import pytest

from fastshapley.errors import InputError
from fastshapley.support.names import chosen_outputs, lacking

NAMES = ["no", "perhaps", "yes"]


@pytest.mark.parametrize("outputs", [["maybe"], [3], [], "yes", ["yes", 2]], ids=str)
def test_outputs_that_do_not_exist_raise(outputs: list[str]) -> None:
    with pytest.raises(InputError, match="outputs"):
        chosen_outputs(NAMES, outputs)


def test_without_a_choice_all_outputs_are_chosen() -> None:
    assert chosen_outputs(NAMES, None) == (0, 1, 2)


def test_a_missing_column_is_named_with_a_similar_one() -> None:
    assert lacking("X", ["income"], ["incomes", "age"]) == "X lacks the column 'income' (renamed to 'incomes'?)"
    assert lacking("X", ["income", "job"], ["age"]) == "X lacks the columns 'income', 'job'"
