"""The examples run, each as a script of its own, in full."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import ROOT, run_script

EXAMPLES = {path.stem: path for path in sorted((ROOT / "examples").glob("*.py"))}


def test_all_are_told_of() -> None:
    told = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\((\w+)\.py\)", told)) == set(EXAMPLES)


def test_credit(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the demo extra")
    printed = run_script(EXAMPLES["credit"], tmp_path)
    assert "late_payments" in printed  # what the made-up risk depends on the most
    assert (tmp_path / "waterfall.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "credit.fastshap").exists()


def test_serve(tmp_path: Path) -> None:
    for package in ("onnxscript", "uvicorn"):
        pytest.importorskip(package, reason="needs the serve extra")
    printed = run_script(EXAMPLES["serve"], tmp_path)
    assert "['diabetes']" in printed
    found = re.search(r"library itself: (\S+)", printed)
    assert found is not None
    assert float(found[1]) < 1e-3  # of values up to 100, through a graph in float32


def test_images(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the demo extra")
    printed = run_script(EXAMPLES["images"], tmp_path)
    assert "(397, 4, 4, 10)" in printed
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")


def test_value_function(tmp_path: Path) -> None:
    found = re.search(r"relative squared error: (\S+)", run_script(EXAMPLES["value_function"], tmp_path))
    assert found is not None
    assert float(found[1]) < 0.1


def test_from_kernel_explainer(tmp_path: Path) -> None:
    printed = run_script(EXAMPLES["from_kernel_explainer"], tmp_path)
    errors = [float(text) for text in re.findall(r"relative squared error (\S+)", printed)]
    assert len(errors) == 2
    assert max(errors) < 0.3
    assert "times as fast" in printed
