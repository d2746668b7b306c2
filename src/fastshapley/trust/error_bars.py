"""How far each value of an explainer may be off: a small network that learns it from rows that were held out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from fastshapley.data.augmentation import mix_rows
from fastshapley.data.stream import Rows
from fastshapley.estimators.kernel import sampling_variance
from fastshapley.estimators.residuals import Residuals, residuals
from fastshapley.networks.explainer_network import ExplainerNetwork
from fastshapley.networks.perceptron import Perceptron
from fastshapley.networks.table_encoder import TableEncoder
from fastshapley.objective import normalize
from fastshapley.training.loop import Task, Training, train
from fastshapley.training.run import Run
from fastshapley.value_functions.base_game import cost
from fastshapley.value_functions.protocol import ValueFunction, total_values

LEVEL = 0.9  # of the intervals that are made to hold
_NORMAL = 1.6449  # half their width, in standard errors
_LAYERS, _WIDTH = 2, 64
_BATCH = 64  # rows in one forward pass of the explainer
_LARGEST = 1e3  # times the usual variance, at most, and at least one by that
_EVALUATIONS = 1_000_000  # of the game, to learn from, and as many to calibrate by
_ROWS, _CALIBRATION = 2048, 512  # at most
_FEWEST, _MIXED = 16, 256  # rows to learn anything from, and to which fewer are mixed
_SECONDS = 60.0
_CORRECTED = 4  # pairs a player, that intervals of corrected values are calibrated for,
_DOUBT = 2.0  # by this factor at most


def fit_errors(
    network: ExplainerNetwork,
    game: ValueFunction,
    x: Rows,
    x_calibration: Rows,
    training: Training,
    run: Run,
    *,
    pace: float,
    calls: float,
    discrete: Sequence[bool],
    owner: Sequence[int],
    effort: float = 1.0,
) -> Errors | None:
    """Learn how far a trained network's values are off, from rows ``x`` that it was not trained on.

    Few rows of a table are mixed to more (``discrete`` and ``owner`` as for `mix_rows`): those that the network was
    trained on were too. Intervals are calibrated on other rows, as they are. ``calls`` is how many rows the model,
    or the surrogate, may be called with, and ``pace`` the seconds that one takes; None if that does not do.
    ``effort`` is the share of the usual evaluations to make.
    """
    if game.players == 1:
        return None
    seconds = min(effort * _SECONDS, run.clock.left() / 2) / 2
    evaluations = int(min(effort * _EVALUATIONS, calls / 2 / cost(game), seconds / max(pace * cost(game), 1e-12)))
    rows = min(_ROWS, len(x), evaluations // (2 * game.players))
    if rows < min(_FEWEST, len(x)):
        return None
    generator = run.generator("errors")
    with run.isolated("error weights"):
        errors = Errors(network)
    x, x_calibration = x[:rows], x_calibration[: min(_CALIBRATION, rows)]
    if x.ndim == 2 and (more := min(_MIXED, evaluations // (2 * game.players)) - len(x)) > 0:
        x = torch.cat([x, mix_rows(x, more, discrete, generator, owner)])
    calibrate = partial(errors.calibrate, generator=generator)
    for some, learn in ((x, partial(errors.fit, training=training, run=run)), (x_calibration, calibrate)):
        phi = explained(network, game, some)
        learn(some, phi, residuals(game, some, phi, evaluations // (2 * len(some)), generator))
    return errors


def explained(network: ExplainerNetwork, game: ValueFunction, x: Tensor) -> Tensor:
    """The network's values, which sum to grand minus null, (n, players, outputs), float64."""
    with torch.no_grad():
        phi = torch.cat([network(part).double() for part in x.split(_BATCH)])
    return normalize(phi, total_values(game, x))


