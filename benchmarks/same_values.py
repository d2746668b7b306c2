"""Check that a change of structure leaves every value as it was, byte for byte.

A fixed list of small fits is run through the public interface, and each result is reduced to a hash. Run it on the
code before a change and again after it, on the same machine: other processors and other versions of torch round
differently, which is why the hashes are not committed.

    python benchmarks/same_values.py --output before.json
    python benchmarks/same_values.py --compare before.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_diabetes, load_digits
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder
from torch import Tensor, nn

from fastshapley import FastSHAP, Groups, Layers, Recipe, Superpixels, Targets, Training, UNet
from fastshapley.value_functions import Marginal, Missing

# No time limits: how much is evaluated would depend on how busy the machine is.
SHORT = Training(steps=120, batch_size=32, learning_rate=3e-3, schedule="cosine")
QUICK = Recipe(
    surrogate=(SHORT,),
    explainer=SHORT,
    surrogate_layers=Layers(1, 32, "silu"),
    explainer_layers=Layers(1, 32, "silu"),
    targets=Targets(coalitions=8, evaluations=50_000, rows=256, seconds=1e6),
    errors=Training(steps=50),
    tied_classes=True,
    validation_coalitions=16,
)
FRESH = Recipe(surrogate=(SHORT,), explainer=SHORT, coalitions=8, validation_coalitions=16)
IMAGES = Recipe(
    surrogate=(Training(steps=20, batch_size=16),),
    explainer=Training(steps=20, batch_size=16),
    targets=Targets(evaluations=1000, rows=1, fewest=1 << 40, seconds=1e6),
    coalitions=8,
    validation_rows=16,
    validation_coalitions=8,
    tied_classes=True,
)
Result = dict[str, Any]


def people(rows: int, seed: int = 0) -> tuple[pd.DataFrame, Any]:
    """A table with every kind of column and with gaps, and a model of it."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, rows),
            "income": rng.normal(30, 8, rows),
            "job": rng.choice(["clerk", "chef", "nurse"], rows),
            "city": pd.Categorical(rng.choice(["Bern", "Basel"], rows)),
            "member": rng.random(rows) < 0.4,
        }
    )
    label = (frame["age"] + frame["income"] + 20 * frame["member"] + rng.normal(0, 9, rows) > 85).astype(int)
    frame.loc[rng.random(rows) < 0.1, "income"] = np.nan
    frame.loc[rng.random(rows) < 0.1, "job"] = None
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    return frame, make_pipeline(encoder, HistGradientBoostingClassifier(random_state=0)).fit(frame, label)


def fitted(model: Any, X: Any, **options: Any) -> FastSHAP:
    """An explainer that trains in a moment."""
    return FastSHAP(model, **{"recipe": QUICK, "random_state": 0, "progress": False, **options}).fit(X)


def values(explainer: FastSHAP, X: Any, **options: Any) -> Result:
    """Everything numeric in an explanation, and the losses and the report of the explainer."""
    found = explainer(X, **options)
    report = explainer.report_
    return {
        "values": found.values,
        "base": found.base_values,
        "errors": found.error_std,
        "losses": explainer.losses_,
        "report": None if report is None else [report.l2, report.relative_squared_error, report.fidelity],
    }


def table() -> Result:
    X, model = people(400)
    explainer = fitted(model, X)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.fastshap"
        explainer.save(path)
        loaded = FastSHAP.load(path, model)
    drift = explainer.check(people(100, seed=1)[0])
    return {
        "forward": values(explainer, X[:50], errors=True),
        "budget": values(explainer, X[:20], budget=12),
        "tolerance": values(explainer, X[:20], tol=0.05),
        "anchored": values(explainer, X[:20], anchor="model", background=X, calls=16),
        "loaded": values(loaded, X[:50], errors=True),
        "exact": explainer.estimate(X[:5]).values,
        "kernel": explainer.estimate(X[:5], "kernel", budget=24, random_state=0).values,
        "permutation": explainer.estimate(X[:5], "permutation", budget=24, random_state=0).stderr,
        "drift": [drift.p_value, drift.model_p_value, drift.error_ratio],
    }


def groups() -> Result:
    X, model = people(300)
    options: dict[str, Any] = {"players": Groups({"work": ["income", "job"]}), "link": "logit", "penalty": 0.1}
    return {"logit": values(fitted(model, X, normalize="inference", **options), X[:50])}


def unnormalised() -> Result:
    X, model = people(300)
    return {"never": values(fitted(model, X, normalize="never", link="log", recipe=FRESH), X[:50])}


def marginal() -> Result:
    # A fast model: how much is spent on the report and on error bars depends on the time a call takes.
    X = load_diabetes(return_X_y=True)[0]
    weights = np.random.default_rng(0).normal(size=(X.shape[1], 2))
    explainer = fitted(lambda rows: np.tanh(20 * rows @ weights), X, value_function=Marginal(4))
    return {"marginal": values(explainer, X[:50])}


