"""Tests of saving and loading network weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fastshapley.errors import FileFormatError
from fastshapley.networks import Perceptron
from fastshapley.networks.weights import layers_of, load_weights, with_prefix


def test_only_layers_of_the_library_have_a_configuration() -> None:
    body = Perceptron(3, 2, 1, 4, "relu")
    assert layers_of(body) == {"inputs": 3, "outputs": 2, "layers": 1, "width": 4, "activation": "relu"}
    users = nn.Linear(3, 2)
    users.config = {"inputs": 3}  # type: ignore[assignment]
    assert layers_of(users) is None


def test_weights_are_loaded() -> None:
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    load_weights(second, first.state_dict(), "network")
    torch.testing.assert_close(second.state_dict(), first.state_dict())


def test_the_error_for_weights_of_another_network_names_the_argument() -> None:
    with pytest.raises(FileFormatError, match="value_function is not the network that the file has weights of"):
        load_weights(nn.Linear(3, 2), nn.Linear(2, 2).state_dict(), "value_function")


def test_with_prefix_selects_tensors_and_removes_the_prefix() -> None:
    tensors = {"network.a": torch.ones(1), "network.b.c": torch.zeros(1), "networks": torch.zeros(2)}
    assert with_prefix(tensors, "network").keys() == {"a", "b.c"}


def test_a_tensor_that_a_file_lacks_is_an_error_of_the_file() -> None:
    tensors = with_prefix({"network.a": torch.ones(1)}, "network")
    assert tensors.get("b") is None
    with pytest.raises(FileFormatError, match="the file is damaged: it lacks the tensor 'b'"):
        tensors["b"]
