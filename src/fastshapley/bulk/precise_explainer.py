"""An explainer for bulk jobs whose values have standard errors, are corrected, or are anchored to the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from fastshapley.explain.anchoring import ModelOutputs
from fastshapley.explain.precision import Precision, precise_values

if TYPE_CHECKING:
    from fastshapley.data.image_schema import ImageSchema
    from fastshapley.data.table_schema import TableSchema
    from fastshapley.fit.fitted import Fitted
    from fastshapley.networks.explainer_network import ExplainerNetwork
    from fastshapley.trust.error_bars import ErrorBars


class FittedExplainer(Protocol):
    """A fitted explainer with the user's model; `fastshapley.FastSHAP` is one."""

    @property
    def fitted_(self) -> Fitted:
        """What the explainer has learnt."""

    @property
    def model(self) -> Any:
        """The user's model, or None."""

    @property
    def logits(self) -> bool:
        """Whether the model returns logits."""

    @property
    def random_state(self) -> Any:
        """The seed."""

    @property
    def progress(self) -> bool:
        """Whether to show a progress bar."""


@dataclass(frozen=True)
class PreciseExplainer:
    """A fitted explainer of rows that gives more than the network's own values.

    Parameters
    ----------
    explainer : FittedExplainer
        The explainer.
    precision : Precision
        What is asked for.
    """

    explainer: FittedExplainer
    precision: Precision

    @property
    def seed(self) -> int:
        """The seed of the coalitions. Parts are explained in any order, so a generator cannot be used."""
        given = self.explainer.random_state
        return int(given) if isinstance(given, Integral) else 0

    @property
    def schema_(self) -> TableSchema | ImageSchema:
        """The data that the explainer was fitted to."""
        return self.explainer.fitted_.schema  # type: ignore[return-value]  # There are no other schemas.

    @property
    def player_names_(self) -> tuple[str, ...]:
        """The names of the players."""
        return self.explainer.fitted_.partition.names

    @property
    def output_names_(self) -> tuple[str, ...]:
        """The names of the outputs."""
        return self.explainer.fitted_.output_names

    @property
    def value_function_(self) -> Any:
        """The game whose Shapley values the explainer returns."""
        return self.explainer.fitted_.game

    @property
    def network_(self) -> ExplainerNetwork:
        """The explainer network."""
        return self.explainer.fitted_.network

    @property
    def normalize_(self) -> str:
        """Whether values sum to grand minus null."""
        return self.explainer.fitted_.normalize

    @property
    def errors_(self) -> ErrorBars | None:
        """The error bars."""
        return self.explainer.fitted_.errors

    @property
    def model(self) -> Any:
        """The user's model."""
        return self.explainer.model

    @property
    def progress(self) -> bool:
        """Whether to show a progress bar."""
        return self.explainer.progress

    @property
    def model_outputs(self) -> ModelOutputs:
        """The model as a function of encoded rows."""
        return ModelOutputs(self.explainer.fitted_, self.explainer.model, self.explainer.logits)

    def explain_encoded(self, x: Tensor, outputs: Sequence[int] | None = None) -> tuple[Tensor, ...]:
        """Return values, base values, predictions and, if they were asked for, standard errors of encoded rows."""
        found = precise_values(self.model_outputs, x, self.precision, self.seed)
        return found if outputs is None else tuple(part[..., list(outputs)] for part in found)

    def reference_rows(self, most: int) -> Tensor:
        """Return a few encoded rows."""
        rows = self.explainer.fitted_.reference.sample[:most]
        return torch.nan_to_num(rows).to(self.explainer.fitted_.device)


def precise_explainer(explainer: Any, precision: Precision) -> Any:
    """Return an explainer that gives what is asked for, and try it with one row.

    Parameters
    ----------
    explainer : FastSHAP
        A fitted explainer of a table.
    precision : Precision
        What is asked for.

    Returns
    -------
    FastSHAP or PreciseExplainer
        The explainer itself if nothing is asked for.

    Raises
    ------
    InputError
        If the explainer cannot give it: it has no error bars, or no model to be anchored to.
    """
    if precision.is_usual:
        return explainer
    from fastshapley.bulk.row_explainer import table_schema

    precise = PreciseExplainer(explainer, precision)
    table_schema(precise)
    precise.explain_encoded(precise.reference_rows(1))
    return precise
