"""What a fit has learnt, as one value."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fastshapley.data.players import Partition
from fastshapley.data.schema import Schema
from fastshapley.data.stream import Rows
from fastshapley.errors import InputError
from fastshapley.fit.settings import Normalize
from fastshapley.networks.explainer_network import ExplainerNetwork
from fastshapley.networks.output_choice import with_outputs
from fastshapley.objective import normalize
from fastshapley.training.run import Timing
from fastshapley.trust.drift import Reference
from fastshapley.trust.error_bars import ErrorBars
from fastshapley.trust.report import Report
from fastshapley.value_functions import ValueFunction
from fastshapley.value_functions.protocol import grand_values, null_values

logger = logging.getLogger(__name__)

FORWARD_ROWS = 8192  # rows explained in one forward pass, at most
SUM_TOLERANCE = 0.01  # share of the range of an output that values may miss their sum by
FORWARD_ENTRIES = 1 << 22  # values or inputs of these rows, at most


@dataclass(frozen=True)
class Fitted:
    """Everything that a fit leaves behind, and that a file holds.

    Attributes
    ----------
    schema : Schema
        How the user's data is encoded.
    partition : Partition
        The players.
    game : ValueFunction
        The game that is explained.
    network : ExplainerNetwork
        The network that gives its Shapley values.
    output_names : tuple of str
        The names of the outputs.
    losses : list of float
        The validation loss of the network before the first epoch and after each epoch.
    errors : ErrorBars or None
        The error bars, if they were learnt.
    report : Report or None
        The measured distance to the exact values, if it was measured.
    reference : Reference
        A sample of the training rows, to detect drift.
    normalize : {"always", "inference", "never"}
        Whether values are made to sum to grand minus null.
    timings : dict
        A `Timing` of each phase, by its name.
    """

    schema: Schema
    partition: Partition
    game: ValueFunction
    network: ExplainerNetwork
    output_names: tuple[str, ...]
    losses: list[float]
    errors: ErrorBars | None
    report: Report | None
    reference: Reference
    normalize: Normalize = "always"
    timings: dict[str, Timing] = field(default_factory=dict)

    @property
    def normalized(self) -> bool:
        """Whether values sum to grand minus null: a single player always gets all of it."""
        return self.normalize != "never" or self.game.players == 1

    @property
    def device(self) -> torch.device:
        """Where the networks run."""
        return self.network.scale.device

    @property
    def knows_game_error(self) -> bool:
        """Whether error bars can be about the model: the game's own error was estimated."""
        return self.errors is not None and self.report is not None and self.report.game_error is not None

    def forward(
        self,
        x: Rows,
        batch_size: int | Literal["auto"] = "auto",
        grand: Tensor | None = None,
        outputs: Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Explain encoded rows by forward passes of the network.

        Parameters
        ----------
        x : Tensor or Stream
            Encoded rows.
        batch_size : int or "auto"
            The largest number of rows in one forward pass.
        grand : Tensor, optional
            The game's values of the grand coalition (n, outputs), if they are known.
        outputs : sequence of int, optional
            The numbers of the outputs to compute; by default all.

        Returns
        -------
        values : Tensor
            Values (n, players, outputs), float64.
        base : Tensor
            Base values (n, outputs), float64.

        Raises
        ------
        InputError
            If ``batch_size`` is not positive, or the values of a row are not finite.
        """
        if batch_size != "auto" and batch_size < 1:
            raise InputError(f"batch_size is {batch_size}: use a positive number of rows, or 'auto'")
        chosen = list(range(self.game.outputs) if outputs is None else outputs)
        smaller = with_outputs(self.network, chosen) if 2 * len(chosen) <= self.game.outputs else None
        values, base = [], []
        computed = self.game.outputs if smaller is None else len(chosen)
        entries = max(self.game.players * computed, x[:1].numel())
        rows = FORWARD_ROWS if batch_size == "auto" else batch_size
        done = 0
        for part in x.split(max(1, min(rows, FORWARD_ENTRIES // entries))):
            null = null_values(self.game, part)
            known = None if grand is None else grand[done : done + len(part)].to(null)
            done += len(part)
            with torch.no_grad():
                phi = (self.network(part)[..., chosen] if smaller is None else smaller(part)).double()
            if self.normalized:
                total = (grand_values(self.game, part) if known is None else known) - null
                phi = normalize(phi, total[:, chosen])
            if not bool(phi.isfinite().all()):
                row = done - len(part) + int((~phi.isfinite().flatten(1).all(1)).nonzero()[0])
                raise InputError(
                    f"X has numbers in row {row} that are too large for the network, whose values are not finite: "
                    "look for entries such as 1e300, and replace or leave them out"
                )
            values.append(phi)
            base.append(null[:, chosen])
        return torch.cat(values), torch.cat(base)

    def explain_encoded(self, x: Rows, outputs: Sequence[int] | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Explain encoded rows.

        Parameters
        ----------
        x : Tensor or Stream
            Encoded rows.
        outputs : sequence of int, optional
            The numbers of the outputs to compute; by default all.

        Returns
        -------
        values : Tensor
            Values (n, players, outputs), float64.
        base : Tensor
            Base values (n, outputs), float64.
        predictions : Tensor
            The game's values of the grand coalition (n, outputs), float64.
        """
        values, base = self.forward(x, outputs=outputs)
        if self.normalized:
            return values, base, base + values.sum(1)
        grand = grand_values(self.game, x[:])
        return values, base, grand if outputs is None else grand[:, list(outputs)]

    def check_sums(self, x: Rows, values: Tensor, base: Tensor, outputs: Sequence[int] | None = None) -> None:
        """Check that values (n, players, outputs) and base values sum to the game's values of the grand coalition.

        Raises
        ------
        InputError
            If the sum of a row is further off than a hundredth of the range of the output.
        """
        if self.normalized:  # They do.
            return
        grand = grand_values(self.game, x[:])
        grand = grand if outputs is None else grand[:, list(outputs)]
        gaps = (base + values.sum(1) - grand).abs().amax(0)
        ranges = grand.amax(0) - grand.amin(0) if len(grand) > 1 else grand.abs().amax(0)
        if bool((gaps > SUM_TOLERANCE * ranges).any()):
            raise InputError(
                f"check_additivity is True, and values miss the sum by up to {float(gaps.max()):.3g}: the "
                "explainer has normalize='never'. Fit with normalize='always', or leave check_additivity out"
            )

    def warn_of_new_gaps(self, x: Rows) -> None:
        """Warn of columns that have gaps now and had none at fit: the network takes these for the mean."""
        if names := self.schema.new_gaps(x, self.network.known_gaps):
            logger.warning(
                "Columns %s have gaps and had none at fit. The gaps count as the column's mean: fit again to learn "
                "from them",
                names,
            )
