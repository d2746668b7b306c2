"""Counters in Prometheus's text format."""

from __future__ import annotations

import pytest

pytest.importorskip("prometheus_client", reason="needs the serve extra")
from fastshapley.serving.counters import Counters


def lines(counters: Counters) -> dict[str, float]:
    """Return the values by name, without comments."""
    text = [line for line in counters.text().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in text)}


def test_requests_are_counted_by_model_action_and_status() -> None:
    counters = Counters()
    for status in (200, 200, 400):
        counters.count_request("people", "explain", status, 0.003)
    found = lines(counters)
    assert found['fastshapley_requests_total{action="explain",model="people",status="200"}'] == 2
    assert found['fastshapley_requests_total{action="explain",model="people",status="400"}'] == 1


def test_durations_fall_into_cumulative_buckets() -> None:
    counters = Counters()
    for seconds in (0.0005, 0.003, 20.0):
        counters.count_request("people", "explain", 200, seconds)
    found = lines(counters)
    buckets = {
        bound: found[f'fastshapley_request_seconds_bucket{{action="explain",le="{bound}"}}']
        for bound in ("0.0005", "0.002", "0.005", "10.0", "+Inf")
    }
    assert buckets == {"0.0005": 1, "0.002": 1, "0.005": 2, "10.0": 2, "+Inf": 3}
    assert found['fastshapley_request_seconds_sum{action="explain"}'] == pytest.approx(20.0035)


def test_rows_and_reloads_are_counted() -> None:
    counters = Counters()
    counters.count_rows("people", 5)
    counters.count_rows("people", 2)
    counters.count_reload("people", "read")
    counters.count_reload("people", "failed")
    counters.count_reload("people", "failed")
    found = lines(counters)
    assert found['fastshapley_rows_total{model="people"}'] == 7
    assert found['fastshapley_reloads_total{model="people",result="read"}'] == 1
    assert found['fastshapley_reloads_total{model="people",result="failed"}'] == 2
