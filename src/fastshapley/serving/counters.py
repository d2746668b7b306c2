"""Count requests, rows and reloads, and report them in Prometheus's text format.

Counting only adds to plain numbers, which is cheap. The text is made when somebody asks for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

# Upper bounds of the histogram's buckets, in seconds.
_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Counters(Collector):
    """The counters of one server."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._durations: dict[str, _Durations] = {}
        self._rows: Counter[str] = Counter()
        self._reloads: Counter[tuple[str, str]] = Counter()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def count_request(self, model: str, action: str, status: int, seconds: float) -> None:
        """Count one answered request.

        Parameters
        ----------
        model : str
            Name of the model, or an empty string.
        action : str
            What the request asked for, such as ``"explain"``.
        status : int
            HTTP status of the answer.
        seconds : float
            Time that the answer took.
        """
        self._requests[model, action, status] += 1
        durations = self._durations.get(action)
        if durations is None:
            durations = self._durations[action] = _Durations()
        durations.counts[bisect_left(_BUCKETS, seconds)] += 1
        durations.total += seconds

    def count_rows(self, model: str, rows: int) -> None:
        """Count rows that a model explained.

        Parameters
        ----------
        model : str
            Name of the model.
        rows : int
            Number of rows.
        """
        self._rows[model] += rows

    def count_reload(self, model: str, result: str) -> None:
        """Count one attempt to load a changed file.

        Parameters
        ----------
        model : str
            Name of the model.
        result : {"read", "failed", "refused"}
            Whether the file is served now, cannot be read, or is another model that was refused.
        """
        self._reloads[model, result] += 1

    def text(self) -> bytes:
        """Return all counters in Prometheus's text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield all counters. The registry calls this."""
        requests = CounterMetricFamily(
            "fastshapley_requests",
            "Requests by model, action and status of the answer.",
            labels=("model", "action", "status"),
        )
        for (model, action, status), count in self._requests.items():
            requests.add_metric((model, action, str(status)), count)
        yield requests
        seconds = HistogramMetricFamily(
            "fastshapley_request_seconds", "Time from a request's header to its answer.", labels=("action",)
        )
        for action, durations in self._durations.items():
            seconds.add_metric((action,), durations.buckets(), durations.total)
        yield seconds
        rows = CounterMetricFamily("fastshapley_rows", "Rows explained.", labels=("model",))
        for model, count in self._rows.items():
            rows.add_metric((model,), count)
        yield rows
        reloads = CounterMetricFamily(
            "fastshapley_reloads",
            "Changed model files, by whether they could be read and were not refused.",
            labels=("model", "result"),
        )
        for labels, count in self._reloads.items():
            reloads.add_metric(labels, count)
        yield reloads


class _Durations:
    """A histogram of the time that requests took."""

    def __init__(self) -> None:
        self.counts, self.total = [0] * (len(_BUCKETS) + 1), 0.0

    def buckets(self) -> list[tuple[str, float]]:
        """Return, for each upper bound, how many requests took no longer."""
        cumulative, total = [], 0
        for bound, count in zip((*map(str, _BUCKETS), "+Inf"), self.counts, strict=True):
            total += count
            cumulative.append((bound, float(total)))
        return cumulative
