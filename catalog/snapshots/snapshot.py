"""An opened snapshot: its records one by one, its full-text index, the matcher's part of it."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Final

from catalog.match.model import Entry, Site
from catalog.match.prepared import Prepared
from catalog.scan.extracted import RaiseSite
from catalog.scan.packages import Upstream
from catalog.snapshots.write import APPLICATION, FORMAT, checksum
from catalog.template import Template
from kernels.message import Hole

_COLUMNS: Final = "number, id, slug, path, line, message, template, class, type, severity, status, sites"
_ENTRY: Final = "SELECT id, path, message, template, wordless, type, severity, sites FROM record WHERE "


class SnapshotError(Exception):
    """A file that is no snapshot of this format; the message names it."""


@dataclass(frozen=True, slots=True)
class Row:
    """A record as the snapshot has it; `template` is None for a statement without a text."""

    number: int
    id: str
    slug: str
    path: str
    line: int
    message: str
    template: Template | None
    kinds: tuple[str, ...]
    error_class: str
    error_type: str
    severity: str
    http_status: int | None
    places: tuple[RaiseSite, ...]


class Snapshot:
    """A file opened for reading only. It may be replaced meanwhile: what is open stays what it was.

    Threads share one connection, one statement at a time.
    """

    codes: dict[str, list[Entry]] = {}  # noqa: RUF012 (no package's errors have codes of their own)

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()
        try:
            self._connection = sqlite3.connect(
                f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False
            )
            ours = self._all("PRAGMA application_id")[0][0] == APPLICATION
            self.meta: dict[str, str] = dict(self._all("SELECT name, value FROM meta")) if ours else {}
        except sqlite3.Error as error:
            raise SnapshotError(f"{path.name}: {error}") from None
        if self.meta.get("format") != FORMAT:
            raise SnapshotError(f"{path.name}: not a snapshot of this version of Faultbook; index it again")
        self.package = self.meta["package"]
        self.version = self.meta["version"]
        self.repo = self.meta["repo"]
        self.upstream = Upstream(self.repo, (), self.meta["tags"], self.meta["description"])

    def __len__(self) -> int:
        return int(self.meta["records"])

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def _all(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock:
            return self._connection.execute(statement, values).fetchall()

    # --- the matcher's part

    @cached_property
    def prepared(self) -> Prepared:
        """The templates as they were prepared; SnapshotError where the file is damaged."""
        arrays = dict(self._all("SELECT name, value FROM array"))
        if str(checksum(arrays)) != self.meta.get("arrays"):
            raise SnapshotError(f"{self.path.name}: damaged; index it again")
        return Prepared.read(arrays)

    def entries(self, numbers: Sequence[int]) -> list[Entry]:
        """The entries of these records."""
        if len(numbers) == 1:
            return [self._entry(*row) for row in self._all(f"{_ENTRY}number = ?", numbers)]
        marks = ",".join("?" * len(numbers))
        return [
            self._entry(*row) for row in self._all(f"{_ENTRY}number IN ({marks}) ORDER BY number", numbers)
        ]

    def in_files(self, numbers: Sequence[int], files: frozenset[str]) -> list[int]:
        """Those of some numbers whose entries have a site in a file of one of these names."""
        names = sorted(files)[:100]
        marks = ",".join("?" * len(names))
        found = {row[0] for row in self._all(f"SELECT number FROM record WHERE file IN ({marks})", names)}
        return [number for number in numbers if number in found]

    def wordless(self, file_name: str) -> list[Entry]:
        """The entries without a word of their own that have a site in a file of this name."""
        return [self._entry(*row) for row in self._all(f"{_ENTRY}wordless AND file = ?", (file_name,))]

    def _entry(
        self,
        identifier: str,
        path: str,
        message: str,
        cut: str | None,
        wordless: int,
        kind: str,
        severity: str,
        sites: str,
    ) -> Entry:
        template, kinds = _template(message, cut)
        return Entry(
            identifier,
            self.repo,
            message,
            None,
            tuple(
                Site(path, function, (line,), raised) for line, _, function, _, raised, _ in json.loads(sites)
            ),
            False,
            kinds,
            textless=bool(wordless),
            quiet=severity == "warning",
            logged=kind == "console",
            versions=(self.version,),
            cut=template,
        )

    # --- records

    def get(self, identifier: str) -> Row | None:
        """The record of an id."""
        return next(self._rows("id = ?", (identifier,)), None)

    def by_slug(self, slug: str) -> Row | None:
        """The first record of a slug."""
        return next(self._rows("slug = ? ORDER BY number LIMIT 1", (slug,)), None)

    def numbered(self, numbers: Sequence[int]) -> Iterator[Row]:
        """The records of these numbers, in their order."""
        rows = {row.number: row for row in self._rows(f"number IN ({','.join('?' * len(numbers))})", numbers)}
        return (rows[number] for number in numbers)

    def numbered_all(self, numbers: Sequence[int]) -> Iterator[Row]:
        """As `numbered`, for any number of them."""
        for at in range(0, len(numbers), 500):
            yield from self.numbered(numbers[at : at + 500])

    def in_file(self, path: str) -> Iterator[Row]:
        """The records of one file, by line."""
        return self._rows("path = ? ORDER BY number", (path,))

    def numbers(self, where: str = "1", values: Sequence[Any] = ()) -> list[int]:
        """The numbers of the records that fulfil a condition, in order."""
        return [
            row[0] for row in self._all(f"SELECT number FROM record WHERE {where} ORDER BY number", values)
        ]

    def number_of(self, identifier: str) -> int | None:
        """The number of an id."""
        found = self._all("SELECT number FROM record WHERE id = ?", (identifier,))
        return found[0][0] if found else None

    def messages(self, numbers: Sequence[int]) -> list[str]:
        """The messages of all records of these numbers, which are in order."""
        wanted = set(numbers)
        rows = self._all("SELECT number, message FROM record ORDER BY number")
        return [message for number, message in rows if number in wanted]

    def identifiers(self) -> list[tuple[str, int]]:
        """(id, number) of every record."""
        return self._all("SELECT id, number FROM record")

    def snippet(self, number: int) -> tuple[int, int, str] | None:
        """First line, last line and the lines around a record's first site; None where no code is kept."""
        found = self._all(
            "SELECT first, last, lines FROM record JOIN code USING (path) WHERE number = ?", (number,)
        )
        if not found:
            return None
        first, last, code = found[0]
        lines = zlib.decompress(code).split(b"\n")[first - 1 : last]
        return first, last, b"\n".join(lines).decode("utf-8", "replace")

    def unreadable(self) -> list[tuple[str, str]]:
        """(path, reason) of every file that could not be scanned."""
        return self._all("SELECT path, reason FROM unreadable ORDER BY path")

    def _rows(self, where: str, values: Sequence[Any]) -> Iterator[Row]:
        for row in self._all(f"SELECT {_COLUMNS} FROM record WHERE {where}", values):
            number, identifier, slug, path, line, message, cut, raised, kind, severity, status, sites = row
            template, kinds = _template(message, cut)
            places = tuple(RaiseSite(*site) for site in json.loads(sites))
            yield Row(
                number,
                identifier,
                slug,
                path,
                line,
                message,
                template,
                kinds,
                raised,
                kind,
                severity,
                status,
                places,
            )


def _template(message: str, cut: str | None) -> tuple[Template | None, tuple[str, ...]]:
    if cut is None:
        return None, ()
    segments, holes = json.loads(cut)
    return (
        Template(message, tuple(segments), tuple(Hole(*hole[:3]) for hole in holes)),
        tuple(hole[3] for hole in holes),
    )
