"""The pieces of the paper's experiments on images. Each is computed once and kept in a store."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fastshapley import baselines
from fastshapley.baselines.inclusion_curves import Curve, Curves, Scores, removal_curves
from fastshapley.coalitions import sample_all_alike
from fastshapley.data.image_schema import ImageSchema
from fastshapley.data.model_adapter import ModelFunction, trial_rows
from fastshapley.data.players import Partition, Superpixels
from fastshapley.data.stream import batches
from fastshapley.datasets.classifiers.pixels import MEAN
from fastshapley.datasets.classifiers.pretrained import load_classifier
from fastshapley.estimators import kernel
from fastshapley.explainer import FastSHAP
from fastshapley.paper import store
from fastshapley.paper.image_sets import ImageSet, Photographs, load_images, training_rows
from fastshapley.paper.image_settings import EVALUATORS, METHODS, SLOW, ImageScale
from fastshapley.paper.store import Arrays, Store, game_arrays, game_from
from fastshapley.training import recipes
from fastshapley.training.checkpoint import Checkpoint
from fastshapley.training.loop import Task, Training, train
from fastshapley.training.recipes import Recipe
from fastshapley.training.run import Run, one_thread
from fastshapley.value_functions import Problem, Surrogate

_BACKGROUND = 10  # background images of DeepSHAP
_SEED = 0
# Modules and folders of fastshapley that the results depend on. A change in any of them recomputes the results.
CODE = (
    "baselines",
    "coalitions",
    "data",
    "datasets",
    "estimators",
    "explainer",
    "export/file_format",
    "export/file_header",
    "fit",
    "networks",
    "objective",
    "paper/image_experiments",
    "paper/image_sets",
    "paper/image_settings",
    "training",
    "value_functions",
)


@dataclass(frozen=True, order=True)
class ImagePiece:
    """Something to compute.

    Parameters
    ----------
    kind : str
        What it is, such as "surrogate" or "values".
    name : str, default=""
        Which one of its kind, such as the method of the values.
    share : float, default=1.0
        The share of the training images.
    """

    kind: str
    name: str = ""
    share: float = 1.0


class ImageExperiments:
    """Networks, explanations and curves of one image set at one scale, from a store or computed into it.

    Parameters
    ----------
    kept : Store
        The store.
    chosen : ImageSet
        The image set.
    scale : ImageScale
        The size of the experiments.
    """

    def __init__(self, kept: Store, chosen: ImageSet, scale: ImageScale) -> None:
        self.store, self.set, self.scale = kept, chosen, scale

    def stages(self) -> list[list[ImagePiece]]:
        """Return all pieces of the experiments. Those of a stage need those of the stages before."""
        networks = [
            ImagePiece("CXPlain"),
            ImagePiece("surrogate"),
            *(ImagePiece("evaluator", name) for name in EVALUATORS),
        ]
        explainers = [
            ImagePiece("explainer"),
            *(ImagePiece("explainer", share=share) for share in self.scale.shares),
        ]
        last = ImagePiece("values", "KernelSHAP-S")  # needs the explainer for its game
        values = [ImagePiece("values", name) for name in METHODS if name not in ("FastSHAP", last.name)]
        curves = [_curves(method, evaluator) for evaluator in EVALUATORS for method in METHODS]
        curves += [_curves("FastSHAP", "paper", share) for share in self.scale.shares]
        return [
            [ImagePiece("model")],
            networks,
            [*explainers, ImagePiece("truth"), *values],
            [last],
            [*curves, ImagePiece("times")],
        ]

    def has(self, piece: ImagePiece) -> bool:
        """Return whether a piece is in the store."""
        return self.store.has(piece.kind, self._settings(piece))

    def compute(self, piece: ImagePiece) -> None:
        """Compute a piece, unless it is in the store."""
        with one_thread():
            self.get(piece)

    def get(self, piece: ImagePiece) -> Arrays:
        """Return a piece from the store; compute it first if necessary."""
        ways: dict[str, Callable[[ImagePiece, Checkpoint], dict[str, Any]]] = {
            "model": self._model,
            "surrogate": self._surrogate,
            "evaluator": self._evaluator,
            "CXPlain": self._cxplain,
            "explainer": self._explainer,
            "values": self._values,
            "truth": self._truth,
            "curves": self._curves,
            "times": self._times,
        }
        return self.store.remember(
            piece.kind, self._settings(piece), lambda checkpoint: ways[piece.kind](piece, checkpoint)
        )

    @cached_property
    def images(self) -> Photographs:
        """The images."""
        return load_images(self.set, self.scale.images, self.scale.test)

    @cached_property
    def players(self) -> Partition:
        """The superpixels."""
        return Superpixels(self.set.grid, fill=MEAN).bind_image(self.schema.shape)

    @cached_property
    def schema(self) -> ImageSchema:
        """The format of the images."""
        return ImageSchema("tensor", (3, self.set.size, self.set.size), "float32", 0.0, 1.0)

    @cached_property
    def network(self) -> nn.Module:
        """The classifier to explain."""
        network = load_classifier(self.set.classifier)
        if self.set.tuning:
            network.load_state_dict(
                {name: torch.from_numpy(a) for name, a in self.get(ImagePiece("model")).items()}
            )
        return network

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The classes that the classifier predicts for the test images, (n,)."""
        with torch.no_grad():
            parts = [self.network(part).argmax(1) for part in self.images.x_test.split(64)]
        return torch.cat(parts).numpy()

    def game(self) -> Surrogate:
        """Return the fitted surrogate."""
        return self._game(self.get(ImagePiece("surrogate")), self.network)

    def recipe(self, share: float) -> Recipe:
        """Return the default recipe for all training images, or a smaller one for a share of them."""
        recipe = recipes.default_images(int(share * training_rows(self.set, self.scale.images)))
        return self._part(recipe, self.scale.share * (1.0 if share == 1 else self.scale.robustness))

    def explainer(self, share: float = 1.0) -> FastSHAP:
        """Return the fitted explainer."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "explainer"
            path.write_bytes(self.get(ImagePiece("explainer", share=share))["saved"].tobytes())
            return FastSHAP.load(path, model=self.network)

    def values(self, method: str, share: float = 1.0) -> NDArray[np.float64]:
        """Return a method's values of the predicted class, (n, players), for all of its test images."""
        if method == "FastSHAP":
            found = self.all_values(share)
            return found[np.arange(len(found)), :, self.labels]
        return self.get(ImagePiece("values", method))["values"]

    def all_values(self, share: float = 1.0) -> NDArray[np.float64]:
        """Return FastSHAP's values of all classes, (n, players, classes)."""
        return self.get(ImagePiece("explainer", share=share))["values"]

    def curves(self, method: str, evaluator: str, share: float = 1.0, images: int | None = None) -> Curves:
        """Return a method's inclusion and exclusion curves, on all of its images or the first of them."""
        return curves_from_arrays(self.get(_curves(method, evaluator, share)), images)

    def _model(self, piece: ImagePiece, checkpoint: Checkpoint) -> dict[str, Any]:
        """Train the classifier further for the size of these images."""
        network, images = load_classifier(self.set.classifier), self.images

        def loss(batch: tuple[Tensor, Tensor], generator: torch.Generator) -> Tensor:
            return functional.cross_entropy(network(batch[1]), images.labels[batch[0]])

        def validate() -> float:
            parts = zip(images.x_val.split(64), images.labels_val.split(64), strict=True)
            losses = [functional.cross_entropy(network(x), y, reduction="sum") for x, y in parts]
            return float(torch.stack(losses).sum()) / len(images.x_val)

        if self.set.tuning:
            options = _training(self.set.tuning, learning_rate=2e-4)
            run = Run(_SEED, checkpoint)
            train(
                Task("model", network, len(images.x), loss, validate, fetch=lambda n: batches(images.x, n)),
                options,
                run,
            )
        return {name: tensor.numpy() for name, tensor in network.state_dict().items()}

    def _surrogate(self, piece: ImagePiece, checkpoint: Checkpoint) -> dict[str, Any]:
        start = time.process_time()
        fitted = Surrogate().fit(self._problem(), Run(_SEED, checkpoint))
        assert isinstance(fitted, Surrogate)
        return {**game_arrays(fitted), "losses": fitted.losses_, "seconds": time.process_time() - start}

    def _evaluator(self, piece: ImagePiece, checkpoint: Checkpoint) -> dict[str, Any]:
        """Train an evaluator: like the surrogate, but with the paper's coalitions or from another network."""
        new = (
            Surrogate(sampler=sample_all_alike) if piece.name == "paper" else Surrogate(self._start_of(piece.name))
        )
        fitted = new.fit(self._problem(), Run(_SEED + 1, checkpoint))
        assert isinstance(fitted, Surrogate)
        return {**game_arrays(fitted), "losses": fitted.losses_}

    def _explainer(self, piece: ImagePiece, checkpoint: Checkpoint) -> dict[str, Any]:
        images = self.images
        x = images.x[: max(1, int(piece.share * len(images.x)))]
        start = time.process_time()
        explainer = FastSHAP(
            self.network,
            value_function=self.game(),
            players=Superpixels(self.set.grid, fill=MEAN),
            link="logit",
            logits=True,
            recipe=self.recipe(piece.share),
            random_state=_SEED,
            progress=False,
        ).fit(x, X_val=images.x_val, checkpoint=checkpoint.directory)
        seconds = time.process_time() - start
        with tempfile.TemporaryDirectory() as folder:
            explainer.save(Path(folder) / "explainer")
            saved = (Path(folder) / "explainer").read_bytes()
        values = explainer.shap_values(images.x_test)
        return {
            "saved": np.frombuffer(saved, dtype=np.uint8),
            "values": values.reshape(len(values), len(self.players), -1).astype(np.float32),
            "losses": explainer.losses_,
            "seconds": seconds,
        }

    def _cxplain(self, piece: ImagePiece, checkpoint: Checkpoint) -> dict[str, Any]:
        images = self.images
        start = time.process_time()
        options = self._part(recipes.default_images(self.scale.left_out), self.scale.share).explainer
        fitted = baselines.CXPlain(
            self.network,
            self.players,
            training=options,
            rows=self.scale.left_out,
            random_state=_SEED,
            progress=False,
        ).fit(images.x)
        seconds = time.process_time() - start
        return {"values": fitted(images.x_test), "seconds": seconds}

    def _values(self, piece: ImagePiece, checkpoint: Checkpoint) -> dict[str, Any]:
        count = self.scale.slow if piece.name in SLOW else self.scale.test
        x, labels = self.images.x_test[:count], self.labels[:count]
        values = self._explain(piece.name, x, labels)
        return {"values": values.reshape(len(values), len(self.players))}

    def _explain(self, method: str, x: Tensor, labels: NDArray[np.int64] | None) -> NDArray[np.float64]:
        """Return a method's values of the given class of each image, or of all classes."""
        network, players = self.network, self.players
        if method == "KernelSHAP":
            return baselines.kernel_shap(network, x, players, classes=labels)
        if method == "KernelSHAP-S":
            return baselines.kernel_shap_s(self.explainer(), x, classes=labels)
        if method == "GradCAM":
            return baselines.grad_cam(network, x, players, classes=labels)
        if method == "Integrated Gradients":
            return baselines.integrated_gradients(network, x, players, classes=labels)
        if method == "SmoothGrad":
            return baselines.smooth_grad(network, x, players, classes=labels)
        if method == "DeepSHAP":
            return baselines.deep_shap(network, x, players, self.images.x[:_BACKGROUND], classes=labels)
        if method == "CXPlain":
            return self.get(ImagePiece("CXPlain"))["values"][: len(x)]
        return baselines.random_ranking(x, players, len(self.images.classes), classes=labels)

    def _truth(self, piece: ImagePiece, checkpoint: Checkpoint) -> dict[str, Any]:
        """Return converged values of some images in the surrogate's game, and those of KernelSHAP-S by budget."""
        game, x = self.game(), self.images.x_test[: self.scale.compared]
        budget = self.scale.truth * game.players
        truth = kernel(game, x, budget=budget, sampling="leverage", random_state=1)
        way = kernel(game, x, budget=max(budget // 2, 4 * game.players + 2), history=True, random_state=0)
        return {
            "values": truth.values,
            "stderr": truth.stderr,
            "budgets": way.budgets,
            "history": way.history.astype(np.float32),
        }

    def _curves(self, piece: ImagePiece, checkpoint: Checkpoint) -> dict[str, Any]:
        evaluator, method = piece.name.split(": ")
        found = self._game(self.get(ImagePiece("evaluator", evaluator)), self._start_of(evaluator))
        body, values = found.network_.body.eval(), self.values(method, piece.share)
        x, labels = self.images.x_test[: len(values)], self.labels[: len(values)]
        return curves_as_arrays(removal_curves(lambda x: body(x).softmax(1), x, values, self.players, labels))

    def _times(self, piece: ImagePiece, checkpoint: Checkpoint) -> dict[str, Any]:
        """Return the processor time to explain an image in seconds, the least of some rounds, for each method."""
        explainer = self.explainer()
        quick, slow = self.images.x_test[:64], self.images.x_test[:1]
        found: dict[str, float] = {}

        def note(name: str, work: Callable[[], Any], images: int) -> None:
            start = time.process_time()
            work()
            found[name] = min(found.get(name, np.inf), (time.process_time() - start) / images)

        for _ in range(self.scale.timing_rounds):
            note("FastSHAP", lambda: explainer.shap_values(quick), len(quick))
            for method in METHODS[1:]:
                if method in ("CXPlain", "Random"):  # CXPlain has FastSHAP's network, and Random is not a method
                    continue
                x = slow if method in SLOW else quick
                note(method, lambda m=method, x=x: self._explain(m, x, self.labels[: len(x)]), len(x))  # type: ignore[misc]
            note("GradCAM, all classes", lambda: self._explain("GradCAM", quick, None), len(quick))
        return found

    def _start_of(self, evaluator: str) -> nn.Module:
        return self.network if evaluator == "paper" else load_classifier(self.set.other)

    def _game(self, arrays: Arrays, network: nn.Module) -> Surrogate:
        game = game_from(arrays, self.schema, self.players, network)
        assert isinstance(game, Surrogate)
        return game

    def _problem(self) -> Problem:
        images = self.images
        model = ModelFunction(self.network, self.schema, trial_rows(images.x), logits=True)
        epochs = self.scale.epochs or self.set.epochs
        recipe = replace(self.recipe(1.0), surrogate=(_training(epochs, learning_rate=1e-3),))
        return Problem(model, images.x, images.x_val, self.players, "logit", recipe)

    def _part(self, recipe: Recipe, part: float) -> Recipe:
        """Return the recipe with a part of the explainer's work, and without the network for error bars."""
        assert recipe.explainer.steps is not None
        assert recipe.targets is not None
        steps, evaluations = recipe.explainer.steps, self.scale.evaluations * recipe.targets.evaluations
        return replace(
            recipe,
            errors=None,
            explainer=replace(recipe.explainer, steps=max(20, int(part * steps))),
            targets=replace(recipe.targets, evaluations=max(1, int(part * evaluations))),
        )

    def _settings(self, piece: ImagePiece) -> dict[str, Any]:
        recipe = asdict(self.recipe(piece.share))
        return {"made_by": revision(), **asdict(self.set), **asdict(self.scale), **asdict(piece), **recipe}


def _curves(method: str, evaluator: str, share: float = 1.0) -> ImagePiece:
    return ImagePiece("curves", f"{evaluator}: {method}", share)


def revision() -> str:
    """Return a hash of the code and the versions of the packages that the results depend on."""
    return store.revision(CODE, ("captum", "numpy", "torch"))


def curves_as_arrays(curves: Curves) -> Arrays:
    """Return curves as arrays for a store."""
    named = {
        f"{way}.{score.name}": getattr(getattr(curves, way), score.name).scores
        for way in ("inclusion", "exclusion")
        for score in fields(Scores)
    }
    return {**named, "shares": curves.inclusion.agreement.shares}


def curves_from_arrays(arrays: Arrays, images: int | None = None) -> Curves:
    """Return the curves of `curves_as_arrays`, of all images or of the first ones."""
    inclusion, exclusion = (
        Scores(*(Curve(arrays["shares"], arrays[f"{way}.{score.name}"][:images]) for score in fields(Scores)))
        for way in ("inclusion", "exclusion")
    )
    return Curves(inclusion, exclusion)


def _training(epochs: int, learning_rate: float) -> Training:
    return Training(
        epochs=epochs,
        batch_size=64,
        learning_rate=learning_rate,
        weight_decay=1e-2,
        schedule="cosine",
        clip=1.0,
    )
