"""A cluster of real processes: Redis, two hosts' workers, two API replicas, and what becomes of deaths."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from app.cluster import names
from tests.app.redis_server import RedisServer, server
from tests.app.serving import Process, Service, killed

LIMIT = 4.0
"""Seconds of a run."""

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(server() is None, reason="no redis-server on this host"),
    pytest.mark.skipif(sys.platform != "linux", reason="finds worker processes in /proc"),
]


class Cluster:
    """Redis, two hosts and two services."""

    def __init__(self, folder: Path) -> None:
        self.redis = RedisServer(folder / "redis")
        settings = {"broker_url": self.redis.url, "device": "cpu", "run_timeout": str(LIMIT)}
        self.hosts = [Process(folder / f"host{number}", "worker", **settings) for number in range(2)]
        self.services = [Service(folder / f"api{number}", **settings) for number in range(2)]
        self.processes: list[Process] = [*self.hosts, *self.services]

    def until_there(self, hosts: int) -> None:
        """Wait until so many hosts say that they are there."""
        deadline = time.monotonic() + 300
        while len(self.redis.client.keys("faultbook:node:*")) != hosts:
            logs = [host.log.read_text()[-2000:] for host in self.hosts]
            assert time.monotonic() < deadline, logs
            assert not hosts or all(host.process.poll() is None for host in self.hosts), logs
            time.sleep(0.1)
        for service in self.services:
            service.until_ready()

    def end(self) -> None:
        for process in self.processes:
            process.end()
        self.redis.client.close()
        self.redis.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.until_there(2)
        yield made
    finally:
        made.end()


def ask(service: Service, kind: str, seed: int) -> str:
    body = {"operation": "hazard", "arguments": {"kind": kind}, "level": "run", "seed": seed}
    status, answer = service.answers("POST", "/api/diagnose", body, Prefer="respond-async")
    assert status == 202, answer
    return str(answer["location"].rpartition("/")[2])


def end(service: Service, job: str, limit: float = 120) -> dict[str, Any]:
    """A job's diagnosis once it has ended; it has ended once."""
    deadline = time.monotonic() + limit
    while True:
        status, answer = service.answers("GET", f"/api/diagnoses/{job}")
        if status != 202:
            assert status == 200, (status, answer, service.log.read_text()[-2000:])
            assert [kind for kind, _ in service.steps(job)].count("done") == 1
            found: dict[str, Any] = answer
            return found
        assert time.monotonic() < deadline, (job, answer, service.log.read_text()[-2000:])
        time.sleep(0.1)


def busy(cluster: Cluster, number: int) -> list[list[int]]:
    """Worker processes of each host, once `number` runs are with hosts."""
    deadline = time.monotonic() + 30
    while cluster.redis.client.zcard("unacked_index") != number:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.5)
    return [host.leaves() for host in cluster.hosts]


def test_a_job_accepted_by_one_replica_is_run_and_read_by_all(cluster: Cluster) -> None:
    first, second = cluster.services
    job = ask(first, "none", 1)
    answer = end(second, job)
    assert (answer["verdict"], answer["run"]["device"]["name"]) == ("passed", "cpu")
    assert end(first, job) == answer
    assert answer["environment"]["torch"]
    again = second.answers("POST", "/api/diagnose", body("none", 1))[1]
    assert again["cached"] is not None


def body(kind: str, seed: int) -> dict[str, Any]:
    return {"operation": "hazard", "arguments": {"kind": kind}, "level": "run", "seed": seed}


def test_every_job_ends_once_when_a_worker_and_a_whole_host_die_at_it(cluster: Cluster) -> None:
    """Two runs, one on each host: of one the worker process is killed, of the other the host's main process.
    The first is a crash; the second is delivered once more, to the host that is left, where it overruns.
    """
    service = cluster.services[0]
    quick = [ask(service, "none", 10 + number) for number in range(4)]
    assert [end(service, job)["verdict"] for job in quick] == ["passed"] * 4
    slow = [ask(service, "spin", 20), ask(service, "spin", 21)]
    began = time.monotonic()
    workers, _ = busy(cluster, 2)
    for pid in workers:
        killed(pid)
    cluster.hosts[1].kill()
    later = [ask(service, "none", 30 + number) for number in range(4)]
    assert [end(service, job)["verdict"] for job in later] == ["passed"] * 4
    answers = [end(service, job) for job in slow]
    took = time.monotonic() - began
    assert sorted(answer["verdict"] for answer in answers) == ["crashed", "timed-out"]
    crashed = next(answer for answer in answers if answer["verdict"] == "crashed")
    assert "signal 9" in crashed["detail"]
    deliveries = [
        int(cluster.redis.client.hget(key, "deliveries") or 0)
        for key in cluster.redis.client.keys("faultbook:run:*")
    ]
    assert sorted(deliveries)[-2:] == [1, 2]
    lost = [
        cluster.redis.client.hget(key, names.LOST) for key in cluster.redis.client.keys("faultbook:run:*")
    ]
    [seconds] = [float(each) for each in lost if each is not None]
    assert 0 <= seconds < LIMIT, "what the host that vanished took is paid for"
    sys.stdout.write(f"the run of the host that was killed ended {took:.1f} s later, on the other\n")
    cluster.hosts[1].start()
    cluster.until_there(2)


def test_a_cancelled_run_is_ended_on_its_host(cluster: Cluster) -> None:
    first, second = cluster.services
    job = ask(first, "spin", 40)
    busy(cluster, 1)
    assert second.answers("DELETE", f"/api/diagnoses/{job}")[0] in (200, 202)
    assert end(second, job, 5)["detail"] == "cancelled while it ran"
    began = time.monotonic()
    while cluster.redis.client.zcard("unacked_index"):
        assert time.monotonic() - began < LIMIT / 2
        time.sleep(0.05)


def test_a_host_that_leaves_gives_its_run_to_another(cluster: Cluster) -> None:
    service = cluster.services[0]
    jobs = [ask(service, "spin", 50), ask(service, "none", 51)]
    busy(cluster, 1)
    for host in cluster.hosts:
        host.process.terminate()
    assert [host.process.wait(30) for host in cluster.hosts] == [0, 0]
    cluster.until_there(0)
    # Given back, not finished: it could have gone on for LIMIT seconds.
    assert cluster.redis.client.llen("faultbook.cpu") >= 1
    assert cluster.redis.client.zcard("unacked_index") == 0
    status, _ = service.ask("POST", "/api/diagnose", body("none", 52))
    assert status == 503
    for host in cluster.hosts:
        host.start()
    cluster.until_there(2)
    assert [end(service, job)["verdict"] for job in jobs] == ["timed-out", "passed"]


def test_jobs_outlive_the_broker_and_the_service_that_took_them(cluster: Cluster) -> None:
    first, second = cluster.services
    jobs = [ask(first, kind, 60 + number) for number, kind in enumerate(["none", "abort"] * 5)]
    cluster.redis.stop()
    first.kill()
    time.sleep(1)
    cluster.redis.start()
    with ThreadPoolExecutor(4) as threads:
        verdicts = list(threads.map(lambda job: end(second, job)["verdict"], jobs))
    assert verdicts == ["passed", "crashed"] * 5
    first.start()
    assert end(first, jobs[0])["verdict"] == "passed"
