"""A store of the paper's experiments that computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastshapley.paper.store import Arrays, Store
from fastshapley.training.checkpoint import Checkpoint


class ReadOnly(Store):
    """A store that fails where something would have to be computed."""

    def remember(
        self, kind: str, settings: Mapping[str, Any], compute: Callable[[Checkpoint], Mapping[str, Any]]
    ) -> Arrays:
        assert self.has(kind, settings), f"{kind} is not in the store"
        return super().remember(kind, settings, compute)
