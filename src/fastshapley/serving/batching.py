"""Requests that arrive together are answered by one run of the graph; one that comes alone waits for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import coroutine
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastshapley.export.graph import Array

Results = dict[str, NDArray[Any]]
TOGETHER = 256  # rows of one run


class Batcher:
    """Runs ``compute``, from arrays of as many rows each to results of as many, for several requests at once.

    A quick graph answers on the event loop, in the turn after the one in which the requests were read: there is no
    timer, so nobody waits for company that may not come. A slow one runs in a thread, and takes what has gathered
    when it is free. A request of more rows than go together has a run of its own, in a thread.
    """

    def __init__(self, compute: Callable[..., Results], *, quick: bool = True) -> None:
        self._compute, self._quick = compute, quick
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="graph")
        self._waiting: list[_Request] = []
        self._busy = False  # a thread runs the slow graph

    async def __call__(self, *arrays: Array) -> Results:
        if len(arrays[0]) > TOGETHER:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._compute, *arrays)
        request = _Request(arrays)
        self._waiting.append(request)
        try:
            if self._quick:
                await _next_turn()  # all that were read in this one are waiting then, and the first runs for all
                if request.found is None:
                    self._run_waiting()
            else:
                request.answered = asyncio.get_running_loop().create_future()
                if not self._busy:
                    self._start()
                await request.answered
        except asyncio.CancelledError:
            request.left = True
            raise
        if request.found is None:  # who ran it for all was stopped
            raise RuntimeError("the run was cancelled")
        if isinstance(request.found, Exception):
            raise request.found
        return request.found

    def _start(self) -> None:
        """Let a thread run the slow graph for those who wait, and again until nobody does."""
        self._busy = False
        while together := self._next():
            try:
                running = asyncio.get_running_loop().run_in_executor(self._pool, self._computed, together)
            except RuntimeError as error:  # no thread is to be had
                self._answer(together, [error] * len(together))
                continue
            running.add_done_callback(partial(self._ran, together))
            self._busy = True
            return

    def _ran(self, together: list[_Request], done: asyncio.Future[list[Results | Exception]]) -> None:
        lost = RuntimeError("the run was cancelled")
        self._answer(together, [lost] * len(together) if done.cancelled() else done.result())
        self._start()

    def _next(self) -> list[_Request]:
        """The requests that came first, as many as go together, without those whose clients have left."""
        waiting = [request for request in self._waiting if not request.left]
        rows, last = 0, 0
        for request in waiting:
            rows += len(request.arrays[0])
            if rows > TOGETHER:
                break
            last += 1
        self._waiting = waiting[last:]
        return waiting[:last]

    def _run_waiting(self) -> None:
        """Run the quick graph for all who wait."""
        while together := self._next():
            self._answer(together, self._computed(together))

    def _computed(self, together: list[_Request]) -> list[Results | Exception]:
        """What was found for each request. If a run of several fails, each has its own then: one may spoil all."""
        try:
            if len(together) == 1:
                return [self._compute(*together[0].arrays)]
            columns = zip(*(request.arrays for request in together), strict=True)
            found = self._compute(*(np.concatenate(arrays) for arrays in columns))
        except Exception as error:  # which is answered: a client is not left waiting
            return [error] if len(together) == 1 else [self._computed([request])[0] for request in together]
        ends = np.cumsum([len(request.arrays[0]) for request in together]).tolist()
        return [
            {name: values[start:end] for name, values in found.items()}
            for start, end in zip([0, *ends[:-1]], ends, strict=True)
        ]

    def _answer(self, together: list[_Request], found: Sequence[Results | Exception]) -> None:
        for request, own in zip(together, found, strict=True):
            request.found = own
            if request.answered is not None and not request.answered.done():  # its client may have left meanwhile
                request.answered.set_result(None)


class _Request:
    """The arrays of one request, what was found for them, and whether its client has left."""

    __slots__ = ("answered", "arrays", "found", "left")

    def __init__(self, arrays: tuple[Array, ...]) -> None:
        self.arrays = arrays
        self.found: Results | Exception | None = None
        self.left = False
        self.answered: asyncio.Future[None] | None = None  # of a slow graph


@coroutine
def _next_turn() -> Generator[None, None, None]:
    """Until the event loop comes round again, which takes no timer and no future."""
    yield
