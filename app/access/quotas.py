"""GPU seconds by caller and UTC day: counted for everybody, limited for keys that have a quota."""

from __future__ import annotations

import logging
import sqlite3
from asyncio import shield
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from time import time
from typing import Protocol, cast

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from app.access.caller import Caller
from app.errors import Busy, Forbidden, TooManyRequests
from app.files import private

DAY = 86_400
FILE = "usage.sqlite"
KEPT_DAYS = 62

RUNS_OF_ONE = 4
"""Runs that one key may have at once for each worker there is: others find places in the queue."""

log = logging.getLogger("faultbook.access")


class Ledger(Protocol):
    """Where spent seconds stand; `day` counts from 1970-01-01, UTC."""

    def spent(self, owner: str, day: int) -> float:
        """Seconds that the owner has spent on that day."""

    def add(self, owner: str, day: int, seconds: float) -> None:
        """Count seconds."""


class MemoryLedger:
    """Forgets when the process ends: for a data folder that cannot be written."""

    def __init__(self) -> None:
        self._spent: defaultdict[tuple[str, int], float] = defaultdict(float)

    def spent(self, owner: str, day: int) -> float:
        """Seconds that the owner has spent on that day."""
        return self._spent.get((owner, day), 0.0)

    def add(self, owner: str, day: int, seconds: float) -> None:
        """Count seconds; former days are dropped."""
        self._spent[owner, day] += seconds
        for known in [known for known in self._spent if known[1] < day - 1]:
            del self._spent[known]


class FileLedger:
    """A table in the data folder, which services of one host share and a restart keeps."""

    def __init__(self, folder: Path) -> None:
        """Raises sqlite3.Error or OSError where the folder cannot be written."""
        self._file = private(folder, FILE)
        with closing(self._open()) as base, base:
            base.execute("PRAGMA journal_mode=WAL")
            base.execute(
                "CREATE TABLE IF NOT EXISTS spent (owner TEXT, day INTEGER, seconds REAL NOT NULL,"
                " PRIMARY KEY (owner, day)) WITHOUT ROWID"
            )

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._file, timeout=5.0)

    def spent(self, owner: str, day: int) -> float:
        """Seconds that the owner has spent on that day."""
        with closing(self._open()) as base:
            row = base.execute("SELECT seconds FROM spent WHERE owner = ? AND day = ?", (owner, day))
            found: tuple[float] | None = row.fetchone()
        return found[0] if found else 0.0

    def add(self, owner: str, day: int, seconds: float) -> None:
        """Count seconds; days beyond KEPT_DAYS are dropped."""
        with closing(self._open()) as base, base:
            base.execute(
                "INSERT INTO spent VALUES (?, ?, ?)"
                " ON CONFLICT DO UPDATE SET seconds = seconds + excluded.seconds",
                (owner, day, seconds),
            )
            base.execute("DELETE FROM spent WHERE day < ?", (day - KEPT_DAYS,))


