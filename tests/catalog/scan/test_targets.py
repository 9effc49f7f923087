"""What can be named, and that nothing of it is run or lost without a word."""

from __future__ import annotations

import io
import json
import sys
import tarfile
import zipfile
from pathlib import Path
from time import process_time

import pytest

from catalog.scan import archives, run
from catalog.scan.listing import CYTHON, PYTHON, SUFFIXES, Listed, TargetError
from catalog.scan.macros import Macros
from catalog.scan.model import Scanned, Unreadable
from catalog.scan.packages import fork_of, upstream_of
from catalog.scan.targets import resolved

RAISES = b"raise ValueError('at import')\n"


def make_wheel(path: Path, files: dict[str, bytes], name: str = "sglang", version: str = "1.2.3") -> Path:
    wheel = path / f"{name}-{version}-py3-none-any.whl"
    metadata = (
        f"Name: {name}\nVersion: {version}\nSummary: Engine\nProject-URL: Source, https://github.com/a/b\n"
    )
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, data in files.items():
            archive.writestr(file, data)
        archive.writestr(f"{name}-{version}.dist-info/METADATA", metadata)
    return wheel


def test_a_wheels_files_get_their_paths_in_the_repository(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, {"sglang/srt/a.py": RAISES, "sglang/b.cuh": b"", "sglang/c.txt": b""})
    with resolved(str(wheel)) as target:
        assert (target.name, target.version, target.upstream.repo) == (
            "sglang",
            "1.2.3",
            "sgl-project/sglang",
        )
        assert [item.path for item in target.files] == ["python/sglang/b.cuh", "python/sglang/srt/a.py"]


def test_an_unknown_package_is_of_the_repository_its_metadata_names(tmp_path: Path) -> None:
    with resolved(str(make_wheel(tmp_path, {"thing/a.py": RAISES}, "thing"))) as target:
        assert target.upstream.repo == "a/b"
    assert upstream_of("nowhere").repo == "nowhere"


def test_a_source_archive_is_relative_to_its_only_folder(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(RAISES)
    (tmp_path / "PKG-INFO").write_text("Name: thing\nVersion: 2\n")
    path = tmp_path / "thing-2.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(tmp_path / "a.py", "thing-2/src/thing/a.py")
        archive.add(tmp_path / "PKG-INFO", "thing-2/PKG-INFO")
    with resolved(str(path)) as target:
        assert [item.path for item in target.files] == ["thing/a.py"]
        assert target.version == "2"


@pytest.mark.parametrize(
    ("name", "files", "paths"),
    [
        ("thing", ["src/thing/a.py", "src/one.py", "tests/t.py"], ["one.py", "tests/t.py", "thing/a.py"]),
        ("thing", ["src/thing/a.py", "src/core/b.cu"], ["src/core/b.cu", "thing/a.py"]),
        ("thing", ["src/thing/a.py", "thing/a.py"], ["src/thing/a.py", "thing/a.py"]),
        ("thing", ["src/__init__.py", "src/a.py"], ["src/__init__.py", "src/a.py"]),
        ("transformers", ["src/transformers/a.py"], ["src/transformers/a.py"]),
    ],
)
def test_sources_and_wheel_of_a_package_have_the_same_paths(
    tmp_path: Path, name: str, files: list[str], paths: list[str]
) -> None:
    """Its repository's where that is known, else those that it is installed at: one place, one id."""
    path = tmp_path / f"{name}-2.tar.gz"
    (tmp_path / "PKG-INFO").write_text(f"Name: {name}\nVersion: 2\n")
    root = tmp_path / "checkout"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(tmp_path / "PKG-INFO", f"{name}-2/PKG-INFO")
        for file in files:
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_bytes(RAISES)
            archive.add(root / file, f"{name}-2/{file}")
    (root / "pyproject.toml").write_text(f"[project]\nname = '{name}'\nversion = '2'\n")
    for target in (path, root):
        with resolved(str(target)) as found:
            assert sorted(item.path for item in found.files) == paths
            assert found.unreadable == ()


def test_a_folder_may_be_a_fork(tmp_path: Path) -> None:
    source = tmp_path / "python" / "sglang"
    source.mkdir(parents=True)
    (source / "a.py").write_bytes(RAISES)
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "b.py").write_bytes(RAISES)
    with resolved(str(tmp_path), "sgl-project/sglang") as target:
        assert [item.path for item in target.files] == ["python/sglang/a.py"]
        assert target.upstream.repo == "sgl-project/sglang"
        assert target.version.startswith("0+")
    assert fork_of("me/mine").repo == "me/mine"


def test_an_installed_package_is_found_by_its_name() -> None:
    with resolved("Jinja2") as target:
        assert target.name == "jinja2"
        assert any(item.path.endswith("jinja2/lexer.py") for item in target.files)


@pytest.mark.parametrize("text", ["no/such/folder", "--index-url=evil", "a b", "git+https://x", "gone.whl"])
def test_what_cannot_be_scanned_is_said(text: str) -> None:
    with pytest.raises(TargetError), resolved(text):
        pass


