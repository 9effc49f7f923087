"""Folders of sources: a package, a repository, a fork of one."""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

from catalog.scan.listing import SUFFIXES
from catalog.scan.model import Unreadable
from catalog.scan.packages import VERSION, normal
from catalog.scan.source import printable

LARGEST: Final = 1 << 20
"""Bytes of a project file that is read."""
_IGNORED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
_BUILT: Final = frozenset({"build", "dist"})
"""Ignored beside a project file alone: packages have folders of these names too."""
_ARCHIVES: Final = (".whl", ".tar.gz", ".tar.bz2", ".tar.xz", ".zip")
_PROJECTS: Final = ("pyproject.toml", "setup.py", "setup.cfg", "CMakeLists.txt")


def top_of(folder: Path) -> Path:
    """The folder whose children are imported by their names: where a package's outermost part lies."""
    while _is_file(folder / "__init__.py") and folder.parent != folder:
        folder = folder.parent
    return folder


def walked(folder: Path) -> Iterator[tuple[str, Path | Unreadable]]:
    """(path in the repository or beside it, file) of all sources under a folder.

    A package's files are imported by its name, so that theirs begin with it. Links are not followed: what
    they lead to is scanned where it lies, or is no part of the folder.
    """
    top = top_of(folder)
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        try:
            with os.scandir(place) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError as error:
            yield _said(place, top, error.strerror or "a folder that cannot be read")
            continue
        project = any(entry.name in _PROJECTS for entry in entries)
        for entry in entries:
            path = Path(entry.path)
            source = entry.name.endswith(SUFFIXES)
            if entry.is_symlink() and (source or entry.is_dir()):
                yield _said(path, top, "a link; what it leads to is scanned where it lies")
            elif entry.is_dir(follow_symlinks=False):
                if not (_ignored(entry.name, project=project) or _is_file(path / "pyvenv.cfg")):
                    waiting.append(path)
            elif source and not entry.is_file(follow_symlinks=False):
                yield _said(path, top, "no plain file")
            elif source:
                yield path.relative_to(top).as_posix(), path


def archives_in(folder: Path) -> list[str]:
    """Names of a few archives in a folder, where what is in it may be meant."""
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.name.lower().endswith(_ARCHIVES))
    except OSError:
        return []
    return names[:3] + ["…"] * (len(names) > 3)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # its folder cannot be looked into
        return False


def _ignored(name: str, *, project: bool) -> bool:
    return name.startswith(".") or name in _IGNORED or (project and name in _BUILT)


def _said(path: Path, top: Path, reason: str) -> tuple[str, Unreadable]:
    shown = path.relative_to(top).as_posix()
    return shown, Unreadable(shown, reason)


def stated(folder: Path) -> tuple[str, str | None]:
    """Name and version that a project file states, read as text; else those that it is installed under."""
    top = top_of(folder)
    for place in (folder, folder / "python", top):
        project = _project(place / "pyproject.toml")
        name, version = project.get("name"), project.get("version")
        if isinstance(name, str) and _name(name):
            right = isinstance(version, str) and VERSION.fullmatch(version) is not None
            return _name(name), version if right else None
    if top == folder:
        return _name(folder.name) or "folder", None
    package = folder.relative_to(top).parts[0]
    for installed in distributions(path=[str(top)]):
        if _name(str(installed.metadata["Name"] or "")) == _name(package):
            right = VERSION.fullmatch(str(installed.version)) is not None
            return _name(package), str(installed.version) if right else None
    return _name(package) or "folder", None


def digest(files: Iterator[tuple[str, Path]]) -> str:
    """Stands for the version of a folder that states none: changes with its files' names and sizes."""
    text = "".join(f"{path} {_size(file)}\n" for path, file in files)
    return f"0+{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1


def _project(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as opened:
            project = tomllib.loads(opened.read(LARGEST).decode("utf-8")).get("project")
    except (OSError, ValueError, RecursionError):
        return {}
    return project if isinstance(project, dict) else {}


def _name(text: str) -> str:
    """A name as packages are called, of whatever a folder is called."""
    return normal(re.sub(r"[^a-z0-9._-]", "-", printable(text).lower())).strip("-")[:100].strip("-")
