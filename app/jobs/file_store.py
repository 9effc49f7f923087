"""Jobs in an SQLite file of the data folder: for one service, or several on one host."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from time import time
from typing import Any

from app.files import private
from app.jobs.store import OPEN_STATES, Answer, Claim, Ending, Event, Kept, Status, StoreUnavailable

FILE = "jobs.sqlite"

BUSY = 10.0
"""Seconds to wait for another process that writes."""

VERSION = 1
"""Of the tables below; a file of another version is left alone."""

_TABLES = """
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, request TEXT NOT NULL, status TEXT NOT NULL,
    created REAL NOT NULL, service TEXT NOT NULL DEFAULT '', lease REAL NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0, cancelled INTEGER NOT NULL DEFAULT 0,
    ended REAL, code INTEGER, body TEXT, key TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS jobs_open ON jobs (created) WHERE ended IS NULL;
CREATE INDEX IF NOT EXISTS jobs_ended ON jobs (ended) WHERE ended IS NOT NULL;
CREATE INDEX IF NOT EXISTS jobs_key ON jobs (key, ended) WHERE key <> '';
CREATE TABLE IF NOT EXISTS turns (owner TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    job TEXT NOT NULL, number INTEGER NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL,
    PRIMARY KEY (job, number)
) WITHOUT ROWID;
"""


class FileStore:
    """One connection, used by one thread at a time; WAL, so that readers never wait for a writer."""

    durable = True

    def __init__(self, folder: Path | None) -> None:
        """`folder` None keeps everything in memory. Raises StoreUnavailable."""
        self._lock = Lock()
        self.durable = folder is not None
        self._file = None if folder is None else folder / FILE
        self._failed: sqlite3.Error | None = None
        try:
            file = ":memory:" if folder is None else str(private(folder, FILE))
            self._opened = _inode(self._file)
            self._base = sqlite3.connect(file, timeout=BUSY, isolation_level=None, check_same_thread=False)
            # An accepted job outlives a power cut, not only the process: FULL is SQLite's default.
            self._base.execute("PRAGMA journal_mode=WAL")
            (version,) = self._base.execute("PRAGMA user_version").fetchone()
            if version not in (0, VERSION):
                raise StoreUnavailable(f"{FILE} is of version {version}, this Faultbook writes {VERSION}")
            self._base.executescript(_TABLES)
            self._base.execute(f"PRAGMA user_version={VERSION}")
        except (OSError, sqlite3.Error) as error:
            raise StoreUnavailable(f"{folder}: {error}") from error

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._base.close()

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
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction that no other writer comes between."""
        with self._lock:
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
        with self._lock:
            try:
                return self._base.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise StoreUnavailable(str(error)) from error

    def add(self, job: str, owner: str, request: str, *, most: int, share: int, now: float) -> bool:
        """Accept a job; False where `most` are open already, or `share` of an owner with a name."""
        with self._writing() as base:
            waiting, own = base.execute(
                "SELECT count(*), count(*) FILTER (WHERE owner = ? AND owner <> '') FROM jobs"
                " WHERE ended IS NULL",
                (owner,),
            ).fetchone()
            if waiting >= most or own >= share:
                return False
            base.execute(
                "INSERT INTO jobs (id, owner, request, status, created) VALUES (?, ?, ?, ?, ?)",
                (job, owner, request, Status.QUEUED, now),
            )
            _report(base, job, "queued", {"ahead": waiting})
        return True

    def claim(self, service: str, *, now: float, until: float, only: str = "") -> Claim | None:
        """Take a job, or `only` this one, and hold it until then: that of the owner whose turn was longest
        ago, of one owner's the one that has waited longest.
        """
        with self._writing() as base:
            found = base.execute(
                "SELECT id, owner, request, attempts + 1, cancelled FROM jobs LEFT JOIN turns USING (owner)"
                " WHERE ended IS NULL AND lease < ? AND (id = ? OR ? = '')"
                " ORDER BY coalesce(turns.at, 0), created LIMIT 1",
                (now, only, only),
            ).fetchone()
            if found is None:
                return None
            found_id, owner, request, attempts, cancelled = found
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
            ended = base.execute(
                "UPDATE jobs SET status = ?, code = ?, body = ?, key = ?, ended = ?, request = ''"
                " WHERE id = ? AND ended IS NULL",
                (ending.status, ending.code, ending.body, ending.key, now, job),
            )
            if ended.rowcount != 1:
                return False
            _report(base, job, "done", ending.told)
        return True

    def keep(self, job: str, owner: str, ending: Ending, *, now: float) -> None:
        """Keep an answer that was no job, to be read by its id."""
        with self._writing() as base:
            base.execute(
                "INSERT INTO jobs (id, owner, request, status, created, ended, code, body, key)"
                " VALUES (?, ?, '', ?, ?, ?, ?, ?, ?)",
                (job, owner, ending.status, now, now, ending.code, ending.body, ending.key),
            )
            _report(base, job, "done", ending.told)

    def cancel(self, job: str) -> None:
        """Note that a job is to be cancelled."""
        with self._writing() as base:
            base.execute("UPDATE jobs SET cancelled = 1 WHERE id = ? AND ended IS NULL", (job,))

    def get(self, job: str, *, since: float) -> Kept | None:
        """A job; None where it is unknown or ended before `since`."""
        rows = self._read(
            "SELECT id, owner, status, code, body FROM jobs WHERE id = ? AND (ended IS NULL OR ended >= ?)",
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
            "SELECT body, ended, id, owner FROM jobs WHERE key = ? AND key <> '' AND ended >= ?"
            " ORDER BY ended DESC LIMIT 1",
            key,
            since,
        )
        return next((Answer(*row) for row in rows), None)

    def open(self) -> Mapping[str, int]:
        """How many jobs are queued, and how many are running."""
        rows = self._read("SELECT status, count(*) FROM jobs WHERE ended IS NULL GROUP BY status")
        return {str(state): 0 for state in OPEN_STATES} | {str(status): int(count) for status, count in rows}

    def purge(self, before: float) -> int:
        """Forget jobs that ended before; how many."""
        with self._writing() as base:
            base.execute("DELETE FROM events WHERE job IN (SELECT id FROM jobs WHERE ended < ?)", (before,))
            return base.execute("DELETE FROM jobs WHERE ended < ?", (before,)).rowcount


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


def _report(base: sqlite3.Connection, job: str, kind: str, data: Mapping[str, Any]) -> None:
    base.execute(
        "INSERT INTO events SELECT ?, coalesce(max(number), 0) + 1, ?, ? FROM events WHERE job = ?",
        (job, kind, json.dumps({**data, "at": round(time(), 3)}), job),
    )
