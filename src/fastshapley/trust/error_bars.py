"""Error bars: a small network that learns from held-out rows how far each value of an explainer may be off."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from fastshapley.trust import effort
from fastshapley.trust.effort import Allowance
from fastshapley.value_functions.background_sampling import thinning
from fastshapley.value_functions.base_game import cost
from fastshapley.value_functions.protocol import ValueFunction, total_values

LEVEL = 0.9  # The coverage of the intervals that error bars are calibrated for.
HALF_WIDTH = 1.6449  # Half the width of such an interval, in standard errors.
FEWEST_ROWS = 16  # Error bars are not learned from fewer rows, unless no more are held out.
MIXED_ROWS = 256  # A table with fewer rows is extended to this number by mixing rows.
FORWARD_ROWS = 64  # Rows in one forward pass of the explainer.
CORRECTED_PAIRS = 4  # Pairs per player for which intervals of corrected values are calibrated.
LARGEST_NOISE_FACTOR = 2.0  # The largest factor of the noise's standard deviation that calibration applies.
HELD_OUT_EVERY = 5  # One row in this many selects the best epoch of the error network; the others train it.
NOISE_WEIGHT = 0.1  # The weight of the likelihood of the noise, relative to that of the errors.
ENOUGH_ROWS = 64  # Rows that error bars are learned from, even if estimates of their errors are imprecise.
ROW_EVALUATIONS = 64  # Evaluations per player and row; all coalitions if there are fewer.
NOISY_ROW_EVALUATIONS = 1024  # The same for a noisy game.
PRECISE_SHARE = 0.25  # The share of the calls of a noisy game's model that are spent on the game itself.
RANGE_MARGIN = 0.1  # The share of a column's range by which a number may be outside of it.
EVEN_SHARE = 0.75  # The share of the game's error that all values have in equal parts.
LARGEST_RATIO = 1e3  # The error network's variances are at most this multiple of the usual one, or its inverse.
_LAYERS, _WIDTH = 2, 64  # The hidden layers of the error network.


@dataclass(frozen=True)
class ErrorBarRows:
    """The rows that error bars are learned from and calibrated on.

    Attributes
    ----------
    x : Rows
        Encoded rows that the explainer was not trained on, to learn from.
    x_calibration : Rows
        Other such rows, to calibrate on.
    discrete : sequence of bool
        Which columns hold categories, as for `mix_rows`.
    owner : sequence of int
        The player of each column, as for `mix_rows`.
    """

    x: Rows
    x_calibration: Rows
    discrete: Sequence[bool]
    owner: Sequence[int]


def fit_error_bars(
    network: ExplainerNetwork,
    game: ValueFunction,
    rows: ErrorBarRows,
    training: Training,
    run: Run,
    allowance: Allowance,
) -> ErrorBars | None:
    """Learn how far the values of a trained network are off.

    A table with few rows is extended by mixing rows, as the rows that the network was trained on were. Calibration
    uses unmixed rows.

    Parameters
    ----------
    network : ExplainerNetwork
        The trained network.
    game : ValueFunction
        The game that it explains.
    rows : ErrorBarRows
        Rows that the network was not trained on.
    training : Training
        How the error network is trained.
    run : Run
        The seed and the checkpoint.
    allowance : Allowance
        The calls of the model and the seconds that may be spent. Half of the seconds are left to the training.

    Returns
    -------
    ErrorBars or None
        None if the game has one player, or the allowance does not suffice.
    """
    if game.players == 1:
        return None
    generator = run.generator("errors")
    assessment = _Assessment.of(network, game, allowance, generator)
    affordable = assessment.rows()
    count = min(effort.ERROR_BAR_ROWS, len(rows.x), affordable)
    if count < min(FEWEST_ROWS, len(rows.x)):
        return None
    with run.isolated("error weights"):
        bars = ErrorBars(network)
    x, x_calibration = rows.x[:count], rows.x_calibration[: min(effort.CALIBRATION_ROWS, count)]
    if x.ndim == 2 and (more := min(MIXED_ROWS, affordable) - len(x)) > 0:
        x = torch.cat([x, mix_rows(x, more, rows.discrete, generator, rows.owner)])
    bars.fit(assessment(x), training, run)
    bars.calibrate(assessment(x_calibration), generator)
    return bars


def normalized_values(network: ExplainerNetwork, game: ValueFunction, x: Tensor) -> Tensor:
    """Return the network's values of rows, normalized to sum to grand minus null.

    Parameters
    ----------
    network : ExplainerNetwork
        The explainer's network.
    game : ValueFunction
        The game that it explains.
    x : Tensor of shape (n, ...)
        The encoded rows.

    Returns
    -------
    Tensor of shape (n, players, outputs)
        The values, float64.
    """
    with torch.no_grad():
        phi = torch.cat([network(part).double() for part in x.split(FORWARD_ROWS)])
    return normalize(phi, total_values(game, x))


@dataclass(frozen=True)
class AssessedRows:
    """Rows, an explainer's values for them, and what pairs of coalitions say about these values.

    Attributes
    ----------
    x : Tensor of shape (n, ...)
        The encoded rows.
    phi : Tensor of shape (n, players, outputs)
        The explainer's values, which sum to grand minus null.
    found : Residuals
        The estimated errors of ``phi``.
    """

    x: Tensor
    phi: Tensor
    found: Residuals


@dataclass(frozen=True)
class _Assessment:
    """How the errors of a network's values are estimated.

    Attributes
    ----------
    network : ExplainerNetwork
        The network.
    game : ValueFunction
        The game that it explains.
    thin : ValueFunction
        The same game at the smallest cost, which is noisy; the game itself if all coalitions of some rows can be
        evaluated.
    evaluations : int
        The evaluations of the thin game.
    precise : int
        The evaluations of the game itself, which tell how large the noise of a correction is.
    generator : torch.Generator
        Where the randomness comes from.
    """

    network: ExplainerNetwork
    game: ValueFunction
    thin: ValueFunction
    evaluations: int
    precise: int
    generator: torch.Generator

    @classmethod
    def of(
        cls, network: ExplainerNetwork, game: ValueFunction, allowance: Allowance, generator: torch.Generator
    ) -> _Assessment:
        """Return what half of the allowance suffices for; the other half is for the calibration."""
        seconds = min(allowance.share * effort.ERROR_BAR_SECONDS, allowance.seconds / 2) / 2
        calls = min(
            allowance.share * effort.ERROR_BAR_CALLS, allowance.calls / 2, seconds / max(allowance.pace, 1e-12)
        )
        most = allowance.share * effort.ERROR_BAR_EVALUATIONS
        whole = int(min(most, calls / cost(game)))
        thin = thinning(game)(1, generator)
        if thin is game or whole >> game.players >= ENOUGH_ROWS:
            return cls(network, game, game, whole, 0, generator)
        most = min(most, effort.NOISY_EVALUATIONS / game.players)
        evaluations = int(min(most, (1 - PRECISE_SHARE) * calls / cost(thin)))
        return cls(network, game, thin, evaluations, int(PRECISE_SHARE * calls / cost(game)), generator)

    def rows(self) -> int:
        """Return the number of rows whose errors are estimated. Precise estimates are worth more than many rows."""
        players = self.game.players
        noisy = self.thin is not self.game
        wanted = min(
            (NOISY_ROW_EVALUATIONS if noisy else ROW_EVALUATIONS) * players, math.inf if noisy else 1 << players
        )
        least = min(2 * players, wanted)  # Two evaluations per player and row are the least.
        return int(max(self.evaluations // wanted, min(ENOUGH_ROWS, self.evaluations // least)))

    def __call__(self, x: Tensor) -> AssessedRows:
        """Explain rows, and estimate the errors of their values."""
        phi = normalized_values(self.network, self.game, x)
        pairs = self.evaluations // (2 * len(x))
        if self.thin is self.game:
            return AssessedRows(x, phi, residuals(self.game, x, phi, pairs, self.generator))
        found = residuals(self.thin, x, phi, pairs, self.generator, noisy=True)
        some = max(1, self.precise // (2 * self.game.players))
        precise = residuals(self.game, x[:some], phi[:some], self.game.players, self.generator)
        ratio = precise.noise.mean(0) / found.noise[:some].mean(0).clamp(min=1e-300)
        return AssessedRows(x, phi, replace(found, noise=ratio * found.noise, profile=precise.profile))


class ErrorNetwork(nn.Module):
    """Predicts variances from an explainer's inputs and values: of each value, and of a pair's residual.

    It starts as the mean over rows for each player, and learns in which rows an explainer is further off. Outputs
    that mirror each other share their variances.

    Parameters
    ----------
    inputs : int
        The number of inputs of a table's encoder; 0 for images.
    players, outputs : int
        The number of players, and of outputs that do not mirror each other.
    columns : int
        The number of columns of a table; 0 for images.
    """

    def __init__(self, inputs: int, players: int, outputs: int, columns: int = 0) -> None:
        super().__init__()
        self.players, self.outputs = players, outputs
        self.body = Perceptron(inputs + players * outputs, (players + 1) * outputs, _LAYERS, _WIDTH, "silu")
        for parameter in self.body[-1].parameters():
            nn.init.zeros_(parameter)
        self.register_buffer("usual", torch.ones(players + 1, outputs))
        self.register_buffer("factor", torch.ones(()))
        self.register_buffer("noise_scale", torch.ones(()))
        self.register_buffer("expected", torch.zeros((), dtype=torch.float64))
        self.register_buffer("profile", torch.ones(players // 2, dtype=torch.float64))
        self.register_buffer("game", torch.zeros(players, outputs, dtype=torch.float64))
        self.register_buffer("low", torch.full((columns,), -torch.inf, dtype=torch.float64))
        self.register_buffer("high", torch.full((columns,), torch.inf, dtype=torch.float64))

    usual: Tensor  # The mean variance of each player's values, and in the last row that of the noise.
    factor: Tensor  # The calibrated factor of the values' standard errors.
    noise_scale: Tensor  # The calibrated factor of the noise's variance.
    expected: Tensor  # The mean over rows of the sum of a row's variances.
    profile: Tensor  # The noise by coalition size: see `Residuals`.
    game: Tensor  # The variance of the game's own error, on the scale of the values.
    low: Tensor  # The numbers of each column between which errors are known.
    high: Tensor

    def forward(self, inputs: Tensor, phi: Tensor) -> tuple[Tensor, Tensor]:
        """Return variances of values, (n, players, outputs), and of noise, (n, outputs).

        They are in units of the given values ``phi`` (n, players, outputs).
        """
        together = torch.cat([inputs, phi.flatten(1)], dim=1)
        raw, most = self.body(together), math.log(LARGEST_RATIO)
        scales = torch.cat([self.factor.square() * self.usual[:-1], self.noise_scale * self.usual[-1:]])
        found = scales.flatten() * (most * torch.tanh(raw / most)).exp()
        values, noise = found.split([self.players * self.outputs, self.outputs], dim=1)
        return values.unflatten(1, (self.players, self.outputs)), noise

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load weights. In files without ``noise_scale``, which are older, ``usual`` contains that factor."""
        added = {"noise_scale": torch.ones(()), "game": torch.zeros_like(self.game)}
        added |= {"low": self.low, "high": self.high}  # Files without a range are older.
        return super().load_state_dict({**added, **state_dict}, strict, assign)

    def reset_calibration(self) -> None:
        """Return to the variances as they were learned."""
        self.factor.fill_(1.0)
        self.noise_scale.fill_(1.0)


