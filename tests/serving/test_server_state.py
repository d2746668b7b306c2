"""What the handlers of one server share."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason="needs the serve extra")
from fastshapley.serving.model_store import ModelStore
from fastshapley.serving.request import Limits
from fastshapley.serving.server_state import ServerState


def test_two_servers_share_no_counters(exported: Any) -> None:
    models = ModelStore({"people": exported.graph})
    first, second = (ServerState(models, Limits(), {}) for _ in range(2))
    first.counters.count_rows("people", 3)
    assert b'fastshapley_rows_total{model="people"} 3.0' in first.counters.text()
    assert b"people" not in second.counters.text()


def test_a_new_server_is_not_stopping(exported: Any) -> None:
    state = ServerState(ModelStore({"people": exported.graph}), Limits(), {})
    assert not state.stopping
    with pytest.raises(AttributeError):
        state.stoping = True  # type: ignore[attr-defined]  # A misspelt name is an error.