class ErrorNetwork(nn.Module):
    """From an explainer's inputs and values to variances: of each value, and of what a pair leaves unexplained.

    It starts as the mean over rows, by player, and learns in which rows an explainer is further off. Outputs that
    mirror each other have the same.
    """

    def __init__(self, inputs: int, players: int, outputs: int) -> None:
        """``inputs`` of a table's encoder, 0 for images; ``outputs`` that differ."""
        super().__init__()
        self.players, self.outputs = players, outputs
        self.body = Perceptron(inputs + players * outputs, (players + 1) * outputs, _LAYERS, _WIDTH, "silu")
        for parameter in self.body[-1].parameters():
            nn.init.zeros_(parameter)
        self.register_buffer("usual", torch.ones(players + 1, outputs))
        self.register_buffer("factor", torch.ones(()))
        self.register_buffer("expected", torch.zeros((), dtype=torch.float64))
        self.register_buffer("profile", torch.ones(players // 2, dtype=torch.float64))

    usual: Tensor
    factor: Tensor
    expected: Tensor  # the mean over rows of the variances of a row's values, together
    profile: Tensor

    def forward(self, inputs: Tensor, phi: Tensor) -> tuple[Tensor, Tensor]:
        """Variances (n, players, outputs) and (n, outputs), in units of the values (n, players, outputs) given."""
        together = torch.cat([inputs, phi.flatten(1)], dim=1)
        raw, most = self.body(together), math.log(_LARGEST)
        usual = torch.cat([self.factor.square() * self.usual[:-1], self.usual[-1:]]).flatten()
        found = usual * (most * torch.tanh(raw / most)).exp()
        values, rest = found.split([self.players * self.outputs, self.outputs], dim=1)
        return values.unflatten(1, (self.players, self.outputs)), rest


class Errors:
    """An explainer's network with the `ErrorNetwork` that watches it; it works on encoded rows."""

    def __init__(self, network: ExplainerNetwork) -> None:
        inputs = len(network.encoder.columns) if isinstance(network.encoder, TableEncoder) else 0
        outputs = 1 if network.classes == "mirror" else network.outputs
        self.network = network
        self.head = ErrorNetwork(inputs, network.players, outputs).to(network.scale.device)

    def __call__(self, x: Tensor, phi: Tensor) -> tuple[Tensor, Tensor]:
        """Variances of the values phi (n, players, outputs), and of a pair's rest, (n, outputs), float64."""
        with torch.no_grad():
            variance, noise = self.head(self.inputs(x), self.scaled(phi))
        unit = self.unit().double().square()
        by_output = variance.double().transpose(1, 2) * unit[:, None]  # long axis last: see `ExplainerNetwork`
        return by_output.transpose(1, 2), noise.double() * unit

    def expected(self, x: Tensor, phi: Tensor) -> Tensor:
        """The variances of a row's values together, the mean over rows."""
        return self(x, phi)[0].sum((1, 2)).mean()

    def inputs(self, x: Tensor) -> Tensor:
        if isinstance(self.network.encoder, TableEncoder):
            made: Tensor = self.network.encoder(x)
            return made
        return x.new_zeros(x.shape[0], 0)

    def scaled(self, values: Tensor, power: int = 1) -> Tensor:
        """Values, or errors, in units of the network's scale, or squares in those of its square; each once."""
        different = slice(-self.head.outputs, None)
        return (values[..., different] / self.unit()[different] ** power).float()

    def unit(self) -> Tensor:
        """The network's scale, (outputs,); one, where it is zero for a network that was not trained."""
        return torch.where(self.network.scale > 0, self.network.scale, 1.0)

    def fit(self, x: Tensor, phi: Tensor, found: Residuals, training: Training, run: Run) -> None:
        """Learn from rows that the explainer was not trained on, and from what pairs say of its values there.

        An estimated error has the variance of the error and that of the estimate: their sum is what its square is
        held against, by the normal likelihood.
        """
        with torch.no_grad():
            inputs, values = self.inputs(x), self.scaled(phi)
        error, spread, noise = self._targets(found)
        usual = self._usual(error, spread, noise)
        self.head.usual.copy_(usual)
        self.head.profile.copy_(found.profile)
        rows = torch.arange(len(x), device=x.device)
        held = rows[rows % 5 == 0] if len(rows) >= 10 else rows
        rest = rows[rows % 5 != 0] if len(rows) >= 10 else rows

        def likelihood(some: Tensor) -> Tensor:
            variance, left = self.head(inputs[some], values[some])
            total = variance + spread[some] + 1e-6 * usual[:-1]
            of_values = (total.log() + error[some].square() / total).mean()
            return of_values + 0.1 * (left.log() + noise[some] / left).mean()

        train(
            Task(
                "errors",
                self.head,
                len(rest),
                lambda batch, generator: likelihood(rest[batch]),
                lambda: float(likelihood(held)),
            ),
            training,
            run,
        )

    def calibrate(self, x: Tensor, phi: Tensor, found: Residuals, generator: torch.Generator) -> None:
        """Scale the variances so that intervals of `LEVEL` hold for that share of the values of these rows.

        Then the noise, so that they still do when values are corrected by some pairs, as they are drawn here.
        """
        self.head.factor.fill_(1.0)
        error, spread, noise = self._targets(found)
        with torch.no_grad():
            variance, _ = self.head(self.inputs(x), self.scaled(phi))

        def holds(factor: float) -> Tensor:
            return error.abs() <= _NORMAL * (factor**2 * variance + spread).sqrt()

        factor = _least(holds)
        self.head.factor.fill_(factor)
        self.head.expected.copy_(self.expected(x, phi))
        variance = factor**2 * variance + 1e-12
        with torch.no_grad():
            claimed = self.head(self.inputs(x), self.scaled(phi))[1]
        players = self.network.players
        sampling = sampling_variance(players, _CORRECTED * players, found.profile.tolist())
        drawn = (sampling * noise)[:, None].sqrt() * torch.randn(error.shape, generator=generator, device=x.device)

        def still_holds(factor: float) -> Tensor:
            doubt = factor**2 * sampling * claimed[:, None]
            weight = variance / (variance + doubt)
            left = (1 - weight) * error - weight * drawn
            return left.abs() <= _NORMAL * (weight * doubt + (1 - weight).square() * spread).sqrt()

        if sampling > 0:
            self.head.usual[-1] *= min(max(1.0, _least(still_holds)), _DOUBT) ** 2

    def _targets(self, found: Residuals) -> tuple[Tensor, Tensor, Tensor]:
        """Errors, the variance of their estimates, and noise, in units of the network's scale."""
        return self.scaled(found.error), self.scaled(found.variance, 2), self.scaled(found.noise, 2)

    @staticmethod
    def _usual(error: Tensor, spread: Tensor, noise: Tensor) -> Tensor:
        """The mean variances by player, (players + 1, outputs), none below a hundredth of the mean of all."""
        by_player = (error.square() - spread).mean(0)
        mean = by_player.mean(0).clamp(min=1e-3 * float((error.square()).mean()) + 1e-12)
        return torch.cat([by_player.maximum(1e-2 * mean), noise.mean(0, keepdim=True).clamp(min=1e-12)])


def _least(holds: Callable[[float], Tensor]) -> float:
    """The least factor with which intervals hold for a share of `LEVEL`."""
    low, high = -7.0, 7.0  # its logarithm
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(math.exp(middle)).double().mean() >= LEVEL else (middle, high)
    return math.exp(high)
