"""What a stranger, a broken disk or a slip of the hand makes of targets, snapshots, manifests, bundles and
notes: named, left out, and never the end of the service or of a run.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sqlite3
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app.cli import cli
from app.main import create_app
from app.settings import Settings
from catalog import current
from catalog.match.prepared import Prepared, prepare
from catalog.overlay import Overlay
from catalog.scan import archives
from catalog.scan.listing import TargetError
from catalog.scan.targets import resolved
from catalog.snapshots import bundle, manifest
from catalog.snapshots.check import check
from catalog.snapshots.index import Indexed, index
from catalog.snapshots.manifest import Held, SnapshotError
from catalog.snapshots.shelf import Shelf, described, digest
from catalog.snapshots.snapshot import Snapshot
from catalog.snapshots.write import checksum
from catalog.template import Template

CODE = """
def charge(x):
    if x > 3:
        raise ValueError(f"the flux capacitor of {x.name!r} holds {x.size} units")
    assert x.shape[0] % 16 == 0
"""
TEXT = "ValueError: the flux capacitor of 'a' holds 7 units"
DEEP = "[" * 100_000


def source(folder: Path, name: str = "thing", version: str = "1.0", code: str = CODE) -> Path:
    place = folder / f"{name}-{version}"
    place.mkdir(parents=True)
    (place / "pyproject.toml").write_text(f'[project]\nname = "{name}"\nversion = "{version}"\n')
    (place / "engine.py").write_text(code)
    return place


def made(folder: Path, **options: str) -> Indexed:
    return index(Shelf(folder / "data"), str(source(folder, **options)), processes=1)


def file_of(folder: Path, held: Held) -> Path:
    path = folder / "data" / "snapshots" / held.path
    path.chmod(0o644)
    return path


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with two packages."""
    folder = tmp_path_factory.mktemp("two")
    made(folder)
    made(folder, name="sound", code="raise ValueError('a sound message of another package')")
    return folder


# --- targets


@pytest.mark.parametrize("text", ["", " ", "\t", "\n", "\x00", "a\x00b", "./\x00"])
def test_a_word_that_names_nothing_is_not_the_current_folder(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source(tmp_path))
    with pytest.raises(TargetError, match="names nothing"), resolved(text):
        pass
    monkeypatch.setenv("FAULTBOOK_DATA", str(tmp_path / "data"))
    if "\x00" not in text:
        done = CliRunner().invoke(cli, ["index", text])
        assert done.exit_code == 2
        assert not (tmp_path / "data" / "snapshots").exists()


@pytest.mark.parametrize("text", ["x" * 300, "x" * 5000 + ".whl", "a/" * 3000, "\udcff", "ä", "-" * 50])
def test_names_of_any_length_and_letters_are_refused_in_words(text: str) -> None:
    with pytest.raises((TargetError, OSError)) as caught, resolved(text):
        pass
    str(caught.value).encode()


def test_file_names_that_are_no_text_are_scanned(tmp_path: Path) -> None:
    place = source(tmp_path)
    for name in (b"\xff\xfe.py", b"new\nline.py", b"\x1b[31m.py", "ü.py".encode()):
        Path(os.fsdecode(os.fsencode(place) + b"/" + name)).write_text("raise ValueError('by any name')")
    inside = Path(os.fsdecode(os.fsencode(place) + b"/\xe9"))
    inside.mkdir()
    (inside / "a.py").write_text("raise ValueError('in any folder')")
    found = index(Shelf(tmp_path / "data"), str(place), processes=1)
    assert found.unreadable == ()
    paths = {row.path for row in Shelf(tmp_path / "data").open(found.held).numbered(list(range(7)))}
    assert paths == {
        "engine.py",
        "\\udcff\\udcfe.py",
        "new\\nline.py",
        "\\x1b[31m.py",
        "ü.py",
        "\\udce9/a.py",
    }


