"""The processes that train together, each on rows of its own: what they must agree on goes through here."""

from __future__ import annotations

import time
from collections.abc import Callable
from inspect import signature
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from fastshapley.data.stream import Rows
from fastshapley.errors import InputError

T = TypeVar("T")
_REST = 0.2  # seconds, in which threads that wait have their turn
_SYNC = "forward_sync_buffers"  # as torch has called it since 2.13
if _SYNC not in signature(DistributedDataParallel.__init__).parameters:
    _SYNC = "broadcast_buffers"


class ProcessGroup:
    """One process, which agrees with itself; or with ``together``, those of torch's process group.

    ``rank`` is this one's number and ``size`` how many there are.
    """

    def __init__(self, *, together: bool = False) -> None:
        if together and not (dist.is_available() and dist.is_initialized()):
            raise InputError(
                "scaling is 'torchrun', but there is no process group: start the processes with torchrun, and call "
                "torch.distributed.init_process_group() in each"
            )
        self.rank, self.size = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)

    def everyone(self, value: T) -> list[T]:
        """Everyone's value, by rank."""
        if self.size == 1:
            return [value]
        found: list[T] = [value] * self.size
        dist.all_gather_object(found, value)
        return found

    def total(self, count: int) -> int:
        """The sum of everyone's count."""
        return sum(self.everyone(count))

    def mean(self, rows: Tensor) -> Tensor:
        """The mean over everyone's rows: (n, ...) to (...)."""
        if self.size == 1:
            return rows.mean(0)
        sums, counts = zip(*self.everyone((rows.sum(0).cpu(), len(rows))), strict=True)
        return (torch.stack(sums).sum(0) / sum(counts)).to(rows)

    def average(self, value: float) -> float:
        """The mean of everyone's value."""
        return value if self.size == 1 else sum(self.everyone(value)) / self.size

    def all(self, condition: bool) -> bool:
        """Whether it holds for everyone."""
        return all(self.everyone(condition))

    def gather(self, rows: Rows, most: int) -> Rows:
        """About so many of everyone's rows, the same for all; one process has its own, all of them."""
        if self.size == 1:
            return rows
        count = min(len(rows), -(-most // self.size))
        spaced = torch.linspace(0, len(rows) - 1, count).long()
        return torch.cat(self.everyone(rows[spaced.to(rows.device)].cpu())).to(rows.device)

    def share(self, compute: Callable[[], T]) -> T:
        """What the first process computes, for all."""
        if self.size == 1:
            return compute()
        found = [compute() if self.rank == 0 else None]
        dist.broadcast_object_list(found, src=0)
        result: T = found[0]  # type: ignore[assignment]
        return result

    def rest(self) -> None:
        """Let torch's threads let go of what was last told.

        They do so only after the telling is done, and need the interpreter for it: one that ends before is aborted.
        """
        if self.size > 1:
            time.sleep(_REST)

    def parallel(self, network: nn.Module, loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The loss, whose gradient will be the mean of everyone's."""
        if self.size == 1:
            return loss
        moving = any(isinstance(module, _BatchNorm) for module in network.modules())
        options: dict[str, Any] = {"static_graph": True, _SYNC: moving}
        return DistributedDataParallel(_Objective(network, loss), **options)


class _Objective(nn.Module):
    """A loss as a module, for torch to see when it begins, and which parameters are in it."""

    def __init__(self, network: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.network, self.loss = network, loss

    def forward(self, *arguments: object) -> Tensor:
        return self.loss(*arguments)
