"""Jobs in the broker's Redis, where every API replica reads them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import time
from typing import Any

from redis import RedisError

from app.cluster.broker import connect
from app.cluster.names import PREFIX
from app.jobs.store import OPEN_STATES, Answer, Claim, Ending, Event, Kept, Status, StoreUnavailable

OPEN = f"{PREFIX}:open"
"""Sorted set of the jobs that have not ended, by the time of their acceptance."""

TURNS = f"{PREFIX}:turns"
"""Hash: when a job of each owner was last taken."""

# Each script is one step that no other client comes between. A job is a hash, its events are a list.
_REPORT = """
local function report(events, kind, data)
  redis.call('RPUSH', events, cjson.encode({kind, data}))
end
"""

_ADD = f"""{_REPORT}
local waiting = redis.call('ZCARD', KEYS[1])
if waiting >= tonumber(ARGV[1]) then return 0 end
if ARGV[3] ~= '' then
  local own = 0
  for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    if redis.call('HGET', ARGV[7] .. id, 'owner') == ARGV[3] then own = own + 1 end
  end
  if own >= tonumber(ARGV[6]) then return 0 end
end
redis.call('HSET', KEYS[2], 'owner', ARGV[3], 'request', ARGV[4], 'status', 'queued', 'lease', '0',
  'service', '', 'attempts', '0', 'cancelled', '0')
redis.call('ZADD', KEYS[1], ARGV[5], ARGV[2])
report(KEYS[3], 'queued', cjson.encode({{ahead = waiting, at = tonumber(ARGV[5])}}))
return 1
"""

_CLAIM = """
local ids = ARGV[4] ~= '' and {ARGV[4]} or redis.call('ZRANGE', KEYS[1], 0, -1)
local first, turn
for _, id in ipairs(ids) do
  local found = redis.call('HMGET', ARGV[5] .. id, 'lease', 'owner')
  if found[1] and redis.call('ZSCORE', KEYS[1], id) and tonumber(found[1]) < tonumber(ARGV[2]) then
    local last = tonumber(redis.call('HGET', KEYS[2], found[2]) or 0)
    if not first or last < turn then first, turn = id, last end
  end
end
if not first then return false end
local job = ARGV[5] .. first
local attempts = redis.call('HINCRBY', job, 'attempts', 1)
redis.call('HSET', job, 'status', 'running', 'service', ARGV[1], 'lease', ARGV[3])
local found = redis.call('HMGET', job, 'owner', 'request', 'cancelled')
redis.call('HSET', KEYS[2], found[1], ARGV[2])
return {first, found[1], found[2], attempts, found[3]}
"""

_RENEW = """
if redis.call('HGET', KEYS[1], 'service') ~= ARGV[1] or redis.call('HEXISTS', KEYS[1], 'ended') == 1 then
  return false
end
redis.call('HSET', KEYS[1], 'lease', ARGV[2])
return redis.call('HGET', KEYS[1], 'cancelled')
"""

_RELEASE = """
if redis.call('HGET', KEYS[1], 'service') == ARGV[1] and redis.call('HEXISTS', KEYS[1], 'ended') == 0 then
  redis.call('HSET', KEYS[1], 'status', 'queued', 'service', '', 'lease', '0')
  redis.call('HINCRBY', KEYS[1], 'attempts', -1)
end
"""

_TOLD = f"""{_REPORT}
if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], 'ended') == 0 then
  report(KEYS[2], ARGV[1], ARGV[2])
end
"""

# KEYS: open jobs, job, events, answer to equal questions
_END = f"""{_REPORT}
if ARGV[9] == '' and (redis.call('EXISTS', KEYS[2]) == 0 or redis.call('HEXISTS', KEYS[2], 'ended') == 1) then
  return 0
