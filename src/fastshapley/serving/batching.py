"""Answer requests that arrive together with one run of the graph, without making any request wait for others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from types import coroutine
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastshapley.export.graph import Array

Results = dict[str, NDArray[Any]]
MAX_BATCH_ROWS = 256  # rows of one run that answers several requests


class Batcher:
    """Run a function for several requests at once.

    A quick function runs on the event loop, in the turn after the one in which the requests were read. There is no
    timer, so a request that comes alone does not wait. A slow function runs in a thread. Whenever the thread is
    free, it takes all requests that wait. A request with more than `MAX_BATCH_ROWS` rows runs alone, in a thread.

    Parameters
    ----------
    compute : callable
        Function from arrays with n rows to a dictionary of arrays with n rows.
    quick : bool, default=True
        Whether ``compute`` is fast enough for the event loop.
    executor : Executor, optional
        Threads for slow functions and large requests. By default two threads of its own.
    """

    def __init__(
        self, compute: Callable[..., Results], *, quick: bool = True, executor: Executor | None = None
    ) -> None:
        self._compute, self._quick = compute, quick
        self._executor = executor or ThreadPoolExecutor(2, thread_name_prefix="graph")
        self._waiting: list[_PendingRequest] = []
        self._busy = False  # whether a thread is running the slow function

    async def __call__(self, *arrays: Array) -> Results:
        """Return what the function returns for these arrays.

        Parameters
        ----------
        *arrays : ndarray
            Arrays with the same number of rows.

        Returns
        -------
        results : dict of str to ndarray
            Arrays with that number of rows.
        """
        if len(arrays[0]) > MAX_BATCH_ROWS:
            return await asyncio.get_running_loop().run_in_executor(self._executor, self._compute, *arrays)
        request = _PendingRequest(arrays)
        self._waiting.append(request)
        try:
            if self._quick:
                await _next_turn()  # By then all requests of this turn wait, and the first one runs for all.
                if request.outcome is None:
                    self._run_waiting()
            else:
                request.done = asyncio.get_running_loop().create_future()
                if not self._busy:
                    self._start_thread()
                await request.done
        except asyncio.CancelledError:
            request.cancelled = True
            raise
        if request.outcome is None:  # The request that ran for all was cancelled.
            raise RuntimeError("the run was cancelled")
        if isinstance(request.outcome, Exception):
            raise request.outcome
        return request.outcome

    def _start_thread(self) -> None:
        """Run the slow function in a thread for the requests that wait, until none waits."""
        self._busy = False
        while batch := self._next_batch():
            try:
                running = asyncio.get_running_loop().run_in_executor(self._executor, self._outcomes, batch)
            except RuntimeError as error:  # A thread cannot be started.
                self._finish(batch, [error] * len(batch))
                continue
            running.add_done_callback(partial(self._thread_done, batch))
            self._busy = True
            return

    def _thread_done(self, batch: list[_PendingRequest], done: asyncio.Future[list[Results | Exception]]) -> None:
        cancelled = RuntimeError("the run was cancelled")
        self._finish(batch, [cancelled] * len(batch) if done.cancelled() else done.result())
        self._start_thread()

    def _next_batch(self) -> list[_PendingRequest]:
        """Take the oldest requests that fit into one run, without those that were cancelled."""
        waiting = [request for request in self._waiting if not request.cancelled]
        rows, count = 0, 0
        for request in waiting:
            rows += len(request.arrays[0])
            if rows > MAX_BATCH_ROWS:
                break
            count += 1
        self._waiting = waiting[count:]
        return waiting[:count]

    def _run_waiting(self) -> None:
        """Run the quick function for all requests that wait."""
        while batch := self._next_batch():
            self._finish(batch, self._outcomes(batch))

    def _outcomes(self, batch: list[_PendingRequest]) -> list[Results | Exception]:
        """Return the results of each request. If the joint run fails, run each request alone."""
        try:
            if all(request.cancelled for request in batch):
                raise RuntimeError("the run was cancelled")
            if len(batch) == 1:
                return [self._compute(*batch[0].arrays)]
            columns = zip(*(request.arrays for request in batch), strict=True)
            results = self._compute(*(np.concatenate(arrays) for arrays in columns))
        except Exception as error:  # The error is an answer too: no client is left waiting.
            return [error] if len(batch) == 1 else [self._outcomes([request])[0] for request in batch]
        ends = np.cumsum([len(request.arrays[0]) for request in batch]).tolist()
        return [
            {name: values[start:end] for name, values in results.items()}
            for start, end in zip([0, *ends[:-1]], ends, strict=True)
        ]

    def _finish(self, batch: list[_PendingRequest], outcomes: Sequence[Results | Exception]) -> None:
        for request, outcome in zip(batch, outcomes, strict=True):
            request.outcome = outcome
            if request.done is not None and not request.done.done():  # It is done if it was cancelled meanwhile.
                request.done.set_result(None)


class _PendingRequest:
    """The arrays of one request, and its results or error."""

    __slots__ = ("arrays", "cancelled", "done", "outcome")

    def __init__(self, arrays: tuple[Array, ...]) -> None:
        self.arrays = arrays
        self.outcome: Results | Exception | None = None
        self.cancelled = False
        self.done: asyncio.Future[None] | None = None  # only used with a slow function


@coroutine
def _next_turn() -> Generator[None, None, None]:
    """Wait for the event loop's next turn, without a timer or a future."""
    yield
