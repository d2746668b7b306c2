"""Tests of the code that the stored results of the paper's experiments depend on."""

from __future__ import annotations

from pathlib import Path

import pytest

import fastshapley
from fastshapley.paper import image_experiments, table_experiments

PACKAGE = Path(fastshapley.__file__).parent


@pytest.mark.parametrize("name", sorted({*table_experiments.CODE, *image_experiments.CODE}))
def test_code_that_results_depend_on_exists(name: str) -> None:
    """A missing name would be ignored, and a change of that code would not recompute the results."""
    assert (PACKAGE / f"{name}.py").is_file() or any((PACKAGE / name).rglob("*.py"))
