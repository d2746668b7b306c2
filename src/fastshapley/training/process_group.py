"""The processes that train together, each on rows of its own. All that they agree on goes through here."""

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
REST = 0.2  # seconds that torch's threads need to release what was last gathered
_SYNC = "forward_sync_buffers"  # the name of the option since torch 2.13
if _SYNC not in signature(DistributedDataParallel.__init__).parameters:
    _SYNC = "broadcast_buffers"


class ProcessGroup:
    """One process alone, or the processes of torch's process group.

    Parameters
    ----------
    together : bool
        Whether to join torch's process group. One process alone agrees with itself.

    Attributes
    ----------
    rank : int
        The number of this process.
    size : int
        The number of processes.

    Raises
    ------
    InputError
        If there is no process group to join.
    """

    def __init__(self, *, together: bool = False) -> None:
        if together and not (dist.is_available() and dist.is_initialized()):
            raise InputError(
                "scaling is 'torchrun', but there is no process group: start the processes with torchrun, and call "
                "torch.distributed.init_process_group() in each"
            )
        self.rank, self.size = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)

    def everyone(self, value: T) -> list[T]:
        """Return the value of every process, by rank."""
        if self.size == 1:
            return [value]
        found: list[T] = [value] * self.size
        dist.all_gather_object(found, value)
        return found

    def total(self, count: int) -> int:
        """Return the sum of the counts of all processes."""
        return sum(self.everyone(count))

    def mean(self, rows: Tensor) -> Tensor:
        """Return the mean over the rows of all processes: (n, ...) to (...)."""
        if self.size == 1:
            return rows.mean(0)
        sums, counts = zip(*self.everyone((rows.sum(0).cpu(), len(rows))), strict=True)
        return (torch.stack(sums).sum(0) / sum(counts)).to(rows)

    def average(self, value: float) -> float:
        """Return the mean of the values of all processes."""
        return value if self.size == 1 else sum(self.everyone(value)) / self.size

    def all(self, condition: bool) -> bool:
        """Return whether a condition holds in every process."""
        return all(self.everyone(condition))

    def gather(self, rows: Rows, most: int) -> Rows:
        """Return about ``most`` rows, some of each process, the same in all; one process alone keeps its rows."""
        if self.size == 1:
            return rows
        count = min(len(rows), -(-most // self.size))
        spaced = torch.linspace(0, len(rows) - 1, count).long()
        return torch.cat(self.everyone(rows[spaced.to(rows.device)].cpu())).to(rows.device)

    def share(self, compute: Callable[[], T]) -> T:
        """Compute something in the first process, and return it in all."""
        if self.size == 1:
            return compute()
        found = [compute() if self.rank == 0 else None]
        dist.broadcast_object_list(found, src=0)
        result: T = found[0]  # type: ignore[assignment]
        return result

    def rest(self) -> None:
        """Wait until torch's threads have released what was last gathered.

        They do so after the gathering is done, and need the interpreter for it. A process that ends earlier is
        aborted.
        """
        if self.size > 1:
            time.sleep(REST)

    def parallel(self, network: nn.Module, loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return the loss whose gradient is the mean over all processes."""
        if self.size == 1:
            return loss
        moving = any(isinstance(module, _BatchNorm) for module in network.modules())
        options: dict[str, Any] = {"static_graph": True, _SYNC: moving}
        return DistributedDataParallel(_Objective(network, loss), **options)


class _Objective(nn.Module):
    """A loss as a module: torch needs to see when it starts and which parameters it has."""

    def __init__(self, network: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.network, self.loss = network, loss

    def forward(self, *arguments: object) -> Tensor:
        return self.loss(*arguments)