def test_links_pipes_and_closed_folders_are_reported(tmp_path: Path) -> None:
    place = source(tmp_path)
    (place / "loop").symlink_to(place)
    (place / "link.py").symlink_to("/etc/passwd")
    os.mkfifo(place / "pipe.py")
    closed = place / "closed"
    closed.mkdir()
    closed.chmod(0)
    found = index(Shelf(tmp_path / "data"), str(place), processes=1)
    closed.chmod(0o700)
    reported = {item.path for item in found.unreadable}
    assert {"link.py", "pipe.py"} <= reported
    assert ("closed" in reported) == (os.geteuid() != 0)
    assert found.python_sites == 2


def test_a_folder_called_build_is_left_out_beside_a_project_file_alone(tmp_path: Path) -> None:
    place = source(tmp_path)
    for name in ("build", "pkg/build", "venv", "pkg/node_modules"):
        (place / name).mkdir(parents=True)
        (place / name / "a.py").write_text("raise ValueError('found in here')")
    (place / "venv" / "pyvenv.cfg").touch()
    with resolved(str(place)) as target:
        assert [item.path for item in target.files] == ["engine.py", "pkg/build/a.py"]


@pytest.mark.parametrize(
    "project",
    [b"project = 5", b"[project]\nname = 7", b"[project]\nname = '../../up'", b"\xff",
     b"x = " + b"[" * 50_000,
     b"[project]\nname = 'a'\nversion = '1\\n2'", b"[project]\nname = ''\nversion = {}"],
)  # fmt: skip
def test_a_project_file_of_any_content_gives_usable_names(tmp_path: Path, project: bytes) -> None:
    place = source(tmp_path)
    (place / "pyproject.toml").write_bytes(project)
    found = index(Shelf(tmp_path / "data"), str(place), processes=1)
    assert manifest.acceptable("package", found.held.package)
    assert Shelf(tmp_path / "data").held() == [found.held]


def wheel(path: Path, files: dict[str, bytes], metadata: str = "Name: thing\nVersion: 1\n") -> Path:
    made = path / "thing-1-py3-none-any.whl"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr("thing-1.dist-info/METADATA", metadata)
    return made


@pytest.mark.parametrize(
    "metadata",
    ["", "Name: thing\n", "Version: 1\n", "Name: ../up\nVersion: 1\n", "Name: a\nVersion: 1\x1b[2J\n",
     "Name: " + "a" * 5000 + "\nVersion: 1\n", "\x00"],
)  # fmt: skip
def test_a_wheel_without_a_usable_name_is_refused(tmp_path: Path, metadata: str) -> None:
    with (
        pytest.raises(TargetError, match="name and version"),
        resolved(str(wheel(tmp_path, {"a.py": b""}, metadata))),
    ):
        pass


def test_a_damaged_member_stops_no_other(tmp_path: Path) -> None:
    path = wheel(
        tmp_path, {"a.py": b"raise ValueError('one')" * 50, "b.py": b"raise ValueError('whole two')"}
    )
    with zipfile.ZipFile(path) as archive:
        at = archive.getinfo("a.py").header_offset + 30 + len("a.py")
    content = bytearray(path.read_bytes())
    content[at + 2] ^= 0xFF
    path.write_bytes(content)
    found = index(Shelf(tmp_path / "data"), str(path), processes=1)
    assert [item.path for item in found.unreadable] == ["a.py"]
    assert found.python_sites == 1


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_BYTES", 20 << 20)
    bomb = wheel(tmp_path, {f"{number}.py": b"\n" * (7 << 20) for number in range(4)})
    assert bomb.stat().st_size < 1 << 20
    with pytest.raises(TargetError, match="GiB"), resolved(str(bomb)):
        pass


def test_files_that_fall_on_one_place_are_all_kept_or_said(tmp_path: Path) -> None:
    files = {"sglang/a.py": b"raise ValueError('one')", "python/sglang/a.py": b"raise ValueError('two')"}
    with resolved(str(wheel(tmp_path, files, "Name: sglang\nVersion: 1\n"))) as target:
        assert len(target.files) + len(target.unreadable) == 2
        assert {item.path for item in target.files} == {"python/sglang/a.py"}
    path = wheel(tmp_path, {"a.py": b"1", "b.py": b"raise ValueError('the other')"})
    path.write_bytes(path.read_bytes().replace(b"b.py", b"a.py"))
    with resolved(str(path)) as target:
        assert [item.reason for item in target.unreadable] == ["a second file of this path"]
        assert [item.content for item in target.files] == [b"1"]


