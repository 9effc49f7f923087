"""What is to be scanned, and its files; nothing of it is ever imported or run.

A folder, a wheel or source archive, an installed package by its name, or a requirement whose wheel is
fetched with pip, without its dependencies.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.parser import HeaderParser
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from catalog.scan.packages import Upstream, fork_of, normal, upstream_of

PYTHON: Final = (".py",)
CPP: Final = (".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c", ".h", ".hpp", ".hh", ".inl", ".hip")
SUFFIXES: Final = (*PYTHON, *CPP)
LARGEST: Final = 8 << 20
"""Bytes of a file that is scanned; a larger one is generated data, and is reported."""
FETCH_SECONDS: Final = 1800

_REQUIREMENT: Final = re.compile(
    r"[A-Za-z0-9][\w.-]*(?:\[[\w,. -]+\])?\s*(?:(?:===?|~=|!=|[<>]=?)\s*[\w.*+!-]+(?:\s*,\s*)?)*"
)
_IGNORED: Final = frozenset({"__pycache__", "node_modules", "build", "dist", "site-packages"})


class TargetError(Exception):
    """What was named cannot be scanned; the message says why and what to name instead."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One file of a target: its path in the repository, and where it is or what is in it."""

    path: str
    content: Path | bytes


@dataclass(frozen=True, slots=True)
class Target:
    """A package to scan. `version` of a folder that states none is a digest of its files' names and sizes."""

    name: str
    version: str
    upstream: Upstream
    summary: str
    files: tuple[Listed, ...]


@contextmanager
def resolved(text: str, upstream: str | None = None) -> Iterator[Target]:
    """The target that a word of the command line names; what is fetched is removed in the end."""
    repository = fork_of(upstream) if upstream is not None else None
    path = Path(text)
    if path.is_dir():
        yield _folder(path.resolve(), repository)
    elif path.is_file():
        yield _archive(path, repository)
    elif "/" in text or text.endswith((".whl", ".gz", ".zip")):
        raise TargetError(f"{text}: there is no such file or folder")
    elif not _REQUIREMENT.fullmatch(text):
        raise TargetError(f"{text[:100]!r} is neither a file, a folder, a package nor a requirement")
    elif (installed := _installed(text)) is not None:
        yield _distribution(installed, repository)
    else:
        with tempfile.TemporaryDirectory(prefix="faultbook-") as folder:
            yield _archive(_fetched(text, Path(folder)), repository)


def _installed(text: str) -> Distribution | None:
    try:
        return distribution(text)
    except (PackageNotFoundError, ValueError):
        return None


