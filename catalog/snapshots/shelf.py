"""The folder of snapshots and its manifest: what is there, with checksums.

A file counts once the manifest names it; both are replaced atomically, so that a reader sees whole states.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from catalog.snapshots.snapshot import Snapshot, SnapshotError

MANIFEST: Final = "manifest.json"


@dataclass(frozen=True, slots=True)
class Held:
    """One snapshot as the manifest names it; `bytes` and `sha256` are the file's."""

    path: str
    sha256: str
    bytes: int
    package: str
    version: str
    repo: str
    records: int
    made: str


class Shelf:
    """The snapshots of a data folder."""

    def __init__(self, data: Path) -> None:
        self.folder = data / "snapshots"

    def held(self) -> list[Held]:
        """What the manifest names, nothing where there is none; SnapshotError for a broken one."""
        try:
            listed = json.loads((self.folder / MANIFEST).read_bytes())
            return [Held(**item) for item in listed["files"]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SnapshotError(f"{self.folder / MANIFEST}: {error}") from None

    def state(self) -> tuple[int, int, int] | None:
        """Changes with the manifest; cheap enough to ask for at every request."""
        try:
            found = (self.folder / MANIFEST).stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    def add(self, path: Path) -> Held:
        """Name a file of the folder in the manifest, in the place of an older one of its version."""
        with closing_snapshot(path) as snapshot:
            held = Held(
                path.name,
                digest(path),
                path.stat().st_size,
                snapshot.package,
                snapshot.version,
                snapshot.repo,
                len(snapshot),
                snapshot.meta["made"],
            )
        with self._changing() as listed:
            listed[:] = [
                item for item in listed if (item.package, item.version) != (held.package, held.version)
            ]
            listed.append(held)
            listed.sort(key=lambda item: (item.package, item.made))
        return held

    def remove(self, package: str, version: str) -> bool:
        """Take a version off the shelf; whether it was there."""
        with self._changing() as listed:
            gone = [item for item in listed if (item.package, item.version) == (package, version)]
            listed[:] = [item for item in listed if item not in gone]
        for item in gone:
            (self.folder / item.path).unlink(missing_ok=True)
        return bool(gone)

    def open(self, held: Held) -> Snapshot:
        """Open a snapshot; SnapshotError where the file cannot be the one that the manifest names.

        Its size and what the matcher reads are checked here; `verify` reads it all, which takes longer than
        a start may.
        """
        path = self.folder / held.path
        if Path(held.path).name != held.path:
            raise SnapshotError(f"{held.path}: not a file of this folder")
        try:
            if path.stat().st_size != held.bytes:
                raise SnapshotError(f"{held.path}: its size is not the manifest's; index it again")
        except OSError as error:
            raise SnapshotError(f"{held.path}: {error.strerror}") from None
        return Snapshot(path)

    def verify(self, held: Held) -> str | None:
        """What is wrong with a file, compared with its checksum; None for nothing."""
        try:
            right = digest(self.folder / held.path) == held.sha256
        except OSError as error:
            return f"{held.path}: {error.strerror}"
        return None if right else f"{held.path}: its checksum is not the manifest's; index it again"

    @contextmanager
    def _changing(self) -> Iterator[list[Held]]:
        """The list, to be changed in place; written when the block ends. One process at a time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            listed = self.held()
            yield listed
            body: dict[str, Any] = {"files": [asdict(item) for item in listed]}
            building = self.folder / f".{MANIFEST}.{os.getpid()}"
            building.write_text(json.dumps(body, indent=1) + "\n", "utf-8")
            building.replace(self.folder / MANIFEST)


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
