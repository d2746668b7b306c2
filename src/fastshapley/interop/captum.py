"""captum: a fitted explainer as one of its attribution methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fastshapley.data.table_schema import TableSchema
from fastshapley.errors import InputError
from fastshapley.support.optional import require
from fastshapley.value_functions.protocol import grand_values, null_values

if TYPE_CHECKING:
    from fastshapley.explainer import FastSHAP

captum: Any = require("captum.attr", "images")
_log: Any = require("captum.log", "images")

Inputs = Tensor | tuple[Tensor, ...]
Target = int | tuple[int, ...] | Tensor | list[int] | list[tuple[int, ...]] | None


class FastShap(captum.Attribution):
    """Attributions that are the explainer's Shapley values, in the shape of the inputs.

    A player of several entries, a superpixel or a group of columns, has its value shared out evenly among them (an
    image's channels too), so that attributions sum to what the values sum to: the game's grand value minus its
    null. captum's own methods with a feature mask repeat a group's value for each of its entries instead.

    ``forward_func`` is the game's grand value, (n, outputs), which captum's metrics take: that of the surrogate, or
    of the model itself where the value function calls it.

    >>> from fastshapley import FastSHAP, Recipe, Training
    >>> X = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    >>> quick = Recipe(surrogate=(Training(steps=50),), explainer=Training(steps=50))
    >>> explainer = FastSHAP(lambda x: x[:, 0], recipe=quick, random_state=0, progress=False).fit(X)
    >>> FastShap(explainer).attribute(X[:5]).shape
    torch.Size([5, 3])
    """

    def __init__(self, explainer: FastSHAP) -> None:
        explainer._check_fitted()
        if not explainer.partition_.owner:
            raise InputError(
                "explainer has players that are not columns of its inputs, so that their values have no place there"
            )
        self.explainer = explainer
        super().__init__(self._grand)

    @_log.log_usage()  # type: ignore[untyped-decorator]  # captum's NoiseTunnel asks for the function that this wraps
    def attribute(
        self, inputs: Inputs, target: Target = None, return_convergence_delta: bool = False
    ) -> Inputs | tuple[Inputs, Tensor]:
        """Attributions in the shape and the floating type of ``inputs``, or a tuple of one, as these came.

        inputs: rows (n, columns) or images (n, channels, height, width), as the explainer takes them. Of a table
            with categories, which no tensor holds, its rows as ``explainer.schema_.encode(frame)`` has them.
        target: the output that is explained: a number, or a list or a tensor (n,) of one for each row. It may be
            None if there is but one.
        """
        x, given = self._encode(inputs), _only(inputs)
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
        """There is one: see `compute_convergence_delta`."""
        return True

    def compute_convergence_delta(self, attributions: Inputs, inputs: Inputs, target: Target = None) -> Tensor:
        """By how much each row's attributions miss grand minus null, (n,), float64.

        It is rounding for an explainer whose values are normalised, and what the network lacks for one with
        ``normalize="never"``. The null is the game's own, so that there is no start point to pass.
        """
        x = self._encode(inputs)
        game = self.explainer.value_function_
        total = (grand_values(game, x) - null_values(game, x))[:, None]
        sums = _only(attributions).detach().to(x.device, torch.float64).flatten(1).sum(1)
        return sums - _chosen(total, self._targets(target, len(x)))[:, 0]

    def _grand(self, inputs: Tensor) -> Tensor:
        return grand_values(self.explainer.value_function_, self._encode(inputs))

    def _encode(self, inputs: Inputs) -> Tensor:
        given, schema = _only(inputs), self.explainer.schema_
        if not isinstance(schema, TableSchema) or not schema.categorical:
            encoded: Tensor = self.explainer._encode(given)[:]
            return encoded
        x = given.detach().double()
        counts = torch.tensor(schema.category_counts, device=x.device)
        if x.shape[1:] != counts.shape:
            raise InputError(f"inputs has shape {tuple(given.shape)} where (n, {len(counts)}) is expected")
        wrong = ((x != x.floor()) | (x < 0) | (x >= counts)) & ~x.isnan() & (counts > 0)
        if wrong.any():
            row, column = wrong.nonzero()[0].tolist()
            raise InputError(
                f"inputs has {x[row, column]:g} in row {row} of the column {schema.names[column]!r}, which holds "
                "the numbers of categories: pass explainer.schema_.encode(frame)"
            )
        return x.to(self.explainer.network_.scale.device)

    def _targets(self, target: Target, rows: int) -> Tensor:
        """The number of the output that is explained, for each row, (n,)."""
        outputs = self.explainer.value_function_.outputs
        numbers: Any = 0 if target is None and outputs == 1 else target
        if isinstance(target, list):  # captum also takes a tuple of one for each row
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
                f"target is {target!r}: give the number of one of {list(self.explainer.output_names_)}, 0 to "
                f"{outputs - 1}, or a list or a tensor of {rows} such numbers, one for each row"
            )
        return given.long()


def _only(inputs: Inputs) -> Tensor:
    """The one tensor of the inputs."""
    given = inputs[0] if isinstance(inputs, tuple) and len(inputs) == 1 else inputs
    if not isinstance(given, Tensor):
        got = f"{len(given)} tensors" if isinstance(given, tuple) else f"a {type(given).__name__}"
        raise InputError(
            f"inputs is {got}: pass one tensor, as the explainer was fitted to one table, or to images"
        )
    return given


def _chosen(values: Tensor, target: Tensor) -> Tensor:
    """The values (n, players) of one output each, from those (n, players, outputs) of all."""
    return values[torch.arange(len(values)), :, target.to(values.device)]
