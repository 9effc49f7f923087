"""The library as it is now: read when it is first asked for, read again when the shelf has changed.

A service goes on with what it has while the new state is read in a thread of its own, and takes that from one
request to the next. A file that cannot be read is left out and said; the others are served.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock, Thread
from typing import Final

from catalog.library import Library
from catalog.overlay import Overlay
from catalog.overlay import state as overlay_state
from catalog.snapshots.shelf import Shelf
from catalog.snapshots.snapshot import SnapshotError
from catalog.store import load_catalog

EVERY: Final = 0.5
"""Seconds between two looks at the shelf."""

log = logging.getLogger("faultbook.library")


class Current:
    """The library over one data folder, None for the curated records alone, and a folder of notes."""

    def __init__(self, data: Path | None, notes: Path | None = None) -> None:
        self._notes = notes
        self._shelf = Shelf(data) if data is not None else None
        self._lock = Lock()
        self._library: Library | None = None
        self._state: object = None
        self._looked = 0.0
        self._reading: Thread | None = None
        self.problems: tuple[str, ...] = ()
        """Snapshots that could not be opened, and why."""

    def get(self) -> Library:
        """The library; the first call reads it, later ones cost a look at the clock."""
        if self._library is None:
            with self._lock:
                if self._library is None:
                    self._read()
        elif self._watched and time.monotonic() - self._looked > EVERY:
            self._looked = time.monotonic()
            if self._now() != self._state:
                self._read_aside()
        assert self._library is not None
        return self._library

    def refresh(self) -> Library:
        """As `get`, but with what is on the shelf at this moment."""
        with self._lock:
            if self._library is None or (self._watched and self._now() != self._state):
                self._read()
        return self.get()

    @property
    def _watched(self) -> bool:
        return self._shelf is not None or self._notes is not None

    def _now(self) -> object:
        """Changes with what is on the shelf and in the notes."""
        return self._shelf.state() if self._shelf is not None else None, overlay_state(self._notes)

    def _read_aside(self) -> None:
        if self._lock.acquire(blocking=False):
            try:
                if self._reading is None or not self._reading.is_alive():
                    self._reading = Thread(target=self.refresh, name="faultbook-library", daemon=True)
                    self._reading.start()
            finally:
                self._lock.release()

    def _read(self) -> None:
        """Read the shelf and build the matcher; the library is replaced last."""
        state = self._now()
        opened = []
        problems = []
        try:
            held = self._shelf.held() if self._shelf is not None else []
        except SnapshotError as error:
            held, problems = [], [str(error)]
        assert self._shelf is not None or not held
        for item in held:
            try:
                snapshot = self._shelf.open(item)  # type: ignore[union-attr]
                _ = snapshot.prepared
                opened.append((item, snapshot))
            except SnapshotError as error:
                problems.append(str(error))
        notes = Overlay(self._notes)
        problems += notes.problems
        for problem in problems:
            log.warning(problem)
        library = Library(load_catalog(), opened, notes)
        _ = library.matcher
        self._state, self.problems, self._looked = state, tuple(problems), time.monotonic()
        self._library = library
        for call in _LISTENERS:
            call()


_LISTENERS: list[Callable[[], None]] = []
_current = Current(None)


def listen(call: Callable[[], None]) -> Callable[[], None]:
    """Have a function called whenever another library has taken over: what it keeps is of the old one."""
    _LISTENERS.append(call)
    return call


def use(data: Path | None, notes: Path | None = None) -> Current:
    """Take the snapshots of a data folder and the notes of another from now on; None for none."""
    global _current
    _current = Current(data, notes)
    for call in _LISTENERS:
        call()
    return _current


def library() -> Library:
    """The library in use."""
    return _current.get()
