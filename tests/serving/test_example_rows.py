"""Example rows for the page, from CSV and JSON files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from problems import records

from fastshapley.errors import FileFormatError, InputError
from fastshapley.export.graph import Graph
from fastshapley.serving.example_rows import example_rows_by_model, read_example_rows


@pytest.fixture(scope="module")
def graph(exported: Any) -> Graph:
    """The exported explainer of people."""
    return Graph(exported.graph)


def test_csv_and_json_files_give_the_same_rows(graph: Graph, exported: Any, tmp_path: Path) -> None:
    X = exported.X[:20].assign(colour="red")  # Another column is dropped.
    X.to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "rows.json").write_text(json.dumps(records(X)))
    expected = graph.encode(records(exported.X[:20]))
    for name in ("rows.csv", "rows.json"):
        rows = read_example_rows(tmp_path / name, graph)
        assert list(rows[0]) == graph.columns
        np.testing.assert_allclose(graph.encode(rows), expected, rtol=1e-9)
    gap = next(row for row, value in enumerate(expected[:, 1]) if math.isnan(value))
    assert read_example_rows(tmp_path / "rows.csv", graph)[gap]["income"] is None


def test_an_integer_of_more_than_64_bits_becomes_a_float(graph: Graph, exported: Any, tmp_path: Path) -> None:
    row = {**records(exported.X[:1])[0], "age": 10**30}
    (tmp_path / "rows.json").write_text(json.dumps([row]))
    rows = read_example_rows(tmp_path / "rows.json", graph)
    assert orjson.loads(orjson.dumps(rows))[0]["age"] == 1e30


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rows.csv", "age,job\n1,chef\n", "rows.csv lacks the columns"),
        ("rows.csv", "age,income,job,city,member\nold,1,chef,Bern,True\n", "'old' in column 'age'"),
        ("rows.json", "[1]", "must hold a list of objects"),
        ("rows.json", "{", "is neither CSV"),
        ("rows.json", '{"age": 1}', "must hold a list of objects"),
    ],
)
def test_bad_files_are_refused(name: str, text: str, message: str, graph: Graph, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises((FileFormatError, InputError), match=message):
        read_example_rows(tmp_path / name, graph)


def test_each_model_has_the_rows_with_its_columns(graph: Graph, exported: Any, tmp_path: Path) -> None:
    exported.X[:3].to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert len(example_rows_by_model([tmp_path / "people.csv"], {"people": graph})["people"]) == 3
    assert example_rows_by_model([], {"people": graph}) == {"people": []}
    with pytest.raises(InputError, match="no model takes these rows"):
        example_rows_by_model([tmp_path / "people.csv", tmp_path / "other.csv"], {"people": graph})
