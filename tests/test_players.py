"""Players: how columns become what a coalition switches on or off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from fastshapley.errors import InputError
from fastshapley.players import Features, Groups, Partition

COLUMNS = ["age", "job_clerk", "job_chef", "pay"]


def test_each_feature_is_a_player() -> None:
    partition = Features().bind(COLUMNS)
    assert partition == Partition(tuple(COLUMNS), (0, 1, 2, 3))
    assert len(partition) == 4


@pytest.mark.parametrize(
    ("groups", "names", "owner"),
    [
        ({"job": ["job_clerk", "job_chef"]}, ("age", "job", "pay"), (0, 1, 1, 2)),
        ({"job": [1, 2]}, ("age", "job", "pay"), (0, 1, 1, 2)),
        ({"job": np.array([1, 2])}, ("age", "job", "pay"), (0, 1, 1, 2)),
        ({"job": ("job_clerk", 2)}, ("age", "job", "pay"), (0, 1, 1, 2)),
        ({}, tuple(COLUMNS), (0, 1, 2, 3)),
        ({"everything": COLUMNS}, ("everything",), (0, 0, 0, 0)),
        ({"age": ["age", "pay"]}, ("age", "job_clerk", "job_chef"), (0, 1, 2, 0)),
        ({"z": ["pay"], "a": ["job_chef", "age"]}, ("a", "job_clerk", "z"), (0, 1, 0, 2)),
    ],
    ids=["names", "positions", "numpy", "both", "no groups", "one group", "named like a member", "order"],
)
def test_groups(groups: Mapping[str, Any], names: tuple[str, ...], owner: tuple[int, ...]) -> None:
    assert Groups(groups).bind(COLUMNS) == Partition(names, owner)


def test_a_number_is_a_name_first() -> None:
    """A frame whose columns are numbered has its columns' numbers meant, not their positions."""
    assert Groups({"both": [1, 2]}).bind(["1", "2", "3"]).owner == (0, 0, 1)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"job": ["job_cook"]}, r"'job' names 'job_cook', which is not a column; there are \['age'"),
        ({"job": [4]}, "names 4, which is not a column"),
        ({"job": [-1]}, "names -1, which is not a column"),
        ({"job": []}, "'job' must be a non-empty list"),
        ({"job": "age"}, "'job' must be a non-empty list of columns, got 'age'"),
        ({"job": 1}, "'job' must be a non-empty list of columns, got 1"),
        ({"a": ["age", "pay"], "b": ["pay"]}, "column 'pay' is in both 'a' and 'b'"),
        ({"a": ["age", 0]}, "column 'age' is in both 'a' and 'a'"),
        ({"age": ["job_clerk", "job_chef"]}, "'age' has the name of a column outside it"),
    ],
)
def test_groups_that_make_no_partition(groups: Mapping[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Groups(groups).bind(COLUMNS)


def test_members_are_the_columns_of_a_player() -> None:
    partition = Groups({"job": ["job_clerk", "pay"]}).bind(COLUMNS)
    assert [partition.members(player) for player in range(len(partition))] == [[0], [1, 3], [2]]


@pytest.mark.parametrize("shape", [(3,), (5, 3), (2, 4, 3)])
def test_mask_shows_the_columns_of_the_players_in_a_coalition(shape: tuple[int, ...]) -> None:
    partition = Groups({"job": ["job_clerk", "pay"]}).bind(COLUMNS)
    s = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.5
    shown = partition.mask(s)
    assert shown.shape == (*shape[:-1], 4)
    for column, player in enumerate([0, 1, 2, 1]):
        assert torch.equal(shown[..., column], s[..., player])


def test_mask_of_features_is_the_coalition() -> None:
    s = torch.tensor([[True, False, True, False]])
    assert torch.equal(Features().bind(COLUMNS).mask(s), s)
