"""GPU seconds where every API replica counts them: a hash of owners for each day."""

from __future__ import annotations

import logging

from redis import RedisError

from app.cluster.broker import connect

KEY = "faultbook:spent:{day}"
KEPT = 3 * 86_400
"""Seconds for which a day's hash stays."""

log = logging.getLogger("faultbook.access")


class RedisLedger:
    """While the broker cannot be reached nothing counts as spent, and no run can be handed over either."""

    def __init__(self, url: str) -> None:
        self._redis = connect(url)

    def spent(self, owner: str, day: int) -> float:
        """Seconds that the owner has spent on that day."""
        try:
            found = self._redis.hget(KEY.format(day=day), owner)
        except RedisError as error:
            log.error("quotas cannot be read: %s", type(error).__name__)
            return 0.0
        return float(found or 0.0)

    def add(self, owner: str, day: int, seconds: float) -> None:
        """Count seconds."""
        key = KEY.format(day=day)
        try:
            with self._redis.pipeline() as pipeline:
                pipeline.hincrbyfloat(key, owner, seconds)
                pipeline.expire(key, KEPT)
                pipeline.execute()
        except RedisError as error:
            log.error("%.1f seconds of a run were not counted: %s", seconds, type(error).__name__)
