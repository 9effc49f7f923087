"""Wheels and source archives: their sources are read out of them, nothing is unpacked."""

from __future__ import annotations

import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import IO, Final

from catalog.scan.listing import LARGEST, SUFFIXES, TargetError, too_large
from catalog.scan.model import Unreadable

MOST_BYTES: Final = 1 << 30
"""Bytes of all sources of an archive, unpacked: more is no package."""
MOST_FILES: Final = 500_000
_METADATA: Final = ("/METADATA", "PKG-INFO")
_DATA: Final = re.compile(r"[^/]+\.data/(?:purelib|platlib)/")
_BROKEN: Final = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError),
    *(ValueError, RuntimeError, NotImplementedError, OverflowError, KeyError),
)
"""What the readers of archives raise for content that is none; RuntimeError has RecursionError in it."""


Source = tuple[str, bytes | Unreadable]


def archived(path: Path) -> tuple[list[Source], Message, bool]:
    """(path, content) of the sources of an archive, its metadata, and whether it is a wheel.

    A wheel's paths are those that it is installed at; a source archive's begin behind the folder that has its
    metadata, which is the repository's root.
    """
    files: dict[str, bytes | Unreadable] = {}
    again: list[Unreadable] = []
    try:
        size = 0
        for named, content in _zipped(path) if zipfile.is_zipfile(path) else _tarred(path):
            name = _plain(named)
            if name in files:
                again.append(Unreadable(name, "a second file of this path"))
            else:
                files[name] = content
            size += len(content) if isinstance(content, bytes) else 0
            if size > MOST_BYTES or len(files) > MOST_FILES:
                raise TargetError(f"{path.name}: more than {MOST_BYTES >> 30} GiB of sources in it")
    except _BROKEN as error:
        said = str(error).replace(str(path), path.name)[:200]
        raise TargetError(f"{path.name}: not a wheel or source archive ({said})") from None
    where = min(
        (name for name, content in files.items() if _is_metadata(name) and isinstance(content, bytes)),
        key=lambda name: (name.count("/"), len(name), name),
        default=None,
    )
    if where is None:
        raise TargetError(
            f"{path.name}: a wheel or source archive has its metadata in it, this has none; "
            "of a repository's archive, unpack it and name the folder"
        )
    metadata = files[where]
    assert isinstance(metadata, bytes)
    parsed = HeaderParser().parsestr(metadata.decode("utf-8", "replace"))
    sources = [(name, content) for name, content in files.items() if name.endswith(SUFFIXES)]
    sources += [(item.path, item) for item in again if item.path.endswith(SUFFIXES)]
    folder = where.rpartition("/")[0]
    if folder.endswith(".dist-info"):
        return [(_installed(name), content) for name, content in sources], parsed, True
    root = folder.rpartition("/")[0] if folder.endswith(".egg-info") else folder
    below = f"{root}/" if root else ""
    return [(name.removeprefix(below), content) for name, content in sources], parsed, False


def _plain(name: str) -> str:
    """A path inside an archive without what would lead out of it."""
    return "/".join(part for part in name.replace("\\", "/").split("/") if part not in ("", ".", ".."))


def _is_metadata(name: str) -> bool:
    return name.endswith(("/PKG-INFO", ".dist-info/METADATA")) or name == "PKG-INFO"


def _installed(name: str) -> str:
    """Where a wheel's file is installed: what is in `NAME.data/purelib` beside the others."""
    found = _DATA.match(name)
    return name[found.end() :] if found is not None else name


def _zipped(path: Path) -> Iterator[Source]:
    with zipfile.ZipFile(path) as archive:
        for item in archive.infolist():
            if _wanted(item.filename) and not item.is_dir():
                try:
                    with archive.open(item) as opened:
                        yield item.filename, _read(opened, item.filename)
                except _BROKEN as error:
                    yield item.filename, Unreadable(item.filename, f"{error}"[:200] or type(error).__name__)


def _tarred(path: Path) -> Iterator[Source]:
    with tarfile.open(path) as archive:
        for item in archive:
            if not _wanted(item.name) or item.isdir():
                continue
            opened: IO[bytes] | None = archive.extractfile(item) if item.isreg() else None
            if opened is None:
                yield item.name, Unreadable(item.name, "no plain file")
            else:
                yield item.name, _read(opened, item.name)


def _read(opened: IO[bytes], name: str) -> bytes | Unreadable:
    """A file's content; none of one that is not scanned, so that it takes no memory either."""
    content = opened.read(LARGEST + 1)
    return content if len(content) <= LARGEST else Unreadable(name, too_large())


def _wanted(name: str) -> bool:
    return name.endswith((*SUFFIXES, *_METADATA))
