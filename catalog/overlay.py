"""Team notes: Markdown files that say about records what only their own team knows.

A file begins with lines `name: value` up to an empty line, all optional:

    id        the record it is about; a file called by the id needs none
    pattern   RE2 expression: the note is about every record whose errorMessage it is found in
    owner, runbook, fixed-in   shown as they are; runbook is a link when it is an http(s) address
    wording   how a fork words the message of the record of `id`: texts in these words find it too

What follows is the note. A file that cannot be read is said and left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import re2

from catalog.scan.source import printable

NAMES: Final = ("id", "pattern", "owner", "runbook", "fixed-in", "wording")
LARGEST: Final = 1 << 18
"""Bytes of one file."""
MOST: Final = 5000
"""Files of one folder."""
_ID: Final = re.compile("[0-9a-f]{16}")
_LINE: Final = re.compile(r"([a-z-]{1,20}):[ \t]*(.*)")


@dataclass(frozen=True, slots=True)
class Note:
    """One file. `known` are its named lines without id, pattern and wording."""

    source: str
    text: str
    record_id: str | None
    pattern: str | None
    wording: str | None
    known: dict[str, str] = field(default_factory=dict)

    @property
    def told(self) -> dict[str, str]:
        """What is shown beside the text, by name."""
        return {**self.known, "wording": self.wording} if self.wording else self.known

    def document(self) -> dict[str, Any]:
        """The note as `x.notes` has it."""
        names = {"owner": "owner", "runbook": "runbook", "fixed-in": "fixedIn"}
        return {
            "source": self.source,
            "text": self.text,
            **{key: self.known.get(name) for name, key in names.items()},
            "wording": self.wording,
        }


class Overlay:
    """The notes of a folder, as they were when it was read."""

    def __init__(self, folder: Path | None = None) -> None:
        self.problems: list[str] = []
        self._by_id: dict[str, list[Note]] = {}
        self._patterns: list[tuple[Any, Note]] = []
        for note in self._read(folder) if folder is not None else ():
            if note.record_id is not None:
                self._by_id.setdefault(note.record_id, []).append(note)
            if note.pattern is not None:
                try:
                    self._patterns.append((re2.compile(note.pattern.encode(), _quiet()), note))
                except re2.error as error:
                    said = error.args[0]
                    said = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
                    self.problems.append(f"{note.source}: pattern: {printable(said)[:200]}")

    def about(self, identifier: str, message: str) -> list[Note]:
        """The notes on a record: those that name it, then those whose pattern its message has."""
        found = [
            note for pattern, note in self._patterns if pattern.search(message.encode("utf-8", "replace"))
        ]
        return list({note.source: note for note in (*self._by_id.get(identifier, ()), *found)}.values())

    def wordings(self) -> Iterator[tuple[str, str]]:
        """(record id, a fork's wording of its message)."""
        for identifier, notes in self._by_id.items():
            yield from ((identifier, note.wording) for note in notes if note.wording)

    def _read(self, folder: Path) -> Iterator[Note]:
        if not folder.is_dir():
            self.problems.append("FAULTBOOK_OVERLAY: there is no such folder")
            return
        for path in files(folder):
            source = printable(path.relative_to(folder).as_posix())
            try:
                if not path.is_file():  # a pipe would be waited for
                    raise ValueError("it is no file")
                with path.open("rb") as opened:
                    content = opened.read(LARGEST + 1)
                if len(content) > LARGEST:
                    raise ValueError(f"larger than {LARGEST >> 10} KiB")
                yield parse(source, content.decode("utf-8"))
            except OSError as error:
                self.problems.append(f"{source}: {error.strerror}")  # without where it lies on this host
            except ValueError as error:
                self.problems.append(f"{source}: {error}"[:300])
        if len(files(folder)) == MOST:
            self.problems.append(f"FAULTBOOK_OVERLAY: more than {MOST} files; the others are not read")


def _quiet() -> Any:
    """A wrong pattern is said by us alone."""
    options = re2.Options()
    options.log_errors = False
    return options


def parse(source: str, content: str) -> Note:
    """Read one file; ValueError for one that is about no record."""
    lines = content.splitlines()
    known: dict[str, str] = {}
    at = 0
    while at < len(lines) and (found := _LINE.fullmatch(lines[at])) is not None and found[1] in NAMES:
        known[found[1]] = found[2].strip()
        at += 1
    stem = source.rpartition("/")[2].removesuffix(".md")
    identifier = known.pop("id", None) or (stem if _ID.fullmatch(stem) else None)
    pattern = known.pop("pattern", None)
    wording = known.pop("wording", None)
    if identifier is None and not pattern:
        raise ValueError("it names no record: by its file name, an id or a pattern")
    if identifier is not None and not _ID.fullmatch(identifier):
        raise ValueError(f"{identifier!r} is no record's id")
    if wording and identifier is None:
        raise ValueError("a wording needs the id of its record")
    return Note(source, "\n".join(lines[at:]).strip(), identifier, pattern or None, wording or None, known)


def files(folder: Path) -> list[Path]:
    """The notes of a folder in path order, at most MOST; a folder that cannot be read has none."""
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(place, name) for name in sorted(names) if name.endswith(".md")]
        if len(found) >= MOST:
            break
    return sorted(found[:MOST])


def state(folder: Path | None) -> object:
    """Changes with the files of the folder."""
    if folder is None:
        return None
    found = []
    for path in files(folder):
        try:
            stamp = path.stat()
            found.append((str(path), stamp.st_mtime_ns, stamp.st_size, stamp.st_ino))
        except OSError:
            found.append((str(path), 0, 0, 0))
    return folder.is_dir(), tuple(found)
