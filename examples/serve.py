"""Serve an explainer over HTTP: fit, serve, send rows with the client, stop.

python examples/serve.py           (about 15 seconds; needs the serve extra)
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.ensemble import GradientBoostingRegressor

from fastshapley import FastSHAP
from fastshapley.client import Client


@contextmanager
def served(path: Path) -> Iterator[str]:
    """Run ``fastshapley serve`` on a free port until the end of the block, and yield its address."""
    command = [sys.executable, "-m", "fastshapley", "serve", str(path), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield next(found[0] for line in process.stderr if (found := re.search(r"http://[\d.:]+", line)))
        finally:
            process.terminate()  # the server answers open requests first


def main() -> None:
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    model = GradientBoostingRegressor(random_state=0).fit(X, y)
    explainer = FastSHAP(model, time_budget=10, random_state=0, progress=False).fit(X)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "diabetes.fastshap"
        explainer.save(path)
        with served(path) as url:
            client = Client(url)
            explanation = client.explain(X[:5], outputs=model.predict(X[:5]))  # values sum to the model's outputs
            print(f"{client.models()} at {url}: values {explanation.shape}")
    there, here = explanation.values, explainer(X[:5]).values
    print(json.dumps(dict(zip(X.columns, there[0].round(2).tolist(), strict=True))))
    print(f"largest difference to the library itself: {np.abs(there - here).max():.1e}")


if __name__ == "__main__":
    main()
