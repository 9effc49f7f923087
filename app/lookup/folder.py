"""The logs of a folder: what per-rank runs leave behind, read within bounds and never followed elsewhere.

torchrun's log directories, `rank_0/stdout.log`, plain names, rotated `.gz` files, torchelastic's error files.
Whatever is not read is named with its reason.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from app.lookup.packed import LOOKED_AT, Stream, encoding_of, utf8
from catalog.match.gathering import Source

DEPTH: Final = 8
"""Folders inside each other."""
FILES: Final = 2000
"""Files of a folder that are read."""
ENTRIES: Final = 50_000
"""Names of a folder that are looked at."""
HEAD: Final = 8 << 20
TAIL: Final = 24 << 20
"""Bytes of one file: from its beginning, where a start fails, and from its end, where a run does."""
TOTAL: Final = 512 << 20
"""Bytes of all files together."""
COUNTED: Final = 8 << 30
"""Bytes of a file whose lines are counted up to its tail."""
ERROR_FILE: Final = "error.json"
"""What torchelastic has a process leave of the exception that its log ends with."""

_RANK: Final = re.compile(
    r"(?:^|[._-])(?:global[_-]?)?(?:rank|tp|trainer|task)[._-]?(\d{1,5})(?![\d])", re.IGNORECASE
)
_HOST: Final = re.compile(
    r"^(?:(?:node|host|worker|pod|server|machine)[\w.-]{0,100}\d|[\w-]{1,100}_([\w.-]{1,253})_[0-9a-f-]{32,36})$",
    re.IGNORECASE,
)
_ATTEMPT: Final = re.compile(r"attempt_\d{1,4}")
_ENDING: Final = re.compile(r"(?:\.(?:log|txt|out|err|json)){1,3}(?:\.\d{1,4})?(?:\.gz)?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Log:
    """One log, or the beginning or the end of a long one."""

    source: Source
    content: bytes


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something in the folder that was not read, wholly or in part."""

    file: str
    reason: str


@dataclass(slots=True)
class _Left:
    """What may still be read."""

    files: int = FILES
    bytes: int = TOTAL
    entries: int = ENTRIES


def logs(folder: Path) -> Iterator[Log | Skipped]:
    """What is in a folder, by name. OSError when the folder itself cannot be listed."""
    yield from _inside(folder, "", DEPTH, _Left())


def log(opened: BinaryIO, name: str) -> Iterator[Log | Skipped]:
    """One stream, whatever it holds, as far as the bounds go."""
    yield from _parts(opened, Source(_printable(name)), _Left(), any_content=True)


def source_of(name: str) -> Source:
    """What a file's path tells of its rank and host: `node1/rank_3/stdout.log`, `attempt_0/3/error.json`."""
    parts = name.split("/")
    rank = host = None
    for at in range(len(parts) - 1, -1, -1):
        part = _ENDING.sub("", parts[at])
        if rank is None and (found := _RANK.search(part)):
            rank = int(found[1])
        elif rank is None and part.isdigit() and at and _ATTEMPT.fullmatch(parts[at - 1]):
            rank = int(part)
        named = _HOST.match(_RANK.sub("", part).strip("._-"))
        if host is None and named:
            host = named[1] or named[0]
    return Source(name, rank=rank, host=host, repeats=parts[-1] == ERROR_FILE)


def _inside(folder: Path, prefix: str, depth: int, left: _Left) -> Iterator[Log | Skipped]:
    with os.scandir(folder) as listing:
        entries = sorted(listing, key=lambda entry: _natural(entry.name))
    for entry in entries:
        name = f"{prefix}{_printable(entry.name)}"
        left.entries -= 1
        if left.entries < 0:
            yield Skipped(name, f"this and all after it: more than {ENTRIES:,} names")
            return
        try:
            if entry.is_symlink():
                yield Skipped(name, "a symbolic link")
            elif entry.is_dir(follow_symlinks=False):
                if depth:
                    yield from _inside(Path(entry.path), f"{name}/", depth - 1, left)
                else:
                    yield Skipped(name, f"a folder more than {DEPTH} deep")
            else:
                yield from _file(Path(entry.path), name, left)
        except OSError as error:
            yield Skipped(name, error.strerror or str(error))


def _printable(name: str) -> str:
    """A name without what a terminal would act on or JSON could not hold."""
    return "".join(char if char.isprintable() else "\ufffd" for char in name)


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts 9 before 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d{1,9})", name)]


def _file(path: Path, name: str, left: _Left) -> Iterator[Log | Skipped]:
    if left.files <= 0 or left.bytes <= 0:
        bound = f"{FILES:,} files" if left.files <= 0 else f"{TOTAL >> 20} MiB"
        yield Skipped(name, f"more than {bound} in the folder")
        return
    # It may have been replaced since it was listed: no link is followed, and no pipe waited for.
    opened = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    with opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            yield Skipped(name, "no regular file")
            return
        left.files -= 1
        yield from _parts(opened, source_of(name), left)


def _parts(
    opened: BinaryIO, source: Source, left: _Left, *, any_content: bool = False
) -> Iterator[Log | Skipped]:
    size = 0
    if opened.seekable():
        size = opened.seek(0, os.SEEK_END)
        opened.seek(0)
    # What is unpacked is bounded as what is read is.
    stream = Stream(opened)
    if stream.foreign is not None:
        yield Skipped(source.name, f"packed by {stream.foreign}; unpack it first")
        return
    content = stream.read(min(HEAD + TAIL, left.bytes))
    left.bytes -= len(content)
    more = stream.read(1) != b""
    encoding = encoding_of(content)
    if not any_content and encoding is None and b"\0" in content[:LOOKED_AT]:
        yield Skipped(source.name, "no text")
        return
    if stream.damage is not None:
        whole = f"all behind its first {len(content):,} bytes: " if content else ""
        yield Skipped(source.name, f"{whole}{stream.damage}")
        if not content:
            return
    if not more:
        yield Log(source, utf8(content, encoding))
        return
    if stream.packed or left.bytes < TAIL or not size or size > COUNTED:
        yield Skipped(source.name, f"all behind its first {len(content) >> 20} MiB")
        yield Log(source, utf8(content, encoding))
        return
    yield Log(source, utf8(content[:HEAD], encoding))
    lines = 1 + _newlines(opened, size - TAIL)
    yield Skipped(source.name, f"what lies between its first {HEAD >> 20} and its last {TAIL >> 20} MiB")
    tail = opened.read(TAIL)
    yield Log(Source(source.name, lines, source.rank, source.host), utf8(tail, encoding))


def _newlines(opened: BinaryIO, stop: int) -> int:
    """How many lines end before an offset; leaves the file there."""
    opened.seek(0)
    count = 0
    while stop > 0 and (block := opened.read(min(stop, 1 << 20))):
        count += block.count(b"\n")
        stop -= len(block)
    return count