@pytest.mark.parametrize("repo", ["", "a", "a/b/c", "a/<b>", "https://x/y", "a/b\n", "é/b"])
def test_a_repository_is_an_owner_and_a_name(tmp_path: Path, repo: str) -> None:
    with pytest.raises(TargetError, match="OWNER/REPO"), resolved(str(source(tmp_path)), repo):
        pass


# --- manifests


@pytest.mark.parametrize(
    "content",
    [b"", b"null", b"[]", b'"files"', b'{"files": 5}', b'{"files": {"a": 1}}', b"{", b"\xff\xfe",
     DEEP.encode(), b'{"files": ' + DEEP.encode(), b"1" * 5000, b'{"files": [' + b"1," * 3000 + b"1]}"],
)  # fmt: skip
def test_what_is_no_manifest_is_said_and_made_anew(two: Path, tmp_path: Path, content: bytes) -> None:
    shutil.copytree(two / "data", tmp_path / "data")
    shelf = Shelf(tmp_path / "data")
    first, second = shelf.held()
    (shelf.folder / "manifest.json").write_bytes(content)
    (shelf.folder / "odd-1-000000000000.sqlite").write_bytes(b"no snapshot")
    with pytest.raises(SnapshotError, match=r"manifest\.json"):
        shelf.held()
    reader = current.Current(tmp_path / "data")
    assert reader.get().snapshots == ()
    [problem] = reader.problems
    assert str(tmp_path) not in problem
    copy = tmp_path / "copy.sqlite"
    shutil.copy(shelf.folder / first.path, copy)
    assert shelf.add(copy) == [first]
    assert {held.path for held in shelf.held()} == {first.path, second.path}


ITEM: dict[str, object] = {
    "path": "a-1.sqlite", "sha256": "0" * 64, "bytes": 1, "package": "a", "version": "1", "repo": "a/b",
    "records": 1, "made": "2026-01-01T00:00:00Z",
}  # fmt: skip
FIELDS: dict[str, list[object]] = {
    "path": [
        "../a.sqlite",
        "/etc/passwd",
        "a\x00.sqlite",
        ".sqlite",
        5,
        None,
        "\ud800.sqlite",
        "a.db",
        ["a"],
    ],
    "sha256": ["", "0" * 63, "G" * 64, 0, None],
    "bytes": [-1, 1.5, "5", True, None, 1 << 70],
    "records": [-1, "7", [], {}],
    "package": ["", "A B", "a" * 200, 5, "<b>", "\ud800"],
    "version": ["", "1/2", "1\n", 5, "x" * 101],
    "repo": ["", "a/b/c", 1, "a b", "javascript:x"],
    "made": [None, "yesterday", 5],
    "extra": [1],
}


@pytest.mark.parametrize(
    ("field", "value"), [(key, value) for key, values in FIELDS.items() for value in values]
)
def test_one_unusable_entry_is_left_out_alone(tmp_path: Path, field: str, value: object) -> None:
    other = {**ITEM, "path": "b-1.sqlite", "package": "b"}
    held, problems = manifest.read(json.dumps({"files": [{**ITEM, field: value}, other]}).encode())
    assert [entry.package for entry in held] == ["b"]
    assert len(problems) == 1
    assert len(problems[0]) < 200
    assert manifest.read(manifest.written(held)) == (held, [])


def test_a_file_or_a_version_is_named_once() -> None:
    held, problems = manifest.read(
        json.dumps({"files": [ITEM, {**ITEM, "version": "2"}, {**ITEM, "path": "c.sqlite"}]}).encode()
    )
    assert (len(held), len(problems)) == (1, 2)