def test_an_archive_without_metadata_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.py", RAISES)
    with pytest.raises(TargetError, match="metadata"), resolved(str(path)):
        pass
    path.write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(TargetError, match="not a wheel"), resolved(str(path)):
        pass


def test_each_file_is_read_or_reported_and_none_is_imported(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    files = {
        "good.py": b"import pathlib\npathlib.Path(%r).touch()\nassert x, 'said'\n" % str(marker),
        "broken.py": b"def f(:\n",
        "binary.py": b"\x00\x01\x02",
        "latin.py": "# coding: latin-1\nraise ValueError('\xe9')\n".encode("latin-1"),
        "deep.py": b"x = " + b"(" * 5000 + b")" * 5000,
        "kernel.cu": b'void f() { TORCH_CHECK(a, "cuda said"); }',
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    listed = [Listed(name, tmp_path / name) for name in files]
    listed.append(Listed("gone.py", tmp_path / "gone.py"))
    results = run.scan_files(listed, Macros(), processes=1)
    assert [result.path for result in results] == [item.path for item in listed]
    assert {result.path for result in results if isinstance(result, Unreadable)} == {
        "broken.py", "binary.py", "deep.py", "gone.py",
    }  # fmt: skip
    said = [site.parts for result in results if isinstance(result, Scanned) for site in result.sites]
    assert said == [("said",), ("\xe9",), ("cuda said",)]
    assert not marker.exists()


def test_a_file_that_kills_or_stops_its_reader_is_reported_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SECONDS", 3.0)
    monkeypatch.setattr(run, "scan_batch", _dying)
    listed = [
        Listed("a.py", RAISES),
        Listed("kills.py", b""),
        Listed("stops.py", b""),
        Listed("b.py", RAISES),
    ]
    results = run.scan_files(listed, Macros(), processes=1)
    assert [type(result) for result in results] == [Scanned, Unreadable, Unreadable, Scanned]


def _dying(batch: list[Listed], macros: Macros) -> list[Scanned | Unreadable]:
    import os
    import time

    for item in batch:
        if item.path == "kills.py":
            os._exit(1)
        if item.path == "stops.py":
            time.sleep(30)
    return [Scanned(item.path) for item in batch]


def test_too_large_a_file_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "LARGEST", 10)
    [result] = run.scan_batch([Listed("a.py", RAISES)], Macros())
    assert isinstance(result, Unreadable)
    assert "larger" in result.reason


def test_a_file_of_an_archive_that_is_too_large_is_reported_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "LARGEST", 100)
    path = tmp_path / "a-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a-1.0.dist-info/METADATA", "Name: a\nVersion: 1.0\n")
        archive.writestr("a/small.py", RAISES)
        archive.writestr("a/large.py", b"#" * 101)
    with resolved(str(path)) as target:
        assert [file.path for file in target.files] == ["a/small.py"]
        [left_out] = target.unreadable
        assert (left_out.path, left_out.reason.split()[0]) == ("a/large.py", "larger")


def test_a_file_nested_without_end_takes_no_minutes() -> None:
    code = b"void f(){" + b"{" * 20_000 + b'TORCH_CHECK(x, "some text here");' + b"}" * 20_001
    started = process_time()
    [result] = run.scan_batch([Listed("a.cu", code)], Macros())
    assert process_time() - started < 8
    assert isinstance(result, Scanned)
    assert len(result.sites) == 1


def test_a_requirement_is_fetched_as_a_wheel_without_its_dependencies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    class Done:
        returncode = 0
        stdout = stderr = ""

    def fake(command: list[str], **_: object) -> Done:
        asked.append(command)
        make_wheel(Path(command[command.index("--dest") + 1]), {"sglang/a.py": RAISES})
        return Done()

    monkeypatch.setattr("subprocess.run", fake)
    with resolved("sglang==1.2.3") as target:
        assert target.version == "1.2.3"
    [command] = asked
    assert command[0] == sys.executable
    assert {"--no-deps", "--only-binary"} <= set(command)
    assert command[-2:] == ["--", "sglang==1.2.3"]


