"""More rows from few.

A value function can be evaluated at any row, so an explainer can also learn from rows that are not in the data.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_NEIGHBOURS = 8  # rows that count as near a row
_LARGEST_SHARE = 0.6  # largest share of a row's entries that is swapped with one partner
_NOISE = 0.1  # noise on continuous columns, as a share of a column's spread
_REFERENCE = 4096  # largest number of rows among which neighbours are searched


def mix_rows(
    x: Tensor, count: int, discrete: Sequence[bool], generator: torch.Generator, owner: Sequence[int] = ()
) -> Tensor:
    """Return new rows near given ones.

    Each is a row with a random share of its players' entries taken from a near neighbour and another share from any
    row, plus a little noise on the columns that vary continuously.

    Parameters
    ----------
    x : Tensor
        Encoded rows (n, columns).
    count : int
        The number of new rows.
    discrete : sequence of bool
        Whether each column holds categories or booleans.
    generator : torch.Generator
        The source of random numbers.
    owner : sequence of int
        The player of each column; by default each column is a player.

    Returns
    -------
    Tensor
        New rows (count, columns).
    """
    n, device = len(x), x.device
    players = list(owner) or list(range(x.shape[1]))  # The one-hot columns of a player stay one-hot.
    base = torch.randint(n, (count,), generator=generator, device=device)
    near = _neighbours(x, generator)[base]
    choice = torch.randint(near.shape[1], (count, 1), generator=generator, device=device)
    near = near.gather(1, choice)[:, 0]
    far = torch.randint(n, (count,), generator=generator, device=device)
    mixed = x[base]
    for partner in (near, far):
        share = _LARGEST_SHARE * torch.rand(count, 1, generator=generator, device=device)
        swap = torch.rand(count, max(players) + 1, generator=generator, device=device) < share
        mixed = torch.where(swap[:, players], x[partner], mixed)
    whole = (x == x.round()) | x.isnan()
    fixed = torch.tensor(list(discrete), device=device) | whole.all(0)
    spread = (x - x.nanmean(0)).nan_to_num().square().mean(0).sqrt()
    noise = torch.randn(mixed.shape, generator=generator, device=device, dtype=x.dtype)
    return mixed + torch.where(fixed, 0.0, _NOISE * spread) * noise


def _neighbours(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return the nearest rows of each row, (n, neighbours), among at most `_REFERENCE` rows."""
    pool = torch.randperm(len(x), generator=generator, device=x.device)[:_REFERENCE]
    z = (x - x.nanmean(0)).nan_to_num()
    z = z / z.square().mean(0).sqrt().clamp(min=1e-12)
    k = min(_NEIGHBOURS + 1, len(pool))
    found = [torch.cdist(part, z[pool]).topk(k, largest=False).indices for part in z.split(1024)]
    nearest = pool[torch.cat(found)]
    return nearest[:, 1:] if k > 1 else nearest
