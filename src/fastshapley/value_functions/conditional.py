"""The conditional game: what the model gives on average over rows that agree with what is known."""

from __future__ import annotations

import copy
import logging
import math
import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fastshapley.coalitions import subsets
from fastshapley.data.model_adapter import ModelFunction, Scale
from fastshapley.data.table_schema import require_table
from fastshapley.errors import FileFormatError, InputError, ModelError
from fastshapley.networks.weights import with_prefix
from fastshapley.training.recipes import Recipe, Targets
from fastshapley.training.run import Run
from fastshapley.value_functions import game_choice
from fastshapley.value_functions.base_game import BaseGame, GameContext, GameTraits, Part, Problem
from fastshapley.value_functions.drawn_means import BLOCK_DRAWS, Draw, DrawnMeans
from fastshapley.value_functions.draws import DonorNumbers, draws_by_size
from fastshapley.value_functions.game_choice import HeldOut, SampleMeans, SizePlan, SizeScore, compare_games
from fastshapley.value_functions.labels import LabelledRows, label_rows
from fastshapley.value_functions.links import Link, apply_link
from fastshapley.value_functions.protocol import ValueFunction
from fastshapley.value_functions.sampler_choice import choose_sampler
from fastshapley.value_functions.samplers import (
    SAMPLERS,
    BlendSampler,
    ConditionalSampler,
    Donors,
    GivenSampler,
    Sample,
    SamplerRows,
)
from fastshapley.value_functions.surrogate import Surrogate

logger = logging.getLogger(__name__)

GATHERED_ROWS = 16384  # rows of all processes from which samplers learn
TYPICAL_COALITIONS = 1024  # coalitions of a row for which the draws of the full game are planned
ROW_DRAWS = 1 << 15  # draws for all coalitions of a row: with few players, each has more
DRAW_SECONDS = 1e-5  # about what drawing a row takes, besides calling the model with it
LINKED_DRAWS = 8  # draws of an evaluation in training, where a link is applied to the average
CHOICE_TIME = 0.05  # share of the time that is left for choosing the usual sampler
DRAWING_TIME = 0.5  # share of the time for coalitions in which a sampler must be able to draw `FEWEST_DRAWS`
FEWEST_DRAWS = 2000  # drawn rows per player without which a network learns little
COMPARISON_TIME = 0.05  # share of the time that is left for comparing games, apart from calls of the model
CORRECTION_SHARE = 0.5  # share of the coalitions that the correction of the surrogate is evaluated for
SHARED_COALITIONS = 16  # rows that have the same coalitions in training
FEW_PLAYERS = 16  # players up to which rows often have the same coalitions by chance
_MODEL_LOCK = threading.Lock()  # Networks run on several threads, and the model on one at a time.


