"""Which host's worker a call is for, and what is said where there is none."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.cluster import names, pool
from app.cluster.broker import broker_time
from app.cluster.node import Node
from app.cluster.pool import ClusterPool
from app.cluster.wire import outcome_json, queue_of, read_outcome, worker_json
from app.main import create_app
from app.settings import Settings
from app.worker.messages import Device, Environment, Job, Outcome, Worker
from app.worker.pool import PoolBusy, WorkerPool
from kernels.per_token_group_quant.signature import VALID
from kernels.target import Target
from tests.app.redis_server import RedisServer, server

CPU, H200, B200, MI300 = (
    Worker(Device(name, capability, False), Environment("2.11", "3.6"))
    for name, capability in (("cpu", None), ("H200", "9.0"), ("B200", "10.0"), ("MI300X", "gfx942"))
)
JOB = Job("per_token_group_quant", VALID)

Body = Callable[[ClusterPool], Awaitable[Any]]


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    if server() is None:
        pytest.skip("no redis-server on this host")
    made = RedisServer(tmp_path_factory.mktemp("redis"))
    yield made
    made.client.close()
    made.stop()


@pytest.fixture(autouse=True)
def empty(redis: RedisServer) -> None:
    redis.client.flushall()


def join(redis: RedisServer, *workers: Worker, ago: float = 0.0) -> None:
    """Let hosts of these workers be seen so many seconds ago."""
    for worker in workers:
        queue = queue_of(worker)
        redis.client.hset(names.KINDS, queue, worker_json(worker))
        redis.client.zadd(names.SEEN, {f"{queue}:{worker.device.name}": broker_time(redis.client) - ago})


def within(redis: RedisServer, body: Body) -> Any:
    """What `body` returns of a started pool."""

    async def go() -> Any:
        made = ClusterPool(Settings(run_timeout=5), redis.url)
        made.start()
        try:
            await made.introduced()
            return await body(made)
        finally:
            await made.stop()

    return asyncio.run(go())


@pytest.mark.parametrize(
    ("device", "target", "chosen"),
    [
        ("auto", None, B200),
        ("cuda", None, B200),
        ("cpu", None, CPU),
        ("auto", "sm90", H200),
        ("auto", "sm90a", H200),
        ("auto", "gfx942", MI300),
        ("auto", "sm120", B200),
    ],
)
def test_a_call_goes_to_its_architecture(
    redis: RedisServer, device: str, target: str | None, chosen: Worker
) -> None:
    join(redis, CPU, H200, B200, MI300)

    async def body(made: ClusterPool) -> Worker | None:
        return made.choose(device, None if target is None else Target.parse(target))

    assert within(redis, body) == chosen


def test_a_host_that_is_there_comes_before_one_that_was(redis: RedisServer) -> None:
    join(redis, CPU)
    join(redis, H200, ago=60)
    join(redis, B200, ago=2 * names.KNOWN)

    async def body(made: ClusterPool) -> tuple[list[Worker], Worker | None, dict[str, int]]:
        return list(made.workers), made.choose("auto", None), made.alive

    assert within(redis, body) == ([CPU, H200], CPU, {"cpu": 1})


def test_without_any_host_there_is_none(redis: RedisServer) -> None:
    async def body(made: ClusterPool) -> bool:
        with pytest.raises(PoolBusy, match="no worker has joined"):
            await made.run(JOB, made.choose("auto", None))
        return made.exists

    assert within(redis, body) is False


def test_a_run_waits_for_hosts_that_may_join(redis: RedisServer, tmp_path: Path) -> None:
    settings = Settings(broker_url=redis.url, data=tmp_path)
    body = {"operation": "per_token_group_quant", "arguments": {}, "level": "run"}
    with TestClient(create_app(settings)) as client:
        answer = client.post("/api/diagnose", json=body)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert "no worker has joined" in answer.json()["detail"]
        elsewhere = client.post("/api/diagnose", json={**body, "target": "sm90"})
        assert (elsewhere.status_code, elsewhere.json()["verdict"]) == (200, "unsupported")
        assert client.post("/api/diagnose", json={**body, "level": "checks"}).json()["verdict"] == "passed"
        accepted = client.post("/api/diagnose", json=body, headers={"Prefer": "respond-async"})
        assert accepted.status_code == 202
        part = client.get("/readyz").json()["parts"]["worker"]
        assert part["detail"].startswith("no worker has joined")
        told = client.get("/metrics").text
        states = re.findall(r'faultbook_open_jobs{state="(\w+)"} (\d)', told)
        assert sum(int(number) for _, number in states) == 1
        assert [state for state, _ in states] == ["queued", "running"]


def test_what_hosts_count_is_told_by_every_replica(redis: RedisServer) -> None:
    redis.client.hset(names.COUNTS, mapping={names.RESTARTS: 3, f"{names.XID}31": 2})

    async def body(made: ClusterPool) -> tuple[int, Any]:
        return made.replaced, made.xids

    assert within(redis, body) == (3, {31: 2})


def test_a_host_that_is_away_and_a_full_queue_are_busy(redis: RedisServer) -> None:
    join(redis, H200, ago=60)

    async def away(made: ClusterPool) -> None:
        with pytest.raises(PoolBusy, match="no host of sm90"):
            await made.run(JOB, H200)

    within(redis, away)
    join(redis, H200)
    redis.client.rpush(names.queue_key("sm90"), *range(8))

    async def full(made: ClusterPool) -> None:
        with pytest.raises(PoolBusy, match="every worker of sm90 is busy"):
            await made.run(JOB, H200)

    within(redis, full)


def test_hosts_that_vanish_are_told_to_whoever_waits(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "BEAT", 0.2)
    monkeypatch.setattr(pool, "MISSED", 0.5)
    join(redis, H200)

    async def body(made: ClusterPool) -> None:
        running = asyncio.create_task(made.run(JOB, H200))
        await asyncio.sleep(0.3)
        redis.client.delete(names.SEEN)
        with pytest.raises(PoolBusy, match="the hosts of sm90 are gone"):
            await running

    within(redis, body)
    assert redis.client.keys(names.cancel_key("*"))


def test_a_host_that_vanished_is_paid_for_until_it_was_last_seen(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a call that takes its host with it would cost nothing, as often as it is asked."""
    monkeypatch.setattr(pool, "BEAT", 0.2)
    monkeypatch.setattr(pool, "MISSED", 0.5)
    join(redis, H200)
    spent: list[float] = []

    async def body(made: ClusterPool) -> float:
        running = asyncio.create_task(made.run(JOB, H200, spent.append))
        await asyncio.sleep(0.3)
        [run] = made._waiting
        now = broker_time(redis.client)
        began = {names.NODE: "gone", names.BEGAN: now - 100, names.LOST: 7.0}
        redis.client.hset(names.holder_key(run), mapping=began)
        redis.client.delete(names.SEEN)
        redis.client.zadd(names.SEEN, {"sm90:gone": now - 60})
        with pytest.raises(PoolBusy, match="the hosts of sm90 are gone"):
            await running
        return made.seconds

    assert within(redis, body) == pytest.approx(47.0, abs=0.1)
    assert spent == [pytest.approx(47.0, abs=0.1)]


