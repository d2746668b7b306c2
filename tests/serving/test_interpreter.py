"""Exported graphs in a real browser: the page's interpreter has the same results as onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_images
import torch
from browser import assert_same_as_onnxruntime, interpreter, playwright, run_in_browser
from problems import explainer, numbers, records
from sklearn.datasets import load_iris
from torch import nn

from fastshapley import Superpixels, UNet
from fastshapley.datasets.classifiers.resnet import CifarResNet
from fastshapley.export.graph import Graph

pytest.importorskip("onnxscript", reason="needs the onnx extra")


@pytest.fixture(scope="module")
def script(browser: Any) -> Iterator[Any]:
    """A page with the scripts that run graphs."""
    with interpreter(browser) as page:
        yield page


def test_tables_with_missing_values_and_categories(script: Any, exported: Any) -> None:
    graph = Graph(exported.graph)
    rows = graph.encode(records(exported.X[:40]))
    assert np.isnan(rows).any()
    assert_same_as_onnxruntime(script, exported.graph.read_bytes(), 1e-6, rows=rows)
    assert_same_as_onnxruntime(script, exported.graph.read_bytes(), 1e-6, rows=rows[:1])


def test_a_graph_with_a_link_and_groups(script: Any, groups_graph: Path, exported: Any) -> None:
    rows = Graph(groups_graph).encode(records(exported.X[:40]))
    assert_same_as_onnxruntime(script, groups_graph.read_bytes(), 1e-6, rows=rows)


def test_a_graph_with_several_classes(script: Any, iris_graph: Path) -> None:
    assert_same_as_onnxruntime(script, iris_graph.read_bytes(), 1e-6, rows=load_iris().data[::10])


def test_a_graph_that_needs_the_outputs_of_the_model(script: Any, baseline_graph: Path, exported: Any) -> None:
    rows = Graph(baseline_graph).encode(records(exported.X[:10]))
    outputs = np.random.default_rng(0).normal(size=(10, 2))
    assert_same_as_onnxruntime(script, baseline_graph.read_bytes(), 1e-6, rows=rows, outputs=outputs)


def test_a_graph_with_optional_outputs(script: Any, conditional: Any) -> None:
    rows = Graph(conditional.graph).encode(records(conditional.X[:10]))
    outputs = np.random.default_rng(0).uniform(size=(10, 2))
    outputs[::2, 0] = np.nan
    assert_same_as_onnxruntime(script, conditional.graph.read_bytes(), 1e-6, rows=rows, outputs=outputs)


def test_a_network_that_the_user_defines(script: Any, tmp_path: Path) -> None:
    X = numbers(300)
    layers = [nn.LayerNorm(8), nn.GELU(), nn.BatchNorm1d(8), nn.LeakyReLU(), nn.Softplus(), nn.Softmax(1), nn.ELU()]
    layers += [nn.Linear(8, 8, bias=False), nn.Hardtanh(), nn.SELU(), nn.PReLU(), nn.Mish(), nn.LogSoftmax(1)]
    body = nn.Sequential(
        nn.Linear(4, 8), *layers, nn.Unflatten(1, (2, 4)), nn.MultiheadAttention(4, 2, batch_first=True)
    )

    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.attention, self.last = body[:-1], body[-1], nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = self.body(x)
            return torch.as_tensor(self.last(self.attention(made, made, made)[0].flatten(1)))

    fitted = explainer(lambda rows: rows[:, 0] * rows[:, 1], network=Attending()).fit(X)
    fitted.export_onnx(tmp_path / "graph.onnx")
    assert_same_as_onnxruntime(script, (tmp_path / "graph.onnx").read_bytes(), 1e-6, rows=X[:20])


def test_a_graph_for_images(script: Any, image_graph: Path) -> None:
    assert_same_as_onnxruntime(script, image_graph.read_bytes(), 1e-4, rows=small_images.X[:3].numpy())


def test_superpixels_of_any_shape_and_a_unet(script: Any, tmp_path: Path) -> None:
    players = Superpixels(segmentation=small_images.BINS + 4 * np.tri(8, dtype=int))
    fitted = small_images.explainer(players=players, network=UNet(width=4), link="logit").fit(small_images.X)
    fitted.export_onnx(tmp_path / "graph.onnx")
    assert_same_as_onnxruntime(
        script, (tmp_path / "graph.onnx").read_bytes(), 1e-4, rows=small_images.X[:3].numpy()
    )


@pytest.mark.usefixtures("seeded")
def test_a_residual_network(script: Any, tmp_path: Path) -> None:
    X = torch.rand(24, 3, 8, 8)
    brief = replace(small_images.QUICK.explainer, steps=2)
    recipe = replace(small_images.QUICK, surrogate=(brief,), explainer=brief)
    fitted = small_images.explainer(CifarResNet(8).eval(), recipe=recipe).fit(X)
    fitted.export_onnx(tmp_path / "graph.onnx")
    assert_same_as_onnxruntime(script, (tmp_path / "graph.onnx").read_bytes(), 1e-4, rows=X[:2].numpy())


def test_damaged_graphs_are_errors(script: Any, exported: Any) -> None:
    for data in (exported.graph.read_bytes()[:1000], b"not a graph", b""):
        with pytest.raises(playwright.Error, match=r"cut short or damaged|not an ONNX graph"):
            run_in_browser(script, data)
