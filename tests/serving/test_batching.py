"""Batching of requests that arrive together, and of requests that come alone."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from fastshapley.export.graph import Array
from fastshapley.serving.batching import MAX_BATCH_ROWS, Batcher, Results


class Doubler:
    """A function that doubles its rows. It records how many rows each run had, and in which thread it ran."""

    def __init__(self) -> None:
        self.runs: list[int] = []
        self.threads: set[int] = set()
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self, rows: Array, other: Array | None = None) -> Results:
        self.go_on.wait(30)
        self.runs.append(len(rows))
        self.threads.add(threading.get_ident())
        return {"doubled": 2 * rows, **({} if other is None else {"other": other})}


class FailsOnce(ThreadPoolExecutor):
    """An executor that cannot start a thread the first time."""

    failed = False

    def submit(self, *arguments: Any, **options: Any) -> Any:
        if not self.failed:
            self.failed = True
            raise RuntimeError("can't start new thread")
        return super().submit(*arguments, **options)


def row(value: float, rows: int = 1) -> Array:
    return np.full((rows, 3), value)


def test_requests_of_one_turn_share_a_run_and_each_gets_its_own_rows() -> None:
    compute = Doubler()

    async def main() -> list[Results]:
        run = Batcher(compute)
        return await asyncio.gather(*(run(row(i, rows=i + 1)) for i in range(5)))

    for i, results in enumerate(asyncio.run(main())):
        np.testing.assert_array_equal(results["doubled"], row(2 * i, rows=i + 1))
    assert compute.runs == [1 + 2 + 3 + 4 + 5]
    assert compute.threads == {threading.get_ident()}


def test_a_single_request_does_not_wait_for_a_timer() -> None:
    compute = Doubler()

    async def main() -> None:
        run = Batcher(compute)
        request = asyncio.ensure_future(run(row(1)))
        await asyncio.sleep(0)  # The request is read in this turn,
        await asyncio.sleep(0)  # and answered at the end of the next one.
        assert compute.runs == [1]
        await request

    asyncio.run(main())


def test_all_arrays_of_a_request_stay_together() -> None:
    async def main() -> list[Results]:
        run = Batcher(Doubler())
        return await asyncio.gather(*(run(row(i), row(-i)) for i in range(3)))

    for i, results in enumerate(asyncio.run(main())):
        np.testing.assert_array_equal(results["other"], row(-i))


def test_no_shared_run_exceeds_the_batch_size() -> None:
    compute = Doubler()

    async def main() -> None:
        run = Batcher(compute)
        await asyncio.gather(*(run(row(0, rows=100)) for _ in range(5)))

    asyncio.run(main())
    assert compute.runs == [200, 200, 100]


def test_a_large_request_runs_in_a_thread_and_delays_no_other() -> None:
    compute = Doubler()
    compute.go_on.clear()

    async def main() -> None:
        run = Batcher(lambda rows: compute(rows) if len(rows) > MAX_BATCH_ROWS else {"doubled": 2 * rows})
        large = asyncio.ensure_future(run(row(1, rows=MAX_BATCH_ROWS + 1)))
        small = await run(row(3))
        np.testing.assert_array_equal(small["doubled"], row(6))
        assert not large.done()
        compute.go_on.set()
        assert len((await large)["doubled"]) == MAX_BATCH_ROWS + 1

    asyncio.run(main())
    assert threading.get_ident() not in compute.threads


def test_a_slow_function_takes_all_waiting_requests_when_its_thread_is_free() -> None:
    compute = Doubler()
    compute.go_on.clear()

    async def main() -> list[Results]:
        run = Batcher(compute, quick=False)
        first = asyncio.ensure_future(run(row(0)))
        await asyncio.sleep(0.05)
        others = [asyncio.ensure_future(run(row(i))) for i in range(1, 4)]
        await asyncio.sleep(0.05)
        compute.go_on.set()
        return [await first, *(await asyncio.gather(*others))]

    for i, results in enumerate(asyncio.run(main())):
        np.testing.assert_array_equal(results["doubled"], row(2 * i))
    assert compute.runs == [1, 3]
    assert threading.get_ident() not in compute.threads


@pytest.mark.parametrize("quick", [True, False])
def test_only_the_request_that_fails_gets_the_error(quick: bool) -> None:
    threads = set()

    def compute(rows: Array) -> Results:
        threads.add(threading.get_ident())
        if (rows < 0).any():
            raise ValueError("negative")
        return {"doubled": 2 * rows}

    async def main() -> None:
        run = Batcher(compute, quick=quick)
        good, bad = await asyncio.gather(run(row(1)), run(row(-1)), return_exceptions=True)
        assert isinstance(good, dict)
        np.testing.assert_array_equal(good["doubled"], row(2))
        assert isinstance(bad, ValueError)
        np.testing.assert_array_equal((await run(row(2)))["doubled"], row(4))

    asyncio.run(main())
    assert (threading.get_ident() in threads) == quick  # A slow function never runs on the event loop.


def test_a_thread_that_cannot_start_is_an_error_of_that_request_only() -> None:
    async def main() -> None:
        run = Batcher(Doubler(), quick=False, executor=FailsOnce(1))
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await run(row(1))
        np.testing.assert_array_equal((await run(row(2)))["doubled"], row(4))

    asyncio.run(main())


def test_a_cancelled_request_does_not_stop_the_others() -> None:
    async def main() -> None:
        run = Batcher(Doubler())
        cancelled, other = asyncio.ensure_future(run(row(1))), asyncio.ensure_future(run(row(2)))
        asyncio.get_running_loop().call_soon(cancelled.cancel)
        np.testing.assert_array_equal((await other)["doubled"], row(4))
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    asyncio.run(main())