end
if ARGV[9] ~= '' then redis.call('HSET', KEYS[2], 'owner', string.sub(ARGV[9], 2)) end
redis.call('HSET', KEYS[2], 'status', ARGV[2], 'code', ARGV[3], 'body', ARGV[4], 'ended', ARGV[5])
redis.call('HDEL', KEYS[2], 'request')
redis.call('ZREM', KEYS[1], ARGV[1])
report(KEYS[3], 'done', ARGV[6])
redis.call('EXPIRE', KEYS[2], ARGV[7])
redis.call('EXPIRE', KEYS[3], ARGV[7])
if ARGV[8] == '1' then redis.call('SET', KEYS[4], ARGV[1], 'EX', ARGV[7]) end
return 1
"""


class RedisStore:
    """A store for any number of services; Redis removes what has reached the end of its retention."""

    durable = True

    def __init__(self, url: str, retention: float) -> None:
        """`retention` in seconds. Redis need not be there yet."""
        self._redis: Any = connect(url)
        self._retention = max(1, int(retention))
        self._answers = True
        scripts = (_ADD, _CLAIM, _RENEW, _RELEASE, _TOLD, _END)
        (self._add, self._claim, self._renew, self._release, self._told, self._end) = map(
            self._redis.register_script, scripts
        )

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

    def add(self, job: str, owner: str, request: str, *, most: int, share: int, now: float) -> bool:
        """Accept a job; False where `most` are open already, or `share` of an owner with a name."""
        facts: list[Any] = [most, job, owner, request, now, share, _job("")]
        with self._asking():
            return bool(self._add([OPEN, _job(job), _events(job)], facts))

    def claim(self, service: str, *, now: float, until: float, only: str = "") -> Claim | None:
        """Take a job, or `only` this one, and hold it until then: that of the owner whose turn was longest
        ago, of one owner's the one that has waited longest.
        """
        with self._asking():
            found = self._claim([OPEN, TURNS], [service, now, until, only, _job("")])
        if not found:
            return None
        job, owner, request, attempts, cancelled = found
        return Claim(job, owner, request, int(attempts), cancelled == "1")

    def renew(self, service: str, jobs: Iterable[str], *, until: float) -> Mapping[str, bool]:
        """Hold jobs for longer: those still held, and whether each is to be cancelled."""
        with self._asking():
            answers = {job: self._renew([_job(job)], [service, until]) for job in jobs}
        return {job: answer == "1" for job, answer in answers.items() if answer is not None}

    def release(self, service: str, job: str) -> None:
        """Give a job back; this attempt does not count."""
        with self._asking():
            self._release([_job(job)], [service])

    def report(self, job: str, kind: str, data: Mapping[str, Any]) -> None:
        """Add an event; of a job that has ended, or that nobody knows, nothing is added."""
        with self._asking():
            self._told([_job(job), _events(job)], [kind, _dated(data)])

    def end(self, job: str, ending: Ending, *, now: float) -> bool:
        """End a job, once: False where it has ended already, or is unknown."""
        return self._ended(job, ending, now, "")

    def keep(self, job: str, owner: str, ending: Ending, *, now: float) -> None:
        """Keep an answer that was no job, to be read by its id."""
        self._ended(job, ending, now, f"={owner}")

    def _ended(self, job: str, ending: Ending, now: float, owner: str) -> bool:
        keys = [OPEN, _job(job), _events(job), _equal(ending.key)]
        facts: list[Any] = [
            job,
            str(ending.status),
            ending.code,
            ending.body,
            now,
            _dated(ending.told),
            self._retention,
        ]
        with self._asking():
            return bool(self._end(keys, [*facts, int(bool(ending.key)), owner]))

    def cancel(self, job: str) -> None:
        """Note that a job is to be cancelled."""
        with self._asking():
            if self._redis.zscore(OPEN, job) is not None:
                self._redis.hset(_job(job), "cancelled", "1")

    def get(self, job: str, *, since: float) -> Kept | None:
        """A job; None where it is unknown or ended before `since`."""
        with self._asking():
            owner, status, code, body, ended = self._redis.hmget(
                _job(job), ["owner", "status", "code", "body", "ended"]
            )
        if status is None or (ended is not None and float(ended) < since):
            return None
        return Kept(job, owner, Status(status), None if code is None else int(code), body)

    def events(self, job: str, after: int) -> Sequence[Event]:
        """A job's events with higher numbers, in their order."""
        with self._asking():
            found = self._redis.lrange(_events(job), after, -1)
        return [Event(number, *json.loads(text)) for number, text in enumerate(found, start=after + 1)]

    def find(self, key: str, *, since: float) -> Answer | None:
        """The newest answer to an equal question."""
        with self._asking():
            job: Any = self._redis.get(_equal(key)) if key else None
            found: Any = (
                self._redis.hmget(_job(job), ["body", "ended", "owner"]) if job else (None, None, None)
            )
        body, ended, owner = found
        if body is None or ended is None or float(ended) < since:
            return None
        return Answer(body, float(ended), job, owner)

    def open(self) -> Mapping[str, int]:
        """How many jobs are queued, and how many are running."""
        with self._asking(), self._redis.pipeline(transaction=False) as pipeline:
            for job in self._redis.zrange(OPEN, 0, -1):
                pipeline.hget(_job(job), "status")
            found = Counter(pipeline.execute())
        return {str(state): found[str(state)] for state in OPEN_STATES}

    def purge(self, before: float) -> int:
        """Nothing: Redis does it by itself."""
        return 0


def _dated(data: Mapping[str, Any]) -> str:
    return json.dumps({**data, "at": round(time(), 3)})


def _job(job: str) -> str:
    return f"{PREFIX}:job:{job}"


def _events(job: str) -> str:
    return f"{PREFIX}:events:{job}"


def _equal(key: str) -> str:
    return f"{PREFIX}:equal:{key}"
