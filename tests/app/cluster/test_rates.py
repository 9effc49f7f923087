"""Rates hold over all replicas, and over each by itself while Redis is away."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app.access.rates import Rate
from app.cluster import rates
from app.cluster.rates import SharedLimiter
from app.main import create_app
from app.settings import Settings
from tests.app.redis_server import RedisServer, server

pytestmark = pytest.mark.skipif(server() is None, reason="no Redis server for this machine")


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path / "redis")
    yield made
    made.stop()


def test_replicas_count_together(redis: RedisServer) -> None:
    alone: list[None] = []
    first, second = (SharedLimiter(Rate(4, 60), redis.url, lambda: alone.append(None)) for _ in "ab")

    async def go() -> None:
        left = [(await limiter.count("alice")).left for limiter in (first, second, first, second)]
        assert left == [3, 2, 1, 0]
        for limiter in (first, second, first):
            assert (await limiter.count("alice")).wait == pytest.approx(15, abs=3)
        assert (await second.count("bob")).wait == 0

    asyncio.run(go())
    assert not alone
    for key in redis.client.keys("faultbook:rate:*"):
        assert 0 < redis.client.pttl(key) <= 60_001


def test_an_outage_leaves_each_its_own_limit(
    redis: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone: list[None] = []
    limiter = SharedLimiter(Rate(3, 60), redis.url, lambda: alone.append(None))

    async def waits(times: int) -> list[bool]:
        return [bool((await limiter.count("alice")).wait) for _ in range(times)]

    assert asyncio.run(waits(2)) == [False, False]
    redis.stop()
    assert asyncio.run(waits(3)) == [False, True, True]
    assert len(alone) == 1
    assert caplog.text.count("each replica limits rates by itself") == 1
    redis.start()
    monkeypatch.setattr(rates, "PAUSE", 0.0)
    limiter._ask_at = 1e-9
    assert not asyncio.run(limiter.count("bob")).wait
    assert len(alone) == 1
    assert "over all replicas again" in caplog.text


def test_answers_of_two_replicas_say_what_is_left_of_both(redis: RedisServer, tmp_path: Path) -> None:
    settings = Settings(rate_limit="3/minute", broker_url=redis.url, data=tmp_path)
    one, other = (TestClient(create_app(settings, routers=[])) for _ in range(2))
    told = [replica.get("/llms.txt") for replica in (one, other, one, other)]
    assert [answer.status_code for answer in told] == [200, 200, 200, 429]
    assert [answer.headers["ratelimit-remaining"] for answer in told] == ["2", "1", "0", "0"]
    assert told[3].headers["ratelimit-limit"] == "3"
    assert told[3].headers["ratelimit-reset"] == told[3].headers["retry-after"]
    redis.stop()
    assert one.get("/llms.txt").status_code == 200
    assert one.get("/llms.txt").status_code == 429
    assert "faultbook_rate_limit_fallbacks_total 1.0" in one.get("/metrics").text
