"""What a server counts, as Prometheus reads it."""

from __future__ import annotations

from functools import cache

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """Counters of one server, in a registry of its own."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        requests = Counter(
            "fastshapley_requests", "Requests by what was asked for and the status of the answer.",
            ("model", "action", "status"), registry=self._registry,
        )  # fmt: skip
        seconds = Histogram(
            "fastshapley_request_seconds", "From a request's head to its answer.",
            ("action",), buckets=_SECONDS, registry=self._registry,
        )  # fmt: skip
        rows = Counter("fastshapley_rows", "Rows explained.", ("model",), registry=self._registry)
        self._reloads = Counter(
            "fastshapley_reloads", "Files that changed, by whether they could be read.",
            ("model", "result"), registry=self._registry,
        )  # fmt: skip
        self._request = cache(lambda model, action, status: requests.labels(model, action, status))
        self._seconds = cache(seconds.labels)
        self._rows = cache(rows.labels)

    def request(self, model: str, action: str, status: int, seconds: float) -> None:
        self._request(model, action, status).inc()
        self._seconds(action).observe(seconds)

    def rows(self, model: str, rows: int) -> None:
        self._rows(model).inc(rows)

    def reload(self, model: str, well: bool) -> None:
        self._reloads.labels(model, "read" if well else "failed").inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)
