"""Tests of players: how columns or pixels are assigned to the players of a coalition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from fastshapley.errors import InputError
from fastshapley.players import Features, Groups, Partition, Superpixels

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
    ids=[
        "names",
        "positions",
        "numpy",
        "names and positions",
        "no groups",
        "one group",
        "named like a member",
        "order",
    ],
)
def test_groups_are_bound_to_columns(
    groups: Mapping[str, Any], names: tuple[str, ...], owner: tuple[int, ...]
) -> None:
    assert Groups(groups).bind(COLUMNS) == Partition(names, owner)


def test_a_number_is_a_column_name_before_it_is_a_position() -> None:
    """In a frame with numbered columns, a number means the column of that name."""
    assert Groups({"both": [1, 2]}).bind(["1", "2", "3"]).owner == (0, 0, 1)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"job": ["job_cook"]}, r"'job' names 'job_cook', which is not a column; the columns are \['age'"),
        ({"job": [4]}, "names 4, which is not a column"),
        ({"job": [-1]}, "names -1, which is not a column"),
        ({"job": []}, "'job' must be a non-empty list"),
        ({"job": "age"}, "'job' must be a non-empty list of columns, got 'age'"),
        ({"job": 1}, "'job' must be a non-empty list of columns, got 1"),
        ({"a": ["age", "pay"], "b": ["pay"]}, "column 'pay' is in both 'a' and 'b'"),
        ({"a": ["age", 0]}, "column 'age' is in both 'a' and 'a'"),
        ({"age": ["job_clerk", "job_chef"]}, "'age' has the name of a column outside it"),
        ({("a", 1): ["age"]}, r"the group name \('a', 1\) must be a string"),
        ([["age", "pay"]], "Groups takes a mapping from names to columns"),
    ],
)
def test_groups_that_do_not_fit_the_columns_are_refused(groups: Mapping[str, Any], message: str) -> None:
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


# superpixels


@pytest.mark.parametrize(
    ("grid", "size", "rows", "columns"),
    [
        (2, (4, 4), 2, 2),
        (2, (4, 6), 2, 2),
        ((2, 3), (4, 6), 2, 3),
        ([4, 1], (4, 6), 4, 1),
        (np.int64(7), (14, 28), 7, 7),
        (1, (3, 5), 1, 1),
        (4, (4, 4), 4, 4),
        ((4, 6), (4, 6), 4, 6),
    ],
    ids=["square", "wide", "rows and columns", "a list", "numpy", "one player", "every pixel", "every pixel, wide"],
)
def test_a_grid_cuts_images_into_equal_rectangles(
    grid: Any, size: tuple[int, int], rows: int, columns: int
) -> None:
    height, width = size
    partition = Superpixels(grid=grid).bind_image((3, height, width))
    by_hand = [i * rows // height * columns + j * columns // width for i in range(height) for j in range(width)]
    assert partition.owner == tuple(by_hand)
    assert partition.grid == (rows, columns)
    assert partition.shape == (1, height, width)
    assert len(partition) == rows * columns
    assert partition.names[-1] == f"{rows - 1}, {columns - 1}"
    assert set(np.bincount(by_hand)) == {height * width // (rows * columns)}


@pytest.mark.parametrize(
    "segmentation",
    [
        np.array([[7, 7, -3], [900, 7, -3]]),
        np.array([[1, 1, 0], [200, 1, 0]], dtype=np.uint8),
        torch.tensor([[7, 7, 5], [9, 7, 5]]),
        [[1, 1, 0], [2, 1, 0]],
    ],
    ids=["gaps", "bytes", "tensor", "list"],
)
def test_segments_are_renumbered_in_order_without_gaps(segmentation: Any) -> None:
    partition = Superpixels(segmentation=segmentation).bind_image((1, 2, 3))
    assert partition.owner == (1, 1, 0, 2, 1, 0)
    assert partition.names == ("segment 0", "segment 1", "segment 2")
    assert partition.grid is None
    assert partition.shape == (1, 2, 3)


def test_a_segmentation_that_is_a_grid_has_the_owners_of_the_grid() -> None:
    grid = Superpixels(grid=2).bind_image((1, 4, 4))
    segments = Superpixels(segmentation=np.kron([[0, 1], [2, 3]], np.ones((2, 2), dtype=int)))
    assert segments.bind_image((1, 4, 4)).owner == grid.owner


@pytest.mark.parametrize(
    ("fill", "channels", "expected"),
    [
        (0.0, 1, (0.0,)),
        (0.5, 3, (0.5, 0.5, 0.5)),
        (2, 2, (2.0, 2.0)),
        ((0.1, 0.2, 0.3), 3, (0.1, 0.2, 0.3)),
        (np.array([1.0, 2.0]), 2, (1.0, 2.0)),
    ],
)
def test_hidden_pixels_take_the_fill_of_their_channel(
    fill: Any, channels: int, expected: tuple[float, ...]
) -> None:
    partition = Superpixels(grid=1, fill=fill).bind_image((channels, 2, 2))
    assert partition.fill == expected
    filling = partition.filling(torch.zeros(4, channels, 2, 2))
    assert filling.dtype == torch.float32
    assert torch.equal(filling, torch.tensor(expected).reshape(1, channels, 1, 1))


@pytest.mark.parametrize(
    ("superpixels", "message"),
    [
        (Superpixels(grid=3), r"3 x 3 does not divide images of 4 x 6; use one of \[2, 4\] rows and \[2, 3, 6\]"),
        (Superpixels(grid=(2, 4)), "2 x 4 does not divide images of 4 x 6"),
        (Superpixels(grid=8), "8 x 8 does not divide"),
        (Superpixels(grid=0), "grid is 0; use an integer or a pair"),
        (Superpixels(grid=-2), "grid is -2"),
        (Superpixels(grid=2.0), r"grid is 2\.0"),  # type: ignore[arg-type]
        (Superpixels(grid="2"), "grid is '2'"),  # type: ignore[arg-type]
        (Superpixels(grid=(2, 2, 2)), r"grid is \(2, 2, 2\)"),  # type: ignore[arg-type]
        (Superpixels(), "either a grid, such as Superpixels.grid=14., or a segmentation"),
        (Superpixels(2, np.zeros((4, 6), dtype=int)), "either a grid"),
        (
            Superpixels(segmentation=np.zeros((6, 4), dtype=int)),
            r"shape \(6, 4\) .* integers of shape \(4, 6\)",
        ),
        (Superpixels(segmentation=np.zeros(24, dtype=int)), r"shape \(24,\)"),
        (Superpixels(segmentation=np.zeros((2, 4, 6), dtype=int)), "the same for all images"),
        (Superpixels(segmentation=np.zeros((4, 6))), "dtype float64"),
        (Superpixels(segmentation=np.zeros((4, 6), dtype=bool)), "dtype bool"),
        (Superpixels(segmentation=torch.zeros(4, 6)), "dtype float32"),
        (
            Superpixels(grid=2, fill=(0.0, 0.0)),
            r"fill is \(0.0, 0.0\); use one number, or one for each of the 3 channels",
        ),
        (Superpixels(grid=2, fill=(0.0,)), "one for each of the 3 channels"),
        (Superpixels(grid=2, fill=[[0.0, 0.0, 0.0]]), "one for each of the 3 channels"),  # type: ignore[list-item]
        (Superpixels(grid=2, fill=float("nan")), "fill is nan"),
    ],
)
def test_superpixels_that_do_not_fit_the_images_are_refused(superpixels: Superpixels, message: str) -> None:
    with pytest.raises(InputError, match=message):
        superpixels.bind_image((3, 4, 6))


@pytest.mark.parametrize("lead", [(), (5,), (2, 3)])
@pytest.mark.parametrize(
    "superpixels",
    [
        Superpixels(grid=(2, 3)),
        Superpixels(grid=(4, 6)),
        Superpixels(grid=1),
        Superpixels(segmentation=np.arange(24).reshape(4, 6) % 5),
    ],
    ids=["grid", "every pixel", "one player", "segments"],
)
def test_mask_shows_the_pixels_of_the_players_in_a_coalition(
    superpixels: Superpixels, lead: tuple[int, ...]
) -> None:
    partition = superpixels.bind_image((3, 4, 6))
    s = torch.rand(*lead, len(partition), generator=torch.Generator().manual_seed(0)) < 0.5
    shown = partition.mask(s)
    assert shown.shape == (*lead, 1, 4, 6)
    for pixel, player in enumerate(partition.owner):
        assert torch.equal(shown[..., 0, pixel // 6, pixel % 6], s[..., player])


def test_mask_of_a_grid_equals_a_mask_written_by_hand() -> None:
    shown = Superpixels(grid=2).bind_image((1, 4, 4)).mask(torch.tensor([True, False, False, True]))
    by_hand = [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    assert torch.equal(shown, torch.tensor(by_hand).bool()[None])
