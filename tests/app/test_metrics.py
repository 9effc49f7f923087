"""Every metric that the operator's guide names moves when what it counts happens, in services as they are
started: processes of their own, with workers that end in every way.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from app.worker import pool
from app.worker.xid import Watch
from tests.app.redis_server import RedisServer, server
from tests.app.serving import Process, Service, killed

LIMIT = 4.0
"""Seconds of a run."""

LIVES_FOR = 120.0

KNOWN = "ValueError: int32-packed scale buffers require scale_ue8m0=True"
UNKNOWN = "OddError: the moon is in the wrong house"
_PLACE = "sglang/kernels/ops/quantization/per_token_group_quant.py"
WITHOUT_TEXT = f"""\
Traceback (most recent call last):
  File "/venv/lib/python3.12/site-packages/{_PLACE}", line 41, in _jit_module
    assert group_size in _SUPPORTED_GROUP_SIZES
AssertionError
"""

Values = dict[str, float]

pytestmark = pytest.mark.timeout(600)


class Watched(Service):
    """A service and what it counts."""

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return str(answer.read().decode())

    def send(self, path: str, body: bytes, kind: str) -> None:
        headers = {"Content-Type": kind, "Accept": "application/json, text/event-stream"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body, headers)
        urllib.request.urlopen(request, timeout=60).close()

    def counts(self) -> Values:
        return read(self.get("/metrics"))

    def run(self, kind: str, seed: int, **headers: str) -> tuple[int, Any]:
        """Ask for a run of the operation that ends its process in this way."""
        body = {"operation": "hazard", "arguments": {"kind": kind}, "level": "run", "seed": seed}
        return self.answers("POST", "/api/diagnose", body, **headers)

    def until(self, holds: Callable[[Values], bool], limit: float = LIVES_FOR) -> Values:
        """What is counted, once it is so."""
        deadline = time.monotonic() + limit
        while not holds(found := self.counts()):
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        return found


def read(text: str) -> Values:
    """Values by name, with the labels in the order of their names: `name{a="x",b="y"}`."""
    found: Values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def moved(before: Values, after: Values, family: str) -> Values:
    """What has grown of these metrics, and by how much."""
    return {
        name: after[name] - before.get(name, 0.0)
        for name in after
        if name.startswith(family) and after[name] != before.get(name, 0.0)
    }


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("metrics")
    made = Watched(folder, device="cpu", run_timeout=str(LIMIT), max_tensor_bytes="64MiB")
    try:
        made.until_ready()
        yield made
    finally:
        made.end()


def _by_match(service: Watched, text: str) -> None:
    service.send("/api/match", text.encode(), "text/plain")


def _by_search(service: Watched, text: str) -> None:
    service.get(f"/api/search?{urllib.parse.urlencode({'q': text})}")


def _by_page(service: Watched, text: str) -> None:
    service.send("/", urllib.parse.urlencode({"text": text}).encode(), "application/x-www-form-urlencoded")


def _by_mcp(service: Watched, text: str) -> None:
    call = {"name": "search_error", "arguments": {"text": text}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    service.send("/mcp", json.dumps(body).encode(), "application/json")


DOORS: dict[str, Callable[[Watched, str], None]] = {
    "match": _by_match,
    "search": _by_search,
    "page": _by_page,
    "mcp": _by_mcp,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("text", "tier", "outcome"), [(KNOWN, "pattern", "match"), (UNKNOWN, "none", "none")]
)
def test_a_look_up_is_counted_with_its_door_and_tier_and_time(
    service: Watched, door: str, text: str, tier: str, outcome: str
) -> None:
    before = service.counts()
    began = time.perf_counter()
    DOORS[door](service, text)
    took = time.perf_counter() - began
    after = service.counts()
    assert moved(before, after, "faultbook_lookups_total") == {
        f'faultbook_lookups_total{{door="{door}",outcome="{outcome}"}}': 1
    }
    labels = f'{{door="{door}",tier="{tier}"}}'
    assert moved(before, after, "faultbook_lookup_seconds_count") == {
        f"faultbook_lookup_seconds_count{labels}": 1
    }
    [seconds] = moved(before, after, "faultbook_lookup_seconds_sum").values()
    assert 0 < seconds < took
    buckets = moved(before, after, "faultbook_lookup_seconds_bucket")
    assert set(buckets.values()) == {1}
    assert {name.partition(",le=")[0] for name in buckets} == {
        f'faultbook_lookup_seconds_bucket{{door="{door}"'
    }


def test_an_error_without_a_text_is_found_by_its_place(service: Watched) -> None:
    before = service.counts()
    _by_match(service, WITHOUT_TEXT)
    assert moved(before, service.counts(), "faultbook_lookup_seconds_count") == {
        'faultbook_lookup_seconds_count{door="match",tier="site"}': 1
    }


def test_a_model_that_asks_for_a_fix_has_looked_up(service: Watched) -> None:
    before = service.counts()
    call = {"name": "suggest_fix", "arguments": {"text": KNOWN}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    service.send("/mcp", json.dumps(body).encode(), "application/json")
    after = service.counts()
    assert moved(before, after, "faultbook_lookups_total") == {
        'faultbook_lookups_total{door="mcp",outcome="match"}': 1
    }
    assert sum(moved(before, after, "faultbook_diagnoses_total").values()) == 1


@pytest.mark.parametrize(
    ("kind", "verdict", "restarts"),
    [
        ("none", "passed", 0),
        ("segfault", "crashed", 1),
        ("kill", "crashed", 1),
        ("gulp", "out-of-memory", 0),
        ("spin", "timed-out", 1),
    ],
)
def test_a_run_is_counted_with_its_verdict_its_seconds_and_the_process_it_ended(
    service: Watched, kind: str, verdict: str, restarts: int
) -> None:
    before = service.counts()
    began = time.perf_counter()
    status, answer = service.run(kind, 1)
    took = time.perf_counter() - began
    assert (status, answer["verdict"]) == (200, verdict)
    after = service.until(
        lambda now: (
            now["faultbook_worker_restarts_total"] >= before["faultbook_worker_restarts_total"] + restarts
        )
    )
    assert moved(before, after, "faultbook_diagnoses_total") == {
        f'faultbook_diagnoses_total{{level="run",operation="hazard",verdict="{verdict}"}}': 1
    }
    assert moved(before, after, "faultbook_worker_restarts_total") == (
        {"faultbook_worker_restarts_total": restarts} if restarts else {}
    )
    [seconds] = moved(before, after, "faultbook_gpu_seconds_total").values()
    assert 0 < seconds <= took
    if kind == "spin":
        assert seconds >= LIMIT


@pytest.mark.parametrize(
    ("arguments", "verdict"), [({}, "passed"), ({"scale_ue8m0": True, "output_s": "float16[4]"}, "rejected")]
)
@pytest.mark.parametrize("time_of_asking", ["first", "again"])
def test_checks_are_counted_with_their_verdict_also_when_they_are_asked_again(
    service: Watched, arguments: dict[str, Any], verdict: str, time_of_asking: str
) -> None:
    before = service.counts()
    body = {"operation": "per_token_group_quant", "arguments": arguments, "level": "checks"}
    assert service.ask("POST", "/api/diagnose", body)[1]["verdict"] == verdict
    labels = f'{{level="checks",operation="per_token_group_quant",verdict="{verdict}"}}'
    after = service.counts()
    assert moved(before, after, "faultbook_diagnoses_total") == {f"faultbook_diagnoses_total{labels}": 1}
    assert moved(before, after, "faultbook_gpu_seconds_total") == {}


def test_a_checkpoint_is_counted_as_the_operation_that_judged_it(service: Watched) -> None:
    before = service.counts()
    service.send("/api/diagnose/checkpoint", b"version https://git-lfs", "application/octet-stream")
    counted = moved(before, service.counts(), "faultbook_diagnoses_total")
    assert list(counted.values()) == [1.0]
    assert 'level="checks"' in next(iter(counted))


def test_jobs_and_runs_that_wait_are_shown_while_they_wait(service: Watched) -> None:
    """One worker: a job runs, one waits in the store, and a call asked for at once waits for the worker."""
    queued, running = (f'faultbook_open_jobs{{state="{state}"}}' for state in ("queued", "running"))
    idle = service.counts()
    assert (idle[queued], idle[running], idle["faultbook_queue_depth"]) == (0, 0, 0)
    jobs = [service.run("slow", seed, Prefer="respond-async")[1]["location"] for seed in (21, 22)]
    service.until(lambda now: (now[queued], now[running]) == (1, 1))
    asked = threading.Thread(target=partial(service.run, "none", 23))
    asked.start()
    service.until(lambda now: now["faultbook_queue_depth"] >= 1, limit=LIMIT)
    asked.join()
    for place in jobs:
        job = "/api/diagnoses/" + place.rpartition("/")[2]
        while service.answers("GET", job)[0] == 202:
            time.sleep(0.05)
    service.until(lambda now: (now[queued], now[running], now["faultbook_queue_depth"]) == (0, 0, 0))


def test_a_worker_that_died_while_nothing_ran_is_counted_when_it_is_replaced(service: Watched) -> None:
    before = service.counts()
    for worker in service.leaves():
        killed(worker)
    assert service.run("none", 31)[1]["verdict"] == "passed"
    assert moved(before, service.counts(), "faultbook_worker_restarts_total")


def test_requests_and_their_time_are_counted(service: Watched) -> None:
    before = service.counts()
    service.get("/api/repos")
    after = service.counts()
    assert moved(before, after, 'faultbook_requests_total{method="GET",route="/api/repos"') == {
        'faultbook_requests_total{method="GET",route="/api/repos",status="200"}': 1
    }
    assert moved(before, after, 'faultbook_request_seconds_sum{method="GET",route="/api/repos"')


def test_what_the_driver_reports_in_the_hosts_log_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is a file of this test's; a host without a GPU has nothing to run, and watches its log all the
    same.
    """
    host = tmp_path / "kern.log"
    host.write_text("NVRM: Xid (PCI:0000:0f:00): 79, GPU has fallen off the bus.\n")
    monkeypatch.setattr(pool, "Watch", partial(Watch, (str(host),)))
    settings = Settings(device="cuda", data=tmp_path / "data")
    with TestClient(create_app(settings)) as client:
        deadline = time.monotonic() + LIVES_FOR
        while client.get("/readyz").json()["parts"]["worker"]["detail"] == "starting":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert moved({}, read(client.get("/metrics").text), "faultbook_xids_total") == {}
        with host.open("a") as lines:
            lines.write("NVRM: Xid (PCI:0000:0f:00): 31, pid=4242, name=python3, Ch 00000008\n" * 2)
            lines.write("NVRM: Xid (PCI:0000:3b:00): 48, DBE\n")
        assert moved({}, read(client.get("/metrics").text), "faultbook_xids_total") == {
            'faultbook_xids_total{xid="31"}': 2,
            'faultbook_xids_total{xid="48"}': 1,
        }


