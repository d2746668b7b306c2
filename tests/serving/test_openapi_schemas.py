"""Parts of the OpenAPI document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the serve extra")
from fastshapley.export.graph import Graph
from fastshapley.serving.openapi_schemas import (
    example_row,
    fixed_numbers_schema,
    object_schema,
    operation,
    row_schema,
    sums_to_schema,
    tuple_schema,
)


@pytest.fixture(scope="module")
def graph(exported: Any) -> Graph:
    """The exported explainer of people."""
    return Graph(exported.graph)


def test_all_keys_of_an_object_are_required() -> None:
    schema = object_schema(a={"type": "string"}, b={})
    assert schema["required"] == ["a", "b"]
    assert schema["properties"]["a"] == {"type": "string"}


def test_a_tuple_has_a_fixed_length() -> None:
    schema = tuple_schema([{"const": 1}, {"const": 2}])
    assert (schema["minItems"], schema["maxItems"], schema["items"]) == (2, 2, False)


def test_a_row_is_an_object_or_a_list(graph: Graph) -> None:
    by_name, by_place = row_schema(graph)["anyOf"]
    assert list(by_name["properties"]) == graph.columns
    assert by_name["additionalProperties"] is False
    assert by_place["prefixItems"] == list(by_name["properties"].values())
    assert by_name["properties"]["job"]["examples"] == ["chef", "clerk", "nurse"]
    assert "examples" not in by_name["properties"]["age"]


def test_an_image_is_nested_lists_of_fixed_sizes(image_graph: Path) -> None:
    schema = row_schema(Graph(image_graph))
    sizes = []
    while schema["type"] == "array":
        assert schema["minItems"] == schema["maxItems"]
        sizes.append(schema["minItems"])
        schema = schema["items"]
    assert sizes == [1, 8, 8]


def test_the_example_is_a_row_that_the_graph_takes(graph: Graph) -> None:
    row = example_row(graph)
    assert row["job"] in ("chef", "clerk", "nurse")
    assert graph.encode([row]).tolist() == graph.example()[0].tolist()


def test_only_operations_with_a_body_can_fail_because_of_it() -> None:
    assert operation("Read", {}, public=True)["responses"].keys() == {"200", "401"}
    assert operation("Read", {}, public=True)["security"] == []
    posted = operation("Write", {}, {"type": "object"}, {"a": 1})
    assert posted["responses"].keys() == {"200", "400", "401", "408", "413", "502", "503", "504"}
    assert posted["requestBody"]["content"]["application/json"]["example"] == {"a": 1}
    assert "security" not in posted


def test_what_values_sum_to_is_fixed_unless_outputs_are_optional(
    graph: Graph, baseline_graph: Path, conditional: Any
) -> None:
    assert sums_to_schema(graph)["enum"] == ["surrogate"]
    assert sums_to_schema(Graph(baseline_graph))["enum"] == ["model"]
    assert sums_to_schema(Graph(conditional.graph))["enum"] == ["model", "surrogate", "mixed"]


def test_numbers_may_be_null_on_request() -> None:
    assert fixed_numbers_schema(2)["items"] == {"type": "number"}
    assert fixed_numbers_schema(2, nullable=True)["items"] == {"type": ["number", "null"]}
