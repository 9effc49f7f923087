"""A snapshot has what was scanned, all of it or nothing, and says when it is not what it was."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from catalog.scan.listing import TargetError
from catalog.snapshots.index import index
from catalog.snapshots.manifest import SnapshotError, acceptable
from catalog.snapshots.shelf import Shelf, file_name
from catalog.snapshots.snapshot import Snapshot
from catalog.snapshots.write import SCHEMA

CODE = """\
def load(path, strict=False):
    if path is None:
        return None
    if not path.exists():
        raise FileNotFoundError(f"no model at {path}")
    if strict:
        raise ValueError(f"cannot load {path!r} strictly: {len(path)} parts")
    assert path.is_file()
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with one module and one file that does not parse."""
    folder = tmp_path / "thing"
    folder.mkdir()
    (folder / "pyproject.toml").write_text('[project]\nname = "thing"\nversion = "1.0"\n')
    (folder / "loader.py").write_text(CODE)
    (folder / "broken.py").write_text("def f(:")
    return folder


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "data")


def indexed(shelf: Shelf, package: Path, **options: object) -> Snapshot:
    made = index(shelf, str(package), processes=1, **options)  # type: ignore[arg-type]
    assert [item.path for item in made.unreadable] == ["broken.py"]
    return shelf.open(made.held)


@pytest.mark.parametrize("name", ["/tmp/elsewhere", "../../up", "..", "a/b\\c", "x" * 400, "<b>", ""])
def test_a_packages_own_name_leads_nowhere_else(name: str) -> None:
    called = file_name(name, "1.0/../2", "0" * 64)
    assert called == Path(called).name
    assert not called.startswith(".")
    assert len(called) < 200
    assert acceptable("path", called)


def test_it_has_every_record_with_its_place_and_lines(shelf: Shelf, package: Path) -> None:
    snapshot = indexed(shelf, package)
    assert (snapshot.package, snapshot.version, len(snapshot)) == ("thing", "1.0", 3)
    first, second, third = snapshot.numbered(snapshot.numbers())
    assert first.message == "no model at {path}"
    assert first.template is not None
    assert first.template.capture("no model at /x") == ("/x",)
    assert (second.places[0].condition, second.places[0].function) == ("path is not None and strict", "load")
    assert second.kinds == ("path", "int")
    assert (third.template, third.message) == (None, "assert path.is_file()")
    assert snapshot.snippet(second.number) == (1, 8, CODE.rstrip("\n"))
    assert snapshot.unreadable() == [("broken.py", "line 1: invalid syntax")]


def test_without_code_only_texts_and_places_are_kept(shelf: Shelf, package: Path) -> None:
    snapshot = indexed(shelf, package, code=False)
    assert snapshot.snippet(0) is None
    assert b"return None" not in snapshot.path.read_bytes()


def test_words_are_found(shelf: Shelf, package: Path) -> None:
    snapshot = indexed(shelf, package)
    where = "number IN (SELECT rowid FROM words WHERE words MATCH ?)"
    assert snapshot.numbers(where, ['"strict"* "parts"*']) == [1]


def test_it_cannot_be_written_to(shelf: Shelf, package: Path) -> None:
    snapshot = indexed(shelf, package)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        snapshot._all("DELETE FROM record")
    assert snapshot.path.stat().st_mode & 0o222 == 0


def test_indexing_again_replaces_it_and_leaves_readers_alone(shelf: Shelf, package: Path) -> None:
    old = indexed(shelf, package)
    (package / "more.py").write_text("raise ValueError('one more message')")
    new = indexed(shelf, package)
    assert (len(old.numbers()), len(new.numbers())) == (3, 4)
    assert len(list(old.numbered([0]))) == 1
    assert [item.version for item in shelf.held()] == ["1.0"]


def test_a_failed_index_changes_nothing(shelf: Shelf, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    indexed(shelf, package)
    before = shelf.held()
    monkeypatch.setattr("catalog.snapshots.write.prepare", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        index(shelf, str(package), processes=1)
    assert shelf.held() == before
    assert [path.suffix for path in shelf.folder.iterdir() if path.name.startswith(".building")] == []
    with pytest.raises(TargetError):
        index(shelf, str(package / "nowhere"))


def test_a_full_disk_is_said_and_leaves_nothing(
    shelf: Shelf, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed(shelf, package)
    before = shelf.held()
    small = SCHEMA.replace("PRAGMA page_size = 8192;", "PRAGMA page_size = 8192; PRAGMA max_page_count = 3;")
    monkeypatch.setattr("catalog.snapshots.write.SCHEMA", small)
    with pytest.raises(SnapshotError, match="full"):
        index(shelf, str(package), processes=1)
    assert shelf.held() == before
    assert [path.name for path in shelf.folder.iterdir() if path.name.startswith(".building")] == []


def test_the_manifest_holds_checksums_that_are_checked(shelf: Shelf, package: Path) -> None:
    indexed(shelf, package)
    [held] = shelf.held()
    path = shelf.folder / held.path
    assert shelf.verify(held) is None
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    assert "checksum" in str(shelf.verify(held))
    path.write_bytes(content[:-1])
    with pytest.raises(SnapshotError, match="size"):
        shelf.open(held)
    path.unlink()
    with pytest.raises(SnapshotError):
        shelf.open(held)


def test_damaged_arrays_are_refused(shelf: Shelf, package: Path) -> None:
    path = indexed(shelf, package).path
    path.chmod(0o644)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE array SET value = zeroblob(length(value)) WHERE name = 'rare_at'")
    with pytest.raises(SnapshotError, match="damaged"):
        _ = Snapshot(path).prepared


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\x00", b"text" * 1000])
def test_what_is_no_snapshot_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(content)
    with pytest.raises(SnapshotError):
        Snapshot(path)


def test_a_manifest_names_files_of_its_folder_only(shelf: Shelf, package: Path) -> None:
    indexed(shelf, package)
    manifest = shelf.folder / "manifest.json"
    listed = json.loads(manifest.read_text())
    listed["files"][0]["path"] = "../secret.sqlite"
    manifest.write_text(json.dumps(listed))
    assert shelf.listed() == ([], ["manifest.json: entry 0 has an unusable `path`"])
    manifest.write_text("{")
    with pytest.raises(SnapshotError):
        shelf.held()


def test_a_version_is_taken_off(shelf: Shelf, package: Path) -> None:
    path = indexed(shelf, package).path
    assert shelf.remove("thing", "1.0")
    assert not path.exists()
    assert not shelf.remove("thing", "1.0")
