"""Computing what a store does not hold, on several processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any, Protocol

from tqdm.auto import tqdm


class Work(Protocol):
    """Pieces that are computed once, and kept."""

    def has(self, piece: Any) -> bool: ...

    def compute(self, piece: Any) -> None: ...


def compute_all(
    work: Work, stages: Sequence[Sequence[Any]], name: str, workers: int | None, *, progress: bool
) -> None:
    """Compute the pieces that are missing, one stage after the other; those of a stage build on those before.

    Parameters
    ----------
    work : Work
        Knows which pieces are done, and computes the others.
    stages : sequence of sequences
        The pieces. Those of a stage need those of the stages before it.
    name : str
        The name that the progress bar shows.
    workers : int or None
        The number of processes. None starts one for each processor; 0 computes in this process.
    progress : bool
        Whether to show a progress bar.
    """
    with tqdm(total=sum(map(len, stages)), desc=name, unit="piece", disable=not progress) as bar:
        missing = [[piece for piece in stage if not work.has(piece)] for stage in stages]
        bar.update(bar.total - sum(map(len, missing)))
        if not any(missing):
            return
        with _in_this_process() if workers == 0 else _processes(workers or os.cpu_count() or 1) as pool:
            for stage in missing:
                futures = {pool.submit(_compute, work, piece): piece for piece in stage}
                failed = []
                for future in as_completed(futures):
                    if error := future.exception():
                        failed.append((futures[future], error))
                    bar.update()
                if failed:  # the others are done, and kept
                    piece, error = failed[0]
                    error.add_note(f"in {piece}; {len(failed)} pieces failed, run again to try them once more")
                    raise error


class _Immediately(Executor):
    """An executor that computes at once, in this process."""

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def _in_this_process() -> Iterator[Executor]:
    yield _Immediately()


@contextmanager
def _processes(workers: int) -> Iterator[Executor]:
    """Processes that start afresh, and do not outlive an interruption."""
    start = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=start, initializer=_leave_interruptions)
    try:
        yield pool
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_interruptions() -> None:
    """Ctrl-C reaches every process: this one's end is left to the first, and nothing is said of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tqdm.set_lock(threading.RLock())  # or one that all processes share, which Python would miss with a warning


def _compute(work: Work, piece: Any) -> None:
    work.compute(piece)