@dataclass(slots=True)
class Turn:
    """A run that was admitted, and the seconds for which it had a worker."""

    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Told by whoever had it run."""
        self.seconds += seconds


class Quotas:
    """Admits each run of a key and counts what it took, however it ended. A quota is exceeded by what one
    run takes at most, by one for each replica.

    longest   seconds that one run may take
    """

    def __init__(
        self,
        ledger: Callable[[], Ledger],
        clock: Callable[[], float] = time,
        *,
        named: Callable[[str], Caller | None] = Caller,
        longest: float = 60.0,
    ) -> None:
        """`ledger` is called when the first seconds are counted or asked for; `named` finds a key's caller
        by its name, None where it is gone.
        """
        self._open = ledger
        self._clock = clock
        self._named = named
        self._longest = longest
        self._placed: Counter[str] = Counter()
        # Seconds that what is under way may take.
        self._granted: defaultdict[str, float] = defaultdict(float)
        # What the ledger could not take.
        self._owed: defaultdict[tuple[str, int], float] = defaultdict(float)
        # What it last said, for when it cannot be read.
        self._known: dict[tuple[str, int], float] = {}

    @cached_property
    def _ledger(self) -> Ledger:
        return self._open()

    @asynccontextmanager
    async def run(self, owner: str, places: int) -> AsyncIterator[Turn]:
        """One run of `owner` (a caller's name), which takes one of the `places` that an owner with a name may
        have: TooManyRequests, Busy or Forbidden where it may not begin.
        """
        if owner and self._placed[owner] >= places:
            raise Busy(f"{places} runs of the key {owner} are under way.", retry_after=1)
        self._placed[owner] += 1
        try:
            async with self.beside(owner, self._longest) as turn:
                yield turn
        finally:
            self._placed[owner] -= 1

    @asynccontextmanager
    async def beside(self, owner: str, longest: float) -> AsyncIterator[Turn]:
        """What takes seconds of `owner` and no worker, `longest` at most: TooManyRequests or Forbidden where
        it may not begin.
        """
        turn = Turn()
        others = self._granted[owner]
        self._granted[owner] += longest
        try:
            await run_in_threadpool(self._begin, owner, others)
            yield turn
        finally:
            try:
                # A job that is cancelled has spent what it has spent.
                await shield(run_in_threadpool(self.charge, owner, turn.seconds))
            finally:
                self._granted[owner] -= longest
                if self._granted[owner] < 1e-6:
                    del self._granted[owner]

    def _begin(self, owner: str, others: float) -> None:
        """As `admit`, where others of the owner's that are under way may take so many seconds."""
        caller = self._named(owner)
        if caller is None:
            raise Forbidden(f"The key {owner} is not one of this service any more.")
        left = self._left(caller)
        if others and others >= left:
            raise TooManyRequests(
                f"Runs of the key {owner} that are under way may take the {left:.1f} seconds that are left "
                "of its quota of today.",
                retry_after=self._longest,
            )

    def admit(self, caller: Caller) -> None:
        """Raise TooManyRequests where the caller's seconds of today are spent."""
        self._left(caller)

    def _left(self, caller: Caller) -> float:
        """Seconds of today that the caller has left; TooManyRequests where there are none."""
        if caller.gpu_seconds is None:
            return inf
        now = self._clock()
        spent = self._spent(caller.name, int(now // DAY))
        if spent >= caller.gpu_seconds:
            raise TooManyRequests(
                f"The key {caller.name} has used {spent:.1f} of its {caller.gpu_seconds:g} seconds of runs "
                "today; level checks has no such limit.",
                retry_after=DAY - now % DAY,
            )
        return caller.gpu_seconds - spent

    def charge(self, owner: str, seconds: float) -> None:
        """Count what a run of `owner` (a caller's name) took; what cannot be written now is written with the
        owner's next run, unless the service ends before.
        """
        if seconds <= 0:
            return
        key = owner, int(self._clock() // DAY)
        seconds += self._owed.pop(key, 0.0)
        try:
            self._ledger.add(*key, seconds)
        except (sqlite3.Error, OSError) as error:
            self._owed[key] += seconds
            log.error("%.1f seconds of runs cannot be written: %s", seconds, error)

    def _spent(self, owner: str, day: int) -> float:
        key = owner, day
        try:
            known = self._ledger.spent(*key)
        except (sqlite3.Error, OSError) as error:
            log.error("quotas cannot be read, what was last known of them counts: %s", error)
            known = self._known.get(key, 0.0)
        else:
            if key not in self._known:
                self._known = {other: spent for other, spent in self._known.items() if other[1] >= day - 1}
            self._known[key] = known
        return known + self._owed.get(key, 0.0)


def quotas_of(connection: HTTPConnection) -> Quotas:
    """The quotas of the service that answers."""
    return cast(Quotas, connection.app.state.quotas)


def open_ledger(folder: Path, broker: str = "") -> Ledger:
    """The broker's ledger where there is one, which all replicas share, else the data folder's; where that
    cannot be written, one in memory and a warning.
    """
    if broker:
        from app.cluster.ledger import RedisLedger

        return RedisLedger(broker)
    try:
        return FileLedger(folder)
    except (sqlite3.Error, OSError) as error:
        log.warning("quotas are counted in memory only, a restart forgets them: %s", type(error).__name__)
        return MemoryLedger()
