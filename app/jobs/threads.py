"""Threads that wait for the store, apart from those of the service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import ParamSpec, TypeVar

from app.errors import Unavailable
from app.jobs.store import StoreUnavailable

log = logging.getLogger("faultbook.jobs")

MOST = 16
"""Threads that write, and as many that read."""

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """Where the store does not answer, or another process writes, all else goes on."""

    def __init__(self) -> None:
        self._writers = ThreadPoolExecutor(MOST, "writes jobs")
        self._readers = ThreadPoolExecutor(MOST, "reads jobs")

    def close(self) -> None:
        """Take no more calls."""
        for threads in (self._writers, self._readers):
            threads.shutdown(wait=False)

    async def write(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A call of the store that changes it."""
        return await _within(self._writers, partial(call, *args, **kwargs))

    async def read(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A call of the store that does not."""
        return await _within(self._readers, partial(call, *args, **kwargs))


async def _within(threads: ThreadPoolExecutor, call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, call)


@contextmanager
def reached() -> Iterator[None]:
    """Of a request: Unavailable where the store cannot be reached."""
    try:
        yield
    except StoreUnavailable as error:
        log.error("the store of jobs: %s", error)
        raise Unavailable("The store of jobs cannot be reached now.") from None
