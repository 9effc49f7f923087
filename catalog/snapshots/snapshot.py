"""An opened snapshot: its records one by one, its full-text index, the matcher's part of it.

What a file was when it was written is not what it must be now. It is opened only with the tables of our own
schema and with a description of the right form; a row that cannot be read later is left out, and `damage`
says so: whoever holds the snapshot then does without it.
"""

from __future__ import annotations

import logging
import re
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import cache, cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Final

from catalog.match.model import Entry, Site
from catalog.match.prepared import Prepared
from catalog.scan.listing import LARGEST
from catalog.scan.packages import Upstream
from catalog.scan.source import MOST_LINES
from catalog.snapshots.manifest import SnapshotError, acceptable
from catalog.snapshots.row import COLUMNS, Damaged, Row, row_of
from catalog.snapshots.write import APPLICATION, FORMAT, INDEXES, SCHEMA, checksum

_ENTRY: Final = f"SELECT {COLUMNS}, wordless FROM record WHERE "
_TAGS: Final = re.compile(r"(?:[\w./-]{0,50}\{\}[\w./-]{0,50})?", re.ASCII)
_BROKEN: Final = frozenset(
    {
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FORMAT,
        sqlite3.SQLITE_TOOBIG,
    }
)

log = logging.getLogger("faultbook.snapshots")