def test_a_manifest_may_name_what_is_not_the_file(tmp_path: Path) -> None:
    first, second = made(tmp_path), made(tmp_path, name="other")
    shelf = Shelf(tmp_path / "data")
    swapped = json.loads((shelf.folder / "manifest.json").read_bytes())
    for item, name in zip(swapped["files"], ("thing", "other"), strict=True):
        item["package"] = name
    (shelf.folder / "manifest.json").write_text(json.dumps(swapped))
    for held in shelf.held():
        with pytest.raises(SnapshotError, match="not the snapshot"):
            shelf.open(held)
    assert first.held.package != second.held.package


# --- snapshots


DAMAGE: dict[str, Callable[[sqlite3.Connection], object]] = {
    "sites": lambda c: c.execute("UPDATE record SET sites = 'x'"),
    "no site": lambda c: c.execute("UPDATE record SET sites = '[]'"),
    "a site": lambda c: c.execute("""UPDATE record SET sites = '[[1,2,3]]'"""),
    "deep sites": lambda c: c.execute("UPDATE record SET sites = ?", (DEEP,)),
    "template": lambda c: c.execute("UPDATE record SET template = '[[], []]'"),
    "template type": lambda c: c.execute("UPDATE record SET template = 7"),
    "template hole": lambda c: c.execute("""UPDATE record SET template = '[["a","b"],[["x"]]]'"""),
    "message": lambda c: c.execute("UPDATE record SET message = x'ff00'"),
    "text": lambda c: c.execute("UPDATE record SET path = CAST(x'ff' AS TEXT)"),
    "id": lambda c: c.execute("UPDATE record SET id = 'no id ' || number"),
    "type": lambda c: c.execute("UPDATE record SET type = 'odd'"),
    "severity": lambda c: c.execute("UPDATE record SET severity = 'odd'"),
    "line": lambda c: c.execute("UPDATE record SET line = 'x'"),
    "status": lambda c: c.execute("UPDATE record SET status = 'x'"),
    "rows": lambda c: c.execute("DELETE FROM record"),
    "words": lambda c: c.execute("UPDATE words_data SET block = x'00'"),
    "code": lambda c: c.execute("UPDATE code SET lines = x'00'"),
    "snippet": lambda c: c.execute("UPDATE record SET first = 1, last = 100000"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_an_edited_snapshot_is_left_out_and_no_request_fails(
    name: str, two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file keeps its size and what the matcher reads, so that only its checksum and its rows tell."""
    monkeypatch.setattr(current, "EVERY", 0.0)
    shutil.copytree(two / "data", tmp_path / "data")
    held, _ = sorted(Shelf(tmp_path / "data").held(), key=lambda item: item.package, reverse=True)
    path = file_of(tmp_path, held)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        DAMAGE[name](connection)
        connection.commit()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall()
    _resize(tmp_path, held, path.stat().st_size)
    with TestClient(create_app(Settings(data=tmp_path / "data", workers=0))) as client:
        _asked(client, held)
        deadline = monotonic() + 20
        while len(client.get("/data/manifest.json").json()["files"]) == 2 and monotonic() < deadline:
            _asked(client, held)
            sleep(0.02)
        assert [item["package"] for item in client.get("/data/manifest.json").json()["files"]] == ["sound"]
        ready = client.get("/readyz")
        assert ready.status_code == 200
        assert held.path in ready.text
        assert str(tmp_path) not in ready.text
        answer = client.post("/api/match", json={"text": "ValueError: a sound message of another package"})
        assert answer.json()["hasMatch"]


def _resize(folder: Path, held: Held, size: int) -> None:
    """Have the manifest agree on the size alone."""
    path = folder / "data" / "snapshots" / "manifest.json"
    listed = json.loads(path.read_text())
    next(item for item in listed["files"] if item["path"] == held.path)["bytes"] = size
    path.write_text(json.dumps(listed))


def _asked(client: TestClient, held: Held) -> None:
    """Every way to a record of a snapshot; none of them may be a fault of the server."""
    answers = [
        client.post("/api/match", json={"text": TEXT}),
        client.post("/api/match", json={"text": 'File "/x/engine.py", line 5, in charge\nAssertionError'}),
        client.get("/api/search", params={"q": "flux capacitor holds"}),
        client.get("/api/errors", params={"package": held.package}),
        client.get("/api/errors", params={"q": "flux"}),
        client.get("/api/errors", params={"regex": "flux.*"}),
        client.get("/api/repos"),
        client.get("/errors", params={"repo": held.repo}),
        client.get("/api/diff", params={"package": held.package, "from": "1.0", "to": "1.0"}),
    ]
    for answer in answers:
        assert answer.status_code < 500, answer.text
    for listed in answers[3].json()["errors"] if answers[3].status_code == 200 else ():
        for path in (f"/api/errors/{listed['id']}?view=full", f"/api/errors/{listed['id']}.md"):
            assert client.get(path).status_code < 500


def test_a_file_changed_under_a_running_service_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(current, "EVERY", 0.0)
    held = made(tmp_path).held
    with TestClient(create_app(Settings(data=tmp_path / "data", workers=0))) as client:
        assert client.post("/api/match", json={"text": TEXT}).json()["hasMatch"]
        path = file_of(tmp_path, held)
        content = bytearray(path.read_bytes())
        content[len(content) // 3 :] = os.urandom(len(content) - len(content) // 3)
        path.write_bytes(content)
        deadline = monotonic() + 20
        while client.get("/data/manifest.json").json()["files"] and monotonic() < deadline:
            _asked(client, held)
        assert client.get("/data/manifest.json").json()["files"] == []
        again = made(tmp_path / "again")
        Shelf(tmp_path / "data").add(tmp_path / "again" / "data" / "snapshots" / again.held.path)
        deadline = monotonic() + 20
        while not client.get("/data/manifest.json").json()["files"] and monotonic() < deadline:
            sleep(0.02)
        assert client.post("/api/match", json={"text": TEXT}).json()["hasMatch"]


ENDLESS = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x FROM r)"


@pytest.mark.parametrize(
    "statement",
    ["DROP TABLE unreadable", "CREATE TABLE more (a)", "CREATE VIEW v AS SELECT 1",
     "CREATE TRIGGER t AFTER INSERT ON meta BEGIN SELECT 1; END",
     f"DROP TABLE meta; CREATE VIEW meta AS {ENDLESS} SELECT x AS name, x AS value FROM r",
     "UPDATE meta SET value = 'x' WHERE name = 'records'",
     "DELETE FROM meta WHERE name = 'made'",
     "UPDATE meta SET value = '../up' WHERE name = 'package'",
     "UPDATE meta SET value = '{0.__class__}' WHERE name = 'tags'",
     "UPDATE meta SET value = x'ff' WHERE name = 'repo'",
     "PRAGMA application_id = 1", "DROP INDEX record_id",
     "UPDATE array SET value = 'x'", "DELETE FROM array WHERE name = 'keys'"],
)  # fmt: skip
def test_another_schema_or_description_is_not_opened(tmp_path: Path, statement: str) -> None:
    path = file_of(tmp_path, made(tmp_path).held)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(statement)
        connection.commit()
    with pytest.raises(SnapshotError):
        _ = Snapshot(path).prepared


PREPARED = prepare(enumerate(map(Template.parse, ("the value {x} is not known", "no {y} for {z} left here"))))
NUMBERS = [name for name in PREPARED.arrays() if name not in ("keys", "digest", "total", "grams", "member")]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [0x7F, 0xFF])
def test_arrays_that_point_elsewhere_are_refused(name: str, value: int) -> None:
    """With a checksum that is right, as one who makes a bundle would have it."""
    arrays = PREPARED.arrays()
    assert Prepared.read(arrays).arrays() == arrays
    if name != "rare_offset" and name != "gram":
        with pytest.raises((ValueError, IndexError)):
            Prepared.read({**arrays, name: bytes([value]) * len(arrays[name])})
    with pytest.raises((ValueError, IndexError)):
        Prepared.read({**arrays, name: arrays[name][:-8]})
    with pytest.raises((ValueError, IndexError)):
        Prepared.read({**arrays, "keys": arrays["keys"][:-1]})


def test_any_bytes_as_arrays_are_refused_or_harmless() -> None:
    arrays = PREPARED.arrays()
    for name in arrays:
        for content in (b"", b"\x00" * len(arrays[name]), os.urandom(len(arrays[name]) or 8)):
            with contextlib.suppress(ValueError, IndexError, TypeError):
                Prepared.read({**arrays, name: content})


# --- bundles


def bundled(path: Path, members: dict[str, bytes], **changes: object) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            for key, value in changes.items():
                setattr(header, key, value)
            archive.addfile(header, io.BytesIO(content))
    return path


def entry(content: bytes, **changes: object) -> bytes:
    import hashlib

    item = {"path": "thing-1.0.sqlite", "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content),
            "package": "thing", "version": "1.0", "repo": "thing", "records": 2,
            "made": "2026-01-01T00:00:00Z"}  # fmt: skip
    return json.dumps({"files": [{**item, **changes}]}).encode()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The content of a snapshot as we write it."""
    folder = tmp_path_factory.mktemp("sound")
    return file_of(folder, made(folder).held).read_bytes()


def test_a_bundle_of_any_maker_that_is_right_is_taken_in(tmp_path: Path, sound: bytes) -> None:
    path = bundled(tmp_path / "b.tar", {"manifest.json": entry(sound), "thing-1.0.sqlite": sound})
    [held] = bundle.take_in(Shelf(tmp_path / "data"), path)
    assert Shelf(tmp_path / "data").verify(held) is None


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"manifest.json": b""},
        {"manifest.json": DEEP.encode()},
        {"manifest.json": b'{"files": []}'},
        {"manifest.json": b'{"files": [5]}'},
        {"manifest.json": b'{"files": [{"path": 5}]}'},
        {"other": b"", "manifest.json": b'{"files": []}'},
        {"manifest.json": entry(b"x"), "thing-1.0.sqlite": b"x"},
        {"manifest.json": entry(b"x"), "thing-1.0.sqlite": b"y"},
        {"manifest.json": entry(b"x")},
        {"manifest.json": entry(b"x", path="../thing.sqlite"), "../thing.sqlite": b"x"},
        {"manifest.json": entry(b"x", bytes=2), "thing-1.0.sqlite": b"x"},
        {"manifest.json": entry(b"x", bytes=1 << 60), "thing-1.0.sqlite": b"x"},
    ],
)
def test_what_is_no_bundle_changes_nothing(tmp_path: Path, members: dict[str, bytes]) -> None:
    shelf = Shelf(tmp_path / "data")
    with pytest.raises(SnapshotError) as caught:
        bundle.take_in(shelf, bundled(tmp_path / "b.tar", members))
    assert len(str(caught.value)) < 400
    assert shelf.held() == []
    assert [path for path in shelf.folder.iterdir() if path.suffix] == []
    assert not (tmp_path / "thing.sqlite").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_a_bundle_holds_plain_files(tmp_path: Path, sound: bytes, kind: bytes) -> None:
    path = bundled(
        tmp_path / "b.tar",
        {"manifest.json": entry(sound), "thing-1.0.sqlite": sound},
        type=kind,
        linkname="/etc/passwd",
    )
    with pytest.raises(SnapshotError, match="not a bundle"):
        bundle.take_in(Shelf(tmp_path / "data"), path)


