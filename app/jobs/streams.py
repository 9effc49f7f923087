"""Places for clients that read events as they come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from app.errors import Unavailable

MOST_STREAMS = 256
"""Streams of events that one service keeps open."""

SHARE = 4
"""Part of them, and of the jobs that may be open, that one key may have: a fourth."""


class Streams:
    """The streams of one service."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @contextmanager
    def place(self, owner: str) -> Iterator[None]:
        """A stream of events that `owner` reads; Unavailable where too many are open."""
        share = MOST_STREAMS // SHARE
        if self._open.total() >= MOST_STREAMS or (owner and self._open[owner] >= share):
            raise Unavailable(
                f"{MOST_STREAMS} streams of events are open already, or {share} of this key.", retry_after=5
            )
        self._open[owner] += 1
        try:
            yield
        finally:
            self._open[owner] -= 1
