"""``fastshapley paper images``: the paper's experiments on images, at a scale that needs no GPU."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastshapley import metrics
from fastshapley.baselines.inclusion_curves import Curve, Curves, paired_interval
from fastshapley.paper import image_figures, image_page
from fastshapley.paper.image_experiments import ImageExperiments, ImagePiece, revision
from fastshapley.paper.image_sets import SETS
from fastshapley.paper.image_settings import EVALUATORS, FULL, METHODS, QUICK
from fastshapley.paper.pool import compute_all
from fastshapley.paper.store import Store
from fastshapley.support.atomic_files import write_text
from fastshapley.support.optional import require
from fastshapley.version import __version__

WAYS, SCORES = ("exclusion", "inclusion"), ("agreement", "log_odds")


def run(
    output: Path,
    dataset: str,
    *,
    quick: bool = False,
    store: Path,
    workers: int | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Run the experiments on one image set, and write ``images-<dataset>.json``, figures and ``images.md``.

    Parameters
    ----------
    output : Path
        The folder for the results. The page shows all image sets whose numbers are in it. A file
        ``images-notes.md`` in it becomes part of the page.
    dataset : {"cifar10", "imagenette"}
        The image set.
    quick : bool, default=False
        Whether to run at a small scale.
    store : Path
        The folder for intermediate results. What it holds is not computed again.
    workers : int, optional
        The number of processes. The default is one per processor.
    progress : bool, default=True
        Whether to show a progress bar.

    Returns
    -------
    dict
        The content of ``images-<dataset>.json``.
    """
    experiments = ImageExperiments(Store(store), SETS[dataset], QUICK if quick else FULL[dataset])
    command = f"fastshapley paper images --dataset {dataset}" + " --quick" * quick
    return write_results(experiments, output, command, workers=workers, progress=progress)


def write_results(
    experiments: ImageExperiments, output: Path, command: str, *, workers: int | None, progress: bool
) -> dict[str, Any]:
    """Compute the missing pieces of the experiments, and write the numbers, the figures and the page.

    Parameters
    ----------
    experiments : ImageExperiments
        The image set, the scale and the store.
    output : Path
        The folder for the results.
    command : str
        The command line that the results name as their origin.
    workers : int or None
        The number of processes. None starts one per processor, and 0 computes in this process.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    dict
        The content of ``images-<dataset>.json``.
    """
    require("captum", "images")  # A missing package is reported before hours of work.
    dataset = experiments.set.name
    compute_all(experiments, experiments.stages(), f"images, {dataset}", workers, progress=progress)
    found = {"command": command, "version": __version__, "made_by": revision(), **results(experiments)}
    write_text(output / f"images-{dataset}.json", json.dumps(found, indent=1) + "\n")
    image_figures.draw(found, experiments, output)
    every = [output / f"images-{name}.json" for name in SETS]
    notes = output / "images-notes.md"
    text = image_page.page(
        [json.loads(path.read_text()) for path in every if path.exists()],
        notes.read_text() if notes.exists() else None,
    )
    write_text(output / "images.md", text)
    return found


def results(experiments: ImageExperiments) -> dict[str, Any]:
    """Return all numbers, with their 95 % intervals over images."""
    curves = {
        evaluator: {method: experiments.curves(method, evaluator) for method in METHODS} for evaluator in EVALUATORS
    }
    return {
        "set": asdict(experiments.set),
        "scale": asdict(experiments.scale),
        "training_images": len(experiments.images.x),
        "players": len(experiments.players),
        "evaluators": {
            evaluator: {
                "full_image_agreement": float(found["FastSHAP"].inclusion.agreement.mean[-1]),
                "methods": {
                    method: _method(experiments, evaluator, method, found[method], found["FastSHAP"])
                    for method in METHODS
                },
            }
            for evaluator, found in curves.items()
        },
        "error": _error(experiments),
        "seconds_an_image": {name: float(value) for name, value in experiments.get(ImagePiece("times")).items()},
        "seconds_to_train": {
            "surrogate": float(experiments.get(ImagePiece("surrogate"))["seconds"]),
            "FastSHAP": float(experiments.get(ImagePiece("explainer"))["seconds"]),
            "CXPlain": float(experiments.get(ImagePiece("CXPlain"))["seconds"]),
        },
        "robustness": [_share(experiments, share) for share in (*experiments.scale.shares, 1.0)],
    }


def curve_of(curves: Curves, way: str, score: str) -> Curve:
    """Return the curve of a way ("exclusion" or "inclusion") and a score."""
    curve: Curve = getattr(getattr(curves, way), score)
    return curve


def _method(
    experiments: ImageExperiments, evaluator: str, method: str, found: Curves, fast: Curves
) -> dict[str, Any]:
    """Return a method's areas and curves, and FastSHAP's area minus the method's on the same images."""
    images = len(found.inclusion.agreement.scores)
    if images < len(fast.inclusion.agreement.scores):
        fast = experiments.curves("FastSHAP", evaluator, images=images)
    described: dict[str, Any] = {"images": images}
    for way in WAYS:
        described[way] = {}
        for score in SCORES:
            curve, other = curve_of(found, way, score), curve_of(fast, way, score)
            described[way][score] = {
                "auc": float(curve.auc.mean()),
                "interval": curve.interval(),
                "fastshap_less_this": float(other.auc.mean() - curve.auc.mean()),
                "interval_of_the_difference": paired_interval(other, curve),
                "shares": curve.shares.tolist(),
                "mean": curve.mean.tolist(),
                "band": curve.band().tolist(),
            }
    return described


def _error(experiments: ImageExperiments) -> dict[str, Any]:
    """Return the errors of FastSHAP, and of KernelSHAP-S by evaluations, against converged values."""
    truth = experiments.get(ImagePiece("truth"))
    values: NDArray[np.float64] = experiments.all_values()[: len(truth["values"])].astype(np.float64)
    error = metrics.relative_squared_error(values, truth["values"])
    errors = [metrics.relative_squared_error(step, truth["values"]) for step in truth["history"]]
    needed = metrics.evaluations_to_match(truth["budgets"], errors, error)
    return {
        "images": len(values),
        "relative_squared_error": error,
        "cosine": float(metrics.cosine(values, truth["values"]).mean()),
        "sign_agreement": metrics.sign_agreement(values, truth["values"]),
        "error_of_the_truth": float(np.square(truth["stderr"]).sum() / np.square(truth["values"]).sum()),
        "evaluations": truth["budgets"].tolist(),
        "kernel_shap_s": errors,
        "evaluations_to_match": needed if np.isfinite(needed) else None,
    }


def _share(experiments: ImageExperiments, share: float) -> dict[str, Any]:
    """Return FastSHAP's areas and error after training on a share of the images."""
    found, truth = experiments.curves("FastSHAP", "paper", share), experiments.get(ImagePiece("truth"))["values"]
    targets, values = experiments.recipe(share).targets, experiments.all_values(share)[: len(truth)]
    assert targets is not None
    areas = {
        way: {
            "auc": float(curve_of(found, way, "agreement").auc.mean()),
            "interval": curve_of(found, way, "agreement").interval(),
        }
        for way in WAYS
    }
    return {
        "share": share,
        "images": int(share * len(experiments.images.x)),
        "evaluations": targets.evaluations,
        "relative_squared_error": metrics.relative_squared_error(values.astype(np.float64), truth),
        **areas,
    }
