"""Tests of limits for what a file can make a process build."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from torch import nn

from fastshapley.errors import FileFormatError
from fastshapley.export.size_limits import at_most_parameters, check_sizes
from fastshapley.networks import Perceptron


@pytest.mark.parametrize("described", [11, [1, 11], {"layers": {"width": 11}}, [{"owner": [0, 11]}]], ids=str)
def test_a_size_that_is_larger_than_the_file_is_refused(described: Any) -> None:
    with pytest.raises(FileFormatError, match="it has 10 bytes, but names a size of 11"):
        check_sizes(described, 10)
    check_sizes(described, 11)


def test_seeds_texts_and_fractions_are_not_sizes() -> None:
    check_sizes({"seed": 2**60, "draws": 100, "kind": "surrogate", "tails": 99.5, "layers": None, "on": True}, 10)


def test_networks_of_more_weights_than_the_file_has_bytes_are_refused() -> None:
    with at_most_parameters(22):
        nn.Linear(10, 2)
    for build in (lambda: nn.Linear(10, 3), lambda: [nn.Linear(4, 2) for _ in range(3)]):
        with pytest.raises(FileFormatError, match="more weights"), at_most_parameters(22):
            build()
    nn.Linear(10, 3)


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_layers_without_weights_are_counted() -> None:
    with pytest.raises(FileFormatError, match="more weights"), at_most_parameters(1000):
        Perceptron(1, 1, 10**9, 0, "relu")


def test_networks_of_other_threads_are_not_counted() -> None:
    built = []
    with at_most_parameters(22):
        thread = threading.Thread(target=lambda: built.append(nn.Linear(10, 3)))
        thread.start()
        thread.join()
    assert len(built) == 1
