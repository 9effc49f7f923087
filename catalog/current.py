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

from catalog.library import Library, dataset_version
from catalog.overlay import Overlay
from catalog.overlay import state as overlay_state
from catalog.snapshots.manifest import Held, SnapshotError
from catalog.snapshots.shelf import Shelf
from catalog.snapshots.snapshot import Snapshot
from catalog.store import load_catalog

EVERY: Final = 0.5
"""Seconds between two looks at the shelf."""
TRIES: Final = 3
"""Readings of a shelf that is changed while it is read."""

log = logging.getLogger("faultbook.library")


class Current:
    """The library over one data folder, None for the curated records alone, and a folder of notes.

    A first start takes snapshots by their size and by what the matcher reads of them; once it serves, every
    file is compared with its checksum, and again when it changes.
    """

    def __init__(self, data: Path | None, notes: Path | None = None) -> None:
        self._notes = notes
        self._shelf = Shelf(data) if data is not None else None
        self._lock = Lock()
        self._library: Library | None = None
        self._state: object = None
        self._looked = 0.0
        self._looking: Thread | None = None
        self._listed: tuple[Held, ...] = ()
        self._right: set[object] = set()
        """Files whose checksum was compared, as they were then."""
        self._wrong: dict[object, str] = {}
        """Files that are not what the manifest says, as they were then, and why."""
        self.problems: tuple[str, ...] = ()
        """What is left out, and why; nothing of where it lies on this host."""

    def get(self) -> Library:
        """The library; the first call reads it, later ones cost a look at the clock."""
        if self._library is None:
            with self._lock:
                if self._library is None:
                    self._read()
        elif self.watched and time.monotonic() - self._looked > EVERY:
            self._looked = time.monotonic()
            if self._looking is None or not self._looking.is_alive():
                self._looking = Thread(target=self.refresh, name="faultbook-library", daemon=True)
                self._looking.start()
        assert self._library is not None
        return self._library

    def refresh(self) -> Library:
        """As `get`, but with what is on the shelf at this moment, compared with its checksums."""
        with self._lock:
            held = self._held()
            for item in held:
                self._compare(item)
            there = set(map(self._identity, held))
            self._right &= there
            self._wrong = {key: why for key, why in self._wrong.items() if key in there}
            if self._library is None or (self.watched and self._now() != self._state):
                self._read()
            assert self._library is not None
            return self._library

    @property
    def dataset_version(self) -> str:
        """The library's; before it is read, what the manifest makes it: a diagnosis needs no more of it."""
        if self._library is None:
            return dataset_version(load_catalog(), self._held())
        return self.get().dataset_version

    @property
    def watched(self) -> bool:
        """Whether it is over a folder at all, which may change."""
        return self._shelf is not None or self._notes is not None

    def _now(self) -> object:
        """Changes with what is on the shelf, what is known of its files, and the notes."""
        shelf = self._shelf
        stamps = shelf and (
            shelf.state(),
            [shelf.stamp(held) for held in self._listed],
            sorted(self._wrong.values()),
        )
        return stamps, overlay_state(self._notes)

    def _held(self) -> list[Held]:
        """What the manifest names now; nothing of one that is broken, which `_read` tells."""
        try:
            return self._shelf.held() if self._shelf is not None else []
        except SnapshotError:
            return []

    def _identity(self, held: Held) -> object:
        assert self._shelf is not None
        return held.sha256, held.path, self._shelf.stamp(held)

    def _compare(self, held: Held) -> None:
        """Look into one file whole, unless it was looked into as it is."""
        assert self._shelf is not None
        identity = self._identity(held)
        opened = self._library.snapshots if self._library is not None else ()
        damage = next((item.damage for item in opened if item.path.name == held.path and item.damage), None)
        if identity in self._wrong or (identity in self._right and damage is None):
            return
        if (why := self._shelf.verify(held) or damage) is None:
            self._right.add(identity)
        else:
            self._wrong[identity] = why

    def _read(self) -> None:
        """Read the shelf and build the matcher; the library is replaced last."""
        for _ in range(TRIES):
            held, opened, problems = self._opened()
            self._listed = tuple(held)
            state = self._now()
            if self._held() == held:
                break  # else it was changed meanwhile
        notes = Overlay(self._notes)
        problems += notes.problems
        for problem in problems:
            if problem not in self.problems:
                log.warning(problem)
        library = Library(load_catalog(), opened, notes)
        _ = library.matcher
        self._state, self.problems, self._looked = state, tuple(problems), time.monotonic()
        self._library = library
        for call in _LISTENERS:
            call()

    def _opened(self) -> tuple[list[Held], list[tuple[Held, Snapshot]], list[str]]:
        """What the manifest names, what of it is opened, and why the others are not."""
        if self._shelf is None:
            return [], [], []
        opened: list[tuple[Held, Snapshot]] = []
        try:
            held, problems = self._shelf.listed()
        except SnapshotError as error:
            return [], [], [str(error)]
        for item in held:
            try:
                if (why := self._wrong.get(self._identity(item))) is not None:
                    raise SnapshotError(why)
                snapshot = self._shelf.open(item)
                _ = snapshot.prepared
                opened.append((item, snapshot))
            except SnapshotError as error:
                problems.append(str(error))
        return held, opened, problems


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


def use_unless_used(data: Path | None, notes: Path | None = None) -> None:
    """As `use`, for a command that may run inside of something that has chosen already."""
    if not _current.watched:
        use(data, notes)


def library() -> Library:
    """The library in use."""
    return _current.get()


def version() -> str:
    """The `datasetVersion` of every answer, whatever part of the library it is from."""
    return _current.dataset_version
