"""A broker that hangs, has no memory left or has lost its data: jobs end or are gone, nothing else waits."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.app.redis_server import RedisServer, server
from tests.app.serving import Service

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(server() is None, reason="no redis-server on this host"),
]


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path_factory.mktemp("redis"))
    yield made
    made.client.close()
    made.stop()


@pytest.fixture(scope="module")
def service(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A replica without any host: it carries out checks itself."""
    made = Service(tmp_path_factory.mktemp("api"), broker_url=redis.url, max_store_bytes="64MiB")
    try:
        made.answers("GET", "/readyz")
        yield made
    finally:
        made.end()


def ask(service: Service, seed: int) -> tuple[int, str]:
    body = {"operation": "per_token_group_quant", "level": "checks", "seed": seed}
    status, answer = service.ask("POST", "/api/diagnose", body, Prefer="respond-async")
    return status, str(answer["location"]).rpartition("/")[2]


def end(service: Service, job: str) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while (found := service.answers("GET", f"/api/diagnoses/{job}"))[0] == 202:
        assert time.monotonic() < deadline, service.log.read_text()[-2000:]
        time.sleep(0.1)
    assert found[0] == 200, found
    assert [kind for kind, _ in service.steps(job)].count("done") == 1
    return dict(found[1])


def test_a_broker_that_hangs_holds_up_jobs_and_nothing_else(redis: RedisServer, service: Service) -> None:
    """It takes connections and does not answer: each call waits for seconds."""
    jobs = [ask(service, number) for number in range(10)]
    os.kill(redis.process.pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(40) as threads:
            waiting = [threads.submit(ask, service, 100 + number) for number in range(40)]
            slowest, hung = 0.0, time.monotonic()
            while time.monotonic() < hung + 12:
                began = time.monotonic()
                assert service.ask("GET", "/api/search?q=scale")[0] == 200
                body = {"operation": "per_token_group_quant", "level": "checks"}
                assert service.ask("POST", "/api/diagnose", body)[0] == 200
                assert service.ask("POST", "/api/match", {"text": "ValueError: x\n" * 2000})[0] == 200
                slowest = max(slowest, time.monotonic() - began)
            os.kill(redis.process.pid, signal.SIGCONT)
            told = [future.result() for future in waiting]
    finally:
        os.kill(redis.process.pid, signal.SIGCONT)
    assert slowest < 5
    assert {status for status, _ in told} <= {202, 503}
    accepted = [job for status, job in (*jobs, *told) if status == 202]
    assert len(accepted) >= 10
    assert {end(service, job)["verdict"] for job in accepted} == {"passed"}


def test_a_broker_without_memory_refuses_jobs_and_loses_none(redis: RedisServer, service: Service) -> None:
    jobs = [ask(service, 200 + number)[1] for number in range(10)]
    redis.client.config_set("maxmemory", "1mb")
    try:
        deadline = time.monotonic() + 30
        while ask(service, 300)[0] == 202:
            assert time.monotonic() < deadline
        assert service.ask("GET", "/api/search?q=scale")[0] == 200
        time.sleep(1)
    finally:
        redis.client.config_set("maxmemory", "0")
    assert {end(service, job)["verdict"] for job in jobs} == {"passed"}


def test_a_broker_that_has_lost_its_data_knows_no_job_and_takes_new_ones(
    redis: RedisServer, service: Service
) -> None:
    jobs = [ask(service, 400 + number)[1] for number in range(5)]
    redis.client.flushall()
    assert {service.answers("GET", f"/api/diagnoses/{job}")[0] for job in jobs} <= {404}
    deadline = time.monotonic() + 60
    while (told := ask(service, 500))[0] != 202:
        assert time.monotonic() < deadline
    assert end(service, told[1])["verdict"] == "passed"
