"""Try a graph in a process of its own, because a graph may never end, crash or exhaust the memory.

``python -m fastshapley.serving.graph_trial SECONDS < graph.onnx`` prints ``quick`` or ``slow``, or fails. With the
size of the graph in bytes as the second argument, the ONNX file of the explained model may follow it.
"""

from __future__ import annotations

import faulthandler
import sys
import time

import numpy as np

from fastshapley.export.graph import Graph, has_loops
from fastshapley.serving.batching import MAX_BATCH_ROWS
from fastshapley.serving.user_model import UserModel

# With -P, Python imports nothing from the current folder.
TRIAL_COMMAND = (sys.executable, "-P", "-m", "fastshapley.serving.graph_trial")
QUICK, SLOW = "quick", "slow"
_QUICK_SECONDS = 2e-3  # longest time that one row may take on the event loop; a full batch may take ten times that


def try_graph(data: bytes, model: bytes = b"") -> str:
    """Run a graph on examples.

    Parameters
    ----------
    data : bytes
        The exported explainer.
    model : bytes, optional
        ONNX file of the explained model, which is run on the same rows.

    Returns
    -------
    speed : {"quick", "slow"}
        Whether the graph is fast enough for the event loop: for one row and for a full batch, and whatever the
        rows are.

    Raises
    ------
    FileFormatError
        If the graph is not one that `FastSHAP.export_onnx` wrote, or the model is not an ONNX graph.
    OutputsError
        If the model does not return what the explainer takes.
    """
    graph = Graph(data)
    user_model = UserModel(model, graph) if model else None
    row, outputs = graph.example()
    for rows, limit in ((1, _QUICK_SECONDS), (MAX_BATCH_ROWS, 10 * _QUICK_SECONDS)):
        arrays = [np.repeat(array, rows, axis=0) for array in (row, outputs) if array is not None]
        durations = []
        for _ in range(3):
            start = time.perf_counter()
            if user_model is not None:
                arrays[1:] = [user_model(arrays[0])]
            graph(*arrays)
            durations.append(time.perf_counter() - start)
        if min(durations) > limit:
            return SLOW
    return SLOW if has_loops(data) or (model and has_loops(model)) else QUICK


def main() -> None:
    """Try the graph on standard input, and exit at the latest after the seconds that the first argument gives."""
    faulthandler.dump_traceback_later(float(sys.argv[1]), exit=True)
    try:
        content = sys.stdin.buffer.read()
        size = int(sys.argv[2]) if len(sys.argv) > 2 else len(content)
        speed = try_graph(content[:size], content[size:])
    except Exception as error:  # onnxruntime's errors have no common base class.
        sys.exit(" ".join(str(error).split()))
    finally:
        faulthandler.cancel_dump_traceback_later()
    sys.stdout.write(speed)


if __name__ == "__main__":
    main()
