"""Setting up a fit: validated parameters, encoded rows, players, the model, and held-out rows."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastshapley.data.kinds import schema_of
from fastshapley.data.model_adapter import ModelFunction, trial_rows
from fastshapley.data.players import Partition
from fastshapley.data.schema import Schema
from fastshapley.data.stream import Rows, Stream, some
from fastshapley.errors import InputError
from fastshapley.fit.budget import Budget, check_budget
from fastshapley.fit.fitted import Fitted
from fastshapley.fit.held_out import different_rows, hold_out, rows_in
from fastshapley.fit.settings import Settings
from fastshapley.support.frames import column_names
from fastshapley.training import recipes
from fastshapley.training.checkpoint import Checkpoint, fingerprint, same_outputs, stable_text
from fastshapley.training.process_group import ProcessGroup
from fastshapley.training.recipes import Recipe
from fastshapley.training.run import Clock, Run, Timing, seed_of
from fastshapley.trust.effort import REPORT_ROWS
from fastshapley.value_functions import BaseGame
from fastshapley.value_functions.base_game import is_fitted, weights_of

logger = logging.getLogger(__name__)

EXAMINED = 0.5  # share of the held-out rows that is kept for the report
REBUILT = ("value_function", "players", "network")  # parameters that are other objects after a file was loaded
UNFINGERPRINTED = ("model", "device", "progress")  # parameters that may change when a fit is resumed
LEFT_OUT = 100  # rows per process that may differ when several processes resume
SHOWN = 5  # one-hot columns that a warning names


@dataclass(frozen=True)
class FitData:
    """What a user hands to ``fit`` or ``update``.

    Attributes
    ----------
    X : table or images
        The rows to learn from.
    X_val : table, images or None
        The rows to hold out; by default a share of ``X``.
    checkpoint : path, Checkpoint or None
        Where unfinished work is kept.
    processes : ProcessGroup
        The processes that train together, each on rows of its own.
    clock : Clock
        The time that the fit may take.
    """

    X: Any
    X_val: Any = None
    checkpoint: str | os.PathLike[str] | Checkpoint | None = None
    processes: ProcessGroup = field(default_factory=ProcessGroup)
    clock: Clock | None = None


@dataclass(frozen=True)
class Setup:
    """What the phases of a fit work on.

    Attributes
    ----------
    settings : Settings
        The explainer's parameters.
    start : Fitted or None
        What an update starts from. None for a new fit.
    schema : Schema
        How rows are encoded.
    partition : Partition
        The players.
    model : ModelFunction or None
        The user's model; None if there is only a value function.
    x : Tensor or Stream
        Encoded rows to train on.
    x_val : Tensor or Stream
        Held-out rows that choose the best epochs and teach the error bars.
    x_report : Tensor
        Held-out rows that the report is measured on.
    held_out : bool
        Whether these are really other rows: where there are too few to divide, they are the training rows.
    run : Run
        The seed, the time and the place for unfinished work.
    budget : Budget
        How many rows the model may be called with.
    seen_rows : int
        The number of the user's validation rows that are also training rows. They are not in ``x_report``, unless
        there are no others.
    """

    settings: Settings
    start: Fitted | None
    schema: Schema
    partition: Partition
    model: ModelFunction | None
    x: Rows
    x_val: Rows
    x_report: Tensor
    held_out: bool
    run: Run
    budget: Budget
    seen_rows: int = 0

    @property
    def updating(self) -> bool:
        """Whether this is an update of an explainer."""
        return self.start is not None

    @property
    def given_game(self) -> Any:
        """The value function to start from: that of the explainer, or the user's setting."""
        return self.settings.value_function if self.start is None else self.start.game

    def recipe(self, *, noisy: bool = False) -> Recipe:
        """Return the settings of the training; ``noisy`` if evaluations of the game are noisy."""
        rows, images = self.run.processes.total(len(self.x)), self.schema.kind == "image"
        return recipes.resolve(self.settings.recipe, rows, len(self.partition), noisy=noisy, images=images)


