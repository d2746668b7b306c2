"""An explainer as one ONNX graph, from rows to Shapley values, for every place where onnxruntime runs."""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fastshapley.errors import ExportError, InputError
from fastshapley.export.graph import FORMAT, KEY, sealed
from fastshapley.fit.fitted import Fitted
from fastshapley.objective import normalize
from fastshapley.support.atomic_files import json_text, write_bytes
from fastshapley.support.optional import require
from fastshapley.value_functions import Surrogate
from fastshapley.value_functions.base_game import imitation_of, link_of, scale_of
from fastshapley.value_functions.links import linked
from fastshapley.value_functions.sums import graph_sums_to
from fastshapley.version import __version__

_OPSET = 18  # version of the ONNX operators
_TOLERANCE = 1e-5  # largest difference from torch, relative to the largest value
_ROWS = 5  # rows on which the graph is checked


class ExplainerModule(nn.Module):
    """Encoded rows (n, ...) to values (n, players, outputs), base values and predictions (n, outputs).

    The game of a surrogate is in the graph. For any other game, the model's outputs (n, outputs) after the link are
    a second input. If the game has a surrogate as a part, these outputs are optional: a row with NaN among them
    uses the surrogate's output instead. If error bars were learnt, the standard errors of the values are a fourth
    output.

    Parameters
    ----------
    fitted : Fitted
        The explainer.

    Raises
    ------
    InputError
        If the value function has no null that is the same for every row.
    """

    def __init__(self, fitted: Fitted) -> None:
        super().__init__()
        game = fitted.game
        null = getattr(game, "null", None)
        if not isinstance(null, Tensor):
            raise InputError("value_function has no null, which a graph needs: v(x, 0) as a tensor (outputs,)")
        self.network, self.game = fitted.network, game
        imitation = imitation_of(game)
        self.imitation = imitation if isinstance(imitation, Surrogate) else None
        self.surrogate = None if self.imitation is None else self.imitation.network_
        self.inputs = ("rows",) if self.imitation is game else ("rows", "outputs")
        self.normalized = fitted.normalized
        self.errors = fitted.errors if fitted.normalize != "never" else None
        self.head = None if self.errors is None else self.errors.head
        self.register_buffer("null", null.double(), persistent=False)

    null: Tensor

    def forward(self, rows: Tensor, outputs: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return values, base values, predictions, and standard errors if error bars were learnt."""
        phi = self.network(rows).double()
        grand = self._grand(rows, outputs)
        if self.normalized:
            by_output = phi.transpose(1, 2)  # A graph is faster with the long axis last.
            phi = normalize(by_output, grand - self.null, dim=2).transpose(1, 2)
        found = (phi, self.null.expand_as(grand), grand)
        if self.errors is None:
            return found
        stderr = (self.errors(rows, phi)[0] + self.errors.game_variance).sqrt()
        return (*found, stderr.masked_fill(self.errors.outside(rows)[:, None, None], torch.nan))

    def _grand(self, rows: Tensor, outputs: Tensor | None) -> Tensor:
        if self.imitation is None:
            assert outputs is not None
            return outputs
        estimated = self._estimated(self.imitation, rows)
        if outputs is None:
            return estimated
        return torch.where(outputs.isnan().any(1, keepdim=True), estimated, outputs)

    def _estimated(self, game: Surrogate, rows: Tensor) -> Tensor:
        raw = game.network_.known(rows)
        if game.scale == "probabilities" and game.link == "identity":
            return raw.softmax(-1).double()  # one operator; `activate` has twelve, which torch computes faster
        return linked(game.link, game.activate(raw)).double()


def export(fitted: Fitted, path: str | os.PathLike[str], *, logits: bool = False) -> None:
    """Write an explainer as an ONNX graph, with all that is needed to use it in its metadata.

    Parameters
    ----------
    fitted : Fitted
        The explainer.
    path : str or os.PathLike
        Where to write the graph.
    logits : bool, default=False
        Whether the user's model returns logits. The graph's metadata says so.

    Raises
    ------
    ExportError
        If the graph does not return what torch does; nothing is written then.
    InputError
        If the value function has no null that is the same for every row.
    """
    for package in ("onnxscript", "onnxruntime"):
        require(package, "onnx")
    graph = ExplainerModule(fitted).eval()
    names = list(graph.inputs)
    results = ["shap_values", "base_values", "predictions", *(["error_std"] if graph.errors is not None else [])]
    inputs = _example(fitted)[: len(names)]
    batch = torch.export.Dim("batch")
    with _quiet(), torch.no_grad():
        traced = torch.export.export(graph, inputs, dynamic_shapes=tuple({0: batch} for _ in names))
        program = torch.onnx.export(
            traced, input_names=names, output_names=results, opset_version=_OPSET, dynamo=True
        )
    assert program is not None
    model = program.model_proto
    _remove_traces(model)
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, json_text(describe(fitted, logits=logits))
    data = sealed(model.SerializeToString())
    for example in _examples(graph, inputs):
        _check(data, graph, example, names)
    write_bytes(Path(path), data)


def _remove_traces(model: Any) -> None:
    """Remove the traces that torch leaves on each node, which name files and folders of this machine."""
    for part in (model.graph, *model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output):
        del part.metadata_props[:]
        part.doc_string = ""
    for tensor in model.graph.initializer:
        del tensor.metadata_props[:]


def describe(fitted: Fitted, *, logits: bool = False) -> dict[str, Any]:
    """Return what a user of the graph needs to know, as plain JSON values."""
    game, report, schema = fitted.game, fitted.report, fitted.schema
    found = {
        "format": FORMAT,
        "version": __version__,
        "schema": schema.to_dict(),
        "players": asdict(fitted.partition),
        "output_names": list(fitted.output_names),
        "link": link_of(game),
        "scale": scale_of(game),
        "sums_to": graph_sums_to(game),
        "normalized": fitted.normalized,
        "report": None if report is None else {**report.to_dict(), "warnings": report.warnings()},
    }
    if logits:
        found["logits"] = True
    ranges = schema.ranges(fitted.reference.sample)
    return found if ranges is None else {**found, "ranges": ranges}


def _example(fitted: Fitted) -> tuple[Tensor, ...]:
    """Return some rows, and some outputs for them, as the graph takes them."""
    device, outputs = fitted.device, fitted.game.outputs
    rows = fitted.schema.examples(fitted.reference.sample, _ROWS).to(device)
    return rows, torch.full((_ROWS, outputs), 0.5, dtype=torch.float64, device=device)


def _examples(graph: ExplainerModule, inputs: tuple[Tensor, ...]) -> Iterator[tuple[Tensor, ...]]:
    """Yield the inputs for which the graph is checked. If outputs are optional, some or all are left out too."""
    yield inputs
    if graph.imitation is not None and len(inputs) > 1:
        rows, outputs = inputs
        unknown = torch.full_like(outputs, math.nan)
        some = outputs.clone()
        some[1::2, -1] = math.nan
        yield rows, unknown
        yield rows, some


def _check(data: bytes, graph: ExplainerModule, inputs: tuple[Tensor, ...], names: list[str]) -> None:
    """Check that onnxruntime returns what torch does, for several rows and for one."""
    session = require("onnxruntime", "onnx").InferenceSession(data, providers=["CPUExecutionProvider"])
    for rows in (_ROWS, 1):
        parts = tuple(part[:rows] for part in inputs)
        with torch.no_grad():
            expected = [result.cpu().numpy() for result in graph(*parts)]
        given = {name: part.cpu().numpy() for name, part in zip(names, parts, strict=True)}
        for name, right, found in zip(
            [output.name for output in session.get_outputs()], expected, session.run(None, given), strict=True
        ):
            unknown = np.isnan(right)  # standard errors outside of the range of the training rows
            same = found.shape == right.shape and bool((np.isnan(found) == unknown).all())
            off = float(np.abs(found - right)[~unknown].max(initial=0.0)) if same else math.inf
            if not off <= _TOLERANCE * max(1.0, float(np.abs(right[~unknown]).max(initial=0.0))):
                raise ExportError(
                    f"{name} of the graph differs from torch by {off:.2g} for {rows} rows: nothing was written"
                )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch inside, while it traces a graph."""
    said = logging.getLogger("torch.onnx")
    level = said.level
    said.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        said.setLevel(level)
