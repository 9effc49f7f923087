"""Extracted records → one SQLite file with its full-text index and the prepared matcher."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import astuple
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from catalog.match.prepared import FORMAT as PREPARED
from catalog.match.prepared import prepare
from catalog.scan.extracted import Extracted
from catalog.scan.model import Unreadable
from catalog.scan.packages import Upstream
from catalog.snapshots.manifest import SnapshotError
from catalog.template import infer_kind

APPLICATION: Final = 0x46_42_53_4E
"""SQLite's application id of our files."""
FORMAT: Final = f"1.{PREPARED}"
"""A file of another format is not opened; indexing anew replaces it."""

SCHEMA: Final = f"""
PRAGMA page_size = 8192;
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA application_id = {APPLICATION};
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE array (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE unreadable (path TEXT NOT NULL, reason TEXT NOT NULL);
CREATE TABLE record (
  number INTEGER PRIMARY KEY,
  id TEXT NOT NULL,
  slug TEXT NOT NULL,
  path TEXT NOT NULL,
  file TEXT NOT NULL,
  line INTEGER NOT NULL,
  message TEXT NOT NULL,
  template TEXT,
  wordless INTEGER NOT NULL,
  class TEXT NOT NULL,
  type TEXT NOT NULL,
  severity TEXT NOT NULL,
  status INTEGER,
  sites TEXT NOT NULL,
  first INTEGER NOT NULL,
  last INTEGER NOT NULL
);
CREATE TABLE code (path TEXT PRIMARY KEY, lines BLOB NOT NULL);
CREATE VIRTUAL TABLE words USING fts5(
  message, path, class, place, content='', tokenize='unicode61', detail='full'
);
"""
INDEXES: Final = """
CREATE UNIQUE INDEX record_id ON record (id);
CREATE INDEX record_slug ON record (slug);
CREATE INDEX record_path ON record (path);
CREATE INDEX record_file ON record (file);
"""


def write(
    folder: Path,
    *,
    package: str,
    version: str,
    upstream: Upstream,
    summary: str,
    records: Sequence[Extracted],
    unreadable: Sequence[Unreadable],
    code: Mapping[str, bytes],
) -> Path:
    """Write a snapshot into a folder, all of it or nothing; its path, which the shelf gives its own name.
    `code` is the compressed lines to show, by path; empty where none are to be kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".building-", suffix=".sqlite", dir=folder)
    os.close(handle)
    building = Path(name)
    try:
        meta = {
            "format": FORMAT,
            "package": package,
            "version": version,
            "repo": upstream.repo,
            "tags": upstream.tags,
            "description": upstream.description or summary,
            "records": str(len(records)),
            "sites": str(sum(len(record.sites) for record in records)),
            "made": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "code": str(int(bool(code))),
        }
        with closing(sqlite3.connect(building)) as connection:
            connection.executescript(SCHEMA)
            connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
            connection.executemany(
                "INSERT INTO unreadable VALUES (?, ?)", ((item.path, item.reason) for item in unreadable)
            )
            _fill(connection, records, code)
            connection.executescript(INDEXES)
            connection.commit()
            connection.execute("PRAGMA optimize")
        with building.open("rb") as written:
            os.fsync(written.fileno())
        return building
    except sqlite3.OperationalError as error:
        building.unlink(missing_ok=True)
        raise SnapshotError(f"{package} {version} cannot be written into the data folder: {error}") from None
    except BaseException:
        building.unlink(missing_ok=True)
        raise


def _fill(connection: sqlite3.Connection, records: Sequence[Extracted], code: Mapping[str, bytes]) -> None:
    connection.executemany(
        "INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (_row(number, record) for number, record in enumerate(records)),
    )
    connection.executemany("INSERT INTO code VALUES (?, ?)", code.items())
    connection.executemany(
        "INSERT INTO words (rowid, message, path, class, place) VALUES (?, ?, ?, ?, ?)",
        (
            (
                number,
                record.message,
                record.path,
                record.error_class,
                " ".join(dict.fromkeys(site.function or "" for site in record.sites)),
            )
            for number, record in enumerate(records)
        ),
    )
    prepared = prepare(
        (number, record.template) for number, record in enumerate(records) if record.template is not None
    )
    arrays = prepared.arrays()
    connection.executemany("INSERT INTO array VALUES (?, ?)", arrays.items())
    connection.execute("INSERT INTO meta VALUES ('arrays', ?)", (str(checksum(arrays)),))


def checksum(arrays: Mapping[str, bytes]) -> int:
    """CRC-32 over the prepared arrays: quick enough for every start."""
    value = 0
    for name in sorted(arrays):
        value = zlib.crc32(arrays[name], value)
    return value


def _row(number: int, record: Extracted) -> tuple[Any, ...]:
    template = record.template
    cut = None
    if template is not None:
        holes = [
            [hole.expr, hole.conversion, hole.format_spec, infer_kind(hole.expr, hole.format_spec)]
            for hole in template.holes
        ]
        cut = json.dumps([template.segments, holes], ensure_ascii=False, separators=(",", ":"))
    sites = [astuple(site) for site in record.sites]
    return (
        number,
        record.id,
        record.slug,
        record.path,
        record.path.rpartition("/")[2],
        record.sites[0].line,
        record.message,
        cut,
        int(template is None or not template.literal_weight),
        record.error_class,
        record.error_type,
        record.level,
        record.http_status,
        json.dumps(sites, ensure_ascii=False, separators=(",", ":")),
        *record.snippet,
    )