def set_up(settings: Settings, data: FitData, start: Fitted | None = None) -> Setup:
    """Validate the parameters and set up a fit, or an update of ``start``.

    Parameters
    ----------
    settings : Settings
        The explainer's parameters.
    data : FitData
        The rows.
    start : Fitted, optional
        What an update starts from.

    Returns
    -------
    Setup

    Raises
    ------
    InputError, ValueError
        If a parameter or the data does not make sense.
    """
    processes = data.processes
    clock = _start_clock(settings, data)
    given = settings.value_function if start is None else start.game
    settings.check(given)
    schema = _schema(settings, data, start)
    x, x_val = _encoded(settings, data, schema, start)
    if start is not None:
        start.warn_of_new_gaps(x)
    trial = processes.share(lambda: trial_rows(x)).to(x.device)
    check_budget(settings.evaluation_budget, len(trial))
    model = None if settings.model is None else ModelFunction(settings.model, schema, trial, settings.logits)
    _check_output_names(settings, model, given)
    partition = players_of(settings, schema) if start is None else start.partition
    if start is None and processes.rank == 0:
        _mention_one_hot(settings, schema, x)
    run = _start_run(settings, data, clock, _Claim(schema, x, x_val, model, start))
    x, x_val = hold_out(x, run) if x_val is None else (x, x_val)
    x_exam, x_report = hold_out(x_val, run, share=EXAMINED, most=REPORT_ROWS)
    held_out = x_val is not x and x_report is not x_exam
    seen = torch.zeros(0, dtype=torch.bool)
    if data.X_val is not None and (seen := rows_in(x_val, x)).any():
        x_new = some(x_val, (~seen).nonzero()[:, 0])
        held_out = held_out and len(x_new) > 1
        if held_out:
            x_exam, x_report = hold_out(x_new, run, share=EXAMINED, most=REPORT_ROWS)
            held_out = x_report is not x_exam
    x_report = different_rows(x_report[:])
    run.timings["setup"] = Timing(clock.elapsed(), clock.seconds)
    allowed = settings.evaluation_budget
    budget = Budget(None if allowed is None else allowed // processes.size, () if model is None else ((model, 0),))
    seen_rows = int(seen.sum())
    return Setup(settings, start, schema, partition, model, x, x_exam, x_report, held_out, run, budget, seen_rows)


def _check_output_names(settings: Settings, model: ModelFunction | None, game: Any) -> None:
    outputs = getattr(game, "outputs", None) if model is None else model.outputs
    names = settings.output_names
    if names is not None and outputs is not None and len(names) != outputs:
        raise InputError(f"output_names has {len(names)} names for {outputs} outputs of the model: name each one")


def _start_clock(settings: Settings, data: FitData) -> Clock:
    if settings.time_budget is None:
        return data.clock or Clock()
    if data.processes.size > 1:
        raise InputError("time_budget is for one process: leave it out where several processes train together")
    from torch import _dynamo  # noqa: F401  the first optimizer would import it, which takes seconds of the budget

    return data.clock or Clock(settings.time_budget)


def _schema(settings: Settings, data: FitData, start: Fitted | None) -> Schema:
    if start is not None:
        return start.schema
    given = settings.value_function
    if isinstance(given, BaseGame) and is_fitted(given):
        return given.schema_  # the codes of categories must mean the same to the game and to the explainer
    schema = schema_of(data.X, settings.players)
    return schema.agreed(data.processes.everyone(schema))


def _encoded(settings: Settings, data: FitData, schema: Schema, start: Fitted | None) -> tuple[Rows, Rows | None]:
    """Return the encoded rows, and the encoded validation rows if any were given."""
    x: Rows = schema.encode(data.X).to(settings.resolved_device() if start is None else start.device)
    x_val: Rows | None = None if data.X_val is None else schema.encode(data.X_val, "X_val").to(x.device)
    for argument, rows in (("X", x), ("X_val", x_val)):
        if not data.processes.all(rows is None or len(rows) > 0):
            raise InputError(f"{argument} has no rows" + (" in some process" if data.processes.size > 1 else ""))
    return x, x_val


def check_labels(X: Any, y: Any) -> None:
    """Check that ``y``, which is ignored, can be labels of the rows ``X`` and is not more rows like them.

    Raises
    ------
    InputError
        If ``y`` looks like validation rows.
    """
    if y is None or isinstance(y, Sequence):
        return
    names, more_names = column_names(X), column_names(y)
    if names is not None and more_names is not None:
        more_rows = set(names) == set(more_names)
    else:
        given, own = _shape(y), _shape(X)
        length = own[0] if own else len(X) if isinstance(X, Sequence) else None
        alike = given is None or (len(given) > 1 and (own is None or given[1:] == own[1:]))
        more_rows = alike and (given is None or given[0] != length)  # labels may have as many columns as X
    if more_rows:
        raise InputError(
            f"y is a {type(y).__name__} of rows like those of X, but y is ignored: pass validation rows as X_val="
        )


def _shape(rows: Any) -> tuple[int, ...] | None:
    """Return the shape of an array or of what can be one; None for a Dataset."""
    if hasattr(rows, "__array__") and not hasattr(rows, "shape"):
        rows = np.asarray(rows)
    return tuple(rows.shape) if hasattr(rows, "shape") else None


@dataclass(frozen=True)
class _Claim:
    """What ties a checkpoint to one fit: its rows, its model, and what an update starts from."""

    schema: Schema
    x: Rows
    x_val: Rows | None
    model: ModelFunction | None
    start: Fitted | None

    def settings(self, settings: Settings) -> dict[str, str]:
        """Return the settings that must be the same when a fit is resumed."""
        ignored = (*UNFINGERPRINTED, *(() if self.start is None else REBUILT))
        names = sorted(each.name for each in fields(settings))
        return {name: stable_text(getattr(settings, name)) for name in names if name not in ignored}

    def weights(self) -> list[Tensor]:
        """Return the weights that an update starts from."""
        if self.start is None:
            return []
        return [*self.start.network.state_dict().values(), *weights_of(self.start.game)]

    def rows(self) -> tuple[list[Any], list[int | None]]:
        """Return the rows, or some of a stream's, and how many there are."""
        parts = (self.x, self.x_val)
        seen = [part[:16] if isinstance(part, Stream) else part for part in parts]
        return seen, [None if part is None else len(part) for part in parts]


def _start_run(settings: Settings, data: FitData, clock: Clock, claim: _Claim) -> Run:
    """Return the run of one fit.

    Unfinished work in the checkpoint must be of the same data, model and settings. Several processes may have their
    rows divided differently when they resume: what a process has prepared from its own rows is then useless, but
    what they trained together is not.
    """
    processes, given = data.processes, data.checkpoint
    store = given if isinstance(given, Checkpoint) else Checkpoint(given)
    seed = processes.share(lambda: seed_of(settings.random_state))
    run = Run(seed, store, settings.progress and processes.rank == 0, claim.x.device, clock, processes=processes)
    if store.directory is None:
        return run
    texts, weights = claim.settings(settings), claim.weights()
    seen, sizes = claim.rows()
    if processes.size > 1:
        key = fingerprint(claim.schema, texts, *weights)
        seed = processes.share(lambda: store.claim(key, seed_of(settings.random_state)))
        own = store.of_share(f"{processes.rank} of {processes.size}", fingerprint(*seen, sizes, seed))
        _claim_together(store, processes, claim.x, claim.model)
        return Run(seed, own, run.progress, run.device, clock, processes=processes, common=store)
    seed = store.claim(fingerprint(claim.schema, *seen, sizes, texts, *weights), seed)
    if claim.model is not None:
        store.claim_outputs(claim.model.tried)
    return Run(seed, store, run.progress, run.device, clock, processes=processes)


def _claim_together(store: Checkpoint, processes: ProcessGroup, x: Rows, model: ModelFunction | None) -> None:
    """Tie a directory to the model and the rows of several processes, however the rows are divided.

    Where shares must be equal, a few rows are left out, and others the next time. Means are compared, which differ
    little by that.
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
        near = bool((off <= 1e-9 + LEFT_OUT * processes.size / count * known["spread"]).all())
        return (
            near and same_outputs(known["y"], outputs) and abs(known["count"] - count) <= LEFT_OUT * processes.size
        )

    if not processes.share(continues):
        raise store.refusal()


def players_of(settings: Settings, schema: Schema) -> Partition:
    """Return the players: as the user asks for them, or as a game that was passed in fitted has them.

    Raises
    ------
    InputError
        If the two do not agree.
    """
    game, players = settings.value_function, settings.players
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


def _mention_one_hot(settings: Settings, schema: Schema, x: Rows) -> None:
    """Log which columns look one-hot encoded, where each of them is a player because no players were asked for."""
    if settings.players is not None or is_fitted(settings.value_function):
        return
    if found := schema.one_hot_groups(x):
        shown = [f"{name!r} ({len(columns)} columns)" for name, columns in found.items()]
        logger.warning(
            "X has one-hot columns, and each of them is a player: %s. Use players=Groups.from_one_hot(X) to make "
            "each category one player, or players=Features() to silence this message.",
            ", ".join(shown[:SHOWN]) + (f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""),
        )