class ErrorBars:
    """An explainer's network together with the `ErrorNetwork` that predicts its errors.

    Parameters
    ----------
    network : ExplainerNetwork
        The trained network. It is not changed.
    """

    def __init__(self, network: ExplainerNetwork) -> None:
        encoder = network.encoder if isinstance(network.encoder, TableEncoder) else None
        inputs = 0 if encoder is None else len(encoder.columns)
        columns = 0 if encoder is None else len(encoder.config["categories"])
        outputs = 1 if network.classes == "mirror" else network.outputs
        self.network = network
        self.head = ErrorNetwork(inputs, network.players, outputs, columns).to(network.scale.device)

    def __call__(self, x: Tensor, phi: Tensor) -> tuple[Tensor, Tensor]:
        """Return the variances of values, as values of the game, and of noise.

        Nothing is known about the network outside of the range of its training rows. So there, a value's variance
        is at least the mean square of the row's values.

        Parameters
        ----------
        x : Tensor of shape (n, ...)
            The encoded rows.
        phi : Tensor of shape (n, players, outputs)
            The explainer's values for them.

        Returns
        -------
        variance : Tensor of shape (n, players, outputs)
            The variance of each value, float64.
        noise : Tensor of shape (n, outputs)
            The variance of what exact values leave unexplained of a pair, float64.
        """
        variance, noise = self._learnt(x, phi)
        size = phi.square().mean(1, keepdim=True)
        return torch.where(self.outside(x)[:, None, None], variance + size, variance), noise

    def _learnt(self, x: Tensor, phi: Tensor) -> tuple[Tensor, Tensor]:
        """Return what a call returns, as if all rows were in the range of the training rows."""
        with torch.no_grad():
            variance, noise = self.head(self.inputs(x), self.scaled(phi))
        unit = self.unit().double().square()
        by_output = variance.double().transpose(1, 2) * unit[:, None]  # Long axis last: see `ExplainerNetwork`.
        return by_output.transpose(1, 2), noise.double() * unit

    def outside(self, x: Tensor) -> Tensor:
        """Return which rows have a number outside of the range of the training rows, (n,); no image has one."""
        if not len(self.head.low):
            return x.new_zeros(x.shape[0], dtype=torch.bool)
        return ((x < self.head.low) | (x > self.head.high)).any(1)

    def set_range(self, x: Tensor, discrete: Sequence[bool]) -> None:
        """Take over the range of training rows, and `RANGE_MARGIN` of it on both sides.

        Parameters
        ----------
        x : Tensor of shape (n, ...)
            Encoded rows; the range of images is not used.
        discrete : sequence of bool
            Which columns are categories, which have no range.
        """
        if not len(self.head.low):
            return
        known = (~x.isnan()).any(0) & ~torch.tensor(list(discrete), device=x.device)
        low = torch.where(known, x.nan_to_num(nan=torch.inf).amin(0), -torch.inf)
        high = torch.where(known, x.nan_to_num(nan=-torch.inf).amax(0), torch.inf)
        margin = torch.where(known, RANGE_MARGIN * (high - low), 0.0)
        self.head.low.copy_(low - margin)
        self.head.high.copy_(high + margin)

    @property
    def game_variance(self) -> Tensor:
        """The variance of the game's own error, (players, outputs), which errors to the model contain too."""
        return self.head.game.expand(-1, self.network.outputs)

    def set_game_errors(self, game_errors: Sequence[float], typical: Tensor) -> None:
        """Take over the estimated mean squared error of a row that the exact values of the game have.

        It is divided among the values of an output in proportion to their typical squares, and most of it evenly.

        Parameters
        ----------
        game_errors : sequence of float
            The error of each output, over players together.
        typical : Tensor of shape (players, outputs)
            The mean squares of the values.
        """
        share = typical / typical.sum(0).clamp(min=1e-300)
        share = (1 - EVEN_SHARE) * share + EVEN_SHARE / len(share)
        self.head.game.copy_((torch.tensor(game_errors).to(share) * share)[:, -self.head.outputs :])

    def expected(self, x: Tensor, phi: Tensor) -> Tensor:
        """Return the mean over rows of the sum of a row's learnt variances."""
        return self._learnt(x, phi)[0].sum((1, 2)).mean()

    def inputs(self, x: Tensor) -> Tensor:
        """Return the encoder's output for rows of a table; nothing for images, (n, 0)."""
        if isinstance(self.network.encoder, TableEncoder):
            made: Tensor = self.network.encoder(x)
            return made
        return x.new_zeros(x.shape[0], 0)

    def scaled(self, values: Tensor, power: int = 1) -> Tensor:
        """Return values in units of the network's scale to the given power, without outputs that are mirrored."""
        different = slice(-self.head.outputs, None)
        return (values[..., different] / self.unit()[different] ** power).float()

    def unit(self) -> Tensor:
        """Return the network's scale, (outputs,); 1 where it is 0, as in a network that was not trained."""
        return torch.where(self.network.scale > 0, self.network.scale, 1.0)

    def fit(self, rows: AssessedRows, training: Training, run: Run) -> None:
        """Learn from rows that the explainer was not trained on.

        The square of an estimated error is compared with the sum of the error's variance and of the estimate's, by
        the normal likelihood.

        Parameters
        ----------
        rows : AssessedRows
            The rows and the estimated errors of their values.
        training : Training
            How the network is trained.
        run : Run
            The seed and the checkpoint.
        """
        x = rows.x
        with torch.no_grad():
            inputs, values = self.inputs(x), self.scaled(rows.phi)
        error, spread, noise = self._targets(rows.found)
        usual = self._usual(error, spread, noise)
        self.head.reset_calibration()
        self.head.usual.copy_(usual)
        self.head.profile.copy_(rows.found.profile)
        every = torch.arange(len(x), device=x.device)
        divided = len(every) >= 2 * HELD_OUT_EVERY
        held_out = every[every % HELD_OUT_EVERY == 0] if divided else every
        trained = every[every % HELD_OUT_EVERY != 0] if divided else every

        def likelihood(some: Tensor) -> Tensor:
            variance, claimed_noise = self.head(inputs[some], values[some])
            total = variance + spread[some] + 1e-6 * usual[:-1]
            of_values = (total.log() + error[some].square() / total).mean()
            return of_values + NOISE_WEIGHT * (claimed_noise.log() + noise[some] / claimed_noise).mean()

        train(
            Task(
                "errors",
                self.head,
                len(trained),
                lambda batch, generator: likelihood(trained[batch]),
                lambda: float(likelihood(held_out)),
            ),
            training,
            run,
        )

    def calibrate(self, rows: AssessedRows, generator: torch.Generator) -> None:
        """Scale the variances so that intervals hold for a share of `LEVEL` of the values of these rows.

        First the variances of the values are scaled, then that of the noise, so that intervals still hold after
        values have been corrected by some pairs. Such corrections are simulated here. An earlier calibration is
        replaced.

        Parameters
        ----------
        rows : AssessedRows
            Rows that neither the explainer nor the error network was trained on.
        generator : torch.Generator
            Where the randomness of the simulated corrections comes from.
        """
        x, phi = rows.x, rows.phi
        self.head.reset_calibration()
        error, spread, noise = self._targets(rows.found)
        with torch.no_grad():
            variance, claimed_noise = self.head(self.inputs(x), self.scaled(phi))

        def holds(factor: float) -> Tensor:
            return error.abs() <= HALF_WIDTH * (factor**2 * variance + spread).sqrt()

        factor = _smallest_factor(holds)
        self.head.factor.fill_(factor)
        self.head.expected.copy_(self.expected(x, phi))
        variance = factor**2 * variance + 1e-12
        players = self.network.players
        sampling = sampling_variance(players, CORRECTED_PAIRS * players, rows.found.profile.tolist())
        drawn = (sampling * noise)[:, None].sqrt() * torch.randn(error.shape, generator=generator, device=x.device)

        def holds_corrected(factor: float) -> Tensor:
            sampled = factor**2 * sampling * claimed_noise[:, None]
            weight = variance / (variance + sampled)
            remaining = (1 - weight) * error - weight * drawn
            return remaining.abs() <= HALF_WIDTH * (weight * sampled + (1 - weight).square() * spread).sqrt()

        if sampling > 0:
            self.head.noise_scale.fill_(min(max(1.0, _smallest_factor(holds_corrected)), LARGEST_NOISE_FACTOR) ** 2)

    def _targets(self, found: Residuals) -> tuple[Tensor, Tensor, Tensor]:
        """Return errors, the variances of their estimates, and noise, in units of the network's scale."""
        return self.scaled(found.error), self.scaled(found.variance, 2), self.scaled(found.noise, 2)

    @staticmethod
    def _usual(error: Tensor, spread: Tensor, noise: Tensor) -> Tensor:
        """Return the mean variances by player, (players + 1, outputs), none below a hundredth of their mean.

        Few rows with noisy estimates say little about single players. So each player's mean is drawn towards that
        of all players, by the share of the differences between players that this noise explains.
        """
        squared = error.square() - spread
        by_player = squared.mean(0)
        mean = by_player.mean(0).clamp(min=1e-3 * float((error.square()).mean()) + 1e-12)
        chance = (squared.var(0, correction=0) / len(squared)).mean(0)
        different = by_player.var(0, correction=0)
        own = (1 - chance / different.clamp(min=1e-30)).clamp(min=0)
        by_player = mean + own * (by_player - mean)
        return torch.cat([by_player.maximum(1e-2 * mean), noise.mean(0, keepdim=True).clamp(min=1e-12)])


def _smallest_factor(holds: Callable[[float], Tensor]) -> float:
    """Return the smallest factor with which intervals hold for a share of `LEVEL`, by bisection."""
    low, high = -7.0, 7.0  # Bounds of its logarithm.
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(math.exp(middle)).double().mean() >= LEVEL else (middle, high)
    return math.exp(high)
