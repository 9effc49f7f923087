"""A pool of warm worker processes. A job that crashes or overruns ends its own process and no other."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from importlib.util import find_spec
from typing import Any

from pebble import ProcessExpired, ProcessPool

from app.settings import Settings
from app.worker import process
from app.worker.messages import Job, Outcome, Worker

log = logging.getLogger("faultbook.worker")

WAITING_PER_WORKER = 8
"""Jobs that may wait for each worker; beyond, the service says that it is busy."""

START_LIMIT = 120.0
"""Seconds a worker may take to import torch, correct the interpreter and pass its self-test."""

BASE_MEMORY = 6 << 30
"""Address space of a CPU worker before any tensor, bytes: torch and triton map about 4 GiB of it."""

COPIES = 8
"""Times a call's tensors may be held at once: kernel's and reference's inputs, and the comparison in
float64.
"""


class PoolBusy(Exception):
    """Every worker has as many jobs waiting as it may."""


class _PoolLost(Exception):
    """The pool has no processes any more and takes no jobs."""


class WorkerPool:
    """Runs jobs in `settings.workers` processes; `start` warms them in the background."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pool: ProcessPool | None = None
        self._starting: asyncio.Task[None] | None = None
        self._hello: Future[Any] | None = None
        self._waiting = 0
        self.worker: Worker | None = None
        self.failure = ""

    @staticmethod
    def installed() -> bool:
        """Whether this environment can run operations at all."""
        return find_spec("torch") is not None and find_spec("triton") is not None

    @property
    def exists(self) -> bool:
        """Whether level `run` is offered; a worker that is still starting, or failed to, exists."""
        return self._settings.workers > 0 and self.installed()

    def start(self) -> None:
        """Start the processes in the background: the fork server's import of torch takes seconds."""
        if self.exists:
            self._starting = asyncio.create_task(asyncio.to_thread(self._launch))

    def _launch(self) -> None:
        """Start the processes and ask the first one who it is."""
        self.failure = ""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["app.worker.preload"])
        memory = BASE_MEMORY + COPIES * int(self._settings.max_tensor_bytes)
        self._pool = ProcessPool(
            max_workers=self._settings.workers,
            initializer=process.initialise,
            initargs=(self._settings.device, memory),
            context=context,
        )
        self._hello = self._schedule(process.hello, START_LIMIT)
        self._hello.add_done_callback(self._greeted)

    async def introduced(self) -> None:
        """Wait until `worker` is known, or its start has failed; at once where nothing was started."""
        if self.worker is not None or self._starting is None:
            return
        await asyncio.shield(self._starting)
        if self._hello is not None:
            done, _ = await asyncio.wait([asyncio.wrap_future(self._hello)])
            for answer in done:
                answer.exception()  # `failure` tells of it

    async def stop(self) -> None:
        """End the processes; running jobs are killed."""
        if self._starting is not None:
            await self._starting
            await asyncio.to_thread(self._end)

    def _end(self) -> None:
        if self._pool is not None:
            self._pool.stop()  # type: ignore[no-untyped-call]
            self._pool.join()
            self._pool = None

    async def run(self, job: Job) -> Outcome:
        """Run one job; raises PoolBusy instead of queueing without end."""
        if self._starting is None:
            raise PoolBusy("the worker was not started")
        if self._waiting >= self._settings.workers * (1 + WAITING_PER_WORKER):
            raise PoolBusy("every worker is busy")
        if self.failure:
            raise PoolBusy(f"the worker did not start: {self.failure}")
        self._waiting += 1
        try:
            await asyncio.shield(self._starting)
            outcome: Outcome = await self._outcome(job)
        except FutureTimeout:
            limit = self._settings.run_timeout
            return Outcome("timed-out", detail=f"the run took longer than {limit:g} s and was ended")
        except _PoolLost:
            self._relaunch()
            raise PoolBusy("the workers were lost and are starting again") from None
        except process.Unprepared as error:
            raise PoolBusy(f"the worker did not start: {error}") from None
        except ProcessExpired as error:
            return Outcome("crashed", detail=_how_it_ended(error.exitcode))
        finally:
            self._waiting -= 1
        return outcome

    async def _outcome(self, job: Job) -> Outcome:
        try:
            future = self._schedule(process.run, self._settings.run_timeout, job)
        except RuntimeError as error:  # pebble's word for a pool that it has given up
            raise _PoolLost from error
        try:
            outcome: Outcome = await asyncio.wrap_future(future)
        except BrokenProcessPool as error:
            raise _PoolLost from error
        return outcome

    def _relaunch(self) -> None:
        """Start over: a worker died between jobs, killed from outside, and pebble gave the whole pool up.

        Of several jobs that notice, the first one starts it.
        """
        if self._starting is None or self._starting.done():
            self.worker = None
            self._starting = asyncio.create_task(asyncio.to_thread(self._restart))

    def _restart(self) -> None:
        self._end()
        self._launch()

    def _schedule(self, function: Callable[..., Any], limit: float, *args: Any) -> Future[Any]:
        assert self._pool is not None
        future: Future[Any] = self._pool.schedule(function, args=args, timeout=limit)
        return future

    def _greeted(self, future: Future[Any]) -> None:
        try:
            self.worker = future.result()
        except Exception as error:  # noqa: BLE001 (reported by /readyz, and by every run)
            self.failure = str(error) or type(error).__name__
            log.error("no worker: %s", self.failure)


def _how_it_ended(exitcode: int | None) -> str:
    if exitcode == process.CONTEXT_LOST:
        return "the run broke the CUDA context (an illegal or misaligned access); the worker was replaced"
    if exitcode is not None and exitcode < 0:
        return f"the run ended its process with signal {-exitcode}; the worker was replaced"
    return f"the run ended its process with status {exitcode}; the worker was replaced"
