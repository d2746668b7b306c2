"""Tests of the paper's image experiments, at the smallest scale that has all of their parts."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from read_only_store import ReadOnly

from fastshapley.paper import image_page
from fastshapley.paper import image_run as images
from fastshapley.paper.image_experiments import ImageExperiments, ImagePiece
from fastshapley.paper.image_sets import SETS
from fastshapley.paper.image_settings import METHODS, SLOW, ImageScale
from fastshapley.paper.store import Store

pytestmark = pytest.mark.skipif(
    "FASTSHAPLEY_DATA" not in os.environ, reason="needs CIFAR-10: set FASTSHAPLEY_DATA to its folder"
)
TINY = ImageScale(
    images=160,
    epochs=1,
    share=0.01,
    test=12,
    slow=2,
    compared=2,
    truth=64,
    left_out=24,
    shares=(0.5,),
    robustness=0.5,
    timing_rounds=1,
)
SMALL = replace(SETS["cifar10"], grid=2, other="resnet20")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def experiments(folder: Path) -> ImageExperiments:
    return ImageExperiments(Store(folder / "store"), SMALL, TINY)


@pytest.fixture(scope="module")
def found(folder: Path, experiments: ImageExperiments) -> dict[str, Any]:
    return run(folder, experiments)


def run(folder: Path, experiments: ImageExperiments) -> dict[str, Any]:
    return images.write_results(experiments, folder / "results", "a test", workers=0, progress=False)


def test_every_method_has_areas_with_intervals(found: dict[str, Any]) -> None:
    for described in found["evaluators"].values():
        assert list(described["methods"]) == list(METHODS)
        for method, result in described["methods"].items():
            assert result["images"] == (TINY.slow if method in SLOW else TINY.test)
            for way in images.WAYS:
                area = result[way]["agreement"]
                low, high = area["interval"]
                assert 0 <= low <= area["auc"] <= high <= 1


def test_the_difference_of_fastshap_to_itself_is_zero(found: dict[str, Any]) -> None:
    own = found["evaluators"]["paper"]["methods"]["FastSHAP"]["exclusion"]["log_odds"]
    assert (own["fastshap_less_this"], own["interval_of_the_difference"]) == (0.0, (0.0, 0.0))


def test_inclusion_and_exclusion_curves_have_the_same_ends(found: dict[str, Any]) -> None:
    """Including all players equals excluding none, and the reverse. The ends are the same for all methods."""
    for described in found["evaluators"].values():
        methods = {name: result for name, result in described["methods"].items() if name not in SLOW}
        ends = set()
        for result in methods.values():
            inclusion, exclusion = (result[way]["log_odds"]["mean"] for way in ("inclusion", "exclusion"))
            assert inclusion[0] == pytest.approx(exclusion[-1], abs=1e-4)
            assert inclusion[-1] == pytest.approx(exclusion[0], abs=1e-4)
            ends.add((round(inclusion[0], 3), round(inclusion[-1], 3)))
        assert len(ends) == 1


def test_the_reference_values_are_more_accurate_than_few_evaluations(found: dict[str, Any]) -> None:
    errors = found["error"]["kernel_shap_s"]
    assert errors[-1] < errors[0]
    assert found["error"]["error_of_the_truth"] < errors[0]


def test_results_have_times_and_robustness(found: dict[str, Any]) -> None:
    assert {"FastSHAP", "GradCAM", "GradCAM, all classes", "KernelSHAP"} <= set(found["seconds_an_image"])
    half, whole = found["robustness"]
    assert (half["share"], whole["share"]) == (0.5, 1.0)
    assert half["evaluations"] < whole["evaluations"]
    assert half["relative_squared_error"] != whole["relative_squared_error"]
    assert whole["relative_squared_error"] == pytest.approx(found["error"]["relative_squared_error"])


def test_figures_and_page_are_written(found: dict[str, Any], folder: Path) -> None:
    names = {path.name for path in (folder / "results").iterdir()}
    for figure in ("curves", "robustness", "errors", "methods", "classes"):
        assert f"images-cifar10-{figure}.png" in names
    text = (folder / "results" / "images.md").read_text()
    assert f"| {found['robustness'][0]['evaluations']:,} |" in text
    assert "| KernelSHAP-S | 2 |" in text
    assert "0.86" in text  # the inclusion area that the paper prints
    assert "Notes." in image_page.page([found], "Notes.")


def test_values_are_those_of_the_predicted_class(found: dict[str, Any], experiments: ImageExperiments) -> None:
    everything, chosen = experiments.all_values(), experiments.values("FastSHAP")
    assert everything.shape == (TINY.test, 4, 10)
    for image, label in enumerate(experiments.labels):
        np.testing.assert_array_equal(chosen[image], everything[image, :, label])


def test_a_stored_explainer_gives_the_stored_values(found: dict[str, Any], experiments: ImageExperiments) -> None:
    values = experiments.explainer().shap_values(experiments.images.x_test)
    np.testing.assert_allclose(values.reshape(TINY.test, 4, 10), experiments.all_values(), rtol=1e-4, atol=1e-5)


def test_a_second_run_only_reads_the_store(found: dict[str, Any], folder: Path) -> None:
    again = run(folder, ImageExperiments(ReadOnly(folder / "store"), SMALL, TINY))
    assert again["evaluators"] == found["evaluators"]


def test_other_settings_are_computed_again(found: dict[str, Any], folder: Path) -> None:
    store = Store(folder / "store")
    assert ImageExperiments(store, SMALL, TINY).has(ImagePiece("surrogate"))
    assert not ImageExperiments(store, SMALL, replace(TINY, epochs=2)).has(ImagePiece("surrogate"))
    assert not ImageExperiments(store, replace(SMALL, grid=8), TINY).has(ImagePiece("surrogate"))
