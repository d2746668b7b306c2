"""Fixtures that the tests of the server share."""

from __future__ import annotations

from typing import Any

import pytest

from fastshapley.export.graph import Graph


@pytest.fixture(scope="session")
def graph(exported: Any) -> Graph:
    """The exported explainer of people."""
    return Graph(exported.graph)
