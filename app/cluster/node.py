"""A host's side of a cluster: for each GPU, or for a CPU, one Celery process and its one worker process."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from threading import Event, Thread
from typing import Any, TypeVar

from celery import Celery
from celery.exceptions import Reject, SecurityWarning
from celery.worker import state
from redis import Redis, RedisError

from app.cluster import names
from app.cluster.broker import broker_time, connect, held, make_celery
from app.cluster.wire import Unreadable, outcome_json, queue_of, read_job, worker_json
from app.settings import Settings
from app.worker.messages import Outcome, Worker
from app.worker.pool import PoolBusy, WorkerPool

log = logging.getLogger("faultbook.node")

GLANCE = 0.1
"""Seconds between looks whether a run is to be cancelled, or this host to leave."""

MOST_DELIVERIES = 2
"""Hosts that a run may take with it; a third is spared."""

T = TypeVar("T")


class CannotWork(RuntimeError):
    """This host cannot run operations; the message says why."""


class Node:
    """One worker process, and what the broker sends to it."""

    def __init__(self, settings: Settings, url: str) -> None:
        self._pool = WorkerPool(settings.model_copy(update={"workers": 1}))
        self._redis: Redis = connect(url)
        self.celery: Celery = make_celery(url, settings.run_timeout)

        def run(task: Any, message: dict[str, Any]) -> None:
            self.run(str(task.request.id), message)

        self.celery.task(run, name=names.TASK, bind=True)
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="runs", daemon=True)
        self._leaving = Event()
        self._queue = ""
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"

    def serve(self) -> None:
        """Start the worker process, tell of it, and take runs until a signal ends that; raises CannotWork."""
        self._thread.start()
        worker = self._await(self._started())
        queue = self._queue = queue_of(worker)
        beats = Thread(target=self._beat, args=(queue, worker), name="beats", daemon=True)
        beats.start()
        # Celery warns of root because of pickled messages, which are not accepted here.
        warnings.filterwarnings("ignore", category=SecurityWarning)
        log.info("%s takes runs for %s", worker.device.name, queue)
        try:
            self.celery.Worker(
                pool_cls="solo",
                concurrency=1,
                queues=[names.queue_key(queue)],
                hostname=self.name,
                loglevel=logging.WARNING,
                quiet=True,
                without_heartbeat=True,
                without_gossip=True,
                without_mingle=True,
            ).start()
        finally:
            self._leaving.set()
            beats.join(2 * names.BEAT)
            self._await(self._pool.stop())
            self._loop.call_soon_threadsafe(self._loop.stop)

    async def _started(self) -> Worker:
        if not self._pool.exists:
            raise CannotWork("torch and triton are not installed: pip install 'faultbook[worker]'")
        self._pool.start()
        await self._pool.introduced()
        if self._pool.worker is None:
            raise CannotWork(self._pool.failure)
        return self._pool.worker

    def _await(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _beat(self, queue: str, worker: Worker) -> None:
        """Say every BEAT seconds that this host is there; it counts as gone ALIVE seconds after the last."""
        node, text = f"{queue}:{self.name}", worker_json(worker)
        told: dict[str, int] = {}
        while True:
            try:
                for name, number in self._counts().items():
                    if number > told.get(name, 0):
                        self._redis.hincrby(names.COUNTS, name, number - told.get(name, 0))
                        told[name] = number
                self._redis.set(names.NODES + node, text, ex=names.ALIVE)
                self._redis.hset(names.KINDS, queue, text)
                self._redis.zadd(names.SEEN, {node: broker_time(self._redis)})
                if self._leaving.wait(names.BEAT):
                    self._redis.delete(names.NODES + node)
                    self._redis.zadd(names.SEEN, {node: broker_time(self._redis) - names.ALIVE})
                    return
            except RedisError as error:
                log.error("the broker cannot be reached: %s", error)
                if self._leaving.wait(names.BEAT):
                    return

    def _counts(self) -> dict[str, int]:
        """What has happened here since the start, as names.COUNTS has it."""
        xids = {f"{names.XID}{number}": times for number, times in self._pool.xids.items()}
        return {names.RESTARTS: self._pool.replaced, **xids}

    def run(self, run: str, message: dict[str, Any]) -> None:
        """The task: one run, whose outcome is written before the message is acknowledged."""
        if self._is_settled(run):
            return
        try:
            outcome = self._outcome(run, message)
        except Reject:
            raise
        except Exception as error:
            # Acknowledged without an outcome, it would be waited for in vain.
            log.exception("run %s ended by a mistake of ours", run)
            outcome = Outcome("unsupported", detail=f"the host made a mistake: {type(error).__name__}")
        if outcome is not None:
            self._write(run, outcome)

    def _is_settled(self, run: str) -> bool:
        """Whether there is nothing to do: it has its outcome, nobody wants it, or it has taken hosts with it.

        A message comes again when its host vanished before it had acknowledged it.
        """
        known = self._lasting(self._redis.mget, names.outcome_key(run), names.cancel_key(run))
        if any(value is not None for value in known):
            return True
        key = names.holder_key(run)
        holder, began = self._lasting(self._redis.hmget, key, [names.NODE, names.BEGAN])
        before = self._lasting(self._redis.hincrby, key, names.DELIVERIES, 1) - 1
        if before and began:
            log.warning("run %s comes again: %s, which had it, is gone", run, holder)
            lost = self._lasting(held, self._redis, f"{self._queue}:{holder}", float(began))
            self._lasting(self._redis.hincrbyfloat, key, names.LOST, lost)
        now = self._lasting(broker_time, self._redis)
        self._lasting(self._redis.hset, key, mapping={names.NODE: self.name, names.BEGAN: now})
        self._lasting(self._redis.expire, key, names.OUTCOME_KEPT)
        if before < MOST_DELIVERIES:
            return False
        self._write(
            run,
            Outcome("crashed", detail=f"{MOST_DELIVERIES} hosts that ran it vanished; it is not run again"),
        )
        return True

    def _write(self, run: str, outcome: Outcome) -> None:
        """Write an outcome down; its seconds are those of hosts that vanished with it, too."""
        lost = float(self._lasting(self._redis.hget, names.holder_key(run), names.LOST) or 0.0)
        text = outcome_json(replace(outcome, seconds=outcome.seconds + lost))
        self._lasting(self._redis.set, names.outcome_key(run), text, ex=names.OUTCOME_KEPT)

    def _lasting(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """A call of Redis, again until it is there; a host that leaves meanwhile gives the message back."""
        while True:
            try:
                return call(*args, **options)
            except RedisError as error:
                log.error("the broker cannot be reached: %s", error)
                if _is_leaving():
                    raise Reject("this host leaves", requeue=True) from None
                time.sleep(names.BEAT / 2)

    def _outcome(self, run: str, message: dict[str, Any]) -> Outcome | None:
        """What became of a run; None where it was cancelled. Rejects it where this host leaves."""
        try:
            job = read_job(message)
        except Unreadable as error:
            return Outcome("unsupported", detail=f"the host's version cannot read the call: {error}")
        running: Future[Outcome] = asyncio.run_coroutine_threadsafe(self._pool.run(job), self._loop)
        while True:
            try:
                return running.result(GLANCE)
            except FutureTimeout:
                if _is_leaving():
                    running.cancel()
                    self._lasting(self._redis.hincrby, names.holder_key(run), names.DELIVERIES, -1)
                    raise Reject("this host leaves", requeue=True) from None
                if self._is_cancelled(run):
                    running.cancel()
                    return None
            except PoolBusy as error:
                raise Reject(str(error), requeue=True) from None

    def _is_cancelled(self, run: str) -> bool:
        try:
            return bool(self._redis.exists(names.cancel_key(run)))
        except RedisError:
            return False  # the run goes on while the broker is away


def _is_leaving() -> bool:
    """Whether a signal has ended this host's work; Celery keeps the exit code there, which may be 0."""
    return any(
        value is not None and value is not False for value in (state.should_stop, state.should_terminate)
    )


def serve_node(settings: Settings, url: str) -> None:
    """One node until it is told to leave."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until Celery has its own
    Node(settings, url).serve()


if __name__ == "__main__":
    from app.http.logs import configure_logging
    from app.settings import load

    chosen = load()
    configure_logging(chosen.log_format)
    try:
        serve_node(chosen, chosen.broker_url)
    except KeyboardInterrupt:
        sys.exit(0)  # told to leave while it started
    except CannotWork as error:
        sys.stderr.write(f"faultbook worker: {error}\n")
        sys.exit(3)
