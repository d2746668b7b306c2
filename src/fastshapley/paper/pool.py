"""Computing what a store does not hold, on several processes."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any, Protocol

from tqdm.auto import tqdm


class Work(Protocol):
    """Pieces that are computed once, and kept."""

    def has(self, piece: Any) -> bool: ...

    def compute(self, piece: Any) -> None: ...


def compute_all(work: Work, stages: Sequence[Sequence[Any]], name: str, workers: int, *, progress: bool) -> None:
    """Compute the pieces that are missing, one stage after the other; those of a stage build on those before."""
    with tqdm(total=sum(map(len, stages)), desc=name, unit="piece", disable=not progress) as bar:
        missing = [[piece for piece in stage if not work.has(piece)] for stage in stages]
        bar.update(bar.total - sum(map(len, missing)))
        if not any(missing):
            return
        with _pool(workers) as pool:
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


@contextmanager
def _pool(workers: int) -> Iterator[Executor]:
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