@pytest.mark.skipif(server() is None, reason="no redis-server on this host")
def test_a_replica_shows_what_the_workers_of_other_hosts_did(tmp_path: Path) -> None:
    redis = RedisServer(tmp_path / "redis")
    settings = {"broker_url": redis.url, "device": "cpu", "run_timeout": str(LIMIT)}
    processes: list[Process] = []
    try:
        processes.append(Process(tmp_path / "host", "worker", **settings))
        replica = Watched(tmp_path / "api", **settings)
        processes.append(replica)
        replica.until_ready()
        before = replica.counts()
        assert replica.run("kill", 1)[1]["verdict"] == "crashed"
        after = replica.until(lambda now: now["faultbook_worker_restarts_total"] == 1)
        assert list(moved(before, after, "faultbook_diagnoses_total").values()) == [1.0]
        [seconds] = moved(before, after, "faultbook_gpu_seconds_total").values()
        assert seconds > 0
        jobs = [replica.run("spin", seed, Prefer="respond-async")[0] for seed in (2, 3)]
        assert jobs == [202, 202]
        replica.until(lambda now: now["faultbook_queue_depth"] == 1, limit=2 * LIMIT)
        replica.until(lambda now: now["faultbook_queue_depth"] == 0)
    finally:
        for process in reversed(processes):
            process.end()
        redis.client.close()
        redis.stop()
