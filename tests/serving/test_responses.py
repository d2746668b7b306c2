"""Answers in JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs the serve extra")
from fastshapley.serving.responses import JsonResponse, error_response


def test_arrays_are_written_as_lists() -> None:
    response = JsonResponse({"values": np.array([[1.5, 2.0]])}, 201)
    assert response.status_code == 201
    assert response.body == b'{"values":[[1.5,2.0]]}'
    assert response.headers["content-type"] == "application/json"
    assert response.headers["content-length"] == str(len(response.body))


def test_long_error_messages_are_shortened() -> None:
    error = json.loads(bytes(error_response(400, "x" * 100_000).body))["error"]
    assert error == "x" * 1000 + " ..."


@pytest.mark.parametrize(
    ("status", "header", "value"), [(408, "connection", "close"), (401, "www-authenticate", "Bearer")]
)
def test_some_errors_have_a_header(status: int, header: str, value: str) -> None:
    assert error_response(status, "no").headers[header] == value
    assert header not in error_response(400, "no").headers
