"""The folder of snapshots and its manifest: what is there, with checksums.

A file is named after its content and counts once the manifest names it: replacing the manifest is the one
step in which a version is added or replaced, so that a reader sees whole states.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from catalog.snapshots import manifest
from catalog.snapshots.manifest import Held, SnapshotError
from catalog.snapshots.snapshot import Snapshot

MANIFEST: Final = manifest.NAME
LEFT_OVER: Final = 86_400
"""Seconds after which a file that an interrupted run was building is removed."""


class Shelf:
    """The snapshots of a data folder."""

    def __init__(self, data: Path) -> None:
        self.folder = data / "snapshots"

    def held(self) -> list[Held]:
        """What the manifest names, nothing where there is none; SnapshotError for a broken one."""
        return self.listed()[0]

    def listed(self) -> tuple[list[Held], list[str]]:
        """As `held`, with what is wrong with the entries that are left out."""
        try:
            with (self.folder / MANIFEST).open("rb") as opened:
                data = opened.read(manifest.LARGEST + 1)
        except (FileNotFoundError, NotADirectoryError):
            return [], []
        except OSError as error:
            raise SnapshotError(f"{MANIFEST}: {error.strerror}") from None
        return manifest.read(data)

    def state(self) -> tuple[int, int, int] | None:
        """Changes with the manifest; cheap enough to ask for all the time."""
        return _stamp(self.folder / MANIFEST)

    def stamp(self, held: Held) -> tuple[int, int, int] | None:
        """Changes with a snapshot's file; None where there is none."""
        return _stamp(self.folder / held.path)

    def add(self, *paths: Path) -> list[Held]:
        """Name files in the manifest, all at once, in the place of older ones of their versions.

        Each gets its own name, in the folder; SnapshotError for one that is no snapshot.
        """
        added = [self._placed(path) for path in paths]
        with self._changing() as listed:
            versions = {(item.package, item.version) for item in added}
            gone = [item for item in listed if (item.package, item.version) in versions]
            listed[:] = [item for item in listed if item not in gone] + added
            listed.sort(key=lambda item: (item.package, item.made, item.version))
        self._unlink(gone)
        return added

    def remove(self, package: str, version: str) -> bool:
        """Take a version off the shelf; whether it was there."""
        with self._changing() as listed:
            gone = [item for item in listed if (item.package, item.version) == (package, version)]
            listed[:] = [item for item in listed if item not in gone]
        self._unlink(gone)
        return bool(gone)

    def open(self, held: Held) -> Snapshot:
        """Open a snapshot; SnapshotError where the file cannot be the one that the manifest names.

        Its size, its description and what the matcher reads are checked here; `verify` reads it all, which
        takes longer than a start may.
        """
        stamp = self.stamp(held)
        if stamp is None:
            raise SnapshotError(f"{held.path}: it is not there; index it again")
        if stamp[2] != held.bytes:
            raise SnapshotError(f"{held.path}: its size is not the manifest's; index it again")
        snapshot = Snapshot(self.folder / held.path)
        stated = (snapshot.package, snapshot.version, snapshot.repo, len(snapshot))
        if stated != (held.package, held.version, held.repo, held.records):
            snapshot.close()
            raise SnapshotError(f"{held.path}: not the snapshot that the manifest names; index it again")
        return snapshot

    def verify(self, held: Held) -> str | None:
        """What is wrong with a file, compared with its checksum; None for nothing."""
        try:
            right = digest(self.folder / held.path) == held.sha256
        except OSError as error:
            return f"{held.path}: {error.strerror}"
        return None if right else f"{held.path}: its checksum is not the manifest's; index it again"

    def _placed(self, path: Path) -> Held:
        """A file under the name that its content gives it."""
        held = described(path)
        path.chmod(0o444)
        path.replace(self.folder / held.path)
        return held

    def _unlink(self, gone: Sequence[Held]) -> None:
        """Remove files that nothing names any more, and what an interrupted run has left."""
        there = {item.path for item in self.held()}
        for item in gone:
            if item.path not in there:
                (self.folder / item.path).unlink(missing_ok=True)
        for path in self.folder.glob(".building-*"):
            stamp = _stamp(path)
            if stamp is not None and stamp[0] / 1e9 < time.time() - LEFT_OVER:
                path.unlink(missing_ok=True)

    @contextmanager
    def _changing(self) -> Iterator[list[Held]]:
        """The list, to be changed in place; written when the block ends. One process at a time.

        A manifest that cannot be read is made anew from the snapshots that can.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                listed = self.held()
            except SnapshotError:
                listed = list(self._found())
            yield listed
            building = self.folder / f".{MANIFEST}.{os.getpid()}"
            with building.open("wb") as opened:
                opened.write(manifest.written(listed))
                opened.flush()
                os.fsync(opened.fileno())
            building.replace(self.folder / MANIFEST)

    def _found(self) -> Iterator[Held]:
        """The snapshots of the folder whose content is what their name says, one a version."""
        versions: set[tuple[str, str]] = set()
        for path in sorted(self.folder.glob("*.sqlite"), key=lambda path: -path.stat().st_mtime):
            try:
                held = described(path)
            except (SnapshotError, OSError):
                continue
            if held.path == path.name and (held.package, held.version) not in versions:
                versions.add((held.package, held.version))
                yield held


def described(path: Path) -> Held:
    """A snapshot's entry, with the name that its content gives it; SnapshotError for what is none."""
    with closing_snapshot(path) as snapshot:
        sha256 = digest(path)
        return Held(
            file_name(snapshot.package, snapshot.version, sha256),
            sha256,
            path.stat().st_size,
            snapshot.package,
            snapshot.version,
            snapshot.repo,
            len(snapshot),
            snapshot.meta["made"],
        )


@contextmanager
def closing_snapshot(path: Path) -> Iterator[Snapshot]:
    """A snapshot for as long as the block runs."""
    snapshot = Snapshot(path)
    try:
        yield snapshot
    finally:
        snapshot.close()


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def file_name(package: str, version: str, sha256: str) -> str:
    """How the snapshot of a version is called: one plain name, whatever a package's own metadata says."""
    name, safe = (
        "".join(char if char.isascii() and (char.isalnum() or char in "._+-") else "_" for char in part)[:80]
        for part in (package, version)
    )
    return f"{name.lstrip('.-+') or '_'}-{safe}-{sha256[:12]}.sqlite"


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
