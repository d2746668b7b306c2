"""shapiq: value functions as its games, and explainers as its explainers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastshapley.errors import InputError
from fastshapley.explain.correction import Correction, correct
from fastshapley.support.optional import require
from fastshapley.value_functions.protocol import ValueFunction, evaluate, null_values

if TYPE_CHECKING:
    from shapiq import InteractionValues

    from fastshapley.explainer import FastSHAP

shapiq: Any = require("shapiq", "shapiq")

COALITIONS_AT_ONCE = 1 << 14  # coalitions in one call of the value function


class Game(shapiq.Game):
    """The game of one row and one output, for shapiq's approximators, its exact computer and its interactions.

    value_function: any of ours, or an object of the user's that meets the same protocol.
    x: the row, (1, ...), encoded as the value function takes it; `Game.of` encodes a user's own row.
    output: which of several outputs, by its number.
    normalize: whether the value of nobody is subtracted, as shapiq's games do by default; it stays in
        ``normalization_value``.

    >>> class Additive:
    ...     players, outputs = 3, 1
    ...     def __call__(self, x, s):
    ...         return 1 + (x[:, None] * s).sum(-1, keepdim=True)
    >>> game = Game(Additive(), torch.tensor([[3.0, 4.0, 5.0]]), player_names=["a", "b", "c"])
    >>> game(np.array([[True, False, True], [False, False, False]])).tolist()
    [8.0, 0.0]
    >>> game([("a", "b")]).tolist()
    [7.0]
    >>> shapiq.ExactComputer(game)("SV").get_n_order_values(1).round(9).tolist()
    [3.0, 4.0, 5.0]
    """

    def __init__(
        self,
        value_function: ValueFunction,
        x: Tensor,
        *,
        output: int | None = None,
        player_names: Sequence[str] | None = None,
        normalize: bool = True,
        verbose: bool = False,
    ) -> None:
        if not isinstance(x, Tensor) or len(x) != 1:
            got = f"{len(x)} rows" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise InputError(f"x is {got}: a game is of one row, such as x[:1] of a tensor of encoded rows")
        players = value_function.players
        if player_names is not None and len(set(player_names)) != players:
            raise InputError(f"player_names has {len(set(player_names))} names, and there are {players} players")
        self.output = _number(output, [str(number) for number in range(value_function.outputs)])
        self.played, self.x = value_function, x
        super().__init__(
            players,
            normalize=normalize,
            normalization_value=float(null_values(value_function, x)[0, self.output]),
            player_names=None if player_names is None else list(player_names),
            verbose=verbose,
        )

    @classmethod
    def of(
        cls,
        explainer: FastSHAP,
        X: Any,
        *,
        output: int | str | None = None,
        normalize: bool = True,
        verbose: bool = False,
    ) -> Game:
        """The game that a fitted explainer plays for one row, as the explainer takes it: a table of one row.

        ``output`` is the name of one of ``explainer.output_names_``, or its number.
        """
        return cls(
            explainer.value_function_,
            explainer._encode(X)[:],
            output=_number(output, explainer.output_names_),
            player_names=explainer.player_names_,
            normalize=normalize,
            verbose=verbose,
        )

    def value_function(self, coalitions: NDArray[Any]) -> NDArray[np.float64]:
        """The values (m,) of coalitions (m, players), not normalised."""
        s = torch.from_numpy(np.asarray(coalitions, dtype=np.bool_)).to(self.x.device)
        parts = [
            evaluate(self.played, self.x, part[None])[0, :, self.output] for part in s.split(COALITIONS_AT_ONCE)
        ]
        return torch.cat(parts).cpu().numpy()


class Explainer(shapiq.Explainer):
    """A fitted explainer as shapiq has them: `explain` and `explain_X` return `shapiq.InteractionValues`.

    These are Shapley values, of order 1, with the value of nobody as ``baseline_value``. For interactions, give
    `Game.of` to one of shapiq's approximators. ``predict`` is what the values and the baseline sum to.

    output: which of several outputs, the name of one of ``explainer.output_names_``, or its number.
    """

    def __init__(self, explainer: FastSHAP, *, output: int | str | None = None) -> None:
        explainer._check_fitted()
        self.explainer = explainer
        self.output = _number(output, explainer.output_names_)
        super().__init__(self._predictions, index="SV", max_order=1)

    def explain_function(self, x: Any, *, budget: int | None = None, tol: float | None = None) -> InteractionValues:
        """The values of one row: an array (columns,), a Series, or a table of one row; an image (c, h, w).

        budget, tol: as in ``explainer(X, budget=...)``: values that evaluations of the game correct.
        """
        rows = _one_row(x, self.explainer.schema_)
        if len(rows) != 1:
            raise InputError(f"x has {len(rows)} rows: pass one, or several to explain_X")
        return self.explain_X(rows, budget=budget, tol=tol)[0]

    def explain_X(
        self,
        X: Any,
        *,
        n_jobs: int | None = None,
        random_state: int | None = None,
        verbose: bool = False,
        budget: int | None = None,
        tol: float | None = None,
    ) -> list[InteractionValues]:
        """The values of each row, all from one forward pass.

        ``n_jobs``, ``random_state`` and ``verbose`` are what shapiq's explainers take; there is nothing to share
        out, to draw or to wait for here.
        """
        x = self.explainer._encode(X)
        values, base, _ = self.explainer.explain_encoded(x)
        if budget is not None or tol is not None:
            correction = Correction(budget, tol, random_state=self.explainer.random_state)
            values, _ = correct(self.explainer.fitted_, x[:], values, correction)
        pairs = zip(values[..., self.output].tolist(), base[:, self.output].tolist(), strict=True)
        return [self._interactions(phi, null, budget) for phi, null in pairs]

    def _interactions(self, phi: list[float], null: float, budget: int | None) -> InteractionValues:
        scores: dict[tuple[int, ...], float] = {(player,): value for player, value in enumerate(phi)}
        return shapiq.InteractionValues(
            {(): null, **scores},
            index="SV",
            max_order=1,
            min_order=0,
            n_players=len(phi),
            estimated=True,
            estimation_budget=budget,
            baseline_value=null,
        )

    def _predictions(self, X: Any) -> NDArray[np.float64]:
        return self.explainer.explain_encoded(self.explainer._encode(X))[2][:, self.output].cpu().numpy()


def _number(output: int | str | None, names: Sequence[str]) -> int:
    """The number of an output that is given by its name or number; none need be given if there is but one."""
    if output is None and len(names) == 1:
        return 0
    if isinstance(output, int | np.integer) and not isinstance(output, bool) and 0 <= output < len(names):
        return int(output)
    if isinstance(output, str) and output in names:
        return list(names).index(output)
    raise InputError(f"output is {output!r}: choose one of {list(names)}, or its number, 0 to {len(names) - 1}")


def _one_row(x: Any, schema: Any) -> Any:
    """One row as a table of one, or one image as a batch of one; what is a table already, as it is."""
    if isinstance(x, pd.Series):
        return x.to_frame().T
    axes = 1 if hasattr(schema, "columns") else 3
    return x[None] if isinstance(x, np.ndarray | Tensor) and x.ndim == axes else x
