"""Tests of the registry of network builders."""

from __future__ import annotations

import numpy as np

from fastshapley.data.image_schema import ImageSchema
from fastshapley.data.kinds import SCHEMAS
from fastshapley.data.table_schema import TableSchema
from fastshapley.networks.builders import BUILDERS, builder_for
from fastshapley.networks.image_builder import ImageBuilder
from fastshapley.networks.table_builder import TableBuilder


def test_every_kind_of_data_has_a_builder() -> None:
    assert BUILDERS.keys() == SCHEMAS.keys()


def test_the_schema_determines_the_builder() -> None:
    assert isinstance(builder_for(TableSchema.of(np.zeros((2, 3)))), TableBuilder)
    assert isinstance(builder_for(ImageSchema.of(np.zeros((2, 1, 4, 4)))), ImageBuilder)
