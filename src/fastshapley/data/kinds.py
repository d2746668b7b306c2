"""The kinds of data that can be explained. A new kind is a file with its `Schema`, and one line here."""

from __future__ import annotations

from typing import Any

from fastshapley.data.image_schema import ImageSchema
from fastshapley.data.players import Players
from fastshapley.data.schema import Schema
from fastshapley.data.table_schema import TableSchema

SCHEMAS: dict[str, type[Schema]] = {schema.kind: schema for schema in (TableSchema, ImageSchema)}
DEFAULT_KIND = TableSchema.kind  # where the user names no players


def schema_of(X: Any, players: Players | None) -> Schema:
    """Return the schema of the user's data; the players say which kind of data it is.

    Parameters
    ----------
    X : object
        The user's data.
    players : Players or None
        What the user asked for; None for a table with one player per column.

    Examples
    --------
    >>> import numpy as np
    >>> schema_of(np.zeros((2, 3)), None).kind
    'table'
    """
    return SCHEMAS[DEFAULT_KIND if players is None else players.kind].of(X)


def schema_from_dict(state: dict[str, Any]) -> Schema:
    """Return the schema that `Schema.to_dict` described.

    The first two kinds are told apart by the key ``"images"``, as in every file so far.
    """
    kind = state.get("kind", ImageSchema.kind if "images" in state else DEFAULT_KIND)
    return SCHEMAS[kind].from_dict(state)
