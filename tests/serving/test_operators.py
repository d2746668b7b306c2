"""Operators of the page's interpreter, one at a time: exported graphs use only some of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from browser import assert_same_as_onnxruntime, interpreter, onnx
from numpy.typing import NDArray

MAPS = (2, 4, 7, 6)
ROWS = (3, 4, 5)
Case = tuple[str, dict[str, Any], tuple[Any, ...]]


def floats(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def resize(mode: str, where: str, *dims: int, **more: Any) -> Case:
    attributes = {"mode": mode, "coordinate_transformation_mode": where, **more}
    return "Resize", attributes, (floats(*MAPS), None, None, ints(*dims))


CASES: list[Case] = [
    ("Conv", {"pads": [1, 2, 0, 1], "strides": [2, 1]}, (floats(*MAPS), floats(5, 4, 3, 3), floats(5))),
    ("Conv", {"group": 2, "dilations": [2, 1]}, (floats(*MAPS), floats(6, 2, 3, 2))),
    ("Conv", {"group": 4, "pads": [1, 1, 1, 1]}, (floats(*MAPS), floats(4, 1, 3, 3), floats(4))),
    ("Conv", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, (floats(*MAPS), floats(3, 4, 3, 3))),
    ("Conv", {"strides": [2, 2]}, (floats(*MAPS), floats(3, 4, 1, 1))),
    ("Conv", {"pads": [1, 1], "strides": [2]}, (floats(2, 3, 9), floats(4, 3, 3))),
    (
        "ConvTranspose",
        {"group": 2, "strides": [2, 3], "pads": [1, 0, 1, 1], "output_padding": [1, 0]},
        (floats(*MAPS), floats(4, 3, 3, 3), floats(6)),
    ),
    ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, (floats(*MAPS),)),
    ("MaxPool", {"kernel_shape": [2], "strides": [2]}, (floats(2, 3, 9),)),
    ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}, (floats(*MAPS),)),
    ("AveragePool", {"kernel_shape": [3, 2], "pads": [1, 1, 1, 1], "strides": [2, 2]}, (floats(*MAPS),)),
    ("GlobalAveragePool", {}, (floats(*MAPS),)),
    ("GlobalMaxPool", {}, (floats(*MAPS),)),
    resize("linear", "half_pixel", 2, 4, 14, 9),
    resize("linear", "align_corners", 2, 4, 3, 11),
    resize("nearest", "asymmetric", 2, 4, 14, 9, nearest_mode="floor"),
    resize("nearest", "half_pixel", 2, 4, 3, 13),
    resize("cubic", "half_pixel", 2, 4, 14, 9),
    ("Resize", {"mode": "linear"}, (floats(*MAPS), None, np.array([1, 1, 2, 1.5], dtype=np.float32))),
    ("BatchNormalization", {}, (floats(*MAPS), floats(4), floats(4), floats(4), floats(4) ** 2)),
    ("LayerNormalization", {"axis": 1}, (floats(*ROWS), floats(4, 5), floats(4, 5))),
    ("InstanceNormalization", {}, (floats(*MAPS), floats(4), floats(4))),
    ("MatMul", {}, (floats(2, 1, 3, 5), floats(4, 5, 2))),
    ("MatMul", {}, (floats(5), floats(4, 5, 2))),
    ("Gemm", {"transA": 1, "alpha": 0.5, "beta": 2.0}, (floats(5, 3), floats(5, 2), floats(1, 2))),
    ("Pad", {"mode": "reflect"}, (floats(*ROWS), ints(0, 1, 3, 0, 2, 1))),
    ("Pad", {"mode": "edge"}, (floats(*ROWS), ints(0, 1, 3, 0, 2, 1))),
    ("Pad", {}, (floats(*ROWS), ints(1, -1, 2, 0), np.float32(7), ints(1, -1))),
    ("Slice", {}, (floats(*ROWS), ints(-1, 1), ints(-(2**63), 2**63 - 1), ints(1, 2), ints(-2, 2))),
    ("Split", {"axis": 1, "num_outputs": 2}, (floats(*ROWS),)),
    ("Split", {"axis": -1}, (floats(*ROWS), ints(1, 4))),
    ("Transpose", {}, (floats(*ROWS),)),
    ("Tile", {}, (floats(*ROWS), ints(1, 2, 2))),
    ("Expand", {}, (floats(4, 1), ints(3, 1, 5))),
    ("Squeeze", {}, (floats(1, 3, 1), ints(-1))),
    ("Flatten", {"axis": 2}, (floats(*ROWS),)),
    ("Gather", {"axis": 1}, (floats(*ROWS), ints(0, -1, 2).reshape(3, 1))),
    ("GatherElements", {"axis": 1}, (floats(3, 4), np.tile(ints(1, -1), (3, 1)))),
    ("ScatterElements", {"axis": 1, "reduction": "add"}, (floats(2, 4), np.tile(ints(1, 1), (2, 1)), floats(2, 2))),
    ("ScatterND", {}, (floats(4, 3), ints(3, 0).reshape(2, 1), floats(2, 3))),
    ("ArgMax", {"axis": 1, "keepdims": 0}, (floats(*ROWS),)),
    ("CumSum", {"reverse": 1}, (floats(*ROWS), ints(1))),
    ("ReduceMax", {"keepdims": 0}, (floats(*ROWS), ints(0, 2))),
    ("ReduceL2", {}, (floats(*ROWS), ints(1))),
    ("ReduceLogSumExp", {}, (floats(*ROWS), ints(-1))),
    ("ReduceProd", {}, (floats(*ROWS),)),
    ("Softmax", {"axis": 1}, (floats(*ROWS) * 50,)),
    ("Div", {}, (ints(7, -7), ints(2, 2))),
    ("Mod", {}, (ints(7, -7), ints(3, 3))),
    ("Round", {}, (np.array([0.5, 1.5, -0.5, -2.5, 2.4], dtype=np.float32),)),
    ("Where", {}, (floats(4, 1) > 0, floats(4, 3), floats(3))),
    ("IsInf", {"detect_negative": 0}, (np.array([np.inf, -np.inf, np.nan], dtype=np.float32),)),
    ("Clip", {}, (floats(*ROWS), np.float32(-0.5), np.float32(0.5))),
    ("Max", {}, (floats(4, 1), floats(3), np.float32(0))),
    ("Pow", {}, (floats(3, 4), np.float32(3))),
    *(
        (name, {}, (floats(*ROWS) * 3,))
        for name in ("Abs", "Celu", "Ceil", "Cos", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "Neg", "Relu")
    ),
    *((name, {}, (floats(*ROWS) * 3,)) for name in ("Reciprocal", "Sigmoid", "Sign", "Sin", "Softsign", "Tanh")),
]


def graph_of_one_operator(
    name: str, attributes: dict[str, Any], inputs: tuple[Any, ...]
) -> tuple[bytes, dict[str, NDArray[Any]]]:
    """Return a graph of one operator, and its first input. The other inputs are constants in the graph."""
    helper, arrays = onnx.helper, [None if x is None else np.asarray(x) for x in inputs]
    names = ["" if array is None else f"x{i}" for i, array in enumerate(arrays)]
    outputs = [f"y{i}" for i in range(2 if name == "Split" else 1)]
    kind = onnx.helper.np_dtype_to_tensor_dtype
    first = arrays[0]
    assert first is not None
    result = {"ArgMax": np.int64, "IsInf": np.bool_, "Where": np.float32}.get(name, first.dtype)
    graph = helper.make_graph(
        [helper.make_node(name, names, outputs, **attributes)],
        "alone",
        [helper.make_tensor_value_info("x0", kind(first.dtype), first.shape)],
        [helper.make_tensor_value_info(output, kind(np.dtype(result)), None) for output in outputs],
        [onnx.numpy_helper.from_array(x, f"x{i}") for i, x in enumerate(arrays) if i and x is not None],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return model.SerializeToString(), {"x0": first}


@pytest.fixture(scope="module")
def script(browser: Any) -> Iterator[Any]:
    """A page with the scripts that run graphs."""
    with interpreter(browser) as page:
        yield page


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_an_operator_has_the_same_results_as_in_onnxruntime(case: Case, script: Any) -> None:
    graph, inputs = graph_of_one_operator(*case)
    assert_same_as_onnxruntime(script, graph, 1e-5, **inputs)


def test_tensors_in_typed_fields_are_read(script: Any) -> None:
    """A tensor may store its numbers in a field of their type instead of as bytes."""
    helper, kinds = onnx.helper, onnx.TensorProto
    constants = [
        helper.make_tensor("a", kinds.FLOAT, [2, 2], [1.5, -2.5, 3.0, 1e-3]),
        helper.make_tensor("b", kinds.INT64, [2], [-1, 2**40]),
        helper.make_tensor("c", kinds.DOUBLE, [2], [1e-300, -0.1]),
        helper.make_tensor("d", kinds.BOOL, [2], [True, False]),
        helper.make_tensor("e", kinds.INT32, [2], [-3, 5]),
    ]
    nodes = [helper.make_node("Mul", ["x", "a"], ["y"])]
    nodes += [helper.make_node("Identity", [name], [f"{name}_out"]) for name in "bcde"]
    nodes += [helper.make_node("Constant", [], ["f"], value_floats=[1.0, 2.0])]
    value = helper.make_tensor_value_info
    outputs = [value("y", kinds.FLOAT, None), value("f", kinds.FLOAT, None)]
    outputs += [value(f"{t.name}_out", t.data_type, None) for t in constants[1:]]
    graph = helper.make_graph(nodes, "g", [value("x", kinds.FLOAT, [2, 2])], outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    assert_same_as_onnxruntime(script, model.SerializeToString(), 1e-7, x=floats(2, 2))
