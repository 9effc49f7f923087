"""A shelf as one file, for hosts without network: snapshots and their checksums in a tar archive."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Final

from catalog.snapshots import manifest
from catalog.snapshots.check import check
from catalog.snapshots.manifest import Held, SnapshotError
from catalog.snapshots.shelf import Shelf, closing_snapshot, digest

LARGEST: Final = 4 << 30
"""Bytes of one snapshot that is taken in."""


def export(shelf: Shelf, path: Path) -> list[Held]:
    """Write all snapshots of the shelf into a file; what is in it.

    SnapshotError where there are none, or where one is not what the manifest says.
    """
    held, problems = shelf.listed()
    if problems:
        raise SnapshotError("; ".join(problems))
    if not held:
        raise SnapshotError("there are no snapshots to export; `faultbook index` makes some")
    with tempfile.NamedTemporaryFile(dir=path.resolve().parent, prefix=".bundle-", delete=False) as building:
        try:
            with tarfile.open(fileobj=building, mode="w") as archive:
                content = manifest.written(held)
                header = tarfile.TarInfo(manifest.NAME)
                header.size = len(content)
                archive.addfile(header, BytesIO(content))
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

    Nothing is taken in before all of it has been read and found to be as we write it; then all at once.
    """
    shelf.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".bundle-", dir=shelf.folder) as name:
        folder = Path(name)
        try:
            held = list(_unpacked(path, folder))
        except SnapshotError as error:
            raise SnapshotError(f"{path.name}: not a bundle ({error})") from None
        except RecursionError:
            raise SnapshotError(f"{path.name}: not a bundle (its headers are nested too deeply)") from None
        except (OSError, tarfile.TarError, ValueError, KeyError, TypeError, OverflowError, EOFError) as error:
            raise SnapshotError(f"{path.name}: not a bundle ({error})"[:300]) from None
        for item in held:
            with closing_snapshot(folder / item.path) as snapshot:
                check(snapshot)
        return shelf.add(*(folder / item.path for item in held))


def _unpacked(path: Path, folder: Path) -> Iterator[Held]:
    """The snapshots of a bundle, written into a folder and compared with their checksums."""
    with tarfile.open(path, mode="r:") as archive:
        first = archive.next()
        if first is None or first.name != manifest.NAME or not _plain(first, manifest.LARGEST):
            raise SnapshotError("it does not begin with a manifest")
        held, problems = manifest.read(_content(archive, first).read(manifest.LARGEST))
        if problems or not held:
            raise SnapshotError(problems[0] if problems else "it has no snapshots")
        for item in held:
            member = archive.getmember(item.path)
            if not _plain(member, LARGEST) or member.size != item.bytes:
                raise SnapshotError(f"{item.path} is no plain file of the size that is stated")
            with (folder / item.path).open("wb") as written:
                shutil.copyfileobj(_content(archive, member), written, 1 << 20)
            if digest(folder / item.path) != item.sha256:
                raise SnapshotError(f"the checksum of {item.path} is not its own")
            yield item


def _plain(member: tarfile.TarInfo, largest: int) -> bool:
    """Whether a member is a file whose bytes are all in the archive: a sparse one is larger than it looks."""
    return member.isreg() and not member.issparse() and 0 <= member.size <= largest


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> tarfile.ExFileObject:
    opened = archive.extractfile(member)
    if not isinstance(opened, tarfile.ExFileObject):
        raise SnapshotError(f"{member.name} is no file")
    return opened


def _anonymous(header: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the names and times of the host that wrote it."""
    header.uid = header.gid = header.mtime = 0
    header.uname = header.gname = ""
    header.mode = 0o644
    return header
