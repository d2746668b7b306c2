"""Read example rows for the page from CSV or JSON files, without pandas."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastshapley.errors import FileFormatError, InputError
from fastshapley.export.graph import Graph

_MAX_ROWS = 200  # rows that a page offers
_MAX_INTEGER_DIGITS = 18  # longer integers do not fit into 64 bits


def read_example_rows(file: Path, graph: Graph) -> list[dict[str, Any]]:
    """Read the first rows of a file.

    Parameters
    ----------
    file : Path
        A CSV file (``.csv``) with a header, or a JSON file with a list of objects. An empty cell is a missing
        value.
    graph : Graph
        The graph that takes the rows. Columns that it does not know are dropped.

    Returns
    -------
    rows : list of dict
        Values by column.

    Raises
    ------
    FileFormatError
        If the file is neither CSV nor JSON.
    InputError
        If the graph does not take the rows.
    """
    if graph.image_shape is not None:
        raise InputError(f"{file.name} has rows of a table, but the model takes images")
    rows = _read_file(file)
    if rows and (missing := [column for column in graph.columns if column not in rows[0]]):
        raise InputError(f"{file.name} lacks the columns {missing}")
    examples = [
        {column: _parse_cell(row.get(column), column, graph) for column in graph.columns}
        for row in rows[:_MAX_ROWS]
    ]
    graph.encode(examples)  # This raises an error if a value is bad.
    return examples


def example_rows_by_model(files: Sequence[Path], graphs: Mapping[str, Graph]) -> dict[str, list[dict[str, Any]]]:
    """Read the example rows of each model.

    Parameters
    ----------
    files : sequence of Path
        Files of rows. Each model takes the first file that has its columns.
    graphs : mapping of str to Graph
        The graphs by model.

    Returns
    -------
    rows : dict of str to list of dict
        Rows by model.

    Raises
    ------
    InputError
        If no model takes the rows of a file.
    """
    by_model: dict[str, list[dict[str, Any]]] = {name: [] for name in graphs}
    for file in files:
        reasons = []
        for name, graph in graphs.items():
            try:
                rows = read_example_rows(file, graph)
            except InputError as error:
                reasons.append(f"{error} ({name})")
            else:
                by_model[name] = by_model[name] or rows
        if len(reasons) == len(graphs):
            raise InputError(f"--rows: no model takes these rows: {'; '.join(reasons)}")
    return by_model


def _read_file(file: Path) -> list[dict[str, Any]]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            if file.suffix.lower() == ".csv":
                return [row for row, _ in zip(csv.DictReader(stream), range(_MAX_ROWS), strict=False)]
            rows = json.load(stream, parse_int=_parse_integer)
    except (UnicodeDecodeError, csv.Error, json.JSONDecodeError) as error:
        raise FileFormatError(f"{file} is neither CSV (.csv) nor JSON: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise FileFormatError(f"{file} must hold a list of objects, one object per row")
    return rows


def _parse_integer(text: str) -> int | float:
    return int(text) if len(text) <= _MAX_INTEGER_DIGITS else float(text)


def _parse_cell(value: Any, column: str, graph: Graph) -> Any:
    """Return the value that a CSV cell stands for. Values from JSON that are not text stay as they are."""
    if not isinstance(value, str):
        return value
    if (categories := graph.categories(column)) is not None:
        return next((category for category in categories if str(category) == value), value or None)
    if value == "":
        return None
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        return float(value)
    except ValueError:
        return value
