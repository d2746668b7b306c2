"""Tests of the registry of data kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fastshapley.data.image_schema import ImageSchema
from fastshapley.data.kinds import SCHEMAS, schema_from_dict, schema_of
from fastshapley.data.players import Players
from fastshapley.data.table_schema import TableSchema
from fastshapley.players import Features, Groups, Superpixels

FRAME = pd.DataFrame({"age": [39, 50], "job": ["clerk", None]})


@pytest.mark.parametrize(
    ("X", "players", "schema"),
    [
        (FRAME, None, TableSchema),
        (FRAME, Features(), TableSchema),
        (FRAME, Groups({"both": ["age", "job"]}), TableSchema),
        (torch.zeros(2, 1, 4, 4), Superpixels(grid=2), ImageSchema),
    ],
    ids=["default", "features", "groups", "superpixels"],
)
def test_the_type_of_the_players_determines_the_kind(X: Any, players: Players | None, schema: type) -> None:
    assert type(schema_of(X, players)) is schema


def test_the_players_of_every_kind_are_registered() -> None:
    assert {players.kind for players in (Features, Groups, Superpixels)} == SCHEMAS.keys()


@pytest.mark.parametrize("schema", [TableSchema.of(FRAME), ImageSchema.of(np.zeros((2, 3, 4, 4)))], ids=str)
def test_a_schema_is_restored_from_its_description(schema: TableSchema | ImageSchema) -> None:
    assert schema_from_dict(schema.to_dict()) == schema


def test_descriptions_keep_the_keys_of_the_first_file_format() -> None:
    assert TableSchema.of(FRAME).to_dict().keys() == {"container", "columns", "dtype"}
    assert ImageSchema.of(np.zeros((2, 3, 4, 4))).to_dict()["images"] is True
