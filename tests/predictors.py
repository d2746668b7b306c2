"""A predictor for tests: a real HTTP server with a model, whose behaviour a test can change."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from problems import people_chances
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

COLUMNS = ["age", "income", "job", "city", "member"]


@dataclass
class TestPredictor:
    """A running predictor of the people model, and what it was asked."""

    __test__ = False

    port: int = 0
    respond: Callable[[list[Any]], Any] | None = None  # returns predictions or a Response, in place of the model
    seconds: float = 0.0  # time that each call takes
    ready: bool = True
    bodies: list[Any] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    running: int = 0
    most_running: int = 0

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://127.0.0.1:{self.port}"

    def reset(self) -> None:
        """Behave as at first, and forget the requests."""
        self.respond, self.seconds, self.ready, self.most_running = None, 0.0, True, 0
        self.bodies.clear()
        self.headers.clear()

    @property
    def app(self) -> Starlette:
        """The application."""
        return Starlette(
            routes=[
                Route("/v1/models/people:predict", self._v1, methods=["POST"]),
                Route("/v2/models/people/infer", self._v2, methods=["POST"]),
                Route("/v1/models/people", self._ready),
                Route("/v2/models/people/ready", self._ready),
            ]
        )

    async def _ready(self, request: Request) -> Response:
        return JSONResponse({"name": "people", "ready": self.ready}, 200 if self.ready else 503)

    async def _v1(self, request: Request) -> Response:
        found = await self._predictions(request, lambda body: body["instances"])
        return found if isinstance(found, Response) else JSONResponse({"predictions": found})

    async def _v2(self, request: Request) -> Response:
        found = await self._predictions(request, _rows_of_tensors)
        if isinstance(found, Response):
            return found
        tensor = {
            "name": "chances",
            "datatype": "FP64",
            "shape": [len(found), 2],
            "data": [value for row in found for value in row],
        }
        return JSONResponse({"model_name": "people", "outputs": [tensor]})

    async def _predictions(self, request: Request, rows_of: Callable[[Any], list[Any]]) -> Any:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            body = await request.json()
            self.bodies.append(body)
            self.headers.append(dict(request.headers))
            await asyncio.sleep(self.seconds)
            rows = rows_of(body)
            return chances(rows) if self.respond is None else self.respond(rows)
        finally:
            self.running -= 1


def chances(rows: list[Any]) -> list[list[float]]:
    """Return the model's outputs of rows as JSON values."""
    table = pd.DataFrame([row if isinstance(row, dict) else dict(zip(COLUMNS, row, strict=True)) for row in rows])
    found: list[list[float]] = people_chances(table).tolist()
    return found


@contextmanager
def predicting() -> Iterator[TestPredictor]:
    """Run a predictor in a thread until the end of the block."""
    import uvicorn

    predictor = TestPredictor()
    server = uvicorn.Server(uvicorn.Config(predictor.app, port=0, log_level="critical", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        predictor.port = server.servers[0].sockets[0].getsockname()[1]
        yield predictor
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join(30)


def _rows_of_tensors(body: Any) -> list[Any]:
    tensors = {part["name"]: part["data"] for part in body["inputs"]}
    return [dict(zip(tensors, row, strict=True)) for row in zip(*tensors.values(), strict=True)]
