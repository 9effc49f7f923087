"""What became of each message between two versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from catalog.snapshots.bundle import export, take_in
from catalog.snapshots.diff import Difference, compare
from catalog.snapshots.index import index
from catalog.snapshots.manifest import SnapshotError
from catalog.snapshots.shelf import Shelf

OLD = {
    "a.py": """
def f(x):
    raise ValueError("this stays as it is")
def g(x):
    if x:
        raise ValueError(f"the size {x} is not a multiple of 16")
    raise ValueError("this goes away for good")
""",
    "old/b.py": "def h():\n    raise TypeError('this moves to another file')\n",
}
NEW = {
    "a.py": """
def f(x):
    '''A line more.'''
    raise ValueError("this stays as it is")
def g(x):
    if x:
        raise ValueError(f"the size {x} must be a multiple of 16")
    raise KeyError("something else entirely")
""",
    "new/b.py": "def h():\n    raise TypeError('this moves to another file')\n",
}


def shelf_with(folder: Path, **versions: dict[str, str]) -> Shelf:
    shelf = Shelf(folder / "data")
    for version, files in versions.items():
        for name, code in files.items():
            path = folder / version / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(code)
        number = version.removeprefix("v")
        (folder / version / "pyproject.toml").write_text(f'[project]\nname="thing"\nversion="{number}"\n')
        index(shelf, str(folder / version), processes=1)
    return shelf


@pytest.fixture
def difference(tmp_path: Path) -> Difference:
    shelf = shelf_with(tmp_path, v1=OLD, v2=NEW)
    before, after = (shelf.open(held) for held in sorted(shelf.held(), key=lambda held: held.version))
    return compare(before, after)


def test_each_record_is_told_once(difference: Difference) -> None:
    assert difference.equal == 1
    assert [change.after.message for change in difference.appeared if change.after] == [
        "something else entirely"
    ]
    assert [change.before.message for change in difference.vanished if change.before] == [
        "this goes away for good"
    ]


def test_a_reworded_message_keeps_its_old_words(difference: Difference) -> None:
    [change] = difference.changed
    assert change.before is not None
    assert change.after is not None
    assert change.before.message == "the size {x} is not a multiple of 16"
    assert change.after.message == "the size {x} must be a multiple of 16"


def test_equal_words_in_another_file_have_moved(difference: Difference) -> None:
    [change] = difference.moved
    assert change.before is not None
    assert change.after is not None
    assert (change.before.path, change.after.path) == ("old/b.py", "new/b.py")


def test_a_version_of_another_repository_has_the_same_records(tmp_path: Path) -> None:
    shelf = shelf_with(tmp_path, v1=OLD)
    index(shelf, str(tmp_path / "v1"), upstream="someone/thing", processes=1)
    ours = shelf.open(shelf.held()[0])
    theirs = shelf_with(tmp_path / "other", v2=OLD)
    difference = compare(theirs.open(theirs.held()[0]), ours)
    assert ours.repo == "someone/thing"
    assert (difference.equal, difference.moved, difference.appeared) == (4, [], [])


def test_a_bundle_carries_the_shelf(tmp_path: Path) -> None:
    shelf = shelf_with(tmp_path, v1=OLD, v2=NEW)
    file = tmp_path / "bundle.tar"
    assert len(export(shelf, file)) == 2
    other = Shelf(tmp_path / "elsewhere")
    assert [held.version for held in take_in(other, file)] == ["1", "2"]
    assert {held.sha256 for held in other.held()} == {held.sha256 for held in shelf.held()}
    assert all(len(other.open(held)) for held in other.held())
    assert {path.name for path in other.folder.iterdir()} == {
        "manifest.json", ".lock", *(held.path for held in shelf.held()),
    }  # fmt: skip


def test_a_damaged_bundle_changes_nothing(tmp_path: Path) -> None:
    shelf = shelf_with(tmp_path, v1=OLD)
    file = tmp_path / "bundle.tar"
    export(shelf, file)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    other = Shelf(tmp_path / "elsewhere")
    with pytest.raises(SnapshotError, match="checksum"):
        take_in(other, file)
    file.write_bytes(b"no archive at all")
    with pytest.raises(SnapshotError, match="not a bundle"):
        take_in(other, file)
    assert other.held() == []


def test_an_empty_shelf_has_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="no snapshots"):
        export(Shelf(tmp_path), tmp_path / "bundle.tar")
