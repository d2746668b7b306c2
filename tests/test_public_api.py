"""Tests of the public names, the imports and the demonstrations."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fastshapley
from fastshapley import FastSHAP, baselines, datasets, estimators, export, players, value_functions
from fastshapley.cli import main


def test_public_names_exist() -> None:
    assert sorted(fastshapley.__all__) == [
        "Advice",
        "Backbone",
        "Drift",
        "Explained",
        "FastSHAP",
        "Features",
        "Groups",
        "Layers",
        "Recipe",
        "Report",
        "Superpixels",
        "Targets",
        "Training",
        "UNet",
        "Way",
        "__version__",
        "default_image_recipe",
        "default_recipe",
        "paper_image_recipe",
        "paper_recipe",
    ]
    for module, names in {
        value_functions: ("Surrogate", "Marginal", "Baseline", "Missing"),
        players: ("Features", "Groups", "Superpixels"),
        estimators: ("Estimate", "exact", "kernel"),
        baselines: ("removal_curves", "Curves", "Scores", "Curve", "paired_interval"),
        export: ("Graph",),
        datasets: ("load_census", "load_marketing", "load_bankruptcy", "load_news"),
    }.items():
        assert all(hasattr(module, name) for name in names)


def test_the_explainer_has_the_documented_signature() -> None:
    parameters = inspect.signature(FastSHAP).parameters
    assert list(parameters) == [
        "model",
        "value_function",
        "players",
        "link",
        "logits",
        "network",
        "normalize",
        "penalty",
        "output_names",
        "recipe",
        "time_budget",
        "evaluation_budget",
        "device",
        "random_state",
        "progress",
    ]
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    assert defaults["value_function"] == "auto"
    assert (defaults["link"], defaults["normalize"], defaults["penalty"]) == ("identity", "always", 0.0)
    assert (defaults["recipe"], defaults["progress"]) == ("default", True)
    assert (defaults["time_budget"], defaults["evaluation_budget"]) == (None, None)


def test_the_command_line_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"fastshapley {fastshapley.__version__}\n"


def test_importing_prints_nothing_and_does_not_load_torch() -> None:
    script = "import sys, fastshapley; sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert sorted(fastshapley.__all__) == dir(fastshapley)
    for name in fastshapley.__all__:
        assert getattr(fastshapley, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fastshapley.nothing  # noqa: B018


def test_importing_the_explainer_does_not_load_lightgbm_or_xgboost() -> None:
    script = "import sys; from fastshapley import FastSHAP; "
    script += "sys.exit('lightgbm' in sys.modules or 'xgboost' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == ""


def test_interop_packages_are_imported_only_on_request() -> None:
    for module, names in {
        "shapiq": ("Explainer", "Game"),
        "captum": ("FastShap",),
        "mlflow": ("load_explainer", "log_explainer", "save_explainer"),
    }.items():
        pytest.importorskip(module)
        imported = importlib.import_module(f"fastshapley.interop.{module}")
        assert all(hasattr(imported, name) for name in names)
    script = "import sys, fastshapley.interop; from fastshapley import FastSHAP; "
    script += "sys.exit(any(name in sys.modules for name in ('shapiq', 'captum', 'mlflow')))"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_demonstration_is_accurate_and_writes_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run every step of `make demo` with a quarter of its training. Values of zero would have an error of 1."""
    pytest.importorskip("matplotlib")
    assert main(["demo", "--quick", "--quiet", "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    lines = {line[:30].strip(): line[30:].split()[0] for line in printed.splitlines() if line.startswith("  ")}
    assert float(lines["network (measured)"]) <= 0.3
    assert float(lines["correct sign, large values"]) >= 85
    page = (tmp_path / "index.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    assert "http" not in page
    for name in ("beeswarm.png", "waterfall.png", "accuracy.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_the_demonstration_on_images_is_accurate_and_writes_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The relative squared error of the worst digit is at most 0.1. It was 0.074 when this was written."""
    assert main(["demo", "--images", "--quick", "--quiet", "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    error = re.search(r"network \(measured\) +([0-9.]+)", printed)
    assert error is not None
    assert float(error[1]) <= 0.1
    assert {path.name for path in tmp_path.iterdir()} == {"index.html", "digits.png", "exact.png"}
