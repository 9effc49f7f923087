"""Requests of one caller, counted by all API replicas together."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import Any

from redis import RedisError
from starlette.concurrency import run_in_threadpool

from app.access.rates import Limiter, Rate, Standing
from app.cluster.broker import connect
from app.cluster.names import PREFIX

PATIENCE = 0.5
"""Seconds that a request waits for Redis to count it."""

PAUSE = 5.0
"""Seconds for which Redis is not asked again after it did not answer."""

KEY = f"{PREFIX}:rate:"
"""+ caller: the time of Redis at which nothing of the rate will be used up any more."""

# One step that no other replica comes between: the algorithm of app.access.rates by the time of Redis.
_COUNT = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local interval, whole = tonumber(ARGV[1]), tonumber(ARGV[2])
local before = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now)
local used = before + interval - now
if used - whole > 1e-6 then
  return {string.format('%.6f', before - now), string.format('%.6f', used - whole)}
end
redis.call('SET', KEYS[1], string.format('%.6f', before + interval), 'PX', math.ceil(used * 1000) + 1)
return {string.format('%.6f', used), '0'}
"""

log = logging.getLogger("faultbook.access")


class SharedLimiter:
    """While Redis does not answer, this replica's own count limits; that is logged, and `alone` is called for
    each request that is counted so.
    """

    def __init__(self, rate: Rate, url: str, alone: Callable[[], None]) -> None:
        self._rate = rate
        self._own = Limiter(rate)
        self._redis: Any = connect(url, patience=PATIENCE)
        self._script = self._redis.register_script(_COUNT)
        self._alone = alone
        self._ask_at = 0.0

    async def count(self, caller: str) -> Standing:
        """Count one request where it is allowed: whom this replica alone refuses, all together would too."""
        own = self._own.take(caller)
        if own.wait:
            return own
        shared = await run_in_threadpool(self._shared, caller) if monotonic() >= self._ask_at else None
        if shared is None:
            self._alone()
            return own
        if shared.wait:
            self._own.give_back(caller)
        return shared

    def _shared(self, caller: str) -> Standing | None:
        """What all replicas have counted; None where Redis does not answer."""
        try:
            used, wait = self._script(
                [KEY + caller], [self._rate.seconds / self._rate.count, self._rate.seconds]
            )
        except RedisError as error:
            if not self._ask_at:
                log.error("each replica limits rates by itself: the broker fails (%s)", type(error).__name__)
            self._ask_at = monotonic() + PAUSE
            return None
        if self._ask_at:
            log.warning("rates are limited over all replicas again")
            self._ask_at = 0.0
        return Standing(self._rate, float(used), float(wait))
