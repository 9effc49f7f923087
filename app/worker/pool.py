"""A pool of warm worker processes. A job that crashes or overruns ends its own process and no other."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Protocol

from app.http.text import without_places
from app.settings import Settings
from app.worker import process, safety
from app.worker.messages import Job, Outcome, Worker
from app.worker.slot import Slot
from app.worker.xid import Watch
from kernels.target import Target

log = logging.getLogger("faultbook.worker")

WAITING_PER_WORKER = 8
"""Jobs that may wait for each worker; beyond, the service says that it is busy."""

BASE_MEMORY = 6 << 30
"""Address space of a CPU worker before any tensor, bytes: torch and triton map about 4 GiB of it."""

COPIES = 8
"""Times a call's tensors may be held at once: kernel's and reference's inputs, and the comparison in
float64.
"""

GPU_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""What a host with a GPU's driver has, on NVIDIA's and AMD's and in a Windows guest."""

STARTED_FROM = ("app.cli", "app.main")
"""What the service's main module imports: multiprocessing runs that module again in each new process."""


XID_DELAY = 0.3
"""Seconds after a crash until the driver's word of it has arrived."""


Spent = Callable[[float], None]


def uncounted(_seconds: float) -> None:
    """Nobody asks how long a run had a worker."""


class PoolBusy(Exception):
    """No run now; the message says why."""


class PoolFull(PoolBusy):
    """Every worker has as many jobs waiting as it may."""


class Runs(Protocol):
    """Where calls are run: in this service's own processes, or on hosts that have joined it.

    failure   why nothing can be run now, where that is known
    joins     whether workers may still come while this goes on
    absence   what there is to do where nothing ever could
    seconds   for which jobs have had a worker, all together
    """

    failure: str
    joins: bool
    absence: str
    seconds: float

    @property
    def exists(self) -> bool:
        """Whether level `run` is offered; a worker that is still starting, or failed to, exists."""

    @property
    def workers(self) -> Sequence[Worker]:
        """One of each kind of worker that is known."""

    @property
    def places(self) -> int:
        """Worker processes that there are, as far as it is known; 1 at least."""

    @property
    def waiting(self) -> int:
        """Jobs that wait for a worker."""

    @property
    def replaced(self) -> int:
        """Processes that ended other than by being stopped with the service."""

    @property
    def xids(self) -> Mapping[int, int]:
        """Errors that the driver has reported since the start: Xid → how often."""

    def start(self) -> None:
        """Start, or find, the workers in the background."""

    async def stop(self) -> None:
        """End what was started."""

    async def introduced(self) -> None:
        """Wait until it is known who the workers are, as far as it can be."""

    def choose(self, device: str, target: Target | None) -> Worker | None:
        """Who would run a call for `target` on `device` (auto, cpu or cuda); None while nobody is known."""

    async def run(self, job: Job, worker: Worker | None = None, spent: Spent = uncounted) -> Outcome:
        """Run one job on such a worker; raises PoolBusy where that cannot be now. `spent` is told once for
        how many seconds it had a worker, also where it was cancelled.
        """


