"""Tests of the common behaviour of network builders."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from problems import QUICK
from torch import Tensor, nn

from fastshapley.data.stream import Rows
from fastshapley.data.table_schema import TableSchema
from fastshapley.errors import FileFormatError, InputError
from fastshapley.networks.network_builder import ExplainerPlan, Parts, copy_of_given
from fastshapley.networks.table_builder import TableBuilder
from fastshapley.players import Features

SCHEMA = TableSchema.of(np.zeros((2, 3)))
PLAN = ExplainerPlan(SCHEMA, Features().bind(SCHEMA.names), 3, 2, QUICK)


class Given(TableBuilder):
    """A builder that uses the given body."""

    def __init__(self, body: nn.Module) -> None:
        self.body = body

    def explainer_parts(self, x: Rows, plan: ExplainerPlan) -> Parts:
        return Parts(nn.Identity(), self.body)


class Broken(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        raise ZeroDivisionError("too few rows")


def test_a_network_has_the_players_outputs_and_classes_of_the_plan() -> None:
    network = Given(nn.Linear(3, 6)).explainer(torch.zeros(5, 3), PLAN)
    assert network(torch.zeros(5, 3)).shape == (5, 3, 2)
    assert (network.players, network.outputs, network.classes) == (3, 2, "free")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (Broken(), r"must be a module from \(b, 3\) to \(b, 6\): too few rows"),
        (nn.Linear(3, 5), r"expected \(2, 6\)"),
    ],
    ids=["raises", "too few values"],
)
def test_a_body_that_does_not_fit_is_refused_at_build_time(body: nn.Module, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Given(body).explainer(torch.zeros(5, 3), PLAN)


def test_mirrored_classes_need_one_value_per_player() -> None:
    assert PLAN.body_outputs == 6
    assert ExplainerPlan(SCHEMA, PLAN.partition, 3, 2, QUICK, "mirror").body_outputs == 3


def test_a_network_that_is_passed_for_a_file_is_copied() -> None:
    given = nn.Linear(2, 2)
    copy = copy_of_given(given, "network")
    assert copy is not given
    torch.testing.assert_close(copy.state_dict(), given.state_dict())
    with pytest.raises(FileFormatError, match="pass it as network="):
        copy_of_given(None, "network")