class Conditional(BaseGame):
    """The expected output of the model given what is known, from a surrogate g and from rows that are drawn.

    With z drawn given x_s, it is a weighted mean of two games: the surrogate g(x, s), and the model on drawn rows
    E f(x_s, z). The weights and the sampler of z depend on the size of s. They are chosen on held-out rows so that
    the game is as close as possible to the model's output (the MSEv). For the grand coalition it is the model's
    output itself. A mean of probabilities is a probability.

    An evaluation averages over several draws. Which ones follows from the row and the coalition, so that the same
    question always gets the same answer.

    Parameters
    ----------
    samplers : sequence of str or callable
        The samplers to choose from: ``"network"``, ``"normal"``, ``"copula"``, ``"classes"``, ``"marginal"``, or
        functions ``sample(x, s, generator)`` that return rows like ``x`` (n, columns), encoded, in which the
        entries of players that are not in ``s`` (n, players) have been drawn given the others. ``"classes"`` is
        tried for tables with at least two columns of few values only.
    draws : int
        The draws of an evaluation, at least. Small coalitions, which matter more, have more.
    donors : int
        The largest number of training rows that draws are made from.
    """

    kind = "conditional"
    has_short_name = True
    fits_together = True
    calls_model = True
    concurrent = True

    model_: ModelFunction | None
    surrogate_: Surrogate
    samplers_: tuple[ConditionalSampler, ...]
    donors_: Donors
    scores_: tuple[SizeScore, ...]
    plan_: SizePlan
    draws_: tuple[int, ...]

    def __init__(
        self,
        samplers: Sequence[str | Sample] | Sample = ("network", "normal", "copula", "classes", "marginal"),
        draws: int = 16,
        donors: int = 4096,
    ) -> None:
        self.samplers = samplers
        self.draws = draws
        self.donors = donors

    def fit(self, problem: Problem, run: Run) -> Self:
        """Train the surrogate and the samplers, and choose among them.

        Raises
        ------
        InputError
            If the rows are not a table, a parameter does not make sense, or the outputs do not suit the link.
        """
        require_table(problem.model.schema, "value_function='conditional' is")
        self._check()
        rows, pace = _labelled(problem, run)
        surrogate = Surrogate().fit_to(rows, problem, run.within(problem.surrogate_time))
        return self._learn(surrogate, problem, rows, pace, run)

    def update(self, problem: Problem, run: Run) -> Self:
        """Return the game of other rows and of the model as it is now; the surrogate is trained further.

        Raises
        ------
        InputError
            If the model has another number of outputs now.
        """
        problem = replace(problem, link=self.link)
        rows, pace = _labelled(problem, run)
        surrogate = self.surrogate_.updated_to(rows, problem, run.within(problem.surrogate_time))
        return copy.copy(self)._learn(surrogate, problem, rows, pace, run)

    def _check(self) -> None:
        for name in ("draws", "donors"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InputError(f"{name} is {value!r}: use a positive number")
        self._new_samplers()

    def _new_samplers(self) -> tuple[ConditionalSampler, ...]:
        given = [self.samplers] if callable(self.samplers) or isinstance(self.samplers, str) else self.samplers
        unknown = [each for each in given if not (callable(each) or each in SAMPLERS)]
        if unknown or not given:
            raise InputError(
                f"samplers is {self.samplers!r}: use some of {sorted(SAMPLERS)}, or functions "
                "sample(x, s, generator)"
            )
        return tuple(SAMPLERS[each]() if isinstance(each, str) else GivenSampler(each) for each in given)

    def _learn(self, surrogate: Surrogate, problem: Problem, rows: LabelledRows, pace: float, run: Run) -> Self:
        model, processes = problem.model, run.processes
        schema = require_table(model.schema, "value_function='conditional' is")
        x, y, x_val, y_val = (
            processes.gather(part, GATHERED_ROWS)[:] for part in (rows.x, rows.y, rows.x_val, rows.y_val)
        )
        null = processes.share(lambda: surrogate.model_null)
        alone = run.alone()
        order = torch.randperm(len(x), generator=alone.generator("donors"), device=x.device)[: self.donors]
        donors = Donors.in_order(x[order], y[order], schema, problem.players)
        self._set(model, surrogate, donors, problem.link, null, alone.seed)
        recipe = problem.resolved_recipe()
        calls = _affordable_calls(problem, recipe, len(rows.x) + len(rows.x_val), pace, run)
        samplers = self._new_samplers()
        samplers = tuple(sampler for sampler in samplers if sampler.suits(donors)) or samplers
        each = max(1, game_choice.calls_needed(len(samplers), self.players))
        # The paces of processes differ, and they must agree on what they do.
        coalitions = processes.share(lambda: int(min(game_choice.EVALUATED, problem.choice_calls * calls / each)))
        constant = not (y != y[0]).any()
        if coalitions < game_choice.FEWEST or self.players == 1 or constant:
            logger.info("Model calls are limited or expensive: the model is asked for whole rows only")
            return self._choose((), ())
        for number, sampler in enumerate(samplers):
            part = alone.within(0.8 / (len(samplers) - number))
            learn = partial(_fitted_sampler, sampler, donors, SamplerRows(x, x_val), recipe, part)
            tensors, config = processes.share(learn)
            if processes.rank > 0:
                sampler.restore(donors, tensors, config, alone.seed)
        generator = alone.generator("sampler choice")
        clock, targets = alone.within(CHOICE_TIME).clock, recipe.targets or Targets()
        limited = alone.clock.seconds < math.inf  # Otherwise the same seed must give the same choice.
        seconds = min(alone.clock.left(), targets.seconds) if limited else math.inf
        slowest = DRAWING_TIME * seconds / (FEWEST_DRAWS * self.players)
        choice = processes.share(lambda: choose_sampler(samplers, x_val, generator, clock, slowest))
        samplers = tuple(samplers[number] for number in choice.kept)
        numbers = [choice.kept.index(number) for number in choice.numbers]
        usual = numbers[0]
        if len(numbers) > 1:
            usual, samplers = len(samplers), (*samplers, _blended(samplers, numbers))
        if limited:
            affordable = COMPARISON_TIME * alone.clock.left() / max(1e-9, choice.pace * each)
            coalitions = processes.share(lambda: max(game_choice.FEWEST, int(min(coalitions, affordable))))
        self._choose(samplers, ())
        different = len(x.nan_to_num().unique(dim=0))  # Rows that repeat others say nothing new.
        held_out = HeldOut(x_val, y_val, self.players, coalitions, different)
        scores = processes.share(lambda: self._compared(held_out, usual, alone))
        return self._choose(samplers if scores else (), scores)

    def _compared(self, rows: HeldOut, usual: int, run: Run) -> tuple[SizeScore, ...]:
        """Return how close the games are to the model on held-out rows; it is saved with the unfinished work."""
        saved = run.checkpoint.load("game choice")
        if saved is None:
            generator = run.generator("game choice")
            samples = [self._sampled_outputs(sampler) for sampler in self.samplers_]
            compare = partial(compare_games, usual=usual, together=self.scale != "real")
            try:
                found = compare(self.surrogate_.expectation, samples, rows, generator)
            except ModelError as error:
                logger.warning("The model is asked for whole rows only, because it fails on drawn rows: %s", error)
                found = ()
            saved = {"scores": [asdict(score) for score in found]}
            run.checkpoint.save("game choice", saved)
        return tuple(map(SizeScore.from_dict, saved["scores"]))

    def _sampled_outputs(self, sampler: ConditionalSampler) -> game_choice.SampledOutputs:
        """Return the means over two samples of rows that a sampler completes."""

        def halves(values: Tensor) -> Tensor:
            return values.double().unflatten(1, (2, game_choice.DRAWS)).mean(2)

        def sample(x: Tensor, s: Tensor, starts: Tensor) -> SampleMeans:
            numbers = self.numbers_.spaced(starts.flatten(), game_choice.DRAWS).unflatten(0, (-1, 2)).flatten(1)
            size = max(1, BLOCK_DRAWS // numbers.shape[1])
            outputs: list[Tensor] = []
            controls: list[Tensor] = []
            for part in zip(x.split(size), s.split(size), numbers.split(size), strict=True):
                rows, control = sampler.draw(*part)
                outputs.append(halves(self.predict(rows.flatten(0, 1)).unflatten(0, rows.shape[:2])))
                if control is not None:
                    controls.append(halves(control))
            return SampleMeans(torch.cat(outputs), torch.cat(controls) if controls else None)

        return sample

    def _set(
        self,
        model: ModelFunction | None,
        surrogate: Surrogate,
        donors: Donors,
        link: Link,
        null: Tensor,
        seed: int,
    ) -> None:
        self.model_, self.surrogate_, self.donors_, self.seed_ = model, surrogate, donors, seed
        self._warned = False
        self._generator: torch.Generator | None = None  # of random draws, in training
        self.schema_, self.partition_, self.link, self.null = donors.schema, donors.players, link, null
        self.players, self.outputs = len(donors.players), surrogate.outputs
        self.scale: Scale = surrogate.scale
        self.numbers_ = DonorNumbers(len(donors), donors.players, donors.rows, seed)

    def _choose(self, samplers: tuple[ConditionalSampler, ...], scores: tuple[SizeScore, ...]) -> Self:
        self.samplers_, self.scores_ = samplers, scores
        self.plan_ = SizePlan.of(scores, self.players)
        draws = max(self.draws, ROW_DRAWS >> self.players)
        return self._with_draws(draws, min(TYPICAL_COALITIONS, 1 << min(self.players, 30)))

    def _with_draws(self, draws: int, coalitions: int) -> Self:
        """Set the draws of each size, for a number of coalitions per row."""
        wanted = draws_by_size(self.players, coalitions, draws)
        pairs = zip(wanted, self.plan_.weights, strict=True)
        self.draws_ = tuple(count if weight else 0 for count, weight in pairs)
        inner = self.draws_[1:-1]
        self.cost = max(1, math.ceil(sum(inner) / max(1, len(inner))))
        return self

    @property
    def is_surrogate(self) -> bool:  # type: ignore[override]
        """Whether the model is called for whole rows only."""
        return not any(self.draws_[1:-1])

    @property
    def shared_coalitions(self) -> int:  # type: ignore[override]
        """Several if there are so many players that rows seldom have the same coalitions by chance."""
        return SHARED_COALITIONS if self.players > FEW_PLAYERS and self.samplers_ else 1

    @property
    def called_model(self) -> ModelFunction | None:
        """The model."""
        return self.model_

    @property
    def can_be_thinned(self) -> bool:
        """Whether few draws will do for training: one is an unbiased evaluation if the link is the identity."""
        return not self.is_surrogate

    def thinned(self, coalitions: int, generator: torch.Generator) -> ValueFunction:
        """Return the game with few random draws for most evaluations, for a number of coalitions per row."""
        fewest = 1 if self.link == "identity" else LINKED_DRAWS
        thin = copy.copy(self)._with_draws(max(fewest, coalitions >> self.players), coalitions)
        thin._generator = generator
        return thin

    def parts(self, coalitions: int) -> tuple[Part, ...]:
        """Return the surrogate, and what the game adds to it, which needs fewer coalitions: it is smaller."""
        if self.is_surrogate or self.link != "identity":
            return super().parts(coalitions)
        some = max(2, int(CORRECTION_SHARE * coalitions))
        thin = copy.copy(self)._with_draws(max(1, some >> self.players), some)
        return Part(self.surrogate_, coalitions), Part(Correction(thin), some)

    def new_rows(self, x: Tensor, count: int, generator: torch.Generator) -> Tensor | None:
        """Return rows (n, columns) some of whose players are drawn anew given the others."""
        if self.is_surrogate:
            return None
        rows = x[torch.randint(len(x), (count,), generator=generator, device=x.device)]
        sizes = torch.randint(1, self.players, (count, 1), generator=generator, device=x.device)
        s = subsets(sizes, self.players, generator)[:, 0]
        numbers = torch.randint(len(self.donors_), (count, 1), generator=generator, device=x.device)
        chosen = torch.tensor(self.plan_.samplers, device=x.device)[sizes[:, 0]]
        for number, sampler in enumerate(self.samplers_):
            for part in (chosen == number).nonzero()[:, 0].split(BLOCK_DRAWS):
                rows[part] = sampler(rows[part], s[part], numbers[part])[:, 0].to(rows)
        return rows

    @property
    def game_errors(self) -> tuple[float, ...] | None:
        """The estimated mean squared error of a row's values, for each output; None if games were not compared.

        The squared distance to the truth is estimated for each size of coalition (see `SizeScore`). It becomes an
        error of values as it would if the errors of players added up in a coalition: then the squared distance is
        k (d - k) / (d (d - 1)) of the values' squared error for k of d players, which is (d + 1) / (6 (d - 1)) on
        average over the sizes.
        """
        if not self.scores_:
            return None
        outputs, sizes = apply_link(self.link, self.donors_.outputs), [score.size for score in self.scores_]
        variances = (outputs - outputs.mean(0)).square().mean(0).tolist()
        by_output = zip(*(score.doubts for score in self.scores_), strict=True)
        return tuple(
            values_error(doubts, sizes, self.players) * variance
            for doubts, variance in zip(by_output, variances, strict=True)
        )

    @property
    def fidelity_by_size(self) -> dict[str, float] | None:
        """The R2 of the output to the model's on held-out rows, for the sizes at which games were compared."""
        found = {f"{100 * score.size / self.players:.0f} %": 1 - score.chosen for score in self.scores_}
        return {**found, "100 %": 1.0} if found else None

    @property
    def imitation(self) -> Surrogate:
        """The surrogate."""
        return self.surrogate_

    def is_game_of(self, model: ModelFunction | None) -> bool:
        """Return whether this is the model that is called."""
        return self.model_ is model

    def weights(self) -> list[Tensor]:
        """Return the weights of the surrogate."""
        return self.surrogate_.weights()

    def grand(self, x: Tensor) -> Tensor:
        """Return the link of the model's outputs, (n, outputs); of the surrogate's, if there is no model."""
        if self.model_ is not None:
            return apply_link(self.link, self.predict(x))
        if not self._warned:
            self._warned = True
            logger.warning(
                "The explainer has no model: values sum to the surrogate's output, not to the model's. Pass the "
                "model to FastSHAP.load, or its outputs as predictions="
            )
        return self.surrogate_.grand(x).double()

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        """Return v(x, s), (n, m, outputs)."""
        surrogate = self.surrogate_.expectation(x, s).double()
        v = apply_link(self.link, surrogate + self.correction(x, s, surrogate))
        v[~s.any(2)] = self.null.to(v)
        return v

    def correction(self, x: Tensor, s: Tensor, surrogate: Tensor | None = None) -> Tensor:
        """Return what the game adds to the surrogate's estimates before the link, (n, m, outputs).

        Parameters
        ----------
        x : Tensor of shape (n, columns)
            Encoded rows.
        s : Tensor of shape (n, m, players)
            Coalitions; for those without players the result is zero.
        surrogate : Tensor of shape (n, m, outputs), optional
            The surrogate's estimates, if they are known.
        """
        if surrogate is None:
            surrogate = self.surrogate_.expectation(x, s).double()
        means = self._drawn_means()
        return means(x, s) - means.weights(s) * surrogate

    def _drawn_means(self) -> DrawnMeans:
        """Return the weighted mean outputs of the model over drawn rows."""
        by_size = []
        for size, count in enumerate(self.draws_):
            known = size == self.players or not self.samplers_
            sampler = None if known else self.samplers_[self.plan_.samplers[size]]
            control = self._control(sampler, self.plan_.controls[size])
            by_size.append(Draw(sampler, count, self.plan_.weights[size], control))
        return DrawnMeans(self.predict, self.outputs, by_size, self.numbers_, self._generator)

    def _control(self, sampler: ConditionalSampler | None, multiple: float) -> float:
        """Return the multiple of a sampler's controls that is subtracted from outputs, to take noise off.

        A controlled mean of probabilities need not be a probability. In training, that does not matter.
        """
        if sampler is None or self.link != "identity":
            return 0.0
        return multiple if self._generator is not None or (self.scale == "real" and sampler.centred) else 0.0

    def predict(self, x: Tensor) -> Tensor:
        """Return the model's outputs for encoded rows, (n, outputs).

        Raises
        ------
        ModelError
            If the game was restored without its model.
        """
        if self.model_ is None:
            raise ModelError(
                "the conditional value function calls the model, which a file does not hold: use "
                "FastSHAP.load(path, model=model), or --model on the command line"
            )
        with _MODEL_LOCK:
            return self.model_(x)

    def describe(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the surrogate, the samplers, the plan and the donors."""
        surrogate, tensors = self.surrogate_.describe()
        config = {
            "kind": self.kind,
            "scale": self.scale,
            "link": self.link,
            "seed": self.seed_,
            "draws": self.draws,
            "surrogate": surrogate,
            "samplers": [sampler.config() for sampler in self.samplers_],
            "scores": [asdict(score) for score in self.scores_],
        }
        held = {f"surrogate.{name}": tensor for name, tensor in tensors.items()}
        for number, sampler in enumerate(self.samplers_):
            held |= {f"sampler{number}.{name}": tensor for name, tensor in sampler.tensors().items()}
        return config, {**held, "rows": self.donors_.rows, "outputs": self.donors_.outputs, "null": self.null}

    @classmethod
    def restore(cls, config: dict[str, Any], tensors: dict[str, Tensor], context: GameContext) -> Self:
        """Return the fitted game; without a model it explains, but cannot be evaluated."""
        schema = require_table(context.schema, "value_function='conditional' is")
        given = _given_samplers(context.given)
        surrogate = Surrogate.restore(
            config["surrogate"], with_prefix(tensors, "surrogate"), replace(context, given=None)
        )
        donors = Donors(tensors["rows"], tensors["outputs"], schema, context.partition)
        model = None
        if context.model is not None:
            model = ModelFunction(context.model, schema, donors.rows[:256], context.logits)
        game = cls(draws=config["draws"])
        game._set(model, surrogate, donors, config["link"], tensors["null"], config["seed"])
        samplers: list[ConditionalSampler] = []
        for number, described in enumerate(config["samplers"]):
            if described["kind"] == BlendSampler.kind:
                samplers.append(_blended(samplers, described["numbers"]))
                continue
            sampler = _restored_sampler(described["kind"], given)
            sampler.restore(donors, with_prefix(tensors, f"sampler{number}"), described, config["seed"])
            samplers.append(sampler)
        return game._choose(tuple(samplers), tuple(map(SizeScore.from_dict, config["scores"])))

    @classmethod
    def setting(cls, given: Any) -> Any:
        """Return the value function as a user writes it; functions are passed as samplers."""
        return cls(samplers=given) if callable(given) else super().setting(given)


class Correction(GameTraits):
    """The game that a `Conditional` adds to its surrogate.

    Parameters
    ----------
    game : Conditional
        The game, whose link is the identity.
    """

    def __init__(self, game: Conditional) -> None:
        self.game, self.cost, self.concurrent = game, game.cost, game.concurrent
        self.players, self.outputs, self.shared_coalitions = game.players, game.outputs, game.shared_coalitions
        self.null = game.null - game.surrogate_.null.to(game.null)

    def grand(self, x: Tensor) -> Tensor:
        """Return v(x, 1), (n, outputs)."""
        return self.game.grand(x) - self.game.surrogate_.grand(x).double()

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        """Return v(x, s), (n, m, outputs)."""
        return torch.where(s.any(2, keepdim=True), self.game.correction(x, s), self.null)


def values_error(doubts: Sequence[float], sizes: Sequence[int], players: int) -> float:
    """Return the squared error of values, given the squared error of the game for some sizes of coalition.

    The game is right for no players and for all of them, and its error is interpolated between the sizes.
    """
    inner = np.interp(np.arange(1, players), [0, *sizes, players], [0.0, *doubts, 0.0])
    return float(inner.mean()) * 6 * (players - 1) / (players + 1)


def _labelled(problem: Problem, run: Run) -> tuple[LabelledRows, float]:
    """Return the rows with the model's outputs, and the seconds per row; half of the calls are left for draws."""
    start = run.clock.elapsed()
    rows = label_rows(replace(problem, evaluations=problem.evaluations / 2), run, math.inf)
    seconds = (run.clock.elapsed() - start) / max(1, len(rows.x) + len(rows.x_val))
    return rows, max(seconds, problem.model.pace)


def _affordable_calls(problem: Problem, recipe: Recipe, labels: int, pace: float, run: Run) -> float:
    """Return how many rows the model may still be called with, after a number of labels."""
    targets = recipe.targets or Targets()
    seconds = min(run.clock.left(), targets.seconds)
    return min(problem.evaluations - labels, targets.evaluations, seconds / (pace + DRAW_SECONDS))


def _fitted_sampler(
    sampler: ConditionalSampler, donors: Donors, rows: SamplerRows, recipe: Recipe, run: Run
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Fit a sampler, and return what it takes to restore it in another process."""
    sampler.fit(donors, rows, recipe, run)
    return sampler.tensors(), sampler.config()


def _blended(samplers: Sequence[ConditionalSampler], numbers: Sequence[int]) -> BlendSampler:
    first, second = numbers
    return BlendSampler(samplers[first], samplers[second], (first, second))


def _given_samplers(given: Any) -> list[Sample]:
    if isinstance(given, Conditional):
        given = given.samplers
    given = [given] if callable(given) else given or []
    return [each for each in given if callable(each)]


def _restored_sampler(kind: str, given: list[Sample]) -> ConditionalSampler:
    if kind in SAMPLERS:
        return SAMPLERS[kind]()
    if not given:
        raise FileFormatError("the explainer's sampler is a function of your own: pass it as value_function=")
    return GivenSampler(given.pop(0))