def fixed_values() -> Result:
    X, model = people(300)
    return {
        "baseline": values(fitted(model, X, value_function="baseline"), X[:50]),
        "missing": values(fitted(model, X, value_function=Missing()), X[:50]),
    }


def default_recipe() -> Result:
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    explainer = fitted(LinearRegression().fit(X, y), X, recipe="default")
    return {"default": values(explainer, X[:50], errors=True), "budget": values(explainer, X[:20], budget=60)}


def sampling_recipe() -> Result:
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    return {"sampling": values(fitted(LinearRegression().fit(X, y), X, recipe="sampling"), X[:10], budget=60)}


class Product:
    """A game of the user's own: the product of the columns that are shown."""

    players, outputs = 4, 1

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        return torch.where(s, x[:, None], 1.0).prod(2, keepdim=True)


def own_game() -> Result:
    X = np.random.default_rng(0).normal(size=(200, 4))
    return {"product": values(fitted(None, X, value_function=Product()), X[:50], errors=True)}


def updated() -> Result:
    X, model = people(400)
    explainer = fitted(model, X[:200])
    return {"update": values(explainer.update(X[100:]), X[:50], errors=True)}


def resumed() -> Result:
    """Interrupt a fit from inside the model, and go on."""
    X = np.random.default_rng(0).normal(size=(300, 5))
    weights = np.arange(1.0, 6.0)
    calls = {"left": 4}

    def model(rows: Any) -> Any:
        calls["left"] -= 1
        if not calls["left"]:
            raise KeyboardInterrupt
        return np.tanh(rows @ weights)

    options: dict[str, Any] = {"value_function": Marginal(4), "recipe": QUICK}
    with tempfile.TemporaryDirectory() as folder:
        explainer = FastSHAP(model, random_state=0, progress=False, **options)
        try:
            explainer.fit(X, checkpoint=folder)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("the model was not called often enough to interrupt the fit")
        return {"resumed": values(explainer.fit(X, checkpoint=folder), X[:50])}


def images() -> Result:
    pixels, _ = load_digits(n_class=3, return_X_y=True)
    x = torch.from_numpy(pixels[:96]).float().reshape(-1, 1, 8, 8) / 16
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 8, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 3),
        )
    options: dict[str, Any] = {"players": Superpixels(grid=2), "logits": True, "recipe": IMAGES}
    surrogate = fitted(model, x, **options)
    return {
        "backbone": values(surrogate, x[:10]),
        "upsampled": surrogate.shap_values(x[:10], upsample=True),
        "unet": values(fitted(model, x, network=UNet(), value_function="baseline", **options), x[:10]),
        "update": values(surrogate.update(x[:64]), x[:10]),
    }


def classes() -> Result:
    X, y = load_digits(n_class=4, return_X_y=True)
    model = LogisticRegression(max_iter=2000).fit(X[:, 20:30], y)
    return {"classes": values(fitted(model, X[:300, 20:30]), X[:20, 20:30], outputs=[0, 2], errors=True)}


FITS: tuple[Callable[[], Result], ...] = (
    table,
    groups,
    unnormalised,
    marginal,
    fixed_values,
    default_recipe,
    sampling_recipe,
    own_game,
    updated,
    resumed,
    images,
    classes,
)


def hashes(name: str, result: Any) -> Iterator[tuple[str, str]]:
    """The name and the hash of each number or array in a nested result."""
    if isinstance(result, dict):
        for key, part in result.items():
            yield from hashes(f"{name}/{key}", part)
    else:
        listed = result if isinstance(result, np.ndarray) else np.array(result, dtype=object).tolist()
        data = listed.tobytes() if isinstance(listed, np.ndarray) else repr(listed).encode()
        yield name, hashlib.sha256(data).hexdigest()[:16]


def main() -> None:
    torch.set_num_threads(1)  # the last digits depend on the number of threads
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the hashes to this JSON file")
    parser.add_argument("--compare", type=Path, help="exit with 1 if the hashes in this JSON file are others")
    parser.add_argument("--only", nargs="*", help="names of the fits to run, by default all")
    arguments = parser.parse_args()
    found: dict[str, str] = {}
    for fit in FITS:
        if not arguments.only or fit.__name__ in arguments.only:
            found |= dict(hashes(fit.__name__, fit()))
            print(f"{fit.__name__}: done", flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(found, indent=1))
    if arguments.compare:
        before = json.loads(arguments.compare.read_text())
        changed = [name for name, digest in found.items() if before.get(name) != digest]
        print(f"{len(found) - len(changed)} results are the same, {len(changed)} differ", *changed, sep="\n  ")
        raise SystemExit(bool(changed))


if __name__ == "__main__":
    main()
