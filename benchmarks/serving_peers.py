"""Servers that `serving.py` measures ours against: ``python benchmarks/serving_peers.py NAME PORT FOLDER``.

The folder holds census.onnx, the model as model.joblib, some of its rows as rows.json and an answer.json.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PATH = "/v1/models/{name}:explain"


def empty(folder: Path) -> Any:
    """Reads the body and sends an answer that it has: what the stack costs by itself."""
    answer = (folder / "answer.json").read_bytes()

    async def send(request: Request) -> Response:
        await request.body()
        return Response(answer, media_type="application/json")

    return Starlette(routes=[Route(PATH, send, methods=["POST"])])


def ours(folder: Path, graph: str = "census.onnx") -> Any:
    from fastshapley.serving.app import create_app
    from fastshapley.serving.model_store import ModelStore

    return create_app(ModelStore({"census": folder / graph}))


def one_layer(folder: Path) -> Any:
    """Ours, with a graph of the same inputs and outputs and one small layer: what onnxruntime costs by itself."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    whole = onnx.load(folder / "census.onnx")
    (columns,) = (part.dim_value for part in whole.graph.input[0].type.tensor_type.shape.dim[1:])
    shapes = {
        out.name: [part.dim_value for part in out.type.tensor_type.shape.dim[1:]] for out in whole.graph.output
    }
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    constants = {
        "weight": np.full((columns, sum(sizes)), 0.01, dtype=np.float32),
        "bias": np.zeros(sum(sizes), dtype=np.float32),
        "sizes": np.array(sizes),
        **{f"{name} shape": np.array([-1, *shape]) for name, shape in shapes.items()},
    }
    nodes = [
        helper.make_node("Cast", ["rows"], ["inputs"], to=TensorProto.FLOAT),
        helper.make_node("Gemm", ["inputs", "weight", "bias"], ["layer"]),
        helper.make_node("Cast", ["layer"], ["all"], to=TensorProto.DOUBLE),
        helper.make_node("Split", ["all", "sizes"], [f"{name} flat" for name in shapes], axis=1),
        *(helper.make_node("Reshape", [f"{name} flat", f"{name} shape"], [name]) for name in shapes),
    ]
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "one layer", whole.graph.input, whole.graph.output, initializers)
    model = helper.make_model(graph, opset_imports=whole.opset_import, ir_version=whole.ir_version)
    model.metadata_props.extend(whole.metadata_props)
    onnx.save(model, folder / "one_layer.onnx")
    return ours(folder, "one_layer.onnx")


def without_network(folder: Path) -> Any:
    """Ours, with an answer that is there already instead of a run of the graph."""
    from dataclasses import replace

    from fastshapley.serving.app import create_app
    from fastshapley.serving.batching import Batcher
    from fastshapley.serving.model_loader import ModelLoader, ServedModel
    from fastshapley.serving.model_store import ModelStore

    class StubLoader(ModelLoader):
        def load(self, name: str, file: Path) -> ServedModel:
            model = super().load(name, file)
            row, outputs = model.graph.example()
            results = model.graph(row, outputs)

            def repeat(rows: Any) -> Any:
                return {key: value.repeat(len(rows), 0) for key, value in results.items()}

            return replace(model, run=Batcher(repeat))

    return create_app(ModelStore({"census": folder / "census.onnx"}, loader=StubLoader()))


def bare(folder: Path) -> Any:
    """The same graph in as few lines as will do: no checks, no batches, no limits, no counters."""
    import onnxruntime
    import orjson

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "census.onnx", options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    async def explain(request: Request) -> Response:
        rows = [list(row.values()) for row in orjson.loads(await request.body())["instances"]]
        found = dict(zip(names, session.run(names, {"rows": np.array(rows, dtype=np.float64)}), strict=True))
        return Response(orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")

    return Starlette(routes=[Route(PATH, explain, methods=["POST"])])


def peer(folder: Path, kind: str) -> Any:
    """What people build: FastAPI around one of shap's explainers of the model, made once."""

    import pandas as pd
    import shap
    from fastapi import FastAPI
    from pydantic import BaseModel

    model = joblib.load(folder / "model.joblib")
    background = pd.DataFrame(json.loads((folder / "rows.json").read_text()))
    if kind == "tree":
        explainer = shap.TreeExplainer(model)
    else:
        columns = list(background.columns)

        def predict(rows: Any) -> Any:
            return model.predict_proba(pd.DataFrame(rows, columns=columns))

        explainer = shap.KernelExplainer(predict, background)

    class Body(BaseModel):
        instances: list[dict[str, float]]

    app = FastAPI()

    @app.post(PATH)
    def explain(name: str, body: Body) -> dict[str, Any]:
        X = pd.DataFrame(body.instances)
        options = {} if kind == "tree" else {"silent": True}
        values = np.asarray(explainer.shap_values(X, **options))
        return {"shap_values": values.tolist(), "predictions": model.predict_proba(X).tolist()}

    return app


APPS: dict[str, Callable[[Path], Any]] = {
    "empty": empty,
    "ours": ours,
    "without network": without_network,
    "one layer": one_layer,
    "bare": bare,
    "tree": lambda folder: peer(folder, "tree"),
    "kernel": lambda folder: peer(folder, "kernel"),
}

if __name__ == "__main__":
    name, port, folder, stack = sys.argv[1:]
    http, loop = ("h11", "asyncio") if stack == "plain" else ("httptools", "uvloop")
    app = APPS[name](Path(folder))
    options: Any = {"http": http, "loop": loop, "log_level": "error", "access_log": False}
    uvicorn.run(app, host="127.0.0.1", port=int(port), **options)
