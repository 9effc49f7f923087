"""GPU seconds where every API replica counts them: a hash of owners for each day."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis import RedisError

from app.cluster.broker import connect

KEY = "faultbook:spent:{day}"
KEPT = 3 * 86_400
"""Seconds for which a day's hash stays."""


class RedisLedger:
    """OSError while the broker cannot be reached: the quotas then go on from what they last knew."""

    def __init__(self, url: str) -> None:
        self._redis = connect(url)

    def spent(self, owner: str, day: int) -> float:
        """Seconds that the owner has spent on that day."""
        with _told():
            return float(self._redis.hget(KEY.format(day=day), owner) or 0.0)

    def add(self, owner: str, day: int, seconds: float) -> None:
        """Count seconds."""
        key = KEY.format(day=day)
        with _told(), self._redis.pipeline() as pipeline:
            pipeline.hincrbyfloat(key, owner, seconds)
            pipeline.expire(key, KEPT)
            pipeline.execute()


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        raise OSError(f"the broker fails ({type(error).__name__})") from error
