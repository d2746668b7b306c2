"""CXPlain (Schwab and Karlen, 2019): a network that predicts how much a model's loss rises without each player."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn
from torch.nn import functional

from fastshapley.baselines.inclusion_curves import class_numbers
from fastshapley.baselines.kernel_shap import baseline_game
from fastshapley.data.players import Partition, Superpixels
from fastshapley.data.stream import batches
from fastshapley.errors import InputError
from fastshapley.explanation import maps
from fastshapley.networks.backbone import Backbone
from fastshapley.networks.explainer_network import ExplainerNetwork
from fastshapley.networks.image_maps import MapsOf
from fastshapley.networks.unet import UNet
from fastshapley.training import recipes
from fastshapley.training.loop import Task, Training, train
from fastshapley.training.run import Run, seed_of
from fastshapley.value_functions import Baseline, evaluate, grand_values

_MIN_RISE = 1e-7  # smallest rise of the loss, so that the rises of an image can be divided by their sum
_EVALUATION_BATCH = 4096  # masked images that are evaluated at a time
_VALIDATION_SHARE = 0.2  # share of the images that is held out if there are no validation images
_BATCH = 256  # images that are explained at a time


class CXPlain:
    """An amortised explainer of a classifier's loss that leaves one player out at a time.

    For each training image and player, the rise of the cross-entropy towards the label is computed when this player
    is filled. Decreases count as zero. The rises of an image are divided by their sum. The softmax of a network's
    values is fitted to this distribution over players by the Kullback-Leibler divergence.

    Parameters
    ----------
    network : torch.nn.Module or callable
        The model to explain, from images to outputs.
    players : Superpixels or Partition
        The players.
    explainer : Backbone, UNet or torch.nn.Module, optional
        The network that learns: a `Backbone` (the default: the model's own layers), a `UNet`, or a module from
        images to values (b, players) or to maps (b, 1, h, w).
    logits : bool, default=True
        Whether the model returns logits, and not probabilities.
    training : Training, optional
        How the network is trained. The default is that of `FastSHAP` for the same number of images.
    rows : int, optional
        The maximum number of images to use. Each image costs one evaluation per player. The default is all.
    random_state : int, default=0
        The seed.
    progress : bool, default=True
        Whether to show progress bars.
    """

    def __init__(
        self,
        network: Any,
        players: Partition | Superpixels,
        *,
        explainer: nn.Module | Backbone | UNet | None = None,
        logits: bool = True,
        training: Training | None = None,
        rows: int | None = None,
        random_state: int | None = 0,
        progress: bool = True,
    ) -> None:
        self.network = network
        self.players = players
        self.explainer = explainer
        self.logits = logits
        self.training = training
        self.rows = rows
        self.random_state = random_state
        self.progress = progress

    def fit(
        self, X: Any, labels: ArrayLike | None = None, X_val: Any = None, labels_val: ArrayLike | None = None
    ) -> CXPlain:
        """Evaluate the images with each player left out, and train the explainer.

        Parameters
        ----------
        X : Tensor, array or dataset
            Training images, (n, channels, height, width).
        labels : array-like, optional
            The classes, (n,). The default is the classes that the model predicts.
        X_val : Tensor, array or dataset, optional
            Images that select the best epoch. The default is a fifth of ``X``, which is held out.
        labels_val : array-like, optional
            The classes of ``X_val``.

        Returns
        -------
        CXPlain
            The fitted explainer.

        Raises
        ------
        InputError
            If the arguments do not fit together, or the model has one output.
        """
        if self.rows is not None and not self.rows > 0:
            raise InputError(f"rows is {self.rows!r}: use a positive number of images, or None for all")
        if X_val is None and labels_val is not None:
            raise InputError("labels_val needs X_val, the images that it labels: pass both")
        game, x = baseline_game(self.network, X, self.players, self.logits, "log")
        if game.outputs < 2:
            raise InputError("network has one output, but cross-entropy needs two or more classes")
        run = Run(seed_of(self.random_state), progress=self.progress, device=x.device)
        some = torch.randperm(len(x), generator=run.generator("rows"), device=x.device)[: self.rows]
        if X_val is None:
            x_val, labels_val = x, labels
            held = int(_VALIDATION_SHARE * len(some))
            some_val, some = (some[:held], some[held:]) if held else (some, some)
        else:
            x_val = game.schema_.encode(X_val, "X_val")[:].to(x.device)
            if len(x_val) == 0:
                raise InputError("X_val has no rows")
            some_val = torch.arange(len(x_val), device=x.device)[: self.rows]
        y = _labels(labels, x, some, game, "labels")
        y_val = _labels(labels_val, x_val, some_val, game, "labels_val")
        x_val, x = x_val[some_val], x[some]
        target_val, target = _targets(game, x_val, y_val, run), _targets(game, x, y, run)
        explainer = self._build(game.partition_, x[:2], run).to(x.device)

        def loss(batch: tuple[Tensor, Tensor], generator: torch.Generator) -> Tensor:
            rows, images = batch
            return _divergence(explainer, images, target[rows])

        def validate() -> float:
            parts = zip(x_val.split(_BATCH), target_val.split(_BATCH), strict=True)
            return sum(len(a) * float(_divergence(explainer, a, b)) for a, b in parts) / len(x_val)

        recipe = recipes.resolve("default", len(x), game.players, images=True)
        training = self.training or recipe.explainer
        self.losses_ = train(
            Task("CXPlain", explainer, len(x), loss, validate, fetch=partial(batches, x)), training, run
        )
        self.network_, self.schema_, self.partition_ = explainer, game.schema_, game.partition_
        return self

    def explain(self, X: Any) -> NDArray[np.float64]:
        """Return the share of each player in the rise of the loss.

        There is one map per image for all classes, since the loss is explained.

        Parameters
        ----------
        X : Tensor, array or dataset
            Images, (n, channels, height, width).

        Returns
        -------
        ndarray
            Shares (n, rows, columns) on a grid, or (n, players) for a segmentation.

        Raises
        ------
        NotFittedError
            If `fit` has not been called.
        """
        if not hasattr(self, "network_"):
            raise NotFittedError("this CXPlain is not fitted: call fit(X) first")
        x = self.schema_.encode(X)[:].to(self.network_.scale.device)
        with torch.no_grad():
            values = torch.cat([self.network_(part).softmax(1) for part in x.split(_BATCH)])
        return maps(values.double(), self.partition_, upsample=False)[..., 0]

    def __call__(self, X: Any) -> NDArray[np.float64]:
        """Return `explain` of the images."""
        return self.explain(X)

    def _build(self, players: Partition, x: Tensor, run: Run) -> ExplainerNetwork:
        """Build the network from images to values (n, players, 1), whose softmax is the explanation."""
        given = self.explainer or (Backbone() if isinstance(self.network, nn.Module) else UNet())
        with run.isolated("CXPlain weights"):
            if isinstance(given, nn.Module):
                body: nn.Module = MapsOf(copy.deepcopy(given), players)
            else:
                body = given.build(self.network, players, 1, x)
        return ExplainerNetwork(nn.Identity(), body, len(players), 1)


def _labels(labels: ArrayLike | None, x: Tensor, some: Tensor, game: Baseline, argument: str) -> Tensor:
    """Return the classes of some of the images: those given, or those the model predicts."""
    if labels is None:
        return game.predict(x[some]).argmax(1)
    return torch.from_numpy(class_numbers(labels, len(x), game.outputs, argument)).to(x.device)[some]


def _targets(game: Baseline, x: Tensor, labels: Tensor, run: Run) -> Tensor:
    """Return the share of each player in the rise of the loss, (n, players), float32.

    The values of the game are the logarithms of the class probabilities.
    """
    but_one = ~torch.eye(game.players, dtype=torch.bool, device=x.device)
    parts = []
    with run.bar(len(x), "leaving players out", "image") as bar:
        for rows in torch.arange(len(x), device=x.device).split(max(1, _EVALUATION_BATCH // game.players)):
            whole = grand_values(game, x[rows], rows)
            left = evaluate(game, x[rows], but_one.expand(len(rows), -1, -1), rows)
            label = labels[rows][:, None]
            rise = whole.gather(1, label) - left.gather(2, label[:, None].expand(-1, game.players, -1))[..., 0]
            rise = rise.clamp(min=_MIN_RISE)
            parts.append(rise / rise.sum(1, keepdim=True))
            bar.update(len(rows))
    return torch.cat(parts).float()


def _divergence(explainer: nn.Module, images: Tensor, target: Tensor) -> Tensor:
    """Return the mean Kullback-Leibler divergence of the explainer's distribution from the target."""
    logarithms = explainer(images)[..., 0].log_softmax(1)
    return functional.kl_div(logarithms, target, reduction="batchmean")
