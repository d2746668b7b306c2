"""An explainer as one ONNX graph: rows in, Shapley values out, wherever onnxruntime runs."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fastshapley.data.image_schema import ImageSchema
from fastshapley.errors import ExportError, InputError
from fastshapley.export.graph import FORMAT, KEY
from fastshapley.networks.mlp import MaskedNetwork
from fastshapley.objective import normalize
from fastshapley.support.atomic_files import json_text, write_bytes
from fastshapley.support.optional import require
from fastshapley.value_functions import Surrogate
from fastshapley.value_functions.protocol import BaseGame, linked
from fastshapley.version import __version__

if TYPE_CHECKING:
    from fastshapley.explainer import FastSHAP

_OPSET = 18
_TOLERANCE = 1e-5
_ROWS = 5  # on which the graph is checked


class Graph(nn.Module):
    """Encoded rows (n, columns), or images, to values (n, players, outputs), base values and predictions.

    Of a game of the model's own, the model's outputs (n, outputs) behind the link are a second input. Where errors
    were learnt, the standard errors of the values are a fourth output.
    """

    def __init__(self, explainer: FastSHAP) -> None:
        super().__init__()
        game = explainer.value_function_
        null = getattr(game, "null", None)
        if not isinstance(null, Tensor):
            raise InputError("the value function has no null, which a graph needs: v(x, 0) as a tensor (outputs,)")
        self.network, self.game = explainer.network_, game
        self.surrogate = game.network_ if isinstance(game, Surrogate) else None
        self.normalized = explainer.normalize_ != "never" or game.players == 1
        self.errors = explainer.errors_ if explainer.normalize_ != "never" else None
        self.head = None if self.errors is None else self.errors.head
        self.register_buffer("null", null.double(), persistent=False)

    null: Tensor

    def forward(self, rows: Tensor, outputs: Tensor | None = None) -> tuple[Tensor, ...]:
        phi = self.network(rows).double()
        grand = self._grand(rows) if outputs is None else outputs
        if self.normalized:
            by_output = phi.transpose(1, 2)  # with the long axis last, a graph is faster
            phi = normalize(by_output, grand - self.null, dim=2).transpose(1, 2)
        found = (phi, self.null.expand_as(grand), grand)
        if self.errors is None:
            return found
        return (*found, self.errors(rows, phi)[0].sqrt())

    def _grand(self, rows: Tensor) -> Tensor:
        game = self.game
        assert isinstance(game, Surrogate)
        if isinstance(game.network_, MaskedNetwork):
            raw = game.network_.known(rows)
        else:
            everyone = torch.ones(rows.shape[0], 1, game.players, dtype=torch.bool, device=rows.device)
            raw = game.network_(rows, everyone)[:, 0]
        if game.scale == "probabilities" and game.link == "identity":
            return raw.softmax(-1).double()  # one operator, where `activate` has twelve that torch is faster with
        return linked(game.link, game.activate(raw)).double()


def export(explainer: FastSHAP, path: str | os.PathLike[str]) -> None:
    """Write the graph, with all that is needed to use it in its metadata; it is checked against torch first."""
    for package in ("onnxscript", "onnxruntime"):
        require(package, "onnx")
    graph = Graph(explainer).eval()
    names = ["rows"] if graph.surrogate is not None else ["rows", "outputs"]
    results = ["shap_values", "base_values", "predictions", *(["error_std"] if graph.errors is not None else [])]
    inputs = _example(explainer)[: len(names)]
    batch = torch.export.Dim("batch")
    with _quiet(), torch.no_grad():
        traced = torch.export.export(graph, inputs, dynamic_shapes=tuple({0: batch} for _ in names))
        program = torch.onnx.export(
            traced, input_names=names, output_names=results, opset_version=_OPSET, dynamo=True
        )
    assert program is not None
    model = program.model_proto
    _forget_where_it_was_made(model)
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, json_text(describe(explainer))
    data = model.SerializeToString()
    _check(data, graph, inputs, names)
    write_bytes(Path(path), data)


def _forget_where_it_was_made(model: Any) -> None:
    """Without the traces that torch leaves on each node: they name files and folders of this machine."""
    for part in (model.graph, *model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output):
        del part.metadata_props[:]
        part.doc_string = ""
    for tensor in model.graph.initializer:
        del tensor.metadata_props[:]


def describe(explainer: FastSHAP) -> dict[str, Any]:
    """What the graph's user needs to know, as plain JSON values."""
    game, report, schema = explainer.value_function_, explainer.report_, explainer.schema_
    found = {
        "format": FORMAT,
        "version": __version__,
        "schema": schema.to_dict(),
        "players": asdict(explainer.partition_),
        "output_names": list(explainer.output_names_),
        "link": game.link if isinstance(game, BaseGame) else "identity",
        "scale": game.scale if isinstance(game, BaseGame) else "real",
        "report": None if report is None else report.to_dict(),
    }
    if not isinstance(schema, ImageSchema):
        found["ranges"] = _ranges(explainer.reference_.sample)
    return found


def _ranges(sample: Tensor) -> list[list[float] | None]:
    """Of each column where nearly all of its numbers lie, and their middle; None where there are none."""
    found = []
    for column in sample.T:
        present = column[~column.isnan()]
        levels = torch.tensor([0.01, 0.5, 0.99], dtype=present.dtype, device=present.device)
        found.append(present.quantile(levels).tolist() if len(present) else None)
    return found


def _example(explainer: FastSHAP) -> tuple[Tensor, ...]:
    """Some rows, and outputs for them, as the graph takes them."""
    device, outputs = explainer.network_.scale.device, explainer.value_function_.outputs
    if isinstance(explainer.schema_, ImageSchema):
        generator = torch.Generator().manual_seed(0)
        rows = torch.rand(_ROWS, *explainer.schema_.shape, generator=generator).to(device)
    else:
        rows = explainer.reference_.sample.repeat(_ROWS, 1)[:_ROWS].to(device)
    return rows, torch.full((_ROWS, outputs), 0.5, dtype=torch.float64, device=device)


def _check(data: bytes, graph: Graph, inputs: tuple[Tensor, ...], names: list[str]) -> None:
    """Whether onnxruntime gives what torch does, for several rows and for one."""
    session = require("onnxruntime", "onnx").InferenceSession(data, providers=["CPUExecutionProvider"])
    for rows in (_ROWS, 1):
        parts = tuple(part[:rows] for part in inputs)
        with torch.no_grad():
            expected = [result.cpu().numpy() for result in graph(*parts)]
        given = {name: part.cpu().numpy() for name, part in zip(names, parts, strict=True)}
        for name, right, found in zip(
            [output.name for output in session.get_outputs()], expected, session.run(None, given), strict=True
        ):
            off = float(np.abs(found - right).max(initial=0.0))
            if found.shape != right.shape or not off <= _TOLERANCE * max(
                1.0, float(np.abs(right).max(initial=0.0))
            ):
                raise ExportError(
                    f"{name} of the graph differs from torch's by {off:.2g} for {rows} rows: nothing was written"
                )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says while it traces a graph."""
    said = logging.getLogger("torch.onnx")
    level = said.level
    said.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        said.setLevel(level)
