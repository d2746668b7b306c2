"""What a server counts, as Prometheus reads it.

Requests are counted in plain numbers, which costs next to nothing; they are put into words when somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics(Collector):
    """The counters of one server."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._times: dict[str, _Times] = {}
        self._rows: Counter[str] = Counter()
        self._reloads: Counter[tuple[str, str]] = Counter()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def request(self, model: str, action: str, status: int, seconds: float) -> None:
        self._requests[model, action, status] += 1
        times = self._times.get(action)
        if times is None:
            times = self._times[action] = _Times()
        times.counts[bisect_left(_SECONDS, seconds)] += 1
        times.total += seconds

    def rows(self, model: str, rows: int) -> None:
        self._rows[model] += rows

    def reload(self, model: str, well: bool) -> None:
        self._reloads[model, "read" if well else "failed"] += 1

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All of them, as the registry wants them."""
        requests = CounterMetricFamily(
            "fastshapley_requests",
            "Requests by what was asked for and the status of the answer.",
            labels=("model", "action", "status"),
        )
        for (model, action, status), count in self._requests.items():
            requests.add_metric((model, action, str(status)), count)
        yield requests
        seconds = HistogramMetricFamily(
            "fastshapley_request_seconds", "From a request's head to its answer.", labels=("action",)
        )
        for action, times in self._times.items():
            seconds.add_metric((action,), times.buckets(), times.total)
        yield seconds
        rows = CounterMetricFamily("fastshapley_rows", "Rows explained.", labels=("model",))
        for model, count in self._rows.items():
            rows.add_metric((model,), count)
        yield rows
        reloads = CounterMetricFamily(
            "fastshapley_reloads", "Files that changed, by whether they could be read.", labels=("model", "result")
        )
        for labels, count in self._reloads.items():
            reloads.add_metric(labels, count)
        yield reloads


class _Times:
    """How many requests took how long."""

    def __init__(self) -> None:
        self.counts, self.total = [0] * (len(_SECONDS) + 1), 0.0

    def buckets(self) -> list[tuple[str, float]]:
        """Of each bound, how many took no longer."""
        found, below = [], 0
        for bound, count in zip((*map(str, _SECONDS), "+Inf"), self.counts, strict=True):
            below += count
            found.append((bound, float(below)))
        return found
