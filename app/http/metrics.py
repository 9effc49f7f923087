"""Prometheus metrics: one registry per application, labels from closed sets only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Protocol, cast

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import HTTPConnection

# From a cached record (well under a millisecond) to a run near its time limit.
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """What is counted; look-ups and diagnoses by the routes that do them."""

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
        self.limited_alone = Counter(
            "faultbook_rate_limit_fallbacks",
            "Requests that this replica limited by its own count, since the broker did not answer.",
            registry=self.registry,
        )

        self.lookup_latency = Histogram(
            "faultbook_lookup_seconds",
            "Time that a look-up took, by door and by how its best match was found.",
            ["door", "tier"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._requests = cache(self.requests.labels)
        self._latency = cache(self.latency.labels)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request; all labels are of closed sets."""
        self._requests(method, route, str(status)).inc()
        self._latency(method, route).observe(seconds)

    def looked_up(self, door: str, tier: str | None, seconds: float) -> None:
        """Count one look-up. `tier` is how its best match was found (exact-code, pattern, site, fuzzy), None
        where nothing matched.
        """
        self.lookups.labels(door, "match" if tier else "none").inc()
        self.lookup_latency.labels(door, tier or "none").observe(seconds)

    def diagnosed(self, operation: str, level: str, verdict: str) -> None:
        """Count one diagnosis."""
        self.diagnoses.labels(operation, level, verdict).inc()

    def watch_workers(self, pool: Workers) -> None:
        """Show what the workers say of themselves whenever somebody asks."""
        self.registry.register(_WorkerCollector(pool))

    def watch_jobs(self, states: Callable[[], Mapping[str, int]], kept: Callable[[], int | None]) -> None:
        """Show how many jobs are in which state that is no end, and the bytes that all of them take; nothing
        while their store cannot say.
        """
        self.registry.register(_JobCollector(states, kept))


class Workers(Protocol):
    """What is counted of the workers."""

    @property
    def waiting(self) -> int:
        """Jobs that wait for one."""

    @property
    def replaced(self) -> int:
        """Processes that were replaced."""

    @property
    def seconds(self) -> float:
        """For which jobs had one."""

    @property
    def xids(self) -> Mapping[int, int]:
        """Errors that the driver has reported since the start: Xid → how often."""


class _WorkerCollector(Collector):
    def __init__(self, pool: Workers) -> None:
        self._pool = pool

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "faultbook_queue_depth", "Runs that wait for a worker.", value=self._pool.waiting
        )
        yield CounterMetricFamily(
            "faultbook_worker_restarts", "Workers replaced after a run.", value=self._pool.replaced
        )
        yield CounterMetricFamily(
            "faultbook_gpu_seconds", "Time for which runs had a worker's device.", value=self._pool.seconds
        )
        reported = CounterMetricFamily(
            "faultbook_xids", "Errors that the GPU's driver reported while this ran.", labels=["xid"]
        )
        for number, times in sorted(self._pool.xids.items()):
            reported.add_metric([str(number)], times)
        yield reported


class _JobCollector(Collector):
    def __init__(self, states: Callable[[], Mapping[str, int]], kept: Callable[[], int | None]) -> None:
        self._states = states
        self._kept = kept

    def collect(self) -> Iterable[Metric]:
        jobs = GaugeMetricFamily("faultbook_open_jobs", "Jobs that have not ended.", labels=["state"])
        for state, number in self._states().items():
            jobs.add_metric([state], number)
        yield jobs
        if (kept := self._kept()) is not None:
            yield GaugeMetricFamily("faultbook_kept_bytes", "What jobs and their answers take.", value=kept)


def metrics_of(connection: HTTPConnection) -> Metrics:
    """The metrics of the service that answers."""
    return cast(Metrics, connection.app.state.metrics)
