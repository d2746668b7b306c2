"""Tests of U-Nets."""

from __future__ import annotations

import numpy as np
import pytest
from image_networks import X, dead, normal, players, segments

from fastshapley import UNet
from fastshapley.players import Partition

pytestmark = pytest.mark.usefixtures("seeded")


@pytest.mark.parametrize(
    ("grid", "size"),
    [
        (1, (8, 8)),
        (2, (8, 8)),
        (4, (8, 8)),
        (8, (8, 8)),
        (1, (28, 28)),
        (2, (28, 28)),
        (4, (28, 28)),
        (7, (28, 28)),
        (14, (28, 28)),
        (14, (14, 14)),
        (7, (56, 56)),
        (14, (112, 112)),
        ((2, 8), (8, 8)),
        ((1, 14), (28, 28)),
        ((7, 2), (14, 28)),
        ((4, 14), (20, 28)),
        (3, (9, 15)),
    ],
    ids=str,
)
def test_a_unet_gives_each_player_a_value_and_every_parameter_a_gradient(
    grid: int | tuple[int, int], size: tuple[int, int]
) -> None:
    partition = players(grid, size)
    x = normal(2, 3, *size)
    network = UNet().build(None, partition, 2, x)
    assert network(x).shape == (2, 2 * len(partition))
    assert network(x[:1]).shape == (1, 2 * len(partition))
    assert dead(network, x) == []


@pytest.mark.parametrize(
    "partition", [segments(), segments(np.arange(64).reshape(8, 8)), segments(np.zeros((8, 8), int))]
)
def test_a_unet_accepts_segments(partition: Partition) -> None:
    network = UNet().build(None, partition, 2, X)
    assert network(X).shape == (len(X), 2 * len(partition))
    assert dead(network, X) == []


@pytest.mark.parametrize(("width", "grid"), [(4, 2), (4, 1), (8, 1)])
def test_a_narrow_unet_explains_one_image(width: int, grid: int) -> None:
    assert UNet(width).build(None, players(grid), 2, X)(X[:1]).shape == (1, 2 * grid**2)


@pytest.mark.parametrize(("width", "grid"), [(4, 2), (4, 1), (8, 1)])
def test_every_parameter_of_a_narrow_unet_gets_a_gradient(width: int, grid: int) -> None:
    assert dead(UNet(width).build(None, players(grid), 2, X), X) == []
