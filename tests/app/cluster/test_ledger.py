"""GPU seconds are counted by all replicas together."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.access.caller import Caller
from app.access.quotas import Quotas, open_ledger
from app.errors import TooManyRequests
from tests.app.redis_server import RedisServer, server

pytestmark = pytest.mark.skipif(server() is None, reason="no Redis server for this machine")


def test_replicas_count_together_and_an_outage_forgets_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    redis = RedisServer(tmp_path / "redis")
    try:
        first, second = (
            Quotas(lambda: open_ledger(tmp_path, redis.url), lambda: 1_000_000.0) for _ in range(2)
        )
        alice = Caller("alice", gpu_seconds=5.0)
        first.charge("alice", 3.0)
        second.admit(alice)
        second.charge("alice", 3.0)
        for one in (first, second):
            with pytest.raises(TooManyRequests, match=r"used 6\.0 of its 5"):
                one.admit(alice)
        (key,) = redis.client.keys("faultbook:spent:*")
        assert 0 < redis.client.ttl(key) <= 3 * 86_400
    finally:
        redis.stop()
    with pytest.raises(TooManyRequests, match=r"used 6\.0 of its 5"):
        first.admit(alice)
    bob = Caller("bob", gpu_seconds=2.0)
    first.admit(bob)
    first.charge("bob", 3.0)
    with pytest.raises(TooManyRequests, match=r"used 3\.0 of its 2"):
        first.admit(bob)
    assert "quotas cannot be read" in caplog.text
    assert "cannot be written" in caplog.text
