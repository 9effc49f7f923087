"""Jobs: accept them, carry them out, tell of their steps, end each of them exactly once."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from time import monotonic, time
from typing import Any, cast

from starlette.concurrency import run_in_threadpool

from app.diagnose.schemas import DiagnosisModel
from app.diagnose.service import Diagnoser, Question, Report, directly, nobody
from app.errors import Busy, InternalError, NotFound, Problem, Unavailable
from app.jobs.answers import repeated, shareable
from app.jobs.asking import Asked, read_asked
from app.jobs.endings import done, failed, written
from app.jobs.store import Admission, Claim, Ending, Event, Kept, Status, Store, StoreUnavailable
from app.jobs.streams import SHARE, Streams
from app.jobs.threads import Threads, reached

log = logging.getLogger("faultbook.jobs")

LEASE = 10.0
"""Seconds after which a job of a service that no longer renews it is taken over."""

RENEWAL = 2.0
"""Seconds between renewals, and until a service sees that a job it works on is to be cancelled."""

POLL = 0.5
"""Seconds between looks for what other services of the same store have done."""

MOST_ATTEMPTS = 2
"""Times that a job is begun: one that was begun so often and never ended is not begun again."""

MOST_OPEN = 256
"""Jobs that may be open at once; beyond, they are refused with 503."""

PATIENCE = 120.0
"""Seconds that a job waits for a worker that is lost, or does not start."""

QUEUED = 3600.0
"""Seconds that a job waits for a place among runs that end in time."""

PURGE = 600.0
"""Seconds between looks for what nobody has to remember any more."""

Count = Callable[[DiagnosisModel], None]


class Jobs:
    """The jobs of one service.

    store      where they stand; several services may share it
    diagnoser  carries them out
    parallel   jobs at work at once
    retention  seconds for which ends stay readable
    count      told of each diagnosis made
    streams    of events, that clients read
    """

    def __init__(
        self, store: Store, diagnoser: Diagnoser, *, parallel: int, retention: float, count: Count
    ) -> None:
        self.store = store
        self._diagnoser = diagnoser
        self._parallel = parallel
        self._retention = retention
        self._count = count
        self._service = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._work: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._cancelled: set[str] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        self._news = asyncio.Event()
        self._stopping = False
        self._threads = Threads()
        self.streams = Streams()

    def start(self) -> None:
        """Begin to carry out what is accepted, and what a former service has left."""
        loops = [self._carry_out_all() for _ in range(self._parallel)]
        self._loops = [asyncio.create_task(loop) for loop in (*loops, self._hold(), self._forget())]

    def leave(self) -> None:
        """End streams of events and waits soon: the service is about to stop, and waits for its requests."""
        self._stopping = True

    async def stop(self) -> None:
        """Give jobs that are not done back to the store, for the next service."""
        self._stopping = True
        self._tell()
        for tasks in (self._loops, self._work.values()):  # what the former have just begun is at work then
            stopped = list(tasks)
            for task in stopped:
                task.cancel()
            await asyncio.gather(*stopped, return_exceptions=True)
        if self._tasks:  # what has ended is written down, while that is possible
            await asyncio.wait(self._tasks, timeout=RENEWAL)
        await self._threads.write(self.store.close)
        self._threads.close()

    # --- what routes ask

    async def accept(self, asked: Asked, owner: str) -> str:
        """A new job's id; Unavailable where too many are open, or ask too much together."""
        job = secrets.token_hex(16)
        share = MOST_OPEN // SHARE
        with reached():
            added = await self._threads.write(
                self.store.add, job, owner, asked.written(), most=MOST_OPEN, share=share, now=time()
            )
        if added is Admission.MANY:
            raise Unavailable(f"{MOST_OPEN} jobs are open already, or {share} of this key.", retry_after=5)
        if added is Admission.FULL:
            raise Unavailable(
                "What open jobs ask takes all the room that there is for it, or that one key has.",
                retry_after=5,
            )
        self._wake.set()
        return job

    async def get(self, job: str) -> Kept:
        """A job; NotFound where nobody has it, or has it any more."""
        with reached():
            found = await self._threads.read(self.store.get, job, since=time() - self._retention)
        if found is None:
            raise NotFound("There is no job of this id: it never was, or its retention has ended.")
        return found

    async def ended(self, job: str, limit: float) -> Kept:
        """The job once it has ended, or as it is after `limit` seconds."""
        deadline = monotonic() + limit
        while True:
            news = self._news
            found = await self.get(job)
            left = deadline - monotonic()
            if found.status.is_end or left <= 0 or self._stopping:
                return found
            await _either(news, min(left, POLL))

    async def cancel(self, job: str) -> Kept:
        """Ask for a job's end, and wait a moment for it; one that has ended stays as it is."""
        with reached():
            await self._threads.write(self.store.cancel, job)
        if job not in self._work:
            with reached():
                claim = await self._threads.write(self._claim, job)
            if claim is not None:
                self._begin(claim)
        if job in self._work and job not in self._cancelled:
            self._cancelled.add(job)
            self._work[job].cancel()
        return await self.ended(job, RENEWAL + POLL)

    async def told(self, job: str, after: int) -> bool:
        """Whether a job has events beyond number `after`."""
        with reached():
            return bool(await self._threads.read(self.store.events, job, after))

    async def events(self, job: str, after: int) -> AsyncIterator[Event | None]:
        """A job's events beyond number `after`, as they come; None whenever POLL seconds brought none, or the
        store does not answer just now. Its end is `done`, or that the store has forgotten it.
        """
        while not self._stopping:
            news = self._news
            try:
                found = await self._threads.read(self.store.events, job, after)
                lost = not found and await self._threads.read(self.store.get, job, since=0) is None
            except StoreUnavailable:
                found, lost = (), False
            for event in found:
                after = event.number
                yield event
                if event.kind == "done":
                    return
            if lost:
                return
            if not found:
                yield None
                await _either(news, POLL)

    async def answer(self, question: Question, owner: str, *, fresh: bool = False) -> DiagnosisModel:
        """A diagnosis at once: of an equal question where one is stored, unless it has to be `fresh`.

        One that is stored as the owner's keeps its id: who asks again and again does not fill the store.
        """
        answer, key, stored = await self._diagnosis(replace(question, owner=owner), fresh=fresh)
        if answer.level == "run" and not stored:
            ending = done(answer, key)
            try:
                await self._threads.write(self.store.keep, answer.id, owner, ending, now=time())
            except StoreUnavailable as error:
                log.error("an answer could not be kept: %s", error)
        return answer

    # --- how they are carried out

    async def _diagnosis(
        self, question: Question, job: str | None = None, report: Report = nobody, *, fresh: bool = False
    ) -> tuple[DiagnosisModel, str, bool]:
        """A diagnosis, the key under which it may answer equal questions, and whether it is stored as it
        is.
        """
        question = await self._diagnoser.aimed(question)
        aside = run_in_threadpool if question.large else directly
        key = await aside(self._diagnoser.identity, question)
        if key and not fresh:
            since = time() - self._retention
            with suppress(StoreUnavailable):
                stored = await self._threads.read(self.store.find, key, since=since)
                if stored is not None:
                    own = job is None and stored.owner == question.owner
                    answer = repeated(stored, stored.id if own else job or secrets.token_hex(16))
                    self._count(answer)
                    return answer, "", own

        answer = await self._diagnoser.diagnose(question, report)
        if job is not None:
            answer = answer.model_copy(update={"id": job})
        self._count(answer)
        return answer, key if shareable(answer, question.worker) else "", False

    async def _carry_out_all(self) -> None:
        while True:
            self._wake.clear()
            try:
                claim = await self._claimed()
            except StoreUnavailable as error:
                log.error("no jobs can be taken: %s", error)
                await asyncio.sleep(RENEWAL)
                continue
            if claim is None:
                await _either(self._wake, POLL)
                continue
            self._wake.set()  # there may be more
            await asyncio.wait([self._begin(claim)])

    async def _claimed(self) -> Claim | None:
        """The next job; where this service stops meanwhile, it is given back."""
        claiming = asyncio.ensure_future(self._threads.write(self._claim))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            with suppress(StoreUnavailable):
                if (claim := await claiming) is not None:
                    await self._threads.write(self.store.release, self._service, claim.id)
            raise

    def _claim(self, only: str = "") -> Claim | None:
        now = self.store.now()
        # A clock that jumps ahead ends leases at once, also of what goes on here.
        return self.store.claim(self._service, now=now, until=now + LEASE, only=only, but=list(self._work))

    def _renewed(self, jobs: list[str]) -> Mapping[str, bool]:
        return self.store.renew(self._service, jobs, until=self.store.now() + LEASE)

    def _begin(self, claim: Claim) -> asyncio.Task[None]:
        if claim.cancelled:
            self._cancelled.add(claim.id)
        task = asyncio.create_task(self._carry_out(claim))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _carry_out(self, claim: Claim) -> None:
        """One job to its end, or back to the store when this service stops."""
        # Not before: a task that is cancelled before its first step never takes it, and would end nothing.
        self._work[claim.id] = cast("asyncio.Task[None]", asyncio.current_task())
        try:
            ending = await self._certainly(claim, self._ending(claim))
        except asyncio.CancelledError:
            if claim.id not in self._cancelled:
                with suppress(StoreUnavailable):
                    await asyncio.shield(self._threads.write(self.store.release, self._service, claim.id))
                raise
            checked = self._without_run(claim, Status.CANCELLED, "cancelled while it ran")
            ending = await self._certainly(claim, checked)
        finally:
            self._work.pop(claim.id, None)
        self._cancelled.discard(claim.id)
        await self._end(claim.id, ending)

    async def _ending(self, claim: Claim) -> Ending:
        if claim.cancelled:
            return await self._without_run(claim, Status.CANCELLED, "cancelled before it ran")
        if claim.attempts > MOST_ATTEMPTS:
            why = f"interrupted: it was begun {MOST_ATTEMPTS} times, and the service ended each time"
            return await self._without_run(claim, Status.INTERRUPTED, why)
        await self._report(claim.id, "started", {"attempt": claim.attempts})
        return await self._patiently(claim)

    async def _certainly(self, claim: Claim, ending: Awaitable[Ending]) -> Ending:
        """That ending, or what became of finding it: else the job would be taken again for ever."""
        try:
            return await ending
        except Problem as problem:
            return failed(problem, claim.id)
        except Exception:
            log.exception("job %s ended by a mistake of ours", claim.id)
            return failed(InternalError("The log has the cause under this job's id."), claim.id)

    async def _patiently(self, claim: Claim) -> Ending:
        """The diagnosis. A worker that is lost is waited for, and longer a place where all are taken."""
        question = replace(await read_asked(claim.request).question(), owner=claim.owner)
        began = missed = monotonic()
        told: list[tuple[str, dict[str, Any]]] = []

        async def report(kind: str, data: dict[str, Any]) -> None:
            if (kind, data) not in told:  # before it was waited, and after
                told.append((kind, data))
                await self._report(claim.id, kind, data)

        while True:
            try:
                answer, key, _ = await self._diagnosis(question, claim.id, report)
            except Unavailable as problem:
                now = monotonic()
                if isinstance(problem, Busy):
                    missed = now
                if now < min(missed + PATIENCE, began + QUEUED):
                    await asyncio.sleep(POLL)
                    continue
                return await self._without_run(claim, Status.INTERRUPTED, f"interrupted: {problem.detail}")
            return done(answer, key)

    async def _without_run(self, claim: Claim, status: Status, why: str) -> Ending:
        """What the checks say of a job whose run did not come to an end, with the reason."""
        question = await read_asked(claim.request).question()
        answer = await self._diagnoser.diagnose(question, obstacle=why)
        answer = answer.model_copy(update={"id": claim.id})
        return Ending(status, 200, written(answer), verdict=answer.verdict)

    async def _report(self, job: str, kind: str, data: dict[str, Any]) -> None:
        """Tell of a step; the job goes on where that cannot be written."""
        try:
            await self._threads.write(self.store.report, job, kind, data)
        except StoreUnavailable as error:
            log.error("a step of job %s cannot be written: %s", job, error)
        self._tell()

    async def _end(self, job: str, ending: Ending) -> None:
        """Write the end down, however long that takes."""
        while True:
            try:
                await asyncio.shield(self._threads.write(self.store.end, job, ending, now=time()))
            except StoreUnavailable as error:
                log.error("the end of job %s cannot be written: %s", job, error)
                await asyncio.sleep(RENEWAL)
            else:
                self._tell()
                return

    async def _hold(self) -> None:
        """Renew the leases of the jobs at work; those that others have taken, or cancelled, are let go."""
        while True:
            await asyncio.sleep(RENEWAL)
            mine = list(self._work)
            if not mine:
                continue
            try:
                held = await self._threads.write(self._renewed, mine)
            except StoreUnavailable as error:
                log.error("jobs cannot be held: %s", error)
                continue
            for job in mine:
                if job in self._work and job not in self._cancelled and held.get(job, True):
                    if job in held:
                        self._cancelled.add(job)
                    self._work[job].cancel()

    async def _forget(self) -> None:
        while True:
            try:
                gone = await self._threads.write(self.store.purge, time() - self._retention)
            except StoreUnavailable as error:
                log.error("old jobs cannot be removed: %s", error)
            else:
                if gone:
                    log.info("%d results are past their retention, or there was no room for them", gone)
            await asyncio.sleep(PURGE)

    def _tell(self) -> None:
        """Wake whoever waits for something to happen."""
        news, self._news = self._news, asyncio.Event()
        news.set()


async def _either(event: asyncio.Event, limit: float) -> None:
    """Wait for the event, or until the time has passed."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), limit)
