"""Tests of converting maps to values per player."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from image_networks import SIZE, STRIPES, X, by_player, normal, players, segments
from torch import nn
from torch.nn import functional

from fastshapley.networks.image_maps import MapsOf, ToPlayers
from fastshapley.players import Partition

pytestmark = pytest.mark.usefixtures("seeded")


@pytest.mark.parametrize("maps", [(8, 8), (16, 8), (4, 2)])
def test_finer_maps_are_averaged_within_each_player_of_a_grid(maps: tuple[int, int]) -> None:
    made, grid = normal(2, 3, *maps), (4, 2)
    values = by_player(ToPlayers(players(grid))(made), 8)
    height, width = maps[0] // 4, maps[1] // 2
    for player in range(8):
        i, j = player // 2 * height, player % 2 * width
        by_hand = made[:, :, i : i + height, j : j + width].mean((2, 3))
        torch.testing.assert_close(values[:, player], by_hand)


def test_coarser_maps_are_interpolated_between_their_centres() -> None:
    """From 2 to 4 values: the ends are kept, and the others are 1/4 and 3/4 of the way."""
    weight = torch.tensor([[1, 0], [0.75, 0.25], [0.25, 0.75], [0, 1]])
    made = normal(2, 3, 2, 2)
    by_hand = torch.einsum("ih,bohw,jw->bijo", weight, made, weight)
    torch.testing.assert_close(by_player(ToPlayers(players(4))(made), 16), by_hand.flatten(1, 2))


def test_the_value_of_a_segment_is_the_mean_of_its_pixels() -> None:
    made = normal(2, 3, SIZE, SIZE)
    values = by_player(ToPlayers(segments())(made), 3)
    for player, number in enumerate((0, 10, 20)):
        inside = torch.from_numpy(np.equal(STRIPES, number))
        torch.testing.assert_close(values[:, player], made[:, :, inside].mean(2))


def test_coarser_maps_are_interpolated_to_pixels_for_segments() -> None:
    made = normal(2, 3, 4, 4)
    pixels = functional.interpolate(made, (SIZE, SIZE), mode="bilinear")
    by_hand = torch.stack(
        [pixels[:, :, torch.from_numpy(np.equal(STRIPES, number))].mean(2) for number in (0, 10, 20)], 1
    )
    torch.testing.assert_close(by_player(ToPlayers(segments())(made), 3), by_hand)


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (3, 5), (8, 8), (16, 16), (2, 16)])
@pytest.mark.parametrize("partition", [players(4), players((2, 8)), players(1), segments()])
def test_a_constant_map_gives_every_player_its_value(partition: Partition, size: tuple[int, int]) -> None:
    made = torch.tensor([2.0, -3.0]).reshape(1, 2, 1, 1).expand(1, 2, *size)
    values = by_player(ToPlayers(partition)(made), len(partition))
    torch.testing.assert_close(values, torch.tensor([2.0, -3.0]).expand(1, len(partition), 2))


def test_a_grid_and_equal_segments_get_equal_values_from_full_size_maps() -> None:
    grid = players(2)
    same = segments(np.reshape(grid.owner, (SIZE, SIZE)))
    made = normal(2, 3, SIZE, SIZE)
    torch.testing.assert_close(ToPlayers(grid)(made), ToPlayers(same)(made))


def test_a_custom_module_may_return_maps_or_values() -> None:
    maps, values = nn.Conv2d(3, 2, 1), nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 32))
    partition = players(4)
    torch.testing.assert_close(MapsOf(maps, partition)(X), ToPlayers(partition)(maps(X)))
    assert torch.equal(MapsOf(values, partition)(X), values(X))


def test_a_map_that_is_finer_in_only_one_direction_is_averaged_in_that_direction() -> None:
    made = torch.zeros(1, 1, 4, 8)
    made[..., 0] = 1
    torch.testing.assert_close(ToPlayers(players((8, 1)))(made), torch.full((1, 8), 1 / 8))
