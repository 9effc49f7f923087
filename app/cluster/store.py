"""Jobs in the broker's Redis, where every API replica reads them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import time
from typing import Any

from redis import RedisError

from app.cluster import scripts
from app.cluster.broker import broker_time, connect
from app.cluster.scripts import BYTES, EQUAL, EVENTS, JOB, OPEN
from app.jobs.store import (
    OPEN_STATES,
    UNBOUNDED,
    Admission,
    Answer,
    Claim,
    Ending,
    Event,
    Kept,
    Room,
    Status,
    StoreUnavailable,
)

FORGOTTEN = 500
"""Jobs that are forgotten in one step: Redis does nothing else meanwhile."""

ADMISSIONS = {"accepted": Admission.ACCEPTED, "many": Admission.MANY, "full": Admission.FULL}


class RedisStore:
    """A store for any number of services; Redis removes what has reached the end of its retention."""

    durable = True

    def __init__(self, url: str, retention: float, room: Room = UNBOUNDED) -> None:
        """`retention` in seconds. Redis need not be there yet."""
        self._redis: Any = connect(url)
        self._retention = max(1, int(retention))
        self._room = room
        self._answers = True
        script = self._redis.register_script
        self._add, self._claim, self._renew = map(script, (scripts.ADD, scripts.CLAIM, scripts.RENEW))
        self._release, self._told = map(script, (scripts.RELEASE, scripts.TOLD))
        self._end, self._purge = map(script, (scripts.END, scripts.PURGE))

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def trouble(self) -> str:
        """Whether Redis did what it was last asked: a service asks for jobs all the time. Not its address."""
        return "" if self._answers else "the broker does not answer: nothing is accepted until it does"

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except RedisError as error:
            self._answers = False
            raise StoreUnavailable(str(error) or type(error).__name__) from error
        self._answers = True

    def add(self, job: str, owner: str, request: str, *, most: int, share: int, now: float) -> Admission:
        """Accept a job, unless `most` are open already, or `share` of an owner with a name, or there is no
        room for what it asks.
        """
        room = self._room
        facts = {"job": job, "owner": owner, "most": most, "share": share, "now": now, **_bounds(room)}
        facts |= {"open": room.open, "open_own": room.open_share}
        with self._asking():
            return ADMISSIONS[self._add([], [json.dumps(facts), request])]

    def now(self) -> float:
        """The time that leases are counted by: that of Redis, since clocks of hosts differ."""
        with self._asking():
            return broker_time(self._redis)

    def claim(
        self, service: str, *, now: float, until: float, only: str = "", but: Collection[str] = ()
    ) -> Claim | None:
        """Take a job, or `only` this one, and hold it until then: that of the owner whose turn was longest
        ago, of one owner's the one that has waited longest. None of those of `but`.
        """
        facts = {"service": service, "now": now, "till": until, "only": only, "but": dict.fromkeys(but, True)}
        with self._asking():
            found = self._claim([], [json.dumps(facts)])
        if not found:
            return None
        job, owner, request, attempts, cancelled = found
        return Claim(job, owner, request, int(attempts), cancelled == "1")

    def renew(self, service: str, jobs: Iterable[str], *, until: float) -> Mapping[str, bool]:
        """Hold jobs for longer: those still held, and whether each is to be cancelled."""
        with self._asking():
            answers = {job: self._renew([], [job, service, until]) for job in jobs}
        return {job: answer == "1" for job, answer in answers.items() if answer is not None}

    def release(self, service: str, job: str) -> None:
        """Give a job back; this attempt does not count."""
        with self._asking():
            self._release([], [job, service])

    def report(self, job: str, kind: str, data: Mapping[str, Any]) -> None:
        """Add an event; of a job that has ended, or that nobody knows, nothing is added."""
        with self._asking():
            self._told([], [job, kind, _dated(data)])

    def end(self, job: str, ending: Ending, *, now: float) -> bool:
        """End a job, once: False where it has ended already, or is unknown."""
        return self._ended(job, ending, now, {})

    def keep(self, job: str, owner: str, ending: Ending, *, now: float) -> None:
        """Keep an answer that was no job, to be read by its id."""
        self._ended(job, ending, now, {"owner": owner})

    def _ended(self, job: str, ending: Ending, now: float, whose: Mapping[str, str]) -> bool:
        facts = {
            "job": job,
            "status": ending.status,
            "code": ending.code,
            "now": now,
            "told": _dated(ending.told),
            "retention": self._retention,
            "key": ending.key,
            **_bounds(self._room),
            **whose,
        }
        with self._asking():
            return bool(self._end([], [json.dumps(facts), ending.body]))

    def cancel(self, job: str) -> None:
        """Note that a job is to be cancelled."""
        with self._asking():
            if self._redis.zscore(OPEN, job) is not None:
                self._redis.hset(JOB + job, "cancelled", "1")

    def get(self, job: str, *, since: float) -> Kept | None:
        """A job; None where it is unknown or ended before `since`."""
        with self._asking():
            owner, status, code, body, ended = self._redis.hmget(
                JOB + job, ["owner", "status", "code", "body", "ended"]
            )
        if status is None or (ended is not None and float(ended) < since):
            return None
        return Kept(job, owner, Status(status), None if code is None else int(code), body)

    def events(self, job: str, after: int) -> Sequence[Event]:
        """A job's events with higher numbers, in their order."""
        with self._asking():
            found = self._redis.lrange(EVENTS + job, after, -1)
        return [Event(number, *json.loads(text)) for number, text in enumerate(found, start=after + 1)]

    def find(self, key: str, *, since: float) -> Answer | None:
        """The newest answer to an equal question."""
        with self._asking():
            job: Any = self._redis.get(EQUAL + key) if key else None
            found: Any = (
                self._redis.hmget(JOB + job, ["body", "ended", "owner"]) if job else (None, None, None)
            )
        body, ended, owner = found
        if body is None or ended is None or float(ended) < since:
            return None
        return Answer(body, float(ended), job, owner)

    def open(self) -> Mapping[str, int]:
        """How many jobs are queued, and how many are running."""
        with self._asking(), self._redis.pipeline(transaction=False) as pipeline:
            for job in self._redis.zrange(OPEN, 0, -1):
                pipeline.hget(JOB + job, "status")
            found = Counter(pipeline.execute())
        return {str(state): found[str(state)] for state in OPEN_STATES}

    def kept(self) -> int:
        """Bytes that jobs take, open ones and ended ones."""
        with self._asking():
            return sum(map(int, self._redis.hvals(BYTES)))

    def purge(self, before: float) -> int:
        """Forget jobs that ended before, and the oldest beyond what there is room for; how many. Redis itself
        has removed the former, but not from what is counted.
        """
        gone = 0
        facts = json.dumps({"before": before, "most": FORGOTTEN, **_bounds(self._room)})
        while True:
            with self._asking():
                more = int(self._purge([], [facts]))
            gone += more
            if more < FORGOTTEN:
                return gone


def _bounds(room: Room) -> dict[str, int]:
    return {"limit": room.limit, "own": room.share}


def _dated(data: Mapping[str, Any]) -> str:
    return json.dumps({**data, "at": round(time(), 3)})
