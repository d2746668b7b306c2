"""What a fit starts from: parameters that make sense, players, a run, and rows that are held out."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fastshapley.data.model_adapter import ModelFunction, trial_rows
from fastshapley.data.players import Partition, Players
from fastshapley.data.schema import Schema
from fastshapley.data.stream import Rows, Stream, some
from fastshapley.errors import InputError
from fastshapley.training import recipes
from fastshapley.training.checkpoint import Checkpoint, fingerprint, stable_text
from fastshapley.training.process_group import ProcessGroup
from fastshapley.training.run import Run, seed_of
from fastshapley.value_functions import BaseGame
from fastshapley.value_functions.base_game import is_fitted, weights_of
from fastshapley.value_functions.links import LINKS
from fastshapley.value_functions.registry import SHORT_NAMES

if TYPE_CHECKING:
    from fastshapley.explainer import FastSHAP

logger = logging.getLogger(__name__)

HELD_OUT = 0.2  # of the rows, when no validation rows are given
_BUILT = ("value_function", "players", "network")  # which are other objects after a file was loaded
_LEFT_OUT = 100  # rows of each process that may be others when a processes goes on
_SHOWN = 5  # one-hot columns that are mentioned by name


def check_parameters(explainer: FastSHAP, game: Any) -> None:
    """Whether an explainer's parameters, and the value function, make sense, before anything is done."""
    if explainer.normalize not in ("always", "inference", "never"):
        raise ValueError(f"normalize is {explainer.normalize!r}: use 'always', 'inference' or 'never'")
    if explainer.link not in LINKS:
        raise ValueError(f"link is {explainer.link!r}: use one of {LINKS}")
    if not isinstance(explainer.penalty, float | int | np.number) or not explainer.penalty >= 0:
        raise ValueError(f"penalty is {explainer.penalty!r}: use a number that is not negative")
    if not isinstance(explainer.players, Players | None):
        raise ValueError(
            f"players is {explainer.players!r}: use Groups({{'name': [columns]}}), Features() or "
            "Superpixels(grid=14)"
        )
    if not (game in SHORT_NAMES if isinstance(game, str) else isinstance(game, BaseGame) or is_fitted(game)):
        raise ValueError(
            f"value_function is {game!r}: use one of {sorted(SHORT_NAMES)}, an instance of a class in "
            "fastshapley.value_functions, or an object with players, outputs and __call__(x, s)"
        )
    if explainer.model is None and not is_fitted(game):
        raise ValueError("model is None: pass the model to explain, or a fitted value function")
    if isinstance(game, BaseGame) and is_fitted(game) and explainer.link not in ("identity", game.link):
        raise ValueError(f"link is {explainer.link!r}, but the value function was fitted with link {game.link!r}")
    recipes.resolve(explainer.recipe, rows=1, players=1)
    for name in ("time_budget", "evaluation_budget"):
        value = getattr(explainer, name)
        if value is not None and not (isinstance(value, float | int | np.number) and value > 0):
            raise ValueError(f"{name} is {value!r}: use a positive number, or None")


def check_labels(X: Any, y: Any) -> None:
    """Whether y, which is ignored, can be labels of the rows X, and is not more rows like these."""
    if y is None or isinstance(y, Sequence):
        return
    if isinstance(X, pd.DataFrame) and isinstance(y, pd.DataFrame):
        more_rows = set(X.columns) == set(y.columns)
    else:
        given, own = _shape(y), _shape(X)
        length = own[0] if own else len(X) if isinstance(X, Sequence) else None
        alike = given is None or (len(given) > 1 and (own is None or given[1:] == own[1:]))
        more_rows = alike and (given is None or given[0] != length)  # labels may have as many columns as X
    if more_rows:
        raise InputError(
            f"y is a {type(y).__name__} of rows like those of X, and y is ignored: pass validation rows as X_val="
        )


def _shape(rows: Any) -> tuple[int, ...] | None:
    """Of an array, or what can be one; None for a Dataset."""
    if hasattr(rows, "__array__"):
        rows = np.asarray(rows)
    return tuple(rows.shape) if hasattr(rows, "shape") else None


