"""One worker process, and the next one whenever a job has ended it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing.context import BaseContext
from typing import Any, ClassVar

from pebble import ProcessExpired, ProcessPool

from app.worker import process
from app.worker.groups import Groups
from app.worker.messages import Job, Outcome, Worker

log = logging.getLogger("faultbook.worker")

START_LIMIT = 120.0
"""Seconds a worker may take to import torch, correct the interpreter and pass its self-test."""

GRACE = 10.0
"""Seconds beyond its limit after which a run is given up whose process the pool could not end."""

TRIES = 2
"""Times a job is handed over whose worker went before it said that it had begun."""


class Lost(Exception):
    """The process is gone and with it what it was to say; the job may not have begun."""


class Slot:
    """A place for one worker process.

    It is a pebble pool of one: a process that is killed while it holds the pool's own locks, or between jobs,
    costs pebble the whole pool, and here that is this process alone.
    """

    entry: ClassVar[Callable[[Job], Outcome]] = staticmethod(process.run)
    """What a worker calls with a job."""

    def __init__(self, context: BaseContext, place: process.Place, run_limit: float) -> None:
        self._context = context
        self._groups = Groups()
        self._place = replace(place, groups=self._groups.folder)
        self._run_limit = run_limit
        self._pool: ProcessPool | None = None
        self.replaced = 0

    def launch(self) -> Worker:
        """Start the process and wait until it says who it is; raises process.Unprepared or Lost."""
        self._open()
        return self._greet()

    def _open(self) -> None:
        self._pool = ProcessPool(
            max_workers=1,
            initializer=process.initialise,
            initargs=(self._place,),
            context=self._context,
        )

    def _greet(self) -> Worker:
        try:
            worker: Worker = self._schedule(process.hello, START_LIMIT).result(START_LIMIT + GRACE)
        except (BrokenProcessPool, ProcessExpired) as error:
            raise Lost(str(error) or type(error).__name__) from error
        except FutureTimeout:
            raise Lost(f"it did not start within {START_LIMIT:g} s") from None
        return worker

    def close(self) -> None:
        """End the process, the run that it is at, and what that has started."""
        self._close()
        self._groups.close()

    def _close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()  # type: ignore[no-untyped-call]
            pool.join()

    def processes(self) -> tuple[int, ...]:
        """Ids of the process; none while it is being replaced."""
        return () if self._pool is None else tuple(self._pool._pool_manager.worker_manager.workers)

    async def run(self, job: Job) -> Outcome:
        """Run one job; cancelled, it ends the process that runs it."""
        for _ in range(TRIES):
            try:
                outcome = await self._outcome(job)
                self._groups.end_lost()
                return outcome
            except Lost as error:
                log.warning("a worker was lost (%s) and is started again", error)
                self.replaced += 1
                await asyncio.shield(asyncio.to_thread(self._reopen))
        return Outcome(
            "crashed", detail="the worker ended each time before it said that it had begun the run"
        )

    async def _outcome(self, job: Job) -> Outcome:
        limit = self._run_limit
        try:
            future = self._schedule(type(self).entry, limit, job)
        except RuntimeError as error:  # pebble's word for a pool that it has given up
            raise Lost("between jobs") from error
        try:
            outcome: Outcome = await self._answer(future, limit)
        except FutureTimeout:
            self.replaced += 1
            return Outcome("timed-out", detail=f"the run took longer than {limit:g} s and was ended")
        except ProcessExpired as error:
            self.replaced += 1
            return Outcome("crashed", detail=_how_it_ended(error.exitcode))
        except (BrokenProcessPool, FutureCancelled) as error:
            raise Lost("before it said that it had begun") from error
        return outcome

    async def _answer(self, future: Future[Any], limit: float) -> Outcome:
        """Wait for the job's end; Lost where the pool itself has stopped telling."""
        answer = asyncio.wrap_future(future)
        # The limit counts from the start of the run, which a replaced process delays.
        done, _ = await _cancelling(answer, START_LIMIT + limit + GRACE)
        if not done:
            answer.cancel()
            raise Lost("without a word")
        outcome: Outcome = answer.result()
        return outcome

    def _reopen(self) -> None:
        self._close()
        self._open()

    def _schedule(self, function: Callable[..., Any], limit: float, *args: Any) -> Future[Any]:
        if self._pool is None:
            raise RuntimeError("closed")
        future: Future[Any] = self._pool.schedule(function, args=args, timeout=limit)
        return future


async def _cancelling(answer: asyncio.Future[Any], limit: float) -> tuple[set[Any], set[Any]]:
    """Wait like asyncio.wait, and cancel the answer when the waiting is cancelled: that ends its process."""
    try:
        return await asyncio.wait([answer], timeout=limit)
    except asyncio.CancelledError:
        answer.cancel()
        raise


def _how_it_ended(exitcode: int | None) -> str:
    if exitcode == process.CONTEXT_LOST:
        return "the run broke the CUDA context (an illegal or misaligned access); the worker was replaced"
    if exitcode is not None and exitcode < 0:
        return f"the run ended its process with signal {-exitcode}; the worker was replaced"
    return f"the run ended its process with status {exitcode}; the worker was replaced"
