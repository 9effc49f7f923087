"""How many requests one caller may make: a generic cell rate algorithm, one number a caller."""

from __future__ import annotations

import ipaddress
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from time import monotonic
from typing import Protocol

MOST_CALLERS = 50_000
"""Callers whose rates are kept, about 10 MB; of more, those that have been quiet longest are forgotten."""

PERIODS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}
_WRITTEN = re.compile(
    r"(\d{1,9})\s*(?:(?:/|per)\s*(s|sec|second|m|min|minute|h|hour|d|day)s?)?", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Rate:
    """`count` requests in any `seconds`; as many at once, then one each time its share of them is over."""

    count: int
    seconds: int

    @classmethod
    def parse(cls, text: str) -> Rate | None:
        """`600/minute`, `10/s`, `600` (a minute); None for an empty text or 0. ValueError for any other."""
        if not text.strip():
            return None
        found = _WRITTEN.fullmatch(text.strip())
        if found is None:
            raise ValueError("must be a number of requests and a period, such as 600/minute")
        unit = (found[2] or "minute").lower()
        seconds = next(length for name, length in PERIODS.items() if name.startswith(unit[0]))
        return cls(int(found[1]), seconds) if int(found[1]) else None

    def __str__(self) -> str:
        unit = next(name for name, length in PERIODS.items() if length == self.seconds)
        return f"{self.count:,} requests a {unit}"


@dataclass(frozen=True, slots=True)
class Standing:
    """What a caller has left after a request.

    used  seconds until nothing of the rate is used up any more, the request included where it is allowed
    wait  seconds after which a request will be allowed; 0 where this one is
    """

    rate: Rate
    used: float
    wait: float = 0.0

    @property
    def left(self) -> int:
        """Requests that are allowed at once after this one."""
        if self.wait:
            return 0
        return max(0, int((self.rate.seconds - self.used) * self.rate.count / self.rate.seconds + 1e-6))

    @property
    def more(self) -> float:
        """Seconds after which there is one more; 0 where all are there."""
        interval = self.rate.seconds / self.rate.count
        return self.wait or max(0.0, self.used - (self.rate.count - self.left - 1) * interval)

    def fields(self) -> list[tuple[bytes, bytes]]:
        """The header fields of draft-ietf-httpapi-ratelimit-headers that clients know: `RateLimit-Reset` is
        rounded up, as `Retry-After` is.
        """
        policy = f"{self.rate.count};w={self.rate.seconds}"
        return [
            (b"ratelimit-limit", str(self.rate.count).encode()),
            (b"ratelimit-policy", policy.encode()),
            (b"ratelimit-remaining", str(self.left).encode()),
            (b"ratelimit-reset", str(ceil(self.more)).encode()),
        ]


class Limits(Protocol):
    """Counts requests by caller, here or for all replicas."""

    async def count(self, caller: str) -> Standing:
        """Count one request where it is allowed."""


class Limiter:
    """Counts the requests of this replica by caller."""

    def __init__(self, rate: Rate, clock: Callable[[], float] = monotonic) -> None:
        self.rate = rate
        self._clock = clock
        self._interval = rate.seconds / rate.count
        # When each caller will have used up nothing again.
        self._free_at: OrderedDict[str, float] = OrderedDict()

    def take(self, caller: str) -> Standing:
        """Count one request where it is allowed."""
        now = self._clock()
        before = max(self._free_at.get(caller, now), now)
        free_at = before + self._interval
        over = free_at - now - self.rate.seconds
        if over > 1e-9:
            return Standing(self.rate, before - now, over)
        self._free_at[caller] = free_at
        self._free_at.move_to_end(caller)
        if len(self._free_at) > MOST_CALLERS:
            self._free_at.popitem(last=False)
        return Standing(self.rate, free_at - now)

    def give_back(self, caller: str) -> None:
        """Forget one request that was counted and is refused after all."""
        if caller in self._free_at:
            self._free_at[caller] -= self._interval

    async def count(self, caller: str) -> Standing:
        """As `take`."""
        return self.take(caller)


def network_of(address: str) -> str:
    """Whom an address counts as: itself, of IPv6 the /64, in which one host has as many as it likes."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    mapped = parsed.ipv4_mapped
    return str(mapped) if mapped else str(ipaddress.ip_network((int(parsed), 64), strict=False))
