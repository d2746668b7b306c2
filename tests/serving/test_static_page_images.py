"""The page of an explainer for images: opened from files in a real browser."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser import fits, page_of
from numpy.typing import NDArray
from small_images import X as IMAGES

from fastshapley import FastSHAP

pytest.importorskip("onnxscript", reason="needs the onnx extra")


def picture(path: Path, image: NDArray[Any]) -> Path:
    """Write a PNG file of pixels from 0 to 1, of shape (height, width)."""
    pixels = pytest.importorskip("PIL.Image", reason="needs pillow")
    pixels.fromarray(np.round(255 * image).astype(np.uint8)).save(path)
    return path


def shown_values(page: Any) -> NDArray[np.float64]:
    """Return the values that the page shows."""
    page.wait_for_selector("#maps figure")
    found = page.evaluate("[state.view.result.shap_values.dims, Array.from(state.view.result.shap_values.data)]")
    return np.array(found[1]).reshape(found[0])


def test_a_chosen_image_is_explained_with_a_map_per_class(
    opened: Any, image_graph: Path, image_explainer: FastSHAP, tmp_path: Path
) -> None:
    page = opened(page_of(image_graph, tmp_path / "page"))
    file = picture(tmp_path / "digit.png", IMAGES[5, 0].numpy())
    page.set_input_files("#picture", file)
    pixels = torch.from_numpy(np.round(255 * IMAGES[5:6].numpy()) / 255).float()
    expected = image_explainer.shap_values(pixels)  # (1, 2, 2, 3)
    np.testing.assert_allclose(shown_values(page), expected.reshape(1, 4, 3), atol=1e-4)

    predictions = [float(f.get_attribute("data-value")) for f in page.locator("figure").all()]
    assert predictions == sorted(predictions, reverse=True)
    names = [f.get_attribute("data-output") for f in page.locator("figure").all()]
    assert sorted(names) == ["output 0", "output 1", "output 2"]
    colour = """(canvas, [x, y]) => Array.from(canvas.getContext("2d").getImageData(x, y, 1, 1).data)"""
    for figure, name in zip(page.locator("figure canvas").all(), names, strict=True):
        patches = expected[0, ..., int(name[-1])]
        row, column = np.unravel_index(np.abs(patches).argmax(), patches.shape)
        red, _, blue, _ = figure.evaluate(colour, [int(4 * column + 1), int(4 * row + 1)])
        assert (red > blue) == (patches[row, column] > 0)


def test_a_large_image_can_be_dropped_and_other_files_are_refused(
    opened: Any, image_graph: Path, tmp_path: Path
) -> None:
    page = opened(page_of(image_graph, tmp_path / "page"))
    file = picture(tmp_path / "large.png", np.kron(IMAGES[7, 0].numpy(), np.ones((30, 40))))
    data = base64.b64encode(file.read_bytes()).decode()
    carried = page.evaluate_handle(
        """(data) => {
            const carried = new DataTransfer(), bytes = Uint8Array.from(atob(data), (l) => l.charCodeAt(0));
            carried.items.add(new File([bytes], "large.png", { type: "image/png" }));
            return carried;
        }""",
        data,
    )
    page.dispatch_event("#drop", "drop", {"dataTransfer": carried})
    assert shown_values(page).shape == (1, 4, 3)
    page.set_input_files("#picture", {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"not an image"})
    page.wait_for_selector("#status.error")
    assert "notes.txt is not an image" in page.locator("#status").inner_text()


def test_the_page_fits_narrow_screens(opened: Any, image_graph: Path, tmp_path: Path) -> None:
    page = opened(page_of(image_graph, tmp_path / "page"), viewport={"width": 360, "height": 740})
    assert fits(page)
    page.set_input_files("#picture", picture(tmp_path / "digit.png", IMAGES[5, 0].numpy()))
    page.wait_for_selector("#maps figure")
    assert fits(page)
