"""The tables of jobs in SQLite: made where there are none, brought up to date where they are older."""

from __future__ import annotations

import logging
import sqlite3

from app.jobs.store import EACH, Room, StoreUnavailable

VERSION = 2
"""Of the tables below; a file of a later version is left alone."""

log = logging.getLogger("faultbook.jobs")

# Texts stand apart: to look through jobs, or to change one, is not to read or write what they ask and answer.
# How many bytes jobs take stands in `sizes`, by owner. Triggers keep it: no statement can forget to.
_TABLES = (
    """CREATE TABLE jobs (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, status TEXT NOT NULL, created REAL NOT NULL,
    service TEXT NOT NULL DEFAULT '', lease REAL NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0, cancelled INTEGER NOT NULL DEFAULT 0,
    ended REAL, code INTEGER, key TEXT NOT NULL DEFAULT '', size INTEGER NOT NULL
) WITHOUT ROWID""",
    "CREATE TABLE texts (job TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE IF NOT EXISTS events (
    job TEXT NOT NULL, number INTEGER NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL,
    PRIMARY KEY (job, number)
) WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS turns (owner TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID",
    "CREATE TABLE sizes (owner TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX jobs_open ON jobs (created) WHERE ended IS NULL",
    "CREATE INDEX jobs_ended ON jobs (ended) WHERE ended IS NOT NULL",
    "CREATE INDEX jobs_owner ON jobs (owner, ended) WHERE ended IS NOT NULL",
    "CREATE INDEX jobs_key ON jobs (key, ended) WHERE key <> ''",
    """CREATE TRIGGER job_added AFTER INSERT ON jobs BEGIN
    INSERT INTO sizes VALUES (new.owner, new.size)
        ON CONFLICT (owner) DO UPDATE SET bytes = bytes + excluded.bytes;
END""",
    """CREATE TRIGGER job_changed AFTER UPDATE OF size ON jobs BEGIN
    UPDATE sizes SET bytes = bytes + new.size - old.size WHERE owner = new.owner;
END""",
    """CREATE TRIGGER job_gone AFTER DELETE ON jobs BEGIN
    UPDATE sizes SET bytes = bytes - old.size WHERE owner = old.owner;
    DELETE FROM sizes WHERE owner = old.owner AND bytes <= 0;
    DELETE FROM events WHERE job = old.id;
    DELETE FROM texts WHERE job = old.id;
END""",
)

_FIRST_ASIDE = (
    "ALTER TABLE jobs RENAME TO first",
    *(f"DROP INDEX jobs_{name}" for name in ("open", "ended", "key")),
)

_FIRST_MOVED = (
    f"""INSERT INTO jobs
    SELECT id, owner, status, created, service, lease, attempts, cancelled, ended, code, key,
        {EACH} + length(CAST(ifnull(body, request) AS BLOB))
    FROM first""",
    "INSERT INTO texts SELECT id, ifnull(body, request) FROM first",
    "DROP TABLE first",
)


def prepare(base: sqlite3.Connection, room: Room) -> None:
    """Make the tables, or bring them up to date; raises sqlite3.Error and StoreUnavailable.

    A new file gives freed pages back to the disk when it is told to; one that was made by version 1 learns
    to by being written anew, once, without what there is no room for.
    """
    base.execute("PRAGMA auto_vacuum=INCREMENTAL")  # of a new file, before anything is in it
    # An accepted job outlives a power cut, not only the process: FULL is SQLite's default.
    base.execute("PRAGMA journal_mode=WAL")
    base.execute(f"PRAGMA journal_size_limit={16 << 20}")
    if _version(base) == VERSION:
        return
    base.execute("BEGIN IMMEDIATE")
    try:
        before = _version(base)  # another process may have made them meanwhile
        if before > VERSION:
            raise StoreUnavailable(f"the file is of version {before}, this Faultbook writes {VERSION}")
        # One that ended between its tables and their version has left version 0.
        tables = base.execute("SELECT 1 FROM sqlite_schema WHERE name = 'jobs'").fetchone()
        older = before < VERSION and tables is not None
        steps = (*_FIRST_ASIDE, *_TABLES, *_FIRST_MOVED) if older else _TABLES
        for statement in steps if before < VERSION else ():
            base.execute(statement)
        base.execute(f"PRAGMA user_version={VERSION}")
        make_room(base, room)
        base.execute("COMMIT")
    except BaseException:
        if base.in_transaction:
            base.execute("ROLLBACK")
        raise
    if older:
        _write_anew(base)


def _version(base: sqlite3.Connection) -> int:
    (version,) = base.execute("PRAGMA user_version").fetchone()
    return int(version)


def _write_anew(base: sqlite3.Connection) -> None:
    try:
        base.execute("VACUUM")
    except sqlite3.Error as error:
        log.warning("the file of jobs stays as long as it is, its free pages are used again: %s", error)


def make_room(
    base: sqlite3.Connection, room: Room, owner: str = "", but: str = "", most: int | None = None
) -> int:
    """Forget ended jobs, the oldest first and never `but`, until there is room: the owner's own while it has
    more than its share, then anybody's. How many, at most `most`.
    """
    gone = 0
    while most is None or gone < most:
        total, own = base.execute(
            "SELECT ifnull(sum(bytes), 0), ifnull(sum(bytes) FILTER (WHERE owner = ? AND owner <> ''), 0)"
            " FROM sizes",
            (owner,),
        ).fetchone()
        forgotten = (own > room.share and _forget_oldest(base, but, "owner = ?", owner)) or (
            total > room.limit and _forget_oldest(base, but)
        )
        if not forgotten:
            break
        gone += 1
    return gone


def _forget_oldest(base: sqlite3.Connection, but: str, whose: str = "true", *values: str) -> bool:
    oldest = f"SELECT id FROM jobs WHERE ended IS NOT NULL AND id <> ? AND {whose} ORDER BY ended LIMIT 1"
    return base.execute(f"DELETE FROM jobs WHERE id = ({oldest})", (but, *values)).rowcount == 1


def give_back(base: sqlite3.Connection, pages: int) -> bool:
    """Give so many free pages back to the disk; whether there were any."""
    (free,) = base.execute("PRAGMA freelist_count").fetchone()
    if free:
        base.executescript(f"PRAGMA incremental_vacuum({pages})")  # `execute` would give back one page
    (left,) = base.execute("PRAGMA freelist_count").fetchone()
    return bool(left < free)