def _archive(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


@pytest.mark.parametrize(
    ("files", "paths"),
    [
        (
            ["thing-2/PKG-INFO", "thing-2/thing/a.py", "other/b.py", "c.py"],
            ["c.py", "other/b.py", "thing/a.py"],
        ),
        (["PKG-INFO", "thing/a.py"], ["thing/a.py"]),
        (["./thing-2/PKG-INFO", "./thing-2/thing/a.py"], ["thing/a.py"]),
        (["thing-2/thing.egg-info/PKG-INFO", "thing-2/thing/a.py"], ["thing/a.py"]),
        (["thing-2/PKG-INFO", "thing-2/sub/x/PKG-INFO", "thing-2/sub/x/a.py"], ["sub/x/a.py"]),
        (["thing-2/PKG-INFO", "../../evil.py", "/etc/abs.py"], ["etc/abs.py", "evil.py"]),
    ],
)
def test_a_source_archive_s_root_is_where_its_metadata_lie(
    tmp_path: Path, files: list[str], paths: list[str]
) -> None:
    content = {name: RAISES if name.endswith(".py") else b"Name: thing\nVersion: 2\n" for name in files}
    with resolved(str(_archive(tmp_path / "thing-2.tar.gz", content))) as target:
        assert [item.path for item in target.files] == paths


def test_what_a_wheel_installs_elsewhere_lies_beside_the_others(tmp_path: Path) -> None:
    files = {"thing-1.data/purelib/thing/a.py": RAISES, "thing-1.data/platlib/thing/b.py": RAISES}
    with resolved(str(make_wheel(tmp_path, files, "thing", "1"))) as target:
        assert [item.path for item in target.files] == ["thing/a.py", "thing/b.py"]


@pytest.mark.parametrize("name", ["thing (1).whl", "thing.WHL", "download"])
def test_an_archive_is_told_by_its_content(tmp_path: Path, name: str) -> None:
    renamed = make_wheel(tmp_path, {"thing/a.py": RAISES}, "thing").rename(tmp_path / name)
    with resolved(str(renamed)) as target:
        assert (target.name, len(target.files)) == ("thing", 1)


def test_a_folder_of_archives_says_to_name_them(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, {"thing/a.py": RAISES}, "thing")
    with pytest.raises(TargetError, match=wheel.name), resolved(str(tmp_path)):
        pass


def test_an_editable_install_is_read_where_it_is_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is installed of it is a finder, which is none of its sources."""
    source = tmp_path / "my source" / "src" / "thing"
    source.mkdir(parents=True)
    (source / "a.py").write_bytes(RAISES)
    site = tmp_path / "site"
    info = site / "thing-1.5.dist-info"
    info.mkdir(parents=True)
    (site / "__editable___thing_finder.py").write_bytes(RAISES)
    (info / "METADATA").write_text("Name: thing\nVersion: 1.5\n")
    (info / "RECORD").write_text("__editable___thing_finder.py,,\nthing-1.5.dist-info/METADATA,,\n")
    url = (tmp_path / "my source").as_uri()
    (info / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {"editable": True}}))
    monkeypatch.syspath_prepend(str(site))
    with resolved("thing") as target:
        assert (target.name, target.version) == ("thing", "1.5")
        assert [item.path for item in target.files] == ["thing/a.py"]


def test_a_link_to_a_folder_is_reported_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "thing").mkdir()
    (tmp_path / "thing" / "a.py").write_bytes(RAISES)
    (tmp_path / "thing" / "loop").symlink_to(tmp_path)
    with resolved(str(tmp_path)) as target:
        assert [item.path for item in target.files] == ["thing/a.py"]
        assert [item.path for item in target.unreadable] == ["thing/loop"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_kind_of_source_is_read(suffix: str) -> None:
    text = (
        'raise ValueError("said so")\n'
        if suffix in (*PYTHON, *CYTHON)
        else 'void f() { TORCH_CHECK(a, "said so"); }'
    )
    [result] = run.scan_batch([Listed(f"a{suffix}", text.encode())], Macros())
    assert isinstance(result, Scanned)
    assert [site.parts for site in result.sites] == [("said so",)]


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1", "utf-8"])
def test_a_c_plus_plus_file_of_any_encoding_is_read(encoding: str) -> None:
    data = '// caf\xe9\nvoid f() { TORCH_CHECK(a, "caf\xe9 is closed"); }'.encode(encoding)
    [result] = run.scan_batch([Listed("a.cu", data)], Macros())
    assert isinstance(result, Scanned)
    assert [(site.parts, site.line) for site in result.sites] == [(("caf\xe9 is closed",), 2)]


@pytest.mark.parametrize(
    "data",
    [
        b"\x0cdef f(x):\n\tif x:\n\t\traise ValueError('said so')\n\x0c\n",
        b"def f(x):\r    raise ValueError('said so')\r",
        b"x = 'a\x0bb\x1cc'\r\nraise ValueError('said so')\r\n",
        b"\xef\xbb\xbfraise ValueError('said so')",
        b"# -*- coding: cp1252 -*-\nraise ValueError('said so')  # \x80\n",
    ],
)
def test_line_ends_marks_and_form_feeds(data: bytes) -> None:
    [result] = run.scan_batch([Listed("a.py", data)], Macros())
    assert isinstance(result, Scanned)
    [site] = result.sites
    assert site.parts == ("said so",)
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    assert b"said so" in lines[site.line - 1]


@pytest.mark.parametrize(
    "data", [b"print 'x'\n", b"try: f()\nexcept A, e: pass\n", b"x = 1\0\n", b"raise X('\xe9')\n"]
)
def test_what_this_python_does_not_parse_is_reported(data: bytes) -> None:
    [result] = run.scan_batch([Listed("a.py", data)], Macros())
    assert isinstance(result, Unreadable)
    assert result.reason
