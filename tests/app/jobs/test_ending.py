"""Every job ends: whenever it is cancelled, whatever goes wrong, whenever the service stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from app.diagnose.service import Diagnoser
from app.jobs.asking import CallAsked
from app.jobs.file_store import FileStore
from app.jobs.service import Jobs
from app.jobs.store import Ending, Status, Store, StoreUnavailable
from app.settings import Settings
from app.worker.pool import WorkerPool
from catalog.store import load_catalog

ASKED = CallAsked(b'{"operation": "per_token_group_quant", "level": "checks"}')
DONE = Ending(Status.DONE, 200, "{}")
NOW = 1_800_000_000.0

Body = Callable[[Jobs], Awaitable[Any]]


@pytest.fixture
def store() -> Iterator[Store]:
    made = FileStore(None)
    yield made
    made.close()


def within(store: Store, body: Body) -> Any:
    """What `body` returns of jobs that nobody carries out but as it says; they are stopped then."""

    async def go() -> Any:
        diagnoser = Diagnoser(
            Settings(workers=0), WorkerPool(Settings(workers=0)), load_catalog().record_id_of, ""
        )
        jobs = Jobs(store, diagnoser, parallel=1, retention=1e9, count=lambda _: None)
        try:
            return await body(jobs)
        finally:
            await jobs.stop()

    return asyncio.run(go())


def test_a_job_that_is_cancelled_before_its_first_step_ends(store: Store) -> None:
    """A task that is cancelled before it has begun runs none of its code."""

    async def body(jobs: Jobs) -> Status:
        job = await jobs.accept(ASKED, "")
        claim = jobs._claim()
        assert claim is not None
        jobs._begin(claim)
        for task in list(jobs._work.values()):
            task.cancel()
        cancelled = asyncio.create_task(jobs.cancel(job))
        holding = asyncio.create_task(jobs._hold())
        found = await asyncio.wait_for(jobs.ended(job, 10.0), 20)
        await cancelled
        holding.cancel()
        assert not jobs._work
        return found.status

    assert within(store, body) in (Status.CANCELLED, Status.DONE)


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_mistake_of_ours_ends_the_job(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cancelled: bool
) -> None:
    async def mistaken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    async def body(jobs: Jobs) -> tuple[Status, int | None]:
        monkeypatch.setattr(jobs._diagnoser, "diagnose", mistaken)
        job = await jobs.accept(ASKED, "")
        if cancelled:
            store.cancel(job)
        claim = jobs._claim()
        assert claim is not None
        await jobs._begin(claim)
        found = await jobs.get(job)
        return found.status, found.code

    assert within(store, body) == (Status.FAILED, 500)
    assert "by a mistake of ours" in caplog.text


def test_a_service_that_stops_while_it_takes_a_job_gives_it_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = asyncio.Event()

    async def body(jobs: Jobs) -> None:
        await jobs.accept(ASKED, "")
        loop, take = asyncio.get_running_loop(), store.claim

        def slowly(*given: Any, **named: Any) -> Any:
            found = take(*given, **named)
            loop.call_soon_threadsafe(taken.set)
            time.sleep(0.3)
            return found

        monkeypatch.setattr(store, "claim", slowly)
        jobs.start()
        await taken.wait()

    monkeypatch.setattr(store, "close", lambda: None)
    within(store, body)
    monkeypatch.undo()
    claim = store.claim("next", now=NOW, until=NOW + 10)
    assert claim is not None
    assert claim.attempts == 1


def test_an_end_that_came_while_the_service_stops_is_written(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has run to its end: it need not be run again."""
    ending = asyncio.Event()

    async def body(jobs: Jobs) -> str:
        job = await jobs.accept(ASKED, "")
        loop, end = asyncio.get_running_loop(), store.end

        def slowly(*given: Any, **named: Any) -> bool:
            loop.call_soon_threadsafe(ending.set)
            time.sleep(0.3)
            return end(*given, **named)

        monkeypatch.setattr(store, "end", slowly)
        jobs.start()
        await ending.wait()
        return job

    monkeypatch.setattr(store, "close", lambda: None)
    job = within(store, body)
    monkeypatch.undo()
    found = store.get(job, since=0)
    assert found is not None
    assert found.status is Status.DONE


def test_who_reads_events_waits_for_a_store_that_is_away_and_not_for_a_job_that_is_gone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may have been no room for a job before its end was read."""

    async def body(jobs: Jobs) -> list[str | None]:
        job = await jobs.accept(ASKED, "")
        read, told = store.events, iter([StoreUnavailable("away"), None])

        def events(*given: Any) -> Any:
            if (error := next(told, None)) is not None:
                raise error
            return read(*given)

        monkeypatch.setattr(store, "events", events)
        seen: list[str | None] = []
        async for event in jobs.events(job, 0):
            seen.append(event.kind if event else None)
            if event is not None:
                assert store.end(job, DONE, now=NOW)
                assert store.purge(NOW + 1) == 1
        return seen

    assert within(store, body) == [None, "queued"]
