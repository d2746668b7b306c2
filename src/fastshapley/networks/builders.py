"""The builder of networks for each kind of data. A new kind of data needs one line here."""

from __future__ import annotations

from fastshapley.data.image_schema import ImageSchema
from fastshapley.data.schema import Schema
from fastshapley.data.table_schema import TableSchema
from fastshapley.networks.image_builder import ImageBuilder
from fastshapley.networks.network_builder import NetworkBuilder
from fastshapley.networks.table_builder import TableBuilder

BUILDERS: dict[str, NetworkBuilder] = {TableSchema.kind: TableBuilder(), ImageSchema.kind: ImageBuilder()}


def builder_for(schema: Schema) -> NetworkBuilder:
    """Return the builder of networks for data with this layout."""
    return BUILDERS[schema.kind]
