"""Requests that arrive together are answered by one run of the graph; one that comes alone waits for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastshapley.graph import Array

Results = dict[str, NDArray[Any]]
TOGETHER = 256  # rows of one run


class Batcher:
    """Runs ``compute``, from arrays of as many rows each to results of as many, for several requests at once.

    A quick graph answers on the event loop, at the end of the turn in which the requests were read: there is no
    timer, so nobody waits for company that may not come. A slow one runs in a thread, and takes what has gathered
    when it is free. A request of more rows than go together has a run of its own, in a thread.
    """

    def __init__(self, compute: Callable[..., Results], *, quick: bool = True) -> None:
        self._compute, self._quick = compute, quick
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="graph")
        self._waiting: list[_Request] = []
        self._due = False  # a turn is on its way, or under way in a thread

    async def __call__(self, *arrays: Array) -> Results:
        loop = asyncio.get_running_loop()
        if len(arrays[0]) > TOGETHER:
            return await loop.run_in_executor(self._pool, self._compute, *arrays)
        request = _Request(arrays, loop.create_future())
        self._waiting.append(request)
        if not self._due:
            self._due = True
            loop.call_soon(self._turn)
        return await request.future

    def _turn(self) -> None:
        while together := self._next():
            if self._quick:
                self._answer(together, self._run(together))
                continue
            try:
                running = asyncio.get_running_loop().run_in_executor(self._pool, self._run, together)
            except RuntimeError as error:  # no thread is to be had
                self._answer(together, error)
                continue
            running.add_done_callback(partial(self._ran, together))
            return
        self._due = False

    def _ran(self, together: list[_Request], done: asyncio.Future[Results | Exception]) -> None:
        self._answer(together, RuntimeError("the run was cancelled") if done.cancelled() else done.result())
        self._turn()

    def _next(self) -> list[_Request]:
        """The requests that came first, as many as go together, without those whose clients have left."""
        waiting = [request for request in self._waiting if not request.future.done()]
        rows, last = 0, 0
        for request in waiting:
            rows += len(request.arrays[0])
            if rows > TOGETHER:
                break
            last += 1
        self._waiting = waiting[last:]
        return waiting[:last]

    def _run(self, together: list[_Request]) -> Results | Exception:
        try:
            if len(together) == 1:
                return self._compute(*together[0].arrays)
            columns = zip(*(request.arrays for request in together), strict=True)
            return self._compute(*(np.concatenate(arrays) for arrays in columns))
        except Exception as error:  # which is answered: a client is not left waiting
            return error

    def _answer(self, together: list[_Request], found: Results | Exception) -> None:
        if isinstance(found, Exception) and len(together) > 1:  # then each by itself: one may spoil all
            for request in together:
                self._answer([request], self._run([request]))
            return
        start = 0
        for request in together:
            end = start + len(request.arrays[0])
            if request.future.done():  # its client has left meanwhile
                pass
            elif isinstance(found, Exception):
                request.future.set_exception(found)
            else:
                request.future.set_result({name: values[start:end] for name, values in found.items()})
            start = end


class _Request:
    """The arrays of one request, and who waits for their results."""

    __slots__ = ("arrays", "future")

    def __init__(self, arrays: tuple[Array, ...], future: asyncio.Future[Any]) -> None:
        self.arrays, self.future = arrays, future
