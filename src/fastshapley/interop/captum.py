"""Use a fitted explainer as an attribution method of captum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from fastshapley.data.table_schema import TableSchema
from fastshapley.errors import InputError
from fastshapley.interop.encoded_rows import encode_rows
from fastshapley.support.optional import require
from fastshapley.value_functions.protocol import grand_values, null_values

if TYPE_CHECKING:
    from fastshapley.explainer import FastSHAP

captum: Any = require("captum.attr", "images")
_log: Any = require("captum.log", "images")

Inputs = Tensor | tuple[Tensor, ...]
Target = int | tuple[int, ...] | Tensor | list[int] | list[tuple[int, ...]] | None


class FastShap(captum.Attribution):
    """Return the Shapley values of an explainer as captum attributions, in the shape of the inputs.

    The value of a player with several entries, such as a superpixel or a group of columns, is divided evenly among
    them, and among the channels of an image. Attributions therefore sum to the grand value of the game minus its
    null value. captum's own methods with a feature mask repeat the value of a group for each of its entries
    instead.

    ``forward_func``, which captum's metrics use, returns the grand value of the game, (n, outputs). This is the
    output of the surrogate, or of the model itself if the value function calls it. For a conditional value function
    it is the surrogate's if the explainer was loaded without its model.

    Parameters
    ----------
    explainer : FastSHAP
        A fitted explainer.

    Raises
    ------
    InputError
        If the players are not columns of the inputs.

    Examples
    --------
    >>> from fastshapley import FastSHAP, Recipe, Training
    >>> X = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    >>> quick = Recipe(surrogate=(Training(steps=50),), explainer=Training(steps=50))
    >>> explainer = FastSHAP(lambda x: x[:, 0], recipe=quick, random_state=0, progress=False).fit(X)
    >>> FastShap(explainer).attribute(X[:5]).shape
    torch.Size([5, 3])
    """

    def __init__(self, explainer: FastSHAP) -> None:
        check_is_fitted(explainer)
        if not explainer.partition_.owner:
            raise InputError(
                "explainer has players that are not columns of its inputs: its values have no place there"
            )
        self.explainer = explainer
        super().__init__(self._grand)

    @_log.log_usage()  # type: ignore[untyped-decorator]  # captum's NoiseTunnel needs the wrapped function
    def attribute(
        self, inputs: Inputs, target: Target = None, return_convergence_delta: bool = False
    ) -> Inputs | tuple[Inputs, Tensor]:
        """Return attributions in the shape and the floating-point type of the inputs.

        Parameters
        ----------
        inputs : Tensor or tuple of one Tensor
            Rows (n, columns) or images (n, channels, height, width), as the explainer takes them. A tensor cannot
            hold the categories of a table: pass ``explainer.schema_.encode(frame)`` instead.
        target : int, tuple, list or Tensor, optional
            The index of the output to explain, or one index per row, (n,). It can be left out if there is one
            output.
        return_convergence_delta : bool, default=False
            Whether to return the result of `compute_convergence_delta` too.

        Returns
        -------
        attributions : Tensor or tuple of one Tensor
            The attributions, as a tensor or a tuple like the inputs.
        delta : Tensor
            Only with ``return_convergence_delta``: the convergence delta of each row, (n,).

        Raises
        ------
        InputError
            If the inputs or the targets do not fit the explainer.
        """
        x, given = self._encode(inputs), _single_tensor(inputs)
        values = _chosen(self.explainer.explain_encoded(x)[0], self._targets(target, len(x)))
        owner = torch.tensor(self.explainer.partition_.owner, device=values.device)
        shares = values[:, owner] / owner.bincount()[owner]
        if given.ndim == 4:
            shares = shares.reshape(len(x), 1, *given.shape[2:]).expand(given.shape) / given.shape[1]
        made = shares.to(given.device, given.dtype if given.is_floating_point() else torch.get_default_dtype())
        attributions = (made,) if isinstance(inputs, tuple) else made
        if return_convergence_delta:
            return attributions, self.compute_convergence_delta(attributions, inputs, target)
        return attributions

    def has_convergence_delta(self) -> bool:
        """Return True: see `compute_convergence_delta`."""
        return True

    def compute_convergence_delta(self, attributions: Inputs, inputs: Inputs, target: Target = None) -> Tensor:
        """Return the sum of each row's attributions minus (grand value - null value).

        This is a rounding error if the values are normalised, and the error of the network with
        ``normalize="never"``. The null value comes from the game, so there is no baseline to pass.

        Parameters
        ----------
        attributions : Tensor or tuple of one Tensor
            The attributions of the inputs.
        inputs : Tensor or tuple of one Tensor
            The inputs of `attribute`.
        target : int, tuple, list or Tensor, optional
            The target of `attribute`.

        Returns
        -------
        Tensor
            One number per row, (n,), float64.
        """
        x = self._encode(inputs)
        game = self.explainer.value_function_
        total = (grand_values(game, x) - null_values(game, x))[:, None]
        sums = _single_tensor(attributions).detach().to(x.device, torch.float64).flatten(1).sum(1)
        return sums - _chosen(total, self._targets(target, len(x)))[:, 0]

    def _grand(self, inputs: Tensor) -> Tensor:
        return grand_values(self.explainer.value_function_, self._encode(inputs))

    def _encode(self, inputs: Inputs) -> Tensor:
        given, schema = _single_tensor(inputs), self.explainer.schema_
        if not isinstance(schema, TableSchema) or not schema.categorical:
            encoded: Tensor = encode_rows(self.explainer, given)[:]
            return encoded
        x = given.detach().double()
        counts = torch.tensor(schema.category_counts, device=x.device)
        if x.shape[1:] != counts.shape:
            raise InputError(f"inputs has shape {tuple(given.shape)}: expected (n, {len(counts)})")
        wrong = ((x != x.floor()) | (x < 0) | (x >= counts)) & ~x.isnan() & (counts > 0)
        if wrong.any():
            row, column = wrong.nonzero()[0].tolist()
            raise InputError(
                f"inputs has {x[row, column]:g} in row {row} of column {schema.names[column]!r}, which is not the "
                "code of a category: pass explainer.schema_.encode(frame)"
            )
        return x.to(self.explainer.network_.scale.device)

    def _targets(self, target: Target, rows: int) -> Tensor:
        """Return the index of the output to explain for each row, (n,)."""
        outputs = self.explainer.value_function_.outputs
        numbers: Any = 0 if target is None and outputs == 1 else target
        if isinstance(target, list):  # captum also accepts a tuple of one index per row.
            numbers = [each[0] if isinstance(each, tuple) and len(each) == 1 else each for each in target]
        try:
            given = torch.as_tensor(numbers)
        except (TypeError, ValueError, RuntimeError):
            given = torch.empty(0)
        one = given.numel() == 1 and not isinstance(target, list)
        given = given.reshape(()).expand(rows) if one else given
        whole = not (given.is_floating_point() or given.dtype == torch.bool or given.is_complex())
        if given.shape != (rows,) or not whole or bool(((given < 0) | (given >= outputs)).any()):
            raise InputError(
                f"target is {target!r}: pass the index of one of {list(self.explainer.output_names_)}, 0 to "
                f"{outputs - 1}, or a list or a tensor of {rows} indices, one per row"
            )
        return given.long()


def _single_tensor(inputs: Inputs) -> Tensor:
    """Return the one tensor of the inputs."""
    given = inputs[0] if isinstance(inputs, tuple) and len(inputs) == 1 else inputs
    if not isinstance(given, Tensor):
        got = f"{len(given)} tensors" if isinstance(given, tuple) else f"a {type(given).__name__}"
        raise InputError(
            f"inputs is {got}: pass one tensor, since the explainer was fitted to one table or to images"
        )
    return given


def _chosen(values: Tensor, target: Tensor) -> Tensor:
    """Return the values of one output per row, (n, players), from those of all outputs, (n, players, outputs)."""
    return values[torch.arange(len(values)), :, target.to(values.device)]
