"""Torch in forked processes, as gunicorn with ``--preload`` and `multiprocessing` make them."""

from __future__ import annotations

import os

import torch


def use_one_thread_after_forks() -> None:
    """Let torch use one thread in each process that is forked from now on.

    A forked process has none of the threads that torch computed with before, and would wait for them forever.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_use_one_thread)


def _use_one_thread() -> None:
    torch.set_num_threads(1)
