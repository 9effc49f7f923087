"""A shelf as one file, for hosts without network: snapshots and their checksums in a tar archive."""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Final

from catalog.snapshots.shelf import MANIFEST, Held, Shelf, digest
from catalog.snapshots.snapshot import Snapshot, SnapshotError

LARGEST: Final = 4 << 30
"""Bytes of one snapshot that is taken in."""


def export(shelf: Shelf, path: Path) -> list[Held]:
    """Write all snapshots of the shelf into a file; what is in it. SnapshotError where there are none."""
    held = shelf.held()
    if not held:
        raise SnapshotError("there are no snapshots to export; `faultbook index` makes some")
    with tempfile.NamedTemporaryFile(dir=path.resolve().parent, prefix=".bundle-", delete=False) as building:
        try:
            with tarfile.open(fileobj=building, mode="w") as archive:
                manifest = json.dumps({"files": [asdict(item) for item in held]}, indent=1).encode()
                header = tarfile.TarInfo(MANIFEST)
                header.size = len(manifest)
                archive.addfile(header, BytesIO(manifest))
                for item in held:
                    if (wrong := shelf.verify(item)) is not None:
                        raise SnapshotError(wrong)
                    archive.add(shelf.folder / item.path, item.path, recursive=False, filter=_anonymous)
            Path(building.name).chmod(0o644)
            Path(building.name).replace(path)
        except BaseException:
            Path(building.name).unlink(missing_ok=True)
            raise
    return held


def take_in(shelf: Shelf, path: Path) -> list[Held]:
    """Put a bundle's snapshots on the shelf, in the place of older ones; SnapshotError for anything else.

    Nothing is taken in before all of it has been checked.
    """
    shelf.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".bundle-", dir=shelf.folder) as name:
        folder = Path(name)
        try:
            files = list(_unpacked(path, folder))
        except (OSError, tarfile.TarError, ValueError, KeyError, TypeError, EOFError) as error:
            raise SnapshotError(f"{path.name}: not a bundle ({error})") from None
        taken = []
        for item in files:
            file = folder / item.path
            Snapshot(file).close()
            file.chmod(0o644)
            file.replace(shelf.folder / item.path)
            taken.append(shelf.add(shelf.folder / item.path))
    return taken


def _unpacked(path: Path, folder: Path) -> Iterator[Held]:
    """The snapshots of a bundle, written into a folder and compared with their checksums."""
    with tarfile.open(path, mode="r:") as archive:
        first = archive.next()
        opened = archive.extractfile(first) if first is not None and first.name == MANIFEST else None
        if opened is None:
            raise ValueError("it does not begin with a manifest")
        for listed in json.loads(opened.read(LARGEST))["files"]:
            item = Held(**listed)
            if (
                Path(item.path).name != item.path
                or not item.path.endswith(".sqlite")
                or item.path.startswith(".")
            ):
                raise ValueError(f"{item.path!r} is no snapshot's name")
            member = archive.getmember(item.path)
            content = archive.extractfile(member) if member.isfile() and member.size <= LARGEST else None
            if content is None:
                raise ValueError(f"{item.path} is no plain file")
            with (folder / item.path).open("wb") as written:
                shutil.copyfileobj(content, written, 1 << 20)
            if digest(folder / item.path) != item.sha256:
                raise ValueError(f"the checksum of {item.path} is not its own")
            yield item


def _anonymous(header: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the names and times of the host that wrote it."""
    header.uid = header.gid = header.mtime = 0
    header.uname = header.gname = ""
    header.mode = 0o644
    return header