def _fetched(requirement: str, folder: Path) -> Path:
    """The wheel of a requirement. Source archives are not asked for: pip would run their build."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += [
        "--no-input",
        "--disable-pip-version-check",
        "--quiet",
        "--dest",
        str(folder),
        "--",
        requirement,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCH_SECONDS)
    except subprocess.TimeoutExpired:
        raise TargetError(f"{requirement}: pip took longer than {FETCH_SECONDS} s") from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise TargetError(f"{requirement}: {said[-1] if said else 'pip brought no wheel'}")
    return wheels[0]


def _distribution(found: Distribution, repository: Upstream | None) -> Target:
    metadata = found.metadata
    name, version = metadata["Name"], metadata["Version"]
    upstream = repository or upstream_of(
        name, _addresses(*(metadata.get_all("Project-URL") or ()), *(metadata.get_all("Home-page") or ()))
    )
    listed = []
    for file in found.files or ():
        place = Path(str(file.locate()))
        if file.suffix in SUFFIXES and ".." not in file.parts:
            listed.append(Listed(upstream.path(file.as_posix()), place))
    if not listed:
        where = "an editable install: name its folder" if found.files else "no list of its files"
        raise TargetError(f"{name} {version}: no sources are installed ({where})")
    return Target(normal(name), version, upstream, metadata["Summary"] or "", _ordered(listed))


def _folder(path: Path, repository: Upstream | None) -> Target:
    # A package's own folder: its files are imported by its name.
    prefix = f"{path.name}/" if (path / "__init__.py").is_file() else ""
    name, version = _stated(path)
    upstream = repository or upstream_of(name)
    listed = [Listed(upstream.path(prefix + file.relative_to(path).as_posix()), file) for file in _walk(path)]
    if not listed:
        raise TargetError(f"{path}: no Python or C++ sources in it")
    digest = hashlib.sha256(
        "".join(
            f"{item.path} {item.content.stat().st_size}\n"
            for item in listed
            if isinstance(item.content, Path)
        ).encode()
    ).hexdigest()[:12]
    return Target(name, version or f"0+{digest}", upstream, "", _ordered(listed))


def _walk(path: Path) -> Iterator[Path]:
    for item in sorted(path.iterdir()):
        if item.is_symlink():
            continue
        if item.is_dir():
            if item.name not in _IGNORED and not item.name.startswith("."):
                yield from _walk(item)
        elif item.suffix in SUFFIXES and item.is_file():
            yield item


def _stated(path: Path) -> tuple[str, str | None]:
    """Name and version that a project file states, read as text."""
    for project in (path / "pyproject.toml", path / "python" / "pyproject.toml"):
        try:
            stated = tomllib.loads(project.read_text("utf-8")).get("project", {})
        except (OSError, ValueError):
            continue
        if isinstance(stated.get("name"), str):
            version = stated.get("version")
            return normal(stated["name"]), version if isinstance(version, str) else None
    found = _installed(path.name) if (path / "__init__.py").is_file() else None
    beside = path.parent / f"{path.name}-{found.version}.dist-info" if found is not None else None
    if found is not None and beside is not None and beside.is_dir():
        return normal(path.name), found.version
    return normal(path.name) or "folder", None


def _archive(path: Path, repository: Upstream | None) -> Target:
    try:
        files = dict(_zipped(path) if zipfile.is_zipfile(path) else _tarred(path))
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise TargetError(f"{path.name}: not a wheel or source archive ({error})") from None
    stated = next(
        (
            files[name]
            for name in sorted(files, key=len)
            if name.endswith((".dist-info/METADATA", "/PKG-INFO")) or name == "PKG-INFO"
        ),
        None,
    )
    if stated is None:
        raise TargetError(f"{path.name}: a wheel or source archive has its metadata in it, this has none")
    metadata = HeaderParser().parsestr(stated.decode("utf-8", "replace"))
    name, version = str(metadata["Name"]), str(metadata["Version"])
    upstream = repository or upstream_of(
        name, _addresses(*metadata.get_all("Project-URL", ()), *metadata.get_all("Home-page", ()))
    )
    sources = {name: data for name, data in files.items() if name.endswith(SUFFIXES)}
    # A source archive has everything in one folder, which is the repository's root.
    tops = {name.partition("/")[0] for name in files}
    wheel = any(top.endswith(".dist-info") for top in tops)
    listed = [
        Listed(upstream.path(name) if wheel else name.partition("/")[2], data)
        for name, data in sources.items()
    ]
    if not listed:
        raise TargetError(f"{path.name}: no Python or C++ sources in it")
    return Target(normal(name), version, upstream, str(metadata["Summary"] or ""), _ordered(listed))


def _zipped(path: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for item in archive.infolist():
            if item.filename.endswith((*SUFFIXES, "/METADATA", "PKG-INFO")):
                with archive.open(item) as opened:
                    yield item.filename, opened.read(LARGEST + 1)


def _tarred(path: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as archive:
        for item in archive:
            if item.isfile() and item.name.endswith((*SUFFIXES, "/METADATA", "PKG-INFO")):
                opened = archive.extractfile(item)
                if opened is not None:
                    yield item.name, opened.read(LARGEST + 1)


def _addresses(*headers: object) -> Iterator[str]:
    """The address of each `Label, https://…` or `https://…`."""
    return (str(value).rpartition(" ")[2] for value in headers)


def _ordered(listed: list[Listed]) -> tuple[Listed, ...]:
    """In path order, each path once: what is moved may fall on another's place."""
    by_path = {item.path: item for item in listed}
    return tuple(by_path[path] for path in sorted(by_path))
