"""Example rows for the page, from CSV or JSON files: read without pandas, as the server has none."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastshapley.errors import FileFormatError, InputError
from fastshapley.export.graph import Graph

_MOST = 200  # that a page offers


def example_rows(file: Path, graph: Graph) -> list[dict[str, Any]]:
    """The file's first rows that the graph takes, with the graph's columns alone.

    A CSV file has a head with the columns' names; a JSON file is a list of objects. An empty cell is a gap.
    """
    if graph.image_shape is not None:
        raise InputError(f"{file.name} has rows of a table, and the model takes images")
    rows = _read(file)
    if rows and (missing := [column for column in graph.columns if column not in rows[0]]):
        raise InputError(f"{file.name} lacks the columns {missing}")
    found = [{column: _value(row.get(column), column, graph) for column in graph.columns} for row in rows[:_MOST]]
    graph.encode(found)  # says what is wrong with them
    return found


def by_model(files: Sequence[Path], graphs: Mapping[str, Graph]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each model: those of the first file that has its columns; a file must be for one at least."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in graphs}
    for file in files:
        refusals = []
        for name, graph in graphs.items():
            try:
                rows = example_rows(file, graph)
            except InputError as error:
                refusals.append(f"{error} ({name})")
            else:
                found[name] = found[name] or rows
        if len(refusals) == len(graphs):
            raise InputError(f"--rows: no model takes these rows: {'; '.join(refusals)}")
    return found


def _read(file: Path) -> list[dict[str, Any]]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            if file.suffix.lower() == ".csv":
                return [row for row, _ in zip(csv.DictReader(stream), range(_MOST), strict=False)]
            rows = json.load(stream, parse_int=lambda text: int(text) if len(text) < 19 else float(text))
    except (UnicodeDecodeError, csv.Error, json.JSONDecodeError) as error:
        raise FileFormatError(f"{file} is neither CSV (.csv) nor JSON: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise FileFormatError(f"{file} must hold a list of objects, one a row")
    return rows


def _value(value: Any, column: str, graph: Graph) -> Any:
    """A cell of a CSV file as what it stands for; what JSON has stays as it is."""
    if not isinstance(value, str):
        return value
    if (categories := graph.categories(column)) is not None:
        return next((known for known in categories if str(known) == value), value or None)
    if value == "":
        return None
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        return float(value)
    except ValueError:
        return value
