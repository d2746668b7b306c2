"""When not to amortise: what each way to Shapley values would take, predicted from a short trial."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fastshapley.coalitions import pair_count
from fastshapley.data.kinds import schema_of
from fastshapley.data.model_adapter import ModelFunction
from fastshapley.data.table_schema import TableSchema
from fastshapley.errors import InputError
from fastshapley.estimators import Estimate, exact, kernel
from fastshapley.estimators.exact import MAX_PLAYERS
from fastshapley.estimators.kernel import sampling_variance
from fastshapley.estimators.residuals import residuals
from fastshapley.fit.setup import device_of, players_of
from fastshapley.support.shap_import import shap
from fastshapley.training import recipes
from fastshapley.training.run import Timing, one_thread
from fastshapley.trust.error_bars import explained

if TYPE_CHECKING:
    from fastshapley.explainer import FastSHAP

_WORK = 0.1  # of a whole fit, that the trial does
_LOOK, _EACH = 64, 16  # rows whose values are looked at, by so many evaluations a player
_REPEAT = 64  # times these rows, for the time of a forward pass
_SHARE = 0.25  # of the trial's seconds, for that
_FEWEST, _MOST = 4, 1 << 19  # pairs a player, below which errors are hard to foresee, and pairs a row
_STEP = 1.05  # between numbers of pairs that are considered
_HELD_OUT, _LEARNT, _MEASURED = 0.1, 2048, 512  # share of rows, and rows at most, for errors, and for the report
_AFTER = 90.0  # seconds for these, at most


@dataclass(frozen=True)
class Way:
    """One way to Shapley values: what it takes once, and for each row, in seconds, and what to type."""

    name: str
    once: float
    each: float
    code: str
    note: str = ""

    def seconds(self, rows: int) -> float:
        return self.once + rows * self.each


@dataclass(frozen=True)
class Advice:
    """Ways to explain so many ``rows`` with a relative squared error of at most ``error``, the fastest first.

    Seconds are predictions for this machine as it was during the trial: take them for half to twice as much.
    ``trial_error`` is the relative squared error of the trial's network, a tenth as long trained as a whole fit's.
    """

    rows: int
    error: float
    ways: tuple[Way, ...]
    trial_error: float

    @property
    def best(self) -> Way:
        return self.ways[0]

    def lines(self) -> list[tuple[str, str, str, str]]:
        return [
            (
                way.name,
                _duration(way.seconds(self.rows)),
                f"{_duration(way.once)} + {_duration(way.each)} a row",
                text,
            )
            for way in self.ways
            for text in [way.code + (f"  ({way.note})" if way.note else "")]
        ]

    def __str__(self) -> str:
        body = [f"  {name:10s} {total:>10s}  = {parts:28s} {code}" for name, total, parts, code in self.lines()]
        return "\n".join([self._title(), *body])

    def _repr_html_(self) -> str:
        rows = "".join(
            "<tr>" + "".join(f"<td style='text-align: left'>{escape(cell)}</td>" for cell in line) + "</tr>"
            for line in self.lines()
        )
        return f"<table><caption>{escape(self._title())}</caption>{rows}</table>"

    def _title(self) -> str:
        return f"{self.rows} rows, relative squared error at most {self.error:g}: {self.best.name} is the fastest"


def advise(explainer: FastSHAP, X: Any, rows: int, error: float, seconds: float) -> Advice:
    """Fit an explainer for about so many ``seconds``, and say what each way would take."""
    if not rows >= 1:
        raise InputError(f"rows is {rows}: say how many rows are to be explained")
    if not 0 < error < 1:
        raise InputError(f"error is {error}: a relative squared error lies between 0 and 1")
    if not seconds > 0:
        raise InputError(f"seconds is {seconds}: the trial takes some")
    trial = _Trial(explainer, X, seconds)
    target = error * trial.size
    found = [trial.exact(), trial.sampling(target), trial.amortised(target), trial.tree()]
    ways = sorted((way for way in found if way is not None), key=lambda way: way.seconds(rows))
    return Advice(rows, error, tuple(ways), trial.mean_squared_error / trial.size if trial.size > 0 else 0.0)


class _Trial:
    """An explainer fitted for a short while; what its game, its network and its phases were found to be like."""

    def __init__(self, explainer: FastSHAP, X: Any, seconds: float) -> None:
        schema = schema_of(X, explainer.players)
        x = schema.encode(X).to(device_of(explainer))
        if len(x) == 0:
            raise InputError("X has no rows")
        players = len(players_of(explainer, schema))
        self.rows, images = len(x), schema.kind == "image"
        self.recipe = recipes.resolve(explainer.recipe, len(x), players, images=images)
        if self.recipe.targets is None or self.recipe.explainer.steps is None:
            raise InputError("advice is for recipes that say how much is done: leave recipe out")
        self.settings, self.seconds = _settings(explainer), seconds
        short = explainer.set_params(recipe=recipes.scaled(self.recipe, _WORK), time_budget=seconds, progress=False)
        silence = logging.getLogger("fastshapley")
        level = silence.level
        silence.setLevel(logging.ERROR)  # of course it is not to be trusted
        try:
            self.fitted = short.fit(X)
        finally:
            silence.setLevel(level)
        self.x, self.game = x[:_LOOK], self.fitted.value_function_
        self.model_pace = 0.0
        if explainer.model is not None:
            self.model_pace = ModelFunction(explainer.model, schema, self.x, explainer.logits).pace
        with one_thread() if schema.suits_one_thread else nullcontext():
            self._look(players, seconds)

    def _look(self, players: int, seconds: float) -> None:
        """At some rows' values: as many rows as there is time for."""
        budget = min(_EACH * players, 1 << players)

        def estimate(x: Tensor) -> tuple[Estimate, float]:
            start = time.monotonic()
            if budget == 1 << players:
                return exact(self.game, x), time.monotonic() - start
            found = kernel(self.game, x, budget=budget, sampling="leverage", random_state=0)
            return found, time.monotonic() - start

        self.x = self.x[: max(2, int(_SHARE * seconds / estimate(self.x[:1])[1]))]
        found, took = estimate(self.x)
        self.pace = took / (len(self.x) * budget)  # seconds an evaluation
        noise = float(np.square(found.stderr).sum((1, 2)).mean())
        squares = float(np.square(found.values).sum((1, 2)).mean())
        self.size = max(0.0, squares - noise)  # of a row's values, squared
        start = time.monotonic()
        many = self.x.repeat(_REPEAT, 1) if self.x.ndim == 2 else self.x
        phi = explained(self.fitted.network_, self.game, many)[: len(self.x)]
        self.forward = (time.monotonic() - start) / len(many)  # seconds a row
        seen = float(np.square(phi.cpu().numpy() - found.values).sum((1, 2)).mean()) - noise
        self.left = None  # what pairs leave unexplained
        if players > 1:
            generator = torch.Generator(self.x.device).manual_seed(0)
            self.left = residuals(self.game, self.x, phi, _EACH * players // 2, generator)
        report = self.fitted.report_
        self.mean_squared_error = max(0.0, seen if report is None else report.mean_squared_error)

    def exact(self) -> Way | None:
        """Of all coalitions."""
        players = self.game.players
        if players > MAX_PLAYERS:
            return None
        code = self._code('estimate(rows, "exact")', recipe="sampling")
        return Way("exact", self._game_seconds(), (1 << players) * self.pace, code)

    def sampling(self, target: float) -> Way | None:
        """Of as many coalitions as bring a row's squared error down to ``target``."""
        budget = self._budget(lambda pairs: self._variance(pairs) <= target, _FEWEST * self.game.players)
        if budget is None:
            return None
        code = self._code(f'estimate(rows, "kernel", budget={budget}, sampling="leverage")', recipe="sampling")
        return Way("sampling", self._game_seconds(), budget * self.pace, code)

    def amortised(self, target: float) -> Way:
        """By a network, corrected where the trial's own was not close enough."""
        once = self._game_seconds() + self._network_seconds() + self._after_seconds()
        if self.mean_squared_error <= target:
            return Way("amortised", once, self.forward, self._code("(rows)"))

        def enough(pairs: int) -> bool:
            return 1 / (1 / self.mean_squared_error + 1 / max(self._variance(pairs), 1e-300)) <= target

        budget, note = self._budget(enough, 1), "the trial's network was not close enough; a whole fit's may be"
        if budget is None:
            budget, note = 1 << min(self.game.players, 20), "it may not come as close"
        return Way(
            "amortised", once, self.forward + budget * self.pace, self._code(f"(rows, budget={budget})"), note
        )

    def tree(self) -> Way | None:
        """By TreeSHAP, if shap knows the model."""
        schema, model = self.fitted.schema_, self.fitted.model
        if not isinstance(schema, TableSchema):
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                start = time.monotonic()
                explain = shap.TreeExplainer(model)
                explain.shap_values(schema.decode(self.x[:1]))
                once = time.monotonic() - start
                some = self.x[: max(1, int(_SHARE * self.seconds / once))]
                start = time.monotonic()
                explain.shap_values(schema.decode(some))
                each = (time.monotonic() - start) / len(some)
        except Exception:  # whatever it raises of a model that it does not know
            return None
        note = "another game: features are hidden along the trees' paths, and margins explained where it has them"
        return Way("tree", once, each, "shap.TreeExplainer(model)(rows)", note)

    def _variance(self, pairs: int) -> float:
        """A row's squared error by least squares of so many pairs."""
        if self.left is None:
            return 0.0
        players = self.game.players
        each = sampling_variance(players, pairs, self.left.profile.tolist())
        solved = pairs / (pairs - players) if pairs > players else 1.0
        return players * each * solved * float(self.left.noise.sum(1).mean())

    def _budget(self, enough: Callable[[int], bool], fewest: int) -> int | None:
        """Evaluations a row, of so many pairs at least; None if all coalitions are no more, or too many."""
        most = min(_MOST, pair_count(self.game.players))
        pairs = fewest
        while pairs < most:
            if enough(pairs):
                return 2 * pairs + 2
            pairs = math.ceil(_STEP * pairs)
        return None

    def _code(self, call: str, **settings: Any) -> str:
        """What to type: the explainer with its settings, fitted and called."""
        written = "".join(f", {name}={value!r}" for name, value in {**self.settings, **settings}.items())
        return f"FastSHAP(model{written}).fit(X){'' if call.startswith('(') else '.'}{call}"

    def _game_seconds(self) -> float:
        """A surrogate's, of a whole fit."""
        done = [found for phase, found in self.fitted.timings_.items() if phase.startswith("surrogate")]
        if not done:
            return 0.0
        steps = sum(stage.steps or 0 for stage in self.recipe.surrogate)
        return self.rows * self.model_pace + _pace(done) * steps

    def _network_seconds(self) -> float:
        """The explainer network's, of a whole fit."""
        targets, timings, none = self.recipe.targets, self.fitted.timings_, Timing(0.0)
        assert targets is not None  # checked at the start
        evaluations = _pace([timings.get("coalitions", none)]) * targets.evaluations
        steps = _pace([timings.get("explainer", none)]) * (self.recipe.explainer.steps or 0)
        return min(targets.seconds, evaluations) + steps

    def _after_seconds(self) -> float:
        """Of learning errors, of calibrating them and of the report, of a whole fit."""
        held, every = int(_HELD_OUT * self.rows), 2.0 ** min(self.game.players, 60)
        wanted = ((_LEARNT, 1_000_000), (_MEASURED, 1_000_000), (_MEASURED, 2_000_000))
        evaluations = sum(min(most, min(rows, held) * every) for rows, most in wanted)
        return min(_AFTER, evaluations * self.pace) + self.fitted.timings_.get("errors", Timing(0.0)).seconds


def _settings(explainer: FastSHAP) -> dict[str, Any]:
    """Those that say what is explained, and are not as they are by default."""
    usual = type(explainer)().get_params(deep=False)
    given = explainer.get_params(deep=False)
    names = ("value_function", "players", "link", "logits", "network", "normalize", "penalty", "device")
    return {name: given[name] for name in names if given[name] is not usual[name] and given[name] != usual[name]}


def _pace(done: list[Timing]) -> float:
    """Return the seconds per step, or per evaluation."""
    return sum(timing.seconds for timing in done) / max(1, sum(timing.units for timing in done))


def _duration(seconds: float) -> str:
    units = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
    unit = next((unit for unit, size in units.items() if seconds >= (2 if size > 1 else 1) * size), "us")
    amount = seconds / units[unit]
    return f"{amount:.0f} {unit}" if amount >= 10 else f"{amount:.1f} {unit}"