class Snapshot:
    """A file opened for reading only. It may be replaced meanwhile: what is open stays what it was.

    Threads share one connection, one statement at a time.
    """

    codes: dict[str, list[Entry]] = {}  # noqa: RUF012 (no package's errors have codes of their own)

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: str | None = None
        """What was found to be wrong with the file after it was opened."""
        self.hidden: frozenset[int] = frozenset()
        """Records that another one stands for: they are not matched."""
        self._lock = Lock()
        try:
            self._connection = sqlite3.connect(
                f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False
            )
        except (sqlite3.Error, OSError, ValueError) as error:
            raise SnapshotError(f"{path.name}: {error}") from None
        try:
            self.meta = self._described()
        except SnapshotError:
            self.close()
            raise
        self.package = self.meta["package"]
        self.version = self.meta["version"]
        self.repo = self.meta["repo"]
        self.upstream = Upstream(self.repo, (), self.meta["tags"], self.meta["description"])

    def _described(self) -> dict[str, str]:
        """The description in the file; SnapshotError where it, or a table, is not as we write it."""
        name = self.path.name
        try:
            execute = self._connection.execute
            execute("PRAGMA trusted_schema = OFF")
            execute("PRAGMA cell_size_check = ON")
            if execute("PRAGMA application_id").fetchone()[0] != APPLICATION or not _ours(self._connection):
                raise SnapshotError(f"{name}: not a snapshot of this version of Faultbook; index it again")
            meta: dict[str, str] = dict(execute("SELECT name, value FROM meta LIMIT 50"))
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise SnapshotError(f"{name}: {error}") from None
        if meta.get("format") != FORMAT:
            raise SnapshotError(f"{name}: not a snapshot of this version of Faultbook; index it again")
        fields = ("package", "version", "repo", "made")
        right = all(acceptable(field, meta.get(field)) for field in fields)
        right = right and _TAGS.fullmatch(str(meta.get("tags"))) is not None
        right = right and isinstance(meta.get("description"), str) and len(meta["description"]) <= 1000
        if not right or not str(meta.get("records")).isdecimal() or len(meta["records"]) > 12:
            raise SnapshotError(f"{name}: damaged; index it again")
        return meta

    def __len__(self) -> int:
        return int(self.meta["records"])

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def _all(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows; none where the file is found to be broken."""
        try:
            with self._lock:
                return self._connection.execute(statement, values).fetchall()
        except sqlite3.DatabaseError as error:
            # A column that is no UTF-8 is told without a code.
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
            if code & 0xFF not in _BROKEN or isinstance(error, sqlite3.ProgrammingError):
                raise
            self._broken(str(error))
            return []

    def _broken(self, why: str) -> None:
        if self.damage is None:
            self.damage = f"{self.path.name}: damaged ({why[:100]}); index it again"
            log.warning(self.damage)

    # --- the matcher's part

    @cached_property
    def prepared(self) -> Prepared:
        """The templates as they were prepared; SnapshotError where the file is damaged."""
        try:
            arrays = dict(self._all("SELECT name, value FROM array LIMIT 50"))
            if str(checksum(arrays)) != self.meta.get("arrays"):
                raise SnapshotError(f"{self.path.name}: damaged; index it again")
            return Prepared.read(arrays)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise SnapshotError(f"{self.path.name}: damaged ({error}); index it again") from None

    def entries(self, numbers: Sequence[int]) -> list[Entry]:
        """The entries of these numbers."""
        if len(numbers) == 1:
            return self._entries("number = ?", numbers)
        marks = ",".join("?" * len(numbers))
        return self._entries(f"number IN ({marks}) ORDER BY number", numbers)

    def in_files(self, numbers: Sequence[int], files: frozenset[str]) -> list[int]:
        """Those of some numbers whose entries have a site in a file of one of these names."""
        names = sorted(files)[:100]
        marks = ",".join("?" * len(names))
        found = {row[0] for row in self._all(f"SELECT number FROM record WHERE file IN ({marks})", names)}
        return [number for number in numbers if number in found]

    def wordless(self, file_name: str) -> list[Entry]:
        """The entries without a word of their own that have a site in a file of this name."""
        return self._entries("wordless AND file = ?", (file_name,))

    def _entries(self, where: str, values: Sequence[Any]) -> list[Entry]:
        found = []
        for *fields, wordless in self._all(_ENTRY + where, values):
            try:
                row = row_of(fields)
                if row.number not in self.hidden:
                    found.append(self._entry(row, textless=bool(wordless)))
            except Damaged as error:
                self._broken(str(error))
        return found

    def _entry(self, row: Row, *, textless: bool) -> Entry:
        return Entry(
            row.id,
            self.repo,
            row.message,
            None,
            tuple(Site(row.path, place.function, (place.line,), place.exception) for place in row.places),
            False,
            row.kinds,
            textless=textless,
            quiet=row.severity == "warning",
            logged=row.error_type == "console",
            versions=(self.version,),
            cut=row.template,
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
        return (rows[number] for number in numbers if number in rows)

    def numbered_all(self, numbers: Sequence[int]) -> Iterator[Row]:
        """As `numbered`, for any number of them."""
        for at in range(0, len(numbers), 500):
            yield from self.numbered(numbers[at : at + 500])

    def in_file(self, path: str) -> Iterator[Row]:
        """The records of one file, by line."""
        return self._rows("path = ? ORDER BY number", (path,))

    def between(self, first: int, end: int) -> Iterator[Row]:
        """The records whose number is at least `first` and below `end`."""
        return self._rows("number >= ? AND number < ? ORDER BY number", (first, end))

    def integrity(self) -> str:
        """`ok`, or what SQLite itself finds wrong with the file's structure."""
        found = self._all("PRAGMA integrity_check(1)")
        return str(found[0][0]) if found else self.damage or "unreadable"

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
        try:
            unpacking = zlib.decompressobj()
            lines = unpacking.decompress(code, 2 * LARGEST).split(b"\n")[first - 1 : last]
        except (zlib.error, TypeError, ValueError, OverflowError) as error:
            self._broken(str(error))
            return None
        if not unpacking.eof or not 0 < first <= last < first + MOST_LINES:
            self._broken("a snippet is none")
            return None
        return first, last, b"\n".join(lines).decode("utf-8", "replace")

    def unreadable(self) -> list[tuple[str, str]]:
        """(path, reason) of every file that could not be scanned."""
        return self._all("SELECT path, reason FROM unreadable ORDER BY path")

    def _rows(self, where: str, values: Sequence[Any]) -> Iterator[Row]:
        for found in self._all(f"SELECT {COLUMNS} FROM record WHERE {where}", values):
            try:
                yield row_of(found)
            except Damaged as error:
                self._broken(str(error))


def _ours(connection: sqlite3.Connection) -> bool:
    """Whether a file has the tables and indexes of our schema and nothing else: a view or a trigger of
    somebody else's would be run by what looks like reading a table.
    """
    there = connection.execute("SELECT type, name, sql FROM sqlite_master LIMIT 100").fetchall()
    statistics = [(kind, name, sql) for kind, name, sql in there if name == "sqlite_stat1"]
    return _comparable(row for row in there if row not in statistics) == _schema()


@cache
def _schema() -> set[tuple[str, str, str | None]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA + INDEXES)
        return _comparable(connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall())


def _comparable(objects: Iterable[tuple[str, str, str | None]]) -> set[tuple[str, str, str | None]]:
    """What the full-text index makes for itself is worded as that build of SQLite words it."""
    return {
        (kind, name, "" if name.startswith("words_") and (sql or "").startswith("CREATE TABLE ") else sql)
        for kind, name, sql in objects
    }