def test_a_host_that_gets_a_vanished_host_s_run_tells_its_seconds_too(redis: RedisServer) -> None:
    node = Node(Settings(run_timeout=5), redis.url)
    node._queue = "sm90"
    key, now = names.holder_key("a"), broker_time(redis.client)

    def vanishes(name: str, after: float) -> None:
        redis.client.hset(key, mapping={names.NODE: name, names.BEGAN: now - 100})
        redis.client.zadd(names.SEEN, {f"sm90:{name}": now - 100 + after})

    assert not node._is_settled("a")
    node._write("a", Outcome("returned", seconds=2.0))
    assert read_outcome(redis.client.get(names.outcome_key("a"))).seconds == 2.0, "nobody had it before"
    redis.client.delete(names.outcome_key("a"))
    vanishes("first", 12.0)
    assert not node._is_settled("a")
    vanishes("second", 30.0)
    assert node._is_settled("a"), "a third is spared"
    outcome = read_outcome(redis.client.get(names.outcome_key("a")))
    assert (outcome.ending, outcome.seconds) == ("crashed", pytest.approx(42.0, abs=0.1))


def test_a_host_that_gave_its_run_back_is_not_paid_for(redis: RedisServer) -> None:
    node = Node(Settings(run_timeout=5), redis.url)
    assert not node._is_settled("a")
    redis.client.hincrby(names.holder_key("a"), names.DELIVERIES, -1)
    assert not node._is_settled("a")
    assert redis.client.hget(names.holder_key("a"), names.LOST) is None