def test_headers_nested_without_end_are_refused(tmp_path: Path) -> None:
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 2
    path = tmp_path / "b.tar"
    path.write_bytes((header.tobuf(tarfile.GNU_FORMAT) + b"a\x00".ljust(512, b"\x00")) * 5000)
    with pytest.raises(SnapshotError, match="not a bundle"):
        bundle.take_in(Shelf(tmp_path / "data"), path)


@pytest.mark.parametrize("name", [name for name in DAMAGE if name != "words"])
def test_a_bundle_is_read_whole_before_it_is_taken_in(tmp_path: Path, sound: bytes, name: str) -> None:
    """Its maker's checksums are all right; its content is not."""
    path = tmp_path / "x.sqlite"
    path.write_bytes(sound)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        DAMAGE[name](connection)
        connection.commit()
    content = path.read_bytes()
    file = bundled(tmp_path / "b.tar", {"manifest.json": entry(content), "thing-1.0.sqlite": content})
    with pytest.raises(SnapshotError):
        bundle.take_in(Shelf(tmp_path / "data"), file)
    assert Shelf(tmp_path / "data").held() == []


def test_a_record_cannot_take_the_place_of_anothers(tmp_path: Path, sound: bytes) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(sound)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE record SET id = '3018da578aab5d5a' WHERE number = 0")
        connection.commit()
    with pytest.raises(SnapshotError, match="another's"):
        check(Snapshot(path))