def device_of(explainer: FastSHAP) -> torch.device:
    """Where an explainer's networks run."""
    if explainer.device is not None:
        return torch.device(explainer.device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def start_run(
    explainer: FastSHAP,
    schema: Schema,
    x: Rows,
    x_val: Rows | None,
    model: ModelFunction | None,
    checkpoint: str | os.PathLike[str] | None,
    before: nn.Module | None = None,
    processes: ProcessGroup | None = None,
) -> Run:
    """The run of one fit. Unfinished work in ``checkpoint`` must be of the same data, model and settings.

    ``before`` is the network that an update starts from. A ``team``'s rows may be dealt out otherwise than before:
    then what a process has prepared from its own is no longer of use, but what was trained together is.
    """
    processes = processes or ProcessGroup()
    store = Checkpoint(checkpoint)
    seed = processes.share(lambda: seed_of(explainer.random_state))
    progress = explainer.progress and processes.rank == 0
    if checkpoint is not None:
        settings = {
            name: stable_text(value)
            for name, value in explainer.get_params(deep=False).items()
            if name not in ("model", "device", "progress", *(() if before is None else _BUILT))
        }
        seen = [part[:16] if isinstance(part, Stream) else part for part in (x, x_val)]
        sizes = [None if part is None else len(part) for part in (x, x_val)]
        weights = []
        if before is not None:
            weights = [*before.state_dict().values(), *weights_of(explainer.value_function_)]
        if processes.size > 1:
            key = fingerprint(schema, settings, *weights)
            seed = processes.share(lambda: store.claim(key, seed_of(explainer.random_state)))
            own = store.of_share(f"{processes.rank} of {processes.size}", fingerprint(*seen, sizes, seed))
            _claim_together(store, processes, x, model)
            return Run(seed, own, progress, x.device, processes=processes, common=store)
        seed = store.claim(fingerprint(schema, *seen, sizes, settings, *weights), seed)
        if model is not None:
            store.claim_outputs(model.tried)
    return Run(seed, store, progress, x.device, processes=processes)


def _claim_together(store: Checkpoint, processes: ProcessGroup, x: Rows, model: ModelFunction | None) -> None:
    """Tie a team's directory to its model and to its rows, however these are dealt out, or refuse another's.

    Where shares must be equal, a few rows may be left out, and others the next time: means tell well enough.
    """
    rows = x[:0].flatten(1) if isinstance(x, Stream) else x.flatten(1).nan_to_num()
    mean = processes.mean(rows) if len(rows) else torch.zeros(0)
    spread = processes.mean((rows - mean).square()).sqrt() if len(rows) else mean
    count = processes.total(len(x))

    def continues() -> bool:
        trial = trial_rows(x)
        outputs = torch.zeros(0) if model is None else model.tried.cpu()
        known = store.load("start")
        if known is None:
            state = {"x": trial.cpu(), "y": outputs, "count": count, "mean": mean.cpu(), "spread": spread.cpu()}
            store.save("start", state)
            return True
        if model is not None:
            outputs = model(known["x"].to(x.device)).cpu()
        off = (known["mean"] - mean.cpu()).abs() if known["mean"].shape == mean.shape else torch.tensor(torch.inf)
        near = bool((off <= 1e-9 + _LEFT_OUT * processes.size / count * known["spread"]).all())
        like = known["y"].shape == outputs.shape and torch.allclose(known["y"], outputs, rtol=1e-4, atol=1e-6)
        return near and like and abs(known["count"] - count) <= _LEFT_OUT * processes.size

    if not processes.share(continues):
        raise store.refusal()


def players_of(explainer: FastSHAP, schema: Schema) -> Partition:
    """The players: as asked for, or as a game that is given fitted has them."""
    game, players = explainer.value_function, explainer.players
    if players is None and isinstance(game, BaseGame) and is_fitted(game):
        return game.partition_
    partition = schema.bind(players)
    if not is_fitted(game):
        return partition
    if isinstance(game, BaseGame):
        own = game.partition_
    elif game.players == len(partition):
        own = partition
    else:
        own = Partition(tuple(f"player {i}" for i in range(game.players)), ())
    if players is not None and own.owner != partition.owner:
        raise InputError(
            f"players gives {len(partition)} players {partition.names}, but the value function has "
            f"{game.players}: {own.names}"
        )
    return own


def mention_one_hot(explainer: FastSHAP, schema: Schema, x: Rows) -> None:
    """Say, in one line, which columns look one-hot encoded where each is a player because none were asked for."""
    if explainer.players is not None or is_fitted(explainer.value_function):
        return
    if found := schema.one_hot_groups(x):
        shown = [f"{name!r} ({len(columns)} columns)" for name, columns in found.items()]
        logger.warning(
            "X has one-hot columns, each of which is a player now: %s. With players=Groups.from_one_hot(X) each of "
            "these is one player; with players=Features() this is not mentioned.",
            ", ".join(shown[:_SHOWN]) + (f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""),
        )


def hold_out(x: Rows, run: Run, share: float = HELD_OUT, most: float = math.inf) -> tuple[Rows, Rows]:
    """The rows without, and those in, a random share of them; both are all where there are too few to part with."""
    order = torch.randperm(len(x), generator=run.generator("hold out"), device=x.device)
    held = min(int(share * len(x)), int(min(most, len(x))))
    if run.processes.size > 1 and isinstance(x, Tensor):  # by what is in a row: another may have it next time
        draws = _draws(x, run.seed, share)
        order, below = draws.argsort(), int((draws < share).sum())
        held = int(min(most, below)) if 0 < below < len(x) else held
    return (some(x, order[held:]), some(x, order[:held])) if held else (x, x)


def _draws(x: Tensor, seed: int, share: float) -> Tensor:
    """A number between 0 and 1 for each row, which depends on what is in it, (n,)."""
    hashes = pd.util.hash_pandas_object(pd.DataFrame(x.flatten(1).cpu().numpy()), index=False)
    mixed = pd.util.hash_array(hashes.to_numpy() ^ np.uint64(int(fingerprint(seed, share)[:15], 16)))
    return torch.from_numpy(mixed / 2.0**64).to(x.device)