class WorkerPool:
    """Runs jobs in `settings.workers` processes; `start` warms them in the background.

    worker    who the workers are, once one has started
    failure   why none has, where that is so
    seconds   for which jobs have had a worker, all together
    """

    joins = False
    absence = "this service has no worker: install torch and triton, or set FAULTBOOK_WORKERS"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._starting: asyncio.Task[None] | None = None
        self._slots: list[Slot] = []
        self._free: deque[Slot] = deque()
        self._waiting: deque[asyncio.Future[Slot]] = deque()
        self._size = settings.workers
        self.worker: Worker | None = None
        self.failure = ""
        self.seconds = 0.0
        self._watch: Watch | None = None

    @staticmethod
    @cache
    def installed() -> bool:
        """Whether this environment can run operations at all."""
        return find_spec("torch") is not None and find_spec("triton") is not None

    @property
    def exists(self) -> bool:
        """Whether level `run` is offered; a worker that is still starting, or failed to, exists."""
        return self._settings.workers > 0 and self.installed()

    @property
    def workers(self) -> list[Worker]:
        """They are all alike."""
        return [] if self.worker is None else [self.worker]

    @property
    def places(self) -> int:
        """Worker processes that there are to be."""
        return max(self._size, 1)

    def choose(self, device: str, target: Target | None) -> Worker | None:
        """They are all alike: whether they suit the call is for whoever asks."""
        return self.worker

    @property
    def waiting(self) -> int:
        """Jobs that wait for a worker."""
        return len(self._waiting)

    @property
    def replaced(self) -> int:
        """Processes that ended other than by being stopped with the service."""
        return sum(slot.replaced for slot in self._slots)

    @property
    def xids(self) -> Mapping[int, int]:
        """Errors that the driver has reported since the start: Xid → how often."""
        return {} if self._watch is None else self._watch.times()

    def processes(self) -> list[int]:
        """Ids of the worker processes that there are now."""
        return [found for slot in self._slots for found in slot.processes()]

    def start(self) -> None:
        """Start the processes in the background: the fork server's import of torch takes seconds."""
        if self.exists:
            self._starting = asyncio.create_task(self._launch())

    async def _launch(self) -> None:
        """Start the processes, and learn from the first one who they are."""
        device = self._settings.device
        if device == "auto" and not await asyncio.to_thread(_has_gpu):
            device = "cpu"
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            [
                "app.worker.preload_cpu" if device == "cpu" else "app.worker.preload",
                "pebble",
                *(name for name in STARTED_FROM if name in sys.modules),
            ]
        )
        if device != "cpu":
            self._watch = await asyncio.to_thread(Watch)
        memory = BASE_MEMORY + COPIES * int(self._settings.max_tensor_bytes)
        reserve = int(self._settings.gpu_memory_reserve)
        for number in range(self._size):
            if number >= self._size:
                break
            place = process.Place(device, number, memory, reserve)
            slot = Slot(context, place, self._settings.run_timeout)
            self._slots.append(slot)
            try:
                worker = await asyncio.to_thread(slot.launch)
            except Exception as error:  # noqa: BLE001 (reported by /readyz, and by every run)
                log.error("no worker: %s", error)
                self.failure = without_places(str(error)) or type(error).__name__
                return
            if not number and worker.device.capability is not None:
                self._size = await asyncio.to_thread(_capped, self._size)
            self.worker = worker
            self._release(slot)

    async def introduced(self) -> None:
        """Wait until `worker` is known, or its start has failed; at once where nothing was started."""
        while self.worker is None and self._starting is not None and not self._starting.done():
            await asyncio.wait([self._starting], timeout=0.05)

    async def stop(self) -> None:
        """End the processes; running jobs are killed."""
        if self._starting is not None:
            await self._starting
        await asyncio.gather(*(asyncio.to_thread(slot.close) for slot in self._slots))
        if self._watch is not None:
            await asyncio.to_thread(self._watch.close)

    async def run(self, job: Job, worker: Worker | None = None, spent: Spent = uncounted) -> Outcome:
        """Run one job; raises PoolBusy instead of queueing without end.

        Cancelled, it ends the job's process.
        """
        if self._starting is None:
            raise PoolBusy("the worker was not started")
        await self.introduced()
        if self.worker is None:
            raise PoolBusy(f"the worker did not start: {self.failure}")
        slot = await self._acquire()
        began = monotonic()
        try:
            outcome = await slot.run(job)
        finally:
            seconds = monotonic() - began
            self.seconds += seconds
            spent(seconds)
            self._release(slot)
        outcome = replace(outcome, seconds=seconds)
        if outcome.ending in ("crashed", "timed-out"):
            outcome = await self._explained(outcome, began)
        return outcome

    async def _explained(self, outcome: Outcome, began: float) -> Outcome:
        """The outcome with what the driver has reported since the run began, on which GPU and of whom."""
        if self._watch is None or not self._watch.sources:
            return outcome
        await asyncio.sleep(XID_DELAY)
        reported = self._watch.since(began)
        if not reported:
            return outcome
        told = ", ".join(map(str, reported))
        return replace(outcome, detail=f"{outcome.detail}; the driver reported {told}")

    async def _acquire(self) -> Slot:
        """The next free worker, in the order in which jobs came."""
        if self._free and not self._waiting:
            return self._free.popleft()
        if len(self._waiting) >= self._size * WAITING_PER_WORKER:
            raise PoolFull("every worker is busy")
        place: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._release(place.result())  # it was handed over in the same moment
            elif place in self._waiting:
                self._waiting.remove(place)
            raise

    def _release(self, slot: Slot) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(slot)
                return
        self._free.append(slot)


def _capped(wanted: int) -> int:
    """Workers of a host with GPUs: two on one would fight for its memory, and a fault of one end the other's
    run.
    """
    places = safety.places()
    if wanted > places:
        log.warning("FAULTBOOK_WORKERS is %d and %d are started: each has a GPU to itself", wanted, places)
    return min(wanted, places)


def open_pool(settings: Settings) -> Runs:
    """The hosts that have joined the broker where there is one, else processes of this service."""
    if settings.broker_url:
        from app.cluster.pool import ClusterPool

        return ClusterPool(settings, settings.broker_url)
    return WorkerPool(settings)


def _has_gpu() -> bool:
    return any(Path(name).exists() for name in GPU_FILES)
