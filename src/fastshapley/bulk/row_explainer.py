"""What a bulk job needs from a fitted explainer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
import torch
from torch import Tensor

from fastshapley.bulk.arrow import encode, error_names, value_columns, value_names
from fastshapley.bulk.precise_explainer import PreciseExplainer
from fastshapley.data.image_schema import ImageSchema
from fastshapley.data.table_schema import TableSchema
from fastshapley.errors import InputError
from fastshapley.networks.explainer_network import ExplainerNetwork
from fastshapley.trust.error_bars import ErrorBars
from fastshapley.value_functions.base_game import calls_model, imitation_of
from fastshapley.value_functions.conditional import Conditional
from fastshapley.value_functions.protocol import grand_values
from fastshapley.value_functions.removal import Removal
from fastshapley.value_functions.sums import SumsTo, sums_to

OUTSIDE = "outside_range"  # column that says whether a row is outside of the range of the training rows
BATCH_ROWS = 1 << 15  # most rows that are held at a time
_BATCH_ENTRIES = 1 << 21  # most inputs or values that are held at a time
_MODEL_ROWS = 32  # rows whose outputs identify a model


class RowExplainer(Protocol):
    """A fitted explainer of rows; `fastshapley.FastSHAP` is one."""

    @property
    def schema_(self) -> TableSchema | ImageSchema:
        """The data that the explainer was fitted to."""

    @property
    def player_names_(self) -> tuple[str, ...]:
        """The names of the players."""

    @property
    def output_names_(self) -> tuple[str, ...]:
        """The names of the outputs."""

    @property
    def value_function_(self) -> Any:
        """The game whose Shapley values the explainer returns."""

    @property
    def network_(self) -> ExplainerNetwork:
        """The explainer network."""

    @property
    def normalize_(self) -> str:
        """Whether values sum to grand minus null."""

    @property
    def errors_(self) -> ErrorBars | None:
        """The error bars, which know the range of the training rows; None if none were learnt."""

    def explain_encoded(self, x: Tensor, outputs: Sequence[int] | None = None) -> tuple[Tensor, ...]:
        """Return values (n, players, outputs), base values and predictions (n, outputs) of encoded rows.

        A `PreciseExplainer` may also return the standard errors of the values.
        """


def table_schema(explainer: RowExplainer) -> TableSchema:
    """Return the table that an explainer was fitted to.

    Parameters
    ----------
    explainer : RowExplainer
        A fitted explainer.

    Returns
    -------
    TableSchema
        Its table.

    Raises
    ------
    InputError
        If the explainer was fitted to images.
    """
    if not isinstance(explainer.schema_, TableSchema):
        raise InputError(
            "the explainer was fitted to images: files and datasets of rows need an explainer of a table"
        )
    return explainer.schema_


def device_of(explainer: RowExplainer) -> torch.device:
    """Return the device that holds the explainer network."""
    return explainer.network_.scale.device


def column_fields(explainer: RowExplainer, outputs: Sequence[int]) -> list[pa.Field]:
    """Return the names and types of the columns of `explain_columns`."""
    chosen = [explainer.output_names_[k] for k in outputs]
    names = value_names(explainer.player_names_, chosen)
    if _gives_errors(explainer):
        names += error_names(explainer.player_names_, chosen)
    flags = [] if explainer.errors_ is None else [pa.field(OUTSIDE, pa.bool_())]
    return [*(pa.field(name, pa.float32()) for name in names), *flags]


def explain_columns(
    explainer: RowExplainer, features: Sequence[pa.Array], outputs: Sequence[int], where: str, unseen: set[str]
) -> list[pa.Array]:
    """Explain rows that are given as Arrow columns.

    Parameters
    ----------
    explainer : RowExplainer
        A fitted explainer.
    features : sequence of pyarrow.Array
        The features' columns, in the order of the schema.
    outputs : sequence of int
        The indices of the outputs to explain.
    where : str
        The name of the file, for error messages.
    unseen : set of str
        The function adds the names of columns with categories that were not seen at fit.

    Returns
    -------
    list of pyarrow.Array
        The columns of values, base values, predictions and standard errors, if these were asked for, float32. If
        the explainer has error bars, the last column says whether a row is outside of the range of the training
        rows, where its error is unknown.
    """
    x = encode(table_schema(explainer), features, where, unseen).to(device_of(explainer))
    explain = partial(explainer.explain_encoded, outputs=outputs)
    players = explainer.value_function_.players * (2 if _gives_errors(explainer) else 1)
    values = value_columns(explain, x, (players + 2) * len(outputs))
    flags = [] if explainer.errors_ is None else [pa.array(explainer.errors_.outside(x).cpu().numpy())]
    return [*values, *flags]


def _gives_errors(explainer: RowExplainer) -> bool:
    return isinstance(explainer, PreciseExplainer) and explainer.precision.gives_errors


def anchored(explainer: RowExplainer) -> PreciseExplainer | None:
    """Return the explainer if its values are made to sum to the model's output, and None otherwise."""
    if isinstance(explainer, PreciseExplainer) and explainer.precision.anchor == "model":
        return explainer
    return None


def whose_sums(explainer: RowExplainer) -> SumsTo:
    """Return whose output the values sum to."""
    return sums_to(explainer.value_function_, known=anchored(explainer) is not None)


def precision_of(explainer: RowExplainer) -> list[Any]:
    """Return what the standard errors and the corrections depend on; nothing for the network's own values."""
    if not isinstance(explainer, PreciseExplainer):
        return []
    errors = explainer.errors_
    head = [] if errors is None else [*errors.head.state_dict().values()]
    return [str(explainer.precision), explainer.seed, *head]


def batch_rows(explainer: RowExplainer, outputs: Sequence[int]) -> int:
    """Return the number of rows to hold at a time, if some outputs are explained."""
    game = explainer.value_function_
    computed = game.outputs if isinstance(explainer, PreciseExplainer) else len(outputs)
    per_row = max(game.players * computed, game.outputs, len(table_schema(explainer).columns))
    return max(1, min(BATCH_ROWS, _BATCH_ENTRIES // per_row))


def weights_of(explainer: RowExplainer) -> list[Tensor]:
    """Return the tensors that determine the values."""
    game = explainer.value_function_
    networks = [explainer.network_, getattr(imitation_of(game) or game, "network_", None)]
    weights = [tensor for network in networks if network is not None for tensor in network.state_dict().values()]
    others = [getattr(game, name, None) for name in ("null", "rows_")]
    return [*weights, *(tensor for tensor in others if isinstance(tensor, Tensor))]


def sample_outputs(explainer: RowExplainer) -> list[Any] | None:
    """Return the outputs of the model for a few rows, or None if values do not come from calls of the model."""
    game = explainer.value_function_
    if (precise := anchored(explainer)) is not None and not calls_model(game):
        return precise.model_outputs(precise.reference_rows(_MODEL_ROWS), None).tolist()
    if not isinstance(game, Removal | Conditional) or game.model_ is None:
        return None
    rows = game.rows_ if isinstance(game, Removal) else game.donors_.rows
    return game.predict(rows[:_MODEL_ROWS]).tolist()


def warn_of_missing_model(explainer: RowExplainer) -> None:
    """Let a game that has lost its model warn of it now: it warns once, and threads or workers would each do so."""
    game = explainer.value_function_
    if calls_model(game) and whose_sums(explainer) == "surrogate":
        row = torch.zeros(1, len(table_schema(explainer).columns), dtype=torch.float64)
        grand_values(game, row.to(device_of(explainer)))
