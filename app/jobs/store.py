"""What is remembered of a job, and what a store of jobs does.

A service that works on a job holds its lease and renews it. A lease that runs out says that its service has
gone; any service that shares the store may then take the job. So a restart loses nothing, and the services
of one store need not know of each other.

A store has room for so many bytes and no more. Jobs that are open keep theirs; of what has ended the oldest
is forgotten for what comes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Any, Protocol


class Status(StrEnum):
    """Where a job is. The first two are on the way, the others are ends."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    FAILED = "failed"

    @property
    def is_end(self) -> bool:
        """Whether nothing will change any more."""
        return self not in (Status.QUEUED, Status.RUNNING)


OPEN_STATES = tuple(state for state in Status if not state.is_end)


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that a service has taken.

    request    what was asked, as `app.jobs.asking` writes it
    attempts   times that it was taken, this one included, without having been given back
    cancelled  somebody has asked for its end
    """

    id: str
    owner: str
    request: str
    attempts: int
    cancelled: bool


@dataclass(frozen=True, slots=True)
class Kept:
    """A job as it is read. `code` and `body` are the HTTP status and JSON of its end, None before it."""

    id: str
    owner: str
    status: Status
    code: int | None
    body: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """A stored diagnosis of an equal question: its job and whose that is, and when it was made, seconds since
    1970.
    """

    body: str
    at: float
    id: str
    owner: str


@dataclass(frozen=True, slots=True)
class Event:
    """One step of a job; `number` counts from 1 within it, `data` is JSON with the time in its `at`."""

    number: int
    kind: str
    data: str


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job ended, with the HTTP status and JSON that it is answered with.

    key      identifies the question where equal ones may be answered by it; empty: none may
    verdict  of the diagnosis; empty where there is none
    """

    status: Status
    code: int
    body: str
    key: str = ""
    verdict: str = ""

    @property
    def told(self) -> dict[str, str]:
        """What its last event says."""
        return {"status": self.status, "verdict": self.verdict} if self.verdict else {"status": self.status}


class Admission(Enum):
    """What became of a job that was to be accepted."""

    ACCEPTED = auto()
    MANY = auto()
    """As many jobs are open as there may be, or as one owner may have."""
    FULL = auto()
    """What open jobs ask takes all the bytes that it may take, or that one owner's may."""


EACH = 2048
"""Bytes that a job takes beside its texts: rows or keys, and what these leave empty of their pages."""

EACH_EVENT = 64
"""The same of an event."""


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that a store may take.

    limit  all together; what is written last stays, also where it alone is more than all others may take
    """

    limit: int

    @property
    def open(self) -> int:
        """What open jobs ask, so that there is room for the answers: half."""
        return self.limit // 2

    @property
    def share(self) -> int:
        """What one owner with a name has, beyond which its own oldest go: a fourth."""
        return self.limit // 4

    @property
    def open_share(self) -> int:
        """What open jobs of one owner with a name ask: a fourth of all open jobs' part."""
        return self.open // 4


UNBOUNDED = Room(1 << 60)


class StoreUnavailable(Exception):
    """The store cannot be reached or written now; the message says why."""


class Store(Protocol):
    """Jobs with their events and ends; calls block, and raise StoreUnavailable.

    Times are seconds since 1970, so that services of several hosts agree on them.
    """

    durable: bool
    """Whether jobs outlive this process."""

    def trouble(self) -> str:
        """Why what is accepted now may be lost, or nothing is; empty where all is well. Does not block."""

    def add(self, job: str, owner: str, request: str, *, most: int, share: int, now: float) -> Admission:
        """Accept a job, unless `most` are open already, or `share` of an owner with a name, or there is no
        room for what it asks.
        """

    def now(self) -> float:
        """The time that leases are counted by, the same for all services of the store."""

    def claim(
        self, service: str, *, now: float, until: float, only: str = "", but: Collection[str] = ()
    ) -> Claim | None:
        """Take a job, or `only` this one, and hold it until then: that of the owner whose turn was longest
        ago, of one owner's the one that has waited longest. None of those of `but`.

        A lease that ends later than one can that was given now is of a clock that has been set back since:
        it holds nothing.
        """

    def renew(self, service: str, jobs: Iterable[str], *, until: float) -> Mapping[str, bool]:
        """Hold jobs for longer: those still held, and whether each is to be cancelled."""

    def release(self, service: str, job: str) -> None:
        """Give a job back; this attempt does not count."""

    def report(self, job: str, kind: str, data: Mapping[str, Any]) -> None:
        """Add an event; of a job that has ended, or that nobody knows, nothing is added."""

    def end(self, job: str, ending: Ending, *, now: float) -> bool:
        """End a job, once: False where it has ended already, or is unknown."""

    def keep(self, job: str, owner: str, ending: Ending, *, now: float) -> None:
        """Keep an answer that was no job, to be read by its id."""

    def cancel(self, job: str) -> None:
        """Note that a job is to be cancelled."""

    def get(self, job: str, *, since: float) -> Kept | None:
        """A job; None where it is unknown or ended before `since`."""

    def events(self, job: str, after: int) -> Sequence[Event]:
        """A job's events with higher numbers, in their order."""

    def find(self, key: str, *, since: float) -> Answer | None:
        """The newest answer to an equal question."""

    def open(self) -> Mapping[str, int]:
        """How many jobs are queued, and how many are running."""

    def kept(self) -> int:
        """Bytes that jobs take, open ones and ended ones."""

    def purge(self, before: float) -> int:
        """Forget jobs that ended before, and the oldest beyond what there is room for; how many. Gives back
        the space that this has freed.
        """

    def close(self) -> None:
        """Let go of files and connections."""
