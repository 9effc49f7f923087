"""Runs on hosts that have joined: the API's side."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from celery.exceptions import OperationalError
from redis import RedisError
from starlette.concurrency import run_in_threadpool

from app.cluster.broker import connect, held, make_celery, visibility
from app.cluster.names import (
    ALIVE,
    BEAT,
    BEGAN,
    COUNTS,
    KINDS,
    KNOWN,
    LOST,
    NODE,
    OUTCOME_KEPT,
    RESTARTS,
    SEEN,
    TASK,
    XID,
    cancel_key,
    holder_key,
    outcome_key,
    queue_key,
)
from app.cluster.wire import job_json, queue_of, read_outcome, read_worker
from app.settings import Settings
from app.worker.messages import Job, Outcome, Worker
from app.worker.pool import WAITING_PER_WORKER, PoolBusy, PoolFull, Spent, uncounted
from kernels.target import Target

log = logging.getLogger("faultbook.cluster")

GLANCE = 0.03
"""Seconds between looks for outcomes while any is waited for."""

MISSED = 20.0
"""Seconds without a live host after which whoever waits for one is told."""


class ClusterPool:
    """Hands runs to the queues of architectures and waits for their outcomes.

    failure   why Redis cannot be reached, where that is so
    seconds   that its runs have had a worker
    replaced  processes that all hosts have replaced, as far as Redis remembers
    xids      errors that their drivers have reported: Xid → how often
    """

    joins = True

    absence = "no worker has joined: start `faultbook worker` on a host that reaches the broker"

    def __init__(self, settings: Settings, url: str) -> None:
        self._celery = make_celery(url, settings.run_timeout)
        self._redis = connect(url)
        self._longest = 2 * visibility(settings.run_timeout) + WAITING_PER_WORKER * settings.run_timeout
        self._kinds: dict[str, Worker] = {}
        self._alive: dict[str, int] = {}
        self._seen: dict[str, float] = {}
        self._waiting: dict[str, asyncio.Future[Outcome]] = {}
        self._begun: frozenset[str] = frozenset()
        self._loops: list[asyncio.Task[None]] = []
        self._known = asyncio.Event()
        self.failure = ""
        self.seconds = 0.0
        self.replaced = 0
        self.xids: Mapping[int, int] = {}

    @property
    def waiting(self) -> int:
        """Runs of this service that no host has begun, as of the last look."""
        return len(self._waiting.keys() - self._begun)

    @property
    def exists(self) -> bool:
        """Whether a host is there, or was not long ago; or nobody can say, while the broker is away."""
        return bool(self._kinds or self.failure)

    @property
    def workers(self) -> Sequence[Worker]:
        """One of each architecture: those that are there before those that were, GPUs first."""
        return [
            self._kinds[queue]
            for queue in sorted(self._kinds, key=lambda queue: (queue not in self._alive, *_rank(queue)))
        ]

    @property
    def places(self) -> int:
        """Live hosts' worker processes; 1 at least."""
        return max(sum(self._alive.values()), 1)

    @property
    def alive(self) -> dict[str, int]:
        """Live hosts' worker processes by queue."""
        return dict(self._alive)

    def start(self) -> None:
        """Begin to look who is there, and for outcomes."""
        self._loops = [asyncio.create_task(loop) for loop in (self._look(), self._collect())]

    async def stop(self) -> None:
        """Stop looking; runs go on, and their outcomes wait for the next service."""
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await run_in_threadpool(self._redis.close)

    async def introduced(self) -> None:
        """Wait for the first look."""
        if self._loops:
            await self._known.wait()

    def choose(self, device: str, target: Target | None) -> Worker | None:
        """A worker of the target's architecture; without a target the first of that kind of device."""
        known = self.workers
        suited = (worker for worker in known if target and worker.device.target == target)
        serving = (
            worker
            for worker in known
            if target and (own := worker.device.target) is not None and own.serves(target)
        )
        wanted = (worker for worker in known if device in ("auto", _kind(worker)))
        return next((worker for found in (suited, serving, wanted, known) for worker in found), None)

    async def run(self, job: Job, worker: Worker | None = None, spent: Spent = uncounted) -> Outcome:
        """Run one job; raises PoolBusy where no such host lives, or too much waits for it."""
        if worker is None:
            raise PoolBusy(self.failure or self.absence)
        queue = queue_of(worker)
        run = secrets.token_hex(16)
        await self._admit(queue)
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[run] = answer
        try:
            await self._send(run, job, queue)
            outcome = await self._outcome(answer, queue)
            spent(outcome.seconds)
            return outcome
        except BaseException:
            with suppress(RedisError):
                seconds = await asyncio.shield(run_in_threadpool(self._cancel, run, queue))
                self.seconds += seconds
                spent(seconds)
            raise
        finally:
            self._waiting.pop(run, None)

    async def _admit(self, queue: str) -> None:
        hosts = self._alive.get(queue, 0)
        if self.failure:
            raise PoolBusy(self.failure)
        if not hosts:
            raise PoolBusy(f"no host of {queue} is there now")
        try:
            length = await run_in_threadpool(self._redis.llen, queue_key(queue))
        except RedisError as error:
            raise PoolBusy("the broker cannot be reached") from error
        if length >= hosts * WAITING_PER_WORKER:
            raise PoolFull(f"every worker of {queue} is busy")

    async def _send(self, run: str, job: Job, queue: str) -> None:
        def send() -> None:
            self._celery.send_task(TASK, args=[job_json(job)], task_id=run, queue=queue_key(queue))

        try:
            await run_in_threadpool(send)
        except (OperationalError, RedisError, OSError) as error:
            raise PoolBusy("the broker cannot be reached") from error

    async def _outcome(self, answer: asyncio.Future[Outcome], queue: str) -> Outcome:
        deadline = monotonic() + self._longest
        while not answer.done():
            await asyncio.wait([answer], timeout=BEAT)
            missed = monotonic() - self._seen.get(queue, 0.0)
            if not answer.done() and not self.failure and missed > MISSED:
                raise PoolBusy(f"the hosts of {queue} are gone")
            if not answer.done() and monotonic() > deadline:
                raise PoolBusy(f"no answer of {queue} within {self._longest:g} s")
        outcome = answer.result()
        self.seconds += outcome.seconds
        return outcome

    def _cancel(self, run: str, queue: str) -> float:
        """Have a run ended; the seconds for which it has had a worker, as far as its host was seen."""
        self._redis.set(cancel_key(run), "1", ex=OUTCOME_KEPT)
        found: Any = self._redis.hmget(holder_key(run), [NODE, BEGAN, LOST])
        node, began, lost = found
        return float(lost or 0.0) + (held(self._redis, f"{queue}:{node}", float(began)) if began else 0.0)

    async def _look(self) -> None:
        """Keep up with who is there."""
        while True:
            try:
                kinds, alive, counts = await run_in_threadpool(self._present)
                self._begun = await run_in_threadpool(self._at_work, list(self._waiting))
            except (RedisError, ValueError) as error:
                self._failed(error)
            else:
                self._kinds, self._alive, self.failure = kinds, alive, ""
                self.replaced = counts.pop(RESTARTS, 0)
                self.xids = {int(name.removeprefix(XID)): times for name, times in counts.items()}
                self._seen |= dict.fromkeys(alive, monotonic())
            self._known.set()
            await asyncio.sleep(BEAT / 2)

    def _present(self) -> tuple[dict[str, Worker], dict[str, int], dict[str, int]]:
        now: Any = self._redis.time()
        seen: Any = self._redis.zrange(SEEN, now[0] - KNOWN, "+inf", byscore=True, withscores=True)
        alive: dict[str, int] = {}
        queues = set()
        for node, at in seen:
            queue = str(node).partition(":")[0]
            queues.add(queue)
            if abs(at - now[0]) < ALIVE:  # later than now: of one that has gone since the clock was set back
                alive[queue] = alive.get(queue, 0) + 1
        texts: Any = self._redis.hgetall(KINDS)
        if seen and seen[0][1] < now[0] - KNOWN / 2:
            self._redis.zremrangebyscore(SEEN, "-inf", now[0] - KNOWN)
        told: Any = self._redis.hgetall(COUNTS)
        counts = {str(name): int(times) for name, times in told.items()}
        return {queue: read_worker(text) for queue, text in texts.items() if queue in queues}, alive, counts

    def _at_work(self, runs: Sequence[str]) -> frozenset[str]:
        """Those of the runs that a host has begun."""
        with self._redis.pipeline(transaction=False) as pipeline:
            for run in runs:
                pipeline.hexists(holder_key(run), BEGAN)
            return frozenset(run for run, begun in zip(runs, pipeline.execute(), strict=True) if begun)

    async def _collect(self) -> None:
        """Hand outcomes to whoever waits for them."""
        while True:
            await asyncio.sleep(GLANCE)
            runs = list(self._waiting)
            if not runs:
                continue
            try:
                found: Any = await run_in_threadpool(self._redis.mget, [outcome_key(run) for run in runs])
            except RedisError as error:
                self._failed(error)
                await asyncio.sleep(BEAT / 2)
                continue
            for run, text in zip(runs, found, strict=True):
                answer = self._waiting.get(run)
                if text is not None and answer is not None and not answer.done():
                    answer.set_result(_readable(text))

    def _failed(self, error: Exception) -> None:
        if not self.failure:
            log.error("the broker cannot be reached: %s", error)
        self.failure = "the broker cannot be reached"


def _readable(text: str) -> Outcome:
    try:
        return read_outcome(text)
    except ValueError as error:
        return Outcome("unsupported", detail=f"the host's version tells of the run otherwise: {error}"[:500])


def _kind(worker: Worker) -> str:
    return "cpu" if worker.device.capability is None else "cuda"


def _rank(queue: str) -> tuple[bool, int, str]:
    """GPUs before CPUs, of NVIDIA's the newest first."""
    capability = None if queue == "cpu" else Target.parse(queue).capability
    return queue == "cpu", -(capability or 0), queue
