"""What the handlers of one server share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastshapley.serving.counters import Counters
from fastshapley.serving.model_store import ModelStore
from fastshapley.serving.request import Limits


@dataclass(slots=True)
class ServerState:
    """What the handlers of one server share. `create_app` creates it once.

    Parameters
    ----------
    models : ModelStore
        The models by name.
    limits : Limits
        Limits on each request.
    example_rows : mapping
        Rows to choose from on the page, by model.
    needs_token : bool, default=False
        Whether clients must send a token.
    counters : Counters
        The counters at ``/metrics``.
    stopping : bool, default=False
        Whether the server is shutting down. It is then no longer ready.
    """

    models: ModelStore
    limits: Limits
    example_rows: Mapping[str, Sequence[Mapping[str, Any]]]
    needs_token: bool = False
    counters: Counters = field(default_factory=Counters)
    stopping: bool = False
