"""Compute the pieces that are missing in a store, on several processes."""

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
    """Pieces that are computed once and kept in a store."""

    def has(self, piece: Any) -> bool:
        """Return whether a piece is in the store."""

    def compute(self, piece: Any) -> None:
        """Compute a piece, and keep it in the store."""


def compute_all(
    work: Work, stages: Sequence[Sequence[Any]], name: str, workers: int | None, *, progress: bool
) -> None:
    """Compute the missing pieces, one stage after the other.

    Parameters
    ----------
    work : Work
        What computes and keeps the pieces. It is sent to other processes.
    stages : sequence of sequence
        The pieces. Those of a stage may need those of the stages before.
    name : str
        The label of the progress bar.
    workers : int or None
        The number of processes. None starts one per processor, and 0 computes in this process.
    progress : bool
        Whether to show a progress bar.

    Raises
    ------
    Exception
        The error of the first piece that failed. The other pieces of its stage are computed and kept.
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
                if failed:  # the other pieces of the stage are done and kept
                    piece, error = failed[0]
                    error.add_note(
                        f"in {piece}; {len(failed)} pieces failed: run the same command again to retry them"
                    )
                    raise error


class _Immediate(Executor):
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
    yield _Immediate()


@contextmanager
def _processes(workers: int) -> Iterator[Executor]:
    """Spawn processes that do not outlive an interruption."""
    start = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=start, initializer=_ignore_interrupts)
    try:
        yield pool
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C, which reaches every process. The main process ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tqdm.set_lock(threading.RLock())  # tqdm's default lock is shared by all processes, and Python warns if it leaks


def _compute(work: Work, piece: Any) -> None:
    work.compute(piece)