def test_a_key_has_as_many_places_as_with_workers_of_the_service_s_own(redis: RedisServer) -> None:
    join(redis, CPU, H200, B200)

    async def body(made: ClusterPool) -> int:
        return made.places

    assert within(redis, body) == 3
    redis.client.flushall()
    assert within(redis, body) == 1
    assert WorkerPool(Settings(workers=2)).places == 2


def test_a_run_that_is_cancelled_is_paid_for_from_its_beginning(redis: RedisServer) -> None:
    join(redis, H200)
    spent: list[float] = []

    async def cancelled(made: ClusterPool, ago: float | None) -> None:
        running = asyncio.ensure_future(made.run(JOB, H200, spent.append))
        await asyncio.sleep(0.5)
        [run] = made._waiting
        if ago is not None:
            began = broker_time(redis.client) - ago
            redis.client.hset(names.holder_key(run), mapping={"node": "x", names.BEGAN: began})
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert redis.client.exists(names.cancel_key(run))

    within(redis, lambda made: cancelled(made, 30.0))
    within(redis, lambda made: cancelled(made, None))
    assert spent == [pytest.approx(30.0, abs=5.0), 0.0]


def test_a_run_waits_until_a_host_has_begun_it(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "BEAT", 0.2)
    join(redis, H200)

    async def body(made: ClusterPool) -> list[int]:
        running = [asyncio.create_task(made.run(JOB, H200)) for _ in range(2)]
        await asyncio.sleep(0.5)
        seen = [made.waiting]
        for run in list(made._waiting):
            redis.client.hset(names.holder_key(run), mapping={"node": "x", names.BEGAN: 1.0})
            await asyncio.sleep(0.5)
            seen.append(made.waiting)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        return [*seen, made.waiting]

    assert within(redis, body) == [2, 1, 0, 0]


def test_an_outcome_of_another_version_is_no_silence(redis: RedisServer) -> None:
    join(redis, H200)

    async def answered(text: str) -> Outcome:
        made = ClusterPool(Settings(run_timeout=5), redis.url)
        made.start()
        await made.introduced()
        running = asyncio.create_task(made.run(JOB, H200))
        await asyncio.sleep(0.2)
        redis.client.set(names.outcome_key(next(iter(made._waiting))), text)
        try:
            return await running
        finally:
            await made.stop()

    assert asyncio.run(answered(outcome_json(Outcome("crashed")))).ending == "crashed"
    told = asyncio.run(answered('{"ending": "of tomorrow"}'))
    assert told.ending == "unsupported"
    assert "version" in told.detail


def test_a_broker_that_is_away_is_said() -> None:
    async def go() -> bool:
        made = ClusterPool(Settings(), "redis://127.0.0.1:1/0")
        made.start()
        await made.introduced()
        with pytest.raises(PoolBusy, match="cannot be reached"):
            await made.run(JOB, H200)
        with pytest.raises(PoolBusy, match="cannot be reached"):
            await made.run(JOB, made.choose("auto", None))
        await made.stop()
        return made.exists

    assert asyncio.run(go()), "a run is refused for now, not for good"


def test_a_broker_that_is_away_is_told_by_readyz_until_it_is_back(redis: RedisServer, tmp_path: Path) -> None:
    def jobs(client: TestClient, ready: bool) -> str:
        """What is said of them, once it is so: a replica asks the broker for jobs all the time."""
        deadline = time.monotonic() + 20
        while True:
            answer = client.get("/readyz")
            assert answer.status_code == 200, "look-ups and checks go on"
            part = answer.json()["parts"]["jobs"]
            if part["ready"] is ready:
                return str(part["detail"])
            assert time.monotonic() < deadline, part
            time.sleep(0.1)

    with TestClient(create_app(Settings(broker_url=redis.url, data=tmp_path))) as client:
        assert jobs(client, ready=True) == "kept across restarts"
        redis.stop()
        try:
            assert jobs(client, ready=False).startswith("the broker does not answer")
        finally:
            redis.start()
        assert jobs(client, ready=True) == "kept across restarts"


def test_a_broker_that_goes_away_while_a_run_is_handed_over_is_said(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look may be older than the outage: the run is sent all the same, and is nobody's mistake."""
    join(redis, CPU)

    async def body(made: ClusterPool) -> None:
        gone = ClusterPool(Settings(run_timeout=5), "redis://127.0.0.1:9/0")
        monkeypatch.setattr(made, "_celery", gone._celery)
        with pytest.raises(PoolBusy, match="the broker cannot be reached"):
            await made.run(JOB, CPU)

    within(redis, body)