def test_a_snippet_that_unpacks_without_end_is_not_shown(tmp_path: Path, sound: bytes) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(sound)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE code SET lines = ?", (zlib.compress(b"a" * (64 << 20), 1),))
        connection.commit()
    before = _peak()
    snapshot = Snapshot(path)
    assert snapshot.snippet(0) is None or len(str(snapshot.snippet(0))) <= 17 << 20
    assert _peak() - before < 55_000


def _peak() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_every_truncation_of_a_bundle_is_refused(tmp_path: Path, sound: bytes) -> None:
    whole = bundled(
        tmp_path / "b.tar", {"manifest.json": entry(sound), "thing-1.0.sqlite": sound}
    ).read_bytes()
    cut = tmp_path / "cut.tar"
    for size in (*range(0, 1100, 100), len(whole) // 2, len(whole) - 11_000):
        cut.write_bytes(whole[:size])
        with pytest.raises(SnapshotError):
            bundle.take_in(Shelf(tmp_path / "data"), cut)


# --- notes


def test_notes_of_any_content_are_read_or_named(tmp_path: Path) -> None:
    contents = {
        "bytes.md": b"\xff\xfe",
        "large.md": b"pattern: x\n" + b"a" * (1 << 19),
        "deep.md": b"pattern: " + b"(" * 20_000,
        "many.md": b"pattern: (a{1000}){1000}",
        "empty.md": b"",
        "nul.md": b"pattern: \x00\n\nx",
        "fine.md": b"pattern: fp32\n\nfine",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder.md").mkdir()
    (tmp_path / "folder.md" / "in.md").write_text("pattern: fp32\n\nin a folder")
    (tmp_path / "gone.md").symlink_to(tmp_path / "nowhere")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.md")).write_text("pattern: fp32\n\nby any name")
    overlay = Overlay(tmp_path)
    sources = {note.source for note in overlay.about("0" * 16, "kv_scales must be fp32")}
    assert sources == {"fine.md", "folder.md/in.md", "\\udcff.md"}
    assert {problem.partition(":")[0] for problem in overlay.problems} == {
        "bytes.md", "large.md", "deep.md", "many.md", "empty.md", "gone.md",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["missing", "file", "closed"])
def test_problems_of_notes_tell_nothing_of_the_host(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "secret-place" / "notes"
    if kind == "file":
        folder.parent.mkdir()
        folder.write_text("x")
    elif kind == "closed":
        folder.mkdir(parents=True)
        (folder / "a.md").symlink_to(folder / "a.md")
    with TestClient(create_app(Settings(data=tmp_path, overlay=str(folder), workers=0))) as client:
        body = client.get("/readyz").text
    assert "secret-place" not in body
    assert ("FAULTBOOK_OVERLAY" in body) or ("a.md" in body)


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    current.use(None)


def test_what_is_described_is_what_is_there(tmp_path: Path) -> None:
    held = made(tmp_path).held
    path = file_of(tmp_path, held)
    assert described(path) == held
    assert digest(path) == held.sha256
    with contextlib.closing(sqlite3.connect(path)) as connection:
        arrays = dict(connection.execute("SELECT name, value FROM array"))
    assert checksum(arrays) == int(Snapshot(path).meta["arrays"])
