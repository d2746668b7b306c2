"""Requests that arrive together, and those that come alone."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from fastshapley.export.graph import Array
from fastshapley.serving.batching import TOGETHER, Batcher, Results


class Doubler:
    """A graph that doubles, and remembers how many rows it was run for at once."""

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


def row(value: float, rows: int = 1) -> Array:
    return np.full((rows, 3), value)


def test_what_comes_together_is_run_together_and_each_gets_its_own() -> None:
    compute = Doubler()

    async def main() -> list[Results]:
        run = Batcher(compute)
        return await asyncio.gather(*(run(row(i, rows=i + 1)) for i in range(5)))

    for i, found in enumerate(asyncio.run(main())):
        np.testing.assert_array_equal(found["doubled"], row(2 * i, rows=i + 1))
    assert compute.runs == [1 + 2 + 3 + 4 + 5]
    assert compute.threads == {threading.get_ident()}


def test_one_alone_is_answered_at_the_end_of_the_turn() -> None:
    compute = Doubler()

    async def main() -> None:
        run = Batcher(compute)
        request = asyncio.ensure_future(run(row(1)))
        await asyncio.sleep(0)  # the turn in which it is read
        await asyncio.sleep(0)  # at whose end it is answered: no timer was waited for
        assert compute.runs == [1]
        await request

    asyncio.run(main())


def test_arrays_of_a_request_stay_together() -> None:
    async def main() -> list[Results]:
        run = Batcher(Doubler())
        return await asyncio.gather(*(run(row(i), row(-i)) for i in range(3)))

    for i, found in enumerate(asyncio.run(main())):
        np.testing.assert_array_equal(found["other"], row(-i))


def test_no_run_is_larger_than_goes_together() -> None:
    compute = Doubler()

    async def main() -> None:
        run = Batcher(compute)
        await asyncio.gather(*(run(row(0, rows=100)) for _ in range(5)))

    asyncio.run(main())
    assert compute.runs == [200, 200, 100]


def test_a_large_request_has_a_run_of_its_own_that_nobody_waits_for() -> None:
    compute = Doubler()
    compute.go_on.clear()

    async def main() -> None:
        run = Batcher(lambda rows: compute(rows) if len(rows) > TOGETHER else {"doubled": 2 * rows})
        large = asyncio.ensure_future(run(row(1, rows=TOGETHER + 1)))
        small = await run(row(3))
        np.testing.assert_array_equal(small["doubled"], row(6))
        assert not large.done()
        compute.go_on.set()
        assert len((await large)["doubled"]) == TOGETHER + 1

    asyncio.run(main())
    assert threading.get_ident() not in compute.threads


def test_a_slow_graph_takes_what_has_gathered_when_it_is_free() -> None:
    compute = Doubler()
    compute.go_on.clear()

    async def main() -> list[Results]:
        run = Batcher(compute, quick=False)
        first = asyncio.ensure_future(run(row(0)))
        await asyncio.sleep(0.05)
        rest = [asyncio.ensure_future(run(row(i))) for i in range(1, 4)]
        await asyncio.sleep(0.05)
        compute.go_on.set()
        return [await first, *(await asyncio.gather(*rest))]

    for i, found in enumerate(asyncio.run(main())):
        np.testing.assert_array_equal(found["doubled"], row(2 * i))
    assert compute.runs == [1, 3]
    assert threading.get_ident() not in compute.threads


@pytest.mark.parametrize("quick", [True, False])
def test_a_failure_is_its_own_requests_and_the_next_are_answered(quick: bool) -> None:
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
    assert (threading.get_ident() in threads) == quick  # a slow one is not run on the event loop, whatever happens


def test_no_thread_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*arguments: Any) -> Any:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        run = Batcher(Doubler(), quick=False)
        with monkeypatch.context() as patch:
            patch.setattr(run._pool, "submit", none)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await run(row(1))
        np.testing.assert_array_equal((await run(row(2)))["doubled"], row(4))

    asyncio.run(main())


def test_who_has_left_is_not_waited_for() -> None:
    compute = Doubler()

    async def main() -> None:
        run = Batcher(compute)
        leaving, staying = asyncio.ensure_future(run(row(1))), asyncio.ensure_future(run(row(2)))
        asyncio.get_running_loop().call_soon(leaving.cancel)
        np.testing.assert_array_equal((await staying)["doubled"], row(4))
        with pytest.raises(asyncio.CancelledError):
            await leaving

    asyncio.run(main())
