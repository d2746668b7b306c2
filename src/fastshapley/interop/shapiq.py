"""Use value functions as games of shapiq, and fitted explainers as its explainers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from fastshapley.errors import InputError
from fastshapley.explain.correction import Correction, correct
from fastshapley.interop.encoded_rows import encode_rows
from fastshapley.support.optional import require
from fastshapley.value_functions.protocol import ValueFunction, evaluate, null_values

if TYPE_CHECKING:
    from shapiq import InteractionValues

    from fastshapley.explainer import FastSHAP

shapiq: Any = require("shapiq", "shapiq")

COALITIONS_AT_ONCE = 1 << 14  # most coalitions that a game evaluates at a time


class Game(shapiq.Game):
    """The game of one row and one output, for shapiq's approximators and its exact computer.

    Parameters
    ----------
    value_function : ValueFunction
        A value function of fastshapley, or an object with ``players``, ``outputs`` and ``__call__(x, s)``.
    x : Tensor
        The row, (1, ...), encoded as the value function takes it. `Game.of` encodes a row of the user.
    output : int, optional
        The index of the output. It can be left out if there is one output.
    player_names : sequence of str, optional
        The names of the players.
    normalize : bool, default=True
        Whether to subtract the null value, as shapiq's games do by default. It is kept in ``normalization_value``.
    verbose : bool, default=False
        Passed to `shapiq.Game`.

    Raises
    ------
    InputError
        If ``x`` is not one row, or the output or the names do not fit the game.

    Examples
    --------
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
            raise InputError(f"x is {got}: pass one row, such as x[:1] of a tensor of encoded rows")
        players = value_function.players
        if player_names is not None and len(set(player_names)) != players:
            raise InputError(
                f"player_names has {len(set(player_names))} different names: pass one for each of {players} players"
            )
        self.output = _output_index(output, [str(number) for number in range(value_function.outputs)])
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
        """Return the game of a fitted explainer for one row.

        Parameters
        ----------
        explainer : FastSHAP
            A fitted explainer.
        X : DataFrame, array or tensor
            A table of one row, as the explainer takes it.
        output : int or str, optional
            The index or the name of the output. It can be left out if there is one output.
        normalize, verbose : bool
            As in `Game`.

        Returns
        -------
        Game
            The game.
        """
        x = encode_rows(explainer, X)[:]
        return cls(
            explainer.value_function_,
            x,
            output=_output_index(output, explainer.output_names_),
            player_names=explainer.player_names_,
            normalize=normalize,
            verbose=verbose,
        )

    def value_function(self, coalitions: NDArray[Any]) -> NDArray[np.float64]:
        """Return the values of coalitions, not normalised.

        Parameters
        ----------
        coalitions : ndarray
            Boolean coalitions, (m, players).

        Returns
        -------
        ndarray
            Their values, (m,).
        """
        s = torch.from_numpy(np.asarray(coalitions, dtype=np.bool_)).to(self.x.device)
        parts = [
            evaluate(self.played, self.x, part[None])[0, :, self.output] for part in s.split(COALITIONS_AT_ONCE)
        ]
        return torch.cat(parts).cpu().numpy()


class Explainer(shapiq.Explainer):
    """A fitted explainer as an explainer of shapiq.

    `explain` and `explain_X` return `shapiq.InteractionValues`: Shapley values, which have order 1, and the null
    value as ``baseline_value``. For interactions, pass `Game.of` to an approximator of shapiq. ``predict`` returns
    the sum of the values and the baseline.

    Parameters
    ----------
    explainer : FastSHAP
        A fitted explainer.
    output : int or str, optional
        The index or the name of the output. It can be left out if there is one output.
    """

    def __init__(self, explainer: FastSHAP, *, output: int | str | None = None) -> None:
        check_is_fitted(explainer)
        self.explainer = explainer
        self.output = _output_index(output, explainer.output_names_)
        super().__init__(self._predictions, index="SV", max_order=1)

    def explain_function(self, x: Any, *, budget: int | None = None, tol: float | None = None) -> InteractionValues:
        """Explain one row.

        Parameters
        ----------
        x : array, Series, DataFrame or tensor
            An array (columns,), a Series, a table of one row, or an image (channels, height, width).
        budget : int, optional
            The number of evaluations of the game to correct the values with, as in ``explainer(X, budget=...)``.
        tol : float, optional
            The tolerance to correct the values to, as in ``explainer(X, tol=...)``.

        Returns
        -------
        shapiq.InteractionValues
            The Shapley values.

        Raises
        ------
        InputError
            If there are several rows.
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
        """Explain rows in one forward pass.

        Parameters
        ----------
        X : DataFrame, array or tensor
            Rows or images, as the explainer takes them.
        n_jobs, random_state, verbose : optional
            Ignored. shapiq's explainers take them.
        budget : int, optional
            The number of evaluations per row to correct the values with.
        tol : float, optional
            The tolerance to correct the values to.

        Returns
        -------
        list of shapiq.InteractionValues
            The Shapley values of each row.
        """
        x = encode_rows(self.explainer, X)
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
        return self.explainer.explain_encoded(encode_rows(self.explainer, X))[2][:, self.output].cpu().numpy()


def _output_index(output: int | str | None, names: Sequence[str]) -> int:
    """Return the index of an output that is given by name or index. None is the only output."""
    if output is None and len(names) == 1:
        return 0
    if isinstance(output, int | np.integer) and not isinstance(output, bool) and 0 <= output < len(names):
        return int(output)
    if isinstance(output, str) and output in names:
        return list(names).index(output)
    raise InputError(f"output is {output!r}: choose one of {list(names)}, or its index, 0 to {len(names) - 1}")


def _one_row(x: Any, schema: Any) -> Any:
    """Return one row as a table of one row, or one image as a batch of one image."""
    if isinstance(x, pd.Series):
        return x.to_frame().T
    axes = 1 if hasattr(schema, "columns") else 3
    return x[None] if isinstance(x, np.ndarray | Tensor) and x.ndim == axes else x
