"""Prometheus metrics: one registry per application, labels from closed sets only."""

from __future__ import annotations

from typing import cast

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from starlette.requests import HTTPConnection

# From a cached record (well under a millisecond) to a run near its time limit.
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """`lookups` and `diagnoses` are counted by the routes that do them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "faultbook_requests",
            "HTTP requests answered, by route template.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.latency = Histogram(
            "faultbook_request_seconds",
            "Time from a request's first byte to its answer's last.",
            ["method", "route"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.lookups = Counter(
            "faultbook_lookups",
            "Look-ups of errors: where from, and whether anything matched.",
            ["door", "outcome"],
            registry=self.registry,
        )
        self.diagnoses = Counter(
            "faultbook_diagnoses",
            "Diagnoses by operation, level and verdict.",
            ["operation", "level", "verdict"],
            registry=self.registry,
        )

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        self.requests.labels(method, route, str(status)).inc()
        self.latency.labels(method, route).observe(seconds)


def metrics_of(connection: HTTPConnection) -> Metrics:
    """The metrics of the service that answers."""
    return cast(Metrics, connection.app.state.metrics)
