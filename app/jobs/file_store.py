"""Jobs in an SQLite file of the data folder: for one service, or several on one host."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from time import time
from typing import Any, TypeVar

from app.files import private
from app.jobs.store import (
    EACH,
    EACH_EVENT,
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
from app.jobs.tables import VERSION as VERSION
from app.jobs.tables import give_back, make_room, prepare

FILE = "jobs.sqlite"

BUSY = 5.0
"""Seconds to wait for another process that writes, and as long again for whoever waits for that."""

STEP = 2048
"""Free pages that are given back to the disk in one transaction: others may write in between."""

FORGOTTEN = 500
"""The same of jobs that there is no room for."""

T = TypeVar("T")


class FileStore:
    """One connection that writes and one that reads, each used by one thread at a time; WAL, so that who
    reads never waits for who writes, nor for another process that does.

    Pages that are freed are used again before the file grows, and what is free is given back by `purge`.
    """

    durable = True

    def __init__(self, folder: Path | None, room: Room = UNBOUNDED) -> None:
        """`folder` None keeps everything in memory. Raises StoreUnavailable."""
        self._lock = Lock()
        self._room = room
        self.durable = folder is not None
        self._file = None if folder is None else folder / FILE
        self._failed: sqlite3.Error | None = None
        try:
            file = ":memory:" if folder is None else str(private(folder, FILE))
            self._opened = _inode(self._file)
            self._base = _connected(file)
            prepare(self._base, room)
            self._reader, self._reading = self._base, self._lock
            if folder is not None:
                self._reader, self._reading = _connected(file), Lock()
                self._reader.execute("PRAGMA query_only=ON")
                self._reader.execute("SELECT 1 FROM jobs LIMIT 1").fetchall()  # opens its files now
        except (OSError, sqlite3.Error) as error:
            raise StoreUnavailable(f"{folder}: {error}") from error

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._base.close()
        with self._reading:
            self._reader.close()

    def trouble(self) -> str:
        """Why what is accepted now may not outlive this process; empty where it does. Looks at the file, not
        into it.
        """
        if self._file is None:
            return ""
        if (found := _inode(self._file)) != self._opened:
            gone = "replaced" if found else "removed"
            return f"{FILE} was {gone} while it was in use: what is kept is lost with the next restart"
        for path in (self._file, self._file.parent):
            if not os.access(path, os.W_OK):
                return f"{path.name} cannot be written any more: after a restart nothing is kept"
        return f"the last that came was not kept: {self._failed}" if self._failed else ""

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else of this process writes. Who waits behind one that waits does not wait anew then."""
        if not self._lock.acquire(timeout=BUSY):
            raise StoreUnavailable("others wait for it too")
        try:
            yield
        finally:
            self._lock.release()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction that no other writer comes between."""
        with self._alone():
            before = self._base.total_changes
            try:
                self._base.execute("BEGIN IMMEDIATE")
                try:
                    yield self._base
                except BaseException:
                    if self._base.in_transaction:  # SQLite has ended it itself where the disk is full
                        self._base.execute("ROLLBACK")
                    raise
                self._base.execute("COMMIT")
            except sqlite3.Error as error:
                self._failed = error
                raise StoreUnavailable(str(error)) from error
            # A full disk lets transactions through that change nothing.
            if self._base.total_changes != before or _waited(self._failed):
                self._failed = None

    def _read(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._reading:
            try:
                return self._reader.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise StoreUnavailable(str(error)) from error

    def _aside(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What writes without a transaction of ours."""
        with self._alone():
            try:
                return work(self._base)
            except sqlite3.Error as error:
                raise StoreUnavailable(str(error)) from error

    def add(self, job: str, owner: str, request: str, *, most: int, share: int, now: float) -> Admission:
        """Accept a job, unless `most` are open already, or `share` of an owner with a name, or there is no
        room for what it asks.
        """
        size = _size(request)
        with self._writing() as base:
            own = "FILTER (WHERE owner = ? AND owner <> '')"
            waiting, of_one, asked, asked_by_one = base.execute(
                f"SELECT count(*), count(*) {own}, ifnull(sum(size), 0), ifnull(sum(size) {own}, 0) FROM jobs"
                " WHERE ended IS NULL",
                (owner, owner),
            ).fetchone()
            if waiting >= most or of_one >= share:
                return Admission.MANY
            if asked + size > self._room.open or (owner and asked_by_one + size > self._room.open_share):
                return Admission.FULL
            base.execute(
                "INSERT INTO jobs (id, owner, status, created, size) VALUES (?, ?, ?, ?, ?)",
                (job, owner, Status.QUEUED, now, size),
            )
            base.execute("INSERT INTO texts VALUES (?, ?)", (job, request))
            _report(base, job, "queued", {"ahead": waiting})
            make_room(base, self._room, owner)
        return Admission.ACCEPTED

    def now(self) -> float:
        """The time that leases are counted by: this host's."""
        return time()

    def claim(
        self, service: str, *, now: float, until: float, only: str = "", but: Collection[str] = ()
    ) -> Claim | None:
        """Take a job, or `only` this one, and hold it until then: that of the owner whose turn was longest
        ago, of one owner's the one that has waited longest. None of those of `but`.
        """
        with self._writing() as base:
            found = base.execute(
                "SELECT id, owner, attempts + 1, cancelled FROM jobs LEFT JOIN turns USING (owner)"
                " WHERE ended IS NULL AND (lease < ? OR lease > ?) AND (id = ? OR ? = '')"
                " AND id NOT IN (SELECT value FROM json_each(?))"
                " ORDER BY min(coalesce(turns.at, 0), ?), created LIMIT 1",
                (now, until + (until - now), only, only, json.dumps(list(but)), now),
            ).fetchone()
            if found is None:
                return None
            found_id, owner, attempts, cancelled = found
            (request,) = base.execute("SELECT text FROM texts WHERE job = ?", (found_id,)).fetchone()
            claim = Claim(found_id, owner, request, attempts, bool(cancelled))
            base.execute(
                "UPDATE jobs SET status = ?, service = ?, lease = ?, attempts = attempts + 1 WHERE id = ?",
                (Status.RUNNING, service, until, claim.id),
            )
            base.execute("INSERT OR REPLACE INTO turns VALUES (?, ?)", (owner, now))
        return claim

    def renew(self, service: str, jobs: Iterable[str], *, until: float) -> Mapping[str, bool]:
        """Hold jobs for longer: those still held, and whether each is to be cancelled."""
        held: dict[str, bool] = {}
        with self._writing() as base:
            for job in jobs:
                row = base.execute(
                    "UPDATE jobs SET lease = ? WHERE id = ? AND service = ? AND ended IS NULL"
                    " RETURNING cancelled",
                    (until, job, service),
                ).fetchone()
                if row is not None:
                    held[job] = bool(row[0])
        return held

    def release(self, service: str, job: str) -> None:
        """Give a job back; this attempt does not count."""
        with self._writing() as base:
            base.execute(
                "UPDATE jobs SET status = ?, service = '', lease = 0, attempts = attempts - 1"
                " WHERE id = ? AND service = ? AND ended IS NULL",
                (Status.QUEUED, job, service),
            )

    def report(self, job: str, kind: str, data: Mapping[str, Any]) -> None:
        """Add an event; of a job that has ended, or that nobody knows, nothing is added."""
        with self._writing() as base:
            if base.execute("SELECT 1 FROM jobs WHERE id = ? AND ended IS NULL", (job,)).fetchone():
                _report(base, job, kind, data)

    def end(self, job: str, ending: Ending, *, now: float) -> bool:
        """End a job, once: False where it has ended already, or is unknown."""
        with self._writing() as base:
            found = base.execute("SELECT owner FROM jobs WHERE id = ? AND ended IS NULL", (job,)).fetchone()
            if found is None:
                return False
            _report(base, job, "done", ending.told)
            base.execute("UPDATE texts SET text = ? WHERE job = ?", (ending.body, job))
            base.execute(
                "UPDATE jobs SET status = ?, code = ?, key = ?, ended = ?, size = ? WHERE id = ?",
                (ending.status, ending.code, ending.key, now, _taken(base, job, ending), job),
            )
            make_room(base, self._room, found[0], job)
        return True

    def keep(self, job: str, owner: str, ending: Ending, *, now: float) -> None:
        """Keep an answer that was no job, to be read by its id."""
        with self._writing() as base:
            _report(base, job, "done", ending.told)
            base.execute(
                "INSERT INTO jobs (id, owner, status, code, key, created, ended, size)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (job, owner, ending.status, ending.code, ending.key, now, now, _taken(base, job, ending)),
            )
            base.execute("INSERT INTO texts VALUES (?, ?)", (job, ending.body))
            make_room(base, self._room, owner, job)

    def cancel(self, job: str) -> None:
        """Note that a job is to be cancelled."""
        with self._writing() as base:
            base.execute("UPDATE jobs SET cancelled = 1 WHERE id = ? AND ended IS NULL", (job,))

    def get(self, job: str, *, since: float) -> Kept | None:
        """A job; None where it is unknown or ended before `since`."""
        rows = self._read(
            "SELECT id, owner, status, code, CASE WHEN ended IS NOT NULL THEN text END"
            " FROM jobs JOIN texts ON job = id WHERE id = ? AND (ended IS NULL OR ended >= ?)",
            job,
            since,
        )
        return next((Kept(found, owner, Status(status), *end) for found, owner, status, *end in rows), None)

    def events(self, job: str, after: int) -> Sequence[Event]:
        """A job's events with higher numbers, in their order."""
        rows = self._read(
            "SELECT number, kind, data FROM events WHERE job = ? AND number > ? ORDER BY number", job, after
        )
        return [Event(*row) for row in rows]

    def find(self, key: str, *, since: float) -> Answer | None:
        """The newest answer to an equal question."""
        rows = self._read(
            "SELECT text, ended, id, owner FROM jobs JOIN texts ON job = id"
            " WHERE key = ? AND key <> '' AND ended >= ?"
            " ORDER BY ended DESC LIMIT 1",
            key,
            since,
        )
        return next((Answer(*row) for row in rows), None)

    def open(self) -> Mapping[str, int]:
        """How many jobs are queued, and how many are running."""
        rows = self._read("SELECT status, count(*) FROM jobs WHERE ended IS NULL GROUP BY status")
        return {str(state): 0 for state in OPEN_STATES} | {str(status): int(count) for status, count in rows}

    def kept(self) -> int:
        """Bytes that jobs take, open ones and ended ones."""
        return int(self._read("SELECT ifnull(sum(bytes), 0) FROM sizes")[0][0])

    def purge(self, before: float) -> int:
        """Forget jobs that ended before, and the oldest beyond what there is room for; how many. Gives back
        the space that this has freed.
        """
        with self._writing() as base:
            gone = base.execute("DELETE FROM jobs WHERE ended < ?", (before,)).rowcount
        while True:
            with self._writing() as base:
                more = make_room(base, self._room, most=FORGOTTEN)
            gone += more
            if more < FORGOTTEN:
                break
        while self._aside(lambda base: give_back(base, STEP)):
            pass
        self._aside(lambda base: base.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall())
        return gone


def _connected(file: str) -> sqlite3.Connection:
    return sqlite3.connect(file, timeout=BUSY, isolation_level=None, check_same_thread=False)


def _waited(error: sqlite3.Error | None) -> bool:
    """Whether it was only that another process wrote for too long."""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY


def _inode(file: Path | None) -> tuple[int, int] | None:
    """Which file this is, whatever its name; None where there is none."""
    try:
        found = file.stat() if file is not None else None
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found is not None else None


def _size(text: str) -> int:
    """Bytes that a job with this text takes, without its events."""
    return len(text.encode()) + EACH


def _taken(base: sqlite3.Connection, job: str, ending: Ending) -> int:
    """Bytes that a job takes once it has ended, all its events written."""
    (events,) = base.execute(
        "SELECT sum(length(data) + ?) FROM events WHERE job = ?", (EACH_EVENT, job)
    ).fetchone()
    return _size(ending.body) + int(events)


def _report(base: sqlite3.Connection, job: str, kind: str, data: Mapping[str, Any]) -> None:
    base.execute(
        "INSERT INTO events SELECT ?, coalesce(max(number), 0) + 1, ?, ? FROM events WHERE job = ?",
        (job, kind, json.dumps({**data, "at": round(time(), 3)}), job),
    )
