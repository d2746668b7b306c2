"""Tests that every example runs as a script and prints the expected results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import ROOT, run_script

EXAMPLES = {path.stem: path for path in sorted((ROOT / "examples").glob("*.py"))}


def test_the_readme_lists_every_example() -> None:
    text = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\((\w+)\.py\)", text)) == set(EXAMPLES)


def test_credit_example_prints_reasons_and_writes_its_files(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the demo extra")
    printed = run_script(EXAMPLES["credit"], tmp_path)
    assert "late_payments" in printed  # the column that the simulated risk depends on most
    assert (tmp_path / "waterfall.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "credit.fastshap").exists()


def test_serve_example_returns_the_values_of_the_library(tmp_path: Path) -> None:
    for package in ("onnxscript", "uvicorn"):
        pytest.importorskip(package, reason="needs the serve extra")
    printed = run_script(EXAMPLES["serve"], tmp_path)
    assert "['diabetes']" in printed
    found = re.search(r"library itself: (\S+)", printed)
    assert found is not None
    assert float(found[1]) < 1e-3  # values are at most 100, and the graph computes in float32


def test_images_example_prints_shapes_and_writes_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the demo extra")
    printed = run_script(EXAMPLES["images"], tmp_path)
    assert "(397, 4, 4, 10)" in printed
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")


def test_value_function_example_is_accurate(tmp_path: Path) -> None:
    found = re.search(r"relative squared error: (\S+)", run_script(EXAMPLES["value_function"], tmp_path))
    assert found is not None
    assert float(found[1]) < 0.1


def test_kernel_explainer_example_compares_both_methods(tmp_path: Path) -> None:
    printed = run_script(EXAMPLES["from_kernel_explainer"], tmp_path)
    errors = [float(text) for text in re.findall(r"relative squared error (\S+)", printed)]
    assert len(errors) == 2
    assert max(errors) < 0.3
    assert "times as fast" in printed
