"""The server's OpenAPI document, which contains the columns and categories of its models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastshapley.serving.server_state import ServerState
from fastshapley.serving.serving_protocol import Protocol
from fastshapley.version import __version__


def openapi_document(state: ServerState, protocols: Sequence[Protocol]) -> dict[str, Any]:
    """Return the OpenAPI document of a server.

    Parameters
    ----------
    state : ServerState
        The server's models and limits.
    protocols : sequence of Protocol
        The protocols to describe.

    Returns
    -------
    document : dict
        The document.
    """
    paths: dict[str, Any] = {}
    for protocol in protocols:
        paths |= protocol.describe_server()
    for _, model in sorted(state.models.items()):
        for protocol in protocols:
            paths |= protocol.describe_model(model, state.limits.rows)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "fastshapley",
            "version": __version__,
            "description": "Shapley values in one forward pass, over KServe's V1 and V2 protocols.",
        },
        "paths": paths,
    }
    if state.needs_token:
        document["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        document["security"] = [{"token": []}]
    return document
